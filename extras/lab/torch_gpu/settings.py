# SPDX-License-Identifier: Apache-2.0
"""Which setting for which program: memory and speed of one program of each kind under native,
expandable segments and Ductile, and which programs die under a cap that others live with.

    python settings.py --output rows.jsonl                # four minutes on an H200
    python settings.py --parts speed --programs serving   # one program's speed and memory
    python settings.py --parts dies --programs requests   # a program of capped_programs.py

  dies    each program of capped_programs.py under a cap that is a little more than it uses
          (capped_programs.PROGRAMS): does it end, or is it refused memory?
  speed   each program of settings_models.py: one process for each allocator, and where an option of
          Ductile's is worth a try (OPTIONS) one more; they take turns of the same
          steps. The first turn warms up; the others say what is done in a second, and what that is
          of native's, with its interval of 95 %
  near    behind its speed, each program from its beginning under a cap 0.5 % above what it used

Processes import at the same time and stay until the end; each empties its cache between programs.
Ends with status 1 when something failed, or Ductile misses what it is held to: it refuses no
program of capped_programs.py and nothing that has room, and near the limit no more steps than
expandable segments.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec
from typing import Any

import allocators
import capped_programs
import steps
import turns

Row = dict[str, Any]
OPTIONS = {  # of Ductile, tried beside the default
    "streams": "record_stream:wait",
    "serving": "sizes:2M",
    "small": "sizes:2M",
}
SPEED = ("training", "serving", "streams", "small", "lora", "notebook", "libraries", "images",
         "growing")  # fmt: skip
CAPS = {"small": 3 << 30}
NEAR = {"training", "lora", "streams", "images", "growing"}
CAPPED = ("expandable", "ductile")
ABOVE_USED = 1.005
GIB = 1 << 30
PARTS = ("dies", "speed", "near")


# ---- Processes ---------------------------------------------------------------------------------


class Stage:
    """A process for each way, and until when programs may begin."""

    def __init__(self, given: argparse.Namespace, ways: Iterable[str]) -> None:
        self.given = given
        self.end = time.monotonic() + given.limit
        self.processes = {way: self.start(way) for way in ways}
        self.begun: set[str] = set()

    def start(self, way: str) -> turns.Worker:
        return turns.program_worker(way, way, self.given.cpu_check)

    def is_over(self) -> bool:
        return time.monotonic() > self.end

    def ask(self, way: str, **told: Any) -> Row:
        """An answer, or {"error": why there is none}; then the next program has a new process."""
        if way not in self.processes:
            self.processes[way] = self.start(way)
        # The first one waits for imports, too.
        seconds = self.given.seconds * (1 if way in self.begun else 2)
        self.begun.add(way)
        answer = self.processes[way].answer(time.monotonic() + seconds, **told)
        if "error" in answer:
            del self.processes[way]
            self.begun.remove(way)
        return answer

    def close(self) -> None:
        for process in self.processes.values():
            process.close()


def options_of(program: str) -> list[str]:
    return [f"ductile+{OPTIONS[program]}"] if program in OPTIONS else []


def all_ways(given: argparse.Namespace) -> list[str]:
    more = [way for name in given.programs for way in options_of(name)]
    return [*allocators.NAMES, *dict.fromkeys(more if "speed" in given.parts else ())]


def ways_of(program: str) -> list[str]:
    return [*allocators.NAMES, *options_of(program)]


# ---- Speed -------------------------------------------------------------------------------------


def play_turns(stage: Stage, program: str) -> dict[str, list[Row]]:
    """Each way's answers, turn by turn; a way that fails ends with an error."""
    ways, found = ways_of(program), {}
    for way in ways:
        begun = stage.ask(way, do="begin", program=program, cap=CAPS.get(program, 0))
        if begun.get("refusals"):
            begun["error"] = "was refused memory before the first step"
        found[way] = [begun]
    for turn in range(stage.given.rounds + 1):
        for way in turns.rotated(ways, turn):
            if "error" not in found[way][-1]:
                found[way].append(stage.ask(way, do="steps", count=stage.given.steps))
    for way in ways:
        if "error" not in found[way][-1]:
            stage.ask(way, do="end")
    return found


def per_second(answer: Row) -> float:
    return 1e3 * answer["units"] / answer["ms"]


def speed_row(way: str, answers: Sequence[Row], native: Sequence[Row]) -> Row:
    if "error" in answers[-1]:
        return answers[-1]
    counted, last = answers[2:], answers[-1]
    row = {
        "warm_up_ms": answers[1]["ms"],
        "turns_ms": [answer["ms"] for answer in counted],
        "refusals": sum(answer["refusals"] for answer in answers),
        **{name: last[name] for name in last if name not in ("units", "ms", "refusals", "spent")},
    }
    if counted and last["units"]:
        row["per_second"] = statistics.median(per_second(answer) for answer in counted)
    if counted and "error" not in native[-1]:
        rates = [[per_second(answer) for answer in one[2:]] for one in (answers, native)]
        if all(min(one) > 0 for one in rates):
            row["of_native"], row["of_native_noise"] = turns.paired(*rates)
    return row


def play_speed(stage: Stage, program: str) -> Iterator[Row]:
    found = play_turns(stage, program)
    for way, answers in found.items():
        row = speed_row(way, answers, found["native"])
        yield {"part": "speed", "program": program, "way": way, "cap": CAPS.get(program, 0), **row}


