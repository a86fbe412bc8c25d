# SPDX-License-Identifier: Apache-2.0
"""Ductile enabled, disabled and enabled again while CUDA is in use. PyTorch's own allocator is the
real one, on a CUDA runtime without a GPU; Ductile is on a virtual GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Callable

import pytest

torch = pytest.importorskip("torch")
if torch.version.cuda is None:
    pytest.skip("this PyTorch is built without CUDA", allow_module_level=True)

Late = Callable[[str], str]

# ---- Memory ------------------------------------------------------------------------------------


def test_new_memory_comes_from_ductile_and_old_stays(late: Late) -> None:
    late(
        """
        old = tensor(8)
        enable("full")
        new = tensor(8)
        assert (owner(old), owner(new)) == ("native", "ductile")
        assert ductile_gpu.torch.mode() == "full"
        assert torch.cuda.get_allocator_backend() == "ductile"
        assert stat("allocation") == 2 and stat("allocated_bytes") == 16 * MIB
        """
    )


def test_old_memory_goes_back_to_native_when_it_is_freed(late: Late) -> None:
    late(
        """
        old = tensor(32)
        raw = torch.cuda.caching_allocator_alloc(64 * MIB)
        enable("full")
        held = native_bytes()
        del old
        torch.cuda.caching_allocator_delete(raw)
        assert stat("allocated_bytes") == 0 and native_bytes() == held
        torch.cuda.empty_cache()
        assert native_bytes() == 0 and stat("reserved_bytes") == 0
        """
    )


def test_free_memory_of_native_goes_back_to_the_device_at_the_switch(late: Late) -> None:
    late(
        """
        kept, dropped = tensor(32), tensor(64)
        del dropped
        assert native_bytes() == 96 * MIB
        enable("full")
        assert native_bytes() == 32 * MIB
        """
    )


def test_what_native_frees_later_is_asked_for_before_a_request_is_refused(late: Late) -> None:
    late(
        """
        old = tensor(64)
        enable("full")
        tensor(1)
        torch.cuda.set_per_process_memory_fraction(128 * MIB / library().limits().device_bytes)
        del old                      # stays in native's cache
        assert native_bytes() == 64 * MIB
        import warnings
        warnings.simplefilter("error")
        new = tensor(100)
        assert owner(new) == "ductile" and native_bytes() == 0
        """
    )


def test_a_wait_for_streams_is_remembered_by_whom_the_memory_is(late: Late) -> None:
    late(
        """
        old = tensor(32)
        enable("full")
        new = tensor(32)
        side = torch.cuda.Stream()
        for kept in (old, new):
            kept.record_stream(side)
        del kept
        assert stat("active") == 2
        del old, new
        disable()
        tensor(1)                    # native looks at its events
        assert stat("allocation") == 0
        """
    )


def test_record_stream_on_native_memory_keeps_it_until_the_stream_is_done(late: Late) -> None:
    """Native notes the stream with the block: freed during a capture, it waits for its end."""
    late(
        """
        old = tensor(32)
        enable("full")
        old.record_stream(torch.cuda.Stream())
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            del old
            assert stat("allocation") == 0 and stat("active") == 1
        torch.cuda.empty_cache()
        assert stat("active") == 0 and native_bytes() == 0
        """
    )


# ---- Switching back ----------------------------------------------------------------------------


def test_disable_gives_new_memory_back_to_native_and_keeps_serving_its_own(late: Late) -> None:
    late(
        """
        enable("full")
        new = tensor(8)
        disable()
        assert ductile_gpu.torch.mode() == "off" and not ductile_gpu.torch.is_active()
        assert torch.cuda.get_allocator_backend() == "native"
        back = tensor(8)
        assert (owner(new), owner(back)) == ("ductile", "native")
        new.record_stream(torch.cuda.current_stream())
        before = library().stats().allocated_bytes
        del new
        assert library().stats().allocated_bytes == before - 8 * MIB
        assert stat("allocated_bytes") == 8 * MIB
        disable()                    # again: nothing
        """
    )


def test_ductile_gives_its_free_memory_back_when_it_is_disabled(late: Late) -> None:
    late(
        """
        enable("full")
        dropped = tensor(64)
        kept = tensor(32)
        del dropped
        disable()
        assert library().stats().reserved_bytes == 32 * MIB
        """
    )


def test_cycles_of_both_hold(late: Late) -> None:
    late(
        """
        kept = []
        for turn in range(50):
            enable("full") if turn % 2 == 0 else disable()
            kept.append(tensor(2))
            assert owner(kept[-1]) == ("ductile" if turn % 2 == 0 else "native")
            if turn % 3 == 0:
                del kept[turn // 2]
        n = len(kept)
        assert stat("allocation") == n
        kept.clear()
        torch.cuda.empty_cache()
        assert stat("allocation") == stat("reserved_bytes") == native_bytes() == 0
        """
    )


def test_before_cuda_is_used_it_can_be_taken_back(late: Late) -> None:
    late(
        """
        enable("full")
        disable()
        assert not torch.cuda.is_initialized()
        assert owner(tensor(2)) == "native"
        enable()
        assert owner(tensor(2)) == "ductile"
        """
    )


def test_other_options_are_refused_in_later_turns_too(late: Late) -> None:
    late(
        """
        tensor(1)
        enable("full", limit_bytes="1G")
        disable()
        try:
            enable(limit_bytes="2G")
        except ductile_gpu.Busy:
            pass
        else:
            raise AssertionError
        enable(limit_bytes="1G")
        assert library().limits().limit_bytes == 1 << 30
        """
    )


# ---- Pools and graphs --------------------------------------------------------------------------


def test_a_pool_stays_with_the_allocator_that_had_it(late: Late) -> None:
    late(
        """
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            first = tensor(4)
        enable("full")
        assert pool.use_count() == 1
        with torch.cuda.use_mem_pool(pool):
            assert pool.use_count() == 2
            second = tensor(4)
            assert owner(in_thread(lambda: tensor(4))) == "ductile"
        assert owner(first) == owner(second) == "native"
        assert owner(tensor(4)) == "ductile"
        ours = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(ours):
            third = tensor(4)
        disable()
        with torch.cuda.use_mem_pool(ours):
            fourth = tensor(4)
        assert owner(third) == owner(fourth) == "ductile"
        theirs = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(theirs):
            fifth = tensor(4)
        enable()
        with torch.cuda.use_mem_pool(theirs):
            sixth = tensor(4)
        assert owner(fifth) == owner(sixth) == "native"
        del first, second, third, fourth, fifth, sixth, pool, ours, theirs
        torch.cuda.empty_cache()
        assert native_bytes() == 0 and stat("reserved_bytes") == 0
        """
    )


def test_a_graph_stays_with_the_allocator_that_had_it(late: Late) -> None:
    late(
        """
        def capture(**named):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, **named):
                kept = tensor(4)
            return graph, kept
        first, a = capture()
        enable("full")
        first.replay()
        second, b = capture(pool=first.pool())
        third, c = capture()
        disable()
        fourth, d = capture(pool=third.pool())
        fifth, e = capture()
        assert [owner(t) for t in (a, b, c, d, e)] == [
            "native", "native", "ductile", "ductile", "native"]
        for graph in (first, second, third, fourth, fifth):
            graph.replay()
            graph.reset()
        del a, b, c, d, e
        torch.cuda.empty_cache()
        assert native_bytes() == 0 and stat("allocation") == 0
        """
    )


def test_a_pool_that_is_open_at_the_switch_is_native_s_until_it_is_closed(late: Late) -> None:
    late(
        """
        import warnings
        pool = torch.cuda.MemPool()
        def work(pause):
            with torch.cuda.use_mem_pool(pool):
                before = tensor(4)
                pause()
                within = tensor(4)
            return owner(before), owner(within), owner(tensor(4))
        other = Paused(work)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            enable("full")
        assert "a memory pool or a capture is open" in str(told[0].message)
        assert owner(tensor(4)) == "native"      # which requests are the pool's only native knows
        assert other.finish() == ("native", "native", "ductile")
        assert owner(tensor(4)) == "ductile"
        assert pool.use_count() == 1
        """
    )


def test_a_capture_in_another_thread_is_native_s_to_its_end(late: Late) -> None:
    late(
        """
        import warnings
        warnings.simplefilter("ignore")
        def work(pause):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                before = tensor(4)
                pause()
                within = tensor(4)
            graph.replay()
            return graph, before, within
        other = Paused(work)
        enable("full")
        graph, before, within = other.finish()
        assert owner(before) == owner(within) == "native"
        assert owner(tensor(4)) == "ductile"
        graph.reset()
        del before, within, graph, other
        torch.cuda.empty_cache()
        assert native_bytes() == 0
        """
    )


def test_the_calling_thread_s_own_pool_may_be_open(late: Late) -> None:
    late(
        """
        import warnings
        warnings.simplefilter("ignore")
        with torch.cuda.use_mem_pool(torch.cuda.MemPool()):
            enable("full")
            assert owner(tensor(4)) == "native"
        assert owner(tensor(4)) == "ductile"
        """
    )


def test_a_capture_of_the_calling_thread_is_refused_and_nothing_has_changed(late: Late) -> None:
    late(
        """
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            try:
                enable("full")
            except ductile_gpu.torch.TooLate as error:
                assert "before the capture begins, or after it has ended" in str(error)
            else:
                raise AssertionError
            kept = tensor(4)
        assert owner(kept) == "native" and ductile_gpu.torch.mode() == "off"
        enable("full")
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            try:
                disable()
            except ductile_gpu.torch.TooLate:
                pass
            else:
                raise AssertionError
        assert owner(tensor(4)) == "ductile"
        """
    )


def test_a_call_that_was_under_way_may_still_open_a_pool(late: Late) -> None:
    """Between reading which allocator is PyTorch's and calling it, a thread may be overtaken."""
    late(
        """
        native = ctypes.c_void_p()
        call("probe_current", ctypes.byref(native))
        tensor(1)
        enable("full")
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            call("probe_begin_capture_at", native, ctypes.c_void_p(stream.cuda_stream))
            within = tensor(4)
            call("probe_end_capture", ctypes.c_void_p(stream.cuda_stream))
            after = tensor(4)
        assert (owner(within), owner(after)) == ("native", "ductile")
        """
    )


