# SPDX-License-Identifier: Apache-2.0
"""Steps of real programs under native, expandable segments and Ductile: where a user feels an
allocator.

    python steps.py                           # everything; less than six minutes on an H200
    python steps.py --quick                   # one repeat of each
    python steps.py --models gpt2,moe --parts first --repeats 5

  first   the first step and the first five of a program that begins, then the others: a process
          for each program, allocator and repeat, which take turns
  near    the same steps with a cap, at 60, 90, 98 and 100.5 % of what fits: the cap is what
          `first` saw in use, divided by 0.60, 0.90 and 0.98; 100.5 % is a cap 0.5 % above what is
          in use. Retries: how often PyTorch had to give its cache back; refusals: steps that ran
          out of memory

Programs are those of plain_models.py. A process imports while others run, and begins on the GPU in
its turn; one of each program, which is not counted, goes before all, so that files are in memory.
A figure is the median of the repeats; of a step's time the mean, the 99th percentile and the worst,
behind the first five. Noise is the furthest that two repeats of expandable segments are apart.

Ends with status 1 when something failed, or Ductile misses what it is held to: first five steps
within 5 % of expandable's, steps that take no longer by more than the noise, no refusal under any
of these caps.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Callable, NamedTuple, TextIO

import allocators
import child
import turns

MODELS = ("gpt2", "lora", "resnet", "moe", "graph", "generate")
PERCENTS = (60.0, 90.0, 98.0, 100.5)
FIRST = 5
MOST_OF_EXPANDABLE = 1.05
AHEAD = 3  # processes that import while another has its turn
Row = dict[str, Any]


# ---- Processes that take turns -----------------------------------------------------------------


class Job(NamedTuple):
    """What one process is to do: a program under an allocator, once for each cap."""

    model: str
    allocator: str
    repeat: int


class Runner:
    """Starts processes before their turn, so that they have imported when it comes."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given
        self.end = time.monotonic() + given.limit
        self.started: dict[Job, turns.Worker] = {}

    def left(self) -> float:
        return self.end - time.monotonic()

    def start(self, job: Job) -> turns.Worker:
        if job not in self.started:
            name = f"{job.model}, {job.allocator}"
            self.started[job] = turns.program_worker(name, job.allocator, self.given.cpu_check)
        return self.started[job]

    def ask(self, job: Job, cap: int, steps: int = 0) -> Row:
        """One answer, or {"error": why there is none}."""
        deadline = time.monotonic() + min(self.given.seconds, max(1.0, self.left() + 20))
        worker = self.start(job)
        row = worker.answer(deadline, do="begin", program=job.model, cap=cap)
        row = {"setup_ms": None, "times_ms": [], **row}
        if "error" not in row and not row["refusals"]:
            count = steps or self.given.steps
            row.update(worker.answer(deadline, do="steps", count=count, each=True))
        if "error" in row:
            self.stop(job)
        return row

    def stop(self, job: Job) -> None:
        worker = self.started.pop(job, None)
        if worker is not None:
            worker.close()

    def in_turn(self, groups: Sequence[Sequence[Job]]) -> Iterator[Sequence[Job]]:
        """The groups of jobs, one after another, those behind it started, until the time is up."""
        for at, group in enumerate(groups):
            if self.left() <= 0:
                say(f"{len(groups) - at} more were not begun: the time is up")
                return
            behind = [job for later in groups[at + 1 :] for job in later]
            for job in (*group, *behind[: max(0, AHEAD - len(group) + 1)]):
                self.start(job)
            yield group
            for job in group:
                self.stop(job)

    def close(self) -> None:
        for job in list(self.started):
            self.stop(job)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def cap_of(percent: float, used: int) -> int:
    """A load of 60 % is a cap of used / 0.6; above 100, so many per cent of what is used."""
    return math.ceil(used * percent / 100 if percent > 100 else used / (percent / 100))


def play_first(runner: Runner, repeats: Iterable[int]) -> Iterator[Row]:
    """One process each. The order of allocators changes with repeat and program."""
    given = runner.given
    jobs = [
        Job(model, allocator, repeat)
        for repeat in repeats
        for at, model in enumerate(given.models)
        for allocator in turns.rotated(given.allocators, repeat + at)
    ]
    for (job,) in runner.in_turn([[job] for job in jobs]):
        yield {"part": "first", **job._asdict(), **runner.ask(job, 0)}


def warm_up(runner: Runner) -> None:
    """One process of each program, so that what all read from disk is in memory."""
    jobs = [Job(model, runner.given.allocators[0], -2) for model in runner.given.models]
    for (job,) in runner.in_turn([[job] for job in jobs]):
        answer = runner.ask(job, 0, steps=2)
        say(f"{job.model:9}warming up{': ' + answer['error'] if 'error' in answer else ''}")


