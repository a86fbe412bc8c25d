# SPDX-License-Identifier: Apache-2.0
"""Snapshots of allocators in every condition are what the published schema says."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator

import pytest

import ductile_gpu

MIB = 1 << 20


jsonschema = pytest.importorskip("jsonschema")


def closed(schema):
    """The schema, which a key fails that it does not name: such a key has to be published."""
    for part in schema.values() if isinstance(schema, dict) else schema:
        if isinstance(part, (dict, list)):
            closed(part)
    if isinstance(schema, dict) and isinstance(schema.get("properties"), dict):
        schema["additionalProperties"] = False
    return schema


@pytest.fixture(scope="module")
def faults():
    """What is wrong with a snapshot."""
    published = json.loads(ductile_gpu.schema_path().read_text())
    jsonschema.Draft202012Validator.check_schema(published)
    reader = jsonschema.Draft202012Validator(closed(published))
    return lambda snapshot: [error.message for error in reader.iter_errors(snapshot)]


def states(snapshot):
    return {block["state"] for segment in snapshot["segments"] for block in segment["blocks"]}


@pytest.fixture
def busy(gpu) -> Iterator[ductile_gpu.Allocator]:
    """An allocator with blocks in many states: live, free, pending, asleep, of a pool, a gap."""
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


def test_an_empty_allocator_is_as_published(allocator, faults):
    assert faults(allocator.snapshot()) == []


def test_blocks_in_many_states_are_as_published(busy, faults):
    snapshot = busy.snapshot()
    assert {"live", "free", "pending", "gap"} <= states(snapshot)
    assert any(segment["pool"] == [0, 7] for segment in snapshot["segments"])
    assert faults(snapshot) == []


@pytest.mark.parametrize(
    "spoil",
    [
        lambda of: of["segments"][0]["blocks"][0].update(state="unknown"),
        lambda of: of["statistics"].update(handles=-1),
        lambda of: of["statistics"].update(unheard_of=1),
        lambda of: of["segments"][0].pop("stream"),
    ],
    ids=["state", "number", "key", "absence"],
)
def test_what_is_not_as_published_is_seen(busy, faults, spoil):
    spoiled = copy.deepcopy(busy.snapshot())
    spoil(spoiled)
    assert len(faults(spoiled)) == 1
