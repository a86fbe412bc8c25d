#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""usage: plot_held.py ROWS.jsonl PICTURE.svg

Draws what each allocator held for each recorded run, from rows of `ductile-bench replay --json`, with one number a
run: how much less Ductile held than PyTorch's native allocator. Needs Python's standard library alone.
"""

import json
import sys
from pathlib import Path

from contender_titles import TITLES

RUNS = {
    "gpt2_medium_var_batch_seq": "GPT-2",
    "llama_1b_lora_recompute": "Llama, LoRA",
    "resnet50_var_batch_res": "ResNet-50",
    "vit_multistream_record": "ViT, 3 streams",
    "fsdp2_llama": "Llama, FSDP2",
}
BARS = {name: TITLES[name] for name in ("classic", "expandable", "ductile")}
LEFT, WIDTH, BAR, GAP, TOP = 130, 470, 13, 16, 44
STEP = 3 * BAR + GAP
STYLE = """
  text { font: 14px system-ui, sans-serif; fill: #1f2328 }
  .small { font-size: 12px; fill: #59636e }
  .number { font-size: 22px; font-weight: 600; text-anchor: end }
  .classic { fill: #c9ced4 } .expandable { fill: #8d96a0 } .ductile { fill: #0b7a53 }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc } .small { fill: #9198a1 }
    .classic { fill: #3d444d } .expandable { fill: #767f89 } .ductile { fill: #2fbf8a }
  }
"""


def held_by_run(path):
    """Bytes held at the peak by each allocator with its default options, for each run."""
    rows = (json.loads(line) for line in path.read_text().splitlines() if line.startswith("{"))
    held = {run: {} for run in RUNS}
    for row in rows:
        if row["trace"] in held and row["contender"] in BARS and not row.get("settings"):
            held[row["trace"]][row["contender"]] = row["reserved_peak_bytes"]
    return held


def percent_less(held):
    """How much less Ductile held than native, in whole percent."""
    return round(100 * (1 - held["ductile"] / held["classic"]))


def draw_legend():
    x = LEFT
    for name, label in BARS.items():
        yield f'<rect class="{name}" x="{x}" y="14" width="12" height="12" rx="2"/>'
        yield f'<text class="small" x="{x + 18}" y="24">{label}</text>'
        x += 40 + 7 * len(label)
    yield f'<text class="small" x="{LEFT + WIDTH + 170}" y="24" text-anchor="end">Ductile against native</text>'


def draw_run(y, label, held, scale):
    yield f'<text x="{LEFT - 12}" y="{y + 1.5 * BAR + 5}" text-anchor="end">{label}</text>'
    for n, name in enumerate(BARS):
        width = round(held[name] * scale, 1)
        top = y + n * BAR
        yield f'<rect class="{name}" x="{LEFT}" y="{top}" width="{width}" height="{BAR - 1}"/>'
        yield f'<text class="small" x="{LEFT + width + 6}" y="{top + 10}">{held[name] / 2**30:.1f} GiB</text>'
    yield f'<text class="number" x="{LEFT + WIDTH + 170}" y="{y + 1.5 * BAR + 8}">−{percent_less(held)} %</text>'


def draw(runs):
    scale = WIDTH / max(max(held.values()) for held in runs.values())
    height = TOP + STEP * len(runs)
    yield (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 180} {height}" role="img" '
           'aria-label="Memory held for each recorded run">')
    yield f"<style>{STYLE}</style>"
    yield from draw_legend()
    for n, (run, held) in enumerate(runs.items()):
        yield from draw_run(TOP + n * STEP, RUNS[run], held, scale)
    yield "</svg>"


def make_picture(path):
    return "\n".join(draw(held_by_run(path))) + "\n"


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    Path(sys.argv[2]).write_text(make_picture(Path(sys.argv[1])), encoding="utf-8")
