# SPDX-License-Identifier: Apache-2.0
"""The largest size that fits, as the page of a report finds it in the numbers of its forecast."""

from __future__ import annotations

Needs = dict[str, list[tuple[int, float]]]


def largest(needs: Needs, capacity: int, case: str = "expected") -> int:
    """0: none. Between two sizes that are known needs lie on a line; of what is behind the last
    nothing is said: then it is the last."""
    points = needs[case]
    fitting = [i for i, (_, need) in enumerate(points) if need <= capacity]
    if not fitting:
        (size, need), (following, second) = points[0], points[1]
        slope = (second - need) / (following - size)
        return max(0, int(size - (need - capacity) / slope)) if slope > 0 else 0
    at = max(fitting)
    if at == len(points) - 1:
        return points[at][0]
    (size, need), (following, more) = points[at], points[at + 1]
    return int(size + (capacity - need) * (following - size) / (more - need))
