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
from typing import Any, Callable

import allocators
import child
import plain_models
import torch
import turns

LENGTHS = {"gpt2": range(128, 513, 32), "lora": range(128, 513, 32), "resnet": range(128, 257, 32)}
MOST_ON_CPU = 5


# ---- One allocator -----------------------------------------------------------------------------


def fits(sizes: Any, steps: int, is_refused: bool, given: argparse.Namespace) -> bool:
    """Trains a model of its own with these sizes. On the CPU, where there is no cap, it is as
    refused as it is told."""
    device = "cpu" if given.cpu_check else "cuda"
    try:
        program = plain_models.make(given.serve, device, given.cpu_check, sizes=sizes)
        for n in range(steps):
            program.step(n)
        child.synchronized(device)
        if given.cpu_check and is_refused:
            raise torch.OutOfMemoryError
    except torch.OutOfMemoryError:
        return False
    return True


def search(
    given: argparse.Namespace,
    first: int,
    following: Callable[[int, int], int],
    does_fit: Callable[[int], bool],
) -> dict[str, Any]:
    """Tries batches until one fits and the next larger one does not, or the time is up, or no
    other follows what fits and what was refused. Every attempt begins with empty caches."""
    end = time.monotonic() + given.seconds
    if not given.cpu_check:
        child.set_cap(given.gib * 2**30)
    most, refused, batch, longest, left_over = 0, 0, first, 0.0, 0
    while batch > 0 and refused - most != 1 and time.monotonic() + longest < end:
        begin = time.monotonic()
        if does_fit(batch):
            most = batch
        else:
            refused = batch
        left_over = max(left_over, child.start_afresh())
        longest = max(longest, time.monotonic() - begin)
        batch = following(most, refused)
    exact = refused - most == 1
    return {"most": most, "refused": refused, "exact": exact, "held_between_attempts": left_over}


def serve(given: argparse.Namespace) -> None:
    """Prints one line: the largest batch found, and whether the next larger one was refused."""
    channel = child.open_channel()

    lengths = range(16, 65, 16) if given.cpu_check else LENGTHS[given.serve]

    def does_fit(batch: int) -> bool:
        sizes = plain_models.drawn(range(batch, batch + 1), lengths)
        return fits(sizes, given.steps, batch > MOST_ON_CPU, given)

    def following(most: int, refused: int) -> int:
        return (most + refused) // 2 if refused else 2 * most

    found = search(given, 8, following, does_fit)
    print(json.dumps({"largest": found.pop("most"), **found}), file=channel, flush=True)


# ---- All of them -------------------------------------------------------------------------------


def ask_all(
    model: str, given: argparse.Namespace, seconds: float, more: Callable[[str], list[str]]
) -> dict[str, dict[str, Any]]:
    """What a process of the running script has found under each allocator, all at a time."""
    end = time.monotonic() + seconds
    started = {}
    for allocator in allocators.NAMES:
        command = [sys.argv[0], "--serve", model, "--gib", str(given.gib), *more(allocator)]
        command += ["--cpu-check"] if given.cpu_check else []
        started[allocator] = turns.Worker(allocator, command, allocators.on_one_gpu(allocator))
    return {a: turns.only_answer(worker, end) for a, worker in started.items()}


def find_largest(model: str, given: argparse.Namespace) -> bool:
    """Prints a model's rows. Does Ductile fit no less than the others?"""
    words = ["--steps", str(given.steps), "--seconds", str(given.seconds)]
    # An attempt that began within the limit may end after it, and libraries take time to import.
    found = ask_all(model, given, given.seconds + 60, lambda _allocator: words)
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
    parser = turns.parser(__doc__, "gpt2", seconds=60)
    parser.add_argument("--gib", type=float, default=16, help="the cap")
    parser.add_argument("--steps", type=int, default=16, help="of each attempt")
    given = parser.parse_args()
    if given.serve:
        serve(given)
        return 0
    turns.split_lists(given, model=turns.TRAININGS)
    good = [find_largest(name, given) for name in given.model]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
