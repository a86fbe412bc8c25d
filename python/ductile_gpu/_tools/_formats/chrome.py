# SPDX-License-Identifier: Apache-2.0
"""Writes recorded memory as Chrome trace JSON, for Perfetto, on the clock of PyTorch's profiler.

The profiler counts microseconds from baseTimeNanoseconds, PyTorch's snapshots from 1970: with the
base of a profile, memory stands beside its kernels. The events are ductile-bench's: it reads a
snapshot of any length in little memory.
"""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
import tempfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any, NamedTuple, Optional, cast

from ductile_gpu._binding import _native
from ductile_gpu._binding._objects import Closes
from ductile_gpu._tools._bench import BenchError

Event = dict[str, Any]
PIECE_BYTES = 1 << 20
MOST_PROFILE_BYTES = 4 << 30


class SnapshotError(ValueError):
    """The file is no snapshot; the text says why, in one line."""


class Profile(NamedTuple):
    """What PyTorch's profiler exported."""

    content: dict[str, Any]
    base_ns: int


def read_profile(path: Path) -> Profile:
    """A Chrome trace of PyTorch's profiler, gzipped or not. Raises ValueError, OSError."""
    try:
        with open(path, "rb") as file:
            is_packed = file.peek(2)[:2] == b"\x1f\x8b"
            unpacked = gzip.GzipFile(fileobj=file) if is_packed else file
            data = unpacked.read(MOST_PROFILE_BYTES + 1)
        if len(data) > MOST_PROFILE_BYTES:
            raise ValueError(f"more than {MOST_PROFILE_BYTES:,} bytes are not read")
        found = json.loads(data)
    except (ValueError, EOFError, gzip.BadGzipFile, zlib.error, RecursionError) as error:
        raise ValueError(f"it is no Chrome trace ({error})") from None
    content = {"traceEvents": found} if isinstance(found, list) else found
    events = content.get("traceEvents") if isinstance(content, dict) else None
    if not isinstance(events, list) or not all(isinstance(event, dict) for event in events):
        raise ValueError("it is JSON, but no Chrome trace")
    base = content.get("baseTimeNanoseconds", 0)
    if not isinstance(base, (int, float)) or not 0 <= base < 1 << 63:
        raise ValueError(f"it is no profile of PyTorch: baseTimeNanoseconds is {base}")
    return Profile(content, int(base))


# ---- Memory ------------------------------------------------------------------------------------


class Memory(Closes):
    """The events of a snapshot's memory, as ductile-bench makes them.

    Args:
        path: of the snapshot.
        base_ns: what times count from; None: the beginning of the history.
        most: about how many events to keep of each GPU.

    Raises:
        SnapshotError: the file is no snapshot, or cannot be read.
    """

    def __init__(self, path: Path, base_ns: Optional[int], most: int) -> None:
        command = [str(_native.bench_path()), "export", "--max-events", str(most)]
        if base_ns is not None:
            command += ["--base-ns", str(base_ns)]
        self._path = path  # the handler of an error names it
        self._said = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            [*command, "--", str(path)], stdout=subprocess.PIPE, stderr=self._said
        )
        self.events = cast(IO[bytes], self._process.stdout)
        """their text: objects with commas between them"""
        try:
            head = self.events.readline()
            span = json.loads(head) if head else self.finish()
        except BaseException:
            self.close()
            raise
        self.first_us: int = span["first_us"]
        self.last_us: int = span["last_us"]
        self.base_ns = self.first_us * 1000 if base_ns is None else base_ns

    def finish(self) -> dict[str, Any]:
        """Behind the last event. Raises SnapshotError when they are not all."""
        if self._process.wait() == 0:
            return {}
        self._said.seek(0)
        reason = str(BenchError(self._said.read().decode(errors="replace"), "export"))
        raise SnapshotError(reason.removeprefix(f"{self._path}: "))

    def close(self) -> None:
        """Ends the process if it is still at work."""
        self._process.kill()
        self._process.wait()
        self.events.close()
        self._said.close()


# ---- The file ----------------------------------------------------------------------------------

_encode = json.JSONEncoder(separators=(",", ":")).encode  # json.dumps would make one each time


def _write_list(file: IO[bytes], events: Iterable[Event]) -> None:
    comma = ""
    for event in events:
        file.write((comma + _encode(event)).encode())
        comma = ",\n"


def write_chrome(path: Path, memory: Memory, profile: Optional[Profile] = None) -> None:
    """Writes a trace of the memory, and of all that the profile has.

    Raises:
        SnapshotError: the snapshot could not be read to its end.
    """
    content: dict[str, Any] = {"displayTimeUnit": "ms"} if profile is None else {**profile.content}
    others: list[Event] = content.pop("traceEvents", [])
    content["baseTimeNanoseconds"] = memory.base_ns
    with gzip.open(path, "wb", 1) if path.name.endswith(".gz") else open(path, "wb") as opened:
        file = cast(IO[bytes], opened)
        file.write(_encode(content)[:-1].encode())
        file.write(b',"traceEvents":[\n')
        _write_list(file, others)
        file.write(b",\n" if others else b"")
        shutil.copyfileobj(memory.events, file, PIECE_BYTES)
        memory.finish()
        file.write(b"]}\n")
