#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws what `bench/run compare` measured: a panel for each figure, a group for each trace, a mark
for each peer. Marks are medians of the turns; lines reach from the least to the most of them,
and of calls from the median to the worst, with a tick at the 99th percentile."""

import argparse
import sys
from pathlib import Path

import compare_table
from plot import OTHER_STYLE, STYLES

FACES = {"ductile": "o", "torch": "s", "rmm": "^"}


def values_of(*path, scale=1.0):
    def figure(cell):
        values = [value * scale for value in compare_table.each(cell, *path)]
        return (min(values), compare_table.median(values), max(values)) if values else None

    return figure


def capacity(cell):
    value = compare_table.capacity(cell)
    return None if value is None else (value, value, value)


def calls(key):
    def figure(cell):
        parts = [compare_table.middle(cell, key, part) for part in ("median", "p99", "worst")]
        return None if None in parts else (parts[0], parts[0], parts[2], parts[1])

    return figure


# Title, figure (least, middle, most, and a tick), whether the scale is by powers of ten.
PANELS = [
    ("efficiency: live peak / memory held", values_of("efficiency"), False),
    ("live peak / smallest capacity", capacity, False),
    ("a call in the first pass, ns", calls("cold_call_ns"), True),
    ("a call in later passes, ns", calls("warm_call_ns"), True),
    ("first pass, ms", values_of("first_pass", "wall_us", scale=1e-3), True),
    ("last pass, ms", values_of("last_pass", "wall_us", scale=1e-3), True),
    (
        "driver calls of the first pass, ms",
        values_of("first_pass", "driver_time_us", scale=1e-3),
        True,
    ),
    (
        "driver calls of the last pass, ms",
        values_of("last_pass", "driver_time_us", scale=1e-3),
        True,
    ),
    ("host waits in all passes", values_of("all_passes", "stream_syncs"), True),
]


def style_of(name):
    """The colour of what the peer is, and a mark for how it is driven."""
    color = STYLES.get(name, OTHER_STYLE)["color"]
    family = name.split("-", maxsplit=1)[0]
    return {"color": color, "marker": FACES.get(family, "D"), "markersize": 4.5, "linewidth": 1.1}


def scale_by_powers(axes, lowest, highest):
    """Of ten; figures of nothing stand on the axis, below 1."""
    if lowest > 0:
        axes.set_yscale("log")
        axes.set_ylim(lowest / 2, highest * 2)
    else:
        axes.set_yscale("symlog", linthresh=1)
        axes.set_ylim(0, max(1, highest) * 2)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}")


def draw_panel(axes, found, names, panel):
    title, figure, by_powers = panel
    lowest, highest = None, 0
    for at, cells in enumerate(found.values()):
        for place, name in enumerate(names):
            value = figure(cells[name]) if name in cells else None
            if value is None:
                continue
            low, mid, high, *tick = value
            x = at + 0.8 * (place + 0.5) / len(names) - 0.4
            style = style_of(name)
            axes.plot([x, x], [low, high], color=style["color"], linewidth=1.1)
            axes.plot([x] * len(tick), tick, marker="_", markersize=5, color=style["color"])
            axes.plot([x], [mid], linestyle="none", **style)
            lowest = low if lowest is None else min(lowest, low)
            highest = max(highest, high)
    axes.set_title(title, fontsize=10, loc="left", fontweight="bold")
    axes.set_xticks(range(len(found)), [name.split("_")[0] for name in found], fontsize=9)
    axes.grid(axis="y", color="#000000", alpha=0.08, linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    if by_powers and lowest is not None:
        scale_by_powers(axes, lowest, highest)
    if lowest is None:
        axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center", color="#777777")


def draw(rows, pyplot, path):
    found = compare_table.gather(rows)
    names = compare_table.ordered({name for cells in found.values() for name in cells})
    figure, panels = pyplot.subplots(5, 2, figsize=(12.5, 14.5), constrained_layout=True)
    flat = list(panels.ravel())
    for axes, panel in zip(flat, PANELS):
        draw_panel(axes, found, names, panel)
    legend = flat[-1]
    legend.set_axis_off()
    for name in names:
        legend.plot([], [], linestyle="none", label=compare_table.title(name), **style_of(name))
    legend.legend(loc="center left", frameon=False, fontsize=10)
    figure.savefig(path, dpi=110)


def main(words):
    parser = argparse.ArgumentParser(prog="plot_compare.py", description=__doc__)
    parser.add_argument("rows", metavar="COMPARE.jsonl", type=Path)
    parser.add_argument("picture", metavar="PICTURE.png", type=Path)
    given = parser.parse_args(words)
    try:
        import matplotlib
    except ImportError:
        sys.exit("plot_compare.py: matplotlib is missing: pip install matplotlib, or install "
                 "python3-matplotlib and run this with /usr/bin/python3")  # fmt: skip
    matplotlib.use("Agg")
    from matplotlib import pyplot

    try:
        rows, _ = compare_table.read(given.rows)
        draw(rows, pyplot, given.picture)
    except OSError as error:
        sys.exit(f"plot_compare.py: {error.filename or given.rows}: {error.strerror}")


if __name__ == "__main__":
    main(sys.argv[1:])