def test_captures_of_ductile_keep_native_from_asking_the_driver(late: Late) -> None:
    """Native would record an event on a stream that used the block: it may be the captured one."""
    late(
        """
        old = tensor(32)
        enable("full")
        old.record_stream(torch.cuda.Stream())
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            before = runtime.fake_event_calls()
            del old
            assert runtime.fake_event_calls() == before
        """
    )


@pytest.mark.skipif(not hasattr(torch._C, "_cuda_getCheckpointState"), reason="no checkpoints")
def test_checkpoints_of_native_s_pools_are_restored_by_native(late: Late) -> None:
    late(
        """
        pool = torch.cuda.MemPool()
        def use():
            with torch.cuda.use_mem_pool(pool):
                return tensor(4)
        first = use()
        state = torch._C._cuda_getCheckpointState(0, pool.id)
        enable("full")
        again = torch._C._cuda_getCheckpointState(0, pool.id)
        second = use()
        stale = [second.untyped_storage()._cdata]
        for checkpoint in (state, again):
            torch._C._cuda_setCheckpointPoolState(0, checkpoint, stale, [])
            assert torch._C._cuda_checkPoolLiveAllocations(0, pool.id, {first.data_ptr()})
            stale = []
        assert stat("allocation") == 1
        """
    )


# ---- One limit ---------------------------------------------------------------------------------


