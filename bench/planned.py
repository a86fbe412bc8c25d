#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How near does placement by plan come to knowing the run, and what does it cost?

Replays each FILE on the virtual GPU under the contender `planned` and its rivals and prints a table
(docs/decisions/0043-planned-placement.md says what was learnt from it):

    bench/planned.py BENCH FILE...

Exit status: 0 when every replay ran, 1 otherwise, 2 misused.
"""

import argparse
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rows import Failed, rows_of

PEERS = {
    "foresight": ("planned", ["planned.foresight=1"]),
    "planned": ("planned", []),
    "moves": ("planned", ["planned.moves=1"]),
    "moves, 2 MiB": ("planned", ["planned.moves=1", "planned.handle_mib=2"]),
    "expandable": ("expandable", []),
    "ductile": ("ductile", []),
    "tight": ("ductile", ["sizes=tight"]),
}
RUNS = (
    ("exact, 1 pass", 1, []),
    ("exact, 5 passes", 5, []),
    ("lag 100, 5 passes", 5, ["--lag", "100"]),
    ("--vary 1, 5 passes", 5, ["--vary", "1"]),
    ("--vary 2, 5 passes", 5, ["--vary", "2"]),
    ("--vary 3, 5 passes", 5, ["--vary", "3"]),
    ("exact, 40 passes", 40, []),
)

EXACT_ONLY = ("foresight", "moves, 2 MiB")
MAX_PASSES = {"foresight": 1, "moves, 2 MiB": 1}


def replay(bench, path, peer, passes, options):
    """The row of one replay, or None where it was refused."""
    contender, settings = PEERS[peer]
    command = [bench, "replay", "--device", "virtual", "--contender", contender, "--json"]
    command += [part for setting in settings for part in ("--set", setting)]
    try:
        (row,) = rows_of([*command, "--repeat", str(passes), *options, path])
    except Failed as failed:
        print(f"{peer}: {failed}", file=sys.stderr)
        return None
    return row


def cell(row):
    """Efficiency, and ms of driver time in all passes."""
    if row is None:
        return f"{'-':>16}"
    ms = row["all_passes"]["driver_time_us"] / 1e3
    return f"{row['efficiency']:8.4f} {ms:7.1f}"


def plan_cell(row):
    """Of the last pass: efficiency of what it used, and the share placed; of all: planning, ms."""
    plan = row["plan"]
    used = f"{'-':>8}"
    if plan["touched_bytes"] and "vary_seed" not in row:  # else the peak is another pass's
        used = f"{row['live_peak_bytes'] / plan['touched_bytes']:8.4f}"
    share = plan["placed"] / max(1, plan["requests"])
    return f"{used} {share:6.3f} {plan['layouts']:6d} {plan['host_us'] / 1e3:9.1f}"


def mean_line(rows):
    """Means of the efficiencies, sums of the times."""
    cells = []
    for peer in PEERS:
        known = [row[peer] for row in rows if row[peer]]
        if len(known) != len(rows):
            cells.append(f"{'-':>16}")
            continue
        mean = sum(row["efficiency"] for row in known) / len(known)
        ms = sum(row["all_passes"]["driver_time_us"] for row in known) / 1e3
        cells.append(f"{mean:8.4f} {ms:7.1f}")
    return " ".join([f"{'mean, sum':16}", *cells])


def print_run(title, files, rows):
    """One table."""
    print(f"\n{title}: efficiency, ms in the driver")
    print(" ".join([f"{'':16}", *(f"{peer:>16}" for peer in PEERS)]), end="")
    print(f"   {'used':>8} {'placed':>6} {'plans':>6} {'ms':>9}")
    for path, row in zip(files, rows):
        print(
            " ".join(
                [f"{Path(path).name[:16]:16}", *(cell(row[peer]) for peer in PEERS)]
            ),
            end="",
        )
        print(f"   {plan_cell(row['planned'])}" if row["planned"] else "")
    print(mean_line(rows), flush=True)


def main():
    """Prints a table for each kind of run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bench", help="ductile-bench")
    parser.add_argument("files", nargs="+", help="traces and snapshots")
    parser.add_argument("--jobs", type=int, default=2, help="replays at a time")
    given = parser.parse_args()
    given.bench, *given.files = (str(Path(one).resolve()) for one in (given.bench, *given.files))
    if given.jobs < 1:
        parser.error("--jobs takes a number of at least 1")
    n_refused = 0
    with ThreadPoolExecutor(given.jobs) as pool:
        for title, passes, options in RUNS:
            waiting = [
                {
                    peer: pool.submit(replay, given.bench, path, peer, passes, options)
                    for peer in PEERS
                    if (not options or peer not in EXACT_ONLY)
                    and passes <= MAX_PASSES.get(peer, 40)
                }
                for path in given.files
            ]
            rows = [
                {peer: row[peer].result() if peer in row else None for peer in PEERS}
                for row in waiting
            ]
            print_run(title, given.files, rows)
            n_refused += sum(
                row[peer] is None for row, of in zip(rows, waiting) for peer in of
            )
    return 1 if n_refused else 0


if __name__ == "__main__":
    sys.exit(main())
