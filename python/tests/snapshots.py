# SPDX-License-Identifier: Apache-2.0
"""PyTorch's snapshots and their Chrome traces, by the shortest way: what the package's own ones are
compared with."""

from __future__ import annotations

import gzip
import pickle
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

PENDING_STATES = ("active_pending_free", "active_awaiting_free")


def read_snapshot(path: Path) -> dict[str, Any]:
    """The snapshot in a pickle, gzipped or not, of whom the test trusts."""
    data = path.read_bytes()
    found = pickle.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
    return dict(found)


Event = dict[str, Any]
# Far from process ids, and from the numbers that the profiler gives devices.
FIRST_PID = 1_900_000_000
GROWTH, ANNOTATIONS, STEPS = 1, 2, 3
THREADS = {GROWTH: "memory from the driver", ANNOTATIONS: "annotations", STEPS: "steps"}
STEP_PREFIX = "Optimizer.step#"
MOST_FRAMES = 20
GROWTH_ACTIONS = ("segment_alloc", "segment_map", "segment_free", "segment_unmap")


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


# ---- Which moments to keep ---------------------------------------------------------------------


def _extremes(levels: Sequence[Levels], first: int, end: int) -> set[int]:
    """Where a stretch begins and ends, and where most is held, most live and least live."""
    stretch = range(first, end)
    return {
        first,
        end - 1,
        max(stretch, key=lambda at: levels[at].held),
        max(stretch, key=lambda at: levels[at].live),
        min(stretch, key=lambda at: levels[at].live),
    }


def choose(levels: Sequence[Levels], most: int) -> list[int]:
    """All moments, or at most so many that no peak is lost: the extremes of equal stretches."""
    n = len(levels)
    if n <= most:
        return list(range(n))
    n_stretches = max(1, most // 5)
    kept: set[int] = set()
    for stretch in range(n_stretches):
        first, end = stretch * n // n_stretches, (stretch + 1) * n // n_stretches
        if first < end:
            kept |= _extremes(levels, first, end)
    return sorted(kept)


# ---- One device --------------------------------------------------------------------------------


class _Writer:
    """The events of one device."""

    def __init__(self, history: History, device: int, base_ns: int) -> None:
        self.history = history
        self.pid = FIRST_PID + device
        self.device = device
        self.base_us = base_ns / 1000

    def event(self, phase: str, thread: int, name: str, time_us: int, **more: Any) -> Event:
        return {
            "ph": phase,
            "cat": "memory",
            "name": name,
            "pid": self.pid,
            "tid": thread,
            "ts": round(time_us - self.base_us, 3),
            **more,
        }

    def names(self) -> Iterator[Event]:
        of_process = {"ph": "M", "pid": self.pid, "tid": 0, "ts": 0}
        title = f"GPU {self.device}: PyTorch's memory"
        yield {**of_process, "name": "process_name", "args": {"name": title}}
        yield {**of_process, "name": "process_sort_index", "args": {"sort_index": self.pid}}
        for thread, name in THREADS.items():
            yield {**of_process, "name": "thread_name", "tid": thread, "args": {"name": name}}

    def counters(self, most: int) -> Iterator[Event]:
        levels = list(self.history.levels())
        for at in choose(levels, most):
            held, live, pending = levels[at]
            values = {"live": live, "pending": pending, "free": held - live - pending}
            time_us = self.history.entries[at]["time_us"]
            yield self.event("C", 0, "memory held, bytes", time_us, args=values)

    def growth(self, most: int) -> Iterator[Event]:
        """What came from the driver and went back; of too many the largest."""
        found = [entry for entry in self.history.entries if entry["action"] in GROWTH_ACTIONS]
        if len(found) > most:
            found = sorted(found, key=lambda entry: entry["size"], reverse=True)[:most]
            found.sort(key=lambda entry: entry["time_us"])
        for entry in found:
            arguments = {"bytes": entry["size"], "stack": _stack(entry)}
            yield self.event("i", GROWTH, entry["action"], entry["time_us"], s="t", args=arguments)

    def refusals(self) -> Iterator[Event]:
        for entry in self.history.entries:
            if entry["action"] == "oom":
                arguments = {
                    "requested_bytes": entry["size"],
                    "device_free_bytes": entry.get("device_free", entry.get("addr")),
                    "stack": _stack(entry),
                }
                yield self.event("i", 0, "out of memory", entry["time_us"], s="g", args=arguments)

    def slices(self, annotations: Iterable[Event]) -> Iterator[Event]:
        """Annotations that have both ends, and the steps that the optimizer's ends divide."""
        open_since: dict[str, list[int]] = defaultdict(list)
        step, step_since = 0, None
        for mark in annotations:
            name, time_us = mark["name"], mark["time_us"]
            if mark["stage"] == "START":
                open_since[name].append(time_us)
            elif open_since[name]:
                since = open_since[name].pop()
                yield self.event("X", ANNOTATIONS, name, since, dur=time_us - since)
                if name.startswith(STEP_PREFIX):
                    if step_since is not None:
                        duration = time_us - step_since
                        yield self.event("X", STEPS, f"step {step}", step_since, dur=duration)
                    step, step_since = step + 1, time_us


def _stack(entry: dict[str, Any]) -> list[str]:
    frames = entry.get("frames") or []
    return [
        f"{frame['name']} ({frame['filename']}:{frame['line']})" for frame in frames[:MOST_FRAMES]
    ]


# ---- A snapshot --------------------------------------------------------------------------------


def first_time_us(snapshot: dict[str, Any]) -> int:
    """When the recording begins."""
    entries = [trace[0] for trace in snapshot["device_traces"] if trace]
    return int(min(entry["time_us"] for entry in entries))


def chrome_events(snapshot: dict[str, Any], base_ns: int, most: int) -> Iterator[Event]:
    """Counters, growth, refusals, annotations and steps of each device."""
    marks = snapshot.get("external_annotations") or []
    for device, trace in enumerate(snapshot["device_traces"]):
        if trace:
            writer = _Writer(History(snapshot, device), device, base_ns)
            own_marks = [mark for mark in marks if mark.get("device", device) == device]
            yield from writer.names()
            yield from writer.counters(most * 3 // 4)
            yield from writer.growth(most // 8)
            yield from writer.refusals()
            yield from writer.slices(own_marks[-(most // 8) :])
