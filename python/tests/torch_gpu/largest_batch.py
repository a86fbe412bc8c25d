# SPDX-License-Identifier: Apache-2.0
"""The largest batch that trains under a cap on memory: native, expandable segments, Ductile.

The batch stays the same and the length of texts (the width of images) changes at every step. One
process per allocator, all of them at a time; each doubles and halves its batch, and begins every
attempt with empty caches. What the time limit cuts short is a lower bound, and marked.

Ends with status 1 when an allocator could not be tried, or Ductile fits less than another. Takes at
most --seconds for each model and a minute more.
"""

from __future__ import annotations

import argparse
import json
import sys
import time

import allocators
import child
import turns

LENGTHS = {"gpt2": range(128, 513, 32), "lora": range(128, 513, 32), "resnet": range(128, 257, 32)}
MOST_ON_CPU = 5


# ---- One allocator -----------------------------------------------------------------------------


def attempt(model: str, batch: int, steps: int, tiny: bool) -> bool:
    """Trains with batches of one size. Does that fit?"""
    import models
    import torch

    lengths = range(16, 65, 16) if tiny else LENGTHS[model]
    shapes = models.draw(models.Range(range(batch, batch + 1), lengths), steps, seed=0)
    try:
        training = models.make(model, shapes, device="cpu" if tiny else "cuda", tiny=tiny)
        training.train(lambda: None, lambda _loss: None)
        if tiny and batch > MOST_ON_CPU:
            raise torch.OutOfMemoryError
        if not tiny:
            torch.cuda.synchronize()
    except torch.OutOfMemoryError:
        return False
    return True


def serve(given: argparse.Namespace) -> None:
    """Prints one line: the largest batch found, and whether the next larger one was refused."""
    channel = child.open_channel()
    import models

    models.preload(given.serve)
    end = time.monotonic() + given.seconds
    if not given.cpu_check:
        child.set_cap(given.gib * 2**30)
    fits, refused = 0, 0
    batch, longest, left_over = 8, 0.0, 0
    while refused - fits != 1 and time.monotonic() + longest < end:
        begin = time.monotonic()
        if attempt(given.serve, batch, given.steps, given.cpu_check):
            fits = batch
        else:
            refused = batch
        left_over = max(left_over, child.start_afresh())
        longest = max(longest, time.monotonic() - begin)
        batch = (fits + refused) // 2 if refused else 2 * batch
    answer = {"largest": fits, "refused": refused, "exact": refused - fits == 1}
    answer["held_between_attempts"] = left_over
    print(json.dumps(answer), file=channel, flush=True)


# ---- All of them -------------------------------------------------------------------------------


def start(allocator: str, model: str, given: argparse.Namespace) -> turns.Worker:
    where = allocators.training_environment(allocator)
    where.setdefault("CUDA_VISIBLE_DEVICES", "0")
    command = [__file__, "--serve", model, "--gib", str(given.gib)]
    command += ["--steps", str(given.steps), "--seconds", str(given.seconds)]
    if given.cpu_check:
        command.append("--cpu-check")
    return turns.Worker(allocator, command, where)


def find_largest(model: str, given: argparse.Namespace) -> bool:
    """Prints a model's rows. Does Ductile fit no less than the others?"""
    started = {a: start(a, model, given) for a in allocators.NAMES}
    # An attempt that began within the limit may end after it, and libraries take time to import.
    end = time.monotonic() + given.seconds + 60
    found = {a: turns.only_answer(worker, end) for a, worker in started.items()}
    for allocator, answer in found.items():
        row = {"model": model, "allocator": allocator, "gib": given.gib, **answer}
        if given.json:
            print(json.dumps(row), flush=True)
        elif "failed" in answer:
            print(f"{model:7}{allocator:11}FAILED: {answer['failed']}", flush=True)
        else:
            mark = "" if answer["exact"] else " or more: the time was up"
            print(f"{model:7}{allocator:11}{answer['largest']:5} at {given.gib:g} GiB{mark}",
                  flush=True)  # fmt: skip
    if any("failed" in answer for answer in found.values()):
        return False
    most = max(answer["largest"] for answer in found.values())
    return bool(found["ductile"]["largest"] == most)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="gpt2", help="gpt2, resnet or lora, or several")
    parser.add_argument("--gib", type=float, default=16, help="the cap")
    parser.add_argument("--steps", type=int, default=16, help="of each attempt")
    parser.add_argument("--seconds", type=float, default=60, help="limit for each model")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument(
        "--cpu-check", action="store_true", help="tiny models on the CPU, to try out this script"
    )
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(given)
        return 0
    import models

    names = given.model.split(",")
    models.check(names)
    good = [find_largest(name, given) for name in names]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
