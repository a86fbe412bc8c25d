# SPDX-License-Identifier: Apache-2.0
"""Snapshots of allocators in every condition are what the published schema says."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator

import pytest
from schema_check import Schema

import ductile_gpu

MIB = 1 << 20


@pytest.fixture(scope="module")
def schema():
    return json.loads(ductile_gpu.schema_path().read_text())


def states(snapshot):
    return {block["state"] for segment in snapshot["segments"] for block in segment["blocks"]}


@pytest.fixture
def busy(gpu) -> Iterator[ductile_gpu.Allocator]:
    """An allocator with blocks in many states: live, free, pending, paused, of a pool, a gap."""
    allocator = gpu.allocator(check=2)
    gpu.set_schedule("lazy")
    side = gpu.stream()
    kept = allocator.alloc(3 * MIB)
    freed = allocator.alloc(5 * MIB)
    pending = allocator.alloc(9 * MIB)
    last = allocator.alloc(MIB)
    gpu.launch(side, reads=[(pending, 9 * MIB)])
    allocator.record_stream(pending, side)
    allocator.free(pending)
    allocator.free(freed)
    with allocator.pool((0, 7)):
        in_pool = allocator.alloc(2 * MIB)
    yield allocator
    for address in (kept, last, in_pool):
        allocator.free(address)


def test_an_empty_allocator_is_as_published(allocator, schema):
    assert Schema(schema).faults(allocator.snapshot()) == []


def test_blocks_in_many_states_are_as_published(busy, schema):
    snapshot = busy.snapshot()
    assert {"live", "free", "pending", "gap"} <= states(snapshot)
    assert any(segment["pool"] == [0, 7] for segment in snapshot["segments"])
    assert Schema(schema).faults(snapshot) == []


def test_blocks_follow_each_other_without_a_gap(busy):
    for segment in busy.snapshot()["segments"]:
        at = segment["address"]
        for block in segment["blocks"]:
            assert block["address"] == at
            at += block["size"]
        assert at == segment["address"] + segment["size"]


def spoil_state(snapshot):
    snapshot["segments"][0]["blocks"][0]["state"] = "unknown"


def spoil_number(snapshot):
    snapshot["statistics"]["handles"] = -1


def spoil_key(snapshot):
    snapshot["statistics"]["unheard_of"] = 1


def spoil_absence(snapshot):
    del snapshot["segments"][0]["stream"]


@pytest.mark.parametrize("spoil", [spoil_state, spoil_number, spoil_key, spoil_absence])
def test_what_is_not_as_published_is_seen(busy, schema, spoil):
    spoiled = copy.deepcopy(busy.snapshot())
    spoil(spoiled)
    assert len(Schema(schema).faults(spoiled)) == 1


def test_the_schema_is_a_schema(busy, schema):
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(schema).validate(busy.snapshot())
