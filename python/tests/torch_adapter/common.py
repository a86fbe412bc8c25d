# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: F401
"""What programs of PyTorch on Ductile and a virtual GPU share, whichever allocator begins; with the
modules that they use."""

from __future__ import annotations

import ctypes
import os
import random
import re
import socket
import sys
import threading
import time
import warnings
from typing import Any

# Handles of 2 MiB, however much room there is: tests count what is held to the byte.
os.environ.setdefault("DUCTILE_CONF", "driver:virtual,sizes:2M")

import pytest
import torch
from running import at_once

import ductile_gpu.torch
from ductile_gpu._binding._core import Allocator
from ductile_gpu.torch import _install

MIB = 1 << 20
raises, skip = pytest.raises, pytest.skip
driver = ctypes.CDLL(sys.argv[1])


def call(name: str, *arguments: Any) -> None:
    function = getattr(driver, name)
    function.restype = ctypes.c_char_p
    message = function(*arguments)
    if message:
        raise RuntimeError(message.decode())


def library() -> Allocator:
    """The library's allocator of device 0: it has to have served something."""
    adapter = _install.adapter()
    assert adapter is not None
    return Allocator.borrow(adapter.ductile_torch_allocator(0) or 0)


def share(address: int) -> bytes:
    """What PyTorch passes to another process for the block."""
    data, size = ctypes.c_void_p(), ctypes.c_size_t()
    call("probe_share", ctypes.c_void_p(address), ctypes.byref(data), ctypes.byref(size))
    return ctypes.string_at(data.value or 0, size.value)


def connect(name: bytes) -> socket.socket:
    """To the process that shares memory under the name."""
    peer = socket.socket(socket.AF_UNIX)
    peer.settimeout(10)
    peer.connect(b"\0" + name)
    return peer
