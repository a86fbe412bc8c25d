# SPDX-License-Identifier: Apache-2.0
"""Puts Ductile in torch_memory_saver's place in programs that do not ask for it.

Where LD_PRELOAD names libductile_memory_saver, `import torch_memory_saver` finds Ductile's, and
PyTorch is on Ductile unless DUCTILE_TORCH says otherwise. Children inherit it. It is run at the
start of every interpreter, as ductile_gpu_start is, and imports no more than that does.
"""

from __future__ import annotations

import os
import sys

import ductile_gpu_start

TYPE_CHECKING = False  # typing's, which takes longer to import than this
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Optional


def is_wanted() -> bool:
    """Is Ductile to stand in for torch_memory_saver?"""
    return "libductile_memory_saver" in os.environ.get("LD_PRELOAD", "")


class _Found:
    """A loader for a module that is there already, under another name."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        from ductile_gpu import memory_saver

        self._own = memory_saver.__spec__, memory_saver.__loader__
        return memory_saver

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__, module.__loader__ = self._own
        module.install()


class Finder:
    """Lets `import torch_memory_saver` find Ductile's."""

    def find_spec(
        self,
        fullname: str,
        path: Optional[Sequence[str]],
        target: Optional[ModuleType] = None,
    ) -> Optional[ModuleSpec]:
        if fullname != "torch_memory_saver":
            return None
        from importlib.machinery import ModuleSpec

        return ModuleSpec(fullname, _Found(), is_package=True)  # type: ignore[arg-type]


def watch() -> None:
    """At the start of an interpreter: does what is asked for."""
    if not is_wanted():
        return
    if not any(isinstance(finder, Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, Finder())
    ductile_gpu_start.watch("auto")
