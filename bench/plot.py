#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""usage: plot.py FILE PICTURE.svg

Draws what FILE holds:

  what `ductile-bench replay --timeline` wrote: held and live memory over time
  what `ductile-bench generate vary --sweep --json` wrote: medians of the seeds, and all of them as bands
  rows of `ductile-bench replay --json`: what each allocator held for each recorded run
  rows of `python/tests/preload_gpu/run`: what PyTorch and JAX had of one allocator, from the row `both`

Needs Python's standard library alone.
"""

import csv
import json
import sys
from math import log10
from pathlib import Path
from statistics import median

from compare_peers import BY_NAME
from contender_titles import TITLES

GIB = 1 << 30
# Colour, width and dashes, in the order of the legend; whatever else a file has follows in grey. Told apart also
# without colour.
LOOKS = {
    "ductile": ("#0b6e4f", 2.2, ""),
    "ductile wait": ("#0b6e4f", 2.2, ""),
    "ductile poll": ("#e09f3e", 1.8, ""),
    "expandable": ("#d1495b", 1.5, "7 2"),
    "classic": ("#30638e", 1.5, "3 1.5"),
    "cumemallocasync": ("#8d5a97", 1.3, "8 1.5 1.5 1.5"),
    "ductile-tight": ("#7cb518", 1.6, ""),
    "torch-ductile": ("#14a37f", 1.4, "11 3"),
    "torch-expandable": ("#d1495b", 1.5, "7 2"),
    "torch-native": ("#30638e", 1.5, "3 1.5"),
    "torch-async": ("#b07aa1", 1.3, "8 1.5 1.5 1.5"),
    "rmm-pool": ("#c77d0a", 1.3, "4 1.5 1.5 1.5"),
    "rmm-arena": ("#6f4e37", 1, "1.5 1.5"),
    "cumemalloc": ("#9a9a9a", 0.8, ""),
}
STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #59636e }
  .name { font-size: 14px; fill: #1f2328 } .small { font-size: 12px }
  .number { font-size: 22px; font-weight: 600; text-anchor: end; fill: #1f2328 }
  .end { text-anchor: end } .middle { text-anchor: middle }
  .classic, .torch { fill: #c9ced4 } .expandable { fill: #8d96a0 } .ductile, .jax { fill: #0b7a53 }
  .live { fill: #e3dccb } .grid { stroke: #d1d9e0 } polyline { fill: none }
  .held { stroke: #1f2328; stroke-width: 2 }
  @media (prefers-color-scheme: dark) {
    text { fill: #9198a1 } .name, .number { fill: #f0f6fc }
    .classic, .torch { fill: #3d444d } .expandable { fill: #767f89 } .ductile, .jax { fill: #2fbf8a }
    .live { fill: #4a4436 } .grid { stroke: #3d444d } .held { stroke: #f0f6fc }
  }
"""


def fail(reason):
    sys.exit(f"plot.py: {reason}")


def look(name):
    return LOOKS.get(name, ("#777777", 1, ""))


def title_of(name):
    """As every page calls it: "ductile wait" is "Ductile, wait"."""
    contender, *way = name.split(" ")
    peer = BY_NAME.get(name)
    known = TITLES.get(contender) or (peer.title if peer else name)
    return ", ".join([known, *way]) if contender in TITLES else known


def by_legend(name):
    return list(LOOKS).index(name) if name in LOOKS else len(LOOKS)


# ---- Drawing -------------------------------------------------------------------------------------


def svg(width, height, title, parts):
    yield f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="{title}">'
    yield f"<style>{STYLE}</style>"
    yield from parts
    yield "</svg>"


def text(x, y, words, kind="", more=""):
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}"{more}>{words}</text>'


def box(kind, x, y, width, height, more=""):
    return f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}"{more}/>'


