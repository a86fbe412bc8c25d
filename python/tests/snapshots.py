# SPDX-License-Identifier: Apache-2.0
"""Snapshots of PyTorch, by the shortest way: what the package's own readers are compared with."""

from __future__ import annotations

import gzip
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

PENDING_STATES = ("active_pending_free", "active_awaiting_free")


def read_snapshot(path: Path) -> dict[str, Any]:
    """The snapshot in a pickle, gzipped or not, of whom the test trusts."""
    data = path.read_bytes()
    found = pickle.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
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
    """What a snapshot recorded of one device."""

    def __init__(self, snapshot: dict[str, Any], device: int) -> None:
        self.entries: list[dict[str, Any]] = snapshot["device_traces"][device]
        actions = {entry["action"] for entry in self.entries}
        self._effects = EFFECTS if "free_requested" in actions else COMPLETED_ONLY
        self.start = Levels(0, 0, 0)
        if snapshot["segments"]:
            self.start = self._find_start(_end_levels(snapshot, device))

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
