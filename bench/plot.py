#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws held and live memory over time from what `ductile-bench replay --timeline` wrote."""

import argparse
import csv
import sys
from collections import defaultdict
from pathlib import Path

from contender_titles import TITLES

GIB = float(1 << 30)
COLUMNS = ["trace", "contender", "event", "live_bytes", "reserved_bytes", "live_peak_bytes",
           "reserved_peak_bytes"]

# In the order of the legend; whatever else a file has follows in grey. Told apart also without
# colour: by dashes.
STYLES = {
    "ductile": {"color": "#0b6e4f", "linewidth": 2.2, "zorder": 5},
    "ductile wait": {"color": "#0b6e4f", "linewidth": 2.2, "zorder": 7},
    "ductile poll": {"color": "#e09f3e", "linewidth": 1.8, "zorder": 5},
    "expandable": {"color": "#d1495b", "linewidth": 1.5, "linestyle": (0, (5, 1.5)), "zorder": 6},
    "classic": {"color": "#30638e", "linewidth": 1.5, "linestyle": (0, (2, 1)), "zorder": 3},
    "cumemallocasync": {"color": "#8d5a97", "linewidth": 1.3, "linestyle": (0, (6, 1, 1, 1)),
                        "zorder": 2},
    "ductile-tight": {"color": "#7cb518", "linewidth": 1.6, "zorder": 5},
    "torch-ductile": {"color": "#14a37f", "linewidth": 1.4, "linestyle": (0, (8, 2)), "zorder": 6},
    "torch-expandable": {"color": "#d1495b", "linewidth": 1.5, "linestyle": (0, (5, 1.5)),
                         "zorder": 6},
    "torch-native": {"color": "#30638e", "linewidth": 1.5, "linestyle": (0, (2, 1)), "zorder": 3},
    "torch-async": {"color": "#b07aa1", "linewidth": 1.3, "linestyle": (0, (6, 1, 1, 1)),
                    "zorder": 2},
    "rmm-pool": {"color": "#c77d0a", "linewidth": 1.3, "linestyle": (0, (3, 1, 1, 1)), "zorder": 2},
    "rmm-arena": {"color": "#6f4e37", "linewidth": 1.0, "linestyle": (0, (1, 1)), "zorder": 2},
    "cumemalloc": {"color": "#9a9a9a", "linewidth": 0.6, "alpha": 0.7, "zorder": 1},
}
OTHER_STYLE = {"color": "#777777", "linewidth": 1.0, "zorder": 1}
# As every page calls them.
NAMES = {
    **TITLES,
    "ductile wait": "Ductile, wait",
    "ductile poll": "Ductile, poll",
    "ductile-tight": "Ductile, tight",
    "torch-ductile": "Ductile in PyTorch",
    "torch-expandable": "expandable in PyTorch",
    "torch-native": "native in PyTorch",
    "torch-async": "async in PyTorch",
    "rmm-pool": "RMM's pool",
    "rmm-arena": "RMM's arena",
}
LIVE_TEXT = "#6b6250"
LIVE_COLOR = "#e3dccb"


class Run:
    """One contender on one trace, sample by sample."""

    def __init__(self):
        self.events = []
        self.live = []
        self.reserved = []
        self.live_peak = 0
        self.reserved_peak = 0

    def add(self, row):
        event, live, reserved, live_peak, reserved_peak = (int(row[name]) for name in COLUMNS[2:])
        self.events.append(event)
        self.live.append(live / GIB)
        self.reserved.append(reserved / GIB)
        self.live_peak = live_peak
        self.reserved_peak = max(self.reserved_peak, reserved_peak)

    def peak(self):
        return self.reserved_peak / GIB


def fail(reason):
    sys.exit(f"{Path(sys.argv[0]).name}: {reason}")


