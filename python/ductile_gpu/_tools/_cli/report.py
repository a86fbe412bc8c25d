# SPDX-License-Identifier: Apache-2.0
"""report: one HTML file that says why memory ran out, what would fit, and who holds it."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import tempfile
import webbrowser
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Optional

from ductile_gpu._tools._cli.common import (
    MISUSED,
    SUFFIXES,
    Failure,
    add_replay_options,
    or_fail,
    print_json,
    progress,
    read_settings,
    show,
    standard_output,
)
from ductile_gpu._tools._report import _forecast, _page, _words
from ductile_gpu._tools._report._collect import (
    Choices,
    Misused,
    Recording,
    RecordingError,
    collect,
)
from ductile_gpu._tools._sizes import in_bytes
from ductile_gpu_words import say

SUMMARY = "Make a page of a recorded run: why it ran out, what would fit, who holds it."
DESCRIPTION = """\
Says why a recorded run ran out of memory, or with what it would, on which devices it fits, and
which code holds the memory; and writes one HTML file that needs no network, with memory over time
and by address under Ductile and PyTorch's two allocators. FILE is a trace of `record`, a snapshot
that torch.cuda.memory._dump_snapshot wrote, a folder of them, one for each rank, or - for standard
input.

  ductile-gpu record -o run.pickle train.py
  ductile-gpu report run.pickle -o report.html --open
  ductile-gpu report --json run.pickle                the same numbers for programs, no page
  ductile-gpu report --compare before.pickle after.pickle
  ductile-gpu report --batch 4,8,12 run.trace.gz      the last three steps had these batches
  ductile-gpu report --batch 4x512,8x512,8x1024 run.trace.gz      these batches and lengths"""
USUAL_PAGE = "report.html"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument(
        "files", metavar="FILE", nargs="+", help="A trace, a snapshot, or a folder of them."
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="PAGE.html",
        help="Where the page goes: a file, a folder, or - for standard output. "
        f"Default: {USUAL_PAGE}, and no page with --json.",
    )
    parser.add_argument("--open", action="store_true", help="Show the page in a browser.")
    parser.add_argument(
        "--json",
        action="store_true",
        help="Print all numbers as JSON: an object for each recording, and one of what --compare "
        "finds.",
    )
    parser.add_argument(
        "--compare",
        action="store_true",
        help="Say what grew from the first of two files to the second.",
    )
    parser.add_argument(
        "--batch",
        metavar="N,N,..",
        help="The sizes of the last recorded steps, BATCHxLENGTH where both vary: forecast what "
        "the largest one needs.",
    )
    parser.add_argument(
        "--unit",
        metavar="WORD",
        help="What the sizes of --batch are, such as length. Default: batch.",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="Do not search the smallest device: replay once for each allocator.",
    )
    parser.add_argument(
        "--full",
        action="store_true",
        help="Search it also where there are more than 2 million events, and replay other sizes of "
        "--batch where there are more than 200,000.",
    )
    add_replay_options(parser)


# ---- What is asked ------------------------------------------------------------------------------


def _keep(pipe: str, copy: Path) -> None:
    given = 0 if pipe == "-" else pipe
    with or_fail(pipe), open(given, "rb", closefd=given != 0) as source, open(copy, "wb") as file:
        shutil.copyfileobj(source, file)


@contextlib.contextmanager
def _pipes_kept(words: list[str]) -> Iterator[list[str]]:
    """The files to read: what comes through a pipe is read more than once, so that it is kept in a
    file meanwhile."""
    pipes = list(dict.fromkeys(word for word in words if word == "-" or Path(word).is_fifo()))
    if not pipes:
        yield words
        return
    with tempfile.TemporaryDirectory(prefix="ductile-") as folder:
        kept = {}
        for number, pipe in enumerate(pipes):
            name = "standard input" if pipe == "-" else f"pipe {number + 1}"
            kept[pipe] = str(Path(folder) / name)
            _keep(pipe, Path(kept[pipe]))
        try:
            yield [kept.get(word, word) for word in words]
        except RecordingError as error:
            raise RecordingError(str(error).removeprefix(f"{folder}/")) from None


def _in_folder(folder: Path) -> list[Path]:
    found = sorted(path for path in folder.iterdir() if path.name.endswith(SUFFIXES))
    if not found:
        begun = "; ".join(["", *_unfinished([folder])])
        raise Failure(f"{folder}: no recording in it ({', '.join(SUFFIXES)}){begun}")
    return found


def _unfinished(folders: list[Path]) -> list[str]:
    """What is said of processes that began to record and have not written it: a rank that the
    system killed must not be missed."""
    n = sum(len(list(folder.glob(".ductile-*"))) for folder in folders)
    return [f"{n} not finished (the process is at work, or was killed)"] if n else []


def _files(words: list[str]) -> list[Path]:
    """Folders stand for the recordings in them."""
    paths = [Path(word) for word in words]
    return [file for path in paths for file in (_in_folder(path) if path.is_dir() else [path])]


def _check(options: argparse.Namespace, files: list[Path]) -> None:
    if options.compare and len(files) != 2:
        raise Failure("--compare takes two files: the earlier and the later run", MISUSED)
    if options.output == "-" and (options.json or options.open):
        other = "--json writes there, too" if options.json else "--open shows a file"
        raise Failure(f"-o - writes the page to standard output, and {other}: name a file", MISUSED)
    if options.unit is not None and options.batch is None:
        raise Failure("--unit names the sizes of --batch", MISUSED)


def _can_write(output: Path) -> bool:
    """A file is written beside it and put in its place; what is no file is written to."""
    place = Path(os.path.realpath(output))
    return os.access(place if place.exists() and not place.is_file() else place.parent, os.W_OK)


def _page_path(options: argparse.Namespace, files: list[Path]) -> Optional[Path]:
    """Where the page goes; None: to standard output, or there is none."""
    if options.output == "-" or (options.json and options.output is None and not options.open):
        return None
    output = Path(USUAL_PAGE if options.output is None else options.output)
    if options.output and (output.is_dir() or options.output.endswith(os.sep)):
        output = output / USUAL_PAGE
    if not output.parent.is_dir():
        raise Failure(f"{output.parent}: no such folder for the report")
    if output.is_dir() or not _can_write(output):
        raise Failure(f"{output}: the report cannot be written there")
    if any(file.exists() and output.exists() and output.samefile(file) for file in files):
        raise Failure(f"{output}: the report would replace the recording", MISUSED)
    return output


class _Sizes(NamedTuple):
    """Of the last steps, and what they are."""

    sizes: list[int]
    unit: str


def _numbers(text: str) -> list[list[int]]:
    """Of each step one, or a batch and a length."""
    found = [[int(number) for number in word.lower().split("x")] for word in text.split(",")]
    is_even = len({len(numbers) for numbers in found}) == 1 and len(found[0]) <= 2
    if not is_even or min(map(min, found)) < 1:
        raise ValueError
    return found


def _as_sizes(steps: list[list[int]]) -> _Sizes:
    """What varies from step to step: where both do, their product."""
    if len(steps[0]) == 1:
        return _Sizes([size for (size,) in steps], "batch")
    batches, lengths = zip(*steps)
    if len(set(lengths)) == 1:
        return _Sizes(list(batches), f"batch of length {lengths[0]:,}")
    if len(set(batches)) == 1:
        return _Sizes(list(lengths), f"length of batch {batches[0]:,}")
    return _Sizes([batch * length for batch, length in steps], "batch x length")


def _read_sizes(options: argparse.Namespace) -> Optional[_Sizes]:
    text = options.batch
    if text is None:
        return None
    try:
        found = _as_sizes(_numbers(text))
    except ValueError:
        raise Failure(
            f"--batch takes numbers such as 4,8,12 or 4x512,8x512, not '{text}'", MISUSED
        ) from None
    if max(found.sizes) > _forecast.LARGEST_SIZE:
        raise Failure(f"--batch: sizes are 1 to {_forecast.LARGEST_SIZE:,}", MISUSED)
    return found._replace(unit=options.unit) if options.unit is not None else found


def _choices(options: argparse.Namespace) -> Choices:
    settings = tuple(f"{key}={value}" for key, value in read_settings(options.set).items())
    return Choices(options.gpu, options.capacity, settings, options.quick, options.full)


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
            if file.exists() and not file.is_file():  # a pipe would be waited for
                raise RecordingError(f"{file}: it is no file")
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
    asked = _read_sizes(options)
    if asked is None:
        return [None] * len(recordings)
    progress("replaying steps of other sizes")
    found = [_forecast.try_forecast(recording, *asked, choices) for recording in recordings]
    for forecast in found:
        if forecast["needs"] is None:
            say(f"no forecast: {forecast['note'].removeprefix('--batch: ')}")
    return list(found)


def _find(options: argparse.Namespace) -> tuple[dict[str, Any], bool]:
    """All that a page says, and whether a recording of a folder is missing in it."""
    choices = _choices(options)
    with _pipes_kept(options.files) as read:
        recordings, broken = _collect_all(_files(read), choices, [Path(word) for word in read])
        if options.compare and len(recordings) != 2:
            raise Failure(f"--compare: {broken[0]} cannot be compared")
        unfinished = _unfinished([Path(word) for word in read if os.path.isdir(word)])
        for line in unfinished:
            say(f"of the recordings {line}")
        forecasts = _forecasts(recordings, options, choices)
    called = dict(zip(read, options.files))
    for recording in recordings:
        recording.path = Path(called.get(str(recording.path), recording.path))
    missing = [*broken, *unfinished]
    return _page.gather(recordings, forecasts, options.compare, missing), bool(missing)


def _print_json(found: dict[str, Any]) -> None:
    for recording in found["recordings"]:
        print_json(_page.numbers(recording))
    if found["compare"] is not None:
        print_json({"comparison": found["compare"]})


def _side_by_side(found: dict[str, Any]) -> list[str]:
    """What is said of several recordings together."""
    if found["compare"] is not None:
        return [found["compare"]["note"]]
    if found["ranks"] is not None:
        n = len(found["recordings"])
        return [f"{n} recording{'s' if n > 1 else ''}: {found['ranks']['note']}"]
    return []


def _print_verdicts(found: dict[str, Any]) -> None:
    verdicts = [_words.spell(r["name"], r["headline"], r["lines"]) for r in found["recordings"]]
    texts = [lines for lines in [_side_by_side(found), *verdicts] if lines]
    for number, lines in enumerate(texts):
        show(*([""] if number else []), *lines)


def main(options: argparse.Namespace) -> int:
    """Writes the page, and says on standard output what it found. Returns the exit status: 1 when a
    recording of a folder is missing."""
    files = _files(options.files)
    _check(options, files)
    output = _page_path(options, files)
    _read_sizes(options)
    try:
        data, is_partial = _find(options)
    except RecordingError as error:
        raise Failure(str(error)) from None
    except Misused as error:
        raise Failure(str(error), MISUSED) from None
    if options.output == "-":
        page = _page.page_of(data).encode("utf-8")  # which the page says it is
        standard_output().buffer.write(page)
        return int(is_partial)
    try:
        if output is not None:  # first, since who reads what is printed may stop reading
            with or_fail(output):
                _page.write_page(output, _page.page_of(data))
    finally:
        (_print_json if options.json else _print_verdicts)(data)
    if output is not None:
        opened = options.open and webbrowser.open(output.absolute().as_uri())
        next_step = "" if opened else "; open it in a browser"
        say(f"written to {output} ({in_bytes(output.stat().st_size)}){next_step}")
    return int(is_partial)
