# SPDX-License-Identifier: Apache-2.0
"""What recording costs a training loop that the host bounds: a small transformer, step by step.

A process without recording and one under `record --stacks` stand side by side and take turns (with
--modes none,history,stacks also one under `record --no-stacks`, PyTorch's own history), many short
ones on the same processors. For each mode: the host time of a step, by the clock and of the
processors (all threads of the process), and the ratios to those without recording: the median of
the rounds and the bounds of its 95 % interval, which hold whatever the noise looks like. Exit
status: 1 when `stacks` costs more than --most per cent of the step by the clock, or a process
fails.

It ends after --limit seconds, with the rounds that were done by then. Compile the adapter before
(python -m ductile_gpu.torch build): otherwise that is half a minute of them.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import allocators
import turns

HERE = Path(__file__).resolve()
MODES = {
    "none": [],
    "history": ["-m", "ductile_gpu", "record", "--no-stacks", "-o", "history.pickle"],
    "stacks": ["-m", "ductile_gpu", "record", "--stacks", "-o", "stacks.pickle"],
}
WARM = 20
TO_END = 20.0  # seconds that a long recording may take to be written


def train(device: str, cpus: int) -> None:
    """For each number on standard input: does so many steps, and prints the median host time of
    one and the mean of what it takes of the processors, in nanoseconds. Small sizes: the GPU never
    lags."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-cpus:])
    import torch
    from transformer import Transformer

    model = Transformer(words=1000, layers=12, width=64, heads=4).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    ids = torch.randint(0, 1000, (2, 64), device=device)

    def step() -> int:
        begin = time.perf_counter_ns()
        model(ids).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        return time.perf_counter_ns() - begin

    for line in sys.stdin:
        begin = time.process_time_ns()
        times = [step() for _ in range(int(line))]
        spent = (time.process_time_ns() - begin) / len(times)
        print(json.dumps({"wall": statistics.median(times), "cpu": spent}), flush=True)


def start(mode: str, given: argparse.Namespace, folder: str) -> turns.Worker:
    record = [f"{folder}/{word}" if word.endswith(".pickle") else word for word in MODES[mode]]
    command = [*record, str(HERE), "--worker", "--device", given.device, "--cpus", str(given.cpus)]
    return turns.Worker(mode, command, allocators.environment("native"))


Times = dict[str, float]  # "wall" and "cpu", in nanoseconds a step


def ask(worker: turns.Worker, steps: int, deadline: float) -> Times:
    worker.send(str(steps))
    return dict(worker.hear(deadline))


def take_turns(
    workers: dict[str, turns.Worker], given: argparse.Namespace, deadline: float
) -> dict[str, list[Times]]:
    """Host times of a step by mode, a round after the other. Every other round goes backwards."""
    found: dict[str, list[Times]] = {mode: [] for mode in workers}
    for worker in workers.values():
        worker.send(str(WARM))
    for worker in workers.values():
        worker.hear(deadline)
    longest = 0.0
    for number in range(given.turns):
        begin = time.monotonic()
        if begin + longest > deadline:
            print(f"{number} rounds: the limit of {given.limit:g} s is near", file=sys.stderr)
            break
        for mode in list(workers)[:: -1 if number % 2 else 1]:
            found[mode].append(ask(workers[mode], given.steps, deadline))
        longest = max(longest, time.monotonic() - begin)
    return found


def count_events(worker: turns.Worker, deadline: float) -> int:
    """Has the process end; how many events it says that it recorded."""
    assert worker.process.stdin is not None
    worker.process.stdin.close()
    worker.wait(deadline)
    worker.said.seek(0)
    counted = re.search(r"([0-9,]+) events", worker.said.read())
    return int(counted.group(1).replace(",", "")) if counted else 0


def gather(given: argparse.Namespace) -> tuple[dict[str, list[Times]], float]:
    """Each mode's host time of a step, round by round, and the events of a step."""
    end = time.monotonic() + given.limit
    workers: dict[str, turns.Worker] = {}
    with tempfile.TemporaryDirectory() as folder:
        try:
            for mode in given.modes.split(","):
                workers[mode] = start(mode, given, folder)
            found = take_turns(workers, given, end - min(TO_END, given.limit / 3))
            events = max(count_events(worker, end) for worker in workers.values())
        finally:
            for worker in workers.values():
                worker.close()
    return found, events / (given.steps * len(found["none"]) + WARM)


def median_of_rounds(ratios: Sequence[float]) -> tuple[float, float, float]:
    """The median, and the bounds of its 95 % interval, which are two of the ratios: as many lie
    below the median as heads fall in so many throws of a coin."""
    ordered, n = sorted(ratios), len(ratios)
    chance, rank = 0.5**n, 0
    while chance <= 0.025 and rank < n // 2:
        rank += 1
        chance += math.comb(n, rank) * 0.5**n
    outermost = max(0, rank - 1)
    return statistics.median(ordered), ordered[outermost], ordered[n - 1 - outermost]


def compare(given: argparse.Namespace) -> int:
    try:
        found, events = gather(given)
    except turns.Failed as failed:
        print(failed, file=sys.stderr)
        return 1
    n = len(found["none"])
    if n < 6:  # the interval would have less than 95 %
        print(f"{n} rounds were measured: fewer than six have no interval", file=sys.stderr)
        return 1
    is_met = True
    for mode, values in found.items():
        row: dict[str, Any] = {"mode": mode, "rounds": n, "steps_of_a_turn": given.steps,
               "cpus": given.cpus, "events_per_step": round(events)}  # fmt: skip
        for clock in ("wall", "cpu"):
            ratios = [one[clock] / none[clock] for one, none in zip(values, found["none"])]
            ratio, low, high = median_of_rounds(ratios)
            row[clock] = {"ms_per_step": statistics.median(one[clock] for one in values) / 1e6,
                          "ratio": ratio, "low": low, "high": high}  # fmt: skip
        row["most_percent"] = given.most
        row["passed"] = 100 * (row["wall"]["ratio"] - 1) <= given.most
        is_met = is_met and (row["passed"] or mode != "stacks")
        say(row, given.json)
    return int(not is_met)


def say(row: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(row))
        return
    clocks = "; ".join(
        f"{clock} {row[clock]['ms_per_step']:.2f} ms a step, ratio {row[clock]['ratio']:.3f} "
        f"({row[clock]['low']:.3f} to {row[clock]['high']:.3f})"
        for clock in ("wall", "cpu")
    )
    verdict = "pass" if row["passed"] else "more than that"
    print(
        f"{row['mode']:8}{clocks}; {row['rounds']} rounds, {row['events_per_step']:,} events a "
        f"step, at most {1 + row['most_percent'] / 100:g}: {verdict}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=8, help="of a turn (8)")
    parser.add_argument("--turns", type=int, default=5000, help="most rounds (5000)")
    parser.add_argument("--cpus", type=int, default=2, help="of each process (2)")
    parser.add_argument("--most", type=float, default=10.0, metavar="PERCENT")
    parser.add_argument("--modes", default="none,stacks")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--limit", type=float, default=85, help="seconds for all of it (85)")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        train(given.device, given.cpus)
        return 0
    modes = given.modes.split(",")
    unknown = [mode for mode in modes if mode not in MODES]
    if unknown:
        parser.error(f"--modes: there is no {unknown[0]}: there are {', '.join(MODES)}")
    if "none" not in modes:
        parser.error("--modes: the others are compared with none")
    return compare(given)


if __name__ == "__main__":
    sys.exit(main())
