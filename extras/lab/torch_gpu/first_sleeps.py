# SPDX-License-Identifier: Apache-2.0
"""Thousands of processes whose first act on a GPU is a sleep: do contents come back whole?

    python first_sleeps.py --alone PROGRAM      # all forms, eight minutes
    python first_sleeps.py --forms failed --lanes 12 --limit 300

A lane is a process that has imported PyTorch and forks a child for each case, which enables
Ductile, does a case of wake.py, and ends: a second or two for each. Half the lanes do the case that
once had other results on an H200 (a graph whose memory sleeps by tags), the others in turn what
ran beside it. Beside them PROGRAM, the C program gpu-first_sleep, does the same by the driver
alone, in one process after another, with batches of copies and one by one by turns: where contents
differ there too, it is not the allocator. Forms:

  failed   as it failed: six lanes, host memory that is made by the first sleep
  idle     one lane, nothing beside it but PROGRAM
  loaded   beside a process that computes, copies over the link and gives memory back
  grown    there is some host memory, too little: the first sleep makes more
  ahead    enough host memory was made ahead
  pieces   300 tensors more, apart from one another: many copies

Ductile copies one by one where a driver older than CUDA 12.8 has no batches; no form does that.

Prints a row for each form: processes, of them those of the case that failed (target) and of the
others (beside), how many found other contents (differs) or ended otherwise (errors), the same of
PROGRAM (alone), seconds of a process, and what those said that did not end well. Ends with status 1
when there was one, or a form had no process at all.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import allocators
import first_sleeps_zygote as zygote
import steps
import turns

TARGET = "a_graph_in_a_tag_draws_on"
BESIDE = (
    "dropout_draws_on",
    "a_graphs_dropout_draws_on",
    "a_generator_of_ones_own_draws_on",
    "workspaces_made_outside_a_tag",
    "workspaces_of_a_graph",
)
SECONDS = 60.0  # limit of a case
BEGINNING = 180.0  # of a lane, which imports
SHOWN = 20  # failures whose text is kept, of a form
ZYGOTE = str(Path(zygote.__file__))
Row = dict[str, Any]


class Form(NamedTuple):
    lanes: int = 0  # 0: as many as asked for
    is_loaded: bool = False
    host: str = "fresh"  # of HOST_MIB
    pieces: int = 0
    wanted: int = 200  # processes of TARGET


FORMS = {
    "failed": Form(wanted=2000),
    "idle": Form(lanes=1, wanted=600),
    "loaded": Form(is_loaded=True),
    "grown": Form(host="grown"),
    "ahead": Form(host="ahead"),
    "pieces": Form(pieces=300),
}


# ---- What is done and counted ------------------------------------------------------------------


def does_target(lane: int, lanes: int) -> bool:
    """The first half of the lanes; of an odd number the greater one."""
    return lane < (lanes + 1) // 2


def kind_of(answer: Row) -> str:
    """What a process counts as that did not end well."""
    is_wrong = answer["status"] == zygote.WRONG and "differ" in answer["said"]
    return "differs" if is_wrong else "errors"


class Count:
    """Of one form: what is to be done next, and what came of it. Lanes share it."""

    def __init__(self, lanes: int, wanted: int, deadline: float) -> None:
        self.lanes, self.wanted, self.deadline = lanes, wanted, deadline
        self.lock = threading.Lock()
        names = ("target", "beside", "processes", "differs", "errors",
                 "alone", "alone_differs", "alone_errors")  # fmt: skip
        self.counts = dict.fromkeys(names, 0)
        self.times: list[float] = []
        self.failures: list[Row] = []

    def is_over(self) -> bool:
        return time.monotonic() > self.deadline or self.counts["target"] >= self.wanted

    def next_case(self, lane: int) -> str | None:
        with self.lock:
            if self.is_over():
                return None
            if does_target(lane, self.lanes):
                self.counts["target"] += 1
                return TARGET
            self.counts["beside"] += 1
            return BESIDE[self.counts["beside"] % len(BESIDE)]

    def _fail(self, kind: str, **failure: Any) -> None:
        self.counts[kind] += 1
        if len(self.failures) < SHOWN:
            self.failures.append(failure)

    def take(self, case: str, answer: Row) -> None:
        with self.lock:
            self.counts["processes"] += 1
            self.times.append(answer["s"])
            if answer["status"] != 0:
                self._fail(kind_of(answer), case=case, **answer)

    def take_alone(self, words: Sequence[str], status: int, said: str) -> None:
        with self.lock:
            self.counts["alone"] += 1
            if status != 0:
                kind = "differs" if status == 1 and "differ" in said else "errors"
                said = said[-zygote.SAID :]
                self._fail(f"alone_{kind}", case=" ".join(words), status=status, said=said)

    def row(self) -> Row:
        times = self.times or [0.0]
        spent = {"median_s": round(statistics.median(times), 3), "most_s": max(times)}
        return {"lanes": self.lanes, "wanted": self.wanted, **self.counts, **spent,
                "failures": self.failures}  # fmt: skip


# ---- Processes ---------------------------------------------------------------------------------


def environment() -> dict[str, str]:
    """Of lanes, which are not to be on Ductile before their children are."""
    return allocators.environment("native") | {"OMP_NUM_THREADS": "1"}


class Lane(threading.Thread):
    """Has one case after another done by a process that forks for each."""

    def __init__(self, number: int, form: Form, count: Count, begun: threading.Event) -> None:
        super().__init__(daemon=True)
        self.number, self.form, self.count, self.begun = number, form, count, begun
        self.worker = turns.Worker(f"lane {number}", [ZYGOTE], environment())

    def ask(self, case: str) -> Row:
        """An answer without a status is that of a lane that has ended."""
        deadline = time.monotonic() + SECONDS + 30
        about = {"host": self.form.host, "pieces": self.form.pieces, "seconds": SECONDS}
        return self.worker.answer(deadline, case=case, **about)

    def play(self) -> None:
        self.worker.hear(time.monotonic() + BEGINNING)
        self.begun.set()
        while (case := self.count.next_case(self.number)) is not None:
            answer = self.ask(case)
            if "error" in answer:
                raise turns.Failed(answer["error"])
            self.count.take(case, answer)

    def run(self) -> None:
        try:
            self.play()
        except turns.Failed as failed:
            lost = {"status": zygote.FAILED, "said": str(failed)[-zygote.SAID :], "s": 0.0}
            self.count.take("the lane itself", lost)
        self.begun.set()
        self.worker.close()


def run_alone(program: Path, count: Count, is_over: threading.Event) -> None:
    """One to three cycles each; it ends where nothing but errors comes of it."""
    for n in range(1 << 30):
        found = count.counts
        if is_over.is_set() or (found["alone_errors"] == found["alone"] > SHOWN):
            return
        words = ["--cycles", str(1 + n % 3), *(["--singly"] if n % 2 else [])]
        status, said = allocators.run([str(program), *words], SECONDS)
        count.take_alone([program.name, *words], status, said)


def run_lanes(form: Form, count: Count, alone: Path | None) -> None:
    begun, is_over = threading.Event(), threading.Event()
    lanes = [Lane(n, form, count, begun) for n in range(count.lanes)]
    others = []
    if alone is not None:
        about = (alone, count, is_over)
        others.append(threading.Thread(target=run_alone, args=about, daemon=True))
    for lane in lanes:
        lane.start()
    begun.wait()
    for other in others:
        other.start()
    for lane in lanes:
        lane.join()
    is_over.set()
    for other in others:
        other.join()


@contextmanager
def load(count: Count) -> Iterator[None]:
    """A process that keeps the device and the link busy; that it ends by itself is an error."""
    command = [sys.executable, ZYGOTE, "--load"]
    process = allocators.start(command, env=environment(), stdin=subprocess.DEVNULL)
    try:
        yield
        if process.poll() is not None:
            lost = {"status": zygote.FAILED, "said": "the load has ended", "s": 0.0}
            count.take("the load", lost)
    finally:
        allocators.kill(process)
        process.wait()


def play_form(name: str, lanes: int, deadline: float, alone: Path | None, wanted: int = 0) -> Row:
    form, begin = FORMS[name], time.monotonic()
    count = Count(form.lanes or lanes, wanted or form.wanted, deadline)
    with load(count) if form.is_loaded else nullcontext():
        run_lanes(form, count, alone)
    return {"form": name, **count.row(), "s": round(time.monotonic() - begin, 1)}


# ---- The command -------------------------------------------------------------------------------


def shares(names: Sequence[str], wanted: int = 0) -> list[float]:
    """Of the time that is left when a form begins, what it may take."""
    weights = [wanted or FORMS[name].wanted for name in names]
    return [weight / sum(weights[at:]) for at, weight in enumerate(weights)]


def play(given: argparse.Namespace) -> Iterator[Row]:
    end = time.monotonic() + given.limit
    for name, share in zip(given.forms, shares(given.forms, given.wanted)):
        now = time.monotonic()
        if now >= end:
            steps.say(f"{name} was not begun: the time is up")
            return
        yield play_form(name, given.lanes, now + share * (end - now), given.alone, given.wanted)


def is_well(row: Row) -> bool:
    return row["processes"] > 0 and not row["failures"]


def describe(row: Row) -> str:
    said = [
        f"{row['form']:8}{row['processes']} processes in {row['lanes']} lanes, {row['target']} of "
        f"the case that failed: {row['differs']} differ, {row['errors']} errors; alone "
        f"{row['alone']}: {row['alone_differs']} differ, {row['alone_errors']} errors; "
        f"{row['median_s']:.2f} s each"
    ]
    for one in row["failures"]:
        said.append(f"FAILED: {one['case']}, status {one['status']}\n{one['said'].rstrip()}")
    return "\n".join(said)


def total(rows: Sequence[Row]) -> str:
    names = ("processes", "target", "differs", "errors", "alone", "alone_differs", "alone_errors")
    return ", ".join(f"{name} {sum(row[name] for row in rows)}" for name in names)


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--forms", default=",".join(FORMS), help="which, separated by commas")
    parser.add_argument("--lanes", type=int, default=6, help="beside one another, but for `idle`")
    parser.add_argument(
        "--wanted", type=int, default=0,
        help="processes of the case that failed, of each form (default: 2000 of `failed`, 600 of "
        "`idle`, 200 of the others, as far as the time allows)",
    )  # fmt: skip
    parser.add_argument("--limit", type=float, default=480, help="no case begins after so many s")
    parser.add_argument("--alone", type=Path, metavar="PROGRAM", help="gpu-first_sleep")
    steps.add_output(parser)
    given = parser.parse_args(words)
    turns.split_lists(given, forms=FORMS)
    if given.lanes < 1:
        parser.error("--lanes: at least one")
    return given


def main() -> int:
    given = parse()
    book = steps.Book(given, "first_sleeps.py", describe)
    rows = book.take(play(given))
    if not given.json:
        print(total(rows), flush=True)
    return 0 if len(rows) == len(given.forms) and all(map(is_well, rows)) else 1


if __name__ == "__main__":
    sys.exit(main())
