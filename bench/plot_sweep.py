#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws what `ductile-bench generate vary --sweep --json` wrote: medians of the seeds, bands around all."""

import json
from statistics import median

from plot import OTHER_STYLE, STYLES, by_legend, fail, run


def per_step(prefix):
    """Host and driver time of a step in ms, seed by seed."""
    def figure(cell):
        pairs = zip(cell[f"{prefix}host_us_per_step"], cell[f"{prefix}driver_us_per_step"])
        return [None if None in pair else sum(pair) / 1000 for pair in pairs]
    return figure


def beyond_used(name):
    """By how many per cent a ratio is above one, seed by seed."""
    return lambda cell: [None if ratio is None else 100 * (ratio - 1) for ratio in cell[name]]


# What a row of panels shows.
ROWS = [
    ("held beyond what is used,\n%, without a cap", beyond_used("held_over_used")),
    ("smallest capacity beyond\nwhat is used, %", beyond_used("min_capacity_over_used")),
    ("host and driver, ms a step,\nwithout a cap", per_step("")),
    ("host and driver, ms a step,\nnear its smallest capacity", per_step("tight_")),
]


def read_cells(path):
    """{(recompute, side streams): {contender: [cell of each spread]}}"""
    settings = {}
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if line.startswith("#"):
                continue
            try:
                cell = json.loads(line)
                key = (cell["recompute"], cell["side_streams"])
                if not cell.get("absent"):
                    settings.setdefault(key, {}).setdefault(cell["contender"], []).append(cell)
            except (ValueError, KeyError, TypeError):
                fail(f"{path}:{number}: not a line of generate vary --sweep --json")
    if not settings:
        fail(f"{path}: no measurement in it")
    return settings


def band(cells, figure):
    """Spreads, least, median and most of the seeds that have the figure."""
    points = [(cell["spread_percent"], [v for v in figure(cell) if v is not None])
              for cell in cells]
    points = [(spread, values) for spread, values in points if values]
    return ([spread for spread, _ in points], [min(v) for _, v in points],
            [median(v) for _, v in points], [max(v) for _, v in points])


def draw_panel(axes, contenders, figure):
    for name in sorted(contenders, key=by_legend):
        style = STYLES.get(name, OTHER_STYLE)
        spread, least, middle, most = band(contenders[name], figure)
        if not spread:
            continue
        axes.fill_between(spread, least, most, color=style["color"], alpha=0.18, linewidth=0)
        axes.plot(spread, middle, label=name, marker="o", markersize=3, **style)
    axes.grid(axis="y", color="#000000", alpha=0.08, linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xticks([0, 25, 50, 75, 100])


def scale_row(row):
    """One scale for all panels of a row, by powers of ten."""
    for axes in row:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    limits = [axes.get_ylim() for axes in row]
    for axes in row:
        axes.set_ylim(min(low for low, _ in limits), max(high for _, high in limits))


def describe(setting):
    recompute, side_streams = setting
    streams = "one stream" if side_streams == 0 else f"{side_streams + 1} streams"
    return f"{'with' if recompute else 'without'} recomputation, {streams}"


def draw(settings, pyplot, path):
    figure, panels = pyplot.subplots(len(ROWS), len(settings), squeeze=False, sharex=True,
                                     figsize=(3.4 * len(settings), 2.5 * len(ROWS) + 0.8),
                                     constrained_layout=True)
    for column, (setting, contenders) in enumerate(settings.items()):
        panels[0][column].set_title(describe(setting), fontsize=10, loc="left", fontweight="bold")
        panels[-1][column].set_xlabel("spread of batch and length, %")
        for row, (_, value) in enumerate(ROWS):
            draw_panel(panels[row][column], contenders, value)
    for row, (label, _) in zip(panels, ROWS):
        row[0].set_ylabel(label)
        scale_row(row)
    handles, names = panels[0][0].get_legend_handles_labels()
    figure.suptitle(" ")  # keeps room for the legend
    figure.legend(handles, names, loc="upper center", ncol=len(names), frameon=False)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    run(__doc__, "SWEEP.jsonl", read_cells, draw)
