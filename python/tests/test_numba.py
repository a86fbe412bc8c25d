# SPDX-License-Identifier: Apache-2.0
"""Numba: its interface names no stream. What a free waits for."""

from __future__ import annotations

import gc
import textwrap

import pytest
from running import held_elsewhere, in_child, python

numba_cuda = pytest.importorskip("numba.cuda", exc_type=ImportError)

from numba.cuda.cudadrv.driver import CudaAPIError

import ductile_gpu
import ductile_gpu.numba as adapter

MIB = 1 << 20


class _Stream:
    """What _cuda.Stream is on hardware."""

    def __init__(self, gpu: ductile_gpu.VirtualGPU) -> None:
        self.gpu = gpu
        self.handle = gpu.stream()

    def synchronize(self) -> None:
        self.gpu.sync(self.handle)


class _Device:
    id = 0


class _Context:
    device = _Device()

    def create_external_stream(self, pointer: int) -> int:
        return pointer


@pytest.fixture
def manager(gpu, allocator):
    found = adapter.DuctileNumbaManager(context=_Context())
    found._memory = adapter._Memory(allocator, _Stream(gpu))
    return found


@pytest.fixture(autouse=True)
def _nothing_watched():
    yield
    adapter._watched = frozenset()


def test_a_forked_child_waits_for_no_lock_of_its_parent(manager):
    address = manager.memalloc(MIB).device_pointer_value
    with held_elsewhere(manager._memory.lock, adapter._watch_lock):
        in_child(lambda: (manager._memory.free(address), adapter.watch_stream(64)))


def test_memory_is_freed_with_the_last_pointer(manager, allocator):
    pointer = manager.memalloc(MIB)
    assert pointer.size == MIB
    assert allocator.query(pointer.device_pointer_value).requested_size == MIB
    del pointer
    gc.collect()
    assert allocator.stats().live_blocks == 0


def test_a_freed_array_waits_for_the_default_stream(manager, allocator, gpu):
    gpu.set_schedule("lazy")
    pointer = manager.memalloc(MIB)
    address = pointer.device_pointer_value
    gpu.launch(0, writes=[(address, MIB)])
    del pointer
    assert allocator.stats().pending_bytes == MIB
    assert manager.memalloc(MIB).device_pointer_value != address
    gpu.sync(0)
    assert manager.memalloc(MIB).device_pointer_value == address


def test_a_freed_array_waits_for_watched_streams(manager, allocator, gpu):
    gpu.set_schedule("lazy")
    other = gpu.stream()
    adapter.watch_stream(other)
    pointer = manager.memalloc(MIB)
    gpu.launch(other, writes=[(pointer.device_pointer_value, MIB)])
    del pointer
    gpu.sync(0)
    following = manager.memalloc(MIB)
    assert allocator.stats().pending_bytes == MIB
    gpu.sync(other)
    adapter.unwatch_stream(other)
    del following
    assert adapter._watched == frozenset()


def test_a_freed_array_waits_for_numbas_own_streams(manager, allocator, gpu):
    gpu.set_schedule("lazy")
    first, second = gpu.stream(blocking=True), gpu.stream(blocking=True)
    pointer = manager.memalloc(MIB)
    address = pointer.device_pointer_value
    gpu.launch(first, writes=[(address, MIB)])
    del pointer
    gpu.sync(second)
    following = manager.memalloc(MIB)
    assert following.device_pointer_value != address
    gpu.sync(first)
    gpu.sync(0)
    assert manager.memalloc(MIB).device_pointer_value == address


def test_a_free_breaks_no_capture(manager, allocator, gpu):
    for stream in (gpu.stream(blocking=True), gpu.stream()):
        pointer, used = manager.memalloc(MIB), manager.memalloc(MIB)
        with gpu.capture(stream) as graph:
            gpu.launch(stream, writes=[(used.device_pointer_value, MIB)])
            del pointer
        graph.launch(0)
        gpu.sync(0)
        graph.close()
        del used


