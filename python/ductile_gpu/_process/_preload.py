# SPDX-License-Identifier: Apache-2.0
"""libductile_preload.so in this process: its allocators serve the adapters too."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any, Optional

from ductile_gpu._binding import _abi
from ductile_gpu._binding._core import set_option
from ductile_gpu._binding._native import lib


def open_device(device: int, options: Mapping[str, Any]) -> Optional[int]:
    """The ductile_allocator * that serves all calls for a device, made with these options where it
    is not there yet. None: the library is not in the process, or does not serve the device.

    Raises:
        InvalidArgument: an option.
    """
    try:
        function = ctypes.CDLL(None).ductile_preload_open
    except AttributeError:
        return None
    function.restype = ctypes.c_void_p
    function.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.POINTER(_abi.ductile_options))
    wanted = _abi.ductile_options()
    lib.ductile_options_init(ctypes.byref(wanted))
    for key, value in options.items():
        set_option(wanted, key, value)
    create = ctypes.cast(lib.ductile_create, ctypes.c_void_p)
    found: Optional[int] = function(create, device, ctypes.byref(wanted))
    return found
