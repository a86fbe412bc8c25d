# SPDX-License-Identifier: Apache-2.0
"""RMM, and with it cuDF, cuML and cuGraph, from Ductile.

    import ductile_gpu.rmm
    ductile_gpu.rmm.enable()            # before the first cuDF object

RMM names the stream of every allocation and of every deallocation. The memory belongs to the first,
and where the second is another one, its work is waited for too.
"""

from __future__ import annotations

from typing import Any, Optional

from ductile_gpu._binding._abi import ALIGNMENT
from ductile_gpu._binding._core import Allocator
from ductile_gpu._binding._errors import not_installed
from ductile_gpu._binding._streams import stream_handle
from ductile_gpu._process._share import allocate, free, shared

try:
    import rmm
except ImportError as error:
    raise not_installed(error, "rmm", "rmm-cu13 or rmm-cu12") from None

__all__ = ["DuctileMemoryResource", "disable", "enable", "is_enabled", "resource"]

# RMM's C++ side keeps plain pointers to the functions of a resource, and buffers may outlive it.
_resources: dict[int, DuctileMemoryResource] = {}
_previous: dict[int, Any] = {}


def _functions_of(allocator: Allocator) -> tuple[Any, Any]:
    """What RMM calls, over any allocator."""

    def allocate_on(*call: Any) -> int:
        """(size, stream), and after RMM 26.10 (stream, size, alignment)."""
        size, stream = call if len(call) == 2 else (call[1], call[0])
        if len(call) == 3 and call[2] > ALIGNMENT:  # RMM's own callers ask for 256
            raise ValueError(f"addresses are multiples of {ALIGNMENT}, not of {call[2]}")
        # A MemoryError here becomes rmm's out_of_memory, and a MemoryError again in Python.
        return allocate(allocator, size, stream_handle(stream), "RMM")

    def deallocate(*call: Any) -> None:
        """(address, size, stream), and after RMM 26.10 (stream, address, size, alignment)."""
        address, stream = (call[0], call[2]) if len(call) == 3 else (call[1], call[0])
        free(allocator, address, stream_handle(stream))

    return allocate_on, deallocate


class DuctileMemoryResource(rmm.mr.CallbackMemoryResource):  # type: ignore[misc]
    """A memory resource of RMM over an allocator, for RMM's own calls and as an adaptor's upstream.

    Keep it alive as long as its memory: RMM's C++ side keeps plain pointers to its functions.

    Args:
        allocator: serves the memory; None: the allocator that all libraries share on `device`.
        device: ordinal; looked at only without an allocator.

    Raises:
        As `ductile_gpu.Allocator`.
    """

    allocator: Allocator

    def __init__(self, allocator: Optional[Allocator] = None, *, device: int = 0) -> None:
        self.allocator = shared(device) if allocator is None else allocator
        super().__init__(*_functions_of(self.allocator))


def resource(device: int = 0) -> DuctileMemoryResource:
    """The memory resource of a device's shared allocator, always the same object.

    Args:
        device: ordinal.

    Raises:
        As `ductile_gpu.Allocator`.
    """
    if device not in _resources:
        _resources[device] = DuctileMemoryResource(device=device)
    return _resources[device]


def _visible_devices() -> int:
    from ductile_gpu._binding import _cuda

    return len(_cuda.devices())


def enable(device: Optional[int] = None) -> None:
    """Makes RMM allocate from Ductile: sets the resource of a device, or of all devices.

    Buffers that exist keep their memory. A second call does nothing.

    Args:
        device: ordinal; None: all.

    Raises:
        As `ductile_gpu.Allocator`.
    """
    for ordinal in range(_visible_devices()) if device is None else (device,):
        if ordinal not in _previous:
            wanted = resource(ordinal)
            _previous[ordinal] = rmm.mr.get_per_device_resource(ordinal)
            rmm.mr.set_per_device_resource(ordinal, wanted)


def disable() -> None:
    """Makes RMM allocate as before `enable`. Buffers that exist keep their memory."""
    while _previous:
        ordinal, previous = _previous.popitem()
        rmm.mr.set_per_device_resource(ordinal, previous)


def is_enabled() -> bool:
    """Whether `enable` is in effect for any device."""
    return bool(_previous)
