# SPDX-License-Identifier: Apache-2.0
"""SGLang's memory saver on Ductile.

    SGLANG_PLUGINS=ductile python -m sglang.launch_server --enable-memory-saver ...

The package's entry point in `sglang.srt.plugins` calls `register` in each of SGLang's processes. It
does nothing unless SGLANG_PLUGINS names "ductile" or DUCTILE_SGLANG=1 is in the environment: then
ductile_gpu.memory_saver takes torch_memory_saver's place. Its regions are pools beside PyTorch's
own allocator, or Ductile's own where it is PyTorch's allocator (DUCTILE_TORCH=1).
"""

from __future__ import annotations

import os
import sys
from typing import Any

from ductile_gpu_words import is_on

__all__ = ["PLUGIN", "is_wanted", "register"]

PLUGIN = "ductile"
"""its name in SGLANG_PLUGINS"""

VARIABLE = "DUCTILE_SGLANG"
_ADAPTER = "sglang.srt.utils.torch_memory_saver_adapter"


def is_wanted() -> bool:
    """Does the environment ask for it?"""
    named = [name.strip() for name in os.environ.get("SGLANG_PLUGINS", "").split(",")]
    return PLUGIN in named or is_on(VARIABLE)


def register() -> None:
    """What SGLang calls as it loads its plugins. Doing it again does nothing."""
    if not is_wanted():
        return
    from ductile_gpu import memory_saver

    _choose_pools(memory_saver.torch_memory_saver)
    if sys.modules.get("torch_memory_saver") is not memory_saver:
        sys.modules.pop("torch_memory_saver", None)  # SGLang's adapter is its only user there
        memory_saver.install()
    adapter = sys.modules.get(_ADAPTER)
    if adapter is not None:
        _put_into(adapter, memory_saver)


def _choose_pools(saver: Any) -> None:
    """Pools beside PyTorch's allocator: what SGLang captures and registers elsewhere stays where
    other libraries expect it."""
    if saver._impl is None:
        saver.hook_mode = "torch"


def _put_into(adapter: Any, module: Any) -> None:
    """The adapter has looked for torch_memory_saver already, with or without success."""
    adapter.torch_memory_saver = module
    adapter._memory_saver = module.torch_memory_saver
    adapter.import_error = None
