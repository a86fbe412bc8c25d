# SPDX-License-Identifier: Apache-2.0
"""torch_memory_saver's names and meaning, on Ductile.

    from ductile_gpu.memory_saver import torch_memory_saver

    with torch_memory_saver.region(tag="kv_cache"):
        cache = torch.empty(...)
    torch_memory_saver.pause("kv_cache")
    torch_memory_saver.resume("kv_cache")

A program that imports torch_memory_saver itself needs no change where `install` was called before,
or where it was started within `configure_subprocess`. See
extras/plugins/README.md of Ductile's sources for what is different.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator

from ductile_gpu.memory_saver import testing_utils, utils
from ductile_gpu.memory_saver._saver import HookMode, TorchMemorySaver
from ductile_gpu.memory_saver.hooks import mode_preload

__all__ = [
    "HookMode",
    "TorchMemorySaver",
    "configure_subprocess",
    "install",
    "testing_utils",
    "torch_memory_saver",
    "utils",
]

torch_memory_saver = TorchMemorySaver()
"""The one of the process."""


@contextlib.contextmanager
def configure_subprocess() -> Iterator[None]:
    """Inside, Python programs that are started have Ductile as PyTorch's allocator, and this module
    as torch_memory_saver. In hook mode "torch" nothing changes for them."""
    if torch_memory_saver.is_preload:
        with mode_preload.configure_subprocess():
            yield
    else:
        yield


_NAME = "torch_memory_saver"
_PARTS = ("utils", "testing_utils", "hooks", "hooks.mode_preload")


def install() -> None:
    """Puts this module where `import torch_memory_saver` finds it. Doing it again does nothing.

    Raises:
        RuntimeError: torch_memory_saver itself is imported already; parts of the program may hold
            it. Call this before that import.
    """
    this = sys.modules[__name__]
    found = sys.modules.get(_NAME)
    if found is not None and found is not this:
        raise RuntimeError(
            f"torch_memory_saver is imported already, from {getattr(found, '__file__', '?')}: call "
            "ductile_gpu.memory_saver.install() before the program imports it"
        )
    for part in _PARTS:
        sys.modules[f"{_NAME}.{part}"] = importlib.import_module(f"{__name__}.{part}")
    sys.modules[_NAME] = this
