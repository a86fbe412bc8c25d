# SPDX-License-Identifier: Apache-2.0
"""The allocator as Python sees it, on a virtual GPU: what it promises, and what it raises."""

from __future__ import annotations

import contextlib
import gc
import logging
import sys
import warnings

import pytest
from running import at_once, in_child

import ductile_gpu

MIB = 1 << 20


def test_no_bytes_have_no_address(allocator):
    assert allocator.alloc(0) == 0
    allocator.free(0)


@pytest.mark.parametrize(
    ("offset", "error"),
    [(512, ductile_gpu.InteriorPointer), (1 << 50, ductile_gpu.ForeignPointer)],
)
def test_pointers_that_are_no_start_are_told_apart(allocator, offset, error):
    address = allocator.alloc(MIB)
    for call in (allocator.free, allocator.query):
        with pytest.raises(error) as caught:
            call(address + offset)
        assert caught.value.name.startswith("DUCTILE_ERR_")
        assert isinstance(caught.value, ValueError)
    allocator.free(address)


def test_out_of_memory_is_a_memory_error_that_says_who_holds_what(allocator):
    held = allocator.alloc(900 * MIB)
    with pytest.raises(ductile_gpu.OutOfMemory) as caught:
        allocator.alloc(200 * MIB)
    assert isinstance(caught.value, MemoryError)
    assert caught.value.name == "DUCTILE_ERR_OUT_OF_MEMORY"
    assert caught.value.details
    assert str(900 * MIB) in str(caught.value) or "900" in str(caught.value)
    smaller = allocator.alloc(100 * MIB)
    allocator.free(smaller)
    allocator.free(held)


def test_what_is_missing_spills_but_not_where_that_is_forbidden():
    with ductile_gpu.Allocator(driver="virtual", spill_bytes="1G", limit_bytes="256M") as allocator:
        allocator.alloc(200 * MIB)
        with allocator.no_spill(), pytest.raises(ductile_gpu.OutOfMemory):
            allocator.alloc(100 * MIB)
        assert allocator.stats().spills == 0
        spilled = allocator.alloc(100 * MIB)
        stats = allocator.stats()
        assert (stats.spills, stats.spilled_bytes) == (1, 76 * MIB)
        assert stats.reserved_bytes == 224 * MIB
        assert allocator.query(spilled).spilled_bytes == 76 * MIB
        assert {b.spilled_bytes for b in allocator.blocks()} == {0, 76 * MIB}


def test_what_has_spilled_is_promoted_once_there_is_room():
    with ductile_gpu.Allocator(driver="virtual", spill_bytes="1G", limit_bytes="256M") as allocator:
        assert allocator.promote() == (0, 0)
        held = allocator.alloc(200 * MIB)
        spilled = allocator.alloc(100 * MIB)
        assert allocator.promote() == (0, 76 * MIB)
        allocator.free(held)
        done = allocator.promote()
        assert (done.bytes, done.left_bytes) == (76 * MIB, 0)
        stats = allocator.stats()
        assert (stats.spilled_bytes, stats.spilled_live_bytes) == (0, 0)
        assert stats.promoted_total_bytes == 76 * MIB
        assert allocator.query(spilled).spilled_bytes == 0


def test_a_negative_size_is_refused_before_c_sees_it(allocator):
    with pytest.raises(ductile_gpu.InvalidArgument, match="negative"):
        allocator.alloc(-1)


def test_lines_of_an_earlier_call_do_not_explain_a_later_one(allocator):
    with pytest.raises(ductile_gpu.OutOfMemory) as first:
        allocator.alloc(2048 * MIB)
    with pytest.raises(ductile_gpu.NotLive) as second:
        allocator.free(allocator_freed(allocator))
    assert first.value.details
    assert second.value.details == ()


def allocator_freed(allocator):
    address = allocator.alloc(512)
    allocator.free(address)
    return address


