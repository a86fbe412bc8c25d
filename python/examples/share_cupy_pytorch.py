# SPDX-License-Identifier: Apache-2.0
"""CuPy and PyTorch from one allocator: what CuPy frees serves PyTorch. Needs a GPU.

python share_cupy_pytorch.py
"""

from __future__ import annotations

import sys

try:
    import cupy
    import torch
except ImportError as error:
    sys.exit(f"this example needs CuPy and PyTorch: {error}")

import ductile_gpu

GIB = 1 << 30


def main() -> int:
    if not torch.cuda.is_available():
        print("this example needs a GPU that PyTorch can use", file=sys.stderr)
        return 1
    ductile_gpu.share("torch", "cupy")
    weights = torch.ones(1024, 1024, device="cuda")

    array = cupy.arange(GIB // 4, dtype=cupy.float32)
    tensor = torch.as_tensor(array, device="cuda")  # the same memory, no copy
    print(f"CuPy made it, PyTorch adds it up: {tensor.double().sum().item():.0f}")
    del array, tensor
    held = ductile_gpu.shared(0).stats().reserved_bytes

    again = torch.zeros(GIB // 4, device="cuda")
    stats = ductile_gpu.shared(0).stats()
    print(f"held before PyTorch asked for as much: {held / GIB:.2f} GiB")
    print(f"held after:                            {stats.reserved_bytes / GIB:.2f} GiB")
    print(
        f"handles created: {stats.creates}, moved to where they were needed: "
        f"{stats.recycled_handles}"
    )
    del again, weights
    return 0


if __name__ == "__main__":
    sys.exit(main())
