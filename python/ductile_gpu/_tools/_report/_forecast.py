# SPDX-License-Identifier: Apache-2.0
"""The largest batch that fits, from steps recorded with different ones.

The recorded run is written again with another size in all of these steps, block by block
(_scaling), and replayed under each allocator: what a size needs is the smallest device from which
that replay completes. So what an allocator holds beyond what is live, its rounding, and what it
gives back when memory runs short are those of that very size.

Where that cannot be done, as when the run is too long, what is live is fitted. A step is divided
into equal parts; what is live in a part grows as base + slope * batch, but the part that needs most
is another one for small batches (the optimizer's) than for large ones (the middle of the step): so
each part has a line of its own, and the step needs the highest of them. An allocator needs as much
more than that, in proportion, as it does for the recording's own peak.

Nothing is said of sizes beyond 16 times the largest recorded, and nothing at all where the recorded
steps do not do the same work, or deny what they are said to be.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
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
from ductile_gpu._tools._report._scaling import (
    DIFFERENT_WORK,
    NoTemplate,
    Template,
    as_events,
    line_of,
)
from ductile_gpu._tools._sizes import in_bytes

# Sizes that are replayed, from the smallest recorded to so many times the largest.
RATIO, FURTHEST = 1.5, 16
FITTED_RATIO = 1.02  # nothing is replayed: each size up to 50, and enough of the others
LARGEST_SIZE = 1_000_000_000
MOST_EVENTS = 200_000  # of a run that is replayed some hundred times
MOST_FALL = 0.05  # of the peak, from one step to one of a larger size
NO_WARM_STEPS = (
    "the first of these steps may be a warm-up, whose optimizer's states are made at its end: name "
    "two more of different sizes"
)


@dataclass
class Line:
    """live = base + slope * size, and how far a recorded step lies from it at most."""

    base: float
    slope: float
    deviation: float

    def at(self, size: float) -> float:
        """What the line says for a size."""
        return self.base + self.slope * size


def fit(points: list[tuple[int, int]]) -> Line:
    """The line of least squares through (size, bytes)."""
    base, slope = line_of(*zip(*points))
    return Line(base, slope, max(abs(y - base - slope * x) for x, y in points))


def highest(lines: list[Line], least: int) -> list[Line]:
    """Those that are the highest for some size from `least` on, by ascending size."""
    found: list[Line] = []
    at: float = least
    while True:
        line = max(lines, key=lambda line: (line.at(at), line.slope))
        found.append(line)
        steeper = [other for other in lines if other.slope > line.slope]
        if not steeper:
            return found
        at = min((line.base - o.base) / (o.slope - line.slope) for o in steeper)


class NoForecast(RecordingError):
    """Nothing follows from these sizes; one sentence says why."""


def _check(recording: Recording, sizes: list[int]) -> None:
    if len(set(sizes)) < 2:
        raise NoForecast("--batch needs the sizes of at least two steps, and two that differ")
    if min(sizes) < 1:
        raise NoForecast("--batch: a size is at least 1")
    if max(sizes) > LARGEST_SIZE:
        raise NoForecast(f"--batch: a size is at most {LARGEST_SIZE:,}")
    if len(sizes) > len(recording.facts["step_profiles"]):
        steps = recording.n_steps
        marked = "" if recording.facts["marks_steps"] else "; `record` marks steps"
        raise NoForecast(
            f"--batch names {len(sizes)} steps, and {recording.name} has {steps}{marked}"
        )
    _check_order(recording, sizes)


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


def _has_warm_up(recording: Recording, sizes: list[int]) -> bool:
    """The first step begins with less than all others, and needs less than their line says: the
    optimizer's states are made behind its peak. Two steps tell it by how they begin alone."""
    first, *others = recording.facts["step_profiles"][-len(sizes) :]
    if first[0] >= (1 - MOST_FALL) * min(profile[0] for profile in others):
        return False
    if len(set(sizes[1:])) < 2:
        return True
    peaks = [max(profile) for profile in others]
    expected = fit(list(zip(sizes[1:], peaks))).at(sizes[0])
    return bool(max(first) < expected - MOST_FALL * max(peaks))


def _lines(recording: Recording, sizes: list[int]) -> list[Line]:
    """By the steps that have these sizes, the last ones."""
    profiles = recording.facts["step_profiles"][-len(sizes) :]
    parts = (list(zip(sizes, levels)) for levels in zip(*profiles))
    lines = highest([fit(points) for points in parts], min(sizes))
    if lines[-1].slope <= 0:
        raise NoForecast("--batch: memory does not grow with these sizes: nothing follows")
    return lines


def _beyond(recording: Recording, sizes: list[int]) -> int:
    """How much more an earlier step needs than those that are named."""
    peaks: list[int] = recording.facts["step_peaks"]
    others = peaks[: -len(sizes)]
    return max(0, max(others, default=0) - max(peaks[-len(sizes) :]))


# What an allocator needs in each case: bytes, by ascending size.
Needs = dict[str, list[tuple[int, float]]]


def _rungs(least: int, sizes: Sequence[int], ratio: float) -> list[int]:
    found, size = [], float(least)
    while size <= FURTHEST * max(sizes):
        found.append(round(size))
        size = max(size + 1, size * ratio)
    furthest = FURTHEST * max(sizes)
    return found if found[-1] == furthest else [*found, furthest]