def test_a_memory_fraction_holds_for_both_together(late: Late) -> None:
    late(
        """
        old = tensor(64)
        enable("full")
        tensor(1)
        torch.cuda.empty_cache()
        whole = library().limits().device_bytes
        torch.cuda.set_per_process_memory_fraction(128 * MIB / whole)
        new = tensor(60)
        try:
            tensor(20)
        except torch.OutOfMemoryError as error:
            assert "64.00 MiB more is held by PyTorch's own allocator" in str(error)
        else:
            raise AssertionError
        del new
        disable()
        third = tensor(60)           # Ductile gives back what is free
        assert owner(third) == "native"
        try:
            tensor(20)
        except torch.OutOfMemoryError:
            pass
        else:
            raise AssertionError
        """
    )


def test_a_fraction_that_was_set_before_holds_afterwards(late: Late) -> None:
    late(
        """
        old = tensor(64)
        torch.cuda.set_per_process_memory_fraction(0.25)
        enable("full")
        assert torch.cuda.get_per_process_memory_fraction() == 0.25
        tensor(1)
        limits = library().limits()
        assert 0 <= limits.device_bytes / 4 - 64 * MIB - limits.limit_bytes < MIB
        """
    )


def test_nobody_hears_of_a_refusal_that_room_was_made_for(late: Late) -> None:
    late(
        """
        tensor(1)
        enable("full")
        heard = []
        torch._C._cuda_attach_out_of_memory_observer(lambda *what: heard.append(what))
        new = tensor(100)
        torch.cuda.set_per_process_memory_fraction(128 * MIB / library().limits().device_bytes)
        disable()
        del new                      # stays in Ductile's cache
        back = tensor(100)
        assert owner(back) == "native" and not heard
        try:
            tensor(100)
        except torch.OutOfMemoryError:
            assert len(heard) == 1
        """
    )


