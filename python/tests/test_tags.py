# SPDX-License-Identifier: Apache-2.0
"""Tags for PyTorch's memory, without PyTorch: beside its own allocator, and on the library's pools
behind its pluggable interface. programs/sleep.txt has the same with PyTorch itself."""

from __future__ import annotations

import ctypes
import warnings

import fake_torch
import pytest
from running import at_once

import ductile_gpu
from ductile_gpu.torch import _plain, _tag_pools, _tags

MIB = 1 << 20
torch = fake_torch.torch


@pytest.fixture
def plain(monkeypatch, shared):
    """Ductile behind the pluggable interface, with a virtual GPU whose memory can be read."""
    found = fake_torch.put_into(monkeypatch.setitem)
    monkeypatch.setattr(_plain, "is_installed", lambda: True)
    yield found
    _tags._pools.clear()


def live(tag):
    return _tags.tags()[tag].live_bytes


# ---- Beside PyTorch's own allocator ------------------------------------------------------------


def test_what_is_made_inside_has_the_tag_and_sleeps(torch):
    outside = torch.tensor(3 * MIB)
    with _tags.pool("weights"):
        weights = torch.tensor(8 * MIB)
    with _tags.pool("cache", contents="drop"):
        cache = torch.tensor(20 * MIB)
    assert (live("weights"), live("cache")) == (8 * MIB, 20 * MIB)
    assert torch.native_bytes == 3 * MIB
    slept = _tags.sleep()
    assert slept.pools == 2
    assert slept.bytes == 28 * MIB
    found = _tags.tags()
    assert found["weights"].kept_bytes == 8 * MIB
    assert found["cache"].kept_bytes == 0
    assert found["weights"].asleep_bytes == 8 * MIB
    assert found["weights"].held_bytes == found["cache"].held_bytes == 0
    assert _tags.sleeping() == ["cache", "weights"]
    addresses = [t.data_ptr() for t in (weights, cache, outside)]
    assert _tags.wake().bytes == 28 * MIB
    assert [t.data_ptr() for t in (weights, cache, outside)] == addresses
    assert _tags.sleeping() == []


def test_a_workspace_of_the_first_product_inside_stays_awake(torch, monkeypatch):
    made = []
    monkeypatch.setattr(
        torch.cuda, "current_blas_handle", lambda: made or made.append(torch.tensor(MIB))
    )
    with _tags.pool("train"):
        torch.cuda.current_blas_handle()  # as a product does
    assert len(made) == 1
    assert torch.native_bytes == MIB


def test_opening_a_pool_again_leaves_the_filters_of_warnings_alone(torch):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("default")
        for _ in range(5):
            with _tags.pool("weights"):
                warnings.warn("shown once", stacklevel=1)
    assert len(told) <= 2  # the first opening of a thread changes them


def test_one_tag_may_have_memory_of_several_kinds(torch):
    with _tags.pool("default", contents="keep"):
        kept = torch.tensor(4 * MIB)
    with _tags.pool("default", contents="drop"):
        dropped = torch.tensor(6 * MIB)
    _tags.sleep("default")
    assert _tags.tags()["default"].kept_bytes == 4 * MIB
    assert _tags.tags()["default"].pools == 2
    _tags.wake("default")
    del kept, dropped


def test_a_sleep_may_say_otherwise_by_tag(torch):
    with _tags.pool("weights", contents="drop"):
        weights = torch.tensor(4 * MIB)
    with _tags.pool("cache", contents="keep"):
        cache = torch.tensor(6 * MIB)
    _tags.sleep(contents={"weights": "keep", None: "drop"})
    assert _tags.tags()["weights"].kept_bytes == 4 * MIB
    assert _tags.tags()["cache"].kept_bytes == 0
    _tags.wake()
    del weights, cache


def test_misuse_says_what_to_do(torch):
    with _tags.pool("weights"):
        weights = torch.tensor(MIB)
    with pytest.raises(ductile_gpu.InvalidArgument, match=r"'wieghts'; tags there are: 'weights'"):
        _tags.sleep("wieghts")
    _tags.sleep("wieghts", strict=False)
    with pytest.raises(ductile_gpu.Awake, match="weights"):
        _tags.wake("weights")
    _tags.wake("weights", strict=False)
    _tags.sleep("weights")
    with pytest.raises(ductile_gpu.Asleep, match="weights"):
        _tags.sleep("weights")
    assert _tags.sleep("weights", strict=False).passed_over == 1
    with pytest.raises(ductile_gpu.InvalidArgument, match="contents is one of"):
        _tags.sleep("weights", contents="kept")
    with pytest.raises(ductile_gpu.InvalidArgument), _tags.pool("x" * 64):
        pass
    with pytest.raises(ductile_gpu.Unsupported, match="enable Ductile before CUDA"):
        _tags.sleep_all()
    _tags.wake("weights")
    del weights


