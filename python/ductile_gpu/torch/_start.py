# SPDX-License-Identifier: Apache-2.0
"""What the start-up hook does in a program that has imported torch: enables Ductile, and says once
what is active, or that another allocator is."""

from __future__ import annotations

import contextlib
import os
from typing import Any, Optional

from ductile_gpu._binding._abi import VERSION
from ductile_gpu._process import _notes, _share
from ductile_gpu._process._children import is_first_rank
from ductile_gpu.torch import enable, mode
from ductile_gpu.torch._lazy import torch
from ductile_gpu_words import is_on, one_line, say

QUIET = "DUCTILE_TORCH_QUIET"

_begun = False
_problem: Optional[str] = None


def begin(wanted: Any) -> None:
    """Enables Ductile, in a mode of `enable`, and sees to it that the outcome is told."""
    global _begun, _problem
    if not _begun:
        _begun = True
        torch.cuda._lazy_call(_at_first_use)
    try:
        enable(wanted)
    except Warning as told:  # an error by the user's filter: it is on all the same
        say(f"WARNING: {told}")
    except Exception as error:
        _problem = one_line(error)
        raise


def _at_first_use() -> None:
    """PyTorch has initialised CUDA, and may allocate. Nothing that fails here concerns it."""
    with contextlib.suppress(Exception):
        _notes.leave(*_outcome())
    with contextlib.suppress(Exception):
        _announce(*_outcome())


def _outcome() -> tuple[str, Optional[str]]:
    """The mode in which PyTorch allocates, and why that is none."""
    found = mode()
    if found == "full" and "PYTORCH_NO_CUDA_MEMORY_CACHING" in os.environ:
        return "off", "PYTORCH_NO_CUDA_MEMORY_CACHING has every tensor from cudaMalloc: unset it"
    if found == "off":
        return found, _problem or "another allocator has taken its place since torch was imported"
    return found, None


def _active_options() -> str:
    given = [
        ",".join(f"{key}:{value}" for key, value in _share.given().items()),
        os.environ.get("DUCTILE_CONF", ""),
    ]
    return ",".join(text for text in given if text) or "default options"


def _announce(found: str, problem: Optional[str]) -> None:
    """What is active, on standard error: once, not in each rank nor again in its children."""
    if not is_first_rank():
        return
    if problem is not None and problem != _problem:  # of that the import of torch has told
        say(f"WARNING: Ductile is off: {problem}")
    if problem is None and not is_on(QUIET):
        say(f"Ductile {VERSION} serves PyTorch {torch.__version__} ({found}; {_active_options()})")
        os.environ[QUIET] = "1"
