# SPDX-License-Identifier: Apache-2.0
"""DDP and FSDP on several GPUs, under the allocator that the environment asks for.

    DUCTILE_TORCH=1 torchrun --nproc-per-node 2 distributed.py [--steps N]
    torchrun --nproc-per-node 2 distributed.py [--steps N]          # native, to compare

Prints rank 0's losses as a digest, the time of a step, and the peaks of memory, for DDP, FSDP and
FSDP2; and copies tensors between the GPUs of one process.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import statistics
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parent))
import models


def wrap(kind: str, model: torch.nn.Module) -> torch.nn.Module:
    if kind == "ddp":
        return torch.nn.parallel.DistributedDataParallel(model)
    if kind == "fsdp":
        from torch.distributed.fsdp import FullyShardedDataParallel
        from torch.distributed.fsdp.wrap import ModuleWrapPolicy

        return FullyShardedDataParallel(
            model, auto_wrap_policy=ModuleWrapPolicy({models.Block}), use_orig_params=True
        )
    from torch.distributed.fsdp import fully_shard

    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    return model


def train(kind: str, steps: int) -> None:
    torch.use_deterministic_algorithms(True)
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    rank = dist.get_rank()
    training = models.make("gpt2", seed=1, largest=8)
    training = training._replace(
        model=wrap(kind, training.model), batches=models._texts(1, 8), learning_rate=3e-4
    )
    torch.manual_seed(rank)
    trainer = models.Trainer(training)
    losses, times = [], []
    for _ in range(steps):
        torch.cuda.synchronize()
        start = time.perf_counter()
        loss = trainer.step()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
        losses.append(loss.float().item().hex())
    if rank == 0:
        digest = hashlib.sha256("".join(losses).encode()).hexdigest()[:16]
        used, held = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
        print(
            f"{kind:6}{torch.cuda.get_allocator_backend():10}losses {digest}  "
            f"{1e3 * statistics.median(times[steps // 3 :]):8.2f} ms  used {used / 2**20:9.1f} "
            f"MiB  held {held / 2**20:9.1f} MiB (+{100 * (held / used - 1):.2f} %)",
            flush=True,
        )
    dist.barrier()


def copy_between_gpus() -> None:
    """One process reaches every GPU: by peer access where there is any, through the host else."""
    if dist.get_rank() == 0:
        for device in range(1, torch.cuda.device_count()):
            x = torch.arange(1 << 22, device="cuda:0", dtype=torch.float32)
            y = x.to(f"cuda:{device}")
            z = y * 2
            assert torch.equal(z.to("cuda:0"), x * 2)
            del x, y, z
            torch.cuda.empty_cache()
        print("copies between GPUs are right", flush=True)
    dist.barrier()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=24)
    given = parser.parse_args()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl", device_id=torch.device("cuda", int(os.environ["LOCAL_RANK"])))
    for kind in ("ddp", "fsdp", "fsdp2"):
        train(kind, given.steps)
    copy_between_gpus()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
