# SPDX-License-Identifier: Apache-2.0
"""CUDA is initialised by `init`; what was queued with _lazy_call runs then. `use` allocates."""

from torch.cuda import memory

__all__ = [
    "current_device",
    "device_count",
    "init",
    "is_initialized",
    "max_memory_reserved",
    "memory",
    "use",
]

_queued = []
_initialized = False
_reserved = 0


def is_initialized():
    return _initialized


def current_device():
    return 0


def _lazy_call(function):
    if _initialized:
        function()
    else:
        _queued.append(function)


def init():
    global _initialized
    _initialized = True
    for function in _queued:
        function()


def device_count():
    return 1


def max_memory_reserved(_device):
    return _reserved


def use(size=1 << 20):
    global _reserved
    init()
    _reserved += size
