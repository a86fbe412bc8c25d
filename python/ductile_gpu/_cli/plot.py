# SPDX-License-Identifier: Apache-2.0
"""plot: draws what ductile-bench wrote, by the programs that the wheel carries for it."""

from __future__ import annotations

import argparse
import runpy
from pathlib import Path

from ductile_gpu import _native

SUMMARY = "draw what ductile-bench wrote: a replay's timeline, or a sweep"
DESCRIPTION = """\
Draws memory held and live memory, a panel for each trace; or, from the JSON of a sweep, what
is held over what is live as sizes spread. Needs matplotlib: pip install ductile-gpu[plot].

  ductile-bench replay --timeline run.csv run.trace.gz
  ductile-gpu plot run.csv run.png

  ductile-bench varybatch --sweep --json > sweep.jsonl
  ductile-gpu plot sweep.jsonl sweep.png"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("timeline", metavar="TIMELINE.csv|SWEEP.jsonl", type=Path)
    parser.add_argument("picture", metavar="PICTURE.png", type=Path)


def _is_sweep(path: Path) -> bool:
    """Its first line that is no comment is an object. What cannot be read, the program explains."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            first = next((line for line in file if not line.startswith("#")), "")
    except OSError:
        return False
    return first.startswith("{")


def main(options: argparse.Namespace) -> int:
    """Draws; what is missing ends the program with one line."""
    programs = _native.bench_path().parent
    if _is_sweep(options.timeline):
        draw = runpy.run_path(str(programs / "plot_sweep"))["make_picture"]
        draw(options.timeline, options.picture)
    else:
        runpy.run_path(str(programs / "plot"))["make_picture"](options)
    return 0
