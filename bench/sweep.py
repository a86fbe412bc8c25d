#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""usage: bench/run sweep [--seeds N] [--device DEVICE] [--jobs N] [--output FILE] [-- OPTION...]

What does an allocator hold over what is used when batch and length change at every step, and how does that
depend on how far they change? The training loop of `ductile-bench generate vary` runs under every contender
at five spreads (0 %: both are constant; 100 %: batches of 1 to 12, sequences of 64 to 1,024), with and
without recomputation, on one stream and on three, by several seeds; each time without a cap, and with one
2 % above the smallest capacity that suffices for that contender.

Prints a table of each figure, the median of the seeds and behind it the most; writes every row of
ductile-bench to FILE (bench/out/sweep.jsonl), and beside it their picture, an .svg that matplotlib draws. On
the virtual GPU all figures are the same on every machine: driver time is modelled there.
An OPTION is one of `ductile-bench generate vary`, such as --layers 12 or --set sizes=2M.
Exit status: 0 when every run was made, 1 otherwise, 2 misused.
"""

import argparse
import itertools
import subprocess
import sys

from plot import FIGURES, bands, setting_words, title_of
from rows import ROOT, Failed, make_each, parse_study, parser_of, rows_of, table, write_rows

BATCH, SEQUENCE = (1, 12), (64, 1024)
SPREADS = (0, 25, 50, 75, 100)
OWN = ("--batch", "--seq", "--seed", "--recompute", "--side-streams", "--tight", "--json", "--device", "--timeline",
       "--write-trace")


def interval(whole, spread):
    """The largest value stays, so that runs of every spread need about as much memory."""
    least, most = whole
    return f"{most - (most - least) * spread // 100}:{most}"


def run(given, recompute, side_streams, spread, seed):
    words = ["generate", "vary", "--steps", "20", *given.options, "--device", given.device, "--json", "--tight", "2",
             "--batch", interval(BATCH, spread), "--seq", interval(SEQUENCE, spread), "--seed", str(seed),
             "--recompute", "on" if recompute else "off", "--side-streams", str(side_streams)]
    of_run = {"spread_percent": spread, "recompute": recompute, "side_streams": side_streams, "seed": seed}
    return [{**row, **of_run} for row in rows_of([given.bench, *words])]


def run_all(given):
    runs = list(itertools.product((False, True), (0, 2), SPREADS, range(1, given.seeds + 1)))
    jobs = given.jobs if given.device == "virtual" else 1
    found = make_each(jobs, lambda one: run(given, *one), runs, "runs")
    return [row for rows in found for row in rows]


def cells(found):
    by_spread = {spread: f"{middle:,.2f} ({most:,.2f})" for spread, _, middle, most in found}
    return [by_spread.get(spread, "-") for spread in SPREADS]


def tables(rows):
    for title, figure in FIGURES:
        lines = [[setting_words(*setting), title_of(name), *cells(found)]
                 for setting, contenders in bands(rows, figure).items() for name, found in contenders.items()]
        head = [title, "contender", *(f"{spread} %" for spread in SPREADS)]
        yield table([word.replace("\n", " ") for word in head], lines)
    for name, reason in sorted({(row["contender"], row["reason"]) for row in rows if row.get("absent")}):
        yield f"{name} is absent: {reason}"


def draw(given):
    picture = given.output.with_suffix(".svg")
    words = [given.plot_python, ROOT / "bench/plot.py", given.output, picture]
    if not given.plot_python:
        return "no picture is drawn: no Python here has matplotlib"
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False)
    return str(picture) if done.returncode == 0 else f"no picture is drawn: {done.stderr.strip()}"


def parse(words):
    parser = parser_of("bench/run sweep", __doc__, usage=__doc__.split("\n", 1)[0].removeprefix("usage: "))
    parser.set_defaults(output=ROOT / "bench/out/sweep.jsonl")
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="runs of each kind (3)")
    parser.add_argument("--device", default="virtual", metavar="DEVICE",
                        help="as of ductile-bench, on a GPU one run at a time (virtual)")
    parser.add_argument("--plot-python", default="", help=argparse.SUPPRESS)
    parser.add_argument("options", nargs="*", metavar="OPTION", help="of the program, behind --")
    given = parse_study(parser, words, "runs")
    if min(given.seeds, given.jobs) < 1:
        parser.error("--seeds and --jobs take numbers of at least 1")
    if given.options and not given.options[0].startswith("-"):
        parser.error(f"{given.options[0]} is no option")
    taken = [word for word in given.options if word.partition("=")[0] in OWN]
    if taken:
        parser.error(f"the sweep itself chooses {taken[0]}")
    return given


def main(words):
    given = parse(words)
    try:
        rows = run_all(given)
        write_rows(given.output, rows)
    except (Failed, OSError) as failure:
        print(f"bench/run sweep: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("bench/run sweep: interrupted, and nothing is written", file=sys.stderr)
        return 1
    print("\n\n".join(tables(rows)))
    print(f"\n{given.output}\n{draw(given)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