def test_a_tag_that_sleeps_serves_nothing(torch):
    with _tags.pool("cache", contents="drop"):
        first = torch.tensor(MIB)
    _tags.sleep("cache")
    with _tags.pool("cache", contents="drop"), pytest.raises(RuntimeError):
        torch.tensor(MIB)
    del first
    torch.empty_cache()
    _tags.wake("cache")
    with _tags.pool("cache", contents="drop"):
        assert torch.tensor(MIB).data_ptr()


def test_kept_contents_can_be_read_and_changed_asleep(torch):
    with _tags.pool("weights"):
        weights = torch.tensor(4 * MIB)
    assert _tags.kept_memory(weights.data_ptr(), 16) is None
    _tags.sleep("weights")
    found = _tags.kept_memory(weights.data_ptr() + 256, 16)
    assert found is not None
    found[:] = bytes(range(16))
    assert bytes(_tags.kept_memory(weights.data_ptr(), 512)[256:272]) == bytes(range(16))
    _tags.wake("weights")
    assert _tags.kept_memory(weights.data_ptr(), 16) is None


def test_freed_tensors_give_their_memory_back_to_the_device(torch):
    with _tags.pool("cache", contents="drop"):
        tensors = [torch.tensor(10 * MIB) for _ in range(3)]
    assert _tags.tags()["cache"].held_bytes == 30 * MIB
    del tensors[0]
    torch.empty_cache()
    assert _tags.tags()["cache"].held_bytes == 20 * MIB
    _tags.sleep("cache")
    tensors.clear()
    torch.empty_cache()
    assert _tags.tags()["cache"].asleep_bytes == 0
    _tags.wake("cache")


def test_a_region_inside_a_region_counts_and_other_threads_are_outside(torch):
    with _tags.pool("outer"):
        elsewhere = at_once(lambda: torch.tensor(MIB))
        with _tags.pool("inner"):
            inner = torch.tensor(2 * MIB)
        outer = torch.tensor(4 * MIB)
    assert (live("outer"), live("inner"), torch.native_bytes) == (4 * MIB, 2 * MIB, MIB)
    del inner, outer, elsewhere


def test_memory_made_outside_stays_awake_and_goes_back(torch):
    with _tags.pool("weights"):
        weights = torch.tensor(MIB)
        with _tags.outside():
            aside = torch.tensor(2 * MIB)
    assert live("weights") == MIB
    assert torch.native_bytes == 2 * MIB
    del weights, aside


def test_a_graphs_memory_sleeps_and_graphs_may_share_a_pool(torch):
    handle = _tags.graph_pool("graphs")

    graphs = [fake_torch.Graph(), fake_torch.Graph()]
    for graph in graphs:
        with torch.cuda.graph(graph, pool=handle):
            graph.output = torch.tensor(2 * MIB)
    assert live("graphs") == 4 * MIB
    assert _tags.tags()["graphs"].pools == 1
    _tags.sleep("graphs")
    _tags.wake("graphs")
    del handle
    assert live("graphs") == 4 * MIB
    assert not fake_torch.destroyed_in_use
    del graph
    graphs.clear()
    with _tags.pool("next"):
        pass
    assert not _tag_pools._in_use


def test_pools_come_back_when_their_users_are_gone(torch):
    """There are 128 beside PyTorch's allocator."""
    for i in range(300):
        with _tag_pools.tag_pool(f"tag{i}", "drop", 0).opened():
            made = torch.tensor(MIB)
        del made
    pools = [_tag_pools.tag_pool("many", "drop", 0) for _ in range(128)]
    with pytest.raises(ductile_gpu.Busy, match="128 tagged pools"):
        _tag_pools.tag_pool("one more", "drop", 0)
    pools.pop()
    _tag_pools.tag_pool("one more", "drop", 0)
    for device in _tag_pools.tag_allocators().values():
        assert len(device.pools()) < 10


