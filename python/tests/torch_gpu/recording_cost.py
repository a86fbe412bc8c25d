# SPDX-License-Identifier: Apache-2.0
"""What recording costs a training loop that the host bounds: a small transformer, step by step.

Runs it without recording, with PyTorch's own history (`record`), and with `record --stacks`, in
turns, and compares the medians of the host time of a step. Each line says whether it costs at most
--most per cent more than none; only `stacks` must. Exit status: 1 when it does not, or a run fails.

With the defaults it takes about two minutes on a GPU (nine processes that import PyTorch and train
220 steps), and ends after --limit seconds with what is known by then.
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
from typing import Any

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


def measure(mode: str, given: argparse.Namespace, seconds: float) -> tuple[float, int]:
    """Host time of a step, and how many events were recorded. Ends the program when it fails, and
    raises TimeoutExpired."""
    worker = [str(HERE), "--worker", "--steps", str(given.steps), "--device", given.device]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, *MODES[mode], *worker],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=seconds,
        )
    if done.returncode != 0:
        sys.exit(f"{mode}: {done.stderr.strip()}")
    counted = re.search(r"([0-9,]+) events", done.stderr)
    events = int(counted.group(1).replace(",", "")) if counted else 0
    return float(json.loads(done.stdout.splitlines()[-1])["ns_per_step"]), events


def gather(given: argparse.Namespace) -> tuple[dict[str, list[float]], float]:
    """Each mode's host time of a step, turn by turn, and the events of a step."""
    found: dict[str, list[float]] = {mode: [] for mode in given.modes.split(",")}
    end = time.monotonic() + given.limit
    events = 0
    try:
        for _ in range(given.turns):
            for mode, values in found.items():
                value, counted = measure(mode, given, end - time.monotonic())
                values.append(value)
                events = max(events, counted)
    except subprocess.TimeoutExpired:
        print(f"the limit of {given.limit:g} s has passed", file=sys.stderr)
    return found, events / (given.steps + WARM)


def compare(given: argparse.Namespace) -> int:
    found, events = gather(given)
    if not all(found.values()):
        print("not all of them were measured", file=sys.stderr)
        return 1
    base = statistics.median(found["none"])
    rows = []
    for mode, values in found.items():
        middle = statistics.median(values)
        more = 100 * (middle / base - 1)
        row = {"mode": mode, "ms_per_step": middle / 1e6, "turns_ms": [v / 1e6 for v in values],
               "more_percent": more, "passed": more <= given.most}  # fmt: skip
        rows.append({**row, "events_per_step": round(events), "most_percent": given.most})
    for row in rows:
        say(row, given.json)
    return int(any(row["mode"] == "stacks" and not row["passed"] for row in rows))


def say(row: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(row))
        return
    each = ", ".join(f"{value:.2f}" for value in row["turns_ms"])
    verdict = "pass" if row["passed"] else "more than that"
    events, more, most = row["events_per_step"], row["more_percent"], row["most_percent"]
    print(
        f"{row['mode']:8}{row['ms_per_step']:8.2f} ms a step ({each}), {events:,} events: "
        f"{more:+.1f} %, at most {most:g}: {verdict}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--most", type=float, default=5.0, metavar="PERCENT")
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--limit", type=float, default=300, help="seconds for all of it (300)")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        train(given.steps, given.device)
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
