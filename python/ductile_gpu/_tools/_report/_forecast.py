# SPDX-License-Identifier: Apache-2.0
"""The largest batch that fits, from steps recorded with different ones.

The recorded run is written again with another size in all of these steps, block by block
(_scaling), and replayed under each allocator: what a size needs is the smallest device from which
that replay completes. So what an allocator holds beyond what is live, its rounding, and what it
gives back when memory runs short are those of that very size.

Nothing is said of sizes beyond 16 times the largest recorded, and nothing at all where the recorded
steps do not do the same work, or deny what they are said to be. Nor is anything said of a run that
is too long to be replayed that often, unless it is asked for.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Optional

from ductile_gpu._tools._bench import replay_arguments
from ductile_gpu._tools._report._collect import (
    NAMES,
    Choices,
    Recording,
    RecordingError,
    ask_bench,
)
from ductile_gpu._tools._report._scaling import NoTemplate, Template, as_events
from ductile_gpu._tools._sizes import in_bytes

# Sizes that are replayed, from the smallest recorded to so many times the largest.
RATIO, FURTHEST = 1.5, 16
LARGEST_SIZE = 1_000_000_000
MOST_EVENTS = 200_000  # of a run that is replayed some hundred times, unless it may take long
MOST_FALL = 0.05  # of the peak, from one step to one of a larger size


class NoForecast(RecordingError):
    """Nothing follows from these sizes; one sentence says why."""


def _check(recording: Recording, sizes: list[int], choices: Choices) -> None:
    if len(set(sizes)) < 2:
        raise NoForecast("--batch needs the sizes of at least two steps, and two that differ")
    if min(sizes) < 1:
        raise NoForecast("--batch: a size is at least 1")
    if max(sizes) > LARGEST_SIZE:
        raise NoForecast(f"--batch: a size is at most {LARGEST_SIZE:,}")
    if len(sizes) > len(recording.facts["step_peaks"]):
        steps = recording.n_steps
        marked = "" if recording.facts["marks_steps"] else "; `record` marks steps"
        raise NoForecast(
            f"--batch names {len(sizes)} steps, and {recording.name} has {steps}{marked}"
        )
    _check_order(recording, sizes)
    n_events = recording.facts["replay_events"]
    if n_events > MOST_EVENTS and not choices.full:
        raise NoForecast(
            f"--batch: {recording.name} has {n_events:,} events, and more than {MOST_EVENTS:,} "
            "take long to be replayed some hundred times: record fewer steps, or wait for it with "
            "--full"
        )


def _check_order(recording: Recording, sizes: list[int]) -> None:
    """A larger size needs more: else these are not the sizes of the steps."""
    peaks = recording.facts["step_peaks"][-len(sizes) :]
    most = {size: max(p for s, p in zip(sizes, peaks) if s == size) for size in sorted(set(sizes))}
    for (small, needed), (large, peak) in zip(list(most.items()), list(most.items())[1:]):
        if peak < (1 - MOST_FALL) * needed:
            raise NoForecast(
                f"--batch: the step said to have {large} has {in_bytes(peak)} live at its peak, "
                f"and the one with {small} {in_bytes(needed)}: are they in the order of the steps?"
            )


def _beyond(recording: Recording, sizes: list[int]) -> int:
    """How much more an earlier step needs than those that are named."""
    peaks: list[int] = recording.facts["step_peaks"]
    others = peaks[: -len(sizes)]
    return max(0, max(others, default=0) - max(peaks[-len(sizes) :]))


# What an allocator needs in each case: bytes, by ascending size.
Needs = dict[str, list[tuple[int, float]]]


def _rungs(sizes: Sequence[int]) -> list[int]:
    found, size = [], float(min(sizes))
    while size <= FURTHEST * max(sizes):
        found.append(round(size))
        size = max(size + 1, size * RATIO)
    furthest = FURTHEST * max(sizes)
    return found if found[-1] == furthest else [*found, furthest]


# ---- By replays --------------------------------------------------------------------------------


def _borders(recording: Recording, n: int) -> list[tuple[int, int]]:
    """Where the last n steps begin and end. What follows the last mark is in none."""
    ends = list(recording.facts["step_ends"])
    if not recording.facts["marks_steps"]:
        ends.append(recording.facts["replay_events"])
    return list(zip([0, *ends], ends))[-n:]


def _template(recording: Recording, sizes: list[int], folder: Path) -> Template:
    path = folder / "recorded.trace"
    gpu = ["--gpu", str(recording.facts["gpu"])] if recording.facts["snapshot"] else []
    ask_bench("convert", *gpu, "--", str(recording.path), str(path))
    lines = [line for line in path.read_text().split("\n") if line[:1] not in ("#", "s", "")]
    kept = [line for line in lines if line[0] == "k"]  # no events
    return Template(
        as_events(lines[len(kept) :]), _borders(recording, len(sizes)), sizes, before=kept
    )


def _replay(
    template: Template, size: int, choices: Choices, folder: Path
) -> Optional[dict[str, dict[str, Any]]]:
    """By allocator; None: one of them does not complete on the largest device."""
    path = folder / f"{size}.trace"
    template.write(path, size)
    arguments = ["--device", "virtual", "--json", "--min-capacity"]
    arguments += ["--contender", ",".join(NAMES), *replay_arguments(None, None, choices.settings)]
    try:
        found = {line["contender"]: line for line in ask_bench("replay", *arguments, str(path))}
    finally:
        path.unlink()
    done = all(run["completed"] and run.get("min_capacity_bytes") for run in found.values())
    return found if done else None


def _replayed(
    recording: Recording, template: Template, sizes: list[int], choices: Choices, folder: Path
) -> dict[str, Needs]:
    """At best an allocator needs what is live, and at worst what it holds when nothing stops it."""
    rungs = _rungs(sizes)
    with ThreadPoolExecutor(max_workers=2) as workers:
        found = list(workers.map(lambda size: _replay(template, size, choices, folder), rungs))
    known = [(size, runs) for size, runs in zip(rungs, found) if runs is not None]
    if len(known) < 2:
        raise NoForecast("--batch: hardly any other size completes on the largest device")
    granule = recording.facts["granule_bytes"]

    def points(name: str, field: str, beyond: int) -> list[tuple[int, float]]:
        return [(size, float(runs[name][field] + beyond)) for size, runs in known]

    return {
        name: {
            "best": points(name, "live_peak_bytes", -granule),
            "expected": points(name, "min_capacity_bytes", 0),
            "worst": points(name, "reserved_peak_bytes", granule),
        }
        for name in NAMES
    }


# ---- The whole ---------------------------------------------------------------------------------


def _by_replays(recording: Recording, sizes: list[int], choices: Choices) -> dict[str, Needs]:
    with tempfile.TemporaryDirectory(prefix="ductile-forecast-") as name:
        folder = Path(name)
        template = _template(recording, sizes, folder)
        return _replayed(recording, template, sizes, choices, folder)


def _warning(recording: Recording, sizes: list[int]) -> str:
    beyond = _beyond(recording, sizes)
    if 50 * beyond < recording.live_peak:
        return ""
    return (
        f" An earlier step has {in_bytes(beyond)} more live than any of these: what it does is not "
        "forecast, and the lower bound counts it."
    )


def _growth(needs: Needs) -> str:
    """Of what is live, between the two largest sizes that were replayed."""
    (small, less), (large, more) = needs["best"][-2:]
    if more <= needs["best"][0][1]:
        raise NoForecast("--batch: memory does not grow with these sizes: nothing follows")
    each = (more - less) / (large - small) / 2**20
    return f"between {small:,} and {large:,} each more takes {each:.1f} MiB"


def _note(sizes: list[int], unit: str, growth: str) -> str:
    return (
        f"From {len(sizes)} recorded steps with {unit} {', '.join(map(str, sizes))}: {growth}. The "
        "run was replayed with other sizes in all of these steps, made block by block. Memory "
        "outside the allocator (contexts, NCCL, other processes) is not in a recording: choose the "
        "device's memory without it."
    )


def forecast(
    recording: Recording, sizes: list[int], unit: str, choices: Optional[Choices] = None
) -> dict[str, Any]:
    """What the page needs: for each allocator its needs, and a note.

    sizes are those of the recording's last steps. Raises RecordingError where they tell nothing.
    """
    choices = choices or Choices()
    _check(recording, sizes, choices)
    try:
        needs = _by_replays(recording, sizes, choices)
    except NoTemplate as error:
        raise NoForecast(f"--batch: {error}") from None
    growth = _growth(needs["ductile"])
    beyond = _beyond(recording, sizes)
    for found in needs.values():
        found["worst"] = [(size, need + beyond) for size, need in found["worst"]]
    note = _note(sizes, unit, growth) + _warning(recording, sizes)
    return {"unit": unit, "note": note, "needs": needs}


def try_forecast(
    recording: Recording, sizes: list[int], unit: str, choices: Choices
) -> dict[str, Any]:
    """As forecast; where the sizes tell nothing, a note says why, and there are no needs."""
    try:
        return forecast(recording, sizes, unit, choices)
    except NoForecast as error:
        return {"unit": unit, "note": str(error), "needs": None}
