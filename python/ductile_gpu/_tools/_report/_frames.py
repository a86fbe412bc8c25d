# SPDX-License-Identifier: Apache-2.0
"""Names of call stacks: "FUNCTION FILE:LINE" a line, the innermost first; compiled code may come
without a file."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

_PYTHON = re.compile(r"(\S+) (.*\.py|<.*>)(?::(\d+))?")
_COMPILED = re.compile(r"(.*?)(?: (\S*):\d+)?")
_LIBRARY = re.compile(r"[\\/](torch|site-packages|dist-packages|lib[\\/]python[\d.]*)[\\/]")
# Of compiled code: what the backward pass runs, and what the program called.
_NODE = re.compile(r"torch::autograd::(?:generated::)?(\w+)::apply\(")
_OPERATOR = re.compile(r"at::_ops::(\w+)::call\(")
_OTHERS_CODE = re.compile(r"(torch|c10|at)::|operator new|_*(cuda|nccl)Malloc")


class Frame(NamedTuple):
    """One call. A compiled frame has no file that says anything."""

    name: str
    file: str
    line: str
    is_python: bool

    @property
    def place(self) -> str:
        """Where it stands, as far as that is short."""
        return f"{short(self.file)}:{self.line}".rstrip(":")

    @property
    def is_own(self) -> bool:
        """Of the program itself, not of a library."""
        return self.is_python and not _LIBRARY.search(self.file)


class Name(NamedTuple):
    """What a stack is called: a function, and where it stands."""

    name: str
    place: str

    def __str__(self) -> str:
        return f"{self.name} {self.place}".rstrip()


def short(file: str) -> str:
    """The last two parts of a path: what tells one file from another."""
    return "/".join(re.split(r"[\\/]", file)[-2:])


@lru_cache(maxsize=1 << 16)
def read(text: str) -> Frame:
    """One line of a stack."""
    found = _PYTHON.fullmatch(text)
    if found:
        return Frame(found[1], found[2], found[3] or "", True)
    compiled = _COMPILED.fullmatch(text)
    return Frame(compiled[1] if compiled else text, "", "", False)


def _bare(name: str) -> str:
    """A C++ function without its arguments."""
    head = re.split(r"(?<!operator)\(", name.replace("(anonymous namespace)::", ""), maxsplit=1)[0]
    return head.rsplit(" ", 1)[-1] or name


def _compiled_name(stack: str, frames: list[Frame]) -> Name:
    """By the operator of the backward pass, or the outermost operator that was called."""
    node, called = _NODE.search(stack), _OPERATOR.findall(stack)
    if node:
        return Name(f"{node[1]} (backward)", "")
    if called:
        return Name(f"{called[-1]} (C++)", "")
    other = next((frame for frame in frames if not _OTHERS_CODE.search(frame.name)), frames[0])
    return Name(_bare(other.name), "")


@lru_cache(maxsize=1 << 14)
def name_of(stack: str) -> Name:
    """What a stack is called: by the program's own innermost call, else by the library's."""
    frames = [read(line) for line in stack.split("\n")]
    python = [frame for frame in frames if frame.is_python]
    if not python:
        return _compiled_name(stack, frames)
    chosen = next((frame for frame in python if frame.is_own), python[0])
    return Name(chosen.name, chosen.place)