def read_runs(path):
    """{trace: {contender: Run}}, in the order of the file."""
    traces = defaultdict(lambda: defaultdict(Run))
    with open(path, newline="", encoding="utf-8") as file:
        rows = csv.DictReader(line for line in file if not line.startswith("#"))
        if rows.fieldnames != COLUMNS:
            fail(f"{path}: the columns are not {','.join(COLUMNS)}")
        for row in rows:
            try:
                traces[row["trace"]][row["contender"]].add(row)
            except (TypeError, ValueError):
                fail(f"{path}:{rows.line_num}: not a sample")
    if not traces:
        fail(f"{path}: no sample in it")
    return traces


def by_legend(contender):
    names = list(STYLES)
    return names.index(contender) if contender in names else len(names)


def spread(labels, gap):
    """(height, text, colour), moved apart where they would touch; the highest last."""
    placed = []
    for height, text, color in sorted(labels):
        placed.append((max(height, placed[-1][0] + gap if placed else height), text, color))
    return placed


def label_ends(axes, runs, top):
    """What each holds at most, at its line's end."""
    live = max(run.live_peak for run in runs.values()) / GIB
    labels = [(live, f"{live:.2f} GiB live", LIVE_TEXT)]
    for name, run in runs.items():
        color = STYLES.get(name, OTHER_STYLE)["color"]
        labels.append((run.peak(), f"{run.peak():.2f} GiB {NAMES.get(name, name)}", color))
    for height, text, color in spread(labels, top / 15):
        axes.text(101.5, height, text, color=color, fontsize=9, va="center")


def draw_panel(axes, trace, runs):
    longest = max(runs.values(), key=lambda run: len(run.events))
    last = max(longest.events[-1], 1)
    percent = [100 * event / last for event in longest.events]
    axes.fill_between(percent, longest.live, color=LIVE_COLOR, linewidth=0, zorder=0)
    for name in sorted(runs, key=by_legend):
        run = runs[name]
        axes.plot([100 * event / last for event in run.events], run.reserved,
                  **STYLES.get(name, OTHER_STYLE))
    top = max(max(run.reserved) for run in runs.values())
    axes.set_title(trace, fontsize=11, loc="left", fontweight="bold")
    axes.set_xlim(0, 100)
    axes.set_ylim(0, 1.08 * top)
    axes.set_ylabel("GiB")
    axes.grid(axis="y", color="#000000", alpha=0.08, linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    label_ends(axes, runs, top)


def draw(traces, pyplot, path):
    columns = 1 if len(traces) == 1 else 2
    rows = -(-len(traces) // columns)
    width = max(6.2 * columns, 8.6)  # the title needs as much
    figure, panels = pyplot.subplots(rows, columns, figsize=(width, 3.5 * rows + 0.6),
                                     squeeze=False, constrained_layout=True)
    flat = panels.ravel()
    for axes, (trace, runs) in zip(flat, traces.items()):
        draw_panel(axes, trace, runs)
    for axes in flat[len(traces):]:
        axes.set_visible(False)
    for axes in flat[max(0, len(traces) - columns):len(traces)]:
        axes.set_xlabel("events of the run, %")
    figure.suptitle("Memory held (lines) and live (area); at the right, the most of each",
                    fontsize=11)
    figure.savefig(path, dpi=130)


def run(description, source_name, read, draw_all):
    """The program: reads the first file, draws what is in it to the second."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("source", metavar=source_name, type=Path)
    parser.add_argument("picture", metavar="PICTURE.png", type=Path)
    given = parser.parse_args()
    try:
        import matplotlib
    except ImportError:
        fail("matplotlib is missing: pip install matplotlib, or install python3-matplotlib and run "
             "this with /usr/bin/python3")
    matplotlib.use("Agg")
    from matplotlib import pyplot
    try:
        draw_all(read(given.source), pyplot, given.picture)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        place = getattr(error, "filename", None) or given.source
        fail(f"{place}: {getattr(error, 'strerror', None) or error}")


if __name__ == "__main__":
    run(__doc__, "TIMELINE.csv", read_runs, draw)
