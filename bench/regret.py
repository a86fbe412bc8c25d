#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""usage: bench/run regret [OPTION]... [TRACE]...

What does Ductile's default lose? Replays traces and PyTorch snapshots on the virtual GPU under Ductile and
the model of PyTorch's expandable segments: once, 5 and 40 times, with work that completes at once, 100 and
1,000 events late, and with the steps of the program shuffled and scaled (--vary) by three seeds. Without
TRACE: the recorded runs of bench/traces, the synthetic ones, and the generators.

Prints a table of summaries, one line for each kind of run, and one of all inputs; writes every row of
ductile-bench to FILE. Held and in use are peaks. An input is "over" when Ductile holds more than expandable
segments by more than 32 MiB and 0.2 %. Counts and memory are the same on every machine, driver time is
modelled.
Exit status: 0 when every replay ran, 1 otherwise, 2 misused.
"""

import argparse
import json
import subprocess
import sys
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MIB = 1 << 20
GENERATORS = ("vary", "offload", "oneshot")
OVER_BYTES = 32 * MIB
OVER_SHARE = 0.002
RIVAL = "expandable"


@dataclass(frozen=True)
class Kind:
    """One way to run an input. Its fields are what the kinds of a table differ in."""

    passes: int = 1
    lag: int = 0
    seed: int = 0  # 0: the steps as they were recorded

    def options(self):
        words = ["--repeat", str(self.passes)]
        words += ["--lag", str(self.lag)] if self.lag else []
        return words + (["--vary", str(self.seed)] if self.seed else [])

    def __str__(self):
        several = "es" if self.passes > 1 else ""
        late = f", lag {self.lag:,}" if self.lag else ""
        varied = f", varied by seed {self.seed}" if self.seed else ""
        return f"{self.passes} pass{several}{late}{varied}"


def kinds_of(given):
    """The cross of all would be hours; passes with work done at once are what drift is judged by."""
    most = [n for n in given.passes if n <= 5] or given.passes[:1]
    kinds = [Kind(n) for n in given.passes]
    kinds += [Kind(n, lag=lag) for lag in given.lags if lag for n in (max(most),)]
    return kinds + [Kind(max(most), seed=seed) for seed in given.seeds]


# ---- Runs ------------------------------------------------------------------------------------------


class Failed(Exception):
    """A replay that gave no row, with what it said."""


def rows_of(command):
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False
    )
    rows = [
        json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")
    ]
    if done.returncode != 0 or not rows:
        raise Failed(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
    return rows


def common(given):
    words = ["--json", "--contender", f"ductile,{RIVAL}"]
    return words + [word for value in given.set for word in ("--set", value)]


def replay(given, kind, trace):
    old = ["--old-driver"] if given.old_driver else []
    words = [
        given.bench,
        "replay",
        "--device",
        "virtual",
        *common(given),
        *old,
        *kind.options(),
    ]
    return kind, rows_of([*words, trace])


def generate(given, model, seed):
    words = [given.bench, "generate", model, "--device", "virtual", *common(given)]
    rows = rows_of([*words, *(["--seed", str(seed)] if model == "vary" else [])])
    return Kind(seed=seed if model == "vary" else 0), rows


def jobs_of(given):
    traces = given.traces or [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "bench/traces").rglob("*.trace.gz"))
    ]
    for kind in kinds_of(given):
        for trace in traces:
            yield replay, kind, trace
    for model in () if given.traces else GENERATORS:
        for seed in given.seeds if model == "vary" else [0]:
            yield generate, model, seed


def run_all(given):
    """Every row, by kind of run and input; of each input the two contenders."""
    found = defaultdict(dict)
    with ThreadPoolExecutor(given.jobs) as pool:
        waiting = [pool.submit(job, given, *what) for job, *what in jobs_of(given)]
        for one in waiting:
            kind, rows = one.result()
            by_contender = {
                row["contender"]: row for row in rows if not row.get("absent")
            }
            found[kind][rows[0]["trace"]] = by_contender
    return found


# ---- Figures ---------------------------------------------------------------------------------------


@dataclass
class Figures:
    """One input in one kind of run: Ductile beside expandable segments."""

    live: int
    held: int
    rival: int
    efficiency: float
    first_ms: float
    all_ms: float
    last_ms: float
    rival_first_ms: float
    rival_all_ms: float

    @property
    def over(self):
        """The bytes by which more is held than by expandable segments, if that counts."""
        more = self.held - self.rival
        return more if more > max(OVER_BYTES, OVER_SHARE * self.rival) else 0


def ms(row, which):
    return row[which]["driver_time_us"] / 1000


def figures(rows):
    own, rival = rows["ductile"], rows[RIVAL]
    return Figures(
        own["live_peak_bytes"],
        own["reserved_peak_bytes"],
        rival["reserved_peak_bytes"],
        own["efficiency"],
        ms(own, "first_pass"),
        ms(own, "all_passes"),
        ms(own, "last_pass"),
        ms(rival, "first_pass"),
        ms(rival, "all_passes"),
    )


def mean(values):
    values = list(values)
    return sum(values) / len(values)


def ratio(part, whole):
    return f"{part / whole:.2f}" if whole else "-"


def summary(all_of, first_of):
    """The cells of one kind of run. first_of: the same inputs after one pass, or nothing."""
    rows = list(all_of.values())
    worst = min(all_of, key=lambda name: all_of[name].efficiency)
    over = [f.over for f in rows if f.over]
    falls = {
        n: first_of[n].efficiency - f.efficiency
        for n, f in all_of.items()
        if n in first_of
    }
    fallen = max(falls, key=falls.get) if falls else None
    return [
        f"{mean(f.efficiency for f in rows):.4f}",
        f"{all_of[worst].efficiency:.4f} {worst}",
        f"{falls[fallen]:.4f} {fallen}" if fallen and falls[fallen] > 0 else "-",
        f"{len(over)} of {len(rows)}"
        + (f", +{max(over) // MIB:,} MiB" if over else ""),
        ratio(sum(f.first_ms for f in rows), sum(f.rival_first_ms for f in rows)),
        ratio(sum(f.all_ms for f in rows), sum(f.rival_all_ms for f in rows)),
        f"{mean(f.last_ms for f in rows):.2f}",
    ]


def line(cells):
    return "| " + " | ".join(cells) + " |"


def tables(found):
    by_kind = {k: {n: figures(r) for n, r in rows.items()} for k, rows in found.items()}
    yield line(
        [
            "run",
            "mean efficiency",
            "lowest",
            "most below its first pass",
            "over",
            "first pass / expandable",
            "all",
            "last pass, ms",
        ]
    )
    yield "|---" * 8 + "|"
    for kind, all_of in by_kind.items():
        first = (
            by_kind.get(Kind(), {})
            if kind.passes > 1 and not kind.seed and not kind.lag
            else {}
        )
        yield line([str(kind), *summary(all_of, first)])
    exact = [k for k in by_kind if not k.seed and not k.lag]
    yield ""
    heads = [f"{k}: held, efficiency, driver ms" for k in exact]
    yield line(["input", "in use, MiB", "expandable: held, first pass, all", *heads])
    yield "|---" * (3 + len(heads)) + "|"
    names = dict.fromkeys(name for k in exact for name in by_kind[k])
    for name in names:
        yield input_line(name, [by_kind[k].get(name) for k in exact])


def input_line(name, cells):
    known = [f for f in cells if f]
    rival = f"{known[-1].rival / MIB:,.0f}, {known[-1].rival_first_ms:.1f}, {known[-1].rival_all_ms:.1f}"
    own = [
        f"{f.held / MIB:,.0f}, {f.efficiency:.4f}, {f.all_ms:.1f}{' **over**' if f.over else ''}"
        if f
        else "-"
        for f in cells
    ]
    return line([name, f"{known[-1].live / MIB:,.0f}", rival, *own])


# ---- The command -----------------------------------------------------------------------------------


def numbers(least):
    def parse(text):
        values = [int(word) for word in text.split(",") if word != ""]
        if any(value < least for value in values):
            raise ValueError
        return values

    parse.__name__ = f"list of numbers of {least} or more"
    return parse


def parse(words):
    parser = argparse.ArgumentParser(
        prog="bench/run regret",
        usage="%(prog)s [OPTION]... [TRACE]...",
        description=__doc__.split("\n\n", 1)[1],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "traces", nargs="*", metavar="TRACE", help="a trace or a PyTorch snapshot"
    )
    parser.add_argument(
        "--passes",
        type=numbers(1),
        default=[1, 5, 40],
        metavar="N,..",
        help="passes through one allocator (1,5,40)",
    )
    parser.add_argument(
        "--lags",
        type=numbers(0),
        default=[100, 1000],
        metavar="N,..",
        help="events by which work is late (100,1000); none: an empty list",
    )
    parser.add_argument(
        "--seeds",
        type=numbers(1),
        default=[1, 2, 3],
        metavar="N,..",
        help="of runs whose steps vary (1,2,3)",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="an option of Ductile; repeatable",
    )
    parser.add_argument(
        "--old-driver", action="store_true", help="as with a driver before CUDA 12.5"
    )
    parser.add_argument(
        "--jobs", type=int, default=2, metavar="N", help="replays at a time (2)"
    )
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="every row, one JSON object a line"
    )
    parser.add_argument("--bench", help=argparse.SUPPRESS)
    given = parser.parse_args(words)
    if given.bench is None:
        parser.error("run it as bench/run regret, which builds what it measures")
    given.traces = [str(Path(t).resolve()) for t in given.traces]
    given.bench = str(Path(given.bench).resolve())
    return given


def write(path, found):
    with path.open("w", encoding="utf-8") as file:
        for rows in found.values():
            for by_contender in rows.values():
                for row in by_contender.values():
                    file.write(json.dumps(row) + "\n")


def main(words):
    given = parse(words)
    try:
        found = run_all(given)
    except Failed as failed:
        print(f"bench/run regret: {failed}", file=sys.stderr)
        return 1
    if given.output:
        write(given.output, found)
    print("\n".join(tables(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
