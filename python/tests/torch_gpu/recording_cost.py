# SPDX-License-Identifier: Apache-2.0
"""What recording costs a training loop that the host bounds: a small transformer, step by step.

Runs it without recording, with PyTorch's own history (`record`), and with `record --stacks`, in
turns, and compares the medians of the host time of a step. Exit status: 1 when --stacks costs more
than --most per cent.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve()
MODES = {
    "none": [],
    "history": ["-m", "ductile_gpu", "record", "-o", "run.pickle"],
    "stacks": ["-m", "ductile_gpu", "record", "--stacks", "-o", "run.pickle"],
}
WARM = 20


def train(steps: int, device: str) -> None:
    """Prints the median host time of a step, in nanoseconds. Small sizes: the GPU never lags."""
    import torch
    from transformer import Transformer

    model = Transformer(words=1000, layers=12, width=64, heads=4).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    ids = torch.randint(0, 1000, (2, 64), device=device)
    times = []
    for _ in range(WARM + steps):
        begin = time.perf_counter_ns()
        model(ids).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.perf_counter_ns() - begin)
    print(json.dumps({"ns_per_step": statistics.median(times[WARM:])}))


def measure(mode: str, given: argparse.Namespace) -> tuple[float, int]:
    """Host time of a step, and how many events were recorded."""
    worker = [str(HERE), "--worker", "--steps", str(given.steps), "--device", given.device]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, *MODES[mode], *worker],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode != 0:
        sys.exit(f"{mode}: {done.stderr.strip()}")
    counted = re.search(r"([0-9,]+) events", done.stderr)
    events = int(counted.group(1).replace(",", "")) if counted else 0
    return float(json.loads(done.stdout.splitlines()[-1])["ns_per_step"]), events


def compare(given: argparse.Namespace) -> int:
    found: dict[str, list[float]] = {mode: [] for mode in given.modes.split(",")}
    events = 0
    for _ in range(given.turns):
        for mode, values in found.items():
            value, counted = measure(mode, given)
            values.append(value)
            events = max(events, counted)
    base = statistics.median(found["none"])
    for mode, values in found.items():
        middle = statistics.median(values)
        each = ", ".join(f"{value / 1e6:.2f}" for value in values)
        more = 100 * (middle / base - 1)
        print(f"{mode:8} {middle / 1e6:8.2f} ms a step ({each}): {more:+.1f} %")
    print(f"{events / (given.steps + WARM):,.0f} events a step")
    stacks = statistics.median(found.get("stacks", found["none"]))
    return int(stacks > base * (1 + given.most / 100))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--most", type=float, default=5.0, metavar="PERCENT")
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        train(given.steps, given.device)
        return 0
    return compare(given)


if __name__ == "__main__":
    sys.exit(main())
