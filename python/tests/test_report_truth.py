# SPDX-License-Identifier: Apache-2.0
"""What a report says of a snapshot is what the snapshot says, by a reader that shares no code with
it: of programs made at random, of real ones, and of real ones with a refusal put in."""

from __future__ import annotations

import itertools
import json
import pickle
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Optional

import pytest
from recordings import MIB, SNAPSHOTS, names, report
from running import replayed
from snapshots import PENDING_STATES, read_snapshot

GRANULE = 2 * MIB


# ---- The reader ---------------------------------------------------------------------------------


class Refusal(NamedTuple):
    at: int
    size: int
    live: int
    device_free: int


class Block(NamedTuple):
    size: int
    stack: str


class Truth:
    """Of one GPU, by a walk from the end of the history to its beginning and one back. A block that
    was freed while another stream used it counts until that is over."""

    def __init__(self, path: Path, gpu: int) -> None:
        snapshot = read_snapshot(path)
        self.segments = [of for of in snapshot["segments"] if of.get("device", 0) == gpu]
        self.entries = snapshot["device_traces"][gpu]
        self.late, self.ends = self._ends()
        streams = {entry["stream"] for entry in self.entries if entry["action"] == "alloc"}
        self.has_streams = len(streams | {segment["stream"] for segment in self.segments}) > 1
        self.refusals: list[Refusal] = []
        self.n_events = self.live_peak = self.peak_event = self.need = 0
        self.at_moment: Counter[str] = Counter()  # bytes by stack: at the refusal, else at the peak
        self.at_end: Counter[str] = Counter()  # likewise
        self.before = 0  # live when the recording began
        self._walk()

    def _ends(self) -> tuple[set[int], set[int]]:
        """Entries that free a block which is in use until later, and those with which one ends."""
        late, ends, requested = set(), set(), {}
        for at, entry in enumerate(self.entries):
            if entry["action"] == "free_requested":
                requested[entry["addr"]] = at
            elif entry["action"] == "free_completed":
                request = requested.pop(entry["addr"], at)
                ends.add(request if request == at - 1 else at)
                if request < at - 1:
                    late.add(request)
        late.update(requested.values())  # in use to the end
        return late, ends

    def _blocks(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """All blocks of the segments, and where each lies."""
        for segment in self.segments:
            address = segment["address"]
            for block in segment["blocks"]:
                yield address, block
                address += block["size"]

    def _at_the_beginning(self) -> dict[int, Block]:
        """What is live there, by address."""
        live = {
            address: Block(block.get("requested_size", block["size"]), stack_of(block))
            for address, block in self._blocks()
            if block["state"] in ("active_allocated", *PENDING_STATES)
        }
        for at, entry in reversed(list(enumerate(self.entries))):
            if entry["action"] == "alloc":
                live.pop(entry["addr"], None)
            elif at in self.ends:
                live[entry["addr"]] = Block(entry["size"], "")
        return live

    def _walk(self) -> None:
        live = self._at_the_beginning()
        total = self.before = sum(block.size for block in live.values())
        self._note(total, live)
        for at, entry in enumerate(self.entries):
            size = entry.get("size", 0)
            if entry["action"] == "alloc":
                live[entry["addr"]] = Block(size, stack_of(entry))
                total += size
            elif at in self.ends:
                total -= live.pop(entry["addr"]).size
            elif at in self.late:
                self.n_events += self.has_streams  # with one stream it is no event of its own
                continue
            elif entry["action"] != "oom" or not size:
                continue
            self.n_events += 1
            if entry["action"] == "oom":
                free = entry.get("device_free", entry.get("addr"))
                self.refusals.append(Refusal(at, size, total, free))
                self._note(total + size, {**live, -1: Block(size, stack_of(entry))}, True)
            else:
                self._note(total, live)
        self.at_end = by_stack(live)

    def _note(self, total: int, live: dict[int, Block], refuses: bool = False) -> None:
        if total > self.live_peak:
            self.live_peak, self.peak_event = total, self.n_events
        is_first = refuses and len(self.refusals) == 1
        if is_first or (refuses == bool(self.refusals) and total > self.need):
            self.need, self.at_moment = total, by_stack(live)

    def fullness(self) -> int:
        """What the GPU held or had at most."""
        return max(self.held_peak(), self.live_peak if not self.refusals else 0)

    def worst(self) -> Optional[Refusal]:
        """The request that needed most."""
        return max(self.refusals, key=lambda of: of.live + of.size, default=None)

    def held_peak(self) -> int:
        """From what is held at the end."""
        held = most = sum(segment["total_size"] for segment in self.segments)
        signs = {"segment_alloc": -1, "segment_map": -1, "segment_free": 1, "segment_unmap": 1}
        for entry in reversed(self.entries):
            held += signs.get(entry["action"], 0) * entry.get("size", 0)
            most = max(most, held)
        return most

    @property
    def tells_what_is_held(self) -> bool:
        """A snapshot may leave out blocks."""
        sums = [sum(block["size"] for block in of["blocks"]) for of in self.segments]
        return bool(sums) and sums == [of["total_size"] for of in self.segments]


def by_stack(live: dict[int, Block]) -> Counter[str]:
    found: Counter[str] = Counter()
    for block in live.values():
        found[block.stack] += block.size
    return found


def by_state(segments: list[dict[str, Any]]) -> dict[str, int]:
    """What segments hold, as the report calls it."""
    found = Counter({"live_bytes": 0, "pending_bytes": 0, "free_bytes": 0})
    holes = [0]
    for block in (block for segment in segments for block in segment["blocks"]):
        if block["state"] == "active_allocated":
            found["live_bytes"] += block["size"]
        elif block["state"] in PENDING_STATES:
            found["pending_bytes"] += block["size"]
        else:
            found["free_bytes"] += block["size"]
            holes.append(block["size"])
    return {**found, "holes": len(holes) - 1, "largest_hole": max(holes)}


def stack_of(entry: dict[str, Any]) -> str:
    """As a report spells it."""
    frames = entry.get("frames") or []
    return "\n".join(f"{of['name']} {of['filename']}:{of['line']}" for of in frames)


def check(
    found: dict[str, Any], truth: Truth, at_refusals: Optional[list[dict[str, int]]] = None
) -> None:
    """Every figure of --json that a snapshot itself tells, and what was held at each refusal."""
    assert found["events"] == truth.n_events
    assert found["live_peak_bytes"] == truth.live_peak
    if found["steps"] is None:
        assert found["peak"]["event"] == truth.peak_event
    for by, rows in found["who"].items():
        assert sum(row["bytes"] for row in rows) == truth.need, by
        assert sum(row["end"] for row in rows) == sum(truth.at_end.values()), by
    moment = found["moment"]
    assert moment["kind"] == ("refusal" if truth.refusals else "peak")
    worst = truth.worst()
    asked = worst.size if worst is not None else 0
    assert (moment["bytes"], moment["live_bytes"]) == (truth.need, truth.need - asked)
    if truth.tells_what_is_held:
        held = sum(segment["total_size"] for segment in truth.segments)
        expected = {"held_bytes": held, "held_peak_bytes": truth.held_peak()}
        expected.update(by_state(truth.segments), before_bytes=truth.before)
        assert {name: found["recorded"][name] for name in expected} == expected
    check_refusal(found["refused"], truth, at_refusals)


def check_refusal(
    found: Optional[dict[str, Any]], truth: Truth, at_refusals: Optional[list[dict[str, int]]]
) -> None:
    worst = truth.worst()
    if found is None or worst is None:
        assert found is worst
        return
    assert found["refusals"] == len(truth.refusals)
    assert found["request_bytes"] == worst.size
    assert found["device_free_bytes"] == worst.device_free
    live, pending = found["live_bytes"], found["pending_bytes"]
    assert found["needed_bytes"] == live + pending + worst.size
    if at_refusals is not None and truth.tells_what_is_held:
        states = at_refusals[truth.refusals.index(worst)]
        assert {name: found[name] for name in states} == states
        assert found["held_bytes"] == live + pending + states["free_bytes"]
    elif not truth.tells_what_is_held:
        assert (live, pending) == (worst.live, 0)


def told(path: Path, folder: Path) -> dict[str, Any]:
    answer = report("--json", path, folder=folder)
    assert answer.returncode == 0, answer.stderr
    return dict(json.loads(answer.stdout))


# ---- Programs at random -------------------------------------------------------------------------

SEGMENT = 20 * MIB


class Program:
    """One that allocates and frees at random, on a GPU whose memory is held in segments as PyTorch
    does: small blocks apart from large ones, of which a rest of up to 1 MiB is not split off unless
    segments expand. Blocks are taken from the first hole that is large enough, and pending for a
    while when they are freed; segments without a block are given back at times."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.n_streams = 1 + seed % 2
        self.expands = seed % 3 == 1
        self.segments: list[dict[str, Any]] = []
        self.history: list[dict[str, Any]] = []
        self.at_refusals: list[dict[str, int]] = []

    def note(self, action: str, address: int, size: int, frames: list[dict[str, Any]]) -> None:
        stream = next(
            of["stream"] for of in self.segments if 0 <= address - of["address"] < 1 << 30
        )
        place = {"addr": address, "stream": stream, "frames": frames}
        self.history.append({"action": action, "size": size, **place, "time_us": len(self.history)})

    def _frames(self) -> list[dict[str, Any]]:
        line = self.dice.randrange(1, 6)
        names = ("kept", "made", "<lambda>")[: self.dice.randrange(1, 4)]
        return [{"name": name, "filename": "/p/a/net.py", "line": line} for name in names]

    def _hole(self, size: int) -> tuple[dict[str, Any], int]:
        stream = self.dice.randrange(self.n_streams)
        for segment in self.segments:
            for at, block in enumerate(segment["blocks"]):
                is_of_kind = segment["segment_type"] == self._kind(size)
                is_free = block["state"] == "inactive" and segment["stream"] == stream
                if is_free and is_of_kind and block["size"] >= size:
                    return segment, at
        return self._segment(size, stream), 0

    def _kind(self, size: int) -> str:
        return "small" if size <= MIB else "large"

    def _segment(self, size: int, stream: int) -> dict[str, Any]:
        least = 2 * MIB if size <= MIB else SEGMENT
        total = max(least, -(-size // GRANULE) * GRANULE)
        taken = {of["address"] for of in self.segments}
        address = next(a for a in itertools.count(1 << 40, 1 << 30) if a not in taken)
        made = {"device": 0, "stream": stream, "address": address, "total_size": total,
                "segment_type": self._kind(size), "is_expandable": self.expands}  # fmt: skip
        hole = {"address": address, "size": total, "state": "inactive", "frames": []}
        self.segments.append({**made, "blocks": [hole]})
        self.note("segment_map" if self.expands else "segment_alloc", address, total, [])
        return self.segments[-1]

    def give_back(self) -> None:
        for segment in list(self.segments):
            if {block["state"] for block in segment["blocks"]} == {"inactive"}:
                action = "segment_unmap" if self.expands else "segment_free"
                self.note(action, segment["address"], segment["total_size"], [])
                self.segments.remove(segment)

    def allocate(self) -> None:
        requested = self.dice.choice((1000, 70_000, 900_000, 5 * MIB + 7, 9 * MIB, 23 * MIB - 9))
        size, frames = -(-requested // 512) * 512, self._frames()
        segment, at = self._hole(size)
        hole = segment["blocks"].pop(at)
        if not self.expands and size > MIB and hole["size"] - size <= MIB:
            size = hole["size"]
        taken = {"address": hole["address"], "size": size, "requested_size": requested}
        segment["blocks"].insert(at, {**taken, "state": "active_allocated", "frames": frames})
        rest = {**hole, "address": hole["address"] + size, "size": hole["size"] - size}
        if rest["size"]:
            segment["blocks"].insert(at + 1, rest)
        self.note("alloc", taken["address"], requested, frames)

    def _all(self, state: str) -> list[dict[str, Any]]:
        blocks = [block for segment in self.segments for block in segment["blocks"]]
        return [block for block in blocks if block["state"] == state]

    def free(self) -> None:
        live = self._all("active_allocated")
        if live:
            block = self.dice.choice(live)
            block["state"] = "active_pending_free"
            self.note("free_requested", block["address"], block["requested_size"], [])

    def complete(self) -> None:
        for block in self._all("active_pending_free"):
            block["state"] = "inactive"
            self.note("free_completed", block["address"], block["requested_size"], [])
        for segment in self.segments:
            segment["blocks"] = self._joined(segment["blocks"])

    def _joined(self, blocks: list[dict[str, Any]]) -> list[dict[str, Any]]:
        kept: list[dict[str, Any]] = []
        for block in blocks:
            if kept and kept[-1]["state"] == block["state"] == "inactive":
                kept[-1]["size"] += block["size"]
            else:
                kept.append(block)
        return kept

    def refuse(self) -> None:
        self.at_refusals.append(by_state(self.segments))
        size, free = self.dice.randrange(1, 200 * MIB), self.dice.randrange(0, 90 * MIB)
        entry = {"action": "oom", "size": size, "device_free": free, "stream": 0}
        self.history.append({**entry, "frames": self._frames(), "time_us": len(self.history)})

    def run(self, n: int) -> None:
        do = (self.allocate, self.allocate, self.free, self.complete, self.free, self.complete)
        for at in range(n):
            self.dice.choice(do)()
            if at % 20 == 19:
                self.give_back()

    def save(self, path: Path) -> Path:
        traces: list[list[dict[str, Any]]] = [self.history]
        snapshot = {"device_traces": traces, "segments": self.segments}
        path.write_bytes(pickle.dumps(snapshot, protocol=4))
        return path


@pytest.mark.parametrize("seed", range(16))
def test_of_a_program_at_random_every_figure_is_the_snapshots(tmp_path, seed):
    program = Program(seed)
    program.run(60)
    if seed // 2 % 2:  # the recording begins here
        program.history.clear()
    program.run(120)
    if seed % 3:
        program.refuse()
        program.run(seed % 4 * 20)
        program.refuse()
    if seed == 7:
        program.run(30)
    path = program.save(tmp_path / "run.pickle")
    found, truth = told(path, tmp_path), Truth(path, 0)
    check(found, truth, program.at_refusals)
    for name, expected in (("bytes", truth.at_moment), ("end", truth.at_end)):
        kept: Counter[str] = Counter()
        for row in found["who"]["stack"]:
            kept[row["key"]] += row[name]
        kept[""] = kept.pop("allocated before the recording began", 0)
        assert +kept == +expected, name


# ---- Real ones ----------------------------------------------------------------------------------


@pytest.mark.parametrize("path", SNAPSHOTS, ids=names(SNAPSHOTS))
def test_of_a_real_recording_every_figure_is_the_snapshots(tmp_path, path):
    found = told(path, tmp_path)
    check(found, Truth(path, found["gpu"]))


def with_refusal(path: Path, part: float, size: int, folder: Path) -> Path:
    """The recording with a request that was refused after that part of it."""
    snapshot = read_snapshot(path)
    entries = max(snapshot["device_traces"], key=len)
    refused = {"action": "oom", "size": size, "device_free": 200 * MIB, "stream": 0, "frames": []}
    entries.insert(round(part * len(entries)), refused)
    made = folder / "refused.pickle"
    made.write_bytes(pickle.dumps(snapshot, protocol=4))
    return made


def completes(path: Path, name: str, granules: int) -> bool:
    """Whether a replay on so much memory does."""
    found = replayed("--contender", name, "--capacity", granules * GRANULE, path)
    return bool(found[name]["completed"])


def smallest(path: Path, name: str, too_few: int, enough: int) -> int:
    """In granules, by bisection."""
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        if completes(path, name, middle):
            enough = middle
        else:
            too_few = middle
    return enough


@pytest.mark.parametrize("part", [0.3, 1])
@pytest.mark.parametrize("path", SNAPSHOTS, ids=names(SNAPSHOTS))
def test_the_smallest_device_of_a_refused_request_is_a_replays_by_bisection(tmp_path, path, part):
    made = with_refusal(path, part, 1536 * MIB, tmp_path)
    found = told(made, tmp_path)
    check(found, Truth(made, found["gpu"]))
    too_few = (found["live_peak_bytes"] - 1) // GRANULE  # less than what is live
    for name, run in found["allocators"].items():
        needed = run["min_capacity_bytes"] // GRANULE
        by_bisection = smallest(made, name, too_few, -(-run["held_peak_bytes"] // GRANULE))
        assert completes(made, name, needed), name
        # A device is enough when all larger ones are.
        assert by_bisection == needed or not completes(made, name, needed - 1), name
        assert too_few < by_bisection <= needed
