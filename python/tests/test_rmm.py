# SPDX-License-Identifier: Apache-2.0
"""RMM: the stream of both calls counts. Without a GPU on the virtual one."""

from __future__ import annotations

import gc
import logging

import pytest

rmm = pytest.importorskip("rmm", exc_type=ImportError)

from rmm.pylibrmm.stream import Stream

import ductile_gpu
import ductile_gpu.rmm as adapter

MIB = 1 << 20


class _Stream:
    def __init__(self, handle: int) -> None:
        self.handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, self.handle)


def test_a_resource_allocates_and_frees(allocator):
    resource = adapter.DuctileMemoryResource(allocator)
    address = resource.allocate(MIB)
    assert allocator.query(address).requested_size == MIB
    resource.deallocate(address, MIB)
    assert allocator.stats().live_blocks == 0


def test_memory_belongs_to_the_stream_of_the_allocation(allocator, gpu):
    resource = adapter.DuctileMemoryResource(allocator)
    stream = gpu.stream()
    address = resource.allocate(MIB, Stream(_Stream(stream)))
    assert allocator.query(address).stream == stream
    resource.deallocate(address, MIB, Stream(_Stream(stream)))
    assert allocator.stats().free_bytes >= MIB


def test_a_free_on_another_stream_waits_for_its_work(allocator, gpu):
    gpu.set_schedule("lazy")
    resource = adapter.DuctileMemoryResource(allocator)
    own, other = gpu.stream(), gpu.stream()
    address = resource.allocate(MIB, Stream(_Stream(own)))
    gpu.launch(other, reads=[(address, MIB)])
    resource.deallocate(address, MIB, Stream(_Stream(other)))
    assert allocator.stats().pending_bytes == MIB
    gpu.sync(other)


@pytest.mark.parametrize("is_newer", [False, True], ids=["26.10", "newer"])
def test_both_forms_of_rmms_callbacks_are_served(allocator, gpu, is_newer):
    """After 26.10 the stream comes first, and an alignment last."""
    allocate, deallocate = adapter._functions_of(allocator)
    stream = _Stream(gpu.stream())
    address = allocate(stream, MIB, 256) if is_newer else allocate(MIB, stream)
    assert allocator.query(address).stream == stream.handle
    assert allocator.query(address).requested_size == MIB
    if is_newer:
        with pytest.raises(ValueError, match="multiples of 512"):
            allocate(stream, MIB, 1024)
        deallocate(stream, address, MIB, 256)
    else:
        deallocate(address, MIB, stream)
    assert allocator.stats().live_blocks == 0


def test_out_of_memory_is_a_memory_error(allocator):
    resource = adapter.DuctileMemoryResource(allocator)
    with pytest.raises(MemoryError, match="out_of_memory"):
        resource.allocate(4096 * MIB)
    resource.deallocate(resource.allocate(MIB), MIB)


def test_a_deallocation_never_raises(allocator, caplog):
    resource = adapter.DuctileMemoryResource(allocator)
    address = resource.allocate(MIB)
    resource.deallocate(address, MIB)
    with caplog.at_level(logging.ERROR, "ductile_gpu"):
        resource.deallocate(address, MIB)
    assert "no live block starts at the address" in caplog.text


def test_enabling_sets_the_devices_resource_and_disabling_restores_it(shared):
    before = rmm.mr.get_per_device_resource(0)
    try:
        adapter.enable(0)
        assert adapter.is_enabled()
        assert rmm.mr.get_per_device_resource(0) is adapter.resource(0)
    finally:
        adapter.disable()
        adapter._resources.clear()
    assert rmm.mr.get_per_device_resource(0) is before


@pytest.mark.gpu
def test_buffers_hold_data_in_memory_of_ductile():
    adapter.enable(0)
    try:
        buffer = rmm.DeviceBuffer.to_device(bytes(range(256)) * 4096)
        assert ductile_gpu.shared(0).query(buffer.ptr).requested_size == buffer.size
        assert buffer.copy_to_host().tobytes() == bytes(range(256)) * 4096
        del buffer
        gc.collect()
    finally:
        adapter.disable()


def test_a_resource_is_the_upstream_of_rmms_adaptors(allocator):
    resource = adapter.DuctileMemoryResource(allocator)
    counting = rmm.mr.StatisticsResourceAdaptor(resource)
    address = counting.allocate(MIB)
    assert allocator.query(address).requested_size == MIB
    counting.deallocate(address, MIB)
    assert counting.allocation_counts.peak_bytes == MIB
    assert resource.allocator is allocator
