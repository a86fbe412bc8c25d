# SPDX-License-Identifier: Apache-2.0
"""run --all: runs a program with every library of its processes on Ductile."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from types import FrameType
from typing import Any, Optional

import ductile_gpu_start
from ductile_gpu.interface import (
    MISUSED,
    Failure,
    Note,
    find_file,
    in_bytes,
    inherit,
    read_notes,
)
from ductile_gpu.preload import _counts
from ductile_gpu_words import say

# JAX's own allocators map memory by themselves; with this one it asks in the order of its streams.
# Reserving most of the GPU at the start would be held by Ductile for JAX alone.
_FOR_JAX = {"XLA_PYTHON_CLIENT_ALLOCATOR": "cuda_async", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}

_COUNTS = "DUCTILE_PRELOAD_COUNTS"

DESCRIPTION = """\
With --all every library of the program allocates from Ductile, and SCRIPT may be any program: JAX,
CuPy, Numba, and what is written in C or C++. At the end it says which share of the memory that each
library asked for came from Ductile, and the status is 1 where the one that asked for most had none,
unless PyTorch in its process allocates from Ductile.

  ductile-gpu run --all train_jax.py"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What this adds to the options of `run`."""
    parser.add_argument(
        "--all", action="store_true", help="Serve every library of the program, not PyTorch alone."
    )
    parser.add_argument(
        "--native-malloc",
        action="store_true",
        help="With --all: leave cudaMalloc to the driver, for programs that pass its memory to "
        "other processes by CUDA IPC.",
    )


# ---- What is run -------------------------------------------------------------------------------


def _command(options: argparse.Namespace) -> list[str]:
    """A Python script or module, or any other program."""
    if options.module:
        return [sys.executable, "-m", options.script, *options.arguments]
    if options.script.endswith(".py"):
        return [sys.executable, options.script, *options.arguments]
    program = shutil.which(options.script)
    if program is None:
        is_there = os.path.exists(options.script)
        why = "is not executable" if is_there else "no such program; it comes after the options"
        raise Failure(f"{options.script}: {why}", MISUSED)
    return [program, *options.arguments]


def _refuse_static(program: str) -> None:
    """The loader preloads nothing into a program that it does not load."""
    with open(program, "rb") as file:
        start = file.read(1 << 16)
    if start.startswith(b"\x7fELF") and b"/ld-" not in start:
        raise Failure(f"{program} is linked statically: nothing can be preloaded into it")


def _prepare(
    environment: MutableMapping[str, str],
    options: argparse.Namespace,
    settings: Mapping[str, Any],
    folders: Path,
) -> None:
    before = environment.get("LD_PRELOAD", "")
    library = find_file("lib", "libductile_preload.so")
    environment["LD_PRELOAD"] = f"{library} {before}".strip()
    environment[_COUNTS] = str(folders / "counts")
    if options.native_malloc:
        environment["DUCTILE_PRELOAD"] = "async"
    mode = environment.get(ductile_gpu_start.VARIABLE) or "auto"
    # Where the mode is 0, PyTorch asks the driver as others do.
    inherit(environment, mode, settings, folders / "notes")
    if not environment.get("XLA_PYTHON_CLIENT_ALLOCATOR"):
        environment["XLA_PYTHON_CLIENT_ALLOCATOR"] = _FOR_JAX["XLA_PYTHON_CLIENT_ALLOCATOR"]
        environment.setdefault(
            "XLA_PYTHON_CLIENT_PREALLOCATE", _FOR_JAX["XLA_PYTHON_CLIENT_PREALLOCATE"]
        )


def _wait(command: list[str], environment: Mapping[str, str]) -> int:
    """Runs it to its end. Ctrl-C reaches it as it reaches this process; SIGTERM is handed on."""
    try:
        child = subprocess.Popen(command, env=dict(environment))
    except OSError as error:
        raise Failure(f"{command[0]} cannot be run: {error.strerror}") from None

    def hand_on(number: int, _frame: Optional[FrameType]) -> None:
        child.send_signal(number)

    before = {
        signal.SIGTERM: signal.signal(signal.SIGTERM, hand_on),
        signal.SIGINT: signal.signal(signal.SIGINT, signal.SIG_IGN),
    }
    try:
        status = child.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return status if status >= 0 else 128 - status


# ---- What is said at the end -------------------------------------------------------------------


def _share(row: _counts.Asked) -> str:
    calls = row.served_calls + row.native_calls
    percent = 100 * row.served_bytes // row.total_bytes if row.total_bytes else 0
    return (
        f"{row.library or 'a library that is not known'} asked for {in_bytes(row.total_bytes)} in "
        f"{calls:,} request{'s' * (calls != 1)}: {percent}% from Ductile"
    )


def _tell(counts: list[_counts.Counts], notes: list[Note]) -> None:
    """Which library had how much from Ductile."""
    for row in _counts.by_library(counts):
        say(_share(row))
    for note in notes:
        if note.mode != "off":
            say(f"PyTorch in process {note.pid} allocated through its adapter, from Ductile")
    for process in counts:
        if process.note:
            say(f"process {process.pid} ({process.command}): {process.note}")
    if not notes and not any(process.rows for process in counts):
        say("no process of this run asked for GPU memory: Ductile served nothing")


def _unserved_aside(process: _counts.Counts) -> _counts.Counts:
    return process._replace(rows=tuple(row for row in process.rows if row.served_bytes))


def _judge(counts: list[_counts.Counts], notes: list[Note]) -> int:
    """1 where the library that asked for most, or PyTorch, had nothing from Ductile.

    What PyTorch's adapter serves is not counted. So what other libraries of its process had from
    the driver, such as NCCL's buffers, decides nothing: that process ran on Ductile.
    """
    on_adapter = {note.pid for note in notes if note.mode != "off"}
    rows = _counts.by_library(
        [_unserved_aside(one) if one.pid in on_adapter else one for one in counts]
    )
    if rows and rows[0].total_bytes and not rows[0].served_bytes:
        return 1
    others = any(note.mode == "off" for note in notes)
    return 1 if others and not any(row.served_bytes for row in rows) else 0


def _outer_folders() -> Optional[Path]:
    """Of a run that this one is part of, which tells and judges at its end."""
    counts = os.environ.get(_COUNTS)
    return Path(counts).parent if counts and Path(counts).is_dir() else None


def _run_all(options: argparse.Namespace, settings: Mapping[str, Any], folders: Path) -> int:
    """The program's exit status; 1 where that is 0 and Ductile served nothing that counts."""
    command = _command(options)
    _refuse_static(command[0])
    outer = _outer_folders()
    environment = dict(os.environ)
    if outer is not None:
        _prepare(environment, options, settings, outer)
        return _wait(command, environment)
    for name in ("counts", "notes"):
        (folders / name).mkdir()
    _prepare(environment, options, settings, folders)
    status = _wait(command, environment)
    counts, notes = _counts.read(folders / "counts"), read_notes(folders / "notes")
    _tell(counts, notes)
    judged = _judge(counts, notes)
    return status or judged


def main(options: argparse.Namespace, settings: Mapping[str, Any]) -> Optional[int]:
    """None where the options do not ask for it; otherwise the exit status."""
    if not options.all:
        if options.native_malloc:
            raise Failure("--native-malloc goes with --all", MISUSED)
        return None
    if options.summary or options.live:
        raise Failure("--summary and --live are for PyTorch alone, not with --all", MISUSED)
    with tempfile.TemporaryDirectory(prefix="ductile-run-") as folder:
        return _run_all(options, settings, Path(folder))
