#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""usage: plot.py FILE PICTURE.svg

Draws what FILE holds:

  what `ductile-bench replay --timeline` wrote: held and live memory over time
  what `bench/run sweep` wrote: medians of the seeds, and all of them as bands
  rows of `ductile-bench replay --json`: what each allocator held for each recorded run
  rows of cases, in one of which (`both`) PyTorch and JAX had their memory of one allocator: what each had

Needs matplotlib (Debian: apt-get install python3-matplotlib). PICTURE may end in .png or .pdf instead.
"""

import csv
import sys
from pathlib import Path
from statistics import median

from contender_titles import BESIDE, TITLES
from rows import read_rows

try:
    import matplotlib
    from matplotlib.figure import Figure
except ImportError:  # words and figures come without it
    matplotlib = None

GIB = 1 << 30
# Colour, width and dashes, in the order of the legend; whatever else a file has follows in grey. Told apart also
# without colour.
LOOKS = {
    "ductile": ("#0b6e4f", 2.2, "-"),
    "ductile wait": ("#0b6e4f", 2.2, "-"),
    "ductile poll": ("#e09f3e", 1.8, "-"),
    "expandable": ("#d1495b", 1.5, (0, (5, 1.5))),
    "classic": ("#30638e", 1.5, (0, (2, 1))),
    "cumemallocasync": ("#8d5a97", 1.3, (0, (6, 1, 1, 1))),
    "ductile-tight": ("#7cb518", 1.6, "-"),
    "torch-ductile": ("#14a37f", 1.4, (0, (8, 2))),
    "torch-expandable": ("#d1495b", 1.5, (0, (5, 1.5))),
    "torch-native": ("#30638e", 1.5, (0, (2, 1))),
    "torch-async": ("#b07aa1", 1.3, (0, (6, 1, 1, 1))),
    "rmm-pool": ("#c77d0a", 1.3, (0, (3, 1, 1, 1))),
    "rmm-arena": ("#6f4e37", 1, (0, (1, 1))),
    "cumemalloc": ("#9a9a9a", 0.8, "-"),
}
LIVE, FAINT, TORCH, INK = "#e3dccb", "#d1d9e0", "#c9ced4", "#1f2328"
# Words stay words, and a picture that is drawn again is the same to the byte.
SETTINGS = {
    "svg.fonttype": "none", "svg.hashsalt": "ductile", "font.size": 9, "axes.titlesize": 10,
    "axes.titlelocation": "left", "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": FAINT,
    "axes.axisbelow": True, "grid.color": FAINT, "axes.labelcolor": "#59636e", "xtick.color": "#59636e",
    "ytick.color": "#59636e", "legend.frameon": False, "legend.fontsize": 9}


def fail(reason):
    sys.exit(f"{Path(sys.argv[0]).name}: {reason}")


def look(name):
    """As matplotlib's functions take it."""
    color, width, dashes = LOOKS.get(name, ("#777777", 1, "-"))
    return {"color": color, "linewidth": width, "linestyle": dashes}


def title_of(name):
    """As every page calls it: "ductile wait" is "Ductile, wait"."""
    contender, *way = name.split(" ")
    return ", ".join([TITLES[contender], *way]) if contender in TITLES else BESIDE.get(name, name)


def by_legend(name):
    return list(LOOKS).index(name) if name in LOOKS else len(LOOKS)


def new_figure(width, height):
    return Figure(figsize=(width, height), layout="constrained")


def add_legend(figure, title, lines):
    """On one line with the picture's title, which keeps it room; lines by their words."""
    figure.suptitle(title, x=0.01, ha="left", fontsize=10, weight="bold")
    figure.legend(lines.values(), lines.keys(), loc="upper right", ncol=len(lines), borderaxespad=0.2)


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
    """(height, words, colour), moved apart where they would touch; the highest last."""
    placed = []
    for y, words, color in sorted(labels):
        placed.append((max(y, placed[-1][0] + gap if placed else y), words, color))
    return placed


def draw_trace(axes, trace, runs):
    most = {name: max(max(s[2] for s in run), run[-1][4]) / GIB for name, run in runs.items()}
    longest = max(runs.values(), key=len)
    axes.fill_between([s[0] for s in longest], [s[1] / GIB for s in longest], color=LIVE, linewidth=0)
    live = longest[-1][3] / GIB
    labels = [(live, f"{live:.2f} GiB live", "#6b6250")]
    for name in sorted(runs, key=by_legend, reverse=True):
        axes.plot([s[0] for s in runs[name]], [s[2] / GIB for s in runs[name]], **look(name))
        labels.append((most[name], f"{most[name]:.2f} GiB {title_of(name)}", look(name)["color"]))
    top = 1.08 * max(most.values()) or 1
    axes.set(title=trace, ylabel="GiB", xlim=(0, max(longest[-1][0], 1)), ylim=(0, top), xticks=[])
    axes.grid(axis="y")
    for y, words, color in spread(labels, top / 15):
        axes.annotate(words, (1.01, y), xycoords=("axes fraction", "data"), color=color, va="center", fontsize=8)


