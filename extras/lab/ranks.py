#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""usage: extras/lab/run ranks [--ranks N] [--passes N] [--jobs N] [--output FILE]

What do the ranks of a sharded training hold, when each has data of its own and its work is late by
another amount? Ranks are processes with a virtual GPU each, side by side: the recorded run of
FSDP2, whose steps are shuffled and scaled by the rank's number (--vary; rank 0 has them as
recorded), and a generated one, whose tokens are drawn by it. Rank 0's work ends at once, the last
one's 10,000 events late. Under Ductile by default and with sizes=2M, and the model of PyTorch's
expandable segments; with --check.

Prints a table: memory held by the smallest and the largest rank, whose memory decides, over what it
uses; driver time of the quickest and the slowest, which the others wait for; host waits of all.
Writes every row of ductile-bench to FILE. Counts and memory are the same on every machine, driver
time is modelled.
Exit status: 0 when every replay ran, 1 otherwise, 2 misused.
"""

import sys
import tempfile
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))
from rows import MIB, Failed, parse_study, parser_of, rows_of, table, write_rows

LAGS = (0, 10, 30, 100, 300, 1000, 3000, 10000)
RECORDED = "bench/traces/fsdp2_llama.trace.gz"
WAYS = {
    "default": ["--contender", "ductile"],
    "sizes=2M": ["--contender", "ductile", "--set", "sizes=2M"],
    "expandable": ["--contender", "expandable"],
}


def lag_of(rank):
    return LAGS[rank % len(LAGS)]


def generate(given, folder, rank):
    """The trace of a rank whose tokens are drawn by its number."""
    trace = f"{folder}/rank{rank}.trace.gz"
    words = ["generate", "fsdp", "--steps", "12", "--seed", str(rank + 1), "--write-trace", trace]
    rows_of([given.bench, *words], are_wanted=False)
    return trace


def replay(given, run, way, rank, trace):
    vary = ["--vary", str(rank)] if run == "recorded" and rank else []
    words = ["replay", "--device", "virtual", "--json", "--check", "--repeat", str(given.passes),
             *vary, "--lag", str(lag_of(rank)), *WAYS[way], trace]  # fmt: skip
    (row,) = rows_of([given.bench, *words])
    return run, way, {"rank": rank, "run": run, "way": way, **row}


def run_all(given, folder):
    """Rows of all ranks, by run and way to allocate."""
    found = defaultdict(list)
    with ThreadPoolExecutor(given.jobs) as pool:
        traces = list(pool.map(lambda rank: generate(given, folder, rank), range(given.ranks)))
        waiting = [
            pool.submit(
                replay, given, run, way, rank, traces[rank] if run == "generated" else RECORDED
            )
            for run in ("recorded", "generated")
            for way in WAYS
            for rank in range(given.ranks)
        ]
        for one in waiting:
            run, way, row = one.result()
            found[run, way].append(row)
    return found


def cells_of(rows):
    largest = max(rows, key=lambda row: row["reserved_peak_bytes"])
    most, least = (f(row["reserved_peak_bytes"] for row in rows) // MIB for f in (max, min))
    times = [row["all_passes"]["driver_time_us"] / 1000 for row in rows]
    over = largest["reserved_peak_bytes"] / largest["live_peak_bytes"]
    waits = sum(row["stream_syncs"] for row in rows)
    return [f"{least:,}-{most:,}", f"{largest['rank']}", f"{over:.3f}",
            f"{min(times):,.1f}-{max(times):,.1f}", f"{waits}"]  # fmt: skip


def rank_line(found, run, rank):
    def cell(row):
        driver_ms = row["all_passes"]["driver_time_us"] / 1000
        return f"{row['reserved_peak_bytes'] // MIB:,}, {driver_ms:,.1f}"

    cells = (cell(found[run, way][rank]) for way in WAYS)
    return [run, str(rank), f"{lag_of(rank):,}", *cells]


def tables(found, ranks):
    runs = dict.fromkeys(run for run, _ in found)
    head = ["run", "allocator", "held, MiB", "largest rank", "held / used there", "driver, ms",
            "host waits"]  # fmt: skip
    lines = [[run, way, *cells_of(rows)] for (run, way), rows in found.items()]
    of_ranks = [rank_line(found, run, rank) for run in runs for rank in range(ranks)]
    ways = (f"{way}: held, driver ms" for way in WAYS)
    return f"{table(head, lines)}\n\n{table(['run', 'rank', 'lag', *ways], of_ranks)}"


def parse(words):
    parser = parser_of("extras/lab/run ranks", __doc__)
    parser.add_argument("--ranks", type=int, default=8, metavar="N", help="how many (8)")
    parser.add_argument("--passes", type=int, default=5, metavar="N", help="through each run (5)")
    given = parse_study(parser, words, "ranks")
    if min(given.ranks, given.passes, given.jobs) < 1:
        parser.error("--ranks, --passes and --jobs take numbers of at least 1")
    return given


def main(words):
    given = parse(words)
    try:
        with tempfile.TemporaryDirectory() as folder:
            found = run_all(given, folder)
    except Failed as failure:
        print(f"extras/lab/run ranks: {failure}", file=sys.stderr)
        return 1
    print(tables(found, given.ranks))
    if given.output:
        write_rows(given.output, (row for rows in found.values() for row in rows))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
