# SPDX-License-Identifier: Apache-2.0
"""The virtual functions of PyTorch's CUDA allocator interface, as a header declares them.

The compiler sees to it that every pure virtual function is there, and that what says `override`
does. What it does not see is a function, or another form of one, that a newer PyTorch adds with a
default body: this does. Forms are told apart by how many parameters they take.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ADAPTER = Path(__file__).parent / "adapter" / "torch_allocator.h"

HEADERS = (
    "c10/core/Allocator.h",
    "c10/core/CachingDeviceAllocator.h",
    "c10/cuda/CUDACachingAllocator.h",
)
CLASSES = ("Allocator", "DeviceAllocator", "CUDAAllocator")

# Whose default body is right: a block's context is its address.
INHERITED = frozenset(("is_simple_data_ptr",))

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_VIRTUAL = re.compile(r"\bvirtual\b[^;{}()]*?(~?\w+)\s*\(")
_FUNCTION = re.compile(r"\b(\w+)\(")


def _body(text: str, name: str) -> str:
    """What is between the braces of `class name` or `struct name`; empty if it is not there."""
    found = re.search(rf"\b(?:class|struct)\s+(?:\w+\s+)?{name}\b[^;{{]*{{", text)
    if found is None:
        return ""
    depth = 1
    for at in range(found.end(), len(text)):
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if depth == 0:
            return text[found.end() : at]
    raise ValueError(f"{name} has no end")


def _parameters(text: str, at: int) -> int:
    """How many there are from behind an opened bracket to the one that closes it."""
    depth, commas = 1, 0
    for end in range(at, len(text)):
        depth += {"(": 1, "{": 1, "<": 1, ")": -1, "}": -1, ">": -1}.get(text[end], 0)
        if depth == 0:
            return commas + 1 if text[at:end].strip() else 0
        commas += text[end] == "," and depth == 1
    raise ValueError("a bracket has no end")


def _forms(text: str, functions: re.Pattern[str]) -> Iterator[tuple[str, int]]:
    for found in functions.finditer(text):
        yield found[1], _parameters(text, found.end())


def _own_forms() -> frozenset[tuple[str, int]]:
    """What the adapter implements."""
    text = _COMMENT.sub("", ADAPTER.read_text(encoding="utf-8"))
    return frozenset(_forms(_body(text, "Allocator"), _FUNCTION))


def _declared_forms(include: Path) -> Iterator[tuple[str, int]]:
    for header in HEADERS:
        text = _COMMENT.sub("", (include / header).read_text(encoding="utf-8"))
        for name in CLASSES:
            yield from _forms(_body(text, name), _VIRTUAL)


def declared(include: Path) -> frozenset[str]:
    """The names of the virtual functions that the headers in this folder declare."""
    names = {name for name, _ in _declared_forms(include)}
    return frozenset(name for name in names if not name.startswith("~"))


def unknown(include: Path) -> frozenset[str]:
    """What the headers declare and the adapter has never heard of: functions by their names, and
    forms of known ones with their number of parameters."""
    own = _own_forms()
    known = {name for name, _ in own}
    return (declared(include) - known - INHERITED) | {
        f"{name} with {count} parameters"
        for name, count in _declared_forms(include)
        if name in known and (name, count) not in own
    }
