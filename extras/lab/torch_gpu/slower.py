# SPDX-License-Identifier: Apache-2.0
"""Is it slower? What an allocator can change about a step, under native, expandable segments,
Ductile, and Ductile with the smallest handles: by what the GPU and the driver do, not by the clock
alone.

    python slower.py --output rows.jsonl                       # five minutes on an H200
    python slower.py --programs serving --rounds 12 --ways native,ductile+sizes:2M
    python slower.py --programs fsdp2 --output rows.jsonl      # on every GPU of the machine
    python slower.py --vary --ways native,before,ductile --before FOLDER

For each program one process for each way; they take short turns of the same steps, the first of
which (or --warm of them) warm up. Then each makes the same steps once more under PyTorch's
profiler. With --vary each turn makes other steps, the same for each way. The way `before` is
Ductile of the package in the folder --before.

  step        milliseconds of a step in the turns, and what that is of native's in the same turns,
              with its interval of 95 %
  first,last  a step in the first and in the last fifth of the turns: does it get slower?
  kernels     what all kernels, copies and fills of a step take, in sum
  busy        how much of the profiled time the GPU had something to do
  gaps        milliseconds a step in which it had nothing to do for 50 us and more at a time
  allocator   host time a step in the allocator without its driver calls: its allocations times what
              one and its free take where a cache serves them, with the Python around them
  driver      host time a step in its driver calls: Ductile's own counter; of PyTorch's allocators
              what the profiler saw of cudaMalloc, cudaFree and the cuMem calls
  maps, moves mappings made a step, and handles moved to serve a request (of PyTorch's: segments)

With --held, of Ductile: what was held when more was held than ever (held.py). The host is slower
then, so that times are no measure.

A program's cost is driver + allocator, less native's, of a step: `costs` is that in per cent. It is
an upper bound where the GPU is busy all the time.

Ends with status 1 when something failed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import allocators
import costs
import llama
import settings
import steps
import turns

Row = dict[str, Any]
WAYS = ("native", "expandable", "ductile", "ductile+sizes:2M")
PROGRAMS = ("training", "images", "moe", "streams", "lora", "growing", "serving")
MORE_PROGRAMS = ("graph", "lstm", "policy", "compiled", "notebook")
SHARDED = "fsdp2"


# ---- One GPU -----------------------------------------------------------------------------------


def play_turns(stage: settings.Stage, program: str) -> dict[str, list[Row]]:
    """Each way's turns, and at their end the profiled one; a way that fails ends with an error."""
    found: dict[str, list[Row]] = {}
    given = stage.given
    for way in given.ways:
        if given.held:
            stage.ask(way, do="watch_held")
        found[way] = [stage.ask(way, do="begin", program=program, cap=0)]
        stage.ask(way, do="time_driver_calls")
    n_turns = given.warm + given.rounds
    first = {turn: turn * given.steps if given.vary else 0 for turn in range(n_turns + 1)}
    for turn in range(n_turns):
        for way in turns.rotated(given.ways, turn):
            if "error" not in found[way][-1]:
                told = {"do": "steps", "count": given.steps, "first": first[turn]}
                found[way].append(stage.ask(way, **told))
    for way in given.ways:
        if "error" not in found[way][-1]:
            told = {"do": "watched", "count": given.steps, "first": first[n_turns]}
            found[way].append(stage.ask(way, **told))
            stage.ask(way, do="end")
    return found


def play_program(stage: settings.Stage, program: str) -> Iterator[Row]:
    yield from rows_of(program, play_turns(stage, program), stage.given)


# ---- All GPUs ------------------------------------------------------------------------------------


def all_ranks(answers: Sequence[Row]) -> Row:
    """One answer of the ranks' own: the slowest one's time, the means of what was spent, memory of
    the rank that uses least of what it holds."""
    worst = min(answers, key=lambda answer: answer["used"] / max(answer["held"], 1))
    found = {**worst, "ms": 1e3 * max(sum(answer["times"]) for answer in answers)}
    for name in ("spent", "profiled"):
        if name in worst:
            found[name] = {
                key: statistics.fmean(answer[name][key] for answer in answers)
                for key in worst[name]
            }
    return found