def test_what_the_library_says_reaches_the_logger(allocator, caplog):
    with caplog.at_level(logging.DEBUG, "ductile_gpu"), pytest.raises(ductile_gpu.OutOfMemory):
        allocator.alloc(2048 * MIB)
    assert any("memory" in record.message for record in caplog.records)


# ---- Options -----------------------------------------------------------------------------------


def test_options_take_python_values(gpu):
    with gpu.allocator(limit_bytes="64M", zero=True, reuse="never", sizes=4 << 20) as found:
        assert found.options["limit_bytes"] == str(64 * MIB)
        assert found.options["zero"] == "on"
        assert found.options["reuse"] == "never"


@pytest.mark.parametrize(
    "options",
    [{"no_such_key": 1}, {"reuse": "sometimes"}, {"limit_bytes": "much"}],
)
def test_a_wrong_option_is_named(gpu, options):
    with pytest.raises(ductile_gpu.InvalidArgument, match=next(iter(options))):
        gpu.allocator(**options)


@pytest.mark.parametrize(
    "options",
    [{"limit_bytes": "64M\0G"}, {"limit_bytes\0": "64M"}, {"sizes": "\udcff"}, {"\udcff": 1}],
)
def test_an_option_that_c_would_read_otherwise_is_refused(gpu, options):
    with pytest.raises(ductile_gpu.InvalidArgument, match="option"):
        gpu.allocator(**options)
    with pytest.raises(ductile_gpu.InvalidArgument, match="driver call"):
        gpu.count("map\0s")


def test_a_fork_drops_an_allocator_of_its_parent_without_a_word(monkeypatch):
    own = [ductile_gpu.Allocator(driver="virtual")]

    def drop():
        said = []
        monkeypatch.setattr(sys, "unraisablehook", said.append)
        warnings.simplefilter("ignore")
        own.clear()
        return said == []

    in_child(drop)
    own.pop().close()


def test_the_environment_is_applied_on_top(gpu, monkeypatch):
    monkeypatch.setenv("DUCTILE_CONF", "limit_bytes:32M")
    with gpu.allocator(limit_bytes="64M") as found:
        assert found.options["limit_bytes"] == str(32 * MIB)
    monkeypatch.setenv("DUCTILE_CONF", "nonsense:1")
    with pytest.raises(ductile_gpu.InvalidArgument) as caught:
        gpu.allocator()
    assert str(caught.value) == "DUCTILE_CONF: unknown option 'nonsense'"


def test_the_limit_can_change(allocator):
    allocator.set_limit("16M")
    with pytest.raises(ductile_gpu.OutOfMemory):
        allocator.alloc(17 * MIB)
    allocator.set_limit(None)
    allocator.free(allocator.alloc(17 * MIB))


@pytest.mark.parametrize("size", ["1.5X", "", "-1", "G"])
def test_sizes_that_are_none_are_refused(allocator, size):
    with pytest.raises(ductile_gpu.InvalidArgument):
        allocator.trim(size)


# ---- Pressure ----------------------------------------------------------------------------------


def test_a_callback_is_asked_before_a_request_is_refused(allocator):
    kept = [allocator.alloc(900 * MIB)]
    asked = []

    def give_back(missing):
        asked.append(missing)
        if not kept:
            return 0
        allocator.free(kept.pop())
        return 900 * MIB

    number = allocator.add_oom_callback(give_back)
    allocator.free(allocator.alloc(512 * MIB))
    assert len(asked) == 1
    assert 0 < asked[0] <= 512 * MIB
    allocator.remove_oom_callback(number)
    with pytest.raises(ductile_gpu.OutOfMemory):
        allocator.alloc(2048 * MIB)
    assert len(asked) == 1


def test_a_callback_that_fails_gives_nothing_and_is_logged(allocator, caplog):
    def broken(missing):
        raise RuntimeError("no luck")

    allocator.add_oom_callback(broken)
    kept = allocator.alloc(900 * MIB)
    with caplog.at_level(logging.ERROR, "ductile_gpu"), pytest.raises(ductile_gpu.OutOfMemory):
        allocator.alloc(512 * MIB)
    assert "no luck" in caplog.text
    allocator.free(kept)
    allocator.free(allocator.alloc(MIB))


