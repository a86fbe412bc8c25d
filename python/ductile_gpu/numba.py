# SPDX-License-Identifier: Apache-2.0
"""Numba device arrays from Ductile.

    import ductile_gpu.numba
    ductile_gpu.numba.enable()          # before Numba uses the GPU

or NUMBA_CUDA_MEMORY_MANAGER=ductile_gpu.numba, without a change to the program.

Numba's interface names no stream, neither at an allocation nor at a free, and promises memory that
every stream may use at once. Ductile keeps that promise without waiting on the host:

- memory comes from a stream of its own, on which nothing ever runs;
- a freed array is reused when an event has passed that was recorded on the default stream then:
  the default stream waits for all streams but those made non-blocking;
- and one on each of those others that Numba is known to use: every numba.cuda.external_stream, and
  what `watch_stream` names.

docs/numba.md says what that leaves out, and why.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import threading
import weakref
from collections.abc import Iterator
from typing import Any, Optional

from ductile_gpu._binding import _cuda
from ductile_gpu._binding._core import Allocator
from ductile_gpu._binding._errors import Error, OutOfMemory, not_installed
from ductile_gpu._binding._log import logger
from ductile_gpu._binding._objects import renew_in_child
from ductile_gpu._binding._streams import StreamLike, stream_handle
from ductile_gpu._process._share import allocate, forget, shared

try:
    from numba import cuda
    from numba.cuda import HostOnlyCUDAMemoryManager, MemoryInfo, MemoryPointer
    from numba.cuda.cudadrv.driver import CudaAPIError
except ImportError as error:
    raise not_installed(error, "numba", "numba-cuda") from None

__all__ = ["DuctileNumbaManager", "enable", "is_enabled", "unwatch_stream", "watch_stream"]

_OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY
_LAST_SPECIAL_STREAM = 2  # 0 to 2 are names of default streams, which wait for one another
_enabled = False

# Replaced as a whole, so that a free in any thread reads one or the other.
_watched: frozenset[int] = frozenset()
_watch_lock = threading.Lock()
renew_in_child(globals(), "_watch_lock", threading.Lock)


def watch_stream(stream: StreamLike) -> None:
    """Makes every later free of a Numba array wait for a non-blocking stream too.

    Args:
        stream: any library's stream object, or an integer. It must stay valid until
            `unwatch_stream`.
    """
    global _watched
    with _watch_lock:
        _watched = _watched | {stream_handle(stream)}


def unwatch_stream(stream: StreamLike) -> None:
    """Ends `watch_stream`: before the stream is destroyed. Its work must be done."""
    global _watched
    with _watch_lock:
        _watched = _watched - {stream_handle(stream)}


# A child of fork does not give back what another thread of the parent held.
_memories: weakref.WeakSet[_Memory] = weakref.WeakSet()


def _after_fork() -> None:
    for memory in _memories:
        memory.lock = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)


class _Memory:
    """The arrays of one context: where they come from, and what happens when they are freed."""

    def __init__(self, allocator: Allocator, stream: Any) -> None:
        self.allocator = allocator
        self.stream = stream
        self.live: set[int] = set()
        self.lock = threading.RLock()
        self.postponed: Optional[list[int]] = None
        _memories.add(self)

    def allocate(self, size: int) -> int:
        address = allocate(self.allocator, size, self.stream.handle, "Numba")
        # The options may have put a fill or a wait on the stream: others must not overtake it.
        self.stream.synchronize()
        with self.lock:
            self.live.add(address)
        return address

    def free(self, address: int) -> None:
        """Also called by finalizers, in any thread, after a reset, and at exit."""
        with self.lock:
            if address not in self.live:
                return
            if self.postponed is not None:
                self.postponed.append(address)
                return
            self.live.discard(address)
        try:
            for stream in (0, *_watched):
                self.allocator.record_stream(address, stream)
            forget(self.allocator, address)
            self.allocator.free(address)
        except Error as error:
            logger.error("an array of Numba was not freed: %s", error)

    def free_all(self) -> None:
        with self.lock:
            addresses = list(self.live)
        for address in addresses:
            self.free(address)

    @contextlib.contextmanager
    def postpone(self) -> Iterator[None]:
        with self.lock:
            outermost = self.postponed is None
            if outermost:
                self.postponed = []
        try:
            yield
        finally:
            if outermost:
                with self.lock:
                    addresses, self.postponed = self.postponed or [], None
                for address in addresses:
                    self.free(address)


class DuctileNumbaManager(HostOnlyCUDAMemoryManager):  # type: ignore[misc]
    """Numba's External Memory Management plug-in. One object for each context."""

    _memory: Optional[_Memory] = None

    def initialize(self) -> None:
        """Called whenever the context is made current; the first time matters."""
        if self._memory is None:
            device = int(self.context.device.id)
            allocator = shared(device)
            self._memory = _Memory(allocator, _cuda.Stream(device))
            _watch_external_streams(self.context)
            # Managed and pinned memory stays Numba's, which puts off frees up to a share of this.
            self.deallocations.memory_capacity = _cuda.memory_info(device)[1]

    @property
    def _opened(self) -> _Memory:
        if self._memory is None:
            self.initialize()
        assert self._memory is not None
        return self._memory

    def memalloc(self, size: int) -> Any:
        """Allocates `size` bytes that every stream may use at once.

        Raises:
            numba.cuda.cudadrv.driver.CudaAPIError: CUDA_ERROR_OUT_OF_MEMORY, as from Numba itself.
        """
        memory = self._opened

        def attempt() -> int:
            try:
                return memory.allocate(size)
            except OutOfMemory as error:
                raise CudaAPIError(_OUT_OF_MEMORY, str(error)) from error

        address = self._attempt_allocation(attempt)
        freed = functools.partial(memory.free, address)
        return MemoryPointer(self.context, ctypes.c_void_p(address), size, finalizer=freed)

    def get_memory_info(self) -> Any:
        """Free and total bytes of the device. What Ductile holds and could reuse counts as free."""
        allocator = self._opened.allocator
        stats = allocator.stats()
        free, total = _cuda.memory_info(allocator.device)
        return MemoryInfo(free=free + stats.free_bytes + stats.cached_bytes, total=total)

    def get_ipc_handle(self, memory: Any) -> Any:
        """Raises NotImplementedError: CUDA IPC knows no memory that is mapped by handles."""
        raise NotImplementedError(
            "cuIpcGetMemHandle does not work on memory of Ductile; allocate what other processes "
            "shall see without it"
        )

    def reset(self) -> None:
        """Frees all arrays of the context."""
        super().reset()
        if self._memory is not None:
            self._memory.free_all()

    @contextlib.contextmanager
    def defer_cleanup(self) -> Iterator[None]:
        """Inside, nothing is freed."""
        with super().defer_cleanup(), self._opened.postpone():
            yield

    @property
    def interface_version(self) -> int:
        """The version of Numba's interface that this class is written for."""
        return 1


