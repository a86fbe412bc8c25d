# SPDX-License-Identifier: Apache-2.0
"""The largest batch that trains under a cap on memory: native, expandable segments, Ductile.

    python largest_batch.py [--model gpt2,resnet,lora] [--gib 12] [--steps 12]

For each allocator the batch is raised until steps of changing shape no longer fit; each attempt is
a process of its own, so that none inherits the fragmentation of the one before.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

import ductile.torch

HERE = Path(__file__).parent
ALLOCATORS = ("native", "expandable", "ductile")


def attempt(model: str, batch: int, gib: float, steps: int) -> None:
    """Trains within the cap; ends with status 3 when memory runs out."""
    import torch

    sys.path.insert(0, str(HERE))
    import models

    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(gib * 2**30 / total)
    try:
        trainer = models.Trainer(models.make(model, largest=batch))
        for _ in range(steps):
            trainer.step()
        torch.cuda.synchronize()
    except torch.OutOfMemoryError:
        sys.exit(3)


def fits(allocator: str, model: str, batch: int, gib: float, steps: int) -> bool:
    environment = dict(os.environ)
    environment.pop("DUCTILE_TORCH", None)
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        environment.pop(name, None)
        if allocator == "expandable":
            environment[name] = "expandable_segments:True"
    if allocator == "ductile":
        environment = ductile.torch.child_environment("full", environment)
    given = ["--attempt", str(batch), "--model", model, "--gib", str(gib), "--steps", str(steps)]
    status = subprocess.run(
        [sys.executable, __file__, *given], env=environment, check=False
    ).returncode
    if status not in (0, 3):
        raise SystemExit(f"largest_batch: {allocator} ended with status {status}")
    return status == 0


def find_largest(allocator: str, model: str, gib: float, steps: int) -> int:
    """The largest batch that fits, by doubling and halving: larger ones are taken not to."""
    low, high = 0, 8
    while fits(allocator, model, high, gib, steps):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if fits(allocator, model, middle, gib, steps):
            low = middle
        else:
            high = middle
    return low


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="gpt2,resnet,lora")
    parser.add_argument("--gib", type=float, default=12)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--attempt", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.attempt:
        attempt(given.model, given.attempt, given.gib, given.steps)
        return
    for model in given.model.split(","):
        for allocator in ALLOCATORS:
            largest = find_largest(allocator, model, given.gib, given.steps)
            print(f"{model:8}{allocator:12}{largest:5} at {given.gib:g} GiB", flush=True)


if __name__ == "__main__":
    main()
