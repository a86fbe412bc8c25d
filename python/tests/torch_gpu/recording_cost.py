# SPDX-License-Identifier: Apache-2.0
"""What recording costs a training loop that the host bounds: a small transformer, step by step.

A process without recording and one under `record --stacks` stand side by side and take turns (with
--modes none,history,stacks also one under `record --no-stacks`, PyTorch's own history). For each
mode: the host time of a step, its ratio to that without recording as the mean of the rounds, and
half the width of the 95 % interval. Exit status: 1 when `stacks` costs more than --most per cent,
or a process fails.

With the defaults it ends after --limit seconds, with the rounds that were done by then. Compile the
adapter before (python -m ductile_gpu.torch build): otherwise that is 15 seconds of them.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
import tempfile
import time
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


def train(device: str) -> None:
    """For each number on standard input: does so many steps, and prints the median host time of
    one, in nanoseconds. Small sizes: the GPU never lags."""
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
        times = [step() for _ in range(int(line))]
        print(json.dumps({"ns_per_step": statistics.median(times)}), flush=True)


def start(mode: str, given: argparse.Namespace, folder: str) -> turns.Worker:
    record = [f"{folder}/{word}" if word.endswith(".pickle") else word for word in MODES[mode]]
    command = [*record, str(HERE), "--worker", "--device", given.device]
    return turns.Worker(mode, command, allocators.environment("native"))


def ask(worker: turns.Worker, steps: int, deadline: float) -> float:
    worker.send(str(steps))
    return float(worker.hear(deadline)["ns_per_step"])


def take_turns(
    workers: dict[str, turns.Worker], given: argparse.Namespace, deadline: float
) -> dict[str, list[float]]:
    """Host times of a step by mode, a round after the other. Every other round goes backwards."""
    found: dict[str, list[float]] = {mode: [] for mode in workers}
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


def gather(given: argparse.Namespace) -> tuple[dict[str, list[float]], float]:
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


def compare(given: argparse.Namespace) -> int:
    try:
        found, events = gather(given)
    except turns.Failed as failed:
        print(failed, file=sys.stderr)
        return 1
    if len(found["none"]) < 2:
        print("fewer than two rounds were measured: there is no interval", file=sys.stderr)
        return 1
    is_met = True
    for mode, values in found.items():
        ratio, half = turns.paired(values, found["none"])
        row = {"mode": mode, "ms_per_step": statistics.median(values) / 1e6,
               "turns_ms": [value / 1e6 for value in values], "ratio": ratio, "interval": half,
               "passed": 100 * (ratio - 1) <= given.most, "events_per_step": round(events),
               "most_percent": given.most}  # fmt: skip
        is_met = is_met and (row["passed"] or mode != "stacks")
        say(row, given.json)
    return int(not is_met)


def say(row: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(row))
        return
    verdict = "pass" if row["passed"] else "more than that"
    print(
        f"{row['mode']:8}{row['ms_per_step']:8.2f} ms a step, {row['events_per_step']:,} events: "
        f"ratio {row['ratio']:.3f} +- {row['interval']:.3f} ({len(row['turns_ms'])} rounds), "
        f"at most {1 + row['most_percent'] / 100:g}: {verdict}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60, help="of a turn (60)")
    parser.add_argument("--turns", type=int, default=10, help="rounds (10)")
    parser.add_argument("--most", type=float, default=5.0, metavar="PERCENT")
    parser.add_argument("--modes", default="none,stacks")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--limit", type=float, default=85, help="seconds for all of it (85)")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        train(given.device)
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
