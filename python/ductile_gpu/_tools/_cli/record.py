# SPDX-License-Identifier: Apache-2.0
"""record: runs a training script unchanged, and writes what it allocated and freed."""

from __future__ import annotations

import argparse
import os
import shutil
from pathlib import Path
from types import ModuleType
from typing import Callable, Optional

import ductile_gpu_start
from ductile_gpu._process import _children
from ductile_gpu._tools import _record_folder
from ductile_gpu._tools._bench import BenchError, ask_bench, replay_arguments
from ductile_gpu._tools._cli.common import MISUSED, SUFFIXES, Failure, or_fail, progress
from ductile_gpu._tools._cli.script import add_script_arguments, check_script, run_script
from ductile_gpu._tools._recorder import (
    NotRecorded,
    Recorder,
    free_names,
    make_recorder,
    parts_folder,
)
from ductile_gpu._tools._sizes import in_bytes
from ductile_gpu_words import say

SUMMARY = "Run a PyTorch script and record what it allocates."
DESCRIPTION = """\
Runs SCRIPT unchanged, as python would, and records every allocation and free of PyTorch's own
allocator on the GPU. The recording is written when the script ends, also when it fails or is
interrupted. Options come before the script; what follows it is the script's.

  ductile-gpu record -o run.pickle train.py --epochs 1
  ductile-gpu report run.pickle

Each allocation has its Python stack, and what is recorded goes to disk at once: the memory it takes
does not grow with the run. That needs PyTorch's adapter, which is compiled on first use; without it
PyTorch's own history is recorded, without stacks, and the reason is said. A trace has no stacks.

With a folder (-o runs/) every Python of the job that uses a GPU through PyTorch is recorded: ranks,
spawned engines, workers. Each writes a snapshot of its own there, named by rank, host and process.

  ductile-gpu record -o runs/ -m torch.distributed.run --nproc-per-node 8 train.py
  ductile-gpu report runs

DUCTILE_RECORD=runs in the environment does the same for a program that is started otherwise."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="Where to write: NAME.pickle or NAME.pickle.gz for PyTorch's own snapshot, NAME.trace "
        "or NAME.trace.gz for a trace, or FOLDER/ for a snapshot of each process. Default: "
        "SCRIPT.pickle.",
    )
    parser.add_argument(
        "--stacks",
        action=argparse.BooleanOptionalAction,
        help="Insist on the Python stack of each allocation and on marks of the optimizer's steps, "
        "or do without. Default: both where they can be recorded.",
    )
    parser.add_argument(
        "--gpu", metavar="N", type=int, help="Which GPU a trace is of. Default: the fullest."
    )
    parser.add_argument(
        "--max-events",
        metavar="N",
        type=int,
        help="Keep only the latest N events, without stacks. Each takes host memory until the end. "
        "Default: all.",
    )
    add_script_arguments(parser)


def _is_snapshot(path: Path) -> bool:
    return path.name.endswith((".pickle", ".pickle.gz"))


def _suffix(path: Path) -> str:
    return next((known for known in SUFFIXES if path.name.endswith(known)), "")


def _output_path(given: Optional[str], script: str, usual: str) -> Path:
    """Where the recording goes, wherever the script goes meanwhile."""
    path = Path(given if given is not None else f"{Path(script).stem}{usual}")
    suffix = _suffix(path)
    if not suffix:
        known = ", ".join(SUFFIXES)
        raise Failure(f"--output {path}: the name must end in one of {known}", MISUSED)
    if os.environ.get("WORLD_SIZE", "1") != "1" and "RANK" in os.environ:
        stem = path.name[: -len(suffix)]
        path = path.with_name(f"{stem}.rank{os.environ['RANK']}{suffix}")
    return path.absolute()


def _check_output(path: Path) -> None:
    """A run may take hours: what would keep it from being written is said before."""
    folder = path.parent
    if not folder.is_dir():
        raise Failure(f"{folder}: no such folder for the recording")
    if not os.access(folder, os.W_OK):
        raise Failure(f"{folder}: the recording cannot be written there")


class _Start:
    """Has a recorder begin when the script's PyTorch initialises CUDA. A script that could not be
    recorded is stopped: a run of hours is not begun for nothing."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.missing = "this process did not import torch"
        self.problem = ""

    def arm(self, torch: ModuleType) -> None:
        """Called when the script has imported PyTorch; must not initialise CUDA for it."""
        self.missing = "this process did not use a GPU through PyTorch"
        if not hasattr(torch._C, "_cuda_record_memory_history"):
            say("this PyTorch is built without CUDA: there will be nothing to record")
            return
        self._or_stop(lambda: self.recorder.prepare(torch))
        torch.cuda._lazy_call(lambda: self._or_stop(self.recorder.start))

    def _or_stop(self, step: Callable[[], None]) -> None:
        try:
            step()
        except Exception as error:
            self.problem = str(error)
            raise SystemExit(1) from error

    def explain(self) -> str:
        """Why nothing was recorded."""
        if self.problem:
            return self.problem
        others = "and programs that it starts are not recorded: -o FOLDER/ records them, too"
        return f"{self.missing}, {others}"


def _free_name(output: Path) -> Path:
    """For a snapshot in place of a trace: it replaces no other file."""
    names = free_names(output.parent, output.name[: -len(_suffix(output))])
    return next(path for path in names if not path.exists())