class Sharded:
    """llama.py's fsdp2: the ranks of each way, which take turns as the processes of one GPU do."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.shapes = llama.draw(given.steps, (1, 2 if given.cpu_check else 6),
                                 192 if given.cpu_check else 2048)  # fmt: skip
        plan = {
            "kind": SHARDED, "exact": False, "ranks": llama.count_gpus(given.cpu_check),
            "device": "cpu" if given.cpu_check else "cuda", "layers": given.layers,
            "seconds": given.limit, "shapes": self.shapes, "held": given.held,
        }  # fmt: skip
        self.groups = {way: llama.Group(way, plan, hook=False) for way in given.ways}
        self.end = time.monotonic() + given.limit

    def ask(self, way: str, **told: Any) -> Row:
        group = self.groups[way]
        group.ask(**told)
        answers = group.hear(self.end)
        return all_ranks(answers) if answers else {"error": group.error.splitlines()[0]}

    def turns_of(self, given: argparse.Namespace) -> dict[str, list[Row]]:
        llama.begin(self.groups.values(), self.end)
        found: dict[str, list[Row]] = {way: [{}] for way in given.ways}
        for turn in range(given.warm + given.rounds):
            for way in turns.rotated(given.ways, turn):
                if "error" not in found[way][-1]:
                    found[way].append(self.ask(way, do="take", shapes=self.shapes))
        for way in given.ways:
            if "error" not in found[way][-1]:
                found[way].append(self.ask(way, do="watched", shapes=self.shapes))
        return found

    def close(self) -> None:
        for group in self.groups.values():
            group.close()


def play_sharded(given: argparse.Namespace) -> Iterator[Row]:
    sharded = Sharded(given)
    try:
        yield from rows_of(SHARDED, sharded.turns_of(given), given)
    finally:
        sharded.close()


# ---- What follows from the turns ----------------------------------------------------------------


def row_of(answers: Sequence[Row], given: argparse.Namespace) -> Row:
    """Of a way's beginning, the turns that warm up, those that count, and the profiled one."""
    if "error" in answers[-1]:
        return {"error": answers[-1]["error"]}
    *_, watched = answers
    count = given.steps
    counted = answers[1 + given.warm : -1]
    times = [answer["ms"] / count for answer in counted]
    spent = {
        name: statistics.fmean(answer["spent"][name] for answer in counted)
        for name in counted[0]["spent"]
    }
    fifth = max(1, len(times) // 5)
    return {
        "warm_ms": answers[1]["ms"],
        "warm_driver_ms": answers[1]["spent"].get("driver_ns", 0) / 1e6,
        "times_ms": [round(one, 4) for one in times],
        "step_ms": round(statistics.median(times), 4),
        "first_ms": round(statistics.fmean(times[:fifth]), 4),
        "last_ms": round(statistics.fmean(times[-fifth:]), 4),
        "spent_by_turn": [answer["spent"] for answer in counted],
        **costs.a_step(spent, count),
        **{f"profiled_{name}": value for name, value in watched["profiled"].items()},
        "pair_ns": watched["pair_ns"],
        **{name: watched[name] for name in ("backend", "used", "held", "active")},
        **({"at_most": watched["at_most"]} if watched.get("at_most") else {}),
    }


def rows_of(program: str, found: dict[str, list[Row]], given: argparse.Namespace) -> Iterator[Row]:
    native = row_of(found["native"], given) if "native" in found else {}
    for way, answers in found.items():
        row = row_of(answers, given)
        yield {"program": program, "way": way, **row, **beside(row, native)}


def driver_ms(row: Row) -> float:
    found: float = row["driver_ms"] if "driver_ms" in row else row["profiled_memory_call_ms"]
    return found


def allocator_ms(row: Row) -> float:
    found: float = row["allocs"] * row["pair_ns"] / 1e6
    return found


def beside(row: Row, native: Row) -> Row:
    """What it costs beyond native, in per cent of native's step."""
    if "error" in row or not native or "error" in native:
        return {}
    ratio, noise = turns.paired(row["times_ms"], native["times_ms"])
    more = driver_ms(row) + allocator_ms(row) - driver_ms(native) - allocator_ms(native)
    kernels = row["profiled_kernel_ms"] / (native["profiled_kernel_ms"] or 1)
    return {
        "of_native": round(ratio, 4),
        "of_native_noise": round(noise, 4),
        "kernels_of_native": round(kernels, 4),
        "costs_percent": round(100 * more / (native["step_ms"] or 1), 3),
    }


def busy(row: Row) -> float:
    found: float = row["profiled_busy_ms"] / (row["profiled_span_ms"] or 1)
    return found


def describe(row: Row) -> str:
    head = f"{row['program']:10}{row['way']:18}"
    if "error" in row:
        return f"{head} FAILED: {row['error']}"
    said = [f"{row['step_ms']:.2f} ms"]
    if "of_native" in row:
        said.append(f"{row['of_native']:.3f} ± {row['of_native_noise']:.3f} of native's")
    said += [
        f"first {row['first_ms']:.2f}, last {row['last_ms']:.2f}",
        f"kernels {row['profiled_kernel_ms']:.2f}",
        f"busy {100 * busy(row):.1f} %",
        f"gaps {row['profiled_long_gap_ms']:.2f}",
        f"{row['allocs']:.0f} allocations at {row['pair_ns']:.0f} ns",
        f"driver {driver_ms(row):.3f} ms",
        f"{row.get('maps', 0):.2f} maps, {row.get('moved', 0):.2f} moved",
        f"costs {row.get('costs_percent', 0):.2f} %",
        f"used {row['used'] / settings.GIB:.2f} of {row['held'] / settings.GIB:.2f} GiB",
    ]
    if "at_most" in row:
        parts = (f"{name} {value / settings.GIB:.3f}" for name, value in row["at_most"].items())
        said.append(f"at most, GiB: {', '.join(parts)}")
    return f"{head} {'; '.join(said)}"


# ---- The command -------------------------------------------------------------------------------


def play(given: argparse.Namespace) -> Iterator[Row]:
    alone = [program for program in given.programs if program != SHARDED]
    if alone:
        stage = settings.Stage(given, given.ways)
        try:
            for program in alone:
                if not stage.is_over():
                    yield from play_program(stage, program)
        finally:
            stage.close()
    if SHARDED in given.programs:
        yield from play_sharded(given)


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--programs", default=",".join(PROGRAMS), help=f"which, or {SHARDED}")
    parser.add_argument("--ways", default=",".join(WAYS), help="an allocator, with +OPTION")
    parser.add_argument("--rounds", type=int, default=10, help="turns that count")
    parser.add_argument("--warm", type=int, default=1, help="turns before them, which warm up")
    parser.add_argument("--steps", type=int, default=8, help="steps of a turn")
    parser.add_argument("--seconds", type=float, default=40, help="limit for one answer")
    parser.add_argument(
        "--limit", type=float, default=420, help="no program begins after so many seconds"
    )
    parser.add_argument("--vary", action="store_true", help="other steps in each turn")
    parser.add_argument(
        "--held", action="store_true", help="also what was held when it was most; slows the host"
    )
    parser.add_argument("--before", help="another package of Ductile, for the way `before`")
    parser.add_argument("--layers", type=int, default=0, help=f"of {SHARDED}'s Llama; 0: all")
    steps.add_what_becomes_of_rows(parser)
    given = parser.parse_args(words)
    turns.split_lists(given, programs=(*PROGRAMS, *MORE_PROGRAMS, SHARDED))
    given.ways = given.ways.split(",")
    allocators.before = given.before
    return given


def main() -> int:
    given = parse()
    rows = steps.Book(given, "slower.py", describe).take(play(given))
    return 1 if not rows or any("error" in row for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
