# SPDX-License-Identifier: Apache-2.0
"""Trains under PyTorch's allocator and under Ductile, in turns within one run.

    python compare.py [--model gpt2,resnet,lora] [--rounds N] [--steps N] [--json]

One process per allocator; they take turns on the GPU, so that both see the same machine. For each
model it prints whether the losses are the same to the bit, the time of a step with its spread over
the rounds, and the peaks of memory held and used.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import ductile.torch

HERE = Path(__file__).parent
ALLOCATORS = ("native", "expandable", "ductile")


# ---- One allocator -----------------------------------------------------------------------------


def serve(model: str, deterministic: bool) -> None:
    """Takes as many steps as each line of standard input says, and answers with one line."""
    import torch

    sys.path.insert(0, str(HERE))
    import models

    if deterministic:
        torch.use_deterministic_algorithms(True)
        torch.backends.cuda.enable_cudnn_sdp(False)  # its backward pass is not deterministic
        torch.backends.cudnn.benchmark = False
    trainer = models.Trainer(models.make(model))
    for line in sys.stdin:
        losses, times = [], []
        for _ in range(int(line)):
            torch.cuda.synchronize()
            start = time.perf_counter()
            loss = trainer.step()
            torch.cuda.synchronize()
            times.append(time.perf_counter() - start)
            losses.append(loss.float().item().hex())
        answer = {
            "losses": losses,
            "times": times,
            "allocated_peak": torch.cuda.max_memory_allocated(),
            "reserved_peak": torch.cuda.max_memory_reserved(),
            "backend": torch.cuda.get_allocator_backend(),
        }
        print(json.dumps(answer), flush=True)


class Worker:
    """A process that trains under one allocator."""

    def __init__(self, allocator: str, model: str) -> None:
        self.allocator = allocator
        environment = dict(os.environ, CUBLAS_WORKSPACE_CONFIG=":4096:8")
        environment.pop("DUCTILE_TORCH", None)
        for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
            environment.pop(name, None)
            if allocator == "expandable":
                environment[name] = "expandable_segments:True"
        if allocator == "ductile":
            environment = ductile.torch.child_environment("full", environment)
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--serve", model],
            env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def take(self, steps: int) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"compare: the process on {self.allocator} has ended")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


# ---- All of them -------------------------------------------------------------------------------


def compare(model: str, rounds: int, steps: int) -> list[dict[str, Any]]:
    """One line per allocator. The first round is for warming up; its times do not count."""
    workers = [Worker(allocator, model) for allocator in ALLOCATORS]
    answers: dict[str, list[dict[str, Any]]] = {w.allocator: [] for w in workers}
    for turn in range(rounds + 1):
        for worker in workers[turn % len(workers) :] + workers[: turn % len(workers)]:
            answers[worker.allocator].append(worker.take(steps))
    for worker in workers:
        worker.close()
    losses = {a: [x for r in answers[a] for x in r["losses"]] for a in ALLOCATORS}
    out = []
    for allocator in ALLOCATORS:
        means = [1e3 * statistics.fmean(r["times"]) for r in answers[allocator][1:]]
        last = answers[allocator][-1]
        out.append(
            {
                "model": model,
                "allocator": allocator,
                "backend": last["backend"],
                "steps": len(losses[allocator]),
                "losses_equal_to_native": losses[allocator] == losses["native"],
                "step_ms": statistics.fmean(means),
                "step_ms_spread": statistics.stdev(means) if len(means) > 1 else 0.0,
                "allocated_peak": last["allocated_peak"],
                "reserved_peak": last["reserved_peak"],
                "overhead": last["reserved_peak"] / last["allocated_peak"] - 1,
            }
        )
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="gpt2,resnet,lora")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(given.serve, True)
        return
    for model in given.model.split(","):
        for row in compare(model, given.rounds, given.steps):
            if given.json:
                print(json.dumps(row), flush=True)
                continue
            print(
                f"{row['model']:8}{row['allocator']:12}{row['step_ms']:9.2f} ms "
                f"+-{row['step_ms_spread']:6.2f}   losses equal: "
                f"{row['losses_equal_to_native']!s:6} used {row['allocated_peak'] / 2**20:9.1f} MiB"
                f"  held {row['reserved_peak'] / 2**20:9.1f} MiB  (+{100 * row['overhead']:.2f} %)",
                flush=True,
            )


if __name__ == "__main__":
    main()
