# SPDX-License-Identifier: Apache-2.0
"""What PyTorch offers around memory, each tried once under Ductile on a GPU.

Each feature has a process of its own, with a time limit. Prints one line per feature; ends with
status 1 if one failed.
"""

from __future__ import annotations

import pickle
import re
import sys
import tempfile
from pathlib import Path
from typing import Callable

sys.path.append(str(Path(__file__).resolve().parents[3] / "python" / "tests"))

import cases
import child
import history
import torch

import ductile_gpu.torch

GIVEN = cases.parser(__doc__, seconds=120, workers=4).parse_args()
if GIVEN.only:
    ductile_gpu.torch.enable("full")

FEATURES: list[Callable[[], None]] = []
MIB = 1 << 20
BESIDE = 32  # MiB that Ductile may create beyond a request with room to spare


def feature(function: Callable[[], None]) -> Callable[[], None]:
    FEATURES.append(function)
    return function


@feature
def ductile_is_the_allocator() -> None:
    torch.zeros(1, device="cuda")
    assert torch.cuda.get_allocator_backend() == "ductile"
    assert ductile_gpu.torch.is_active()


@feature
def too_late_is_said() -> None:
    ductile_gpu.torch.enable()  # a second time does nothing


@feature
def statistics_follow_a_tensor() -> None:
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    x = torch.empty(10 * MIB, dtype=torch.uint8, device="cuda")
    assert torch.cuda.memory_allocated() - before == 10 * MIB
    del x
    assert torch.cuda.memory_allocated() == before
    assert torch.cuda.max_memory_allocated() == before + 10 * MIB
    assert torch.cuda.memory_reserved() >= before
    stats = torch.cuda.memory_stats()
    counts = ("allocation", "segment", "active", "inactive_split")
    sums = ("allocated_bytes", "reserved_bytes", "active_bytes", "inactive_split_bytes")
    for stat in (*counts, *sums, "requested_bytes"):
        for pool in ("all", "small_pool", "large_pool"):
            for kind in ("current", "peak", "allocated", "freed"):
                assert f"{stat}.{pool}.{kind}" in stats
    assert "GPU reserved memory" in torch.cuda.memory_summary()
    torch.cuda.reset_accumulated_memory_stats()
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == 0


@feature
def out_of_memory_is_pytorchs() -> None:
    seen: list[tuple[int, ...]] = []
    torch._C._cuda_attach_out_of_memory_observer(lambda *values: seen.append(values))
    before = torch.cuda.memory_stats()["num_ooms"]
    try:
        torch.empty(1 << 42, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError as error:
        text = str(error)
    assert re.search(
        r"CUDA out of memory\. Tried to allocate 4096\.00 GiB\. GPU 0 has a total capacity of "
        r"[\d.]+ GiB of which [\d.]+ GiB is free\.", text
    ), text  # fmt: skip
    assert re.search(r"[\d.]+ \w+ is allocated by PyTorch, and", text), text
    assert torch.cuda.memory_stats()["num_ooms"] == before + 1
    assert len(seen) == 1
    print("    " + text.replace("\n", "\n    "))
    torch.empty(MIB, device="cuda")


@feature
def a_fraction_is_a_cap() -> None:
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 256 * MIB) / total)
    try:
        kept = [torch.empty(40 * MIB, dtype=torch.uint8, device="cuda") for _ in range(4)]
        try:
            kept += [torch.empty(160 * MIB, dtype=torch.uint8, device="cuda")]
            raise AssertionError("the cap did not hold")
        except torch.OutOfMemoryError:
            pass
        del kept
        torch.empty(200 * MIB, dtype=torch.uint8, device="cuda")
        assert 0 < torch.cuda.get_per_process_memory_fraction() < 1
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


