# SPDX-License-Identifier: Apache-2.0
"""The largest batch that fits, found by being refused, while a larger one may spill to the host.

On a GPU with PyTorch, else on Ductile's virtual GPU; docs/out-of-memory.md explains it.

    python largest_batch.py
"""

from __future__ import annotations

import contextlib
import sys
from typing import Any, Callable

import ductile_gpu

LAYERS, OPTIONS = 8, {"limit_bytes": "1G", "spill_bytes": "2G"}
Empty = Callable[[int], Any]  # bytes


def on_virtual_gpu() -> tuple[Empty, Any, type[Exception]]:
    allocator = ductile_gpu.Allocator(driver="virtual", **OPTIONS)
    return allocator.buffer, allocator.no_spill, ductile_gpu.OutOfMemory


def on_pytorch(torch: Any) -> tuple[Empty, Any, type[Exception]]:
    import ductile_gpu.torch

    ductile_gpu.torch.enable(**OPTIONS)

    def make(size: int) -> Any:
        return torch.empty(size, dtype=torch.uint8, device="cuda")

    return make, ductile_gpu.torch.no_spill, torch.OutOfMemoryError


def choose_gpu() -> tuple[Empty, Any, type[Exception]]:
    with contextlib.suppress(ImportError):
        import torch

        if torch.cuda.is_available():
            return on_pytorch(torch)
    return on_virtual_gpu()


def main() -> int:
    empty, no_spill, refused = choose_gpu()

    def step(batch: int) -> None:
        activations = [empty(batch << 22) for _ in range(LAYERS)]
        del activations

    def fits(batch: int) -> bool:
        try:
            step(batch)
        except refused:
            return False
        return True

    with no_spill():  # without it all of these fit, some of them slowly
        largest = max(batch for batch in range(1, 65) if fits(batch))
    print(f"batch {largest} is the largest that fits in {OPTIONS['limit_bytes']}")
    step(largest + 8)  # an odd one that is larger goes on
    spilled = ductile_gpu.allocators()[0].stats().spilled_peak_bytes
    print(f"batch {largest + 8} ran with {spilled >> 20} MiB from the host")
    return 0


if __name__ == "__main__":
    sys.exit(main())
