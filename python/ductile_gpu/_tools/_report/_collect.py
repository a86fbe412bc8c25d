# SPDX-License-Identifier: Apache-2.0
"""Gathers what a report shows: ductile-bench replays, this reads what it prints."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Optional

from ductile_gpu._binding._abi import CONTENDERS
from ductile_gpu._tools import _bench
from ductile_gpu._tools._bench import replay_arguments

# In the order in which pages and tables show them.
NAMES = {name: CONTENDERS[name] for name in ("ductile", "expandable", "classic")}

# Options of Ductile that trade memory against time, and what they are for.
OPTION_SETS = {
    "sizes=2M": "small handles only: least memory, most time in the driver",
    "sizes=64M": "large handles always: least time in the driver",
    "reuse=wait": "waits on the GPU instead of new memory",
}


MOST_SIDE_BY_SIDE = 300_000  # events


class RecordingError(Exception):
    """A recording that cannot be reported on; one line says why."""


class Misused(Exception):
    """What no recording can be asked for; one line says why."""


@dataclass
class Recording:
    """What is known of one recorded run."""

    path: Path
    facts: dict[str, Any]
    runs: dict[str, dict[str, Any]] = field(default_factory=dict)  # by contender
    variants: list[dict[str, Any]] = field(default_factory=list)  # Ductile under other options
    capacity: Optional[int] = None  # bytes of the GPU that was asked for; None: none was
    outside: str = ""  # of a process that lives: what else uses its GPU, in words
    spilled: str = ""  # of a process that lives: what of its memory lies in the host, in words

    @property
    def name(self) -> str:
        return str(self.facts["trace"])

    def stack(self, number: int) -> str:
        """Empty for 0, which is none."""
        return str(self.facts["stacks"][number - 1]) if number else ""

    @property
    def live_peak(self) -> int:
        return int(self.facts["live_peak_bytes"])

    @property
    def blocks_before(self) -> int:
        """The first events of the replay: blocks from before the recording began."""
        return int(self.facts["blocks_before"])

    @property
    def n_events(self) -> int:
        """How many were recorded; as they are numbered."""
        return self.number_of(int(self.facts["replay_events"]) - 1)

    @property
    def has_history(self) -> bool:
        """Else only what was held when the snapshot was written is known."""
        return self.n_events > 0

    @property
    def recorded(self) -> Optional[dict[str, Any]]:
        """What PyTorch's own allocator held; None: the recording does not say."""
        return self.facts.get("recorded")

    @property
    def worst_refusal(self) -> Optional[dict[str, Any]]:
        """The refused request that needed most; None: the program was refused nothing."""
        refusals: list[dict[str, Any]] = self.facts["refusals"]
        return max(
            refusals, key=lambda of: int(of["live_bytes"] + of["request_bytes"]), default=None
        )

    @property
    def recorded_map(self) -> Optional[dict[str, Any]]:
        """Where each block of PyTorch's own allocator lay: at the worst refusal where that is
        known, else at the end."""
        at_refusal = (self.worst_refusal or {}).get("recorded")
        return (at_refusal or self.recorded or {}).get("map")

    @property
    def bytes_before(self) -> int:
        """Live when the recording began."""
        return int(self.facts["before_bytes"])

    @property
    def is_of_refusal(self) -> bool:
        """Whether the moment that the report is about is the refusal that needed most; else it is
        the live peak."""
        return bool(self.facts["moment"]["is_refusal"])

    @property
    def replays_pools(self) -> bool:
        """Whether the events say in which pool they are: else replays know none."""
        return bool(self.facts["replays_pools"])

    @property
    def moment_event(self) -> int:
        """Of the replay."""
        return int(self.facts["moment"]["event"])

    @property
    def moment_bytes(self) -> int:
        """Live at the moment, with what was refused then: what all holders sum to."""
        return int(self.facts["moment"]["bytes"])

    @property
    def refused_bytes(self) -> int:
        """Of these, what was asked for and refused."""
        return sum(of["bytes"] for of in self.facts["holders"] if of["refused"])

    def number_of(self, event: int) -> int:
        """Counted from 1 where the recording began; 0: before. A refused request is one event of
        the program, and two of a replay."""
        refusals = self.facts["refusals"]
        refused = len([of for of in refusals if of["replayed"] and of["event"] < event])
        return max(0, event + 1 - self.blocks_before - refused)

    def step_of(self, event: int) -> int:
        """The step, counted from 1, that an event of the replay lies in."""
        ends: list[int] = self.facts["step_ends"][: self.n_steps - 1]
        return 1 + sum(end <= event for end in ends)

    @property
    def n_steps(self) -> int:
        """How many steps there are; 1 where none were found. What follows the last mark is its."""
        ends = len(self.facts["step_ends"])
        return max(1, ends if self.facts["marks_steps"] else ends + 1)