# ---- Tools -------------------------------------------------------------------------------------


def test_a_snapshot_has_both_and_a_history_goes_on(late: Late) -> None:
    late(
        """
        torch.cuda.memory._record_memory_history()
        def before():
            return tensor(8)
        old = before()
        enable("full")
        def after():
            return tensor(8)
        new = after()
        found = torch.cuda.memory._snapshot()
        where = {s["address"]: s for s in found["segments"]}
        assert old.data_ptr() in where and new.data_ptr() in where
        address, freed = old.data_ptr(), []
        del old
        trace = torch.cuda.memory._snapshot()["device_traces"][0]
        at = [(e["action"], e["addr"]) for e in trace]
        assert ("alloc", address) in at and ("alloc", new.data_ptr()) in at
        assert ("free_completed", address) in at
        stacks = {e["addr"]: [f["name"] for f in e["frames"]] for e in trace
                  if e["action"] == "alloc"}
        assert "before" in stacks[address] and "after" in stacks[new.data_ptr()]
        """
    )


def test_statistics_are_reset_on_both_sides(late: Late) -> None:
    late(
        """
        old = tensor(64); del old
        enable("full")
        new = tensor(64); del new
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.reset_accumulated_memory_stats()
        found = torch.cuda.memory_stats()
        assert found["allocated_bytes.all.peak"] == found["allocated_bytes.all.allocated"] == 0
        """
    )


def test_a_tracker_hears_of_both_and_none_twice(late: Late) -> None:
    late(
        """
        tensor(1)
        enable("full")
        counts = (ctypes.c_int * 16)()
        call("probe_listen", counts)
        new = tensor(4)
        disable()
        back = tensor(4)
        assert counts[0] == 2
        del new, back
        assert counts[1] == 2 and counts[2] == 2
        """
    )


