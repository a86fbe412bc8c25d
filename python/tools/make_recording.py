#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the documentation's recording of a terminal: what the commands of README.md print.

    python/tools/make_recording.py [FILE]

FILE is docs/images/terminal.svg unless given. The commands are run with the installed package
(python/tests/run --install-only), as a user types them; the picture is an SVG that types them
letter by letter, shows what each has printed, and stops at the end. Where motion is not wanted it
shows the end at once.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent.parent
TARGET = ROOT / "docs" / "images" / "terminal.svg"
PAGE = "report.html"
COMMANDS = (("ductile-gpu", "demo", "-o", PAGE),)

COLUMNS, ROW, LETTER, MARGIN = 100, 19, 8.43, 16
A_LETTER, A_LINE, A_REST = 0.035, 0.06, 1.2  # seconds

STYLE = """\
svg { background: #16181d; border-radius: 8px }
text { font: 14px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace }
text { fill: #d6d9df; white-space: pre }
.typed { fill: #8fd19e; font-weight: bold }
.refused { fill: #f2a19b }
.line { animation: show 60ms linear both }
.typed { animation-name: type; animation-fill-mode: both }
@keyframes show { from { opacity: 0 } to { opacity: 1 } }
@keyframes type { from { clip-path: inset(0 100% 0 0) } to { clip-path: inset(0 0 0 0) } }
@media (prefers-reduced-motion: reduce) { .line, .typed { animation: none } }
"""


class Line(NamedTuple):
    text: str
    typed: bool


def run(command: tuple[str, ...]) -> list[str]:
    """What it says. The page that a report writes goes nowhere."""
    words = [os.devnull if word == PAGE else word for word in command[1:]]
    words = [sys.executable, "-m", "ductile_gpu", *words]
    done = subprocess.run(words, cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout.splitlines()


def folded(line: str) -> list[str]:
    indent = " " * (len(line) - len(line.lstrip()) + 4)
    return textwrap.wrap(line, COLUMNS, subsequent_indent=indent) or [""]


def lines() -> Iterator[Line]:
    for command in COMMANDS:
        yield Line("$ " + " ".join(command), True)
        for said in run(command):
            yield from (Line(part, False) for part in folded(said))
        yield Line("", False)


def typing(text: str, begin: float) -> str:
    """Letter by letter, from then on."""
    return (
        f"animation-duration:{len(text) * A_LETTER:.2f}s;animation-delay:{begin:.2f}s;"
        f"animation-timing-function:steps({len(text)})"
    )


def draw(shown: list[Line]) -> str:
    rows, at, y = [], 0.6, MARGIN + 14
    for line in shown:
        place = f'x="{MARGIN}" y="{y}" xml:space="preserve"'
        if line.typed:
            rows.append(
                f'<text class="typed" style="{typing(line.text, at)}" {place}>'
                f"{escape(line.text)}</text>"
            )
            at += len(line.text) * A_LETTER + A_REST / 2
        elif line.text:
            refused = " refused" if "out of memory" in line.text.lower() else ""
            rows.append(
                f'<text class="line{refused}" style="animation-delay:{at:.2f}s" {place}>'
                f"{escape(line.text)}</text>"
            )
            at += A_LINE
        else:
            at += A_REST / 2
        y += ROW
    width, height = round(2 * MARGIN + COLUMNS * LETTER), y + MARGIN - ROW
    body = "\n".join(rows)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img" aria-label="A terminal: a recorded run is replayed">'
        f"\n<style>\n{STYLE}</style>\n{body}\n</svg>\n"
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", nargs="?", type=Path, default=TARGET, metavar="FILE")
    target = parser.parse_args().file
    target.write_text(draw(list(lines())), encoding="utf-8")
    print(target)
    return 0


if __name__ == "__main__":
    sys.exit(main())