def play_near(runner: Runner, used: dict[str, int]) -> Iterator[Row]:
    """Each program's processes stand side by side, and take turns at every cap."""
    given = runner.given
    models = [model for model in given.models if model in used]
    groups = [[Job(model, allocator, -1) for allocator in given.allocators] for model in models]
    for group in runner.in_turn(groups):
        for turn, percent in enumerate(PERCENTS):
            cap = cap_of(percent, used[group[0].model])
            for job in turns.rotated(group, turn):
                head = {**job._asdict(), "part": "near", "percent": percent}
                del head["repeat"]
                if runner.left() <= 0:
                    yield {**head, "error": "not begun: the time is up"}
                else:
                    yield {**head, "cap": cap, **runner.ask(job, cap)}


# ---- What came of it ---------------------------------------------------------------------------


def figures(row: Row) -> dict[str, float]:
    """Of one run. Steps after the first ones are counted only where there are some."""
    times = row.get("times_ms", [])
    found = {}
    if row.get("setup_ms") is not None and times:
        found["to_first"] = row["setup_ms"] + times[0]
    if len(times) >= FIRST:
        found["first_step"], found["first_five"] = times[0], sum(times[:FIRST])
    rest = times[FIRST:]
    if rest:
        found.update(mean=statistics.fmean(rest), p99=turns.percentile(rest, 99), worst=max(rest))
    return found


def group_by(rows: Iterable[Row], *keys: str) -> dict[tuple[Any, ...], list[Row]]:
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(tuple(row[key] for key in keys), []).append(row)
    return found


def medians(rows: Sequence[Row]) -> dict[str, float]:
    each = [figures(row) for row in rows if "error" not in row and not row["refusals"]]
    names = dict.fromkeys(name for one in each for name in one)
    return {name: statistics.median([one[name] for one in each if name in one]) for name in names}


def noise(rows: Sequence[Row], name: str) -> float | None:
    """How far two runs of the same thing are apart, at most; None where there are no two."""
    values = [found[name] for row in rows if "error" not in row and name in (found := figures(row))]
    return max(values) / min(values) - 1 if len(values) > 1 else None


def judge_first(rows: Sequence[Row]) -> Iterator[str]:
    """What Ductile is held to and misses where there is room."""
    cells = group_by([row for row in rows if row["part"] == "first"], "model", "allocator")
    for model in dict.fromkeys(model for model, _ in cells):
        own, other = (cells.get((model, name), []) for name in ("ductile", "expandable"))
        mine, theirs = medians(own), medians(other)
        if "first_five" in mine and "first_five" in theirs:
            ratio = mine["first_five"] / theirs["first_five"]
            if ratio > MOST_OF_EXPANDABLE:
                yield f"{model}: first five steps take {ratio:.3f} of expandable's"
        for name in ("mean", "p99", "worst"):
            apart = noise(other, name)
            if apart is not None and name in mine and mine[name] / theirs[name] > 1 + apart:
                ratio = mine[name] / theirs[name]
                yield f"{model}: {name} step is {ratio:.3f} of expandable's, noise {apart:.3f}"


def judge(rows: Sequence[Row]) -> list[str]:
    missed = list(judge_first(rows))
    for row in rows:
        if "error" in row or row["allocator"] != "ductile":
            continue
        where = f"{row['model']}, {row['part']}"
        if "percent" in row:
            where += f" {row['percent']:g} %"
        if row["backend"] not in ("ductile", "cpu"):
            missed.append(f"{where}: is not on Ductile")
        if row["refusals"]:
            missed.append(f"{where}: {row['refusals']} steps were refused")
    return missed


def summary(rows: Iterable[Row]) -> Iterator[str]:
    """What was begun, by program and allocator: of its turns the medians in ms, and where there are
    several the least and the most."""
    for (model, allocator), own in group_by(rows, "model", "allocator").items():
        each = [figures(row) for row in own if "error" not in row and not row["refusals"]]
        said = [f"{len(each)} turns"]
        for name in dict.fromkeys(itertools.chain(*each)):
            values = [one[name] for one in each if name in one]
            apart = f" ({min(values):,.1f}-{max(values):,.1f})" if len(values) > 1 else ""
            said.append(f"{name} {statistics.median(values):,.1f}{apart}")
        yield f"{model:9}{allocator:11}{', '.join(said)}"


def text_of(rows: Sequence[Row]) -> str:
    return "\n".join([
        *summary([row for row in rows if row["part"] == "first"]),
        *(f"FAILED: {row['model']}, {row['allocator']}, {row['part']}: {row['error']}"
          for row in rows if "error" in row),
        *(f"MISSED: {text}" for text in judge(rows)),
    ])  # fmt: skip


