# SPDX-License-Identifier: Apache-2.0
"""Which blocks make room at least cost.

Whatever is freed, the hole is a run of free blocks and candidates. Costs are not negative, so the
cheapest run is one from which neither end can be left out. For each last block there is one such
run, and its first block only moves forward: one pass over the blocks finds all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import NamedTuple, Optional

from ductile_gpu._binding._abi import BlockState
from ductile_gpu._binding._blocks import Block


class Eviction(NamedTuple):
    """Which blocks make room at least cost, as `Allocator.plan_eviction` found it."""

    blocks: tuple[int, ...]
    """addresses of the blocks to free, ascending; none when the hole is there"""
    cost: int
    """the sum of their costs"""
    address: int
    """where the hole begins that there will be"""
    size: int
    """its bytes"""


def _is_dedicated(segment: list[Block]) -> bool:
    """Has one block all of the range, perhaps behind a free pad?"""
    first, last = segment[0].state, segment[-1].state
    is_padded = len(segment) == 2 and first is BlockState.FREE and last is not BlockState.GAP
    return is_padded or len(segment) == 1


def _holes(blocks: Iterable[Block], costs: Mapping[int, int]) -> Iterator[list[Block]]:
    """All that could be free in one piece, if every candidate went."""
    for _, of_segment in groupby(blocks, key=lambda block: block.segment):
        segment = list(of_segment)
        if _is_dedicated(segment):
            continue
        hole: list[Block] = []
        for block in segment:
            is_candidate = block.state is BlockState.LIVE and block.address in costs
            if is_candidate or block.state is BlockState.FREE:
                hole.append(block)
            elif hole:
                yield hole
                hole = []
        if hole:
            yield hole


def _is_free(hole: list[Block], at: int) -> bool:
    return 0 <= at < len(hole) and hole[at].state is BlockState.FREE


def _whole(hole: list[Block], first: int, last: int, costs: Mapping[int, int]) -> Eviction:
    """What becomes of the run, with the free memory beside it."""
    live = tuple(b.address for b in hole[first : last + 1] if b.state is BlockState.LIVE)
    ends = hole[first - _is_free(hole, first - 1)], hole[last + _is_free(hole, last + 1)]
    size = ends[1].address + ends[1].size - ends[0].address
    return Eviction(live, sum(costs[address] for address in live), ends[0].address, size)


def cheapest(
    blocks: Iterable[Block], costs: Mapping[int, int], need: int
) -> tuple[Optional[Eviction], int]:
    """The cheapest run of `need` bytes; of equal costs fewest blocks, then fewest bytes.

    Args:
        blocks: of one stream, by ascending address, whole segments.
        costs: of each live block that may go, by its address.
        need: bytes.

    Returns:
        The run, None where there is none, and the bytes of the largest hole without all candidates.
    """
    best: Optional[tuple[tuple[int, int, int], list[Block], int, int]] = None
    largest = 0
    for hole in _holes(blocks, costs):
        prices = [costs[b.address] if b.state is BlockState.LIVE else 0 for b in hole]
        largest = max(largest, sum(block.size for block in hole))
        first = cost = n_live = size = 0
        for last, block in enumerate(hole):
            size += block.size
            cost += prices[last]
            n_live += block.state is BlockState.LIVE
            while first < last and size - hole[first].size >= need:
                size -= hole[first].size
                cost -= prices[first]
                n_live -= hole[first].state is BlockState.LIVE
                first += 1
            if size >= need and (best is None or (cost, n_live, size) < best[0]):
                best = (cost, n_live, size), hole, first, last
    return _whole(*best[1:], costs) if best is not None else None, largest
