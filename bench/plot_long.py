#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""usage: plot_long.py FILE PICTURE.svg

Draws what a long run measured over time: the samples of `gpu-pattern_churn --soak`, or the rows of
`python/tests/torch_gpu/lasting.py`. Dotted lines: where a piece ends. Needs Python's standard library alone.
"""

import json
import re

from plot import LOOKS, Panel, fail, look, run, svg, text, title_of

GIB, MIB = float(1 << 30), float(1 << 20)
SAMPLE = re.compile(
    r"(\d+) operations: (\d+) ns each, (\d+) KiB resident, (\d+) KiB bookkeeping, (\d+) handles, "
    r"(\d+) mappings, (\d+) MiB addresses, (\d+) MiB live")
# Of either source: what it goes over, and a title and a factor for each panel.
SOAK = ("operations, millions", 1e-6, {
    "ns": ("ns an operation", 1), "resident": ("MiB of the process", 1 / 1024),
    "bookkeeping": ("KiB of bookkeeping", 1), "handles": ("granules held", 1),
    "mappings": ("granules mapped", 1), "addresses": ("GiB of addresses", 1 / 1024),
    "live": ("GiB live", 1 / 1024)})
TRAINING = ("minutes", 1 / 60, {
    "held": ("GiB held", 1 / GIB), "used": ("GiB used, at most", 1 / GIB),
    "fragmentation_percent": ("held beyond used, %", 1), "step_ms": ("ms a step, median", 1),
    "p99_ms": ("ms a step, 99th percentile", 1), "resident": ("MiB of the process", 1 / MIB),
    "retries": ("retries", 1), "caught": ("out of memory, caught", 1)})


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
            found.setdefault(name, Line()).add(row["seconds"], figures, pieces.get(name) != row["piece"])
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


def draw_panel(left, top, factors, figures, lines):
    """One figure of all allocators; `figures` has its name, title and factor."""
    over_factor, (name, (title, factor)) = factors, figures
    every = [value * factor for line in lines.values() for value in line.figures[name]]
    last = max(line.over[-1] for line in lines.values()) * over_factor
    panel = Panel(left, top + 20, 360, 110, last or 1, 1.05 * max(every) or 1)
    yield text(left, top + 10, title, "name")
    yield from panel.grid()
    for allocator, line in lines.items():
        known = allocator if allocator in LOOKS else f"torch-{allocator}"
        yield from panel.line([x * over_factor for x in line.over], [y * factor for y in line.figures[name]], known)
        for end in line.ends:
            x = panel.place(end * over_factor, 0)[0]
            yield (f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{panel.top}" y2="{panel.top + panel.height}" '
                   f'stroke="{look(known)[0]}" stroke-dasharray="1 3"/>')
    yield text(left + 360, top + 146, f"{last:.3g}", "end small")


def make_picture(path):
    over, over_factor, panels, lines = read(path)
    parts = [text(60 + 190 * n, 20, title_of(name), "name", f' style="fill: {look(name)[0]}"')
             for n, name in enumerate(lines)]
    for n, figures in enumerate(panels.items()):
        parts += draw_panel(60 + 430 * (n % 2), 40 + 160 * (n // 2), over_factor, figures, lines)
    height = 60 + 160 * -(-len(panels) // 2)
    parts.append(text(60, height - 8, f"over {over}", "small"))
    return "\n".join(svg(870, height, "A long run", parts)) + "\n"


if __name__ == "__main__":
    run(__doc__, make_picture)
