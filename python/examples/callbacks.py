# SPDX-License-Identifier: Apache-2.0
"""Memory beside the loss: TensorBoard, Weights & Biases. Callbacks of transformers' Trainer and of
Lightning are in launchers/.

python callbacks.py FOLDER          # writes ten steps for TensorBoard; needs a GPU
"""

from __future__ import annotations

import sys
from typing import Any

import ductile_gpu

FIELDS = {
    "held": "reserved_bytes",
    "live": "allocated_bytes",
    "pending": "pending_bytes",
    "free": "free_bytes",
}


def scalars() -> dict[str, float]:
    """What each GPU's allocator holds. Makes no driver call and does not wait for the GPU."""
    found: dict[str, float] = {}
    for allocator in ductile_gpu.allocators():
        device, stats = allocator.device, allocator.stats()
        for name, field in FIELDS.items():
            found[f"ductile/gpu{device}/{name}_gib"] = getattr(stats, field) / 2**30
    return found


def to_tensorboard(writer: Any, step: int) -> None:
    """`writer` is a torch.utils.tensorboard.SummaryWriter."""
    for name, value in scalars().items():
        writer.add_scalar(name, value, step)


def to_wandb(run: Any, step: int) -> None:
    """`run` is what wandb.init() returned; its next log of the step joins them."""
    run.log(scalars(), step=step, commit=False)


def main() -> int:
    """Ten steps, as a training loop would write them."""
    try:
        import torch
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        print(f"this example needs PyTorch and TensorBoard: {error}", file=sys.stderr)
        return 1
    if not torch.cuda.is_available():
        print("this example needs a GPU that PyTorch can use", file=sys.stderr)
        return 1
    ductile_gpu.torch.enable()  # before CUDA is first used
    with SummaryWriter(sys.argv[1] if len(sys.argv) > 1 else None) as writer:
        for step in range(10):
            activations = torch.ones((1 + step) << 20, device="cuda")
            to_tensorboard(writer, step)
            del activations
    return 0


if __name__ == "__main__":
    sys.exit(main())
