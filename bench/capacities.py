#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""usage: bench/run capacities [--set KEY=VALUE]... [--jobs N] [--output FILE] [TRACE...]

What is the smallest GPU on which a run completes, and is it larger than under PyTorch's allocators? Each run
is replayed under Ductile, with handles of the smallest size (sizes=2M), and the models of expandable
segments and of PyTorch's native allocator, on virtual GPUs of ever other capacity. Without a TRACE, which
may be a PyTorch snapshot, the runs are the recorded and the synthetic ones of bench/traces and three
generated training loops.

Prints a table: what the run uses, the smallest capacity in MiB and behind it what is used of that, and by
how much Ductile's is above that of expandable segments; then the runs where it is above by more than 0.2 %
or 4 MiB, whichever is more. Writes every row of ductile-bench to FILE. All figures are the same on every
machine. --set is an option of Ductile, as of ductile-bench.
Exit status: 0 when every run was replayed, 1 otherwise, 2 misused.
"""

import itertools
import sys
import tempfile
from pathlib import Path

from rows import MIB, ROOT, Failed, bundled_traces, make_each, parse_study, parser_of, rows_of, table, write_rows

WAYS = {
    "Ductile": ["--contender", "ductile"],
    "sizes=2M": ["--contender", "ductile", "--set", "sizes=2M"],
    "expandable segments": ["--contender", "expandable"],
    "native": ["--contender", "classic"],
}
GENERATED = {
    "vary": [],
    "vary_recompute": ["--recompute", "on"],
    "vary_streams": ["--side-streams", "2"],
}
MOST_ABOVE_PERCENT, MOST_ABOVE_BYTES = 0.2, 4 * MIB


def generate(given, folder):
    """The traces of the training loops."""
    for name, options in GENERATED.items():
        trace = f"{folder}/{name}.trace.gz"
        words = ["generate", "vary", "--steps", "20", *options, "--write-trace", trace]
        rows_of([given.bench, *words], are_wanted=False)
        yield trace


def all_runs(given, folder):
    synthetic = (ROOT / "bench/traces/synthetic").glob("*.trace.gz")
    return [*bundled_traces(), *sorted(str(path.relative_to(ROOT)) for path in synthetic), *generate(given, folder)]


def replay(given, trace, way):
    own = [word for setting in given.set for word in ("--set", setting)] if way == "Ductile" else []
    words = ["replay", "--json", "--device", "virtual", "--min-capacity", *WAYS[way], *own, trace]
    (row,) = rows_of([given.bench, *words])
    return {**row, "way": way}


def replay_all(given, traces):
    """Of each trace its rows, by way."""
    runs = list(itertools.product(traces, WAYS))
    found = [{} for _ in traces]
    for n, row in enumerate(make_each(given.jobs, lambda run: replay(given, *run), runs, "replays")):
        found[n // len(WAYS)][row["way"]] = row
    return found


def capacity(row):
    """None where no capacity suffices."""
    return row.get("min_capacity_bytes")


def capacity_cell(row):
    least = capacity(row)
    return f"{least / MIB:,.0f} ({row['live_peak_bytes'] / least:.4f})" if least else "none"


def above(rows):
    """Bytes by which Ductile's is above that of expandable segments, or None."""
    own, other = capacity(rows["Ductile"]), capacity(rows["expandable segments"])
    return own - other if own and other else None


def is_too_far_above(rows):
    allowed = max(MOST_ABOVE_BYTES, (capacity(rows["expandable segments"]) or 0) * MOST_ABOVE_PERCENT / 100)
    return (above(rows) or 0) > allowed


def line(rows):
    used = rows["Ductile"]["live_peak_bytes"]
    more = above(rows)
    percent = "-" if more is None else f"{100 * more / capacity(rows['expandable segments']):+.2f}"
    return [rows["Ductile"]["trace"], f"{used / MIB:,.0f}", *(capacity_cell(rows[way]) for way in WAYS), percent]


def report(found):
    head = ["run", "used, MiB", *WAYS, "above expandable segments, %"]
    names = [rows["Ductile"]["trace"] for rows in found if is_too_far_above(rows)]
    yield table(head, [line(rows) for rows in found])
    yield f"above expandable segments by more than {MOST_ABOVE_PERCENT} % or {MOST_ABOVE_BYTES // MIB} MiB: " + (
        ", ".join(names) or "none")


def parse(words):
    parser = parser_of("bench/run capacities", __doc__, usage=__doc__.split("\n", 1)[0].removeprefix("usage: "))
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="an option of Ductile")
    parser.add_argument("traces", nargs="*", metavar="TRACE", help="these instead")
    given = parse_study(parser, words, "replays")
    if given.jobs < 1:
        parser.error("--jobs takes a number of at least 1")
    return given


def main(words):
    given = parse(words)
    try:
        with tempfile.TemporaryDirectory() as folder:
            # Rows name the runs of the tree as seen from its root, where ductile-bench runs.
            found = replay_all(given, [str(Path(trace).resolve()) for trace in given.traces] or all_runs(given, folder))
        if given.output:
            write_rows(given.output, (row for rows in found for row in rows.values()))
    except (Failed, OSError) as failure:
        print(f"bench/run capacities: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("bench/run capacities: interrupted, and nothing is written", file=sys.stderr)
        return 1
    print("\n\n".join(report(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
