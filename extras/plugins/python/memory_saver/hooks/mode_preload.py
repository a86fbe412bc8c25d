# SPDX-License-Identifier: Apache-2.0
"""How child processes come to have Ductile in torch_memory_saver's place."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from ductile_gpu.interface import inherit
from ductile_gpu.memory_saver.utils import change_env, get_binary_path_from_package

__all__ = ["configure_subprocess"]


@contextlib.contextmanager
def configure_subprocess() -> Iterator[None]:
    """Inside, Python programs that are started have Ductile as PyTorch's allocator, and this module
    as torch_memory_saver: LD_PRELOAD names a library, which ductile_gpu_memory_saver takes for the
    sign as they start.
    """
    library = str(get_binary_path_from_package("torch_memory_saver_hook_mode_preload"))
    before = os.environ.get("LD_PRELOAD", "")
    changed = dict(os.environ)
    inherit(changed, None)
    with contextlib.ExitStack() as stack:
        stack.enter_context(change_env("LD_PRELOAD", f"{library}:{before}" if before else library))
        for name in ("PYTHONPATH", "DUCTILE_TORCH_PREFIX"):
            if changed.get(name) != os.environ.get(name):
                stack.enter_context(change_env(name, changed[name]))
        yield
