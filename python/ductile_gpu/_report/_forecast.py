# SPDX-License-Identifier: Apache-2.0
"""The largest batch that fits, from steps recorded with different ones.

A step is divided into equal parts, in which every step does the same work. What is live in a part
grows as base + slope * batch, but the part that needs most is another one for small batches (the
optimizer's) than for large ones (the middle of the step): so each part has a line of its own, and
the step needs the highest of them. An allocator needs as much more than that, in proportion, as it
does for the recording's own peak.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ductile_gpu._report._collect import NAMES, Recording, RecordingError


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
    n = len(points)
    mean_x = sum(x for x, _ in points) / n
    mean_y = sum(y for _, y in points) / n
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
    base = mean_y - slope * mean_x
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


def _check(recording: Recording, sizes: list[int]) -> None:
    if len(set(sizes)) < 2:
        raise RecordingError("--batch needs the sizes of at least two steps, and two that differ")
    if min(sizes) < 1:
        raise RecordingError("--batch: a size is at least 1")
    if len(sizes) > len(recording.facts["step_profiles"]):
        raise RecordingError(
            f"--batch names {len(sizes)} steps, and {recording.name} has {recording.n_steps}"
        )


def _lines(recording: Recording, sizes: list[int]) -> list[Line]:
    profiles = recording.facts["step_profiles"][-len(sizes) :]
    parts = (list(zip(sizes, levels)) for levels in zip(*profiles))
    lines = highest([fit(points) for points in parts], min(sizes))
    if lines[-1].slope <= 0:
        raise RecordingError("--batch: memory does not grow with these sizes: nothing follows")
    return lines


Needs = dict[str, list[dict[str, float]]]


def _needs(recording: Recording, lines: list[Line], is_certain: bool, name: str) -> Needs:
    """What the allocator needs at best, as expected, and at worst: in each case the highest line.

    At best it needs what is live; at worst it needs twice as much more as in the recording.
    """
    run = recording.runs[name]
    needed = run.get("min_capacity_bytes") or run["reserved_peak_bytes"]
    more = max(0.0, needed / recording.live_peak - 1)
    granule = recording.facts["granule_bytes"]

    def scaled(factor: float, sign: int) -> list[dict[str, float]]:
        # Two points always lie on a line: nothing is then known of how well it fits.
        doubts = [2 * x.deviation if is_certain else 0.02 * recording.live_peak for x in lines]
        return [
            {"base": factor * x.base + sign * (doubt + granule), "slope": factor * x.slope}
            for x, doubt in zip(lines, doubts)
        ]

    return {
        "best": scaled(1, -1),
        "expected": scaled(1 + more, 0),
        "worst": scaled(1 + 2 * more, 1),
    }


def forecast(recording: Recording, sizes: list[int], unit: str) -> dict[str, Any]:
    """What the page needs: for each allocator its needs, and a note.

    sizes are those of the recording's last steps. Raises RecordingError where they tell nothing.
    """
    _check(recording, sizes)
    lines = _lines(recording, sizes)
    last = lines[-1]
    note = (
        f"From {len(sizes)} recorded steps with {unit} {', '.join(map(str, sizes))}: where most is "
        f"live in a large one, {last.base / 2**30:.2f} GiB and {last.slope / 2**20:.1f} MiB for "
        f"each more; the steps lie within {last.deviation / 2**20:.1f} MiB of that line. Memory "
        "outside the allocator (contexts, NCCL, other processes) is not in a recording: choose the "
        "device's memory without it."
    )
    is_certain = len(set(sizes)) > 2
    needs = {name: _needs(recording, lines, is_certain, name) for name in NAMES}
    return {"unit": unit, "note": note, "needs": needs}


def largest(needs: Needs, capacity: int, case: str = "expected") -> int:
    """The largest size that fits; 0: none."""
    return max(0, min(_most(line, capacity) for line in needs[case]))


def _most(line: dict[str, float], capacity: int) -> int:
    room = capacity - line["base"]
    if line["slope"] <= 0:
        return 0 if room < 0 else 1 << 53
    return int(room // line["slope"])
