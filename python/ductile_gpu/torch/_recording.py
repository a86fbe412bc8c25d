# SPDX-License-Identifier: Apache-2.0
"""Records with the stack of each allocation, streamed to disk, and makes a PyTorch snapshot of it.

The library (recording/) writes parts in a folder while the program runs, in constant memory. At the
end they are put together; nothing is unpickled meanwhile, so that takes as long as copying.
"""

from __future__ import annotations

import contextlib
import ctypes
import gzip
import io
import os
import pickle
import shutil
import struct
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

from ductile_gpu._binding._native import find_file

# Places in the unpickler's memory; see recording/pickling.h.
TEXTS = {
    0: "action",
    1: "addr",
    2: "size",
    3: "stream",
    4: "time_us",
    5: "frames",
    6: "name",
    7: "filename",
    8: "line",
    9: "device_free",
    10: "pool_id",
}
ACTIONS = (
    "alloc",
    "free_requested",
    "free_completed",
    "segment_alloc",
    "segment_free",
    "segment_map",
    "segment_unmap",
    "snapshot",
    "oom",
)
FIRST_ACTION = len(TEXTS)


class RecordingError(RuntimeError):
    """It could not be begun, or not be written; one line."""


class Counts(NamedTuple):
    """What a recording holds."""

    events: int
    lost: int
    """that came after a write had failed"""
    stacks: int
    unnamed: int
    """events whose stack came after the table of stacks was full"""
    allocs: int
    """allocations, granted or refused"""
    bare: int
    """those of them without a stack"""


def _load() -> ctypes.CDLL:
    return ctypes.CDLL(str(find_file("lib", "libductile_recording.so")))


def functions(library: ctypes.CDLL) -> tuple[int, int]:
    """The addresses of the function that takes events and of the one that notes a stack before an
    allocation, for code in C."""
    event, note = (
        ctypes.cast(function, ctypes.c_void_p).value
        for function in (library.ductile_recording_event, library.ductile_recording_stack)
    )
    return cast(int, event), cast(int, note)


# ---- Pickles -----------------------------------------------------------------------------------


def _text(text: str) -> bytes:
    data = text.encode()
    return b"X" + struct.pack("<I", len(data)) + data


def _head() -> bytes:
    """Puts every text that entries name into the unpickler's memory, and the pool that is none."""
    places = dict(TEXTS)
    places.update({FIRST_ACTION + number: name for number, name in enumerate(ACTIONS)})
    texts = b"".join(_text(text) + b"q" + bytes([place]) + b"0" for place, text in places.items())
    no_pool = b"K\x00K\x00\x86q" + bytes([len(places)]) + b"0"
    return b"\x80\x02" + texts + no_pool


def _inner(thing: Any) -> bytes:
    """A pickle without head and end that uses no place of the memory."""
    buffer = io.BytesIO()
    pickler = pickle.Pickler(buffer, 2)
    pickler.fast = True
    pickler.dump(thing)
    return buffer.getvalue()[2:-1]


def more_of_dict(name: str, value: Any) -> bytes:
    """In place of the end of a pickle of a dict: one more member, and the end."""
    return b"(" + _text(name) + _inner(value) + b"u."


def _parts(folder: Path) -> Iterator[Path]:
    """The part of each device, up to the last that has one."""
    found = [int(path.stem.removeprefix("gpu")) for path in folder.glob("gpu*.part")]
    for device in range(max(found, default=-1) + 1):
        yield folder / f"gpu{device}.part"


def _append(out: BinaryIO, path: Path) -> None:
    with contextlib.suppress(FileNotFoundError), open(path, "rb") as part:
        shutil.copyfileobj(part, out, 1 << 20)


def _assemble(out: BinaryIO, folder: Path, rest: dict[str, Any]) -> None:
    out.write(_head())
    _append(out, folder / "stacks.part")
    out.write(b"}(" + _text("device_traces") + b"](")
    for part in _parts(folder):
        out.write(b"]")
        _append(out, part)
    out.write(b"e")
    for name, value in rest.items():
        out.write(_text(name) + _inner(value))
    out.write(b"u.")


# ---- Recording ---------------------------------------------------------------------------------


class StackRecording:
    """One recording of this process, from its making to `close`.

    Args:
        folder: an existing one, for the parts.

    Raises:
        RecordingError: another one is under way, or the folder cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self.library = _load()
        self.folder = folder
        self.annotations: list[dict[str, Any]] = []
        error = self.library.ductile_recording_open(os.fsencode(folder))
        if error:
            raise RecordingError(f"{folder}: {os.strerror(error)}")

    def annotate(self, stage: str, name: str, device: int) -> None:
        """What stands beside the entries: "START" or "END" of a name."""
        self.annotations.append(
            {"stage": stage, "name": name, "device": device, "time_us": time.time_ns() // 1000}
        )

    def close(self) -> Counts:
        """Ends it. Raises RecordingError when not all could be written."""
        found = (ctypes.c_uint64 * len(Counts._fields))()
        error = self.library.ductile_recording_close(found)
        counts = Counts(*found)
        if error:
            raise RecordingError(
                f"{self.folder}: {os.strerror(error)}, after {counts.events:,} events"
            )
        return counts

    def save(
        self,
        path: Path,
        segments: Sequence[Any],
        settings: dict[str, Any],
        devices: Sequence[dict[str, int]] = (),
        refusals: Sequence[dict[str, Any]] = (),
    ) -> None:
        """Writes a snapshot as PyTorch does. Pre: closed.

        Args:
            path: gzipped where it ends in .gz.
            segments: of torch.cuda.memory._snapshot() at the end of the recording.
            settings: its allocator_settings.
            devices: free and total memory of each GPU as a whole, which PyTorch does not write.
            refusals: what was held when a request was refused, which it does not write either.
        """
        rest = {
            "segments": list(segments),
            "external_annotations": self.annotations,
            "allocator_settings": settings,
            **({"device_memory": list(devices)} if devices else {}),
            **({"refusals": list(refusals)} if refusals else {}),
        }
        is_packed = path.name.endswith(".gz")
        with gzip.open(path, "wb", 1) if is_packed else open(path, "wb") as out:
            _assemble(cast(BinaryIO, out), self.folder, rest)