def _watch_external_streams(context: Any) -> None:
    """Other libraries' streams are most often non-blocking: the default stream ignores them."""
    make = context.create_external_stream

    def create_external_stream(pointer: int) -> Any:
        stream = make(pointer)
        if pointer > _LAST_SPECIAL_STREAM:
            watch_stream(pointer)
        return stream

    context.create_external_stream = create_external_stream


def enable() -> None:
    """Makes Numba allocate device arrays from Ductile. A second call does nothing.

    Raises:
        RuntimeError: Numba has used the GPU already, or its interface is of another version.
    """
    global _enabled
    if _enabled:
        return
    if _has_context():
        raise RuntimeError(
            "Numba has used the GPU already: call ductile_gpu.numba.enable() before its first "
            "array, or set NUMBA_CUDA_MEMORY_MANAGER=ductile_gpu.numba"
        )
    cuda.set_memory_manager(DuctileNumbaManager)
    _enabled = True


def _has_context() -> bool:
    from numba.cuda.cudadrv.driver import driver

    return any(device.primary_context is not None for device in driver.devices.values())


def is_enabled() -> bool:
    """Whether `enable` is in effect."""
    return _enabled


# What NUMBA_CUDA_MEMORY_MANAGER=ductile_gpu.numba looks for.
_numba_memory_manager = DuctileNumbaManager