def _fitted(recording: Recording, lines: list[Line], sizes: list[int], name: str) -> Needs:
    """From the highest line. At best the allocator needs what is live; at worst it needs twice as
    much more than that as in the recording."""
    run = recording.runs[name]
    needed = run.get("min_capacity_bytes") or run["reserved_peak_bytes"]
    more = max(0.0, needed / recording.live_peak - 1)
    granule = recording.facts["granule_bytes"]
    # Two points always lie on a line: nothing is then known of how well it fits.
    doubts = [2 * x.deviation if len(set(sizes)) > 2 else 0.02 * recording.live_peak for x in lines]

    def need(size: int, factor: float, sign: int) -> float:
        beyond = [sign * (doubt + float(granule)) for doubt in doubts]
        return max(factor * line.at(size) + doubt for line, doubt in zip(lines, beyond))

    factors = {"best": (1.0, -1), "expected": (1 + more, 0), "worst": (1 + 2 * more, 1)}
    rungs = _rungs(1, sizes, FITTED_RATIO)
    return {case: [(size, need(size, *of)) for size in rungs] for case, of in factors.items()}


# ---- By replays --------------------------------------------------------------------------------


def _borders(recording: Recording, n: int) -> list[tuple[int, int]]:
    """Where the last n steps begin and end. What follows the last mark is in none."""
    ends = list(recording.facts["step_ends"])
    if not recording.facts["marks_steps"]:
        ends.append(recording.facts["replay_events"])
    return list(zip([0, *ends], ends))[-n:]


def _template(recording: Recording, sizes: list[int], folder: Path) -> Template:
    if recording.facts["replay_events"] > MOST_EVENTS:
        raise NoTemplate(f"The run has more than {MOST_EVENTS:,} events")
    path = folder / "recorded.trace"
    gpu = ["--gpu", str(recording.facts["gpu"])] if recording.facts["snapshot"] else []
    ask_bench("convert", *gpu, "--", str(recording.path), str(path))
    lines = [line for line in path.read_text().split("\n") if line[:1] not in ("#", "s", "")]
    return Template(as_events(lines), _borders(recording, len(sizes)), sizes)


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
    rungs = _rungs(min(sizes), sizes, RATIO)
    with ThreadPoolExecutor(max_workers=2) as workers:
        found = list(workers.map(lambda size: _replay(template, size, choices, folder), rungs))
    known = [(size, runs) for size, runs in zip(rungs, found) if runs is not None]
    if len(known) < 2:
        raise NoTemplate("Hardly any other size completes on the largest device")
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


def _note(sizes: list[int], unit: str, last: Line, why_fitted: str) -> str:
    how = (
        f"{why_fitted}, so what is live was fitted part by part: the steps lie within "
        f"{last.deviation / 2**20:.1f} MiB of the line."
        if why_fitted
        else "The run was replayed with other sizes in all of these steps, made block by block."
    )
    return (
        f"From {len(sizes)} recorded steps with {unit} {', '.join(map(str, sizes))}: where most is "
        f"live in a large one, {last.base / 2**30:.2f} GiB and {last.slope / 2**20:.1f} MiB for "
        f"each more. {how} Memory outside the allocator (contexts, NCCL, other processes) is not "
        "in a recording: choose the device's memory without it."
    )


def _lower(sentence: str) -> str:
    return sentence[0].lower() + sentence[1:]


def forecast(
    recording: Recording, sizes: list[int], unit: str, choices: Optional[Choices] = None
) -> dict[str, Any]:
    """What the page needs: for each allocator its needs, and a note.

    sizes are those of the recording's last steps. Raises RecordingError where they tell nothing.
    """
    _check(recording, sizes)
    warm = sizes[1:] if _has_warm_up(recording, sizes) else sizes
    is_enough = len(set(warm)) > 1
    lines = _lines(recording, warm if is_enough else sizes)
    why_fitted = ""
    try:
        needs = _by_replays(recording, sizes, choices or Choices())
    except NoTemplate as error:
        why_fitted = str(error)
        if why_fitted == DIFFERENT_WORK:
            raise NoForecast(f"--batch: {_lower(why_fitted)}: nothing follows") from None
        if not is_enough:
            raise NoForecast(f"--batch: {_lower(why_fitted)}, and {NO_WARM_STEPS}") from None
        needs = {name: _fitted(recording, lines, warm, name) for name in NAMES}
    beyond = _beyond(recording, sizes)
    for found in needs.values():
        found["worst"] = [(size, need + beyond) for size, need in found["worst"]]
    note = _note(sizes, unit, lines[-1], why_fitted) + _warning(recording, sizes)
    if why_fitted and warm != sizes:
        note += " The first of these steps is a warm-up and was left out."
    return {"unit": unit, "note": note, "needs": needs, "rough": bool(why_fitted)}


def try_forecast(
    recording: Recording, sizes: list[int], unit: str, choices: Choices
) -> dict[str, Any]:
    """As forecast; where the sizes tell nothing, a note says why, and there are no needs."""
    try:
        return forecast(recording, sizes, unit, choices)
    except NoForecast as error:
        return {"unit": unit, "note": str(error), "needs": None, "rough": False}