def test_an_unknown_callback_is_refused(allocator):
    with pytest.raises(ductile_gpu.InvalidArgument):
        allocator.remove_oom_callback(77)


def test_a_map_callback_hears_what_comes_and_what_leaves(allocator):
    mapped = {}

    def tell(is_mapped, address, size):
        if is_mapped:
            mapped[address] = size
        else:
            assert mapped.pop(address) == size

    number = allocator.add_map_callback(tell)
    block = allocator.alloc(5 * MIB)
    assert any(at <= block < at + size for at, size in mapped.items())
    assert sum(mapped.values()) == 6 * MIB
    allocator.free(block)
    assert sum(mapped.values()) == 6 * MIB
    allocator.trim()
    assert not mapped
    allocator.remove_map_callback(number)
    allocator.free(allocator.alloc(5 * MIB))
    assert not mapped
    with pytest.raises(ductile_gpu.InvalidArgument):
        allocator.remove_map_callback(number)


def test_the_report_about_a_refusal_is_numbers_and_advice(allocator):
    assert allocator.oom_report() is None
    kept = allocator.alloc(900 * MIB)
    with pytest.raises(ductile_gpu.OutOfMemory) as caught:
        allocator.alloc(200 * MIB)
    report = allocator.oom_report()
    assert report is not None
    assert report["requested_bytes"] == 200 * MIB
    assert report["live_bytes"] == 900 * MIB
    assert report["advice"]
    assert "200" in str(caught.value)
    allocator.free(kept)


def test_limits_can_be_read_and_changed(allocator):
    assert allocator.limits().limit_bytes == 1024 * MIB
    allocator.set_soft_limit("256M")
    allocator.set_limit("50%")
    assert allocator.limits() == (512 * MIB, 256 * MIB, 1024 * MIB)
    assert allocator.options["limit_bytes"] == "50%"
    allocator.set_soft_limit("75%")
    assert allocator.limits().soft_limit_bytes == 384 * MIB
    allocator.set_soft_limit(None)
    allocator.set_limit(None)
    assert allocator.limits().soft_limit_bytes == allocator.limits().limit_bytes == 1024 * MIB


# ---- Pools -------------------------------------------------------------------------------------


def test_a_pool_keeps_its_memory_apart(allocator):
    with allocator.pool((0, 7)) as pool:
        inside = allocator.alloc(4 * MIB)
    outside = allocator.alloc(4 * MIB)
    assert allocator.query(inside).pool == pool == (0, 7)
    assert allocator.query(outside).pool == (0, 0)
    allocator.free(inside)
    assert allocator.alloc(4 * MIB) != inside
    allocator.release_pool(pool)
    with pytest.raises(ductile_gpu.InvalidArgument):
        allocator.release_pool(pool)


def test_a_pool_of_a_filter_takes_what_the_filter_says(allocator, gpu):
    stream = gpu.stream()
    with allocator.pool((0, 8), lambda asked: asked == stream) as pool:
        assert allocator.query(allocator.alloc(MIB, stream)).pool == pool
        assert allocator.query(allocator.alloc(MIB)).pool == (0, 0)


# ---- Streams -----------------------------------------------------------------------------------


def test_memory_waits_for_the_streams_that_were_recorded(gpu):
    gpu.set_schedule("lazy")
    allocator = gpu.allocator()
    own, other = gpu.stream(), gpu.stream()
    address = allocator.alloc(4 * MIB, own)
    gpu.launch(other, writes=[(address, 4 * MIB)])
    allocator.record_stream(address, other)
    allocator.free(address)
    assert allocator.stats().pending_bytes == 4 * MIB
    assert allocator.alloc(4 * MIB, own) != address
    gpu.sync(other)
    assert allocator.alloc(4 * MIB, own) == address


