# SPDX-License-Identifier: Apache-2.0
"""CuPy arrays from Ductile.

    import ductile_gpu.cupy
    ductile_gpu.cupy.enable()

An array's memory belongs to the stream that is CuPy's current one when the array is made, and its
free is ordered after the work on that stream, as with CuPy's own pool. An array that is used on
another stream and dropped before that work is done needs
`ductile_gpu.record_stream(array, stream)`.
"""

from __future__ import annotations

import contextlib
import sys
from typing import Any, Optional

from ductile_gpu._binding import _cuda
from ductile_gpu._binding._core import Allocator
from ductile_gpu._binding._errors import OutOfHostMemory, OutOfMemory, ProcessGone, not_installed
from ductile_gpu._binding._objects import Unique
from ductile_gpu._process._share import add_giver, allocate, forget, shared

try:
    import cupy
    from cupy.cuda.device import get_device_id
    from cupy.cuda.memory import MemoryPointer, OutOfMemoryError, UnownedMemory
    from cupy.cuda.stream import get_current_stream
except ImportError as error:
    raise not_installed(error, "cupy", "cupy-cuda13x or cupy-cuda12x") from None

__all__ = ["disable", "enable", "is_enabled", "malloc"]

_previous: Optional[Any] = None


class _Owner(Unique):
    """Frees the memory when the last array on it is gone; the finalizer may run in any thread."""

    __slots__ = ("address", "allocator")

    def __init__(self, allocator: Allocator, address: int) -> None:
        self.allocator = allocator
        self.address = address

    def __del__(self) -> None:
        if self.address and not sys.is_finalizing() and not self.allocator.closed:
            with contextlib.suppress(ProcessGone):
                forget(self.allocator, self.address)
                self.allocator.free(self.address)


def _allocate(allocator: Allocator, size: int, device: int, stream: int) -> Any:
    try:
        address = allocate(allocator, size, stream, "CuPy")
    except OutOfHostMemory as error:
        raise MemoryError(str(error)) from error
    except OutOfMemory as error:
        stats = allocator.stats()
        raise OutOfMemoryError(size, stats.allocated_bytes) from error
    memory = UnownedMemory(address, size, _Owner(allocator, address), device)
    return MemoryPointer(memory, 0)


def malloc(size: int) -> Any:
    """Allocates from the current device's shared allocator, on CuPy's current stream.

    What `enable` hands to cupy.cuda.set_allocator; also for `with
    cupy.cuda.using_allocator(ductile_gpu.cupy.malloc)`, which changes one thread for a while.

    Args:
        size: bytes.

    Returns:
        A cupy.cuda.MemoryPointer.

    Raises:
        cupy.cuda.memory.OutOfMemoryError: no memory is left. Its cause is Ductile's exception.
        ductile_gpu.Error: others, as `ductile_gpu.Allocator.alloc`.
    """
    device = get_device_id()
    return _allocate(shared(device), size, device, get_current_stream().ptr)


def enable() -> None:
    """Makes CuPy allocate from Ductile, in all threads, on all devices.

    Arrays that exist keep their memory. What CuPy's own pool has cached is given back to the
    driver. A second call does nothing.
    """
    global _previous
    if _previous is not None:
        return
    _previous = cupy.cuda.get_allocator()
    cupy.cuda.set_allocator(malloc)
    release_own_cache()
    add_giver(release_own_cache)


def disable() -> None:
    """Makes CuPy allocate as before `enable`. Arrays that exist keep their memory."""
    global _previous
    if _previous is not None:
        cupy.cuda.set_allocator(_previous)
        _previous = None


def is_enabled() -> bool:
    """Whether `enable` is in effect."""
    return _previous is not None


def release_own_cache() -> int:
    """Gives back what CuPy's own pool has cached; returns its bytes."""
    pool = cupy.get_default_memory_pool()
    held = int(pool.free_bytes())
    if held:
        with _cuda.relaxed_capture():
            pool.free_all_blocks()
    return held
