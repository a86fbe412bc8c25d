# SPDX-License-Identifier: Apache-2.0
"""Objects that stand for memory: neither copied, nor freed under others, nor given cut numbers."""

from __future__ import annotations

import copy
import gc
import itertools
import pickle
import signal
import sys

import pytest
from running import in_child

import ductile_gpu
from ductile_gpu._binding._native import lib
from ductile_gpu._binding._objects import parse_bytes
from ductile_gpu._binding._streams import stream_handle

MIB = 1 << 20


# ---- Copies ------------------------------------------------------------------------------------


def graph_of(gpu):
    stream = gpu.stream()
    with gpu.capture(stream) as graph:
        pass
    return graph


MAKERS = {
    "Allocator": lambda gpu: gpu.allocator(),
    "Buffer": lambda gpu: gpu.allocator().buffer(MIB),
    "VirtualGPU": lambda gpu: gpu,
    "VirtualGraph": graph_of,
}


@pytest.mark.parametrize("spread", [copy.copy, copy.deepcopy, pickle.dumps])
@pytest.mark.parametrize("name", MAKERS)
def test_what_stands_for_memory_is_neither_copied_nor_pickled(gpu, name, spread):
    thing = MAKERS[name](gpu)
    with pytest.raises(TypeError, match=f"{name} cannot be copied or pickled"):
        spread(thing)
    with pytest.raises(TypeError, match="cannot be copied"):
        spread({"inside": [thing]}["inside"][0])
    assert gpu.state().violations == 0


class Round:
    """Holds things that only the collector frees, because it holds itself."""

    def __init__(self, *things):
        self.things = (self, *things)
        for thing in things:
            thing.round = self


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_virtual_gpu_in_a_cycle_ends_behind_all_that_is_on_it(monkeypatch):
    ended = []

    def noted(call, original):
        return lambda pointer: ended.append(call) or original(pointer)

    for call in ("ductile_destroy", "ductile_virtual_graph_destroy", "ductile_virtual_destroy"):
        monkeypatch.setattr(lib, call, noted(call, getattr(lib, call)))
    for order in itertools.permutations(range(3)):
        gpu = ductile_gpu.VirtualGPU("1G")
        things = [gpu, gpu.allocator(), graph_of(gpu)]
        things[1].alloc(MIB)
        Round(*(things[at] for at in order))
        del gpu, things
        gc.collect()
        assert sorted(ended[:2]) == ["ductile_destroy", "ductile_virtual_graph_destroy"]
        assert ended[2:] == ["ductile_virtual_destroy"]
        ended.clear()


def test_a_refused_copy_of_a_buffer_frees_nothing(allocator):
    buffer = allocator.buffer(MIB)
    with pytest.raises(TypeError):
        copy.copy(buffer)
    gc.collect()
    assert allocator.stats().live_blocks == 1


@pytest.mark.parametrize(
    "refuse", [lambda a: a.alloc(1 << 40), lambda a: a.free(1 << 50), lambda a: a.alloc(-1)]
)
def test_a_refusal_reaches_another_process_as_it_is(allocator, refuse):
    with pytest.raises(ductile_gpu.Error) as caught:
        refuse(allocator)
    error = caught.value
    found = pickle.loads(pickle.dumps(error))
    assert type(found) is type(error)
    assert str(found) == str(error)
    assert (found.status, found.name, found.details) == (error.status, error.name, error.details)


# ---- Numbers -----------------------------------------------------------------------------------


def test_a_size_may_be_text(allocator):
    assert allocator.query(allocator.alloc("3M")).requested_size == 3 * MIB
    assert allocator.buffer("1.5K").size == 1536


CALLS = {
    "alloc": lambda a, size: a.alloc(size),
    "buffer": lambda a, size: a.buffer(size),
    "trim": lambda a, size: a.trim(size),
    "set_limit": lambda a, size: a.set_limit(size),
    "set_soft_limit": lambda a, size: a.set_soft_limit(size),
}


@pytest.mark.parametrize(
    "size", [-1, -5, 1 << 64, (1 << 64) + 512, "101%", "17179869184G", "1e400", "-0.1"]
)
@pytest.mark.parametrize("name", CALLS)
def test_a_size_that_c_cannot_take_is_refused_and_changes_nothing(allocator, name, size):
    kept = allocator.alloc(MIB)
    allocator.set_limit("512M")
    before = allocator.stats().reserved_bytes, allocator.limits()
    with pytest.raises(ductile_gpu.InvalidArgument):
        CALLS[name](allocator, size)
    assert (allocator.stats().reserved_bytes, allocator.limits()) == before
    allocator.free(kept)


