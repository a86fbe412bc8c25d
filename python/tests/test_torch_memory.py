# SPDX-License-Identifier: Apache-2.0
"""What PyTorch's programs know of memory, on a virtual GPU: statistics, refusals, pools, graphs."""

from __future__ import annotations

import re
from typing import Callable

import pytest

torch = pytest.importorskip("torch")
if torch.version.cuda is None:
    pytest.skip("this PyTorch is built without CUDA", allow_module_level=True)


# ---- Statistics --------------------------------------------------------------------------------


def test_statistics_count_every_block(play: Callable[[str], str]) -> None:
    play(
        """
        blocks = [alloc(1000 * (i + 1)) for i in range(50)]
        for block in blocks[::2]:
            free(block)
        s = stats()
        asked = [1000 * (i + 1) for i in range(50)]
        held = [(n + 511) // 512 * 512 for n in asked]
        for pool in ("all", "large_pool"):
            counts = {"current": 25, "peak": 50, "allocated": 50, "freed": 25}
            assert s["allocation"][pool] == counts
            assert s["requested_bytes"][pool]["current"] == sum(asked[1::2])
            assert s["requested_bytes"][pool]["allocated"] == sum(asked)
            assert s["allocated_bytes"][pool]["peak"] == sum(held)
            assert s["allocated_bytes"][pool]["freed"] == sum(held[::2])
        assert s["reserved_bytes"]["all"]["current"] % (2 * MIB) == 0
        torch._C._cuda_resetPeakMemoryStats(0)
        torch._C._cuda_resetAccumulatedMemoryStats(0)
        s = stats()
        assert s["allocated_bytes"]["all"]["peak"] == sum(held[1::2])
        assert s["allocated_bytes"]["all"]["allocated"] == 0
        assert s["allocated_bytes"]["all"]["freed"] == 0
        free(blocks[1])
        assert stats()["allocated_bytes"]["all"]["freed"] == held[1]
        """
    )


def test_the_first_allocation_is_the_first_that_counts(play: Callable[[str], str]) -> None:
    """What the library tried out when it opened the device is not counted."""
    play(
        """
        a = alloc(1000)
        s = stats()
        held = {"current": 2 * MIB, "peak": 2 * MIB, "allocated": 2 * MIB, "freed": 0}
        assert s["reserved_bytes"]["all"] == held, s["reserved_bytes"]["all"]
        assert (s["num_device_alloc"], s["num_device_free"]) == (1, 0)
        free(a)
        torch._C._cuda_emptyCache()
        s = stats()
        assert (s["num_device_alloc"], s["num_device_free"]) == (1, 1)
        assert s["reserved_bytes"]["all"]["freed"] == 2 * MIB
        """
    )


@pytest.mark.parametrize("drains", [False, True])
@pytest.mark.parametrize(
    ("size", "native", "native_left"),
    [
        (512, 2, 2),
        (1 << 20, 4, 2),
        ((1 << 20) + 512, 20, 20),
        ((10 << 20) - 512, 40, 20),
        ((10 << 20) + 512, 36, 12),
    ],
)
def test_memory_of_a_graph_is_counted_while_it_lives_and_after(
    play: Callable[[str], str], size: int, native: int, native_left: int, drains: bool
) -> None:
    """What PyTorch's own test of this demands, but for the sizes of native's segments (MiB)."""
    play(
        f"""
        def count():
            s = stats()
            return [s[k]["all"]["current"] for k in ("active", "active_bytes", "reserved_bytes")]

        def grown():
            return [now - then for now, then in zip(count(), before)]

        size, pool = {size}, (0, 9)
        kept = alloc(size)
        before = count()
        random_state = [alloc(8), alloc(8)]  # a generator's, outside the graph's pool
        pool_call("probe_pool_begin", pool)
        result = alloc(size)
        for _ in range(5):
            clone, added = alloc(size), alloc(size)
            free(clone)
            free(result)
            result = added
        pool_call("probe_pool_end", pool)
        for turn in range(1 + {drains}):
            blocks, in_use, held = grown()
            assert (blocks, in_use) == (3, size + 1024), (blocks, in_use)
            assert 3 * size <= held <= {native} * MIB, held
            torch._C._cuda_emptyCache()
        pool_call("probe_pool_release", pool)
        for address in random_state:
            free(address)
        torch._C._cuda_emptyCache()
        blocks, in_use, held = grown()
        assert (blocks, in_use) == (1, size), (blocks, in_use)
        assert size <= held <= {native_left} * MIB, held
        free(result)
        torch._C._cuda_emptyCache()
        assert grown() == [0, 0, 0], grown()
        """
    )


def test_every_documented_key_is_there(play: Callable[[str], str]) -> None:
    play(
        """
        s = stats()
        for name in ("allocation", "segment", "active", "inactive_split", "allocated_bytes",
                     "reserved_bytes", "active_bytes", "inactive_split_bytes", "requested_bytes"):
            for pool in ("all", "small_pool", "large_pool"):
                assert set(s[name][pool]) == {"current", "peak", "allocated", "freed"}
        for name in ("oversize_allocations", "oversize_segments"):
            assert set(s[name]) == {"current", "peak", "allocated", "freed"}
        for name in ("num_alloc_retries", "num_ooms", "num_sync_all_streams", "num_device_alloc",
                     "num_device_free", "max_split_size"):
            assert isinstance(s[name], int)
        """
    )