class Panel:
    """Where values are drawn: x from 0 to `last`, y from `low` to `high`, by powers of ten where low is not 0."""

    def __init__(self, left, top, width, height, last, high, low=0):
        self.left, self.top, self.width, self.height = left, top, width, height
        self.last, self.high, self.low = last, high, low

    def place(self, x, y):
        share = y / self.high if not self.low else log10(max(y, self.low) / self.low) / log10(self.high / self.low)
        return self.left + self.width * x / self.last, self.top + self.height * (1 - share)

    def points(self, xs, ys):
        return [f"{x:.1f},{y:.1f}" for x, y in map(self.place, xs, ys)]

    def line(self, xs, ys, name):
        color, width, dashes = look(name)
        yield (f'<polyline points="{" ".join(self.points(xs, ys))}" stroke="{color}" stroke-width="{width}" '
               f'stroke-dasharray="{dashes}"/>')

    def area(self, xs, lower, upper, kind, more=""):
        corners = self.points(xs, upper) + self.points(xs, lower)[::-1]
        yield f'<polygon class="{kind}" points="{" ".join(corners)}"{more}/>'

    def marks(self):
        """Some five round values of y."""
        if self.low:
            return [part * 10**power for power in range(-3, 7) for part in (1, 3)]
        step = 10 ** int(log10(self.high) - 1 + 1e-9)
        step *= next(n for n in (1, 2, 5, 10, 20, 50, 100) if self.high / (n * step) <= 6)
        return [n * step for n in range(int(self.high / step) + 1)]

    def grid(self, unit=""):
        for value in self.marks():
            if self.low <= value <= self.high:
                y = self.place(0, value)[1]
                yield f'<line class="grid" x1="{self.left}" x2="{self.left + self.width}" y1="{y:.1f}" y2="{y:.1f}"/>'
                yield text(self.left - 8, y + 4, f"{value:g}{unit}", "end small")


# ---- Over time -----------------------------------------------------------------------------------

COLUMNS = ["trace", "contender", "event", "live_bytes", "reserved_bytes", "live_peak_bytes", "reserved_peak_bytes"]


def read_timeline(lines):
    """{trace: {contender: [(event, live, held, most live, most held)]}}, in the order of the file."""
    traces = {}
    for row in csv.DictReader(lines):
        try:
            sample = [int(row[name]) for name in COLUMNS[2:]]
        except (TypeError, ValueError):
            fail("not a sample: " + ",".join(map(str, row.values())))
        traces.setdefault(row["trace"], {}).setdefault(row["contender"], []).append(sample)
    return traces


def spread(labels, gap):
    """(height, words, colour), moved apart where they would touch; the lowest last."""
    placed = []
    for y, words, color in sorted(labels, reverse=True):
        placed.append((min(y, placed[-1][0] - gap if placed else y), words, color))
    return placed


def draw_trace(top, trace, runs):
    most = {name: max(max(s[2] for s in run), run[-1][4]) / GIB for name, run in runs.items()}
    longest = max(runs.values(), key=len)
    panel = Panel(60, top + 24, 520, 220, max(longest[-1][0], 1), 1.08 * max(most.values()) or 1)
    yield text(panel.left, top + 14, trace, "name")
    yield from panel.area([s[0] for s in longest], [0] * len(longest), [s[1] / GIB for s in longest], "live")
    yield from panel.grid(" GiB")
    live = longest[-1][3] / GIB
    labels = [(panel.place(0, live)[1], f"{live:.2f} GiB live", "")]
    for name in sorted(runs, key=by_legend, reverse=True):
        yield from panel.line([s[0] for s in runs[name]], [s[2] / GIB for s in runs[name]], name)
        labels.append((panel.place(0, most[name])[1], f"{most[name]:.2f} GiB {title_of(name)}", look(name)[0]))
    for y, words, color in spread(labels, 15):
        yield text(590, y + 4, words, "small", f' style="fill: {color}"' if color else "")


def draw_timeline(lines):
    traces = read_timeline(lines)
    if not traces:
        fail("no sample in it")
    parts = [part for n, item in enumerate(traces.items()) for part in draw_trace(30 + 270 * n, *item)]
    head = text(60, 18, "Memory held (lines) and live (area) over the events; at the right, the most of each")
    return svg(800, 40 + 270 * len(traces), "Memory over time", [head, *parts])


