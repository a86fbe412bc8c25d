# SPDX-License-Identifier: Apache-2.0
"""Writes recorded memory as Chrome trace JSON, for Perfetto, on the clock of PyTorch's profiler.

The profiler counts microseconds from baseTimeNanoseconds, PyTorch's snapshots from 1970: with the
base of a profile, memory stands beside its kernels.
"""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple, Optional

from ductile_gpu._formats.snapshot import History, Levels, SnapshotError

__all__ = ["Profile", "chrome_events", "first_time_us", "read_profile", "write_chrome"]

Event = dict[str, Any]
# Far from process ids, and from the numbers that the profiler gives devices.
FIRST_PID = 1_900_000_000
GROWTH, ANNOTATIONS, STEPS = 1, 2, 3
THREADS = {GROWTH: "memory from the driver", ANNOTATIONS: "annotations", STEPS: "steps"}
STEP_PREFIX = "Optimizer.step#"
MOST_FRAMES = 20
GROWTH_ACTIONS = ("segment_alloc", "segment_map", "segment_free", "segment_unmap")


class Profile(NamedTuple):
    """What PyTorch's profiler exported."""

    content: dict[str, Any]
    base_ns: int


def read_profile(path: Path) -> Profile:
    """A Chrome trace of PyTorch's profiler, gzipped or not. Raises ValueError, OSError."""
    with open(path, "rb") as file:
        data = file.read()
    try:
        found = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
    except (ValueError, EOFError, gzip.BadGzipFile) as error:
        raise ValueError(f"it is no Chrome trace ({error})") from None
    content = {"traceEvents": found} if isinstance(found, list) else found
    if not isinstance(content, dict) or not isinstance(content.get("traceEvents"), list):
        raise ValueError("it is JSON, but no Chrome trace")
    return Profile(content, int(content.get("baseTimeNanoseconds", 0)))


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
    """When the recording begins. Raises SnapshotError where it has no times, or no entries."""
    entries = [trace[0] for trace in snapshot["device_traces"] if trace]
    if not entries:
        raise SnapshotError("it has no history: PyTorch was not recording when it was written")
    if any("time_us" not in entry for entry in entries):
        raise SnapshotError("its history has no times, since an early PyTorch wrote it")
    return int(min(entry["time_us"] for entry in entries))


def chrome_events(snapshot: dict[str, Any], base_ns: int, most: int) -> Iterator[Event]:
    """Counters, growth, refusals, annotations and steps of each device.

    At most about `most` events for each device; peaks are kept.

    Raises:
        SnapshotError: an entry is not as PyTorch writes it.
    """
    marks = snapshot.get("external_annotations") or []
    for device, trace in enumerate(snapshot["device_traces"]):
        if trace:
            writer = _Writer(History(snapshot, device), device, base_ns)
            own_marks = [mark for mark in marks if mark.get("device", device) == device]
            try:
                yield from writer.names()
                yield from writer.counters(most * 3 // 4)
                yield from writer.growth(most // 8)
                yield from writer.refusals()
                yield from writer.slices(own_marks[-most // 8 :])
            except (KeyError, TypeError, AttributeError) as error:
                raise SnapshotError(f"an entry is not as PyTorch writes it ({error!r})") from None


_encode = json.JSONEncoder(separators=(",", ":")).encode  # json.dumps would make one each time


def _write_list(file: IO[str], events: Iterable[Event]) -> None:
    comma = ""
    for event in events:
        file.write(comma)
        file.write(_encode(event))
        comma = ",\n"


def write_chrome(
    path: Path, events: Iterable[Event], base_ns: int, profile: Optional[Profile] = None
) -> None:
    """Writes a trace of these events, and of all that the profile has."""
    content: dict[str, Any] = {"displayTimeUnit": "ms"} if profile is None else {**profile.content}
    others: list[Event] = content.pop("traceEvents", [])
    content["baseTimeNanoseconds"] = base_ns
    is_packed = path.name.endswith(".gz")
    with gzip.open(path, "wt", 1, "utf-8") if is_packed else open(path, "w", encoding="utf-8") as f:
        f.write(_encode(content)[:-1])
        f.write(',"traceEvents":[\n')
        _write_list(f, others)
        f.write(",\n" if others else "")
        _write_list(f, events)
        f.write("\n]}\n")
