# SPDX-License-Identifier: Apache-2.0
"""CUDA is initialised by `init`; what was queued with _lazy_call runs then."""

from torch.cuda import memory

__all__ = ["current_device", "init", "is_initialized", "memory"]

_queued = []
_initialized = False


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
