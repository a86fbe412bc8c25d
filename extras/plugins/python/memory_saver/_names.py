# SPDX-License-Identifier: Apache-2.0
"""torch_memory_saver's C names as Python sees them: a library with the functions' types set."""

from __future__ import annotations

import ctypes
import logging
from typing import TYPE_CHECKING, Any, Callable, Optional

from ductile_gpu import OutOfMemory
from ductile_gpu.memory_saver.utils import get_binary_path_from_package

if TYPE_CHECKING:
    from ductile_gpu.memory_saver._saver import _Impl

_logger = logging.getLogger("ductile_gpu")
_BYTES = ctypes.POINTER(ctypes.c_uint8)
_TYPES: dict[str, tuple[Any, list[Any]]] = {
    "tms_set_interesting_region": (None, [ctypes.c_bool]),
    "tms_get_interesting_region": (ctypes.c_bool, []),
    "tms_set_current_tag": (None, [ctypes.c_char_p]),
    "tms_get_current_tag": (ctypes.c_char_p, []),
    "tms_set_enable_cpu_backup": (None, [ctypes.c_bool]),
    "tms_get_enable_cpu_backup": (ctypes.c_bool, []),
    "tms_set_cpu_backup_backend": (None, [ctypes.c_char_p]),
    "tms_get_cpu_backup_backend": (ctypes.c_char_p, []),
    "tms_set_enable_disk_backup": (None, [ctypes.c_bool]),
    "tms_get_enable_disk_backup": (ctypes.c_bool, []),
    "tms_set_disk_backup_dir": (None, [ctypes.c_char_p]),
    "tms_pause": (ctypes.c_int, [ctypes.c_char_p]),
    "tms_resume": (ctypes.c_int, [ctypes.c_char_p]),
    "set_memory_margin_bytes": (None, [ctypes.c_uint64]),
    "tms_set_retain_cpu_backup": (None, [ctypes.c_bool]),
    "tms_get_retain_cpu_backup": (ctypes.c_bool, []),
    "tms_get_cpu_backup_pointer": (_BYTES, [_BYTES, ctypes.c_uint64]),
}

_PAUSE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p)
_MARGIN = ctypes.CFUNCTYPE(None, ctypes.c_uint64)
_FIND = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64)
_CHANGED = ctypes.CFUNCTYPE(None)

CUDA_SUCCESS, CUDA_OUT_OF_MEMORY, CUDA_UNKNOWN = 0, 2, 999


class _Handlers(ctypes.Structure):
    """struct handlers of ductile_memory_saver.c."""

    _fields_ = [
        ("pause", _PAUSE),
        ("resume", _PAUSE),
        ("set_margin", _MARGIN),
        ("find_backup", _FIND),
        ("changed", _CHANGED),
    ]


class _Library(ctypes.CDLL):
    """Also finds the names of the CUDA runtime, on which torch_memory_saver's library depends."""

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if not name.startswith("cuda"):
                raise
        return getattr(_runtime(), name)


def _runtime() -> ctypes.CDLL:
    """The CUDA runtime that PyTorch has loaded."""
    import torch

    major = str(torch.version.cuda).partition(".")[0]
    return ctypes.CDLL(f"libcudart.so.{major}")


def status_of(action: Callable[[], object]) -> int:
    """A call as C sees it: a cudaError_t. The reason goes to the log "ductile_gpu"."""
    try:
        action()
    except OutOfMemory as error:
        _logger.error("%s", error)
        return CUDA_OUT_OF_MEMORY
    except Exception as error:
        _logger.error("%s", error)
        return CUDA_UNKNOWN
    return CUDA_SUCCESS


def _text(tag: Optional[bytes]) -> Optional[str]:
    return tag.decode() if tag else None


class BinaryWrapper:
    """The library, connected to what the C names lead to.

    Attributes:
        cdll: with the C names of torch_memory_saver.
    """

    def __init__(self, handlers: _Impl) -> None:
        path = get_binary_path_from_package("torch_memory_saver_hook_mode_preload")
        self.cdll = _Library(str(path))
        for name, (result, arguments) in _TYPES.items():
            function = getattr(self.cdll, name)
            function.restype, function.argtypes = result, arguments
        self._connected = _Handlers(
            _PAUSE(lambda tag: status_of(lambda: handlers.pause(_text(tag)))),
            _PAUSE(lambda tag: status_of(lambda: handlers.resume(_text(tag)))),
            _MARGIN(lambda size: status_of(lambda: handlers.set_margin(size))),
            _FIND(lambda address, size: handlers.find_backup(address or 0, size) or None),
            _CHANGED(lambda: status_of(handlers.follow_region)),
        )
        self.cdll.ductile_memory_saver_connect(ctypes.byref(self._connected))