@pytest.mark.parametrize("size", [1.5, None, b"5", [1]])
def test_what_is_no_size_is_called_so(allocator, size):
    with pytest.raises(TypeError, match="size is an integer, not"):
        allocator.alloc(size)
    with pytest.raises(TypeError, match="size is an integer, not"):
        allocator.trim(size)


def test_the_whole_range_of_sizes_reaches_the_library(allocator):
    with pytest.raises(ductile_gpu.OutOfMemory):
        allocator.alloc((1 << 64) - 1)
    assert parse_bytes("15999999T") == 15999999 << 40


@pytest.mark.parametrize("past", [1 << 64, -(1 << 64)])
def test_an_address_is_not_cut_off(allocator, past):
    address = allocator.alloc(MIB)
    for call in (allocator.free, allocator.query):
        with pytest.raises(ductile_gpu.ForeignPointer):
            call(address + past)
    for call in (allocator.free, allocator.record_stream):
        with pytest.raises(ductile_gpu.ForeignPointer):
            call(address + past, 64)
    assert allocator.query(address).requested_size == MIB
    with pytest.raises(TypeError, match="address is an integer"):
        allocator.free("here")


def test_other_numbers_are_not_cut_off(gpu, allocator):
    for call in (
        lambda: allocator.add_oom_callback(len, priority=1 << 32),
        lambda: allocator.remove_oom_callback(-1),
        lambda: allocator.release_pool((1 << 64, 7)),
        lambda: allocator.set_limit("0%"),
        lambda: gpu.advance(-1),
        lambda: gpu.inject(nth=-1),
        lambda: gpu.fill(allocator.alloc(512), 256, 1),
        lambda: gpu.read_back(allocator.alloc(512), -1),
        lambda: ductile_gpu.VirtualGPU("1G", lag=-1),
        lambda: ductile_gpu.Allocator.borrow(0),
    ):
        with pytest.raises(ductile_gpu.InvalidArgument):
            call()


def test_numbers_of_numpy_are_numbers(allocator, gpu):
    numpy = pytest.importorskip("numpy")
    stream = gpu.stream()
    address = allocator.alloc(numpy.int64(MIB), numpy.uint64(stream))
    assert allocator.query(numpy.uint64(address)).stream == stream
    assert stream_handle(numpy.int32(1)) == 0
    allocator.free(numpy.uint64(address))
    with pytest.raises(TypeError, match="not a CUDA stream"):
        allocator.alloc(512, numpy.float64(1))


@pytest.mark.parametrize("stream", [-1, 1 << 64])
def test_a_number_that_is_no_stream_is_refused(allocator, stream):
    with pytest.raises(TypeError, match="not a CUDA stream"):
        allocator.alloc(512, stream)


# ---- Memory that others read -------------------------------------------------------------------


@pytest.fixture
def readable(allocator, monkeypatch):
    """Pretends that other libraries could read the memory."""
    monkeypatch.setattr(ductile_gpu.Allocator, "is_virtual", False)
    return allocator


def test_a_freed_buffer_is_not_shown_to_others(readable):
    buffer = readable.buffer(MIB)
    assert buffer.__cuda_array_interface__["data"] == (buffer.address, False)
    buffer.free()
    with pytest.raises(BufferError, match="freed"):
        _ = buffer.__cuda_array_interface__
    with pytest.raises(BufferError, match="freed"):
        buffer.__dlpack__(stream=-1)


def test_a_buffer_of_a_closed_allocator_is_not_shown_to_others(gpu, monkeypatch):
    monkeypatch.setattr(ductile_gpu.Allocator, "is_virtual", False)
    with gpu.allocator() as allocator:
        buffer = allocator.buffer(MIB)
    with pytest.raises(BufferError, match="freed"):
        _ = buffer.__cuda_array_interface__


def test_a_buffer_of_no_bytes_is_shown(readable):
    assert readable.buffer(0).__cuda_array_interface__["shape"] == (0,)


