# SPDX-License-Identifier: Apache-2.0
"""What uses a GPU besides the allocators of this process: other processes, and this one's context
and libraries. By the word of NVML, the driver's management library; where that is missing, or does
not say, nothing is known."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from ctypes import byref
from typing import Any, NamedTuple, Optional

from ductile_gpu._binding import _abi, _cuda
from ductile_gpu._binding._core import Allocator, kept_open
from ductile_gpu._binding._native import lib
from ductile_gpu._process._share import numbered

_MOST = 512  # of one GPU


class Outside(NamedTuple):
    """What uses a GPU, in bytes."""

    own_bytes: Optional[int]
    """this process, outside of its allocators; None: NVML names it by another number, as it may in
    a container, and it is among the processes"""
    processes: dict[int, int]
    """the others, by the number that NVML names them by"""

    def as_json(self) -> dict[str, Any]:
        """As `top --json` has it, the largest process first."""
        ordered = sorted(self.processes.items(), key=lambda each: -each[1])
        return {
            "own_bytes": self.own_bytes,
            "processes": [{"pid": pid, "used_bytes": used} for pid, used in ordered],
        }


def _used_by_pid(pci_bus_id: str) -> Optional[dict[int, int]]:
    found = ctypes.c_size_t()
    room = (_abi.ductile_gpu_process * _MOST)()
    status = lib.ductile_list_gpu_processes(pci_bus_id.encode(), room, _MOST, byref(found))
    if status != _abi.Status.OK:
        return None
    used: dict[int, int] = {}
    for one in room[: found.value]:
        used[one.pid] = used.get(one.pid, 0) + one.used_bytes
    return used


def pci_bus_id(allocator: Allocator) -> Optional[str]:
    """Of the GPU of an open allocator; None for a virtual one, of which NVML knows nothing."""
    if allocator.is_virtual:
        return None
    try:
        return _cuda.pci_bus_id(allocator.device)
    except _cuda.CudaError:
        return None


def _held_on(where: str, allocators: Iterable[Allocator]) -> int:
    held: dict[int, int] = {}
    for allocator in allocators:
        with kept_open(allocator) as is_open:
            if is_open and pci_bus_id(allocator) == where:
                held[allocator.pointer] = allocator.stats().reserved_bytes
    return sum(held.values())


def outside(where: Optional[str]) -> Optional[Outside]:
    """What uses a GPU besides all allocators of the process; None: not known.

    Asks NVML: some milliseconds, so that no lock should be held. What PyTorch's own allocator holds
    counts as outside.

    Args:
        where: its PCI bus id; None: none.
    """
    used = _used_by_pid(where) if where is not None else None
    if where is None or used is None:
        return None
    own = used.pop(os.getpid(), None)
    if own is None:
        return Outside(None, used)
    held = _held_on(where, (allocator for _, allocator in numbered()))
    return Outside(max(0, own - held), used)