# ---- The command -------------------------------------------------------------------------------


def said_by(*command: str) -> str:
    """The first line of what a command says; nothing when it cannot be run."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=30,
            cwd=Path(__file__).parent,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return ""
    return (done.stdout.splitlines() or [""])[0]


def where_from(script: str = "steps.py") -> Row:
    """Machine, GPU and driver, versions, commit and command, for every row."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    cpu = next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "?"
    )
    gpu = said_by("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")
    commit = os.environ.get("DUCTILE_COMMIT") or said_by("git", "describe", "--always", "--dirty")
    words = [
        Path(word).name if word.startswith("/") else word  # no path of the machine
        for word, before in zip(sys.argv[1:], sys.argv)
        if "--output" not in (word, before)
    ]
    return {
        "machine": f"{cpu}, {os.cpu_count()} cores",
        "gpu": gpu or "none",
        "versions": f"python {platform.python_version()}, torch {metadata.version('torch')}",
        "commit": commit or "unknown",
        "command": " ".join([script, *words]),
    }


class Book:
    """Rows, kept as they come: a run that is ended keeps those it has."""

    def __init__(
        self, given: argparse.Namespace, script: str, describe: Callable[[Row], str]
    ) -> None:
        self.rows: list[Row] = []
        self.where = where_from(script)
        self.describe, self.json = describe, given.json
        self.file: TextIO | None = (
            given.output.open("w", encoding="utf-8") if given.output else None
        )

    def take(self, rows: Iterable[Row]) -> list[Row]:
        for row in rows:
            self.rows.append(row)
            whole = json.dumps({**row, **self.where})
            if self.json:
                print(whole, flush=True)
            if self.file is not None:
                print(whole, file=self.file, flush=True)
            say(self.describe(row))
        return self.rows


def describe(row: Row) -> str:
    place = f"{row['percent']:g} %" if "percent" in row else f"repeat {row.get('repeat')}"
    head = f"{row['model']:9}{row['allocator']:11}{row['part']} {place:9}"
    if "error" in row:
        return f"{head} FAILED: {row['error']}"
    times = (f"{name} {value:,.1f}" for name, value in figures(row).items())
    counts = (f"{row[name]} {name}" for name in (*child.COUNTS, "refusals") if name in row)
    share = f"uses {row['used'] / max(1, row['held']):.3f} of what it holds"
    return f"{head} {', '.join([*times, *counts, share])}"


def most_used(rows: Iterable[Row]) -> dict[str, int]:
    """The most that any allocator had in use, so that a cap refuses none what it needs."""
    found: dict[str, int] = {}
    for row in rows:
        if row["part"] == "first" and "error" not in row and not row["refusals"]:
            found[row["model"]] = max(found.get(row["model"], 0), row["used"])
    return found


def play(given: argparse.Namespace) -> list[Row]:
    """One repeat of everything first: what the time limit takes are repeats."""
    runner, book = Runner(given), Book(given, "steps.py", describe)
    try:
        warm_up(runner)
        book.take(play_first(runner, range(1)))
        if "near" in given.parts:
            book.take(play_near(runner, most_used(book.rows)))
        if "first" in given.parts:
            book.take(play_first(runner, range(1, given.repeats)))
    finally:
        runner.close()
    return book.rows


def add_output(parser: argparse.ArgumentParser) -> None:
    """What a Book wants to be told."""
    parser.add_argument("--output", type=Path, help="also write rows to this file, as JSON lines")
    parser.add_argument("--json", action="store_true", help="rows instead of text")


def add_what_becomes_of_rows(parser: argparse.ArgumentParser) -> None:
    add_output(parser)
    parser.add_argument(
        "--cpu-check", action="store_true", help="tiny programs on the CPU, to try out this script"
    )


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", default=",".join(MODELS), help="which, separated by commas")
    parser.add_argument("--allocators", default=",".join(allocators.NAMES), help="which")
    parser.add_argument("--parts", default="first,near", help="which")
    parser.add_argument("--repeats", type=int, default=3, help="of `first`")
    parser.add_argument("--steps", type=int, default=24, help="of a run")
    parser.add_argument("--quick", action="store_true", help="one repeat")
    parser.add_argument("--seconds", type=float, default=60, help="limit for each run")
    parser.add_argument(
        "--limit", type=float, default=340, help="no run begins after so many seconds"
    )
    add_what_becomes_of_rows(parser)
    given = parser.parse_args(words)
    given.repeats = 1 if given.quick else given.repeats
    turns.split_lists(given, models=MODELS, allocators=allocators.NAMES, parts=("first", "near"))
    return given


def main() -> int:
    given = parse()
    rows = play(given)
    if not given.json:
        print(text_of(rows), flush=True)
    return 1 if not rows or judge(rows) or any("error" in row for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
