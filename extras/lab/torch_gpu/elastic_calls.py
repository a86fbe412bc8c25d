# SPDX-License-Identifier: Apache-2.0
"""Times of elastic ranges, a vector that grows, and a graph beside units that come and go.

    python elastic_calls.py

Each call is made from Python, by ctypes, beside PyTorch's own allocator. A line for each figure;
ends with status 1 when contents differ. Needs cuda.bindings. 40 seconds.
"""

from __future__ import annotations

import ctypes
import os
import platform
import statistics
import sys
import time
from collections.abc import Iterable
from typing import Any, Callable

import torch
from child import timed
from cuda.bindings import runtime

import ductile_gpu
import ductile_gpu.torch as memory
from ductile_gpu.interface import lib, tag_allocators

MIB, GIB = 1 << 20, 1 << 30
UNIT = 64 * MIB
LAUNCHES = 10_000


def say(name: str, text: str) -> None:
    print(f"{name:44} {text}", flush=True)


def in_us(times: Iterable[float]) -> str:
    us = sorted(1e6 * t for t in times)
    middle = statistics.median(us)
    return f"least {us[0]:.1f} us, median {middle:.1f}, most {us[-1]:.1f} ({len(us)} times)"


def counted(a: ductile_gpu.Allocator, call: Callable[..., Any], *given: Any) -> tuple[Any, ...]:
    """The time, and how many handles were created, mapped and unmapped."""
    before = a.stats()
    took = timed(call, *given)
    after = a.stats()
    names = ("creates", "maps", "unmaps")
    return (took, *(getattr(after, name) - getattr(before, name) for name in names))


def of_kind(rows: list[tuple[Any, ...]], *calls: int) -> str:
    found = [row[0] for row in rows if row[1:] == calls]
    return in_us(found) if found else f"none: {rows}"


def dedicated(a: ductile_gpu.Allocator, size: int) -> int:
    out = ctypes.c_ulonglong()
    assert lib.ductile_alloc_dedicated(a.pointer, size, None, ctypes.byref(out)) == 0
    return out.value


