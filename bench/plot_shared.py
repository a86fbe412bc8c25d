#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""usage: plot_shared.py ROWS.jsonl PICTURE.svg

Draws what PyTorch and JAX had of one allocator, step by step, and what that allocator held, from the row `both` of
`python/tests/preload_gpu/run`. Needs Python's standard library alone.
"""

import json
import sys
from pathlib import Path

LEFT, TOP, WIDTH, HEIGHT = 56, 40, 620, 220
GIB = 1 << 30
STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #59636e }
  .torch { fill: #8d96a0 } .jax { fill: #0b7a53 } .held { fill: none; stroke: #1f2328; stroke-width: 2 }
  .grid { stroke: #d1d9e0 }
  @media (prefers-color-scheme: dark) {
    text { fill: #9198a1 }
    .torch { fill: #767f89 } .jax { fill: #2fbf8a } .held { stroke: #f0f6fc } .grid { stroke: #3d444d }
  }
"""


def moments_of(path):
    """Bytes of PyTorch, of JAX, and held, for each step."""
    rows = (json.loads(line) for line in path.read_text().splitlines() if not line.startswith("#"))
    found = [row["moments"] for row in rows if row["case"] == "both" and "moments" in row]
    if not found:
        sys.exit(f"plot_shared.py: {path} has no row of `both`")
    return found[0]


def points(heights, most):
    """A line through one value a step."""
    width = WIDTH / (len(heights) - 1)
    return [
        f"{LEFT + i * width:.1f},{TOP + HEIGHT * (1 - height / most):.1f}"
        for i, height in enumerate(heights)
    ]


def draw_area(name, lower, upper, most):
    return f'<polygon class="{name}" points="{" ".join(points(upper, most) + points(lower, most)[::-1])}"/>'


def draw_grid(most):
    for gib in range(int(most / GIB) + 1):
        y = TOP + HEIGHT * (1 - gib * GIB / most)
        yield f'<line class="grid" x1="{LEFT}" x2="{LEFT + WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{gib} GiB</text>'


def draw(moments):
    """The lines of an SVG file."""
    torch, jax, held = (list(column) for column in zip(*moments))
    both = [a + b for a, b in zip(torch, jax)]
    most = 1.05 * max(held)
    yield f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 12} {TOP + HEIGHT + 30}">'
    yield f"<title>PyTorch and JAX on one allocator</title><style>{STYLE}</style>"
    yield from draw_grid(most)
    yield draw_area("jax", [0] * len(jax), jax, most)
    yield draw_area("torch", jax, both, most)
    yield f'<polyline class="held" points="{" ".join(points(held, most))}"/>'
    for x, name, label in ((0, "torch", "PyTorch, live"), (130, "jax", "JAX, live")):
        yield f'<rect class="{name}" x="{LEFT + x}" y="12" width="12" height="12" rx="2"/>'
        yield f'<text x="{LEFT + x + 18}" y="23">{label}</text>'
    yield f'<line class="held" x1="{LEFT + 230}" x2="{LEFT + 246}" y1="18" y2="18"/>'
    yield f'<text x="{LEFT + 252}" y="23">held by Ductile</text>'
    yield f'<text x="{LEFT + WIDTH}" y="{TOP + HEIGHT + 22}" text-anchor="end">step {len(moments)}</text>'
    yield "</svg>"


def main(arguments):
    if len(arguments) != 2 or arguments[0].startswith("-"):
        sys.exit(__doc__)
    Path(arguments[1]).write_text("\n".join(draw(moments_of(Path(arguments[0])))) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
