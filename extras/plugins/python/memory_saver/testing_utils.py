# SPDX-License-Identifier: Apache-2.0
"""What torch_memory_saver's own examples use of its module of this name."""

from __future__ import annotations

__all__ = ["empty_cache", "get_and_print_gpu_memory", "get_device"]


def get_device() -> str:
    """PyTorch's word for the kind of device."""
    return "cuda"


def empty_cache() -> None:
    """Gives what PyTorch caches back to the device."""
    import torch

    torch.cuda.empty_cache()


def get_and_print_gpu_memory(message: str, gpu_id: int = 0) -> int:
    """The bytes in use on a device, by whomever, as the driver says; printed, too."""
    import torch

    free, total = torch.cuda.mem_get_info(gpu_id)
    print(f"GPU {gpu_id} memory: {(total - free) / 1024**3:.2f} GB ({message})")
    return int(total - free)