def test_external_streams_are_watched(manager, monkeypatch):
    context = _Context()
    adapter._watch_external_streams(context)
    assert context.create_external_stream(4096) == 4096
    context.create_external_stream(2)
    assert adapter._watched == {4096}


def test_no_host_wait_in_a_free(manager, gpu):
    gpu.set_schedule("lazy")
    pointer = manager.memalloc(MIB)
    gpu.launch(0, writes=[(pointer.device_pointer_value, MIB)])
    waits = gpu.count("stream_sync")
    del pointer
    assert gpu.count("stream_sync") == waits


def test_out_of_memory_is_numbas_own_exception(manager):
    with pytest.raises(CudaAPIError) as caught:
        manager.memalloc(4096 * MIB)
    assert caught.value.code == 2
    assert isinstance(caught.value.__cause__, ductile_gpu.OutOfMemory)


def test_nothing_is_freed_while_cleanup_is_deferred(manager, allocator):
    pointer = manager.memalloc(MIB)
    with manager.defer_cleanup():
        del pointer
        with manager.defer_cleanup():
            manager.memalloc(MIB)
        assert allocator.stats().live_blocks == 2
    assert allocator.stats().live_blocks == 0


def test_a_reset_frees_everything_and_finalizers_come_late(manager, allocator):
    pointer = manager.memalloc(MIB)
    manager.reset()
    assert allocator.stats().live_blocks == 0
    del pointer
    gc.collect()
    assert allocator.stats().live_blocks == 0


def test_ipc_is_refused_with_the_reason(manager):
    with pytest.raises(NotImplementedError, match="cuIpcGetMemHandle"):
        manager.get_ipc_handle(manager.memalloc(MIB))


def test_numba_finds_the_manager_by_the_modules_name():
    assert adapter._numba_memory_manager(context=None).interface_version == 1
    code = """
        from numba.cuda.cudadrv import driver
        driver._ensure_memory_manager()
        print(driver._memory_manager)
    """
    variable = {"NUMBA_CUDA_MEMORY_MANAGER": "ductile_gpu.numba"}
    assert "DuctileNumbaManager" in python("-c", textwrap.dedent(code), **variable).stdout


def test_enabling_chooses_the_manager_once():
    code = """
        import ductile_gpu.numba
        from numba.cuda.cudadrv import driver
        ductile_gpu.numba.enable()
        ductile_gpu.numba.enable()
        assert driver._memory_manager is ductile_gpu.numba.DuctileNumbaManager
        assert ductile_gpu.numba.is_enabled()
    """
    assert python("-c", textwrap.dedent(code)).returncode == 0


def test_enabling_is_refused_once_numba_has_a_context(monkeypatch):
    monkeypatch.setattr(adapter, "_has_context", lambda: True)
    with pytest.raises(RuntimeError, match="before its first array"):
        adapter.enable()


@pytest.mark.gpu
def test_arrays_compute_in_memory_of_ductile():
    code = """
        import numpy as np, ductile_gpu, ductile_gpu.numba
        from numba import cuda
        ductile_gpu.numba.enable()

        @cuda.jit
        def add(a, b):
            i = cuda.grid(1)
            if i < a.size:
                b[i] = a[i] + 1

        allocator = ductile_gpu.shared(0)
        streams = [cuda.stream() for _ in range(3)]
        host = np.arange(1 << 20, dtype=np.int32)
        for turn in range(50):
            stream = streams[turn % 3]
            a = cuda.to_device(host, stream=stream)
            b = cuda.device_array_like(a, stream=stream)
            add[host.size // 256, 256, stream](a, b)
            del a
            got = b.copy_to_host(stream=stream)
            stream.synchronize()
            assert (got == host + 1).all(), turn
            assert allocator.stats().live_blocks >= 1
        free, total = cuda.current_context().get_memory_info()
        assert 0 < free <= total
        print("ok", allocator.stats().reserved_bytes)
    """
    answer = python("-c", textwrap.dedent(code))
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.startswith("ok")
