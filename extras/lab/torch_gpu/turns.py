# SPDX-License-Identifier: Apache-2.0
"""Processes that take turns on the GPU, so that all of them see the same machine, and what may be
concluded from the times of their turns."""

from __future__ import annotations

import argparse
import json
import math
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import allocators

# Student's t for 95 % on both sides, by the number of rounds less one.
T95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)


class Failed(Exception):
    """A process that cannot go on."""


def add_common(parser: argparse.ArgumentParser, limit: float) -> None:
    """What scripts take that print a row for each way."""
    parser.add_argument("--limit", type=float, default=limit, help="seconds, for all")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--cpu-check", action="store_true", help="tiny, to try out the script")


class Worker:
    """A process that is told what to do in lines, and answers each with a line of JSON."""

    def __init__(self, name: str, command: Sequence[str], where: dict[str, str]) -> None:
        self.name = name
        self.said = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        self.process = allocators.start(
            [sys.executable, *command], env=where, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=self.said,
        )  # fmt: skip

    def _fail(self, reason: str) -> NoReturn:
        self.said.seek(0)
        tail = "".join(self.said.readlines()[-25:])
        raise Failed(f"the process on {self.name} {reason}\n{tail}".rstrip())

    def _show_where_it_stands(self) -> None:
        """A process that called faulthandler.enable() says it as it ends."""
        with suppress(ProcessLookupError, subprocess.TimeoutExpired):
            self.process.send_signal(signal.SIGABRT)
            self.process.wait(timeout=3)

    def send(self, line: str) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(f"{line}\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            self._fail("has ended")

    def hear(self, deadline: float) -> dict[str, Any]:
        assert self.process.stdout is not None
        left = max(0.0, deadline - time.monotonic())
        if not select.select([self.process.stdout], [], [], left)[0]:
            self._show_where_it_stands()
            self._fail("did not answer in time")
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            self._fail(f"has ended with status {self.process.returncode}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def answer(self, deadline: float, **told: Any) -> dict[str, Any]:
        """What it answers to that; or {"error": why it does not}, and then it is gone, with what it
        said on standard error."""
        try:
            self.send(json.dumps(told))
            return self.hear(deadline)
        except Failed as failed:
            print(failed, file=sys.stderr, flush=True)  # what it said names files of this machine
            self.close()
            return {"error": str(failed).splitlines()[0]}

    def wait(self, deadline: float) -> None:
        """Until it has ended by itself."""
        try:
            status = self.process.wait(timeout=max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._show_where_it_stands()
            self._fail("did not end in time")
        if status != 0:
            self._fail(f"has ended with status {status}")

    def close(self) -> None:
        allocators.kill(self.process)
        self.process.wait()
        self.said.close()


TRAININGS = ("gpt2", "resnet", "lora")  # of plain_models.py


def split_lists(given: argparse.Namespace, **known_by_name: Collection[str]) -> None:
    """Arguments that are lists with commas between. Ends the script where one names what is not."""
    for name, known in known_by_name.items():
        setattr(given, name, getattr(given, name).split(","))
        unknown = [one for one in getattr(given, name) if one not in known]
        if unknown:
            raise SystemExit(f"--{name}: there is no {unknown[0]}: there are {', '.join(known)}")


def parser(about: str, models: str, seconds: float) -> argparse.ArgumentParser:
    """What the scripts that train TRAININGS can be told."""
    made = argparse.ArgumentParser(description=about.splitlines()[0])
    made.add_argument("--model", default=models, help=f"one or several of {','.join(TRAININGS)}")
    made.add_argument("--seconds", type=float, default=seconds, help="limit for each model")
    made.add_argument("--json", action="store_true", help="one JSON object a line")
    made.add_argument(
        "--cpu-check", action="store_true", help="tiny models on the CPU, to try out this script"
    )
    made.add_argument("--serve", help=argparse.SUPPRESS)
    return made


def program_worker(name: str, way: str, on_cpu: bool) -> Worker:
    """A process of program_rank.py under a way."""
    script = str(Path(__file__).with_name("program_rank.py"))
    return Worker(name, [script, "cpu" if on_cpu else "cuda"], allocators.on_one_gpu(way))


def only_answer(worker: Worker, deadline: float) -> dict[str, Any]:
    """Of a process that answers once and ends; or {"failed": why}, with what it said on standard
    error."""
    try:
        answer = worker.hear(deadline)
        worker.wait(deadline)
        return answer
    except Failed as failed:
        print(failed, file=sys.stderr)  # what it said names files of this machine
        return {"failed": str(failed).splitlines()[0]}
    finally:
        worker.close()


def rotated(names: Sequence[Any], by: int) -> list[Any]:
    """Another one has the first turn in each round."""
    at = by % len(names)
    return [*names[at:], *names[:at]]


def paired(theirs: Sequence[float], others: Sequence[float]) -> tuple[float, float]:
    """Mean ratio of the same rounds' times, and half the width of its 95 % interval."""
    ratios = [one / other for one, other in zip(theirs, others)]
    if len(ratios) < 2:
        return ratios[0], float("inf")
    t = T95[min(len(ratios) - 2, len(T95) - 1)]
    return statistics.fmean(ratios), t * statistics.stdev(ratios) / len(ratios) ** 0.5


def percentile(values: Sequence[float], percent: float) -> float:
    """Between two of the values, where it does not fall on one."""
    ordered = sorted(values)
    place = percent / 100 * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])
