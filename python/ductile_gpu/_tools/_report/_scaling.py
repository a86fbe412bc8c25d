# SPDX-License-Identifier: Apache-2.0
"""A recorded run with steps of other sizes than it had.

Steps of one program do the same work, whatever the batch is: their n-th allocations are for the
same purpose. So each block has a size that follows from the batch, told by the recorded steps, and
the run can be written with any batch in all of them, as if it had been recorded.

What is allocated and freed at once, such as a convolution's workspace, may come and go with the
batch: where the steps differ only in that, it keeps its size. The first step does more than the
others (it makes the optimizer's states): its allocations are found among those of the others by
their sizes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path

UNIT = 512
MOST_APART = 0.02  # of the bytes that the steps allocate
MOST_PAIRS = 20_000_000  # of equal sizes; the time of a comparison grows with them
LARGEST = 1 << 48  # that a trace can say


class NoTemplate(Exception):
    """The run cannot be written with other sizes; what follows a colon says why."""


DIFFERENT_WORK = "the steps do not do the same work: nothing follows"


@dataclass
class Allocation:
    """One of a step."""

    line: int  # of the trace
    size: int
    passes: bool = False  # freed at once


Step = list[Allocation]


def as_events(lines: Sequence[str]) -> list[str]:
    """A refused request is an allocation that is freed at once, as in a replay."""
    made: list[str] = []
    for line in lines:
        if line[:1] == "r":
            _, block, size, stream, _held, _free, *pool = line.split()
            made += [" ".join(["a", block, size, stream, *pool]), f"f {block}"]
        else:
            made.append(line)
    return made


def read_step(lines: Sequence[str], begin: int, end: int) -> Step:
    """What one step allocates."""
    step: Step = []
    last = ""
    for at in range(begin, end):
        kind, block, *rest = lines[at].split()
        if kind == "a":
            step.append(Allocation(at, int(rest[0])))
        elif kind == "f" and last == block:
            step[-1].passes = True
        last = block if kind == "a" else ""
    return step


# ---- What the steps have in common -------------------------------------------------------------


def _kept(step: Step) -> Step:
    return [made for made in step if not made.passes]


def alike(steps: Sequence[Step]) -> list[Step]:
    """The allocations that the steps have in common: of each, those of all steps.

    Raises:
        NoTemplate: some have more of them than others.
    """
    groups = [[_kept(step) for step in steps]]
    if len({len(step) for step in groups[0]}) > 1:
        raise NoTemplate(DIFFERENT_WORK)
    passing = [[made for made in step if made.passes] for step in steps]
    if len({len(step) for step in passing}) == 1:
        groups.append(passing)
    return [list(column) for group in groups for column in zip(*group)]


# ---- Sizes -------------------------------------------------------------------------------------


def line_of(xs: Sequence[float], ys: Sequence[float]) -> tuple[float, float]:
    """Base and slope of the line of least squares."""
    n = len(xs)
    mean_x, mean_y = sum(xs) / n, sum(ys) / n
    spread = sum((x - mean_x) ** 2 for x in xs)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys)) / spread if spread else 0.0
    return mean_y - slope * mean_x, slope


Polynomial = tuple[float, float, float]


def _parabola(xs: Sequence[float], ys: Sequence[float]) -> Polynomial:
    """Through the first, the middle and the last of at least three."""
    points = sorted(dict(zip(xs, ys)).items())
    (x0, y0), (x1, y1), (x2, y2) = points[0], points[len(points) // 2], points[-1]
    first, second = (y1 - y0) / (x1 - x0), (y2 - y1) / (x2 - x1)
    c = (second - first) / (x2 - x0)
    b = first - c * (x0 + x1)
    return y0 - b * x0 - c * x0 * x0, b, c


def fit(sizes: Sequence[int], bytes_of: Sequence[int]) -> Polynomial:
    """How a block's bytes follow from a step's size: a constant, a line or, where the recorded ones
    lie on no line, a parabola. A tensor's bytes are a polynomial without negative terms; what is
    not, such as a workspace that another algorithm needs, stays at its largest."""
    if len(set(bytes_of)) == 1:
        return float(bytes_of[0]), 0.0, 0.0
    base, slope = line_of(sizes, bytes_of)
    worst = max(abs(base + slope * x - y) for x, y in zip(sizes, bytes_of))
    slack = max(UNIT, max(bytes_of) / 100)
    if slope > 0 and base >= -slack and worst <= slack:
        return base, slope, 0.0
    if len(set(sizes)) > 2:
        found = _parabola(sizes, bytes_of)
        if found[2] > 0 and found[1] >= -slack / max(sizes) and found[0] >= -slack:
            return found
    return float(max(bytes_of)), 0.0, 0.0


def value(polynomial: Polynomial, size: int) -> int:
    """Its value, as far as a block can have it."""
    base, slope, square = polynomial
    return min(LARGEST, max(1, round(base + slope * size + square * size * size)))


# ---- A run -------------------------------------------------------------------------------------


def _check(columns: Sequence[Step], fits: Sequence[Polynomial], sizes: Sequence[int]) -> None:
    """Allocations that were taken for the same, and are not, lie far from any polynomial."""
    apart = sum(
        abs(value(found, size) - made.size)
        for column, found in zip(columns, fits)
        for made, size in zip(column, sizes)
    )
    if apart > MOST_APART * sum(made.size for column in columns for made in column):
        raise NoTemplate(DIFFERENT_WORK)


def _matches(step: Sequence[int], others: Sequence[int]) -> list[tuple[int, int]]:
    """Where the sizes of the others stand among those of a step that does more."""
    in_step, in_others = Counter(step), Counter(others)
    if sum(n * in_others[size] for size, n in in_step.items()) > MOST_PAIRS:
        raise NoTemplate(
            "the first of these steps is too long to be compared with the others: do not name it"
        )
    blocks = SequenceMatcher(None, step, others, False).get_matching_blocks()
    return [(block.a + k, block.b + k) for block in blocks for k in range(block.size)]


class Template:
    """A recorded run whose last steps had known sizes.

    Args:
        lines: of its trace, without comments and marks of steps.
        borders: where each of these steps begins and ends.
        sizes: of these steps. The first of them may do more than the others.
        before: lines that stand before the first event.

    Raises:
        NoTemplate: the steps are not alike.
    """

    def __init__(
        self,
        lines: Sequence[str],
        borders: Sequence[tuple[int, int]],
        sizes: Sequence[int],
        before: Sequence[str] = (),
    ) -> None:
        self.lines, self.before = lines, before
        self.fits: dict[int, Polynomial] = {}  # by line
        steps = [read_step(lines, *border) for border in borders]
        does_more = len(steps) > 2 and len(_kept(steps[0])) > len(_kept(steps[-1]))
        own = slice(1 if does_more else 0, None)
        columns = alike(steps[own])
        fits = [fit(sizes[own], [made.size for made in column]) for column in columns]
        _check(columns, fits, sizes[own])
        for column, found in zip(columns, fits):
            self.fits.update((made.line, found) for made in column)
        if does_more:
            self._fit_first(steps[0], sizes[0], [(c[0].line, f) for c, f in zip(columns, fits)])

    def _fit_first(self, step: Step, size: int, others: Sequence[tuple[int, Polynomial]]) -> None:
        ordered = [found for _, found in sorted(others)]
        wanted = [value(found, size) // UNIT for found in ordered]
        for own, other in _matches([made.size // UNIT for made in step], wanted):
            self.fits[step[own].line] = ordered[other]

    def write(self, path: Path, size: int) -> None:
        """A trace of the run, with that size in all of these steps."""
        text = ["# version 5", *self.before]
        for at, line in enumerate(self.lines):
            found = self.fits.get(at)
            if found is not None:
                _, block, _, *where = line.split()
                line = " ".join(["a", block, str(value(found, size)), *where])
            text.append(line)
        path.write_text("\n".join(text) + "\n")