def test_a_free_names_the_streams_that_used_the_block(gpu):
    gpu.set_schedule("lazy")
    allocator = gpu.allocator()
    own, other = gpu.stream(), gpu.stream()
    address = allocator.alloc(4 * MIB, own)
    gpu.launch(other, reads=[(address, 4 * MIB)])
    allocator.free(address, other)
    assert allocator.stats().pending_blocks == 1
    gpu.sync(other)
    allocator.stream_done(other)


class _Protocol:
    def __cuda_stream__(self):
        return (0, 4096)


class _Torch:
    cuda_stream = 4096


class _CuPy:
    ptr = 4096


@pytest.mark.parametrize("stream", [4096, _Protocol(), _Torch(), _CuPy()])
def test_streams_of_all_libraries_are_numbers(stream):
    from ductile_gpu._binding._streams import stream_handle

    assert stream_handle(stream) == 4096


def test_the_default_stream_has_one_name():
    from ductile_gpu._binding._streams import stream_handle

    assert stream_handle(None) == stream_handle(0) == stream_handle(1) == 0


@pytest.mark.parametrize("stream", ["0", 1.5, True, object()])
def test_what_is_no_stream_is_refused(allocator, stream):
    with pytest.raises(TypeError, match="not a CUDA stream"):
        allocator.alloc(512, stream)


# ---- Life --------------------------------------------------------------------------------------


def test_closing_gives_everything_back(gpu):
    with gpu.allocator() as allocator:
        allocator.alloc(64 * MIB)
        assert gpu.state().used_bytes == 64 * MIB
    assert gpu.state().used_bytes == 0
    assert allocator.closed


def test_a_closed_allocator_refuses(gpu):
    allocator = gpu.allocator()
    allocator.close()
    allocator.close()
    for call in (lambda: allocator.alloc(1), allocator.stats, lambda: allocator.free(512)):
        with pytest.raises(ductile_gpu.InvalidArgument, match="closed"):
            call()
    assert "closed" in repr(allocator)


def test_a_forgotten_allocator_warns_and_gives_back(gpu):
    allocators = [gpu.allocator()]
    allocators[0].alloc(MIB)
    with pytest.warns(ResourceWarning):
        allocators.clear()
    assert gpu.state().used_bytes == 0


def test_a_borrowed_allocator_is_never_destroyed(allocator):
    borrowed = ductile_gpu.Allocator.borrow(allocator.pointer)
    address = borrowed.alloc(MIB)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        borrowed.close()
        del borrowed
        gc.collect()
    allocator.free(address)


def test_a_buffer_frees_itself(allocator):
    buffer = allocator.buffer(MIB)
    assert allocator.stats().live_blocks == 1
    del buffer
    assert allocator.stats().live_blocks == 0
    with allocator.buffer(MIB) as buffer:
        assert allocator.query(buffer.address).requested_size == MIB
    buffer.free()
    assert allocator.stats().live_blocks == 0


def test_nobody_is_invited_to_read_virtual_memory(allocator):
    assert not hasattr(allocator.buffer(MIB), "__cuda_array_interface__")


def test_threads_share_an_allocator(allocator):
    def work(seed: int) -> bool:
        live = []
        for i in range(400):
            live.append(allocator.alloc(512 * (1 + (seed * 7919 + i * 31) % 64)))
            if len(live) > 8:
                allocator.free(live.pop(i % 8))
        for address in live:
            allocator.free(address)
        return True

    at_once(*(lambda seed=seed: work(seed) for seed in range(4)))
    assert allocator.stats().live_blocks == 0
    allocator.check()


# ---- Inspection --------------------------------------------------------------------------------


