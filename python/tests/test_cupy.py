# SPDX-License-Identifier: Apache-2.0
"""CuPy: stream-correct memory, CuPy's own exceptions. Without a GPU on the virtual one; what CuPy
computes in that memory beside other libraries is looked at by together.py."""

from __future__ import annotations

import gc

import pytest

cupy = pytest.importorskip("cupy", exc_type=ImportError)

import ductile_gpu
import ductile_gpu.cupy as adapter

MIB = 1 << 20


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
def test_running_out_on_the_device_is_cupys_exception(enabled):
    with pytest.raises(cupy.cuda.memory.OutOfMemoryError):
        cupy.empty(1 << 45, dtype=cupy.uint8)
    assert int(cupy.ones(16).sum()) == 16