def test_a_recording_that_began_under_native_goes_on(late: Late) -> None:
    late(
        """
        heard = []
        EVENT = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_int, *3 * [ctypes.c_uint64])
        NOTE = ctypes.CFUNCTYPE(None)
        noted = []
        event = EVENT(lambda action, device, address, size, stream: heard.append((action, address)))
        note = NOTE(lambda: noted.append(1))
        torch.cuda.init()
        tracker = _install.Tracker()
        tracker.start(*(ctypes.cast(f, ctypes.c_void_p).value for f in (event, note)))
        old = tensor(4)
        enable("full")
        new = tensor(4)
        assert {(0, old.data_ptr()), (0, new.data_ptr())} <= set(heard)
        assert len(noted) == 2
        """
    )


def test_native_s_handles_for_other_processes_are_made_by_native(late: Late) -> None:
    late(
        """
        old = tensor(4)
        enable("full")
        new = tensor(4)
        handles = []
        for kept in (old, new):
            data, size = ctypes.c_char_p(), ctypes.c_size_t()
            call("probe_share", ctypes.c_void_p(kept.data_ptr()), ctypes.byref(data),
                 ctypes.byref(size))
            handles.append(size.value)
        assert handles[0] != handles[1]
        """
    )


def test_switched_off_caching_stays_so(late: Late) -> None:
    late(
        """
        cached = tensor(4)
        torch.cuda.caching_allocator_enable(False)
        plain = tensor(4)
        enable("full")
        assert library is not None and owner(tensor(4)) == "native"   # cudaMalloc
        torch.cuda.caching_allocator_enable(True)
        assert owner(tensor(4)) == "ductile"
        torch.cuda.caching_allocator_enable(False)
        disable()
        assert owner(tensor(4)) == "native"
        del cached, plain
        torch.cuda.caching_allocator_enable(True)
        torch.cuda.empty_cache()
        assert native_bytes() == 0
        """
    )


# ---- Every function ----------------------------------------------------------------------------

# Who hears of a call on memory, or a pool, that native has / on Ductile's: "o" the allocator that
# has it, "b" both, "d" Ductile alone.
ROUTES = {
    "o": """raw_deleter raw_delete recordStream getBaseAllocation shareIpcHandle getIpcDevPtr
        getContextForPointer annotateMemory createOrIncrefPool ensureExistsAndIncrefPool setUseOnOOM
        setNoSplit checkPoolLiveAllocations getCheckpointState setCheckpointPoolState
        beginAllocateToPool endAllocateToPool getPoolUseCount releasePool""",
    "b": """init emptyCache getExpandableSegmentSizes setMemoryFraction getDeviceStats
        resetAccumulatedStats resetPeakStats snapshot recordHistory pushCompileContext
        popCompileContext setUserMetadata attachOutOfMemoryObserver attachOomRejectionObserver
        attachAllocatorTraceTracker markCaptureBegin markCaptureEnd enablePeerAccess""",
    "d": """allocate raw_alloc raw_alloc_with_stream allocateWithAddress copy_data initialized name
        enable isEnabled cacheInfo getMemoryFraction isHistoryEnabled recordAnnotation
        getUserMetadata supportsUserMetadata memcpyAsync getMemoryInfo""",
}
# What native is asked by another name.
HEARD_AS = {"raw_deleter": "raw_delete"}
# In the order that they need; what each needs before, on the same thing.
BEFORE = {
    "endAllocateToPool": ["beginAllocateToPool"],
    "setCheckpointPoolState": ["getCheckpointState"],
    "markCaptureEnd": ["markCaptureBegin"],
    "popCompileContext": ["pushCompileContext"],
    "getUserMetadata": ["setUserMetadata"],
    "annotateMemory": ["recordHistory"],
}


def declared() -> set[str]:
    from ductile_gpu.torch import _build, _surface

    found = _surface.declared(_build.describe_torch().include)
    return set(found - _surface.INHERITED)


def test_every_function_of_this_pytorch_has_a_route() -> None:
    named = [name for names in ROUTES.values() for name in names.split()]
    assert len(named) == len(set(named))
    assert declared() <= set(named), declared() - set(named)


ON_NATIVE_S = [(n, kind) for kind, names in ROUTES.items() for n in names.split()]