# ---- Contents, and memory without a tag --------------------------------------------------------


@pytest.mark.parametrize(
    ("contents", "after"), [("keep", b"\x07"), ("zero", b"\0"), ("poison", b"\xff")]
)
def test_contents_are_as_promised(plain, shared, gpu, contents, after):
    with _tags.pool("weights", contents=contents):
        address = shared.alloc(4 * MIB)
    gpu.fill(address, 7, 4 * MIB)
    _tags.sleep("weights")
    assert shared.stats((0, 0)).asleep_blocks == 0
    _tags.wake("weights")
    assert gpu.read_back(address, 64) == after * 64
    assert gpu.read_back(address + 4 * MIB - 64, 64) == after * 64
    shared.free(address)


def test_kept_contents_can_be_retained_in_their_place(plain, shared, gpu):
    with _tags.pool("weights"):
        first, second = shared.alloc(4 * MIB), shared.alloc(MIB)
    gpu.fill(first, 7, 4 * MIB)
    _tags.sleep()
    place = _address(first)
    _tags.wake(retain=True)
    assert _address(first) == place
    assert bytes(_tags.kept_memory(first, 8)) == b"\x07" * 8
    gpu.fill(first, 8, 4 * MIB)
    _tags.sleep()
    assert _address(first) == place
    assert bytes(_tags.kept_memory(first, 8)) == b"\x08" * 8
    _tags.wake(retain=True)
    shared.free(second)
    with _tags.pool("weights"):
        newer = shared.alloc(MIB)
    assert newer == second
    assert _tags.kept_memory(newer, 8) is None  # an address is not a block
    assert _tags.kept_memory(first, 8) is not None
    assert _tags.tags()["weights"].kept_bytes == 5 * MIB
    _tags.sleep(contents="drop")
    assert _tags.kept_memory(first, 8) is None
    _tags.wake()
    assert _tags.kept_memory(first, 8) is None
    assert _tags.tags()["weights"].kept_bytes == 0
    assert shared.release_host() > 0
    for address in (first, newer):
        shared.free(address)


def _address(block):
    return ctypes.addressof(ctypes.c_uint8.from_buffer(_tags.kept_memory(block, 8)))


def test_changes_to_kept_contents_come_back(plain, shared, gpu):
    with _tags.pool("weights"):
        address = shared.alloc(4 * MIB)
    gpu.fill(address, 7, 4 * MIB)
    _tags.sleep()
    found = _tags.kept_memory(address, 8)
    assert bytes(found) == b"\x07" * 8
    found[:] = b"\x09" * 8
    _tags.wake()
    assert gpu.read_back(address, 16) == b"\x09" * 8 + b"\x07" * 8
    shared.free(address)


def test_everything_sleeps_but_what_is_named(plain, shared, gpu):
    constant = shared.alloc(2 * MIB)
    gpu.fill(constant, 3, 2 * MIB)
    with _tags.pool("weights"):
        weights = shared.alloc(4 * MIB)
    with _tags.pool("cache", contents="drop"):
        cache = shared.alloc(8 * MIB)
    _tags.sleep_all(awake="cache", serve_others=False)
    assert _tags.sleeping() == ["", "weights"]
    with pytest.raises(ductile_gpu.Asleep, match="the default pool"):
        shared.alloc(MIB)
    with _tags.outside():
        aside = shared.alloc(MIB)
    shared.free(aside)
    _tags.wake_all()
    assert _tags.sleeping() == []
    assert gpu.read_back(constant, 64) == b"\x03" * 64
    for address in (constant, weights, cache):
        shared.free(address)


def test_requests_are_served_apart_while_everything_sleeps(plain, shared):
    constant = shared.alloc(2 * MIB)
    _tags.sleep_all()
    meanwhile = shared.alloc(MIB)
    _tags.wake_all()
    for address in (constant, meanwhile):
        shared.free(address)


def test_a_wake_without_room_says_how_much_is_missing(plain, shared, gpu):
    with _tags.pool("weights"):
        weights = shared.alloc(600 * MIB)
    _tags.sleep()
    gpu.set_external(500 * MIB)
    with pytest.raises(ductile_gpu.OutOfMemory, match=r"(?s)more"):
        _tags.wake()
    assert _tags.sleeping() == ["weights"]
    gpu.set_external(0)
    _tags.wake()
    shared.free(weights)