Progress = Callable[[str], None]


@dataclass
class Choices:
    """What is asked of the replays."""

    gpu: Optional[int] = None
    capacity: Optional[str] = None
    settings: Sequence[str] = ()
    quick: bool = False
    full: bool = False


def ask_bench(command: str, *arguments: str) -> list[dict[str, Any]]:
    """The JSON objects that ductile-bench prints. Raises RecordingError, and Misused."""
    try:
        lines = _bench.ask_bench(command, *arguments).split("\n")
    except _bench.BenchError as error:
        if error.status == 2:
            raise Misused(str(error).removeprefix(f"{command}: ")) from None
        raise RecordingError(str(error)) from None
    return [json.loads(line) for line in lines if line]


def _view(path: Path, choices: Choices) -> Recording:
    """One program replays under all allocators, beside each other."""
    arguments = [
        *replay_arguments(choices.gpu, choices.capacity, choices.settings),
        "--contender",
        ",".join(NAMES),
    ]
    if choices.quick:
        arguments.append("--quick")
    if choices.full:
        arguments.append("--full")
    facts, *runs = ask_bench("view", *arguments, "--", str(path))
    found = {run["contender"]: run for run in runs}
    recording = Recording(path, facts, {name: found[name] for name in NAMES})
    if choices.capacity is not None:
        recording.capacity = int(found["ductile"]["capacity_bytes"])
    return recording


def _variant(path: Path, setting: str, choices: Choices) -> dict[str, Any]:
    """Ductile with one option changed; the smallest device is searched as `replay` does."""
    chosen = replay_arguments(choices.gpu, None, (*choices.settings, setting))
    arguments = ["--device", "virtual", "--json", "--min-capacity", "--contender", "ductile"]
    result = ask_bench("replay", *arguments, *chosen, "--", str(path))[0]
    return {
        "setting": setting,
        "purpose": OPTION_SETS[setting],
        "held_peak_bytes": result["reserved_peak_bytes"],
        "min_capacity_bytes": result.get("min_capacity_bytes"),
        "completed": result["completed"],
        "driver_time_ns": round(1000 * result["all_passes"]["driver_time_us"]),
    }


def _wanted_options(facts: dict[str, Any], choices: Choices) -> list[str]:
    if choices.capacity is not None or not facts["events"] > facts["blocks_before"]:
        return []
    return [
        setting
        for setting in OPTION_SETS
        if setting not in choices.settings
        and (len(facts["streams"]) > 1 or not setting.startswith("reuse"))
    ]


def collect(path: Path, choices: Choices, progress: Progress) -> Recording:
    """Replays one recording under every allocator, and under Ductile with other options.

    Raises RecordingError: the file is no recording, or cannot be replayed.
    """
    recording = _view(path, choices)
    searched = any(run.get("min_capacity_bytes") for run in recording.runs.values())
    wanted = _wanted_options(recording.facts, choices) if searched else []
    if wanted:
        progress(f"{path.name}: replaying under Ductile with other options")
    # Each keeps all events in memory.
    at_once = 2 if recording.n_events <= MOST_SIDE_BY_SIDE else 1
    with ThreadPoolExecutor(max_workers=at_once) as workers:
        found = workers.map(lambda setting: _variant(path, setting, choices), wanted)
        recording.variants.extend(found)
    return recording