def fill_cache(a: ductile_gpu.Allocator, n_bytes: int) -> int:
    """So much in handles of 64 MiB, by dedicated blocks that are freed."""
    torch.cuda.synchronize()
    a.trim()
    blocks = [dedicated(a, UNIT) for _ in range(n_bytes // UNIT + 2)]
    for block in blocks:
        a.free(block)
    a.free(dedicated(a, 2 * MIB))  # records the mark that proves the others
    torch.cuda.synchronize()
    a.trim(1 << 40)
    return a.stats().cached_bytes


def units(a: ductile_gpu.Allocator) -> None:
    of = a.elastic("4G", UNIT)
    rows = [counted(a, of.commit, i * UNIT, UNIT) for i in range(64)]
    say("64 MiB, new: created and mapped", of_kind(rows, 1, 1, 0))
    of.free()
    say("in the cache", f"{fill_cache(a, 4 * GIB) // MIB} MiB")
    of = a.elastic("4G", UNIT)
    rows = [counted(a, of.commit, i * UNIT, UNIT) for i in range(64)]
    say("64 MiB, cached: mapped", of_kind(rows, 0, 1, 0))
    both = [(timed(of.decommit, 0, UNIT), timed(of.commit, 0, UNIT)) for _ in range(1000)]
    say("64 MiB, decommit", in_us(gives for gives, _ in both))
    say("64 MiB, committed in place", in_us(takes for _, takes in both))
    of.free()


def eight_gib(a: ductile_gpu.Allocator) -> None:
    of = a.elastic("8G", UNIT)
    new = 1e3 * timed(of.commit, 0, 8 * GIB)
    say("8 GiB in 64 MiB units, new, one call", f"{new:.2f} ms")
    both = [(timed(of.decommit, 0, 8 * GIB), timed(of.commit, 0, 8 * GIB)) for _ in range(20)]
    say("8 GiB, decommit of 128 units", in_us(gives for gives, _ in both))
    say("8 GiB, committed in place", in_us(takes for _, takes in both))
    of.free()
    for _ in range(3):
        cached = fill_cache(a, 8 * GIB)
        of = a.elastic("8G", UNIT)
        took, *calls = counted(a, of.commit, 0, 8 * GIB)
        name = f"8 GiB in 64 MiB units, {cached / GIB:.1f} GiB cached"
        say(name, f"{1e3 * took:.2f} ms; created, mapped, unmapped: {calls}")
        of.free()
    torch.cuda.synchronize()
    of = a.elastic("8G", UNIT)
    took, *calls = counted(a, of.commit, 0, 8 * GIB)
    name = "8 GiB in 64 MiB units, out of an ended range"
    say(name, f"{1e3 * took:.2f} ms; created, mapped, unmapped: {calls}")
    of.free()
    torch.cuda.synchronize()
    a.trim()
    of = a.elastic("8G")
    small = 1e3 * timed(of.commit, 0, 8 * GIB)
    say("8 GiB in 2 MiB units, new, one call", f"{small:.2f} ms")
    of.free()


def beside_a_kernel(a: ductile_gpu.Allocator) -> None:
    stream = torch.cuda.Stream()
    of = a.elastic("8G", UNIT, stream)
    of.commit(0, "8G")
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(int(2e9))
        done = torch.cuda.Event()
        done.record(stream)
    gave, took = timed(of.decommit, 0, "8G"), timed(of.commit, 0, "8G")
    text = f"{1e6 * gave:.0f} us; committed again in place {1e6 * took:.0f} us"
    say("8 GiB decommitted under a kernel", f"{text}; the kernel still runs: {not done.query()}")
    say("the kernel went on for", f"{timed(done.synchronize):.2f} s")
    of.free()


def checked(answer: Any) -> Any:
    status, *rest = answer
    if int(status):
        sys.exit(f"the driver refuses: {status}")
    return rest[0] if rest else None


def grow_by_copy(sizes: list[int]) -> int:
    pointer, have, most = 0, 0, 0
    kind = runtime.cudaMemcpyKind.cudaMemcpyDeviceToDevice
    for size in sizes:
        new = checked(runtime.cudaMalloc(size))
        if have:
            checked(runtime.cudaMemcpy(new, pointer, have, kind))
            torch.cuda.synchronize()
            checked(runtime.cudaFree(pointer))
        most = max(most, have + size)
        pointer, have = new, size
    checked(runtime.cudaFree(pointer))
    return most


def vector(a: ductile_gpu.Allocator) -> None:
    in_steps = [i * GIB for i in range(1, 33)]
    for name, sizes in (("steps of 1 GiB", in_steps), ("doubling", [GIB << i for i in range(6)])):
        torch.cuda.synchronize()
        a.trim()
        rows = memory.elastic(GIB // 4, 32, torch.float32)
        took = 0.0
        for i, size in enumerate(sizes):
            took += timed(rows.resize, size // GIB)
            rows.view()[-1].fill_(float(i))
        last = [rows.view()[size // GIB - 1, 7].item() for size in sizes]
        assert last == [float(i) for i in range(len(sizes))], last
        text = f"{1e3 * took:.1f} ms, at most 32 GiB held, nothing copied"
        say(f"32 GiB, {name}: elastic, host time of all", text)
        del rows
        torch.cuda.synchronize()
        a.trim()
        before = time.perf_counter()
        most = grow_by_copy(sizes)
        text = f"{1e3 * (time.perf_counter() - before):.1f} ms, {most / GIB:.0f} GiB at most"
        say(f"32 GiB, {name}: cudaMalloc and copy", text)


def graph_beside_units(a: ductile_gpu.Allocator) -> None:
    rows = memory.elastic(MIB, 512, torch.int32, rows=4, unit="4M")
    other, part, graph = torch.cuda.Stream(), rows.view(), torch.cuda.CUDAGraph()
    part.zero_()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        part.add_(1)
    torch.cuda.synchronize()
    a.trim()
    a.set_limit(1300 * MIB)
    before, first, n_taken = time.perf_counter(), a.stats(), 0
    for i in range(LAUNCHES):
        graph.replay()
        rows.resize(4 + (i * 37) % 300)
        rows.view()[4:6].fill_(-i)
        if i % 7 == 0:
            rows.resize(4)
            a.free(a.alloc((64 + i % 512) * MIB, other))
            n_taken += 1
        if i % 1000 == 999:
            assert bool((part == i + 1).all()), i
    wrong, last = int((part != LAUNCHES).sum()), a.stats()
    a.set_limit(None)
    counts = {name: getattr(last, name) - getattr(first, name) for name in ("creates", "unmaps")}
    say(
        "10,000 launches of one graph",
        f"{wrong} of {part.numel()} elements wrong; {n_taken} requests of another stream, under a "
        f"limit of 1300 MiB: {counts}; {time.perf_counter() - before:.1f} s",
    )
    assert wrong == 0


def main() -> None:
    a = tag_allocators(0)[0]
    torch.zeros(1, device="cuda")
    commit = os.environ.get("DUCTILE_COMMIT", "unknown")
    print(f"# {torch.cuda.get_device_name()}, torch {torch.__version__}", end="")
    print(f", Python {platform.python_version()}, commit {commit}")
    for step in (units, eight_gib, beside_a_kernel, vector, graph_beside_units):
        step(a)


if __name__ == "__main__":
    main()
