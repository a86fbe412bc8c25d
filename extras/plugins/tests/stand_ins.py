# SPDX-License-Identifier: Apache-2.0
"""Modules for packages that are not installed, so that others can be imported that import them."""

from __future__ import annotations

import importlib.machinery
import sys
import types
from typing import Any


class _Operators:
    """What classes and their objects here can both be asked for."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything if isinstance(self, type) else Anything()

    def __or__(self, other: Any) -> Any:
        return Any  # a type, as the decorator of a stand-in has left it

    __ror__ = __or__

    def __iter__(self) -> Any:
        return iter(())

    def __add__(self, other: Any) -> Any:
        return other

    __radd__ = __add__

    def __lt__(self, other: Any) -> bool:
        return False

    __gt__ = __le__ = __ge__ = __lt__


class _Kind(_Operators, type):
    """A class with whatever attribute is asked for; so it can be a base, a decorator, a type."""

    def __getitem__(cls, key: Any) -> Any:
        return cls


class Anything(_Operators, metaclass=_Kind):
    """Takes any call. Called with one function, as decorators are, it returns that."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __call__(self, *given: Any, **_: Any) -> Any:
        return given[0] if len(given) == 1 and callable(given[0]) else Anything()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: Any) -> None:
        pass


class StandIn(types.ModuleType):
    __version__ = "1000.0.0"
    __file__ = "/nowhere/__init__.py"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything


def _importer() -> str:
    """The package of the module that imports."""
    frame: Any = sys._getframe(2)
    while frame is not None and "importlib" in frame.f_code.co_filename:
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", "") if frame is not None else "").partition(".")[0]


class Finder:
    """The last one: finds what no other finder does and one package imports. Others may look for
    what they can do without."""

    def __init__(self, package: str) -> None:
        self.package = package
        self.made: set[str] = set()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        top = name.partition(".")[0]
        parent = sys.modules.get(name.rpartition(".")[0])
        is_part = "." in name and not isinstance(parent, StandIn)
        if top == self.package or is_part or _importer() != self.package:
            return None
        self.made.add(top)
        return importlib.machinery.ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]

    def create_module(self, spec: Any) -> StandIn:
        return StandIn(spec.name)

    def exec_module(self, module: Any) -> None:
        module.__path__ = []