@pytest.mark.parametrize(("name", "kind"), ON_NATIVE_S)
@pytest.mark.parametrize("which", ["native", "ductile"])
def test_a_call_goes_to_the_allocator_that_has_what_it_is_about(
    late: Late, name: str, kind: str, which: str
) -> None:
    if name not in declared():
        pytest.skip("this PyTorch has no such function")
    if (name, which) == ("allocateWithAddress", "native"):
        pytest.skip("new memory is Ductile's: that of an open pool of native's is asked below")
    out = late(
        f"""
        torch.cuda.init()
        call("probe_stand_in")
        tensor(1)
        call("probe_make_things", 0)
        enable("full")
        call("probe_make_things", 1)
        names = ctypes.c_char_p()
        for name in {[*BEFORE.get(name, []), name]!r}:
            call("probe_route", name.encode(), {int(which == "ductile")}, ctypes.byref(names))
        print(names.value.decode())
        sys.stdout.flush()
        os._exit(0)                  # pools may be open
        """
    )
    is_heard = HEARD_AS.get(name, name) in out.split()
    expected = kind == "b" or (kind == "o" and which == "native")
    assert is_heard == expected, out


def test_an_open_pool_of_native_s_is_asked_for_an_address(late: Late) -> None:
    if "allocateWithAddress" not in declared():
        pytest.skip("this PyTorch has no such function")
    out = late(
        """
        torch.cuda.init()
        call("probe_stand_in")
        call("probe_make_things", 0)
        enable("full")
        names = ctypes.c_char_p()
        for name in ("beginAllocateToPool", "allocateWithAddress"):
            try:
                call("probe_route", name.encode(), 0, ctypes.byref(names))
            except RuntimeError:                  # it is no address of the pool
                print(names.value.decode())
        sys.stdout.flush()
        os._exit(0)
        """
    )
    assert "allocateWithAddress" in out


# ---- Threads -----------------------------------------------------------------------------------


def test_threads_may_allocate_use_pools_and_capture_during_switches(
    runtime: Path, tmp_path: Path
) -> None:
    """Under the thread sanitizer: python/tests/torch_race."""
    import torch_race

    from ductile_gpu._binding._native import library_path

    program = tmp_path / "switch_race"
    torch_race.build_race(program, library_path(), ["-O0"])
    done = torch_race.run(program, runtime, 60, 300)
    assert done.returncode == 0, done.stderr
    assert "60 switches" in done.stdout


# ---- Who is not replaced -----------------------------------------------------------------------


def run(runtime: Path, program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "LD_PRELOAD": str(runtime), "DUCTILE_CONF": "driver:virtual"}
        | environment,
        capture_output=True,
        text=True,
        check=False,
    )


ENABLE = """
import torch
import ductile_gpu.torch
torch.cuda.init()
torch.empty(100, device="cuda")
ductile_gpu.torch.enable({mode!r})
kept = torch.empty(100, device="cuda")
print(hex(kept.data_ptr()))
"""


def test_expandable_segments_of_native_are_no_hindrance(runtime: Path) -> None:
    """Nothing is allocated under native: the runtime here has no virtual memory calls."""
    program = ENABLE.replace('torch.empty(100, device="cuda")\nductile', "ductile")
    done = run(
        runtime,
        program.format(mode="full"),
        PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True",
    )
    assert done.stdout.startswith("0x1000"), done.stderr


def test_the_asynchronous_backend_is_refused_in_a_sentence(runtime: Path) -> None:
    done = run(
        runtime,
        "import ductile_gpu.torch; ductile_gpu.torch.enable()",
        PYTORCH_CUDA_ALLOC_CONF="backend:cudaMallocAsync",
    )
    assert "backend:cudaMallocAsync cannot be met: it names another allocator" in done.stderr


