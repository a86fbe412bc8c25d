# SPDX-License-Identifier: Apache-2.0
"""record: runs a training script unchanged, and writes what it allocated and freed."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import itertools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any, Callable, Optional

import ductile_gpu_start
from ductile_gpu import _native
from ductile_gpu._cli.common import MISUSED, Failure, in_bytes, progress, say
from ductile_gpu._cli.script import add_script_arguments, check_script, run_script

SUMMARY = "run a PyTorch script and record what it allocates"
DESCRIPTION = """\
Runs SCRIPT unchanged, as python would, and records every allocation and free of PyTorch's own
allocator on the GPU. The recording is written when the script ends, also when it fails or is
interrupted. Options come before the script; what follows it is the script's.

  ductile-gpu record -o run.trace.gz train.py --epochs 1
  ductile-gpu report run.trace.gz

With --stacks each allocation has its Python stack, and what is recorded goes to disk at once: the
memory it takes does not grow with the run.

  ductile-gpu record --stacks -o run.pickle train.py

Under torchrun each rank writes a file of its own: torchrun ... -m ductile_gpu record train.py."""
SUFFIXES = (".trace.gz", ".trace", ".pickle", ".pickle.gz")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="where to write: NAME.trace.gz, NAME.trace, or NAME.pickle, which is PyTorch's own "
        "snapshot (SCRIPT.trace.gz; with --stacks SCRIPT.pickle)",
    )
    parser.add_argument(
        "--stacks",
        action="store_true",
        help="with the Python stack of each allocation and marks of the optimizer's steps, "
        "streamed to disk; compiles PyTorch's adapter on first use",
    )
    parser.add_argument(
        "--gpu", metavar="N", type=int, help="which GPU a trace is of (the one with most events)"
    )
    parser.add_argument(
        "--max-events",
        metavar="N",
        type=int,
        help="keep only the latest N events (all); each takes host memory until the end",
    )
    add_script_arguments(parser)


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


class Recorder:
    """Turns PyTorch's recording on as soon as CUDA is initialised, and writes what it recorded."""

    def __init__(self, max_events: Optional[int]) -> None:
        self.max_events = max_events
        self.torch: Optional[Any] = None
        self.started = False

    def arm(self, torch: ModuleType) -> None:
        """Called when the script has imported PyTorch; must not initialise CUDA for it."""
        self.torch = torch
        if not hasattr(self.torch._C, "_cuda_record_memory_history"):
            say("this PyTorch is built without CUDA: there will be nothing to record")
            return
        self.torch.cuda._lazy_call(self._start)

    def _start(self) -> None:
        assert self.torch is not None
        limit = {} if self.max_events is None else {"max_entries": self.max_events}
        self.torch.cuda.memory._record_memory_history("all", context=None, **limit)
        self.started = True

    def explain(self) -> str:
        """Why nothing was recorded."""
        missing = "import torch" if self.torch is None else "use a GPU through PyTorch"
        return f"this process did not {missing}, and programs that it starts are not recorded"

    def dump(self, path: Path) -> None:
        """Writes PyTorch's snapshot while the recording is on, as it must be."""
        assert self.torch is not None
        try:
            self.torch.cuda.memory._dump_snapshot(str(path))
        except Exception as error:
            raise Failure(f"PyTorch could not write what it recorded: {error}") from error


class StackRecorder(Recorder):
    """Streams allocations with their stacks to a folder, from the first use of CUDA on."""

    def __init__(self, folder: Path) -> None:
        super().__init__(None)
        self.folder = folder
        self.recording: Optional[Any] = None
        self.track: Optional[Callable[[int], None]] = None
        self.problem: Optional[Exception] = None

    def arm(self, torch: ModuleType) -> None:
        """A run of hours is not begun whose recording would fail."""
        try:
            from ductile_gpu.torch import _install

            self.track = _install.load_tracker()
        except Exception as error:
            self.problem = error
            raise SystemExit(1) from error
        super().arm(torch)

    def _start(self) -> None:
        """CUDA has just been initialised: PyTorch's allocator has devices to be tracked."""
        from ductile_gpu.torch import _recording

        assert self.track is not None
        try:
            self.recording = _recording.StackRecording(self.folder)
            self.track(_recording.event_function(self.recording.library))
        except Exception as error:
            self.problem = error
            raise SystemExit(1) from error
        self._mark_steps()
        self.started = True

    def _mark_steps(self) -> None:
        hooks = importlib.import_module("torch.optim.optimizer")  # no attribute of torch.optim
        hooks.register_optimizer_step_pre_hook(self._marker("START"))
        hooks.register_optimizer_step_post_hook(self._marker("END"))

    def _marker(self, stage: str) -> Callable[..., None]:
        def mark(optimizer: Any, _arguments: Any, _named: Any) -> None:
            assert self.torch is not None
            assert self.recording is not None
            name = f"Optimizer.step#{type(optimizer).__name__}.step"
            self.recording.annotate(stage, name, self.torch.cuda.current_device())

        return mark

    def explain(self) -> str:
        return str(self.problem) if self.problem is not None else super().explain()

    def _look(self) -> dict[str, Any]:
        """What is held at the end; the recording is of use without it, too."""
        assert self.torch is not None
        try:
            return dict(self.torch.cuda.memory._snapshot())
        except Exception as error:
            say(f"PyTorch cannot say what is held at the end ({error})")
            return {"segments": []}

    def _devices(self, segments: list[dict[str, Any]]) -> list[dict[str, int]]:
        """Free and total memory of the GPUs that were used: others are not to be woken."""
        used = {int(segment["device"]) for segment in segments}
        found: list[dict[str, int]] = [{} for _ in range(max(used, default=-1) + 1)]
        for device in used:
            with contextlib.suppress(Exception):  # a GPU that failed says nothing any more
                assert self.torch is not None
                free, total = self.torch.cuda.mem_get_info(device)
                found[device] = {"free": int(free), "total": int(total)}
        return found

    def dump(self, path: Path) -> None:
        from ductile_gpu.torch._recording import RecordingError

        assert self.recording is not None
        found = self._look()
        try:
            counts = self.recording.close()
            segments, settings = found["segments"], found.get("allocator_settings", {})
            self.recording.save(path, segments, settings, self._devices(segments))
        except (RecordingError, OSError) as error:
            raise Failure(f"the recording could not be written: {error}") from error
        if counts.unnamed:
            say(f"{counts.unnamed:,} allocations have no stack: there were too many different ones")
        stacks = "1 stack" if counts.stacks == 1 else f"{counts.stacks:,} different stacks"
        say(f"{counts.events:,} events, {stacks}")