def draw_timeline(lines):
    traces = read_timeline(lines)
    if not traces:
        fail("no sample in it")
    figure = new_figure(8.5, 0.5 + 2.6 * len(traces))
    figure.suptitle("Memory held (lines) and live (area) over the events; at the right, the most of each")
    for axes, item in zip(figure.subplots(len(traces), squeeze=False)[:, 0], traces.items()):
        draw_trace(axes, *item)
    return figure


# ---- From constant to wild ------------------------------------------------------------------------


def of_done(value, is_capped):
    """That of a row of a run that was completed; None of another one."""
    return lambda row: value(row) if row.get("completed") and ("above_min_percent" in row) == is_capped else None


def beyond_used(name):
    """By how many per cent more than is in use."""
    return lambda row: 100 * (row[name] / row["live_peak_bytes"] - 1) if row[name] else None


def driver_ms(row):
    return row["driver_time_us"] / 1000 / row["steps"]


# What a row of panels shows.
FIGURES = [
    ("held beyond used, %\nwithout a cap", of_done(beyond_used("reserved_peak_bytes"), False)),
    ("smallest capacity\nbeyond used, %", of_done(beyond_used("min_capacity_bytes"), False)),
    ("driver ms a step\nwithout a cap", of_done(driver_ms, False)),
    ("driver ms a step near\nits smallest capacity", of_done(driver_ms, True)),
]


def bands(rows, figure):
    """{setting: {contender: [(spread, least, median, most) of the seeds that have the figure]}}"""
    found = {}
    for row in rows:
        of_setting = found.setdefault((row["recompute"], row["side_streams"]), {})
        if figure(row) is not None:
            values = of_setting.setdefault(row["contender"], {}).setdefault(row["spread_percent"], [])
            values.append(figure(row))
    return {setting: {name: [(spread, min(v), median(v), max(v)) for spread, v in sorted(spreads.items())]
                      for name, spreads in contenders.items()} for setting, contenders in found.items()}


def setting_words(recompute, side_streams):
    streams = "one stream" if side_streams == 0 else f"{side_streams + 1} streams"
    return f"{'with' if recompute else 'no'} recomputation, {streams}"


def draw_bands(axes, contenders):
    axes.grid(axis="y")
    for name in sorted(contenders, key=by_legend, reverse=True):
        xs, least, middle, most = zip(*contenders[name])
        axes.fill_between(xs, least, most, color=look(name)["color"], alpha=0.18, linewidth=0)
        axes.plot(xs, middle, label=title_of(name), **look(name))


def draw_figure(panels, title, settings):
    """One scale for all panels of a row: by powers of ten, of which the lowest four are enough."""
    every = [v for of in settings.values() for cells in of.values() for cell in cells for v in cell[1:]]
    low = max(min(every, default=1), max(every, default=1) / 1e4, 1e-3)
    panels[0].set(yscale="log", ylabel=title, ylim=(low, 1.1 * max([*every, 2 * low])))
    for axes, contenders in zip(panels, settings.values()):
        draw_bands(axes, contenders)


def draw_sweep(rows):
    settings = list(bands(rows, FIGURES[0][1]))
    figure = new_figure(2 + 2 * len(settings), 8)
    panels = figure.subplots(len(FIGURES), len(settings), sharex=True, sharey="row", squeeze=False)
    for row, (title, values) in zip(panels, FIGURES):
        draw_figure(row, title, bands(rows, values))
    for axes, setting in zip(panels[0], settings):
        axes.set_title(setting_words(*setting).replace(", ", ",\n"))
    known = {label: line for axes in panels.flat for line, label in zip(*axes.get_legend_handles_labels())}
    add_legend(figure, "Batch and length, from constant to wild", known)
    figure.supxlabel("spread of batch and length, %", fontsize=9)
    return figure


# ---- Held for each recorded run -------------------------------------------------------------------

RUNS = {
    "gpt2_medium_var_batch_seq": "GPT-2",
    "llama_1b_lora_recompute": "Llama, LoRA",
    "resnet50_var_batch_res": "ResNet-50",
    "vit_multistream_record": "ViT, 3 streams",
    "fsdp2_llama": "Llama, FSDP2",
}
BARS = {"classic": "#c9ced4", "expandable": "#8d96a0", "ductile": "#0b7a53"}


