# SPDX-License-Identifier: Apache-2.0
"""export: a recorded run as a Chrome trace, which Perfetto shows beside PyTorch's kernels."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Optional

from ductile_gpu._tools._cli.common import MISUSED, Failure, or_fail, progress, refuse_replacing
from ductile_gpu._tools._files import replacing
from ductile_gpu._tools._formats.chrome import (
    Memory,
    Profile,
    SnapshotError,
    read_profile,
    write_chrome,
)
from ductile_gpu._tools._sizes import in_bytes
from ductile_gpu_start import say

SUMMARY = "write a recorded run as a Chrome trace, for Perfetto"
DESCRIPTION = """\
Writes the memory of a recorded run over time as Chrome trace JSON, which ui.perfetto.dev,
chrome://tracing and TensorBoard open: what was live, pending and free, memory from the driver,
refusals with their stacks, steps. With --profile it writes PyTorch's own profile and the memory
into one file, on one clock.

  ductile-gpu record -o run.pickle train.py
  ductile-gpu export run.pickle -o run.json.gz
  ductile-gpu export run.pickle --profile trace.json -o both.json.gz

FILE is a snapshot of PyTorch: record's NAME.pickle, or what torch.cuda.memory._dump_snapshot wrote.
Traces (.trace) have no times."""
SUFFIXES = (".json", ".json.gz")
FEWEST_EVENTS = 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("file", metavar="FILE", type=Path, help="a snapshot of PyTorch")
    parser.add_argument(
        "-o",
        "--output",
        metavar="OUT",
        type=Path,
        help="where to write: NAME.json or NAME.json.gz (FILE.json.gz)",
    )
    parser.add_argument(
        "--profile",
        metavar="TRACE.json",
        type=Path,
        help="what torch.profiler's export_chrome_trace wrote of the same run; goes into the file",
    )
    parser.add_argument(
        "--max-events",
        metavar="N",
        type=int,
        default=1_000_000,
        help="keep at most about N events a GPU, the peaks among them (1000000)",
    )


def _read_profile(path: Optional[Path]) -> Optional[Profile]:
    if path is None:
        return None
    progress(f"reading {path}")
    try:
        with or_fail(path):
            return read_profile(path)
    except ValueError as error:
        raise Failure(f"{path}: {error}") from None


def _output_path(options: argparse.Namespace) -> Path:
    given: Optional[Path] = options.output
    path = given if given is not None else options.file.with_suffix(".json.gz")
    if not path.name.endswith(SUFFIXES):
        raise Failure(
            f"--output {path}: the name must end in one of {', '.join(SUFFIXES)}", MISUSED
        )
    if options.max_events < FEWEST_EVENTS:
        raise Failure(f"--max-events is at least {FEWEST_EVENTS}", MISUSED)
    refuse_replacing(path, filter(None, (options.file, options.profile)))
    return path


def _span(events: Iterable[dict[str, Any]]) -> tuple[float, float]:
    timed = [event.get("ts") for event in events if event.get("ph") in ("X", "i", "C")]
    times = [float(time) for time in timed if isinstance(time, (int, float))]
    return (min(times), max(times)) if times else (0.0, 0.0)


def _warn_of_other_run(profile: Profile, memory: Memory) -> None:
    """Two files of different runs would stand in one file without ever meeting."""
    first, last = _span(profile.content["traceEvents"])
    begin_us = memory.first_us - profile.base_ns / 1000
    end_us = memory.last_us - profile.base_ns / 1000
    if begin_us > last or end_us < first:
        say("the recording and the profile do not overlap in time: are they of the same run?")


def main(options: argparse.Namespace) -> int:
    """Writes one file."""
    output = _output_path(options)
    profile = _read_profile(options.profile)
    progress(f"reading {options.file}")
    try:
        base_ns = None if profile is None else profile.base_ns
        with or_fail(output), Memory(options.file, base_ns, options.max_events) as memory:
            if profile is not None:
                _warn_of_other_run(profile, memory)
            progress(f"writing {output}")
            with replacing(output) as part:
                write_chrome(part, memory, profile)
    except SnapshotError as error:
        raise Failure(f"{options.file}: {error}") from None
    size = in_bytes(output.stat().st_size)
    say(f"written to {output} ({size}); open it at ui.perfetto.dev")
    return 0
