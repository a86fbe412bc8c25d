# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: F401, F403
"""PyTorch with its own allocator, on a CUDA runtime without a GPU (fake_runtime.cpp), in a program
that enables Ductile later: on a virtual GPU."""

from __future__ import annotations

import ctypes
import os
import threading
from typing import Any, Callable

from common import *
from common import MIB, _install, ductile_gpu, torch

from ductile_gpu.torch import _build

ON_VIRTUAL_GPU = 1 << 48  # its addresses begin there; those of the runtime end below

runtime = ctypes.CDLL(None)
runtime.fake_used.restype = ctypes.c_size_t
_build.build(_build.describe_torch())
enable, disable = ductile_gpu.torch.enable, ductile_gpu.torch.disable
empty_cache = torch.cuda.empty_cache


def tensor(mib: int) -> torch.Tensor:
    return torch.empty(mib * MIB, dtype=torch.uint8, device="cuda")


def owner(kept: torch.Tensor) -> str:
    """Whose memory it is."""
    return "ductile" if kept.data_ptr() >= ON_VIRTUAL_GPU else "native"


def load_nvml(says: str) -> None:
    """From here on there is a library that says who uses the GPU."""
    os.environ["FAKE_NVML"] = says
    ctypes.CDLL(os.environ["NVML"])


def stat(key: str) -> int:
    """A current one, of both allocators."""
    return int(torch.cuda.memory_stats()[f"{key}.all.current"])


def native_bytes() -> int:
    """What native holds from the driver."""
    return int(runtime.fake_used())


class Held:
    """A thread that is stopped in the middle of its work, until it is let go on."""

    def __init__(self, work: Callable[[Callable[[], None]], Any]) -> None:
        self._reached, self._go_on = threading.Event(), threading.Event()
        self._out: list[Any] = []
        self._thread = threading.Thread(target=lambda: self._out.append(work(self._hold)))
        self._thread.start()
        assert self._reached.wait(60)

    def _hold(self) -> None:
        self._reached.set()
        assert self._go_on.wait(60)

    def finish(self) -> Any:
        self._go_on.set()
        self._thread.join(60)
        assert self._out, "the thread failed"
        return self._out[0]
