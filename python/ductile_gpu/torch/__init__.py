# SPDX-License-Identifier: Apache-2.0
"""PyTorch on Ductile.

    import torch
    import ductile_gpu.torch
    ductile_gpu.torch.enable()

Every new tensor of the process then comes from Ductile: in all streams, under graphs, in pools, in
autograd's and NCCL's threads. What PyTorch's own allocator has served before stays with it until it
is freed. PyTorch's memory tools go on working. `ductile-gpu run` and DUCTILE_TORCH=1 do the same
without a change to the program; see docs/pytorch.md.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import warnings
from typing import TYPE_CHECKING, Literal

from ductile_gpu._binding import _abi
from ductile_gpu._binding._errors import Busy
from ductile_gpu._process import _share
from ductile_gpu._process._children import child_environment
from ductile_gpu.torch import _conf, _elastic, _install, _plain, _spilling, _tags
from ductile_gpu.torch._build import BuildError, FailedBefore
from ductile_gpu.torch._conf import Setting, Treatment
from ductile_gpu.torch._elastic import *  # noqa: F403
from ductile_gpu.torch._inspect import TensorBlock, block_of
from ductile_gpu.torch._install import TooLate
from ductile_gpu.torch._spilling import *  # noqa: F403
from ductile_gpu.torch._tags import *  # noqa: F403

if TYPE_CHECKING:
    import torch
    from typing_extensions import Unpack

    from ductile_gpu._binding._abi import Options

__all__ = [
    "BuildError",
    "Setting",
    "TensorBlock",
    "TooLate",
    "Treatment",
    "block_of",
    "child_environment",
    "disable",
    "enable",
    "is_active",
    "mem_pool",
    "mode",
    "settings",
    *_elastic.__all__,
    *_spilling.__all__,
    *_tags.__all__,
]

Mode = Literal["auto", "full", "plain"]
_logger = logging.getLogger("ductile_gpu")


def enable(mode: Mode = "auto", **options: Unpack[Options]) -> None:
    """Makes Ductile the allocator of PyTorch in this process, at any time, also after `disable`.

    Doing it again does nothing. The first time on a machine a small C++ adapter is compiled against
    the installed PyTorch (about half a minute, of which a line tells on standard error; kept for
    later). CUDA is not initialised by this call, so a program may still fork.

    Where CUDA is in use, tensors, memory pools and graphs stay with PyTorch's own allocator, which
    gives its free memory back; new memory comes from Ductile. While a pool or a capture is open
    that began before, new memory still comes from there: a warning says so.

    Options may be given or changed until something is allocated on a GPU: by another call, also
    after `disable`, and where DUCTILE_TORCH or `ductile-gpu run` has enabled Ductile.

    Arguments:
        mode: "full" wants the adapter. "plain" does without a compiler, by the functions of
            PyTorch's pluggable allocator: tensors, streams and graphs work; what PyTorch offers no
            hook for does not (see docs/pytorch.md). "auto" is "full" and, where the adapter cannot
            be loaded or compiled, "plain" with a warning that says why.
        options: options of Ductile by name, as in DUCTILE_CONF: enable(limit_bytes="40G").

    Raises:
        TooLate: a CUDA graph is being captured on the current stream; CUDA is in use and the mode
            is "plain"; a process group of NCCL registers all memory by its allocator hook; another
            allocator has been made PyTorch's since.
        ImportError: PyTorch cannot be imported.
        BuildError: the adapter cannot be loaded or compiled, and mode is "full".
        RuntimeError: PyTorch's allocator is not its own native one; a GPU that is in use cannot be
            opened. Nothing has changed.
        ValueError: PyTorch's allocator settings name another allocator; no such mode or option.
        Busy: Ductile is on already in another mode, or has served memory with other options.
    """
    if mode not in ("auto", "full", "plain"):
        raise ValueError(f"mode is 'auto', 'full' or 'plain', not {mode!r}")
    import torch  # noqa: F401 -- the start-up hook may call this while torch is imported

    _refuse_other_mode(mode)
    with _share.configured(options) as wanted:
        if not is_active():
            _install_as(mode, wanted)
        _spilling.watch(wanted)


def disable() -> None:
    """Gives new memory back to PyTorch's own allocator; where Ductile is off it does nothing.

    What Ductile has served stays with it until it is freed, and so do its memory pools; it gives
    its free memory back to the device. `enable` makes it serve again.

    Raises:
        TooLate: a CUDA graph is being captured on the current stream, or another allocator has been
            made PyTorch's since.
        RuntimeError: the mode is "plain", from which there is no way back.
    """
    if mode() == "plain":
        raise RuntimeError(
            "Ductile runs behind PyTorch's pluggable interface, which cannot be left: enable(mode="
            "'full') can"
        )
    if is_active():
        _install.leave()
        _logger.info("PyTorch allocates from its own allocator")


def _refuse_other_mode(wanted: Mode) -> None:
    if is_active() and wanted not in ("auto", mode()):
        raise Busy(
            _abi.Status.ERR_BUSY,
            f"Ductile is on already, in mode '{mode()}': give the mode in the first call, or in "
            "DUCTILE_TORCH",
        )


def _install_as(mode: Mode, options: Options) -> None:
    if mode == "plain":
        return _plain.install(options)
    try:
        _install.install(options)
    except BuildError as error:
        if mode == "full":
            raise
        _plain.install(options)
        _tell_why_plain(error)
    _logger.info("PyTorch allocates from Ductile")


def _tell_why_plain(error: BuildError) -> None:
    """Says it in every program, but for what is known already, not in each of its ranks again."""
    text = (
        f"Ductile runs behind PyTorch's pluggable interface, because {error}. "
        f"Not available: {', '.join(_plain.MISSING)}"
    )
    is_one_of_many = multiprocessing.parent_process() or os.environ.get("LOCAL_RANK", "0") != "0"
    if isinstance(error, FailedBefore) and is_one_of_many:
        _logger.info(text)
    else:
        warnings.warn(text, RuntimeWarning, stacklevel=4)


def mode() -> Literal["full", "plain", "off"]:
    """How Ductile is installed: "full", "plain", or "off"."""
    if _install.is_installed():
        return "full"
    return "plain" if _plain.is_installed() else "off"


def is_active() -> bool:
    """Do this process's CUDA tensors come from Ductile?"""
    return mode() != "off"


def settings() -> list[Setting]:
    """The keys of PYTORCH_CUDA_ALLOC_CONF, with what becomes of each under Ductile."""
    return _conf.describe(_conf.environment())


def mem_pool(use_on_oom: bool = False, no_split: bool = False) -> torch.cuda.MemPool:
    """A torch.cuda.MemPool whose memory comes from Ductile, whatever the process's allocator is.

    For buffers that are to be kept apart while PyTorch's native allocator serves the rest:
    `with torch.cuda.use_mem_pool(ductile_gpu.torch.mem_pool()): ...`
    """
    return _plain.mem_pool(use_on_oom, no_split)
