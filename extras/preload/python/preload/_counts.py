# SPDX-License-Identifier: Apache-2.0
"""The counts that libductile_preload.so keeps: which library asked for how much, and who served it.

The layout is that of extras/preload/counts.c.
"""

from __future__ import annotations

import contextlib
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Optional

_MAGIC = b"DUCTPRE1"
_HEAD = struct.Struct("=8sQ512s512s")
_ROW = struct.Struct("=480sQQQQ")
_PACKAGE = re.compile(r"/(?:site|dist)-packages/((?:nvidia/)?[^/]+)/")


class Asked(NamedTuple):
    """What a library asked for."""

    library: str
    """a package, or the file of a library or program; empty where it could not be told"""
    served_calls: int
    served_bytes: int
    """from Ductile"""
    native_calls: int
    native_bytes: int
    """from the driver"""

    @property
    def total_bytes(self) -> int:
        """From both."""
        return self.served_bytes + self.native_bytes


class Counts(NamedTuple):
    """Of one process and its forks."""

    pid: int
    command: str
    note: Optional[str]
    """what was refused last, or why a device was not served"""
    rows: tuple[Asked, ...]


def _text(raw: bytes) -> str:
    return raw.partition(b"\0")[0].decode("utf-8", "replace")


def library_of(path: str) -> str:
    """A short name for the file of a library: the package it is part of, or the file's name."""
    found = _PACKAGE.search(path)
    return found.group(1) if found is not None else path.rpartition("/")[2]


def _rows(data: bytes) -> Iterator[Asked]:
    for name, *numbers in _ROW.iter_unpack(data):
        if any(numbers):
            yield Asked(library_of(_text(name)), *numbers)


def _read_one(path: Path) -> Counts:
    data = path.read_bytes()
    magic, pid, command, note = _HEAD.unpack_from(data)
    if magic != _MAGIC:
        raise ValueError(f"{path}: not a file of counts")
    words = command.rstrip(b"\0").replace(b"\0", b" ").decode("utf-8", "replace")
    return Counts(pid, words, _text(note) or None, tuple(_rows(data[_HEAD.size :])))


def read(folder: Path) -> list[Counts]:
    """Those of all processes. What another program has left there is passed over."""
    found = []
    for path in sorted(folder.iterdir()):
        with contextlib.suppress(OSError, ValueError, struct.error):
            found.append(_read_one(path))
    return found


def by_library(counts: list[Counts]) -> list[Asked]:
    """The sums of all processes, the library that asked for most first."""
    sums: dict[str, Asked] = {}
    for row in (row for process in counts for row in process.rows):
        before = sums.get(row.library, Asked(row.library, 0, 0, 0, 0))
        sums[row.library] = Asked(row.library, *(a + b for a, b in zip(before[1:], row[1:])))
    return sorted(sums.values(), key=lambda row: row.total_bytes, reverse=True)
