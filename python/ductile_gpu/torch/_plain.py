# SPDX-License-Identifier: Apache-2.0
"""Ductile behind PyTorch's pluggable interface: no compiler needed, and less of PyTorch works.

The functions that PyTorch calls are C and part of the package (plain/ductile_torch.c). What the
interface has no hook for is made up for here as far as Python can.
"""

from __future__ import annotations

import ctypes
import threading
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional

from ductile_gpu._binding._native import lib, library_path
from ductile_gpu._binding._objects import renew_in_child
from ductile_gpu._process import _share
from ductile_gpu.torch import _build, _conf, _install
from ductile_gpu.torch._lazy import torch

MISSING = (
    "memory history and snapshots",
    "torch.OutOfMemoryError (a RuntimeError with the same text is raised)",
    "torch.cuda.MemPool while Ductile is the allocator",
    "torch.compile(mode='reduce-overhead')",
    "CUDA tensors sent to other processes",
    "graphs whose memory is asked for by other threads than the capturing one",
)

_lock = threading.Lock()
_library: Optional[ctypes.CDLL] = None
_pluggable: Any = None  # kept for the process's life: blocks name it
_installed = False
renew_in_child(globals(), "_lock", threading.Lock)

# std::c10::Error is thrown by this function of libc10: checks in C++ headers call it.
_THROWS = "_ZN3c106detail14torchCheckFailEPKcS2_jS2_"

_SETTERS = (
    ("set_reset_fn", "ductile_torch_reset"),
    ("set_memory_fraction_fn", "ductile_torch_memory_fraction"),
    ("set_record_stream_fn", "ductile_torch_record_stream"),
    ("set_begin_allocate_to_pool", "ductile_torch_begin_pool"),
    ("set_end_allocate_to_pool_fn", "ductile_torch_end_pool"),
    ("set_release_pool", "ductile_torch_release_pool"),
)


def library() -> ctypes.CDLL:
    """libductile_torch, loaded when first needed. Raises BuildError where it cannot be."""
    global _library
    if _library is None:
        loaded = _build.load(library_path().with_name("libductile_torch.so"))
        loaded.ductile_torch_plain_open.restype = ctypes.c_void_p
        loaded.ductile_torch_beside_first.restype = ctypes.c_uint64
        _let_it_throw(loaded)
        _library = loaded
    return _library


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def _let_it_throw(loaded: ctypes.CDLL) -> None:
    libc10 = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    throws = getattr(libc10, _THROWS, None)
    if throws is not None:
        loaded.ductile_torch_plain_set_raise(ctypes.c_void_p(_address(throws)))


def make(malloc: str = "ductile_torch_malloc", free: str = "ductile_torch_free") -> Any:
    """PyTorch's object for two functions of the library."""
    loaded = library()
    made = torch.cuda.memory.CUDAPluggableAllocator(str(loaded._name), malloc, free)
    for setter, function in _SETTERS:
        getattr(made.allocator(), setter)(_address(getattr(loaded, function)))
    return made


def open_device(device: int) -> int:
    """The library's allocator of a device, made if need be."""
    torch.cuda.init()
    found = library().ductile_torch_plain_open(device)
    if not found:
        why = lib.ductile_create_error().decode(errors="replace")
        raise RuntimeError(f"Ductile cannot open device {device}: {why}")
    return int(found)


def list_used() -> list[int]:
    """The devices that were allocated on."""
    if not torch.cuda.is_initialized():
        return []
    loaded = library()
    return [n for n in range(torch.cuda.device_count()) if loaded.ductile_torch_plain_is_used(n)]


def set_options(options: Mapping[str, Any]) -> None:
    """Of the allocators that are still to be made."""
    if not library().ductile_torch_plain_set_options(_install.options_text(options).encode()):
        raise ValueError(f"no such options of Ductile: {_install.options_text(options)}")


def _refuse_when_late() -> None:
    if torch.cuda.is_initialized():
        raise _install.TooLate(
            "CUDA is already in use in this process, and without the adapter PyTorch exchanges its "
            "allocator only before that: install a C++ compiler, or call "
            "ductile_gpu.torch.enable() right after `import torch`"
        )


