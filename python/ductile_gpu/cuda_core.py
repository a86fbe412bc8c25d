# SPDX-License-Identifier: Apache-2.0
"""cuda.core on Ductile: its buffers, and whatever allocates by one of its memory resources.

    from cuda.core import Device
    import ductile_gpu.cuda_core
    Device(0).memory_resource = ductile_gpu.cuda_core.resource(0)

A buffer's memory belongs to the stream it is allocated on. Where it is closed on another one, that
one's work is waited for too.
"""

from __future__ import annotations

from typing import Any

from ductile_gpu._binding._core import Allocator
from ductile_gpu._binding._errors import not_installed
from ductile_gpu._binding._streams import stream_handle
from ductile_gpu._process._share import allocate, free, shared

try:
    from cuda.core import Buffer, MemoryResource
except ImportError as error:
    raise not_installed(error, "cuda", "cuda-core") from None

__all__ = ["DuctileMemoryResource", "resource"]

_resources: dict[int, DuctileMemoryResource] = {}


class DuctileMemoryResource(MemoryResource):  # type: ignore[misc]
    """A cuda.core.MemoryResource over any allocator. Buffers keep it alive."""

    def __init__(self, allocator: Allocator) -> None:
        self._allocator = allocator

    def allocate(self, size: int, *, stream: Any) -> Any:
        """A cuda.core.Buffer. Raises as `Allocator.alloc`."""
        address = allocate(self._allocator, size, stream_handle(stream), "cuda.core")
        try:
            return Buffer.from_handle(address, size, mr=self, stream=stream)
        except BaseException:
            free(self._allocator, address)
            raise

    def deallocate(self, ptr: Any, size: int, *, stream: Any) -> None:
        """Frees after the work on `stream`. What is refused is logged: buffers end silently."""
        free(self._allocator, int(ptr), stream_handle(stream))

    @property
    def device_id(self) -> int:
        """The ordinal of the device."""
        return self._allocator.device

    @property
    def is_device_accessible(self) -> bool:
        """True."""
        return True

    @property
    def is_host_accessible(self) -> bool:
        """False."""
        return False

    @property
    def is_managed(self) -> bool:
        """False: the memory stays on its device."""
        return False


def resource(device: int = 0) -> DuctileMemoryResource:
    """The resource of a device's shared allocator, always the same object.

    Args:
        device: ordinal.

    Raises:
        As `ductile_gpu.Allocator`.
    """
    if device not in _resources:
        _resources[device] = DuctileMemoryResource(shared(device))
    return _resources[device]