def _convert(snapshot: Path, output: Path, gpu: Optional[int], here: Path) -> None:
    trace = snapshot.with_name(f"made{_suffix(output)}")
    try:
        ask_bench("convert", *replay_arguments(gpu), "--", str(snapshot), str(trace))
        os.replace(trace, output)
    except BenchError as error:
        kept = _free_name(output)
        shutil.move(str(snapshot), kept)
        raise Failure(
            f"no trace was made ({str(error).removeprefix(f'{snapshot}: ')}); PyTorch's snapshot "
            f"is kept as {_shown(kept, here)}"
        ) from None


def _shown(path: Path, here: Path) -> Path:
    """As it is called where the command was started."""
    return path.relative_to(here) if path.is_relative_to(here) else path


def _write(recorder: Recorder, output: Path, gpu: Optional[int], here: Path) -> None:
    progress("writing what was recorded")
    with parts_folder(output.parent) as folder:
        packed = ".gz" if output.name.endswith(".pickle.gz") else ""
        snapshot = folder / f"snapshot.pickle{packed}"
        for remark in recorder.dump(snapshot):
            say(remark)
        if _is_snapshot(output):
            os.replace(snapshot, output)
        else:
            _convert(snapshot, output, gpu, here)
    size, shown = in_bytes(output.stat().st_size), _shown(output, here)
    say(f"recorded in {shown} ({size}); next: ductile-gpu report {shown}")


def _check_numbers(options: argparse.Namespace) -> None:
    if options.max_events is not None and options.max_events < 1:
        raise Failure("--max-events is at least 1", MISUSED)
    if options.gpu is not None and options.gpu < 0:
        raise Failure(f"--gpu is the number of a GPU, not {options.gpu}", MISUSED)
    if options.stacks and options.max_events is not None:
        raise Failure("--max-events: with --stacks the disk alone is the limit", MISUSED)


def _check_options(options: argparse.Namespace, output: Path) -> None:
    if options.gpu is not None and _is_snapshot(output):
        raise Failure(f"--gpu: {output.name} has all GPUs; only a trace is of one", MISUSED)
    if options.stacks and not _is_snapshot(output):
        raise Failure(
            f"--stacks: {output.name} would be a trace, which has no stacks: -o NAME.pickle",
            MISUSED,
        )


def _record(options: argparse.Namespace, output: Path, recorder: Recorder) -> int:
    """Returns the script's exit status; 1 when it succeeded and nothing could be written."""
    here, owner = Path.cwd(), os.getpid()
    start = _Start(recorder)
    ductile_gpu_start.when_torch_is_imported(start.arm)
    status = run_script(options.script, options.module, options.arguments)
    if os.getpid() != owner:  # a fork: the recording is its parent's
        return status
    try:
        if not recorder.started:
            raise Failure(f"nothing was recorded: {start.explain()}")
        _write(recorder, output, options.gpu, here)
    except (Failure, NotRecorded) as failure:
        say(str(failure))
        return status or getattr(failure, "status", 1)
    return status


# ---- A folder for all processes ----------------------------------------------------------------


def _names_folder(given: Optional[str]) -> bool:
    return given is not None and (given.endswith(os.sep) or os.path.isdir(given))


def _make_folder(options: argparse.Namespace) -> Path:
    folder = Path(options.output).absolute()
    if options.gpu is not None:
        raise Failure(f"--gpu: {options.output} gets all GPUs; only a trace is of one", MISUSED)
    if not folder.parent.is_dir():
        raise Failure(f"{folder.parent}: no such folder for the recordings")
    with or_fail(options.output):
        folder.mkdir(exist_ok=True)
    problem = ductile_gpu_start.why_not_recorded(str(folder))
    if problem is not None:
        raise Failure(f"{options.output}: the recordings cannot be written there: {problem}")
    return folder


def _record_all(options: argparse.Namespace) -> int:
    """The same, of this process and of all that it starts."""
    folder, here, owner = _make_folder(options), Path.cwd(), os.getpid()
    before = set(folder.glob("*.pickle"))
    _children.record(os.environ, str(folder), options.stacks, options.max_events)
    ductile_gpu_start.when_torch_is_imported(ductile_gpu_start.record_now)
    status = run_script(options.script, options.module, options.arguments)
    if os.getpid() != owner:
        return status
    _record_folder.finish()
    found = set(folder.glob("*.pickle")) - before
    if not found:
        say("nothing was recorded: no process of this run used a GPU through PyTorch to its end")
        return status or 1
    size, shown = in_bytes(sum(path.stat().st_size for path in found)), _shown(folder, here)
    count = "1 recording" if len(found) == 1 else f"{len(found)} recordings"
    say(f"{count} in {shown} ({size}); next: ductile-gpu report {shown}")
    return status


def main(options: argparse.Namespace) -> int:
    """Returns the exit status of the script, or of what went wrong besides."""
    check_script(options.script, options.module)
    _check_numbers(options)
    if _names_folder(options.output):
        return _record_all(options)
    usual = ".pickle" if options.gpu is None else ".trace.gz"
    output = _output_path(options.output, options.script, usual)
    _check_options(options, output)
    _check_output(output)
    stacks = options.stacks if _is_snapshot(output) else False
    with parts_folder(output.parent) as folder:
        recorder = make_recorder(stacks, folder, options.max_events)
        return _record(options, output, recorder)
