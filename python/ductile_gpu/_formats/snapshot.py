# SPDX-License-Identifier: Apache-2.0
"""Reads what torch.cuda.memory._dump_snapshot wrote, from whomever it comes."""

from __future__ import annotations

import gzip
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["History", "Levels", "SnapshotError", "read_snapshot"]

GZIP_MAGIC = b"\x1f\x8b"
PENDING_STATES = ("active_pending_free", "active_awaiting_free")


class SnapshotError(ValueError):
    """The file is no snapshot; the text says why, in one line."""


class _PlainUnpickler(pickle.Unpickler):
    """A snapshot is made of dicts, lists, texts and numbers: nothing in it needs to be called."""

    def find_class(self, module: str, name: str) -> Any:
        raise SnapshotError(f"it names {module}.{name}, which no snapshot of PyTorch does")


def _is_packed(path: Path) -> bool:
    with open(path, "rb") as file:
        return file.read(len(GZIP_MAGIC)) == GZIP_MAGIC


def _load(path: Path) -> Any:
    with gzip.open(path, "rb") if _is_packed(path) else open(path, "rb") as file:
        return _PlainUnpickler(file).load()


def _has_lists(found: Any, *names: str) -> bool:
    return isinstance(found, dict) and all(isinstance(found.get(name), list) for name in names)


def read_snapshot(path: Path) -> dict[str, Any]:
    """The snapshot in a pickle, gzipped or not.

    Raises:
        SnapshotError: it is none, is cut off, or holds what no snapshot holds.
        OSError: the file cannot be read.
    """
    try:
        found = _load(path)
    except SnapshotError:
        raise
    except (EOFError, gzip.BadGzipFile) as error:
        raise SnapshotError(f"it is cut off or damaged ({error})") from None
    except OSError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())
        raise SnapshotError(f"it is no pickle of a PyTorch snapshot ({reason})") from None
    if not _has_lists(found, "segments", "device_traces"):
        raise SnapshotError("it is a pickle, but no snapshot of PyTorch's memory")
    return dict(found)


class Levels(NamedTuple):
    """Bytes of one device at one moment, as the blocks were requested."""

    held: int
    live: int
    pending: int


def _end_levels(snapshot: dict[str, Any], device: int) -> Levels:
    """As the snapshot itself found the device. A recording from its first allocation on, whose
    end could not be looked at, has no segments: see `History`."""
    held = live = pending = 0
    for segment in snapshot["segments"]:
        if segment.get("device", 0) != device:
            continue
        held += segment["total_size"]
        for block in segment["blocks"]:
            size = block.get("requested_size", block["size"])
            if block["state"] == "active_allocated":
                live += size
            elif block["state"] in PENDING_STATES:
                pending += size
    return Levels(held, live, pending)


# What an entry of a trace adds to (held, live, pending) for each of its bytes.
Effect = tuple[int, int, int]
EFFECTS: dict[str, Effect] = {
    "alloc": (0, 1, 0),
    "free_requested": (0, -1, 1),
    "free_completed": (0, 0, -1),
    "segment_alloc": (1, 0, 0),
    "segment_map": (1, 0, 0),
    "segment_free": (-1, 0, 0),
    "segment_unmap": (-1, 0, 0),
}


# Of a recording that left out the first half of each free.
COMPLETED_ONLY: dict[str, Effect] = {**EFFECTS, "free_completed": (0, -1, 0)}


class History:
    """What a snapshot recorded of one device.

    Raises:
        SnapshotError: an entry is not as PyTorch writes it.
    """

    def __init__(self, snapshot: dict[str, Any], device: int) -> None:
        try:
            self.entries: list[dict[str, Any]] = snapshot["device_traces"][device]
            actions = {entry["action"] for entry in self.entries}
            self._effects = EFFECTS if "free_requested" in actions else COMPLETED_ONLY
            is_looked_at = bool(snapshot["segments"])
            self.start = Levels(0, 0, 0)
            if is_looked_at:
                self.start = self._find_start(_end_levels(snapshot, device))
        except (KeyError, TypeError, IndexError, AttributeError) as error:
            raise SnapshotError(
                f"an entry is not as PyTorch writes it ({type(error).__name__}: {error})"
            ) from None

    def _find_start(self, end: Levels) -> Levels:
        """What the device had when the recording begins, blocks from before it included."""
        held, live, pending = end
        for entry in self.entries:
            effect = self._effects.get(entry["action"])
            if effect is not None:
                size = entry["size"]
                held -= effect[0] * size
                live -= effect[1] * size
                pending -= effect[2] * size
        return Levels(held, live, pending)

    def levels(self) -> Iterator[Levels]:
        """What the device has after each entry, in their order."""
        held, live, pending = self.start
        for entry in self.entries:
            effect = self._effects.get(entry["action"])
            if effect is not None:
                size = entry["size"]
                held += effect[0] * size
                live += effect[1] * size
                pending += effect[2] * size
            yield Levels(held, live, pending)