def test_memory_is_not_freed_under_a_tensor(readable):
    buffer = readable.buffer(MIB)
    tensors = [buffer.__dlpack__(stream=-1), buffer.__dlpack__(stream=-1)]
    for close in (buffer.free, readable.close):
        with pytest.raises(BufferError, match="delete the tensors"):
            close()
    tensors.pop()
    with pytest.raises(BufferError):
        buffer.free()
    tensors.clear()
    assert readable.stats().live_blocks == 1
    buffer.free()
    assert readable.stats().live_blocks == 0
    assert not readable.closed


def test_the_end_of_with_is_refused_while_there_are_tensors(readable):
    with pytest.raises(BufferError), readable.buffer(MIB) as buffer:
        tensor = buffer.__dlpack__(stream=-1)
    assert readable.query(buffer.address).requested_size == MIB
    del tensor
    buffer.free()


def test_an_error_inside_of_with_is_not_hidden(readable):
    buffer = readable.buffer(MIB)
    tensor = buffer.__dlpack__(stream=-1)
    with pytest.raises(KeyError), readable, buffer:
        raise KeyError
    assert readable.stats().live_blocks == 1
    del buffer, tensor
    gc.collect()
    assert readable.stats().live_blocks == 0


def test_an_error_is_not_hidden_by_the_end_of_its_virtual_gpu(monkeypatch):
    monkeypatch.setattr(ductile_gpu.Allocator, "is_virtual", False)
    gpu = ductile_gpu.VirtualGPU("1G")
    buffer = gpu.allocator().buffer(MIB)
    tensor = buffer.__dlpack__(stream=-1)
    with pytest.raises(KeyError), gpu:
        raise KeyError
    del buffer, tensor
    gpu.close()


@pytest.mark.parametrize("wrong", [None, 3, "f"])
def test_what_is_no_function_is_no_callback(allocator, wrong):
    calls = (
        allocator.add_oom_callback,
        allocator.add_map_callback,
        lambda ask: allocator.pool((1, 1), ask or 0).__enter__(),
    )
    for call in calls:
        with pytest.raises(TypeError, match="is a function, not"):
            call(wrong)


@pytest.mark.parametrize("wrong", [99, None, "never"])
def test_a_schedule_that_is_none_is_refused(wrong):
    with pytest.raises(ductile_gpu.InvalidArgument, match="one of eager, lagging, lazy, random"):
        ductile_gpu.VirtualGPU(schedule=wrong)


# ---- Ctrl-C ------------------------------------------------------------------------------------


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_what_ends_a_callback_ends_the_request(allocator, stop):
    asked = []

    def end(missing):
        asked.append("first")
        raise stop

    allocator.add_oom_callback(end)
    allocator.add_oom_callback(lambda missing: asked.append("second") or 0, priority=1)
    kept = allocator.alloc(900 * MIB)
    with pytest.raises(stop):
        allocator.alloc(512 * MIB)
    assert asked == ["first"]
    allocator.free(kept)
    allocator.free(allocator.alloc(MIB))
    assert allocator.stats().live_blocks == 0


def test_ctrl_c_in_a_callback_leaves_no_block(allocator):
    kept = [allocator.alloc(900 * MIB)]

    def free_and_be_interrupted(missing):
        allocator.free(kept.pop())
        signal.raise_signal(signal.SIGINT)
        return 900 * MIB

    allocator.add_oom_callback(free_and_be_interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            allocator.alloc(512 * MIB)
    finally:
        signal.signal(signal.SIGINT, before)
    assert allocator.stats().live_blocks == 0


def test_a_request_of_c_code_says_what_ended_a_callback(allocator, monkeypatch):
    import ctypes

    from ductile_gpu._binding._native import lib

    said = []
    monkeypatch.setattr(sys, "unraisablehook", lambda found: said.append(found.exc_type))

    def end(missing):
        raise KeyboardInterrupt

    allocator.add_oom_callback(end)
    kept, out = allocator.alloc(900 * MIB), ctypes.c_ulonglong()
    assert lib.ductile_alloc(allocator.pointer, 512 * MIB, 0, ctypes.byref(out)) != 0
    assert said
    assert set(said) == {KeyboardInterrupt}
    allocator.free(kept)
    allocator.free(allocator.alloc(MIB))


# ---- Forks -------------------------------------------------------------------------------------


def test_a_child_that_frees_buffers_ends(allocator):
    buffers = [allocator.buffer(MIB)]
    in_child(buffers.clear)
    buffers[0].free()
