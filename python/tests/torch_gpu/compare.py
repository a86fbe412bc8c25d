# SPDX-License-Identifier: Apache-2.0
"""Trains under PyTorch's allocator and under Ductile, in turns within one run.

One process per allocator; they take turns on the GPU, so that all see the same machine, and each
trains one model in one go: GPT-2 and a LoRA fine-tune under transformers' Trainer, ResNet-50 in a
loop. For each it prints whether the losses are native's to the bit, the time of a step with its
spread over the rounds, and the peaks of memory held and used.

Ends with status 1 when a model could not be compared or Ductile misses what it is held to: equal
losses, no more than 4 % held above what is used, a step that takes no longer than native's by
more than the noise.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from typing import Any

import allocators
import child
import turns

MOST_OVERHEAD = 0.04  # with room to spare handles are large


# ---- One allocator -----------------------------------------------------------------------------


class Turns:
    """Between steps: waits until it is this process's turn, and says what the turn has brought."""

    def __init__(self, channel: Any, device: str) -> None:
        self.channel, self.device = channel, device
        self.left = 0
        self.losses: list[Any] = []
        self.times: list[float] = []
        self.last = 0.0

    def before_step(self) -> None:
        if self.left == 0:
            line = sys.stdin.readline()
            if not line:
                sys.exit(0)
            self.left = int(line)
            self.last = child.synchronized(self.device)

    def after_step(self, loss: Any) -> None:
        now = child.synchronized(self.device)
        self.times.append(now - self.last)
        self.last = now
        self.losses.append(loss)
        self.left -= 1
        if self.left == 0:
            self._answer()

    def _answer(self) -> None:
        losses = [loss.float().item().hex() for loss in self.losses]
        answer = {"losses": losses, "times": self.times, **child.peak_memory(self.device)}
        self.losses, self.times = [], []
        print(json.dumps(answer), file=self.channel, flush=True)


def serve(model: str, steps: int, device: str, tiny: bool) -> None:
    """Trains as many steps as each line of standard input says, and answers with one line."""
    channel = child.open_channel()
    import models

    models.preload(model)
    if not sys.stdin.readline():  # until here nothing of the GPU is used
        return
    child.be_deterministic("cudnn")
    shapes = models.draw(models.TINY if tiny else models.RANGES[model], steps, seed=0)
    training = models.make(model, shapes, device=device, tiny=tiny)
    own = Turns(channel, device)
    training.train(own.before_step, own.after_step)


def start(allocator: str, model: str, steps: int, flags: list[str]) -> turns.Worker:
    """A process that trains under one allocator. It imports at once, and builds when it is told."""
    where = {**allocators.on_one_gpu(allocator), "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    command = [__file__, "--serve", model, "--total", str(steps), *flags]
    return turns.Worker(allocator, command, where)


# ---- All of them -------------------------------------------------------------------------------


def judge(row: dict[str, Any]) -> list[str]:
    """What Ductile is held to and misses."""
    missed = []
    if not row["losses_equal_to_native"]:
        missed.append("losses differ from native's")
    if row["overhead"] > MOST_OVERHEAD:
        missed.append(f"holds {100 * row['overhead']:.2f} % more than is used")
    if row["time_of_native"] - row["time_of_native_noise"] > 1:
        missed.append("a step takes longer than native's")
    return missed


def collect(
    model: str, workers: dict[str, turns.Worker], given: argparse.Namespace
) -> list[dict[str, Any]]:
    """One row per allocator. The first round is for warming up; its times do not count."""
    deadline = time.monotonic() + given.seconds
    answers: dict[str, list[dict[str, Any]]] = {allocator: [] for allocator in workers}
    for worker in workers.values():
        worker.send("begin")
    for turn in range(given.rounds + 1):
        for allocator in turns.rotated(list(workers), turn):
            workers[allocator].send(str(given.steps))
            answers[allocator].append(workers[allocator].hear(deadline))
    losses = {a: [x for r in answers[a] for x in r["losses"]] for a in answers}
    means = {a: [1e3 * statistics.fmean(r["times"]) for r in answers[a][1:]] for a in answers}
    rows = []
    for allocator, of_rounds in means.items():
        last, own = answers[allocator][-1], losses[allocator]
        ratio, noise = turns.paired(of_rounds, means["native"])
        row = {
            "model": model, "allocator": allocator, "backend": last["backend"],
            "steps": len(own), "losses_equal_to_native": own == losses["native"],
            "first_loss": float.fromhex(own[0]), "last_loss": float.fromhex(own[-1]),
            "step_ms": statistics.fmean(of_rounds),
            "step_ms_spread": statistics.stdev(of_rounds) if len(of_rounds) > 1 else 0.0,
            "time_of_native": ratio, "time_of_native_noise": noise,
            "allocated_peak": last["used"], "reserved_peak": last["held"],
            "overhead": last["held"] / max(last["used"], 1) - 1,
        }  # fmt: skip
        if allocator == "ductile":
            row["missed"] = judge(row)
        rows.append(row)
    return rows


def text_of(row: dict[str, Any]) -> str:
    return (
        f"{row['model']:7}{row['allocator']:11}{row['step_ms']:8.2f} ms, "
        f"{row['time_of_native']:.3f} +-{row['time_of_native_noise']:.3f} of native  losses "
        f"{'equal ' if row['losses_equal_to_native'] else 'DIFFER'}"
        f"  used {row['allocated_peak'] / 2**20:9.1f} MiB  held {row['reserved_peak'] / 2**20:9.1f}"
        f" MiB (+{100 * row['overhead']:.2f} %)"
    )


def compare(model: str, workers: dict[str, turns.Worker], given: argparse.Namespace) -> bool:
    """Prints a model's rows. Is everything as it has to be?"""
    try:
        rows = collect(model, workers, given)
    except turns.Failed as error:
        row = {"model": model, "failed": str(error)}
        print(json.dumps(row) if given.json else f"{model:7}FAILED: {error}", flush=True)
        return False
    for row in rows:
        print(json.dumps(row) if given.json else text_of(row), flush=True)
    missed = rows[-1]["missed"]
    if missed and not given.json:
        print(f"{model:7}MISSED: {'; '.join(missed)}", flush=True)
    return not missed


def parse() -> argparse.Namespace:
    parser = turns.parser(__doc__, "gpt2,resnet,lora", seconds=180)
    parser.add_argument("--rounds", type=int, default=8, help="turns that count; one more warms up")
    parser.add_argument("--steps", type=int, default=16, help="steps of a turn")
    parser.add_argument("--total", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    given = parse()
    if given.serve:
        device = "cpu" if given.cpu_check else "cuda"
        serve(given.serve, given.total, device, given.cpu_check)
        return 0
    import models

    names = given.model.split(",")
    models.check(names)
    flags = ["--cpu-check"] if given.cpu_check else []
    total = (given.rounds + 1) * given.steps
    started = {m: {a: start(a, m, total, flags) for a in allocators.NAMES} for m in names}
    good = []
    try:
        for model, workers in started.items():
            good.append(compare(model, workers, given))
            for worker in workers.values():
                worker.close()
    finally:
        for workers in started.values():
            for worker in workers.values():
                allocators.kill(worker.process)
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