def held_by_run(rows):
    """Bytes held at the peak by each allocator with its default options, for each run that has them all."""
    held = {run: {} for run in RUNS}
    for row in rows:
        if row["trace"] in held and row["contender"] in BARS and not row.get("settings"):
            held[row["trace"]][row["contender"]] = row["reserved_peak_bytes"]
    return {run: of for run, of in held.items() if len(of) == len(BARS)}


def gib(size):
    return f"{size / GIB:.1f} GiB"


def percent_less(held):
    """How much less Ductile held than native."""
    return f"−{round(100 * (1 - held['ductile'] / held['classic']))} %"


def held_words(rows):
    """Every word of the picture, which a check reads there without drawing it again."""
    words = [*(TITLES[name] for name in BARS), "Ductile against native"]
    for run, held in held_by_run(rows).items():
        words += [RUNS[run], percent_less(held), *map(gib, held.values())]
    return sorted(words)


def draw_held(rows):
    runs = held_by_run(rows)
    if not runs:
        fail("no recorded run with all of " + ", ".join(BARS))
    figure = new_figure(8, 0.5 + 0.6 * len(runs))
    axes = figure.subplots()
    most = max(max(held.values()) for held in runs.values()) / GIB
    for n, (name, color) in enumerate(BARS.items()):
        sizes = [held[name] for held in runs.values()]
        bars = axes.barh([y + 0.26 * (n - 1) for y in range(len(runs))], [size / GIB for size in sizes],
                         height=0.24, color=color, label=TITLES[name])
        axes.bar_label(bars, map(gib, sizes), padding=4, fontsize=8, color="#59636e")
    for y, held in enumerate(runs.values()):
        axes.text(1.3 * most, y, percent_less(held), fontsize=15, weight="bold", ha="right", va="center", color=INK)
    axes.text(1.3 * most, -0.72, "Ductile against native", fontsize=8, ha="right", color="#59636e")
    axes.set(xlim=(0, 1.3 * most), ylim=(len(runs) - 0.5, -0.5), xticks=[])
    axes.set_yticks(range(len(runs)), [RUNS[run] for run in runs], fontsize=10, color=INK)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncol=len(BARS), borderaxespad=0)
    return figure


# ---- PyTorch and JAX on one allocator --------------------------------------------------------------


def draw_shared(rows):
    found = [row["moments"] for row in rows if row["case"] == "both" and "moments" in row]
    if not found:
        fail("no row of `both`")
    torch, jax, held = ([value / GIB for value in column] for column in zip(*found[0]))
    steps, figure = range(1, len(held) + 1), new_figure(7.2, 3.2)
    axes = figure.subplots()
    axes.stackplot(steps, jax, torch, colors=[BARS["ductile"], TORCH], labels=["JAX, live", "PyTorch, live"])
    axes.plot(steps, held, color=INK, linewidth=2, label="held by Ductile")
    axes.set(xlabel="step", ylabel="GiB", xlim=(1, max(len(held), 2)), ylim=(0, 1.05 * max(held) or 1))
    axes.grid(axis="y")
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncol=3, borderaxespad=0)
    return figure


# ---- The program -----------------------------------------------------------------------------------


def draw_file(path):
    """The picture of what the file holds."""
    text = path.read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    if lines and lines[0].split(",") == COLUMNS:
        return draw_timeline(lines)
    try:
        rows = read_rows(text)
        keys = rows[0].keys()
        return (draw_sweep if "spread_percent" in keys else draw_shared if "case" in keys else draw_held)(rows)
    except (ValueError, KeyError, TypeError, IndexError):
        return fail(f"{path}: neither memory over time nor rows of a sweep, of replay --json or of cases")


def make_picture(source, picture, draw=draw_file):
    """Draws the one file as the other."""
    if matplotlib is None:
        fail(f"{sys.executable} has no matplotlib")
    with matplotlib.rc_context(SETTINGS):
        figure = draw(Path(source))
        kind = Path(picture).suffix[1:] or "svg"
        about = {"Date": None, "Creator": None} if kind == "svg" else {}
        try:
            figure.savefig(picture, format=kind, metadata=about)
        except ValueError as error:
            fail(f"{picture}: {error}")


def run(usage, draw):
    arguments = sys.argv[1:]
    if arguments in (["--help"], ["-h"]):
        print(usage, end="")
    elif len(arguments) != 2 or arguments[0].startswith("-"):
        print(usage, end="", file=sys.stderr)
        sys.exit(2)
    else:
        try:
            make_picture(*arguments, draw)
        except (OSError, UnicodeDecodeError) as error:
            fail(f"{getattr(error, 'filename', None) or arguments[0]}: {getattr(error, 'strerror', None) or error}")


if __name__ == "__main__":
    run(__doc__, draw_file)