def _free_name(output: Path) -> Path:
    """For a snapshot in place of a trace: it replaces no other file."""
    stem = output.name[: -len(_suffix(output))]
    marks = itertools.chain([""], (f"-{n}" for n in itertools.count(2)))
    paths = (output.with_name(f"{stem}{mark}.pickle") for mark in marks)
    return next(path for path in paths if not path.exists())


def _convert(snapshot: Path, output: Path, gpu: Optional[int], here: Path) -> None:
    command = [str(_native.bench_path()), "convert"]
    if gpu is not None:
        command += ["--gpu", str(gpu)]
    answer = subprocess.run(
        [*command, "--", str(snapshot), str(output)],
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if answer.returncode != 0:
        kept = _free_name(output)
        shutil.move(str(snapshot), kept)
        said = answer.stderr.strip().splitlines()[-1:] or ["ductile-bench convert failed"]
        reason = said[0].removeprefix("ductile-bench: ").removeprefix(f"{snapshot}: ")
        raise Failure(
            f"no trace was made ({reason}); PyTorch's snapshot is kept as {_shown(kept, here)}"
        )


def _shown(path: Path, here: Path) -> Path:
    """As it is called where the command was started."""
    return path.relative_to(here) if path.is_relative_to(here) else path


def _write(recorder: Recorder, output: Path, gpu: Optional[int], here: Path) -> None:
    progress("writing what was recorded")
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=".ductile-") as folder:
        packed = ".gz" if output.name.endswith(".pickle.gz") else ""
        snapshot = Path(folder) / f"snapshot.pickle{packed}"
        recorder.dump(snapshot)
        if output.name.endswith((".pickle", ".pickle.gz")):
            os.replace(snapshot, output)
        else:
            _convert(snapshot, output, gpu, here)
    size, shown = in_bytes(output.stat().st_size), _shown(output, here)
    say(f"recorded in {shown} ({size}); next: ductile-gpu report {shown}")


def _check_options(options: argparse.Namespace, output: Path) -> None:
    if options.max_events is not None and options.max_events < 1:
        raise Failure("--max-events is at least 1", MISUSED)
    if options.gpu is not None and options.gpu < 0:
        raise Failure(f"--gpu is the number of a GPU, not {options.gpu}", MISUSED)
    if options.gpu is not None and not output.name.endswith((".trace", ".trace.gz")):
        raise Failure(f"--gpu: {output.name} has all GPUs; only a trace is of one", MISUSED)
    if not options.stacks:
        if output.name.endswith(".pickle.gz"):
            raise Failure(f"--output {output.name}: PyTorch writes NAME.pickle", MISUSED)
        return
    if not output.name.endswith((".pickle", ".pickle.gz")):
        raise Failure(
            f"--stacks: {output.name} would be a trace, which has no stacks: -o NAME.pickle",
            MISUSED,
        )
    if options.max_events is not None:
        raise Failure("--max-events: with --stacks the disk alone is the limit", MISUSED)


def _record(options: argparse.Namespace, output: Path, recorder: Recorder) -> int:
    """Returns the script's exit status; 1 when it succeeded and nothing could be written."""
    here = Path.cwd()
    ductile_gpu_start.when_torch_is_imported(recorder.arm)
    status = run_script(options.script, options.module, options.arguments)
    try:
        if not recorder.started:
            raise Failure(f"nothing was recorded: {recorder.explain()}")
        _write(recorder, output, options.gpu, here)
    except Failure as failure:
        say(str(failure))
        return status or failure.status
    return status


def main(options: argparse.Namespace) -> int:
    """Returns the exit status of the script, or of what went wrong besides."""
    check_script(options.script, options.module)
    usual = ".pickle" if options.stacks else ".trace.gz"
    output = _output_path(options.output, options.script, usual)
    _check_options(options, output)
    _check_output(output)
    if not options.stacks:
        return _record(options, output, Recorder(options.max_events))
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=".ductile-") as folder:
        return _record(options, output, StackRecorder(Path(folder)))
