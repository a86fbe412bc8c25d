# SPDX-License-Identifier: Apache-2.0
"""A training that lasts, in pieces that go on from a checkpoint.

    python lasting.py --state FOLDER --seconds 400                         # a piece under Ductile
    python lasting.py --state FOLDER --seconds 200 --allocators expandable
    extras/lab/run plot FOLDER/ductile.jsonl lasting.svg    # rows of several: cat them

One program under a cap of 16 GiB: a Llama with corrections of low rank, batch and length that
change at every step, a data loader with workers and pinned memory, evaluations with CUDA graphs
that are captured again and again and have to say what the plain way says, checkpoints that are
saved and now and then loaded again, a batch now and then that cannot fit, whose out-of-memory is
caught. FOLDER/ALLOCATOR.pt is where a piece goes on, FOLDER/ALLOCATOR.jsonl has a row for every
ten seconds: memory held and used at most, its fragmentation, step time, retries, refusals.

Ends with status 1 when a piece failed, or Ductile refused a step that is no such batch.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import allocators
import turns

HERE = Path(__file__).parent
GIB = 2**30
SILENCE = 120  # seconds: the first rows wait for imports


def run_piece(allocator: str, given: argparse.Namespace) -> list[dict[str, Any]]:
    """The rows of one piece; they are printed as they come."""
    command = [
        str(HERE / "lasting_piece.py"), "--state", given.state, "--allocator", allocator,
        "--seconds", str(given.seconds), "--steps", str(given.steps), "--every", str(given.every),
        "--cap", str(given.cap), "--device", given.device, "--seed", str(given.seed),
        *(["--tiny"] if given.tiny else []),
    ]  # fmt: skip
    worker = turns.Worker(allocator, command, allocators.training_environment(allocator))
    rows = []
    while row := worker.hear(time.monotonic() + given.every + SILENCE):
        rows.append(row)
        print(json.dumps(row) if given.json else say(row), flush=True)
    worker.wait(time.monotonic() + SILENCE)
    return rows


def say(row: dict[str, Any]) -> str:
    return (
        f"{row['allocator']:10} piece {row['piece']} {row['seconds'] / 60:6.1f} min, step "
        f"{row['step']:6}: {row['step_ms']:.0f} ms (worst {row['worst_ms']:.0f}), held "
        f"{row['held'] / GIB:.2f} GiB, {row['fragmentation_percent']:.1f} % beyond used, retries "
        f"{row['retries']}, refusals {row['refusals']}, caught {row['caught']}, loss {row['loss']}"
    )


def missed(allocator: str, rows: list[dict[str, Any]], given: argparse.Namespace) -> list[str]:
    if not rows:
        return [f"{allocator}: no step was made"]
    last = rows[-1]
    wrong = []
    if given.device == "cuda" and (last["backend"] == "ductile") != (allocator == "ductile"):
        wrong.append(f"{allocator}: the program ran on {last['backend']}")
    if allocator == "ductile" and last["refusals"] > 0:
        wrong.append(f"ductile: {last['refusals']} steps were refused")
    return wrong


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--state", required=True, help="folder of checkpoints and rows")
    parser.add_argument("--seconds", type=float, default=400, help="of each allocator's piece")
    parser.add_argument("--allocators", default="ductile", help=",".join(allocators.NAMES))
    parser.add_argument("--steps", type=int, default=10**9, help="no piece goes beyond this step")
    parser.add_argument("--every", type=float, default=10, help="seconds between rows")
    parser.add_argument("--cap", type=float, default=16, help="GiB that PyTorch may hold")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--seed", type=int, default=0, help="another one has other batches")
    parser.add_argument("--tiny", action="store_true", help="a model for trying out the script")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    given = parser.parse_args()
    unknown = set(given.allocators.split(",")) - set(allocators.NAMES)
    if unknown:
        parser.error(f"no allocator is called {', '.join(unknown)}")
    return given


def main() -> int:
    given = parse()
    Path(given.state).mkdir(parents=True, exist_ok=True)
    wrong = []
    for allocator in given.allocators.split(","):
        try:
            wrong += missed(allocator, run_piece(allocator, given), given)
        except turns.Failed as failure:
            wrong.append(str(failure))
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
