#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""usage: extras/lab/run plot FILE PICTURE.svg

Draws what a long run measured over time: the samples of `gpu-pattern_churn --soak`, or the rows of
`torch_gpu/lasting.py`. Dotted lines: where a piece ends. Needs matplotlib.
"""

import json
import re
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))
from plot import LOOKS, add_legend, fail, look, new_figure, run, title_of

GIB, MIB = float(1 << 30), float(1 << 20)
SAMPLE = re.compile(
    r"(\d+) operations: (\d+) ns each, (\d+) KiB resident, (\d+) KiB bookkeeping, (\d+) handles, "
    r"(\d+) mappings, (\d+) MiB addresses, (\d+) MiB live"
)
# Of either source: what it goes over, and a title and a factor for each panel.
SOAK = (
    "operations, millions",
    1e-6,
    {
        "ns": ("ns an operation", 1),
        "resident": ("MiB of the process", 1 / 1024),
        "bookkeeping": ("KiB of bookkeeping", 1),
        "handles": ("granules held", 1),
        "mappings": ("granules mapped", 1),
        "addresses": ("GiB of addresses", 1 / 1024),
        "live": ("GiB live", 1 / 1024),
    },
)
TRAINING = (
    "minutes",
    1 / 60,
    {
        "held": ("GiB held", 1 / GIB),
        "used": ("GiB used, at most", 1 / GIB),
        "fragmentation_percent": ("held beyond used, %", 1),
        "step_ms": ("ms a step, median", 1),
        "p99_ms": ("ms a step, 99th percentile", 1),
        "resident": ("MiB of the process", 1 / MIB),
        "retries": ("retries", 1),
        "caught": ("out of memory, caught", 1),
    },
)


class Line:
    """What is measured over what, and where pieces end."""

    def __init__(self):
        self.over = []
        self.figures = {}
        self.ends = []

    def add(self, over, figures, piece_begins):
        if piece_begins and self.over:
            self.ends.append(self.over[-1])
        self.over.append(over)
        for name, value in figures.items():
            self.figures.setdefault(name, []).append(value)


def read_soak(lines):
    found, begins = Line(), False
    for text in lines:
        begins = begins or text.startswith("# piece ")
        match = SAMPLE.match(text)
        if match:
            over, *values = (int(word) for word in match.groups())
            found.add(over, dict(zip(SOAK[2], values)), begins)
            begins = False
    return {"ductile": found} if found.over else {}


def read_training(lines):
    found, pieces = {}, {}
    for text in lines:
        if text.startswith("{"):
            row = json.loads(text)
            name = row["allocator"]
            figures = {key: row[key] for key in TRAINING[2]}
            found.setdefault(name, Line()).add(
                row["seconds"], figures, pieces.get(name) != row["piece"]
            )
            pieces[name] = row["piece"]
    return found


def read(path):
    """What it goes over, the factor, the panels, {allocator: Line}."""
    lines = path.read_text(encoding="utf-8").splitlines()
    for source, reader in ((SOAK, read_soak), (TRAINING, read_training)):
        try:
            found = reader(lines)
        except (ValueError, KeyError, TypeError):
            fail(f"{path}: rows are not those of lasting.py")
        if found:
            return (*source, found)
    fail(f"{path}: neither samples of a soak nor rows of a training")


def draw_panel(axes, over_factor, name, title, factor, lines):
    """One figure of all allocators."""
    for allocator, line in lines.items():
        of = look(allocator if allocator in LOOKS else f"torch-{allocator}")
        axes.plot(
            [x * over_factor for x in line.over],
            [y * factor for y in line.figures[name]],
            label=title_of(allocator),
            **of,
        )
        for end in line.ends:
            axes.axvline(end * over_factor, color=of["color"], linewidth=0.8, linestyle=":")
    axes.set_title(title)
    axes.set_ylim(0, 1.1 * max(max(line.figures[name]) for line in lines.values()) * factor or 1)
    axes.grid(axis="y")


def draw_file(path):
    over, over_factor, panels, lines = read(path)
    rows = -(-len(panels) // 2)
    figure = new_figure(9, 0.6 + 1.6 * rows)
    every = list(figure.subplots(rows, 2, sharex=True).flat)
    for axes, (name, (title, factor)) in zip(every, panels.items()):
        draw_panel(axes, over_factor, name, title, factor, lines)
    for axes in every[len(panels) :]:
        axes.set_axis_off()
    drawn, words = figure.axes[0].get_legend_handles_labels()
    add_legend(figure, "A long run", dict(zip(words, drawn)))
    figure.supxlabel(f"over {over}", fontsize=9)
    return figure


if __name__ == "__main__":
    run(__doc__, draw_file)