# ---- Refusals ----------------------------------------------------------------------------------


def test_a_refusal_is_pytorchs_error_and_recoverable(play: Callable[[str], str]) -> None:
    out = play(
        """
        kept = alloc(100 * MIB)
        try:
            torch._C._cuda_cudaCachingAllocator_raw_alloc(3 << 40, 0)
        except torch.OutOfMemoryError as error:
            print(error)
        assert stats()["num_ooms"] == 1
        free(alloc(MIB))
        """
    )
    assert re.match(
        r"CUDA out of memory\. Tried to allocate 3072\.00 GiB\. GPU 0 has a total capacity of "
        r".+? of which .+? is free\. Of the allocated memory 100\.00 MiB is allocated by PyTorch, "
        r"and .+? is reserved by PyTorch but unallocated\. ",
        out,
    ), out
    assert "Ductile: " in out
    assert "What would help" in out
    assert "See documentation for Memory Management  (https://" in out


def test_more_than_an_exabyte_is_refused_as_pytorch_does(play: Callable[[str], str]) -> None:
    out = play(
        """
        try:
            alloc(1 << 61)
        except RuntimeError as error:
            print(error)
        """
    )
    assert "Tried to allocate more than 1EB memory" in out


def test_a_double_free_is_told(play: Callable[[str], str]) -> None:
    out = play(
        """
        a = alloc(1000)
        free(a)
        try:
            free(a)
        except RuntimeError as error:
            print(error)
        """
    )
    assert "invalid device pointer" in out


# ---- Pools -------------------------------------------------------------------------------------


def test_a_pool_keeps_its_memory_apart(play: Callable[[str], str]) -> None:
    play(
        """
        pool = (0, 7)
        pool_call("probe_pool_begin", pool)
        a = alloc(MIB)
        pool_call("probe_pool_end", pool)
        assert driver.probe_pool_uses(ctypes.c_ulonglong(0), ctypes.c_ulonglong(7)) == 1
        b = alloc(MIB)
        homes = {tuple(s["segment_pool_id"]): s for s in snapshot()["segments"]}
        assert homes[pool]["address"] <= a < homes[pool]["address"] + homes[pool]["total_size"]
        assert not homes[pool]["address"] <= b < homes[pool]["address"] + homes[pool]["total_size"]
        free(a)
        torch._C._cuda_emptyCache()
        assert pool in {tuple(s["segment_pool_id"]) for s in snapshot()["segments"]}
        pool_call("probe_pool_release", pool)
        torch._C._cuda_emptyCache()
        assert pool not in {tuple(s["segment_pool_id"]) for s in snapshot()["segments"]}
        free(b)
        """
    )


def test_a_pool_of_the_user_gives_back_what_is_free_with_the_cache(
    play: Callable[[str], str],
) -> None:
    play(
        """
        pool = (0, 5)
        pool_call("probe_pool_create", pool)
        pool_call("probe_pool_begin", pool)
        kept, freed = alloc(2 * MIB), alloc(20 * MIB)
        free(freed)
        torch._C._cuda_emptyCache()
        pool_call("probe_pool_end", pool)
        found = [s for s in snapshot()["segments"] if tuple(s["segment_pool_id"]) == pool]
        assert [(s["address"], s["total_size"]) for s in found] == [(kept, 2 * MIB)], found
        assert stats()["reserved_bytes"]["all"]["current"] == 2 * MIB
        """
    )


def test_a_pool_serves_a_second_stream_in_a_segment_of_its_own(play: Callable[[str], str]) -> None:
    """While another thread allocates outside, and the pool's opener does so afterwards."""
    play(
        """
        import threading

        def segments():
            found = [s for s in snapshot()["segments"] if tuple(s["segment_pool_id"]) == pool]
            return [(s["stream"], s["total_size"]) for s in found]

        def use(stream):
            blocks = [alloc(20 * MIB, stream) for _ in range(3)]
            for block in blocks:
                free(block)

        def use_the_pool():
            pool_call("probe_pool_begin", pool)
            for _ in range(10):
                use(2)
            pool_call("probe_pool_end", pool)
            pool_call("probe_pool_release", pool)
            use(2)

        def use_no_pool():
            for _ in range(10):
                use(0)

        pool = (0, 9)
        pool_call("probe_pool_begin", pool)
        free(alloc(16))
        pool_call("probe_pool_end", pool)
        assert segments() == [(0, 2 * MIB)], segments()
        threads = [threading.Thread(target=f) for f in (use_the_pool, use_no_pool)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert segments() == [(0, 2 * MIB), (2, 60 * MIB)], segments()
        pool_call("probe_pool_release", pool)
        torch._C._cuda_emptyCache()
        assert segments() == [], segments()
        """
    )


