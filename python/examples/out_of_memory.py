# SPDX-License-Identifier: Apache-2.0
"""Out of memory, caught: lets go of what the failed attempt holds, and tries again with less.

On a GPU with PyTorch, else on Ductile's virtual GPU; docs/out-of-memory.md explains it.

    python out_of_memory.py
"""

from __future__ import annotations

import sys
from typing import Any, Union

import ductile_gpu

LAYERS, CAP = 8, "1G"


class OnVirtualGPU:
    """Activations are buffers of an allocator."""

    OutOfMemory: type[Exception] = ductile_gpu.OutOfMemory

    def __init__(self) -> None:
        self.allocator = ductile_gpu.Allocator(driver="virtual", limit_bytes=CAP)

    def step(self, batch: int) -> int:
        kept = []
        for _ in range(LAYERS):
            kept.append(self.allocator.buffer(batch << 22))
        return len(kept)

    def live_bytes(self) -> int:
        return self.allocator.stats().allocated_bytes


class OnPyTorch:
    """Activations are tensors."""

    def __init__(self, torch: Any) -> None:
        import ductile_gpu.torch

        ductile_gpu.torch.enable(limit_bytes=CAP)
        self.torch = torch
        self.OutOfMemory: type[Exception] = torch.OutOfMemoryError

    def step(self, batch: int) -> int:
        kept = []
        for _ in range(LAYERS):
            kept.append(self.torch.empty(batch << 22, dtype=self.torch.uint8, device="cuda"))
        return len(kept)

    def live_bytes(self) -> int:
        return int(self.torch.cuda.memory_allocated())


def run_what_fits(gpu: Union[OnVirtualGPU, OnPyTorch], batch: int) -> int:
    """Runs a step, with half the batch as often as memory is short. The batch that fitted."""
    while True:
        try:
            gpu.step(batch)
            return batch
        except gpu.OutOfMemory as error:
            print(f"batch {batch}: {error}")
            # The error has a traceback, that has the frame of step(), and that has its tensors.
            print(f"  in the except clause {gpu.live_bytes() >> 20} MiB are live")
            if batch == 1:
                raise
        # Behind the clause Python has dropped the error, and with it the tensors: retry here.
        print(f"  behind it {gpu.live_bytes() >> 20} MiB")
        batch //= 2


def choose_gpu() -> Union[OnVirtualGPU, OnPyTorch]:
    try:
        import torch
    except ImportError:
        return OnVirtualGPU()
    return OnPyTorch(torch) if torch.cuda.is_available() else OnVirtualGPU()


def main() -> int:
    print(f"batch {run_what_fits(choose_gpu(), 100)} fits in {CAP}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
