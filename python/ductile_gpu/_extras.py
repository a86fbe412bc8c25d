# SPDX-License-Identifier: Apache-2.0
# mypy: disable-error-code="import-not-found"
"""What extras add to the package: the one place that knows of them.

The modules of an extra, a folder of extras/, are installed into this package. Without one the
package is whole, but for what these tables name. `ductile_gpu` looks here for names, the command
line for commands, and `ductile-gpu run` for options.
"""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:  # for those who check types, the names as they are where the extra is installed
    from ductile_gpu.handover import *  # noqa: F403


class Place(NamedTuple):
    """Where something is, if it is installed."""

    extra: str
    module: str


_HANDOVER = Place("handover", "ductile_gpu.handover")
_RUN_ALL = Place("preload", "ductile_gpu.preload.command")

# Of `ductile_gpu`.
NAMES = {
    "Epoch": _HANDOVER,
    "ImportedTag": _HANDOVER,
    "KeptTag": _HANDOVER,
    "TagExport": _HANDOVER,
    "export_tag": _HANDOVER,
    "import_tag": _HANDOVER,
    "keep_tag": _HANDOVER,
    "open_kept": _HANDOVER,
}
# Of the command line: the module has SUMMARY, DESCRIPTION, add_arguments and main, as the
# package's own commands have.
COMMANDS = {"keep": Place("handover", "ductile_gpu.handover.command")}
# Of `ductile-gpu run`: the module has DESCRIPTION, add_arguments, and main(options, settings),
# which returns the exit status, or None where none of its options is given.
RUN_OPTIONS = {"--all": _RUN_ALL, "--native-malloc": _RUN_ALL}


def is_installed(place: Place) -> bool:
    """Is its extra part of this installation?"""
    try:
        return find_spec(place.module) is not None
    except ModuleNotFoundError:  # the package that would hold it
        return False


def say_missing(what: str, place: Place) -> str:
    """One sentence about what is not installed."""
    return f"{what} is of the extra {place.extra}, which is not part of this installation"


def names() -> list[str]:
    """Those that are there."""
    return [name for name, place in NAMES.items() if is_installed(place)]


def attribute(name: str) -> Any:
    """A name of `ductile_gpu`. Raises AttributeError."""
    place = NAMES.get(name)
    if place is None:
        raise AttributeError(f"module 'ductile_gpu' has no attribute '{name}'")
    if not is_installed(place):
        raise AttributeError(say_missing(f"ductile_gpu.{name}", place))
    return getattr(importlib.import_module(place.module), name)


def commands() -> dict[str, Any]:
    """The modules of those that are there, by name."""
    return {
        name: importlib.import_module(place.module)
        for name, place in COMMANDS.items()
        if is_installed(place)
    }


def run_modules() -> list[Any]:
    """Those that are there, each once."""
    there = [place for place in dict.fromkeys(RUN_OPTIONS.values()) if is_installed(place)]
    return [importlib.import_module(place.module) for place in there]


def missing_run_options() -> dict[str, str]:
    """The options that are not there, and what is to be said of each."""
    return {
        option: say_missing(f"run {option}", place)
        for option, place in RUN_OPTIONS.items()
        if not is_installed(place)
    }
