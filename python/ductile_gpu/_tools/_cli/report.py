# SPDX-License-Identifier: Apache-2.0
"""report: one HTML file that says why memory ran out, what would fit, and who holds it."""

from __future__ import annotations

import argparse
import json
import os
import sys
import webbrowser
from pathlib import Path
from typing import Any, Optional

from ductile_gpu._tools._cli.common import MISUSED, Failure, add_replay_options, progress, say
from ductile_gpu._tools._report import _forecast, _page, _words
from ductile_gpu._tools._report._collect import Choices, Recording, RecordingError, collect
from ductile_gpu._tools._sizes import in_bytes

SUMMARY = "make a page of a recorded run: why it ran out, what would fit, who holds it"
DESCRIPTION = """\
Says why a recorded run ran out of memory, or with what it would, on which devices it fits, and
which code holds the memory; and writes one HTML file that needs no network, with memory over time
and by address under Ductile and PyTorch's two allocators. FILE is a trace of `record`, a snapshot
that torch.cuda.memory._dump_snapshot wrote, or a folder of them: one for each rank.

  ductile-gpu record -o run.pickle train.py
  ductile-gpu report run.pickle -o report.html --open
  ductile-gpu report --json run.pickle                the same numbers for programs, no page
  ductile-gpu report --compare before.pickle after.pickle
  ductile-gpu report --batch 4,8,12 run.trace.gz      the last three steps had these batches"""
USUAL_PAGE = "report.html"
SUFFIXES = (".trace", ".trace.gz", ".pickle", ".pickle.gz")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("files", metavar="FILE", nargs="+", help="a trace, a snapshot, a folder")
    parser.add_argument(
        "-o",
        "--output",
        metavar="PAGE.html",
        help=f"where the page goes, - for standard output ({USUAL_PAGE}; none with --json)",
    )
    parser.add_argument("--open", action="store_true", help="show the page in a browser")
    parser.add_argument(
        "--json", action="store_true", help="all numbers as JSON, one object a recording"
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
        "--unit", metavar="WORD", help="what the sizes of --batch are, such as length (batch)"
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


# ---- What is asked ------------------------------------------------------------------------------


def _in_folder(folder: Path) -> list[Path]:
    found = sorted(path for path in folder.iterdir() if path.name.endswith(SUFFIXES))
    if not found:
        raise Failure(f"{folder}: no recording in it ({', '.join(SUFFIXES)})")
    return found


def _files(words: list[str]) -> list[Path]:
    """Folders stand for the recordings in them."""
    paths = [Path(word) for word in words]
    return [file for path in paths for file in (_in_folder(path) if path.is_dir() else [path])]


def _check(options: argparse.Namespace, files: list[Path]) -> None:
    if options.compare and len(files) != 2:
        raise Failure("--compare takes two files: the earlier and the later run", MISUSED)
    if options.output == "-" and (options.json or options.open):
        other = "--json" if options.json else "--open"
        raise Failure(f"-o -: the page on standard output, and {other}: name a file", MISUSED)
    if options.unit is not None and options.batch is None:
        raise Failure("--unit names the sizes of --batch", MISUSED)


def _page_path(options: argparse.Namespace, files: list[Path]) -> Optional[Path]:
    """Where the page goes; None: to standard output, or there is none."""
    if options.output == "-" or (options.json and options.output is None and not options.open):
        return None
    output = Path(options.output or USUAL_PAGE)
    if not output.parent.is_dir():
        raise Failure(f"{output.parent}: no such folder for the report")
    if output.is_dir() or not os.access(output.parent, os.W_OK):
        raise Failure(f"{output}: the report cannot be written there")
    if any(file.exists() and output.exists() and output.samefile(file) for file in files):
        raise Failure(f"{output}: the report would replace the recording", MISUSED)
    return output


def _read_sizes(text: Optional[str]) -> Optional[list[int]]:
    if text is None:
        return None
    try:
        sizes = [int(word) for word in text.split(",")]
    except ValueError:
        raise Failure(f"--batch takes numbers such as 4,8,12, not '{text}'", MISUSED) from None
    if min(sizes) < 1 or max(sizes) > _forecast.LARGEST_SIZE:
        raise Failure(f"--batch: sizes are 1 to {_forecast.LARGEST_SIZE:,}", MISUSED)
    return sizes


def _choices(options: argparse.Namespace) -> Choices:
    return Choices(options.gpu, options.capacity, tuple(options.set), options.quick, options.full)


# ---- What is found ------------------------------------------------------------------------------


def _collect_all(
    files: list[Path], choices: Choices, named: list[Path]
) -> tuple[list[Recording], list[str]]:
    """The recordings, and the names of files in folders that are none: a process may have been
    killed while it wrote."""
    recordings, broken = [], []
    for file in files:
        progress(f"{file}: replaying")
        try:
            recordings.append(collect(file, choices, progress))
        except RecordingError as error:
            if file in named or (file == files[-1] and not recordings):
                raise
            say(f"{error}; it is left out")
            broken.append(file.name)
    return recordings, broken


def _forecasts(
    recordings: list[Recording], options: argparse.Namespace, choices: Choices
) -> list[Optional[dict[str, Any]]]:
    sizes = _read_sizes(options.batch)
    if sizes is None:
        return [None] * len(recordings)
    progress("replaying steps of other sizes")
    unit = options.unit or "batch"
    found = [_forecast.try_forecast(recording, sizes, unit, choices) for recording in recordings]
    for forecast in found:
        if forecast["needs"] is None:
            say(f"no forecast: {forecast['note'].removeprefix('--batch: ')}")
    return list(found)


def _write(page: str, output: Path) -> None:
    try:
        _page.write_page(output, page)
    except OSError as error:
        raise Failure(f"{output}: {error.strerror}") from None


def _print_verdicts(found: dict[str, Any]) -> None:
    all_data = found["recordings"]
    if found["ranks"] is not None:
        count = "1 recording" if len(all_data) == 1 else f"{len(all_data)} recordings"
        print(f"{count}: {found['ranks']['note']}")
    for position, data in enumerate(all_data):
        if position or found["ranks"] is not None:
            print()
        print("\n".join(_words.spell(data["name"], data["headline"], data["lines"])))


def main(options: argparse.Namespace) -> int:
    """Writes the page, and says on standard output what it found. Returns the exit status: 1 when a
    file of a folder had to be left out."""
    files = _files(options.files)
    _check(options, files)
    output = _page_path(options, files)
    _read_sizes(options.batch)
    try:
        choices = _choices(options)
        recordings, broken = _collect_all(files, choices, [Path(word) for word in options.files])
        forecasts = _forecasts(recordings, options, choices)
        data = _page.gather(recordings, forecasts, options.compare, broken)
    except RecordingError as error:
        raise Failure(str(error)) from None
    if options.output == "-":
        sys.stdout.write(_page.page_of(data))
        return int(bool(broken))
    if options.json:
        for recording in data["recordings"]:
            print(json.dumps(_page.numbers(recording)))
    else:
        _print_verdicts(data)
    if output is not None:
        _write(_page.page_of(data), output)
        opened = options.open and webbrowser.open(output.absolute().as_uri())
        next_step = "" if opened else "; open it in a browser"
        say(f"written to {output} ({in_bytes(output.stat().st_size)}){next_step}")
    return int(bool(broken))
