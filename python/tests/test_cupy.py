# SPDX-License-Identifier: Apache-2.0
"""CuPy: stream-correct memory, CuPy's own exceptions. Without a GPU on the virtual one."""

from __future__ import annotations

import gc

import pytest

cupy = pytest.importorskip("cupy", exc_type=ImportError)

import ductile_gpu
import ductile_gpu.cupy as adapter

MIB = 1 << 20

SPIN = """
extern "C" __global__ void spin(long long n, const int *in, int *out) {
    long long start = clock64();
    while (clock64() - start < n) {
    }
    out[threadIdx.x] = in[threadIdx.x];
}
"""


def test_memory_lives_as_long_as_what_points_to_it(allocator):
    pointer = adapter._allocate(allocator, MIB, 0, 0)
    assert pointer.ptr % 512 == 0
    assert pointer.mem.size == MIB
    view = pointer + 4096
    del pointer
    assert allocator.stats().live_blocks == 1
    del view
    assert allocator.stats().live_blocks == 0


def test_memory_belongs_to_the_stream_it_was_made_on(allocator, gpu):
    stream = gpu.stream()
    pointer = adapter._allocate(allocator, MIB, 0, stream)
    assert allocator.query(pointer.ptr).stream == stream
    del pointer
    assert allocator.alloc(MIB, stream) != 0
    assert allocator.stats().reserved_bytes == 2 * MIB


def test_out_of_memory_is_cupys_own_exception(allocator):
    with pytest.raises(cupy.cuda.memory.OutOfMemoryError) as caught:
        adapter._allocate(allocator, 4096 * MIB, 0, 0)
    assert isinstance(caught.value.__cause__, ductile_gpu.OutOfMemory)


def test_no_bytes_are_no_trouble(allocator):
    assert adapter._allocate(allocator, 0, 0, 0).ptr == 0


def test_memory_that_outlives_its_allocator_is_let_go(gpu):
    allocator = gpu.allocator()
    pointer = adapter._allocate(allocator, MIB, 0, 0)
    allocator.close()
    del pointer
    gc.collect()


def test_enabling_changes_cupys_allocator_and_disabling_restores_it(monkeypatch):
    monkeypatch.setattr(adapter, "release_own_cache", lambda: 0)  # needs a device
    before = cupy.cuda.get_allocator()
    adapter.enable()
    adapter.enable()
    assert adapter.is_enabled()
    assert cupy.cuda.get_allocator() is adapter.malloc
    adapter.disable()
    assert cupy.cuda.get_allocator() == before
    assert not adapter.is_enabled()


# ---- On hardware -------------------------------------------------------------------------------


@pytest.fixture
def enabled():
    adapter.enable()
    yield ductile_gpu.shared(0)
    gc.collect()
    adapter.disable()


@pytest.mark.gpu
def test_arrays_compute_in_memory_of_ductile(enabled):
    a = cupy.arange(1 << 20, dtype=cupy.float32)
    b = a * 2 + 1
    assert float(b.sum()) == pytest.approx(float((1 << 20) ** 2), rel=1e-6)
    assert enabled.query(a.data.ptr).requested_size == a.nbytes
    before = enabled.stats().live_blocks
    del a, b
    assert enabled.stats().live_blocks <= before - 2


@pytest.mark.gpu
def test_each_stream_reuses_its_own_memory(enabled):
    with cupy.cuda.Stream(non_blocking=True) as stream:
        a = cupy.zeros(1 << 20, dtype=cupy.float32)
        address = a.data.ptr
        assert enabled.query(address).stream == stream.ptr
        del a
        b = cupy.ones(1 << 20, dtype=cupy.float32)
        assert b.data.ptr == address
        stream.synchronize()
        assert float(b.sum()) == 1 << 20
        del b
        enabled.stream_done(stream)


@pytest.mark.gpu
def test_an_array_used_on_another_stream_waits_for_it(enabled):
    first = cupy.cuda.Stream(non_blocking=True)
    second = cupy.cuda.Stream(non_blocking=True)
    with first:
        a = cupy.full(1 << 22, 7, dtype=cupy.int32)
    first.synchronize()
    spin = cupy.RawKernel(SPIN, "spin")
    with second:
        out = cupy.zeros(32, dtype=cupy.int32)
        spin((1,), (32,), (cupy.int64(400_000_000), a, out))
    ductile_gpu.record_stream(a, second)
    del a
    with first:
        for value in range(8):
            cupy.full(1 << 22, value, dtype=cupy.int32)
    first.synchronize()
    second.synchronize()
    assert out.get().tolist() == [7] * 32
    del out
    for stream in (first, second):
        enabled.stream_done(stream)


@pytest.mark.gpu
def test_running_out_on_the_device_is_cupys_exception(enabled):
    with pytest.raises(cupy.cuda.memory.OutOfMemoryError):
        cupy.empty(1 << 45, dtype=cupy.uint8)
    assert int(cupy.ones(16).sum()) == 16
