# SPDX-License-Identifier: Apache-2.0
"""The largest batch that fits, from steps recorded with different ones.

A step's live peak grows as base + slope * batch; an allocator needs that times what it needs for
the recording's own peak. How far the recorded steps lie from the line says how certain that is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ductile_gpu._report._collect import NAMES, Recording, RecordingError


@dataclass
class Line:
    """peak = base + slope * size, and how far a recorded step lies from it at most."""

    base: float
    slope: float
    deviation: float


def fit(points: list[tuple[int, int]]) -> Line:
    """The line of least squares through (size, peak in bytes)."""
    n = len(points)
    mean_x = sum(x for x, _ in points) / n
    mean_y = sum(y for _, y in points) / n
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
    base = mean_y - slope * mean_x
    return Line(base, slope, max(abs(y - base - slope * x) for x, y in points))


def _check(recording: Recording, sizes: list[int]) -> None:
    if len(set(sizes)) < 2:
        raise RecordingError("--batch needs the sizes of at least two steps, and two that differ")
    if min(sizes) < 1:
        raise RecordingError("--batch: a size is at least 1")
    if len(sizes) > recording.n_steps:
        raise RecordingError(
            f"--batch names {len(sizes)} steps, and {recording.name} has {recording.n_steps}"
        )


def _needs(recording: Recording, line: Line, n_points: int, run: dict[str, Any]) -> dict[str, Any]:
    needed = run.get("min_capacity_bytes") or run["reserved_peak_bytes"]
    factor = max(1.0, needed / recording.live_peak)
    # Two points always lie on a line: nothing is then known of how well it fits.
    doubt = 2 * line.deviation if n_points > 2 else 0.02 * recording.live_peak
    spread = factor * doubt + run["granule"]
    return {"base": factor * line.base, "slope": factor * line.slope, "spread": spread}


def forecast(recording: Recording, sizes: list[int], unit: str) -> dict[str, Any]:
    """What the page needs: for each allocator, base, slope and spread of its need in bytes.

    sizes are those of the recording's last steps. Raises RecordingError where they tell nothing.
    """
    _check(recording, sizes)
    peaks = recording.facts["step_peaks"][: recording.n_steps][-len(sizes) :]
    points = list(zip(sizes, peaks))
    line = fit(points)
    if line.slope <= 0:
        raise RecordingError("--batch: memory does not grow with these sizes: nothing follows")
    granule = recording.facts["granule_bytes"]
    runs = {name: {**recording.runs[name], "granule": granule} for name in NAMES}
    note = (
        f"From the live peaks of {len(sizes)} recorded steps with {unit} "
        f"{', '.join(map(str, sizes))}: {line.base / 2**30:.2f} GiB, and {line.slope / 2**20:.1f} "
        f"MiB for each more; they lie within {line.deviation / 2**20:.1f} MiB of that line. "
        "Memory outside the allocator (contexts, NCCL, other processes) is not in a recording: "
        "choose the device's memory without it."
    )
    needs = {name: _needs(recording, line, len(sizes), run) for name, run in runs.items()}
    return {"unit": unit, "note": note, "needs": needs, "points": points}


def largest(needs: dict[str, float], capacity: int) -> int:
    """The largest size that fits; 0: none."""
    return max(0, int((capacity - needs["base"]) // needs["slope"]))