def test_statistics_are_the_librarys_and_peaks_can_be_reset(allocator):
    kept = [allocator.alloc(size) for size in (100, 5000, 3 * MIB)]
    allocator.free(kept.pop(1))
    stats = allocator.stats()
    assert stats.requested_bytes == 100 + 3 * MIB <= stats.allocated_bytes
    assert stats.allocated_peak_bytes > stats.allocated_bytes
    allocator.reset_peaks()
    assert allocator.stats().allocated_peak_bytes == stats.allocated_bytes


def test_blocks_are_what_queries_of_them_say(allocator):
    addresses = [allocator.alloc(size * MIB) for size in (1, 2, 3, 4, 5)]
    for address in addresses[1::2]:
        allocator.free(address)
    live = {block.address: block for block in allocator.blocks() if block.requested_size > 0}
    assert live == {address: allocator.query(address) for address in addresses[::2]}


def test_a_plan_names_the_cheapest_blocks_that_make_room(allocator):
    blocks = [allocator.alloc(MIB) for _ in range(8)]
    costs = dict(zip(blocks, (9, 9, 3, 4, 9, 1, 9, 9)))
    plan = allocator.plan_eviction("2M", costs)
    assert plan == ((blocks[2], blocks[3]), 7, blocks[2], 2 * MIB)
    for address in plan.blocks:
        allocator.free(address)
    assert allocator.plan_eviction(2 * MIB, {}) == ((), 0, plan.address, plan.size)
    assert allocator.alloc(2 * MIB) == plan.address


def test_a_plan_that_cannot_be_says_why(allocator):
    blocks = [allocator.alloc(MIB) for _ in range(4)]
    with pytest.raises(ductile_gpu.OutOfMemory, match="1,048,576"):
        allocator.plan_eviction("2M", {blocks[0]: 1, blocks[2]: 1})
    with pytest.raises(ductile_gpu.InteriorPointer, match=f"{blocks[0] + 512:#x}"):
        allocator.plan_eviction(512, {blocks[0] + 512: 1})
    for costs in ({blocks[0]: -1}, {blocks[0]: 1 << 64}, {blocks[0]: 1 << 63, blocks[1]: 1 << 63}):
        with pytest.raises(ductile_gpu.InvalidArgument):
            allocator.plan_eviction(512, costs)
    with pytest.raises(ductile_gpu.InvalidArgument):
        allocator.plan_eviction(0, {})


def test_a_snapshot_is_the_whole_state(allocator):
    allocator.alloc(MIB)
    state = allocator.snapshot()
    assert {"version", "options", "statistics", "segments"} <= set(state)
    assert state["statistics"]["live_blocks"] == 1


def test_trim_says_what_went_back(allocator, gpu):
    allocator.free(allocator.alloc(64 * MIB))
    assert allocator.trim("32M") == 32 * MIB
    allocator.trim()
    assert gpu.state().used_bytes == 0


def test_a_virtual_gpu_keeps_what_is_written(allocator, gpu):
    address = allocator.alloc(4096)
    gpu.upload(address, b"ductile")
    gpu.fill(address + 7, 0x21, 1)
    assert gpu.read_back(address, 8) == b"ductile!"


def test_a_failing_driver_call_leaves_the_allocator_whole(gpu):
    allocator = gpu.allocator()
    gpu.inject("phys_create", code=2, nth=3, persistent=True)
    with pytest.raises(ductile_gpu.OutOfMemory):
        allocator.alloc(16 * MIB)
    assert gpu.faults_fired >= 1
    gpu.clear_fault()
    allocator.check()
    allocator.free(allocator.alloc(16 * MIB))
    with pytest.raises(ductile_gpu.InvalidArgument):
        gpu.inject("no_such_call")


def test_a_captured_graph_runs_when_it_is_launched(gpu):
    stream = gpu.stream()
    with gpu.allocator() as allocator:
        address = allocator.alloc(MIB, stream)
        with gpu.capture(stream) as graph:
            gpu.fill(address, 7, MIB, stream)
        gpu.fill(address, 1, MIB, stream)
        assert gpu.read_back(address, 1, stream) == b"\x01"
        graph.launch(stream)
        assert gpu.read_back(address, 1, stream) == b"\x07"
        graph.close()