# ---- From constant to wild ------------------------------------------------------------------------


def per_step(prefix):
    """Host and driver time of a step in ms, seed by seed."""
    names = f"{prefix}host_us_per_step", f"{prefix}driver_us_per_step"
    return lambda cell: [None if None in pair else sum(pair) / 1000 for pair in zip(*(cell[name] for name in names))]


def beyond_used(name):
    """By how many per cent a ratio is above one, seed by seed."""
    return lambda cell: [None if ratio is None else 100 * (ratio - 1) for ratio in cell[name]]


# What a row of panels shows.
FIGURES = [
    ("held beyond what is used, %, without a cap", beyond_used("held_over_used")),
    ("smallest capacity beyond what is used, %", beyond_used("min_capacity_over_used")),
    ("host and driver, ms a step, without a cap", per_step("")),
    ("host and driver, ms a step, near its smallest capacity", per_step("tight_")),
]


def bands(rows, figure):
    """{setting: {contender: [(spread, least, median, most) of the seeds that have the figure]}}"""
    found = {}
    for row in rows:
        of_setting = found.setdefault((row["recompute"], row["side_streams"]), {})
        values = [] if row.get("absent") else [v for v in figure(row) if v is not None]
        if values:
            band = row["spread_percent"], min(values), median(values), max(values)
            of_setting.setdefault(row["contender"], []).append(band)
    return found


def draw_bands(panel, contenders):
    yield from panel.grid()
    for spread_percent in (0, 50, 100):
        x, y = panel.place(spread_percent, panel.low)
        yield text(x, y + 16, spread_percent, "middle small")
    for name in sorted(contenders, key=by_legend, reverse=True):
        xs, least, middle, most = zip(*contenders[name])
        yield from panel.area(xs, least, most, "", f' fill="{look(name)[0]}" fill-opacity="0.18"')
        yield from panel.line(xs, middle, name)


def draw_figure(top, title, settings):
    """One scale for all panels of a row."""
    all_of = [value for c in settings.values() for cells in c.values() for cell in cells for value in cell[1:]]
    low = max(min(all_of, default=1), max(all_of, default=1) / 1e4, 1e-3)
    yield text(60, top + 10, title, "name")
    high = max([*all_of, 2 * low])
    for n, contenders in enumerate(settings.values()):
        yield from draw_bands(Panel(60 + 230 * n, top + 20, 180, 130, 100, high, low), contenders)


def draw_sweep(rows):
    names = sorted({row["contender"] for row in rows if not row.get("absent")}, key=by_legend)
    parts = []
    for n, name in enumerate(names):
        parts.append(box("", 60 + 170 * n, 12, 12, 12, f' fill="{look(name)[0]}"'))
        parts.append(text(78 + 170 * n, 23, title_of(name)))
    for n, (title, figure) in enumerate(FIGURES):
        settings = bands(rows, figure)
        parts += draw_figure(70 + 190 * n, title, settings)
    for n, (recompute, side_streams) in enumerate(settings):
        streams = "one stream" if side_streams == 0 else f"{side_streams + 1} streams"
        parts.append(text(60 + 230 * n, 52, f"{'with' if recompute else 'no'} recomputation, {streams}", "small"))
    parts.append(text(60, 840, "spread of batch and length, %", "small"))
    return svg(60 + 230 * len(settings), 850, "Memory and time as batch and length spread", parts)


# ---- Held for each recorded run -------------------------------------------------------------------

RUNS = {
    "gpt2_medium_var_batch_seq": "GPT-2",
    "llama_1b_lora_recompute": "Llama, LoRA",
    "resnet50_var_batch_res": "ResNet-50",
    "vit_multistream_record": "ViT, 3 streams",
    "fsdp2_llama": "Llama, FSDP2",
}
BARS = ("classic", "expandable", "ductile")
LEFT, WIDTH, BAR, STEP, TOP = 130, 470, 13, 55, 44


def percent_less(held):
    """How much less Ductile held than native, in whole percent."""
    return round(100 * (1 - held["ductile"] / held["classic"]))


