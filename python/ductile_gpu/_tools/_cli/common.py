# SPDX-License-Identifier: Apache-2.0
"""What the commands share: how they fail, and how they say that they are at work."""

from __future__ import annotations

import argparse
import contextlib
import errno
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Optional, TextIO

from ductile_gpu._binding._abi import Options
from ductile_gpu._binding._core import add_environment, make_options, parse_options
from ductile_gpu._binding._errors import InvalidArgument
from ductile_gpu_words import say, shown

PROGRAM = "ductile-gpu"
MISUSED = 2
INTERRUPTED = 130
SUFFIXES = (".trace.gz", ".trace", ".pickle", ".pickle.gz")  # of recordings


FORMAT = 1  # of what the commands print with --json; see commands.schema.json


class Failure(Exception):
    """Ends the command: one line, with what would help, and an exit status."""

    def __init__(self, line: str, status: int = 1) -> None:
        super().__init__(line)
        self.status = status


@contextlib.contextmanager
def or_fail(what: object) -> Iterator[None]:
    """What the system refuses inside ends the command; the line says of what."""
    try:
        yield
    except OSError as error:
        raise Failure(f"{what}: {error.strerror or error}") from None


def progress(line: str) -> None:
    """One line on standard error, where `say` says what stays, only where a terminal shows it."""
    if sys.stderr is not None and sys.stderr.isatty():
        say(line)


def standard_output() -> TextIO:
    """Standard output. Raises OSError where there is none, as behind a shell's `>&-`."""
    if sys.stdout is None:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    return sys.stdout


def for_output(lines: Iterable[str]) -> str:
    """Lines for standard output, also those that others wrote, and in any encoding."""
    text = "".join(f"{shown(line)}\n" for line in lines)
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def show(*lines: str) -> None:
    """Prints them; see `for_output`."""
    standard_output().write(for_output(lines))


def print_json(found: Mapping[str, Any], indent: Optional[int] = None) -> None:
    """One object, with the number of its format."""
    standard_output().write(json.dumps({"format": FORMAT, **found}, indent=indent) + "\n")


def add_settings(parser: argparse.ArgumentParser) -> None:
    """--set KEY=VALUE, or KEY:VALUE."""
    parser.add_argument(
        "--set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="Set an option of Ductile, as DUCTILE_CONF does. May be given more than once.",
    )


def add_replay_options(parser: argparse.ArgumentParser) -> None:
    """On what a recording is replayed, and which part of it."""
    parser.add_argument(
        "--capacity",
        metavar="BYTES",
        help="The memory of the GPU, such as 80G. Default: that of an H200, 139 GiB.",
    )
    parser.add_argument(
        "--gpu",
        metavar="N",
        type=int,
        help="Which GPU of a snapshot. Default: one that ran out of memory, else the fullest.",
    )
    add_settings(parser)


def _others(problem: str) -> str:
    """Said behind a key that there is not and that resembles none: the keys that there are."""
    if not problem.startswith("unknown option") or "did you mean" in problem:
        return ""
    return f"; there are {', '.join(sorted(Options.__annotations__))}"


def read_settings(words: Iterable[str]) -> dict[str, str]:
    """--set KEY=VALUE, as often as given, each as DUCTILE_CONF has it. What no allocator takes is
    refused, here and in DUCTILE_CONF, before anything is done."""
    made = make_options({})
    settings: dict[str, str] = {}
    for word in words:
        try:
            parse_options(made, word)
        except InvalidArgument as error:
            raise Failure(f"--set: {error}{_others(str(error))}", MISUSED) from None
        pairs = (re.split("[:=]", pair, maxsplit=1) for pair in word.split(",") if pair)
        settings.update((key.strip(), value.strip()) for key, value in pairs)
    try:
        add_environment(made)
    except InvalidArgument as error:
        raise Failure(str(error), MISUSED) from None
    return settings