@feature
def a_graphs_memory_is_counted() -> None:
    """While it lives and after, with a result that outlives it."""

    def count() -> list[int]:
        stats = torch.cuda.memory_stats()
        return [stats[f"{k}.all.current"] for k in ("active", "active_bytes", "reserved_bytes")]

    side = torch.cuda.Stream()
    for size, native_held, native_left in (
        (512, 2, 2),
        (MIB, 4, 2),
        (MIB + 512, 20, 20),
        (10 * MIB - 512, 40, 20),
        (10 * MIB + 512, 36, 12),
    ):
        torch.cuda.empty_cache()
        with torch.cuda.stream(side):
            given = torch.ones(size // 4, device="cuda")
            before = count()
            graph = torch.cuda.CUDAGraph()
            graph.capture_begin()
            result = given.clone()
            for _ in range(5):
                result = result.clone() + 1
            graph.capture_end()
        torch.cuda.synchronize()
        for _ in range(2):
            blocks, in_use, held = (now - then for now, then in zip(count(), before))
            assert (blocks, in_use) == (3, size + 1024)  # two are the generator's
            assert held <= native_held * MIB, (size, held)
            graph.replay()
            assert float(result.sum(dtype=torch.float64)) == 6 * (size // 4)
            torch.cuda.empty_cache()
        del graph
        torch.cuda.empty_cache()
        blocks, in_use, held = (now - then for now, then in zip(count(), before))
        assert (blocks, in_use) == (1, size)
        # what is free in a handle that the result's block reaches into cannot go back
        assert held <= (native_left + BESIDE) * MIB, (size, held)
        del given, result
        torch.cuda.synchronize()


@feature
def empty_cache_gives_back() -> None:
    x = torch.empty(512 * MIB, dtype=torch.uint8, device="cuda")
    held = torch.cuda.memory_reserved()
    del x
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() <= held - 500 * MIB


@feature
def snapshots_and_history() -> None:
    from torch.cuda import _memory_viz as viz

    torch.cuda.memory._record_memory_history(max_entries=100000)
    try:
        kept = []
        side = torch.cuda.Stream()
        for i in range(40):
            x = torch.randn((i + 1) * 100000, device="cuda")
            if i % 5 == 0:
                with torch.cuda.stream(side):
                    side.wait_stream(torch.cuda.current_stream())
                    y = x * 2
                    x.record_stream(side)
                    y.record_stream(torch.cuda.default_stream())
            if i % 3 == 0:
                kept.append(x)
        del x, y
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "snapshot.pickle"
            torch.cuda.memory._dump_snapshot(str(path))
            snapshot = pickle.loads(path.read_bytes())
    finally:
        torch.cuda.memory._record_memory_history(None)
    history.replay(snapshot)
    viz.segsum(snapshot)
    viz.trace(snapshot)
    assert "html" in viz.trace_plot(snapshot)
    actions = {entry["action"] for entry in snapshot["device_traces"][0]}
    assert {"alloc", "free_requested", "free_completed"} <= actions, actions
    assert actions & {"segment_map", "segment_alloc"}, actions
    frames = [e["frames"] for e in snapshot["device_traces"][0] if e["action"] == "alloc"]
    assert any(frame["filename"].endswith("features.py") for frame in frames[-1])
    assert kept


@feature
def record_stream_keeps_a_block() -> None:
    side = torch.cuda.Stream()
    for cycles in (1000, 1_000_000_000):  # the first time kernels are loaded, which waits
        x = torch.ones(1 << 20, device="cuda")
        torch.cuda.synchronize()
        address = x.data_ptr()
        with torch.cuda.stream(side):
            torch.cuda._sleep(cycles)
            y = x + 1
            x.record_stream(side)
        del x
        z = torch.zeros(1 << 20, device="cuda")
        is_running = not side.query()
        assert not is_running or z.data_ptr() != address
    assert is_running
    torch.cuda.synchronize()
    assert float(y.sum()) == 2 * (1 << 20)


@feature
def graphs_replay() -> None:
    static = torch.randn(1024, 1024, device="cuda")

    def work() -> tuple[torch.Tensor, ...]:
        out = (static @ static).relu()
        inner = out * 2
        return out, inner, inner.sum()

    graph, (out, inner, total) = child.captured(work)
    noise = [torch.full((1024, 1024), 7.0, device="cuda") for _ in range(50)]
    torch.cuda.empty_cache()
    for _ in range(20):
        static.normal_()
        graph.replay()
        noise[0].fill_(3.0)
        expected = ((static @ static).relu() * 2).sum()
        assert torch.allclose(total, expected, rtol=1e-3), (total, expected)
    second = torch.cuda.CUDAGraph()
    with torch.cuda.graph(second, pool=graph.pool()):
        other = (static + 1).sum()
    second.replay()
    torch.cuda.synchronize()
    assert torch.allclose(other, (static + 1).sum(), rtol=1e-3, atol=1.0)
    del graph, second, out, inner, total, other
    torch.cuda.empty_cache()


@feature
def training_under_a_graph() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 1))
    model.cuda()
    graphed = torch.cuda.make_graphed_callables(model, (torch.randn(64, 512, device="cuda"),))
    optimizer = torch.optim.SGD(graphed.parameters(), lr=1e-3)
    losses = []
    for _ in range(10):
        optimizer.zero_grad(set_to_none=True)
        loss = graphed(torch.randn(64, 512, device="cuda")).pow(2).mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    assert all(x == x for x in losses)