def test_a_pluggable_allocator_is_refused_in_a_sentence(runtime: Path, driver: Path) -> None:
    program = f"""
import torch, ductile_gpu.torch
own = torch.cuda.memory.CUDAPluggableAllocator({str(driver)!r}, "plain_alloc", "plain_free")
torch.cuda.memory.change_current_allocator(own)
torch.empty(100, device="cuda")
ductile_gpu.torch.enable("full")
"""
    done = run(runtime, program)
    assert "is a CUDAPluggableAllocator already: Ductile does not replace it" in done.stderr


def test_without_the_adapter_it_is_too_late(runtime: Path) -> None:
    done = run(runtime, ENABLE.format(mode="plain"))
    assert "TooLate" in done.stderr
    assert "install a C++ compiler" in done.stderr


def test_a_warning_of_enable_names_the_line_that_called_it(runtime: Path, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import torch, ductile_gpu.torch\n"
        "with torch.cuda.use_mem_pool(torch.cuda.MemPool()):\n"
        "    torch.empty(10, device='cuda')\n"
        "    ductile_gpu.torch.enable('full')\n"
    )
    done = run(runtime, f"import runpy; runpy.run_path({str(program)!r})")
    assert f"{program}:4: RuntimeWarning: a memory pool or a capture is open" in done.stderr


# ---- NCCL's registration of all memory ---------------------------------------------------------

GROUP = """
import os, tempfile, warnings
import torch, torch.distributed as dist
import ductile_gpu.torch
warnings.simplefilter("always")
torch.empty(100, device="cuda")
def make_group(backend):
    place = tempfile.mkdtemp()
    dist.init_process_group(backend, init_method=f"file://{place}/store", rank=0, world_size=1)
"""
HOOK = "TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK"
# The backend that reads it. The other one, since 2.15, wants a GPU at once.
OLD = {"TORCH_DIST_USE_NCCL2": "0"}


def test_nccls_registration_of_all_memory_is_turned_off_before_nccl_reads_it(runtime: Path) -> None:
    program = f"""{GROUP}
make_group("gloo")
ductile_gpu.torch.enable("full")
assert ductile_gpu.torch.mode() == "full"
print(os.environ[{HOOK!r}])
"""
    done = run(runtime, program, **{HOOK: "1"})
    assert done.stdout == "0\n", done.stderr
    assert f"{HOOK} is turned off: Ductile's memory moves" in done.stderr


def test_it_is_too_late_where_nccl_registers_all_memory_already(runtime: Path) -> None:
    program = f"""{GROUP}
make_group("nccl")
try:
    ductile_gpu.torch.enable("full")
except ductile_gpu.torch.TooLate as error:
    print(error)
print(ductile_gpu.torch.mode(), os.environ[{HOOK!r}], flush=True)
os._exit(0)
"""
    done = run(runtime, program, **OLD, **{HOOK: "1"})
    said, state = done.stdout.splitlines() or ["", done.stderr]
    assert said.startswith(f"{HOOK} has NCCL register all memory, and Ductile's moves: unset it")
    assert state == "off 1"


def test_a_group_of_nccl_that_registers_nothing_is_no_hindrance(runtime: Path) -> None:
    program = f"""{GROUP}
make_group("nccl")
ductile_gpu.torch.enable("full")
print(ductile_gpu.torch.mode(), flush=True)
os._exit(0)
"""
    done = run(runtime, program, **OLD, **{HOOK: "0"})
    assert done.stdout == "full\n", done.stderr


NCCL2 = "NCCL backend registers the memory that it finds"


def test_ranks_are_told_how_to_keep_nccl2_from_registering_memory(runtime: Path) -> None:
    program = f"{GROUP}ductile_gpu.torch.enable('full')"
    is_new = int(torch.__version__.split(".")[1]) >= 15
    ranks = {"WORLD_SIZE": "2", "RANK": "0"}
    assert (NCCL2 in run(runtime, program, **ranks).stderr) == is_new
    expandable = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    program = program.replace('torch.empty(100, device="cuda")', "")
    for quiet in ({}, {**ranks, **OLD}, {**ranks, **expandable}):
        assert NCCL2 not in run(runtime, program, **quiet).stderr