def test_graphs_in_turn_hold_the_memory_of_one(play: Callable[[str], str]) -> None:
    play(
        """
        held = []
        for turn in range(100):
            torch._C._cuda_emptyCache()
            pool_call("probe_pool_begin", (0, 20 + turn))
            workspace, result = alloc(32 * MIB), alloc(128 * 1024)
            free(workspace)
            pool_call("probe_pool_end", (0, 20 + turn))
            held.append(stats()["reserved_bytes"]["all"]["current"])
            free(result)
            pool_call("probe_pool_release", (0, 20 + turn))
        assert set(held) == {34 * MIB}, held
        """
    )


def test_a_checkpoint_is_restored_by_address(play: Callable[[str], str]) -> None:
    play(
        """
        pool = (3, 0)
        pool_call("probe_pool_begin", pool)
        kept, gone = alloc(3 * MIB), alloc(5 * MIB)
        pool_call("probe_checkpoint", pool)
        free(gone)
        new = alloc(MIB)
        assert new == gone
        freed, allocated = ctypes.c_size_t(), ctypes.c_size_t()
        call("probe_restore", ctypes.byref(freed), ctypes.byref(allocated))
        assert (freed.value, allocated.value) == (2, 2)
        pool_call("probe_pool_end", pool)
        live = {b_at: b["requested_size"] for s in snapshot()["segments"]
                for b_at, b in zip(addresses(s), s["blocks"]) if b["state"] == "active_allocated"}
        assert live == {kept: 3 * MIB, gone: 5 * MIB}, live
        free(kept)
        free(gone)
        pool_call("probe_pool_release", pool)
        """
    )


# ---- Sharing -----------------------------------------------------------------------------------


def test_a_receiver_that_stalls_does_not_stall_frees_of_other_blocks(
    play: Callable[[str], str],
) -> None:
    play(
        """
        import socket, threading, time

        shared, other = alloc(4 * MIB), alloc(4 * MIB)
        data, size = ctypes.c_void_p(), ctypes.c_size_t()
        call("probe_share", ctypes.c_void_p(shared), ctypes.byref(data), ctypes.byref(size))
        handle = ctypes.string_at(data.value, size.value)
        receiver = socket.socket(socket.AF_UNIX)
        receiver.settimeout(300)
        receiver.connect(b"\\0" + handle[4:28])
        receiver.send(handle[32:64])
        assert receiver.recv(16, socket.MSG_WAITALL) == handle[64:]
        assert receiver.recv(1)  # the export has begun; no answer follows

        def free_in_background(address):
            thread = threading.Thread(target=free, args=(address,))
            thread.start()
            thread.join(5)
            return thread

        assert not free_in_background(other).is_alive()
        began = time.monotonic()
        assert not free_in_background(shared).is_alive()
        assert 0.9 < time.monotonic() - began < 4  # as long as a receiver at work may need
        """
    )


# ---- Queries -----------------------------------------------------------------------------------


def test_an_address_inside_a_block_leads_to_its_base(play: Callable[[str], str]) -> None:
    play(
        """
        a = alloc(10000)
        base, size = ctypes.c_void_p(), ctypes.c_size_t()
        call("probe_base", ctypes.c_void_p(a + 4321), ctypes.byref(base), ctypes.byref(size))
        assert base.value == a
        assert size.value == 10240
        """
    )


def test_the_largest_free_block_is_told(play: Callable[[str], str]) -> None:
    play(
        """
        a = alloc(64 * MIB)
        b = alloc(MIB)
        free(a)
        largest = ctypes.c_size_t(1)
        call("probe_cache_info", ctypes.byref(largest))
        assert largest.value == 64 * MIB, largest.value
        """
    )


# ---- The quick path ----------------------------------------------------------------------------


def test_a_hit_makes_no_driver_call(play: Callable[[str], str]) -> None:
    play(
        """
        sizes = [512, 4096, 3 * MIB, 40 * MIB]
        for address in [alloc(size) for size in sizes for _ in range(4)]:
            free(address)
        before = library().stats()
        for turn in range(200):
            for address in [alloc(size) for size in sizes]:
                free(address)
        after = library().stats()
        assert after.allocs - before.allocs == 800
        assert after.driver_calls == before.driver_calls
        """
    )


def test_the_profiler_hears_of_hits_and_frees(play: Callable[[str], str]) -> None:
    play(
        """
        from torch.profiler import ProfilerActivity, profile
        free(alloc(8 * MIB))
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
            free(alloc(8 * MIB))
        changes = [e.device_memory_usage for e in profiled.events() if e.name == "[memory]"]
        assert changes == [8 * MIB, -8 * MIB], changes
        free(alloc(8 * MIB))
        """
    )


def test_a_tracer_hears_of_hits_and_frees(play: Callable[[str], str]) -> None:
    play(
        """
        from torch.cuda import _gpu_trace as trace
        free(alloc(8 * MIB))
        heard = []
        trace.register_callback_for_memory_allocation(lambda at: heard.append(("alloc", at)))
        trace.register_callback_for_memory_deallocation(lambda at: heard.append(("free", at)))
        torch._C._activate_gpu_trace()
        address = alloc(8 * MIB)
        free(address)
        assert heard == [("alloc", address), ("free", address)], heard
        """
    )