def held_by_run(rows):
    """Bytes held at the peak by each allocator with its default options, for each run."""
    held = {run: {} for run in RUNS}
    for row in rows:
        if row["trace"] in held and row["contender"] in BARS and not row.get("settings"):
            held[row["trace"]][row["contender"]] = row["reserved_peak_bytes"]
    return held


def draw_run(y, run, held, scale):
    yield text(LEFT - 12, y + 1.5 * BAR + 5, RUNS[run], "name end")
    for n, name in enumerate(BARS):
        width = round(held[name] * scale, 1)
        yield box(name, LEFT, y + n * BAR, width, BAR - 1)
        yield text(LEFT + width + 6, y + n * BAR + 10, f"{held[name] / GIB:.1f} GiB", "small")
    yield text(LEFT + WIDTH + 170, y + 1.5 * BAR + 8, f"−{percent_less(held)} %", "number")


def draw_held(rows):
    runs = {run: held for run, held in held_by_run(rows).items() if len(held) == len(BARS)}
    if not runs:
        fail("no recorded run with all of " + ", ".join(BARS))
    scale = WIDTH / max(max(held.values()) for held in runs.values())
    parts = [text(LEFT + WIDTH + 170, 24, "Ductile against native", "small end")]
    for n, name in enumerate(BARS):
        parts += [box(name, LEFT + 160 * n, 14, 12, 12), text(LEFT + 18 + 160 * n, 24, TITLES[name], "small")]
    for n, (run, held) in enumerate(runs.items()):
        parts += draw_run(TOP + n * STEP, run, held, scale)
    return svg(LEFT + WIDTH + 180, TOP + STEP * len(runs), "Memory held for each recorded run", parts)


# ---- PyTorch and JAX on one allocator --------------------------------------------------------------


def draw_shared(rows):
    found = [row["moments"] for row in rows if row["case"] == "both" and "moments" in row]
    if not found:
        fail("no row of `both`")
    torch, jax, held = ([value / GIB for value in column] for column in zip(*found[0]))
    xs, both = range(len(held)), [a + b for a, b in zip(torch, jax)]
    panel = Panel(56, 40, 620, 220, len(held) - 1, 1.05 * max(held))
    parts = [*panel.grid(" GiB"), *panel.area(xs, [0] * len(jax), jax, "jax"), *panel.area(xs, jax, both, "torch")]
    parts.append(f'<polyline class="held" points="{" ".join(panel.points(xs, held))}"/>')
    for x, kind, words in ((56, "torch", "PyTorch, live"), (186, "jax", "JAX, live")):
        parts += [box(kind, x, 12, 12, 12), text(x + 18, 23, words)]
    parts += ['<line class="held" x1="286" x2="302" y1="18" y2="18"/>', text(308, 23, "held by Ductile")]
    parts.append(text(676, 282, f"step {len(held)}", "end"))
    return svg(688, 290, "PyTorch and JAX on one allocator", parts)


# ---- The program -----------------------------------------------------------------------------------


def make_picture(path):
    """The picture of what the file holds."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    if lines and lines[0].split(",") == COLUMNS:
        return "\n".join(draw_timeline(lines)) + "\n"
    try:
        rows = [json.loads(line) for line in lines if line.startswith("{")]
        keys = rows[0].keys()
        draw = draw_sweep if "spread_percent" in keys else draw_shared if "case" in keys else draw_held
        return "\n".join(draw(rows)) + "\n"
    except (ValueError, KeyError, TypeError, IndexError):
        return fail(f"{path}: neither memory over time nor rows of a sweep, of replay --json or of preload_gpu")


def run(usage, picture_of):
    arguments = sys.argv[1:]
    if len(arguments) != 2 or arguments[0].startswith("-"):
        sys.exit(usage)
    try:
        Path(arguments[1]).write_text(picture_of(Path(arguments[0])), encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        fail(f"{getattr(error, 'filename', None) or arguments[0]}: {getattr(error, 'strerror', None) or error}")


if __name__ == "__main__":
    run(__doc__, make_picture)
