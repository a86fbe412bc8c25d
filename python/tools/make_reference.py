# SPDX-License-Identifier: Apache-2.0
"""Writes docs/python-reference.md from the docstrings of the installed package.

python/tests/test_reference.py compares: what is public and what the page says are the same.
"""

from __future__ import annotations

import enum
import inspect
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ductile_gpu
import ductile_gpu.torch
from ductile_gpu._binding._objects import Closes, Ends, Unique
from ductile_gpu._binding._sleep import Sleeps

PARTS = frozenset((Sleeps,))
ELSEWHERE = {
    ductile_gpu.Options: "[tuning.md](tuning.md#options) has each key, its default and meaning."
}
HIDDEN = frozenset((object, Closes, Ends, Unique, *PARTS))
MODULES = {"ductile_gpu": ductile_gpu, "ductile_gpu.torch": ductile_gpu.torch}
HEAD = """\
# Reference of the Python package

Made from the docstrings by `python/tools/make_reference.py`. [python.md](python.md) and
[pytorch.md](pytorch.md) explain; the modules for [CuPy](cupy.md), [Numba](numba.md) and
[RMM](rmm.md) have pages of their own.
"""


def written_docs(thing: Any) -> str:
    """Its own docstring; empty where it has only what Python or a base class made."""
    text = thing.__doc__ if isinstance(thing, type) else inspect.getdoc(thing)
    is_made = isinstance(thing, type) and (text or "").startswith(f"{thing.__name__}(")
    return "" if text is None or is_made else inspect.cleandoc(text)


def describe(text: str) -> Iterator[str]:
    """The first sentence as prose, and what follows as it is laid out."""
    first, _, rest = text.partition("\n\n")
    yield from ("", " ".join(first.split()))
    if rest.strip():
        yield from ("", "```text", rest.rstrip(), "```")


class Written:
    """An annotation, shown as it stands in the source."""

    def __init__(self, annotation: Any) -> None:
        self._text = annotation if isinstance(annotation, str) else type_name(annotation)

    def __repr__(self) -> str:
        return self._text


def signature(name: str, function: Any) -> str:
    found = inspect.signature(function)
    parameters = [
        parameter.replace(annotation=annotated(parameter.annotation))
        for parameter in found.parameters.values()
        if parameter.name not in ("self", "cls")
    ]
    returned = annotated(found.return_annotation)
    return f"{name}{found.replace(parameters=parameters, return_annotation=returned)}"


def annotated(annotation: Any) -> Any:
    return annotation if annotation is inspect.Signature.empty else Written(annotation)


def members(kind: type) -> Iterator[tuple[str, Any]]:
    """What a class declares and documents, in the order of its source; then what the part of it
    does that stands in a module of its own."""
    declared = dict(vars(kind))
    for part in PARTS.intersection(kind.__bases__):
        declared.update((name, value) for name, value in vars(part).items() if name not in declared)
    for name, value in declared.items():
        function = value.__func__ if isinstance(value, (classmethod, staticmethod)) else value
        is_public = not name.startswith("_") and (
            inspect.isfunction(function) or is_property(value)
        )
        if is_public and written_docs(function):
            yield name, function


def is_property(value: Any) -> bool:
    return isinstance(value, property)


def write_class(name: str, kind: type) -> Iterator[str]:
    bases = ", ".join(base.__name__ for base in kind.__bases__ if base not in HIDDEN)
    yield from ("", f"### `{name}`" + (f" ({bases})" if bases else ""))
    yield from describe(written_docs(kind))
    if issubclass(kind, enum.Enum):
        names = ", ".join(f"`{member.name}`" for member in kind)
        yield from ("", *textwrap.wrap(names, 120, break_on_hyphens=False))
        return
    if kind in ELSEWHERE:
        yield from ("", ELSEWHERE[kind])
        return
    if issubclass(kind, dict) or issubclass(kind, tuple):
        fields = inspect.get_annotations(kind)
        yield from ("", "```text")
        yield from (f"{field}: {Written(hint)!r}" for field, hint in fields.items())
        yield "```"
    for member, function in members(kind):
        is_value = is_property(function)
        yield from ("", f"#### `{member if is_value else signature(member, function)}`")
        yield from describe(written_docs(function))


def type_name(hint: Any) -> str:
    """An annotation as it stands in the source."""
    return str(getattr(hint, "__forward_arg__", getattr(hint, "__name__", hint)))


def write_module(name: str, module: Any) -> Iterator[str]:
    yield from ("", f"## `{name}`")
    for member in sorted(module.__all__):
        value = getattr(module, member)
        if isinstance(value, type):
            yield from write_class(member, value)
        elif callable(value):
            yield from ("", f"### `{signature(member, value)}`")
            yield from describe(written_docs(value))


def make() -> str:
    """The whole page."""
    lines = [HEAD.rstrip()]
    for name, module in MODULES.items():
        lines += write_module(name, module)
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: make_reference.py OUTPUT")
    Path(sys.argv[1]).write_text(make(), encoding="utf-8")
