# SPDX-License-Identifier: Apache-2.0
"""Ductile: a memory allocator for NVIDIA GPUs that moves what is free to where it is needed.

    import ductile_gpu
    ductile_gpu.torch.enable()          # PyTorch
    ductile_gpu.share()                 # PyTorch, CuPy, Numba and RMM from one allocator

`Allocator` is the allocator itself, `VirtualGPU` a device for those who have none. The modules
`torch`, `cupy`, `numba`, `rmm` and `cuda_core` of this package are imported when they are first
named, and they import their library then. `ductile-gpu --help` shows the commands.
"""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Union

from ductile_gpu import _extras
from ductile_gpu._adapters import share
from ductile_gpu._binding import _abi, _errors
from ductile_gpu._binding._abi import BlockState, CaptureMode, Options, Schedule, Stats, Status
from ductile_gpu._binding._blocks import Block
from ductile_gpu._binding._buffer import Buffer
from ductile_gpu._binding._core import Allocator, Limits
from ductile_gpu._binding._elastic import Elastic, ElasticView
from ductile_gpu._binding._errors import *  # noqa: F403
from ductile_gpu._binding._eviction import Eviction
from ductile_gpu._binding._native import bench_path, include_dir, library_path, schema_path
from ductile_gpu._binding._sleep import Pool, Promoted, Slept
from ductile_gpu._binding._virtual import VirtualGPU, VirtualGraph, VirtualState
from ductile_gpu._process._live import listen
from ductile_gpu._process._metrics import metrics
from ductile_gpu._process._share import allocators, record_stream, shared

if TYPE_CHECKING:
    from ductile_gpu import cuda_core, cupy, numba, rmm, torch  # noqa: F401
    from ductile_gpu._extras import *  # noqa: F403

__version__ = _abi.VERSION

__all__ = [
    "Allocator",
    "Block",
    "BlockState",
    "Buffer",
    "CaptureMode",
    "Elastic",
    "ElasticView",
    "Eviction",
    "Limits",
    "Options",
    "Pool",
    "Promoted",
    "Schedule",
    "Slept",
    "Stats",
    "Status",
    "VirtualGPU",
    "VirtualGraph",
    "VirtualState",
    "__version__",
    "allocators",
    "bench_path",
    "include_dir",
    "library_path",
    "listen",
    "metrics",
    "record_stream",
    "report",
    "schema_path",
    "share",
    "shared",
    *_errors.__all__,
]
__all__ += _extras.names()

_ON_DEMAND = frozenset(("cuda_core", "cupy", "numba", "rmm", "torch"))


def report(path: Union[str, os.PathLike[str]] = "report.html") -> Path:
    """Writes a report of this process: one HTML file, as `ductile-gpu report` makes it.

    Of what PyTorch has recorded, where torch.cuda.memory._record_memory_history is on; otherwise of
    the blocks that are live now on the allocators of the process. Takes seconds: recordings are
    replayed.

    Returns the file. Raises RuntimeError when there is nothing to report or a replay fails, OSError
    when it cannot be written.
    """
    from ductile_gpu._tools._report._live import write_live

    return write_live(path)


if not TYPE_CHECKING:  # who checks types would take every name for one that is there

    def __getattr__(name):
        if name in _ON_DEMAND:
            return importlib.import_module(f"ductile_gpu.{name}")
        return _extras.attribute(name)


def __dir__() -> list[str]:
    return sorted([*__all__, *_ON_DEMAND])
