# SPDX-License-Identifier: Apache-2.0
"""Enables Ductile in programs that do not ask for it, as soon as they import torch.

DUCTILE_TORCH in the environment is the request: 1, or a mode of ductile_gpu.torch.enable. Children
inherit it, whether they are forked, spawned, or started by torchrun. What runs this at the start
of every interpreter is ductile_gpu.pth beside it, from Python 3.15 on ductile_gpu.start, or the
sitecustomize that ductile_gpu.torch.child_environment puts first in PYTHONPATH. It stands beside
the package, not in it, so that the package is imported only where it is asked for; and neither
torch nor libductile is touched before the program imports torch.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # typing's, which takes longer to import than this
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any, Optional

VARIABLE = "DUCTILE_TORCH"
_OFF = frozenset(("", "0", "off", "no", "false"))
_MODES = frozenset(("auto", "full", "plain"))


def wanted_mode() -> Optional[str]:
    """The mode that the environment asks for; None for none."""
    value = os.environ.get(VARIABLE, "").strip().lower()
    if value in _OFF:
        return None
    return value if value in _MODES else "auto"


def enable_now() -> None:
    """Enables Ductile if this PyTorch can use a GPU."""
    import torch

    if torch.version.cuda is None:
        return
    import ductile_gpu.torch

    ductile_gpu.torch.enable(wanted_mode() or "auto")


class _AndThen:
    """A loader that enables Ductile once the module is complete."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> Optional[ModuleType]:
        module: Optional[ModuleType] = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        enable_now()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class TorchFinder:
    """Lets the others find torch, and stands in for its loader, once."""

    def find_spec(
        self,
        fullname: str,
        path: Optional[Sequence[str]],
        target: Optional[ModuleType] = None,
    ) -> Optional[ModuleSpec]:
        if fullname != "torch":
            return None
        sys.meta_path.remove(self)
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            spec: Optional[ModuleSpec] = find(fullname, path, target) if find else None
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _AndThen(spec.loader)  # type: ignore[assignment]
                return spec
        return None


def watch() -> None:
    """Enables Ductile now if torch is there already, else when it is imported."""
    if wanted_mode() is None:
        return
    if "torch" in sys.modules:
        enable_now()
    elif not any(type(finder).__name__ == "TorchFinder" for finder in sys.meta_path):
        sys.meta_path.insert(0, TorchFinder())
