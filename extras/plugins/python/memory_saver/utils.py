# SPDX-License-Identifier: Apache-2.0
"""What launchers call of torch_memory_saver's module of this name."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from ductile_gpu import library_path

__all__ = ["change_env", "get_binary_path_from_package", "is_xpu"]

_STEMS = ("torch_memory_saver_hook_mode_preload", "torch_memory_saver_hook_mode_torch")


def get_binary_path_from_package(stem: str) -> Path:
    """The library that launchers name in LD_PRELOAD, and that has the C names.

    Args:
        stem: torch_memory_saver_hook_mode_preload, or _torch: the same file here.

    Raises:
        RuntimeError: another stem, or the package is not complete.
    """
    if stem not in _STEMS:
        raise RuntimeError(f"no library {stem!r}: there are {' and '.join(_STEMS)}")
    path = library_path().with_name("libductile_memory_saver.so")
    if not path.exists():
        raise RuntimeError(f"{path} is missing: install ductile-gpu again")
    return path


def is_xpu() -> bool:
    """Is it an Intel GPU? Ductile serves none."""
    return False


@contextlib.contextmanager
def change_env(key: str, value: str) -> Iterator[None]:
    """Inside, a variable of the environment has this value."""
    before = os.environ.get(key)
    os.environ[key] = value
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(key, None)
        else:
            os.environ[key] = before