@feature
def pools_of_the_user() -> None:
    pool = torch.cuda.MemPool()
    before = pool.use_count()
    with torch.cuda.use_mem_pool(pool):
        x = torch.zeros(3 * MIB, dtype=torch.uint8, device="cuda")
        y = torch.zeros(MIB, dtype=torch.uint8, device="cuda")
    z = torch.zeros(MIB, dtype=torch.uint8, device="cuda")
    assert pool.use_count() == before
    addresses = [
        block["address"]
        for segment in pool.snapshot()
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    ]
    assert sorted(addresses) == sorted([x.data_ptr(), y.data_ptr()])
    assert z.data_ptr() not in addresses
    del x, y, pool
    torch.cuda.empty_cache()


@feature
def pools_with_an_allocator_of_their_own() -> None:
    pool = ductile_gpu.torch.mem_pool()
    with torch.cuda.use_mem_pool(pool):
        x = torch.full((MIB,), 5, dtype=torch.uint8, device="cuda")
    assert int(x.sum()) == 5 * MIB
    assert torch.cuda.memory_allocated() >= MIB
    del x
    del pool


@feature
def compiled_with_reduced_overhead() -> None:
    @torch.compile(mode="reduce-overhead")
    def step(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.relu(x @ w).sum(0)

    w = torch.randn(256, 256, device="cuda")
    for i in range(12):
        x = torch.randn(128, 256, device="cuda")
        torch.compiler.cudagraph_mark_step_begin()
        got = step(x, w).clone()
        assert torch.allclose(got, torch.relu(x @ w).sum(0), rtol=1e-3, atol=1e-2), i


@feature
def cudnn_benchmark_asks_for_the_largest_block() -> None:
    torch.backends.cudnn.benchmark = True
    convolution = torch.nn.Conv2d(16, 32, 3).cuda()
    convolution(torch.randn(8, 16, 64, 64, device="cuda")).sum().backward()
    torch.backends.cudnn.benchmark = False


@feature
def the_profiler_sees_memory() -> None:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        x = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
        del x
    used = [e.device_memory_usage for e in profiled.events() if "empty" in e.name]
    assert any(value >= 64 * MIB for value in used), used


@feature
def caching_can_be_switched_off() -> None:
    torch.cuda.caching_allocator_enable(False)
    x = torch.ones(MIB, device="cuda")
    torch.cuda.caching_allocator_enable(True)
    assert float(x.sum()) == MIB
    del x


@feature
def raw_allocations() -> None:
    address = torch.cuda.caching_allocator_alloc(12345)
    torch.cuda.caching_allocator_delete(address)


@feature
def a_tensors_block() -> None:
    x = torch.empty(1000, dtype=torch.uint8, device="cuda")
    block = ductile_gpu.torch.block_of(x[10:])
    assert block.address == x.data_ptr()
    assert block.size == 1024
    assert block.requested_size == 1000
    assert block.hole >= block.size
    try:
        ductile_gpu.torch.block_of(torch.zeros(1))
        raise AssertionError("a tensor of the host has no block")
    except ValueError:
        pass


if __name__ == "__main__":
    if GIVEN.only:
        torch.cuda.init()
    sys.exit(cases.main(__file__, FEATURES, GIVEN))