@pytest.mark.parametrize("how", ["exception", "invalidated", "dropped"])
def test_a_capture_that_nobody_keeps_leaves_no_graph(how):
    with ductile_gpu.VirtualGPU("2G", detect=2) as gpu, gpu.allocator(sizes="2M") as allocator:
        stream = gpu.stream()
        failure = contextlib.suppress(ValueError, ductile_gpu.Error)
        with failure, allocator.pool((1, 1)), gpu.capture(stream) as graph:
            address = allocator.alloc(8 * MIB, stream)
            gpu.launch(stream, writes=[(address, 8 * MIB)])
            if how == "exception":
                raise ValueError
            if how == "invalidated":
                gpu.sync(stream)
        if how == "dropped":
            del graph
        allocator.free(address)
        allocator.release_pool((1, 1))
        assert allocator.trim() == 8 * MIB
        assert gpu.state().violations == 0, gpu.last_violation


def test_a_graph_ends_with_its_block_and_with_its_gpu():
    gpu = ductile_gpu.VirtualGPU("64M")
    stream = gpu.stream()
    with gpu.capture(stream) as first:
        gpu.launch(stream)
    with first:
        first.launch(stream)
    with pytest.raises(ductile_gpu.InvalidArgument):
        first.launch(stream)
    with gpu.capture(stream) as kept:
        gpu.launch(stream)
    gpu.sync(stream)
    gpu.close()
    assert kept.pointer is None
    kept.close()


def test_memory_of_a_graph_at_rest_may_sleep():
    with ductile_gpu.VirtualGPU("8G", detect=2) as gpu, gpu.allocator() as allocator:
        stream = gpu.stream()
        with allocator.pool((1, 1)):
            allocator.set_tag((1, 1), "weights", "drop")
            weights = allocator.alloc(8 * MIB, stream)
        with allocator.pool((3, 1)), gpu.capture(stream) as graph:
            gpu.fill(weights, 1, 8 * MIB, stream)
        graph.launch(stream)
        gpu.sync(stream)
        for _ in range(2):
            graph.rest()
            allocator.sleep("weights")
            allocator.wake("weights")
            graph.wake()
            graph.launch(stream)
            gpu.sync(stream)
        assert gpu.state().violations == 0, gpu.last_violation
        graph.rest()
        graph.launch(stream)
        assert gpu.state().violations == 1
        assert "rest" in gpu.last_violation


def test_free_memory_of_a_plain_pool_serves_others():
    half, limit = 512 * MIB, 4700 * MIB
    with ductile_gpu.VirtualGPU("80G") as gpu, gpu.allocator(limit_bytes=limit) as allocator:
        with allocator.pool((1, 1), kind="plain"):
            _, *others = [allocator.alloc(half) for _ in range(8)]
        for address in others:
            allocator.free(address)
        assert len([allocator.alloc(half) for _ in range(8)]) == 8
        assert [p.kind for p in allocator.pools() if p.id == (1, 1)] == ["plain"]
        wrong = pytest.raises(ductile_gpu.InvalidArgument, match="'capture', 'plain', not 'flat'")
        with wrong, allocator.pool((1, 2), kind="flat"):
            pass
        with allocator.pool((1, 2)):
            allocator.alloc(MIB)
        with pytest.raises(ductile_gpu.Busy), allocator.pool((1, 2), kind="plain"):
            pass
        found = {p.id: (p.references, p.open) for p in allocator.pools()}
        assert found[1, 1] == found[1, 2] == (1, 0)


def test_the_device_keeps_a_log():
    with ductile_gpu.VirtualGPU("64M", log_calls=8) as gpu, gpu.allocator() as allocator:
        allocator.alloc(2 * MIB)
        assert 0 < len(gpu.log()) <= 8
        assert gpu.count("phys_create") >= 1
