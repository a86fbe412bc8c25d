# SPDX-License-Identifier: Apache-2.0
"""Which blocks make room: never more cost than the cheapest of all subsets, and room indeed."""

from __future__ import annotations

import itertools
import random

import pytest

import ductile_gpu

MIB = 1 << 20
QUARTER = MIB // 2
MOST_CANDIDATES = 7


def quarters(allocator, n):
    """Blocks of a quarter granule each, at neighbouring addresses."""
    return [allocator.alloc(QUARTER) for _ in range(n)]


def test_room_that_is_there_costs_nothing(allocator):
    blocks = quarters(allocator, 8)
    allocator.free(blocks[2])
    plan = allocator.plan_eviction(QUARTER, {blocks[0]: 10, blocks[1]: 10})
    assert plan == ((), 0, blocks[2], QUARTER)


def test_the_cheapest_blocks_go_with_the_free_memory_beside_them(allocator):
    blocks = quarters(allocator, 8)
    allocator.free(blocks[5])
    costs = dict(zip(blocks, (10, 10, 4, 4, 10)))
    plan = allocator.plan_eviction(2 * QUARTER, costs)
    assert plan == ((blocks[2], blocks[3]), 8, blocks[2], 2 * QUARTER)
    costs[blocks[4]] = 8
    plan = allocator.plan_eviction(2 * QUARTER, costs)  # of equal costs the fewest blocks
    assert plan == ((blocks[4],), 8, blocks[4], 2 * QUARTER)


def test_too_little_says_how_large_the_hole_would_be(allocator):
    costs = dict.fromkeys(quarters(allocator, 8)[:3], 10)
    for size in (4 * QUARTER, (1 << 64) - 1):
        with pytest.raises(ductile_gpu.OutOfMemory, match=f"{3 * QUARTER:,}"):
            allocator.plan_eviction(size, costs)


def test_memory_of_other_streams_makes_no_room(allocator, gpu):
    costs = dict.fromkeys(quarters(allocator, 4), 10)
    with pytest.raises(ductile_gpu.OutOfMemory, match="has 0"):
        allocator.plan_eviction(QUARTER, costs, gpu.stream())


def test_memory_of_private_pools_makes_no_room(allocator):
    with allocator.pool((1, 1)):
        address = allocator.alloc(MIB)
    with pytest.raises(ductile_gpu.OutOfMemory):
        allocator.plan_eviction(512, {address: 1})


def test_elastic_ranges_make_no_room(allocator):
    of = allocator.elastic("16M")
    of.commit(0, "8M")
    of.decommit("2M", "4M")
    with pytest.raises(ductile_gpu.OutOfMemory, match="has 0"):
        allocator.plan_eviction("2M", {of.address: 1})


def test_under_find_overruns_no_block_makes_room(gpu):
    allocator = gpu.allocator(find="overruns")
    address = allocator.alloc(512)
    with pytest.raises(ductile_gpu.OutOfMemory):
        allocator.plan_eviction(512, {address: 1})


def test_a_candidate_that_is_not_live_is_named(allocator):
    first, second = quarters(allocator, 2)
    allocator.free(second)
    for address, error in (
        (first + 512, ductile_gpu.InteriorPointer),
        (8, ductile_gpu.ForeignPointer),
        (second, ductile_gpu.NotLive),
    ):
        with pytest.raises(error, match=f"{address:#x}"):
            allocator.plan_eviction(512, {first: 1, address: 1})


def test_it_makes_no_driver_call(allocator, gpu):
    costs = dict.fromkeys(quarters(allocator, 8), 1)
    calls = gpu.state().calls
    allocator.plan_eviction(QUARTER, costs)
    assert gpu.state().calls == calls


# ---- Against all subsets -------------------------------------------------------------------------


def opens(blocks, freed, need):
    """Is there room for `need` bytes on the default stream with these blocks freed?"""
    segment, run = 0, 0
    for block in blocks:
        is_free = block.state is ductile_gpu.BlockState.FREE or block.address in freed
        run = run if block.segment == segment else 0
        run = run + block.size if is_free and block.stream == 0 else 0
        segment = block.segment
        if run >= need:
            return True
    return False


def cheapest(blocks, costs, need):
    """The least cost of all subsets; None where none opens the hole."""
    subsets = itertools.chain.from_iterable(
        itertools.combinations(costs, n) for n in range(len(costs) + 1)
    )
    prices = (sum(costs[at] for at in subset) for subset in subsets if opens(blocks, subset, need))
    return min(prices, default=None)


def heap(allocator, other, chance):
    """Live blocks on two streams with holes between them, in no order."""
    live = []
    for _ in range(chance.randint(2, 20)):
        stream = None if chance.random() < 0.8 else other
        live.append(allocator.alloc(512 * chance.randint(1, 6000), stream))
        if chance.random() < 0.4:
            allocator.free(live.pop(chance.randrange(len(live))))
    chance.shuffle(live)
    return live


def test_no_subset_is_cheaper(gpu):
    allocator, other = gpu.allocator(), gpu.stream()
    n_planned = n_refused = 0
    for seed in range(120):
        chance = random.Random(seed)
        live = heap(allocator, other, chance)
        costs = {address: chance.randrange(5) for address in live[:MOST_CANDIDATES]}
        need = 512 * chance.randint(1, 24000)
        best = cheapest(allocator.blocks(), costs, need)
        if best is None:
            n_refused += 1
            with pytest.raises(ductile_gpu.OutOfMemory):
                allocator.plan_eviction(need, costs)
        else:
            plan = allocator.plan_eviction(need, costs)
            assert plan.cost == best, seed
            n_planned += bool(plan.blocks)
            for address in plan.blocks:
                allocator.free(address)
                live.remove(address)
            hole = next(b for b in allocator.blocks() if b.address == plan.address)
            assert (hole.state, hole.size) == (ductile_gpu.BlockState.FREE, plan.size)
            creates = allocator.stats().creates
            live.append(allocator.alloc(need))
            assert allocator.stats().creates == creates
        for address in live:
            allocator.free(address)
        allocator.trim()
    assert n_planned > 12
    assert n_refused > 12
