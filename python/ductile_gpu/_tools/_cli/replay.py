# SPDX-License-Identifier: Apache-2.0
"""replay: what a recorded run would have needed under PyTorch's allocators and under Ductile."""

from __future__ import annotations

import argparse
import json
import subprocess
from typing import Any

from ductile_gpu._binding import _native
from ductile_gpu._tools._bench import replay_arguments
from ductile_gpu._tools._cli.common import (
    PROGRAM,
    Failure,
    add_replay_options,
    read_settings,
    show,
    standard_output,
)
from ductile_gpu._tools._report import _collect
from ductile_gpu._tools._sizes import in_bytes

Results = dict[str, dict[str, Any]]  # by allocator

SUMMARY = "Say what a recorded run would need, without a GPU."
DESCRIPTION = """\
Replays recordings on the virtual GPU: traces of `record`, snapshots that
torch.cuda.memory._dump_snapshot wrote, and what else `ductile-bench convert` reads. Says how much
memory PyTorch's native allocator, its expandable segments and Ductile would have held.

  ductile-gpu replay run.trace.gz
  ductile-gpu replay --min-capacity snapshot.pickle

ductile-bench replay --help shows what else a replay can do."""
NAMES = dict(reversed(_collect.NAMES.items()))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument(
        "files", metavar="FILE", nargs="+", help="A trace or a snapshot. - is standard input."
    )
    parser.add_argument(
        "--min-capacity",
        action="store_true",
        help="Find also the smallest GPU on which the run completes. This takes many replays.",
    )
    add_replay_options(parser)
    parser.add_argument(
        "--json", action="store_true", help="Print the lines of JSON of ductile-bench."
    )


def _command(options: argparse.Namespace) -> list[str]:
    command = [PROGRAM, "replay", "--device", "virtual", "--json"]
    command += ["--contender", ",".join(NAMES)]
    command += replay_arguments(options.gpu, options.capacity, options.set)
    if options.min_capacity:
        command.append("--min-capacity")
    return [*command, "--", *options.files]


def _replay(options: argparse.Namespace) -> list[str]:
    # Its progress and its errors are lines on standard error already, under our name.
    answer = subprocess.run(
        _command(options),
        executable=_native.bench_path(),
        stdout=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
        check=False,
    )
    if answer.returncode != 0:
        raise SystemExit(answer.returncode)
    return answer.stdout.split("\n")[:-1]


def _needed(result: dict[str, Any]) -> str:
    if not result["completed"]:
        number = result["stopped_at_event"] + 1  # of people, who count from 1
        return f"out of memory at event {number:,} of {result['events']:,}"
    held = result["reserved_peak_bytes"]
    return f"{in_bytes(held):>10}   {100 * result['efficiency']:9.1f} %"


def _smallest(result: dict[str, Any]) -> str:
    found = result.get("min_capacity_bytes")
    return "" if found is None else f"   {in_bytes(found):>10}"


def _print_table(name: str, results: Results) -> None:
    first = next(iter(results.values()))
    live = in_bytes(first["live_peak_bytes"])
    show(f"{name}: {first['events']:,} events; at the peak {live} live")
    width = max(len(NAMES[name]) for name in results)
    smallest = "   smallest GPU" if any("min_capacity_bytes" in r for r in results.values()) else ""
    show("", f"  {'':{width}}   {'held':>10}   live / held{smallest}")
    for name, result in results.items():
        show(f"  {NAMES[name]:{width}}   {_needed(result)}{_smallest(result)}".rstrip())


def _print_verdict(results: Results) -> None:
    ours = results.get("ductile")
    if ours is None or not ours["completed"]:
        return
    parts = []
    for name in ("classic", "expandable"):
        other = results.get(name)
        if other is not None and other["completed"]:
            saved = other["reserved_peak_bytes"] - ours["reserved_peak_bytes"]
            amount = f"{in_bytes(abs(saved))} {'less' if saved >= 0 else 'more'}"
            parts.append(f"{amount} than {NAMES[name]}")
    if parts:
        show("", f"  Ductile holds {' and '.join(parts)}.")


def _print_refusals(results: Results) -> None:
    """Why no allocator could serve the run, where none could."""
    if any(result["completed"] for result in results.values()):
        return
    first = next(iter(results.values()))
    live, capacity = first["live_peak_bytes"], first["capacity_bytes"]
    if live > capacity:
        show("", f"  The run itself needs {in_bytes(live)}: no allocator can serve it in less.")


def print_results(name: str, results: Results) -> None:
    """A table of one recording, under this name, and what follows from it."""
    ordered = {name: results[name] for name in NAMES if name in results}
    _print_table(name, ordered)
    _print_verdict(ordered)
    _print_refusals(ordered)


def _by_file(lines: list[str]) -> dict[str, Results]:
    found: dict[str, Results] = {}
    for line in lines:
        result = json.loads(line)
        found.setdefault(result["file"], {})[result["contender"]] = result
    if not found:
        raise Failure("ductile-bench gave no result")
    return found


def read_results(options: argparse.Namespace) -> dict[str, Results]:
    """Of each file that these options of `replay` name."""
    return _by_file(_replay(options))


def main(options: argparse.Namespace) -> int:
    """Prints one table for each file."""
    read_settings(options.set)
    lines = _replay(options)
    if options.json:
        standard_output().write("".join(f"{line}\n" for line in lines))
        return 0
    for position, (name, results) in enumerate(_by_file(lines).items()):
        if position:
            show("")
        print_results(name, results)
    return 0
