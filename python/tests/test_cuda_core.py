# SPDX-License-Identifier: Apache-2.0
"""cuda.core's memory resource. Its buffers need a driver; without one something else stands in."""

from __future__ import annotations

import logging
from typing import Any

import pytest

pytest.importorskip("cuda.core")

import ductile_gpu.cuda_core
from ductile_gpu._process import _share


class Stream:
    """As cuda.core's streams say what they are."""

    def __init__(self, handle: int) -> None:
        self.handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, self.handle)


class StandIn:
    """Remembers how a buffer was made."""

    def __init__(self, pointer: int, size: int, mr: Any, stream: Any) -> None:
        self.pointer, self.size, self.resource, self.stream = pointer, size, mr, stream

    @classmethod
    def from_handle(cls, pointer: int, size: int, *, mr: Any, stream: Any) -> StandIn:
        return cls(pointer, size, mr, stream)


@pytest.fixture
def resource(allocator, monkeypatch):
    monkeypatch.setattr(ductile_gpu.cuda_core, "Buffer", StandIn)
    return ductile_gpu.cuda_core.DuctileMemoryResource(allocator)


def test_a_buffer_is_a_block_of_its_stream(resource, allocator, gpu):
    stream = Stream(gpu.stream())
    buffer = resource.allocate(5000, stream=stream)
    block = allocator.query(buffer.pointer)
    assert (block.requested_size, block.stream) == (5000, stream.handle)
    assert (buffer.size, buffer.resource, buffer.stream) == (5000, resource, stream)
    resource.deallocate(buffer.pointer, 5000, stream=stream)
    assert allocator.stats().live_blocks == 0


def test_the_closing_stream_is_waited_for(resource, allocator, gpu):
    buffer = resource.allocate(5000, stream=Stream(gpu.stream()))
    resource.deallocate(buffer.pointer, 5000, stream=Stream(gpu.stream()))
    assert allocator.stats().pending_blocks == 1


def test_a_buffer_that_cannot_be_made_leaves_no_block(resource, allocator, monkeypatch):
    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError("no context")

    monkeypatch.setattr(StandIn, "from_handle", refuse)
    with pytest.raises(RuntimeError, match="no context"):
        resource.allocate(5000, stream=Stream(0))
    assert allocator.stats().live_blocks == 0


def test_refusals(resource, caplog):
    with pytest.raises(ductile_gpu.OutOfMemory):
        resource.allocate(1 << 50, stream=Stream(0))
    with caplog.at_level(logging.ERROR, "ductile_gpu"):
        resource.deallocate(12345 << 20, 512, stream=Stream(0))
    assert "free" in caplog.text


def test_what_the_resource_says_of_itself(resource):
    assert isinstance(resource, ductile_gpu.cuda_core.MemoryResource)
    assert (resource.device_id, resource.is_managed) == (0, False)
    assert (resource.is_device_accessible, resource.is_host_accessible) == (True, False)


def test_there_is_one_for_each_device(shared, monkeypatch):
    monkeypatch.setattr(ductile_gpu.cuda_core, "_resources", {})
    first = ductile_gpu.cuda_core.resource(0)
    assert ductile_gpu.cuda_core.resource(0) is first
    assert first._allocator is shared is _share.shared(0)


@pytest.mark.gpu
def test_on_a_gpu():
    from cuda.core import Device

    device = Device(0)
    device.set_current()
    stream = device.create_stream()
    found = ductile_gpu.cuda_core.resource(0)
    device.memory_resource = found
    before = ductile_gpu.shared(0).stats().live_blocks
    buffer = device.allocate(1 << 20, stream=stream)
    assert ductile_gpu.shared(0).query(int(buffer.handle)).requested_size == 1 << 20
    buffer.close(stream)
    stream.sync()
    assert ductile_gpu.shared(0).stats().live_blocks == before