def install(options: Mapping[str, Any]) -> None:
    """Makes Ductile PyTorch's allocator without the adapter."""
    global _pluggable, _installed
    with _lock:
        if _installed:
            return
        _build.describe_torch()
        _refuse_when_late()
        _conf.check(_conf.environment())
        set_options(options)
        _pluggable = make()
        _share.provide(open_device, list_used, change=set_options)
        try:
            torch.cuda.memory.change_current_allocator(_pluggable)
        except RuntimeError:
            _share.withdraw()
            raise
        _make_up_for_statistics()
        _installed = True


def is_installed() -> bool:
    """Is Ductile PyTorch's allocator by the pluggable interface?"""
    return _installed


# ---- Statistics --------------------------------------------------------------------------------


def nested_stats(device: int) -> dict[str, Any]:
    """The statistics, as torch._C._cuda_memoryStats gives them."""
    s = _share.shared(device).stats()

    def stat(current: int, peak: int, allocated: int) -> dict[str, Any]:
        one = {
            "current": current,
            "peak": max(peak, current),
            "allocated": allocated,
            "freed": allocated - current,
        }
        none = dict.fromkeys(one, 0)
        return {"all": one, "small_pool": none, "large_pool": dict(one)}

    nothing = stat(0, 0, 0)
    return {
        "allocation": stat(s.live_blocks, s.live_peak_blocks, s.allocs),
        "segment": nothing,
        "active": stat(s.live_blocks + s.pending_blocks, s.live_peak_blocks, s.allocs),
        "inactive_split": nothing,
        "allocated_bytes": stat(s.allocated_bytes, s.allocated_peak_bytes, s.allocated_total_bytes),
        "reserved_bytes": stat(
            s.reserved_bytes + s.spilled_bytes,
            s.reserved_peak_bytes + s.spilled_peak_bytes,
            s.created_total_bytes + s.spilled_total_bytes,
        ),
        "active_bytes": stat(
            s.allocated_bytes + s.pending_bytes, s.active_peak_bytes, s.allocated_total_bytes
        ),
        "inactive_split_bytes": nothing,
        "requested_bytes": stat(s.requested_bytes, s.requested_peak_bytes, s.requested_total_bytes),
        "oversize_allocations": nothing["all"],
        "oversize_segments": nothing["all"],
        "num_alloc_retries": s.pressure_returns,
        "num_ooms": s.out_of_memory,
        "num_sync_all_streams": s.stream_syncs,
        "num_device_alloc": s.creates,
        "num_device_free": s.releases,
        "max_split_size": -1,
    }


def _index(device: Any) -> int:
    return int(torch.cuda._utils._get_device_index(device, optional=True))


def _make_up_for_statistics() -> None:
    """Replaces the functions of torch.cuda that would raise."""
    memory = torch.cuda.memory

    def memory_stats_as_nested_dict(device: Any = None) -> dict[str, Any]:
        return nested_stats(_index(device)) if torch.cuda.is_initialized() else {}

    def reset_peak_memory_stats(device: Any = None) -> None:
        _share.shared(_index(device)).reset_peaks()

    def memory_stats(device: Any = None) -> dict[str, Any]:
        flat: dict[str, Any] = {}

        def add(prefix: str, value: Any) -> None:
            if isinstance(value, dict):
                for key, inner in value.items():
                    add(f"{prefix}.{key}" if prefix else key, inner)
            else:
                flat[prefix] = value

        add("", memory_stats_as_nested_dict(device))
        return OrderedDict(sorted(flat.items()))

    for function in (memory_stats_as_nested_dict, reset_peak_memory_stats, memory_stats):
        for module in (memory, torch.cuda):
            setattr(module, function.__name__, function)


# ---- A pool beside another allocator -----------------------------------------------------------


def mem_pool(use_on_oom: bool, no_split: bool) -> Any:
    """A torch.cuda.MemPool on Ductile's memory."""
    global _pluggable
    with _lock:
        if _pluggable is None:
            _pluggable = make()
    arguments = {"use_on_oom": use_on_oom, "no_split": no_split}
    wanted = {name: value for name, value in arguments.items() if value}
    return torch.cuda.MemPool(_pluggable.allocator(), **wanted)
