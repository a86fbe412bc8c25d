# SPDX-License-Identifier: Apache-2.0
"""report: one HTML file that says why memory ran out, what would fit, and who holds it."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any, Optional

from ductile_gpu._cli.common import MISUSED, Failure, add_replay_options, in_bytes, progress, say
from ductile_gpu._report import _forecast, _words
from ductile_gpu._report._collect import Choices, Recording, RecordingError, collect
from ductile_gpu._report._page import make_page, write_page

SUMMARY = "make a page of a recorded run: why it ran out, what would fit, who holds it"
DESCRIPTION = """\
Replays recordings on the virtual GPU, as `replay` does, and writes one HTML file that needs no
network: the verdict, memory over time and by address under Ductile and PyTorch's two allocators,
who holds it at the peak, and which devices suffice. FILE is a trace of `record` or a snapshot that
torch.cuda.memory._dump_snapshot wrote.

  ductile-gpu record -o run.trace.gz train.py
  ductile-gpu report run.trace.gz -o report.html
  ductile-gpu report --compare before.pickle after.pickle
  ductile-gpu report --batch 4,8,12 run.trace.gz      the last three steps had these batches"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("files", metavar="FILE", nargs="+", help="a trace or a snapshot")
    parser.add_argument(
        "-o", "--output", metavar="PAGE.html", default="report.html", help="(report.html)"
    )
    parser.add_argument(
        "--compare",
        action="store_true",
        help="of two files: what grew from the first to the second",
    )
    parser.add_argument(
        "--batch", metavar="N,N,..", help="sizes of the last recorded steps: forecast the largest"
    )
    parser.add_argument(
        "--quick", action="store_true", help="do not search the smallest device: one replay each"
    )
    parser.add_argument(
        "--full",
        action="store_true",
        help="search it also where there are more than 2 million events",
    )
    add_replay_options(parser)


def _check(options: argparse.Namespace) -> Path:
    output = Path(options.output)
    if options.compare and len(options.files) != 2:
        raise Failure("--compare takes two files: the earlier and the later run", MISUSED)
    if not output.parent.is_dir():
        raise Failure(f"{output.parent}: no such folder for the report")
    if output.is_dir() or not os.access(output.parent, os.W_OK):
        raise Failure(f"{output}: the report cannot be written there")
    if any(
        Path(file).exists() and output.exists() and output.samefile(file) for file in options.files
    ):
        raise Failure(f"{output}: the report would replace the recording", MISUSED)
    return output


def _read_sizes(text: Optional[str]) -> Optional[list[int]]:
    if text is None:
        return None
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise Failure(f"--batch takes numbers such as 4,8,12, not '{text}'", MISUSED) from None


def _choices(options: argparse.Namespace) -> Choices:
    return Choices(options.gpu, options.capacity, tuple(options.set), options.quick, options.full)


def _collect_all(options: argparse.Namespace, choices: Choices) -> list[Recording]:
    recordings = []
    for file in options.files:
        progress(f"{file}: replaying")
        recordings.append(collect(Path(file), choices, progress))
    return recordings


def _forecasts(
    recordings: list[Recording], sizes: Optional[list[int]], choices: Choices
) -> list[Optional[dict[str, Any]]]:
    if sizes is None:
        return [None] * len(recordings)
    progress("replaying steps of other batches")
    return [_forecast.forecast(recording, sizes, "batch", choices) for recording in recordings]


def main(options: argparse.Namespace) -> int:
    """Writes the page, and says on standard output what it found."""
    output = _check(options)
    sizes = _read_sizes(options.batch)
    try:
        choices = _choices(options)
        recordings = _collect_all(options, choices)
        page = make_page(recordings, _forecasts(recordings, sizes, choices), options.compare)
    except RecordingError as error:
        raise Failure(str(error)) from None
    try:
        write_page(output, page)
    except OSError as error:
        raise Failure(f"{output}: {error.strerror}") from None
    for recording in recordings:
        print(f"{recording.name}: {_words.plain(_words.verdict(recording))}")
    say(f"written to {output} ({in_bytes(output.stat().st_size)}); open it in a browser")
    return 0
