# SPDX-License-Identifier: Apache-2.0
"""What an allocator can change about a step, measured inside the process that makes the steps: time
in kernels, how much of the time the GPU is busy, driver calls and the host's time in them.

Imports nothing of Ductile: a process on PyTorch's own allocator has to be as its users have it.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

Row = dict[str, Any]
Span = tuple[int, int]  # begin and end, ns
DUCTILE = {  # of Ductile's statistics
    "allocs": "allocs",
    "driver_calls": "driver_calls",
    "driver_ns": "driver_host_ns",
    "creates": "creates",
    "maps": "maps",
    "unmaps": "unmaps",
    "moved": "recycled_handles",
    "compacted": "compacted_handles",
    "readdressed": "readdressed_handles",
    "host_waits": "stream_syncs",
    "event_waits": "event_waits",
    "missed": "slow_allocs",
}
PYTORCH = {  # of PyTorch's, where its own allocator serves
    "allocs": "allocation.all.allocated",
    "creates": "num_device_alloc",
    "unmaps": "num_device_free",
    "host_waits": "num_sync_all_streams",
}
MEMORY_CALLS = ("cudaMalloc", "cudaFree", "cuMem")
LONG_GAP_NS = 50_000
PAIR_SIZES = (512, 20 << 10, 900 << 10, 3 << 20, 30 << 20)


# ---- Counters ----------------------------------------------------------------------------------


def own_allocators() -> list[Any]:
    """Of Ductile."""
    ductile = sys.modules.get("ductile_gpu")
    return ductile.allocators() if ductile else []


def time_driver_calls() -> None:
    """From here on Ductile says how long it was in the driver."""
    for allocator in own_allocators():
        allocator.time_driver_calls()


def counters(device: str) -> Row:
    """What only rises, of whatever allocator serves this process."""
    if device == "cpu":
        return {"allocs": 0}
    own = [allocator.stats() for allocator in own_allocators()]
    if own:
        return {name: sum(getattr(s, field) for s in own) for name, field in DUCTILE.items()}
    import torch

    stats = torch.cuda.memory_stats()
    return {name: stats.get(field, 0) for name, field in PYTORCH.items()}


def since(before: Row, after: Row) -> Row:
    return {name: value - before.get(name, 0) for name, value in after.items()}


def pair_ns(device: str, rounds: int = 2000) -> float:
    """An allocation that a cache serves and its free, through PyTorch's own functions: the same
    Python around every allocator. Nanoseconds, the median of several sizes."""
    if device == "cpu":
        return 0.0
    import torch

    take = torch._C._cuda_cudaCachingAllocator_raw_alloc
    give = torch._C._cuda_cudaCachingAllocator_raw_delete
    stream = torch.cuda.current_stream().cuda_stream
    found = []
    for size in PAIR_SIZES:
        give(take(size, stream))
        began = time.perf_counter_ns()
        for _ in range(rounds):
            give(take(size, stream))
        found.append((time.perf_counter_ns() - began) / rounds)
    return round(statistics.median(found), 1)


# ---- What the GPU does ---------------------------------------------------------------------------


def joined(spans: Iterable[Span]) -> list[Span]:
    """The same time without overlaps, in order."""
    found: list[Span] = []
    for begin, end in sorted(spans):
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((begin, end))
    return found


def gpu_figures(spans: list[Span]) -> Row:
    """Of everything that the GPU did: time in it, its share of the whole, and the gaps."""
    busy = joined(spans)
    if not busy:
        return {"kernels": 0, "kernel_ns": 0, "busy_ns": 0, "span_ns": 0, "long_gap_ns": 0}
    gaps = [later[0] - earlier[1] for earlier, later in zip(busy, busy[1:])]
    return {
        "kernels": len(spans),
        "kernel_ns": sum(end - begin for begin, end in spans),
        "busy_ns": sum(end - begin for begin, end in busy),
        "span_ns": busy[-1][1] - busy[0][0],
        "long_gap_ns": sum(gap for gap in gaps if gap >= LONG_GAP_NS),
    }


def _spans(event: Any) -> Span:
    return event.start_ns(), event.start_ns() + event.duration_ns()


def profiled(device: str, work: Callable[[], Any]) -> Row:
    """Some work under PyTorch's profiler, which looks at the GPU and at calls of the runtime: it
    slows the host, so host times of these steps are of no use, but those of single calls."""
    if device == "cpu":
        work()
        return {**gpu_figures([]), "memory_calls": 0, "memory_call_ns": 0}
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        work()
    events = list(profiler.profiler.kineto_results.events())
    on_gpu = [_spans(e) for e in events if e.device_type() == DeviceType.CUDA]
    calls = [
        e.duration_ns() for e in events
        if e.device_type() != DeviceType.CUDA and e.name().startswith(MEMORY_CALLS)
        and not e.name().startswith(("cudaMallocHost", "cudaFreeHost"))
    ]  # fmt: skip
    return {**gpu_figures(on_gpu), "memory_calls": len(calls), "memory_call_ns": sum(calls)}


def a_step(found: Row, steps: int) -> Row:
    """The figures of so many steps, for one; times in milliseconds."""
    per = {}
    for name, value in found.items():
        if name.endswith("_ns"):
            per[name.removesuffix("_ns") + "_ms"] = round(value / steps / 1e6, 4)
        else:
            per[name] = round(value / steps, 3)
    return per
