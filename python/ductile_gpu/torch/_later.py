# SPDX-License-Identifier: Apache-2.0
"""What waits until a program needs Ductile in PyTorch: a compilation takes half a minute, and a
program that never uses a GPU shall not have it.

It is done before PyTorch initialises CUDA, before it makes a process group, whose backend looks at
the settings of the allocator, before those settings or the memory history change, and before
Ductile is asked whether it is PyTorch's allocator: they find what they would without waiting.
"""

from __future__ import annotations

import functools
import sys
import threading
from typing import Any, Callable, Optional

from ductile_gpu._binding._objects import renew_in_child
from ductile_gpu.torch._lazy import torch

_C_FUNCTIONS = (
    "_cuda_init",
    "_accelerator_setAllocatorSettings",
    "_cuda_cudaCachingAllocator_set_allocator_settings",
    "_cuda_record_memory_history",
    "_cuda_record_memory_history_legacy",
)

_lock = threading.RLock()
_is_done = True
_waiting: Optional[Callable[[], None]] = None
_replaced: list[tuple[Any, str, Any, Any]] = []
renew_in_child(globals(), "_lock", threading.RLock)


def wait(then: Callable[[], None]) -> None:
    """Has `then` called once, when it is needed. Pre: PyTorch is imported, CUDA is not in use."""
    global _is_done, _waiting
    with _lock:
        _is_done, _waiting = False, then
        for name in _C_FUNCTIONS:
            _stand_before(torch._C, name)
        _stand_before(
            sys.modules.get("torch.distributed.distributed_c10d"), "_new_process_group_helper"
        )


def do_now() -> None:
    """It is needed now. Another thread that needs it, too, waits for the end of it."""
    global _is_done, _waiting
    if _is_done:
        return
    with _lock:
        then, _waiting = _waiting, None
        if then is None:  # `then` itself asks, or it was done meanwhile
            return
        while _replaced:
            owner, name, original, ours = _replaced.pop()
            if getattr(owner, name) is ours:  # else another stands before it, and calls it
                setattr(owner, name, original)
        try:
            then()
        finally:
            _is_done = True


def _stand_before(owner: Any, name: str) -> None:
    original = getattr(owner, name, None)
    if original is None:
        return

    @functools.wraps(original)
    def first(*arguments: Any, **named: Any) -> Any:
        do_now()
        return original(*arguments, **named)

    setattr(owner, name, first)
    _replaced.append((owner, name, original, first))