def play_near(stage: Stage, program: str, used: int) -> Iterator[Row]:
    cap = int(used * ABOVE_USED)
    for way in (*CAPPED, *options_of(program)):
        answer = begun = stage.ask(way, do="begin", program=program, cap=cap)
        if not begun.get("refusals") and "error" not in begun:
            answer = stage.ask(way, do="steps", count=stage.given.steps)
        if "error" not in answer:
            stage.ask(way, do="end")
        yield {"part": "near", "program": program, "way": way, "cap": cap, **answer}


def play_dies(stage: Stage, program: str) -> Iterator[Row]:
    cap = capped_programs.PROGRAMS[program].cap << 20
    peak = capped_programs.live_peak(program)
    for way in allocators.NAMES:
        answer = stage.ask(way, do="capped", program=program, cap=cap)
        yield {"part": "dies", "program": program, "way": way, "cap": cap, "needs": peak, **answer}


def play_models(stage: Stage) -> Iterator[Row]:
    for program in [name for name in SPEED if name in stage.given.programs]:
        if stage.is_over():
            return
        rows = list(play_speed(stage, program))
        yield from rows
        used = [row["used"] for row in rows if "error" not in row]
        if used and "near" in stage.given.parts and program in NEAR and not stage.is_over():
            yield from play_near(stage, program, max(used))


def leave_out(given: argparse.Namespace) -> None:
    """What this machine has no library for."""
    if "libraries" in given.programs and not given.cpu_check and not find_spec("cupy"):
        steps.say("libraries is left out: CuPy is not installed")
        given.programs.remove("libraries")


def play(given: argparse.Namespace) -> Iterator[Row]:
    leave_out(given)
    stage = Stage(given, all_ways(given))
    try:
        for program in given.programs if "dies" in given.parts else ():
            if program in capped_programs.PROGRAMS and not stage.is_over():
                yield from play_dies(stage, program)
        if {"speed", "near"} & set(given.parts):
            yield from play_models(stage)
    finally:
        stage.close()


# ---- What came of it ---------------------------------------------------------------------------


def how_it_ended(row: Row) -> str:
    if row.get("refused") or row.get("refusals"):
        return "refused" if row["part"] == "dies" else f"{row['refusals']} steps refused"
    return f"ends; {row['retries']} retries"


def describe(row: Row) -> str:
    head = f"{row['part']:6}{row['program']:10}{row['way']:27}"
    if "error" in row:
        return f"{head} FAILED: {row['error']}"
    if row["part"] != "speed":
        needs = row.get("needs") or row["cap"] / ABOVE_USED
        cap = f"{row['cap'] / GIB:.2f} GiB" if row["cap"] else "the device"
        return f"{head}{how_it_ended(row)}, needs {needs / GIB:.2f} of {cap}"
    ratio = ""
    if "of_native" in row:
        ratio = f"{row['of_native']:.3f} ± {row['of_native_noise']:.3f} of native's, "
    return (f"{head}{row.get('per_second', 0):10,.0f}/s, {ratio}used {row['used'] / GIB:.2f} of "
            f"{row['held'] / GIB:.2f} GiB held, {row['refusals']} refusals")  # fmt: skip


def refusals_near(rows: Iterable[Row]) -> dict[tuple[str, str], int]:
    return {
        (row["program"], row["way"]): row["refusals"]
        for row in rows
        if row["part"] == "near" and "error" not in row
    }


def judge(rows: Sequence[Row]) -> list[str]:
    """What failed, and what Ductile is held to and misses."""
    missed = [f"{row['program']}, {row['way']}: {row['error']}" for row in rows if "error" in row]
    for row in rows:
        if not row["way"].startswith("ductile") or "error" in row:
            continue
        if row.get("refused") or (row["part"] == "speed" and row["refusals"]):
            missed.append(f"{row['program']}, {row['part']}: Ductile refuses")
        if row["backend"] not in ("ductile", "cpu"):
            missed.append(f"{row['program']}: is not on Ductile")
    near = refusals_near(rows)
    for (program, way), refusals in near.items():
        if way == "ductile" and refusals > near.get((program, "expandable"), 0):
            missed.append(f"{program}, near: Ductile refuses more than expandable segments")
    return missed


# ---- The command -------------------------------------------------------------------------------


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    every = (*capped_programs.PROGRAMS, *SPEED)
    parser.add_argument("--parts", default=",".join(PARTS), help="which, separated by commas")
    parser.add_argument("--programs", default=",".join(dict.fromkeys(every)), help="which")
    parser.add_argument("--rounds", type=int, default=5, help="turns that count; one more warms up")
    parser.add_argument("--steps", type=int, default=8, help="steps of a turn")
    parser.add_argument("--seconds", type=float, default=25, help="limit for one answer")
    parser.add_argument(
        "--limit", type=float, default=240, help="no program begins after so many seconds"
    )
    steps.add_what_becomes_of_rows(parser)
    given = parser.parse_args(words)
    turns.split_lists(given, parts=PARTS, programs=every)
    return given


def main() -> int:
    given = parse()
    rows = steps.Book(given, "settings.py", describe).take(play(given))
    for missed in judge(rows) if not given.json else ():
        print(f"MISSED: {missed}", flush=True)
    return 1 if not rows or judge(rows) else 0


if __name__ == "__main__":
    sys.exit(main())
