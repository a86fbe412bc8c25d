# SPDX-License-Identifier: Apache-2.0
"""The largest batch that a report forecasts, against the largest that trains under the same cap.

Of each model four steps are recorded once, under PyTorch's own allocator (`ductile-gpu record
--stacks`): a warm-up, and one for each of three batches. From them the largest batch is forecast
for native, expandable segments and Ductile. Then each of these trains with that batch, and with
larger or smaller ones until one fits and the next is refused; one process per allocator, all of
them at a time, every attempt in a model of its own with empty caches.

Says for each row whether the forecast is within one of what trains, and ends with status 1 unless
all are. Takes at most --seconds for each model and half a minute more, however many of its rows are
then known; a row that the time cut short has not passed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[3] / "python" / "tests"))

import allocators
import child
import largest_batch
import plain_models
import turns
from largest_size import largest

# Batches of the warm-up and of the steps that the forecast is made from, and the length of texts,
# or the width of images, which stays the same.
RECORDED = {
    "gpt2": ([4, 4, 8, 12], 512),
    "lora": ([4, 4, 8, 12], 512),
    "resnet": ([16, 16, 32, 48], 224),
}
TINY = ([1, 1, 2, 3], 32)
STEPS = 4  # of an attempt
FARTHEST = 8  # from the forecast, that the search goes
OURS = {"native": "classic"}  # what a report calls an allocator, where that is not the name here


def plan(model: str, tiny: bool) -> tuple[list[int], int]:
    return TINY if tiny else RECORDED[model]


# ---- In processes of their own -----------------------------------------------------------------


def train(model: str, batches: list[int], length: int) -> None:
    """One step for each batch."""
    program = plain_models.make(model, sizes=lambda draw: (batches[draw.n], length))
    for n in range(len(batches)):
        program.step(n)
    child.synchronized("cuda")


def serve(given: argparse.Namespace) -> None:
    """From the guess up while it fits, else down until it does."""
    channel = child.open_channel()
    _, length = plan(given.serve, given.cpu_check)
    first = max(1, given.guess)

    def does_fit(batch: int) -> bool:
        return largest_batch.fits(lambda _: (batch, length), STEPS, batch >= given.guess, given)

    def following(most: int, refused: int) -> int:
        batch = most + 1 if most else refused - 1
        return batch if abs(batch - given.guess) <= FARTHEST else 0

    found = largest_batch.search(given, first, following, does_fit)
    row = {"trains": found["most"], "refused": found["refused"], "exact": found["exact"]}
    print(json.dumps(row), file=channel, flush=True)


# ---- Recording and forecasting -----------------------------------------------------------------


def record(model: str, file: Path, given: argparse.Namespace, seconds: float) -> None:
    """Raises RuntimeError."""
    batches, length = plan(model, given.cpu_check)
    words = ["-m", "ductile_gpu", "record", "--stacks", "-o", str(file), __file__]
    words += ["--train", model, "--batches", ",".join(map(str, batches)), "--length", str(length)]
    where = allocators.training_environment("native")
    status, said = allocators.run([sys.executable, *words], seconds, where, file.parent)
    if status != 0 or not file.exists():
        print(said, file=sys.stderr)
        raise RuntimeError("the steps could not be recorded")


def write_stand_in(file: Path) -> None:
    """On the CPU nothing can be recorded: a run of which only the sizes matter."""
    lines = ["# version 2", f"a 1 {200 << 20} 0"]
    for at, batch in enumerate(TINY[0]):
        lines += [f"a {at + 2} {batch * (100 << 20)} 0", f"f {at + 2}", "s"]
    file.write_text("\n".join(lines) + "\n")


def forecast(file: Path, batches: list[int], gib: float) -> tuple[dict[str, int], dict[str, Any]]:
    """The largest batch by allocator, and which are likely at worst and at best."""
    words = ["-m", "ductile_gpu", "report", "--json", "--batch", ",".join(map(str, batches))]
    done = subprocess.run([sys.executable, *words, str(file)], capture_output=True, text=True)
    needs = json.loads(done.stdout)["forecast"]["needs"] if done.returncode == 0 else None
    if needs is None:
        raise ValueError(done.stderr.strip())

    def largest_in(case: str) -> dict[str, int]:
        return {a: largest(needs[OURS.get(a, a)], int(gib * 2**30), case) for a in allocators.NAMES}

    worst, best = largest_in("worst"), largest_in("best")
    return largest_in("expected"), {a: [worst[a], best[a]] for a in worst}


# ---- All of it ---------------------------------------------------------------------------------


def compare(model: str, given: argparse.Namespace) -> list[dict[str, Any]]:
    """A model's rows."""
    end = time.monotonic() + given.seconds
    batches, length = plan(model, given.cpu_check)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / ("run.trace" if given.cpu_check else "run.pickle")
        if given.cpu_check:
            write_stand_in(file)
        else:
            record(model, file, given, given.seconds / 2)
        guesses, likely = forecast(file, batches, given.gib)
    left = end - time.monotonic()
    found = largest_batch.ask_all(
        model, given, left + 30,
        lambda allocator: ["--guess", str(guesses[allocator]), "--seconds", str(left)],
    )  # fmt: skip
    head = {"model": model, "gib": given.gib, "recorded": batches, "length": length}
    return [
        {**head, "allocator": a, "forecast": guesses[a], "likely": likely[a], **row,
         "passed": bool(row.get("exact") and abs(guesses[a] - row["trains"]) <= 1)}
        for a, row in found.items()
    ]  # fmt: skip


def say(row: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(row), flush=True)
        return
    verdict = "pass" if row["passed"] else "FAIL"
    if "allocator" not in row:
        print(f"{row['model']:7}{verdict}: {row['failed']}", flush=True)
        return
    trained = row.get("failed") or f"{row['trains']} trains" + (
        "" if row["exact"] else ", and the search was not ended"
    )
    print(f"{row['model']:7}{row['allocator']:11}{row['gib']:g} GiB: {row['forecast']} forecast "
          f"(likely {row['likely'][0]} to {row['likely'][1]}), {trained}: {verdict}",
          flush=True)  # fmt: skip


def main() -> int:
    parser = turns.parser(__doc__, "gpt2,lora,resnet", seconds=120)
    parser.add_argument("--gib", type=float, default=16, help="the cap")
    for name in ("--train", "--batches"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    for name in ("--guess", "--length"):
        parser.add_argument(name, type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(given)
        return 0
    if given.train:
        train(given.train, [int(word) for word in given.batches.split(",")], given.length)
        return 0
    turns.split_lists(given, model=turns.TRAININGS)
    passed = True
    for model in given.model:
        try:
            rows = compare(model, given)
        except (RuntimeError, ValueError) as error:
            reason = str(error) if isinstance(error, RuntimeError) else "no forecast could be made"
            rows = [{"model": model, "gib": given.gib, "failed": reason, "passed": False}]
            print(error, file=sys.stderr)
        for row in rows:
            say(row, given.json)
        passed = passed and all(row["passed"] for row in rows)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
