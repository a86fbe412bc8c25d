# SPDX-License-Identifier: Apache-2.0
"""plot: draws what a replay wrote with --timeline, by the program that the wheel carries for it."""

from __future__ import annotations

import argparse
import runpy
from pathlib import Path

from ductile_gpu import _native

SUMMARY = "draw the timeline that ductile-bench replay --timeline wrote"
DESCRIPTION = """\
Draws memory held against memory in use, a panel for each trace. Needs matplotlib:
pip install ductile-gpu[plot].

  ductile-bench replay --timeline run.csv run.trace.gz
  ductile-gpu plot run.csv run.png"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("timeline", metavar="TIMELINE.csv", type=Path)
    parser.add_argument("picture", metavar="PICTURE.png", type=Path)


def main(options: argparse.Namespace) -> int:
    """Draws; what is missing ends the program with one line."""
    program = _native.bench_path().with_name("plot")
    runpy.run_path(str(program))["make_picture"](options)
    return 0
