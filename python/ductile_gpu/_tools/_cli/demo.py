# SPDX-License-Identifier: Apache-2.0
"""demo: a recorded run that only Ductile completes, for those who have nothing of their own yet."""

from __future__ import annotations

import argparse

from ductile_gpu._binding import _native
from ductile_gpu._tools._cli import replay, report
from ductile_gpu._tools._cli.common import MISUSED, Failure, show

SUMMARY = "Show on a recorded run what Ductile does, without a GPU."
DESCRIPTION = """\
Replays a recorded run of a server on a GPU of 5.57 GiB: texts of different lengths come and go,
then a long prompt. PyTorch's two allocators, as models, run out of memory; Ductile completes it.
With -o also the report of that run, as `ductile-gpu report` makes it of a run of yours.

  ductile-gpu demo
  ductile-gpu demo -o report.html --open"""
CAPACITY = "5700M"
NAME = "a server, then a long prompt, on a GPU of 5.57 GiB"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument(
        "-o", "--output", metavar="PAGE.html", help="Where the report goes. Default: there is none."
    )
    parser.add_argument("--open", action="store_true", help="Show the report in a browser.")


def main(options: argparse.Namespace) -> int:
    """Returns 0."""
    if options.open and options.output is None:
        raise Failure("--open shows the report: say with -o where it goes", MISUSED)
    words = ["--capacity", CAPACITY, str(_native.find_file("traces", "demo.trace.gz"))]
    given = options.commands["replay"].parse_args(words)
    (results,) = replay.read_results(given).values()
    replay.print_results(NAME, results)
    if options.output is None:
        return 0
    show("")
    more = ["--open"] if options.open else []
    return report.main(options.commands["report"].parse_args([*words, "-o", options.output, *more]))
