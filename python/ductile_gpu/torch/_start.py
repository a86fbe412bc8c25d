# SPDX-License-Identifier: Apache-2.0
"""What the start-up hook does in a program that has imported torch: enables Ductile, and says once
what is active, or that another allocator is."""

from __future__ import annotations

import contextlib
import functools
import os
from typing import Any, Callable, Optional

from ductile_gpu._binding._abi import VERSION
from ductile_gpu._process import _notes, _share
from ductile_gpu._process._children import is_first_rank
from ductile_gpu.torch import _build, _conf, _later, enable, mode
from ductile_gpu.torch._lazy import torch
from ductile_gpu_words import is_on, one_line, say

QUIET = "DUCTILE_TORCH_QUIET"

_begun = False
_problem: Optional[str] = None


def begin(wanted: Any, failed: Callable[[Exception], None]) -> None:
    """Enables Ductile, in a mode of `enable`, and sees to it that the outcome is told. What that
    raises goes to `failed`. Where the adapter must be compiled first, that waits until needed."""
    global _begun
    if not _begun:
        _begun = True
        torch.cuda._lazy_call(_at_first_use)
    then = functools.partial(_enable, wanted, failed)
    if wanted != "plain" and not torch.cuda.is_initialized() and _is_to_wait():
        _later.wait(then)
    else:
        then()


def _is_to_wait() -> bool:
    """Has the adapter to be compiled, and is nothing else wrong, which is told at once?"""
    try:
        _share.configure({})
        _conf.check(_conf.environment())
    except Exception:
        return False
    return _build.is_to_be_compiled()


def _enable(wanted: Any, failed: Callable[[Exception], None]) -> None:
    global _problem
    try:
        enable(wanted)
    except Warning as told:  # an error by the user's filter: it is on all the same
        say(f"WARNING: {told}")
    except Exception as error:
        _problem = one_line(error)
        failed(error)


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
