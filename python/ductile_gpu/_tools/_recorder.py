# SPDX-License-Identifier: Apache-2.0
"""What records the allocations of this process: what has stacks and goes to disk at once, or
PyTorch's own history. Both end as a snapshot of PyTorch's form."""

from __future__ import annotations

import contextlib
import gzip
import importlib
import itertools
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Callable, Optional

from ductile_gpu._process import _share
from ductile_gpu.torch import _install, _recording
from ductile_gpu_words import one_line, say


class NotRecorded(RuntimeError):
    """What was recorded could not be written; one line."""


def free_names(folder: Path, stem: str) -> Iterator[Path]:
    """Snapshots of this name, and then with a number behind it."""
    for mark in itertools.chain([""], (f"-{n}" for n in itertools.count(2))):
        yield folder / f"{stem}{mark}.pickle"


@contextlib.contextmanager
def parts_folder(parent: Path) -> Iterator[Path]:
    """A folder beside what will be written. It goes with the process that made it, not with a fork
    of that one."""
    owner, path = os.getpid(), Path(tempfile.mkdtemp(prefix=".ductile-", dir=parent))
    try:
        yield path
    finally:
        if os.getpid() == owner:
            shutil.rmtree(path, ignore_errors=True)


def _spilled(device: int) -> dict[str, int]:
    """What Ductile has taken from the host's memory on a device, where it has."""
    found = [one.stats() for one in _share.allocators() if one.device == device]
    if not any(stats.spills for stats in found):
        return {}
    return {
        "spills": sum(stats.spills for stats in found),
        "spilled_peak": sum(stats.spilled_peak_bytes for stats in found),
    }


def _add_devices(path: Path, devices: list[dict[str, int]]) -> None:
    """To the dict that a pickle ends with: its last opcode gives way to those that add to it."""
    with open(path, "r+b") as file:
        file.seek(-1, os.SEEK_END)
        if devices and file.read(1) == b".":
            file.seek(-1, os.SEEK_END)
            file.write(_recording.more_of_dict("device_memory", devices))


def _pack(plain: Path, path: Path) -> None:
    with open(plain, "rb") as text, gzip.open(path, "wb", 1) as packed:
        shutil.copyfileobj(text, packed, 1 << 20)
    plain.unlink()


class Recorder:
    """PyTorch's own recording."""

    def __init__(self, max_events: Optional[int] = None) -> None:
        self.max_events = max_events
        self.torch: Any = None  # from `prepare` on
        self.started = False

    def prepare(self, torch: ModuleType) -> None:
        """What can be done as soon as PyTorch is imported; must not initialise CUDA."""
        self.torch = torch

    def start(self) -> None:
        """CUDA has just been initialised. Pre: prepared."""
        limit = {} if self.max_events is None else {"max_entries": self.max_events}
        self.torch.cuda.memory._record_memory_history("all", context=None, **limit)
        self.started = True

    def _used_devices(self) -> list[dict[str, int]]:
        """Free and total memory of the GPUs that hold memory: others are not to be woken."""
        cuda = self.torch.cuda
        held = [cuda.memory_reserved(device) for device in range(cuda.device_count())]
        return self._devices([{"device": device} for device, size in enumerate(held) if size])

    def _devices(self, segments: list[dict[str, Any]]) -> list[dict[str, int]]:
        """Free and total memory of the GPUs that were used."""
        used = {int(segment["device"]) for segment in segments}
        found: list[dict[str, int]] = [{} for _ in range(max(used, default=-1) + 1)]
        for device in used:
            with contextlib.suppress(Exception):  # a GPU that failed says nothing any more
                free, total = self.torch.cuda.mem_get_info(device)
                found[device] = {"free": int(free), "total": int(total), **_spilled(device)}
        return found

    def dump(self, path: Path) -> list[str]:
        """Writes PyTorch's snapshot while the recording is on, as it must be. Returns remarks."""
        is_packed = path.suffix == ".gz"
        plain = path.with_suffix("") if is_packed else path
        try:
            self.torch.cuda.memory._dump_snapshot(str(plain))
            with contextlib.suppress(Exception):  # it is of use without this, too
                _add_devices(plain, self._used_devices())
            if is_packed:
                _pack(plain, path)
        except Exception as error:
            raise NotRecorded(f"PyTorch could not write what it recorded: {error}") from error
        return []


class Refusals:
    """What PyTorch's allocator held when it refused a request, since the exception frees much on
    its way: of each GPU at the refusal that needed most."""

    def __init__(self, torch: ModuleType) -> None:
        self._torch: Any = torch
        self._counts: Counter[int] = Counter()
        self._needs: dict[int, int] = {}
        self._kept: dict[int, dict[str, Any]] = {}

    def watch(self) -> None:
        """From now on. Without effect where this PyTorch does not tell."""
        with contextlib.suppress(Exception):
            self._torch._C._cuda_attach_out_of_memory_observer(self._observe)

    def _observe(self, device: int, asked: int, _total: int, _free: int) -> None:
        """The allocator is not locked. An exception would take the place of the program's own."""
        self._counts[device] += 1
        with contextlib.suppress(Exception):
            self._keep(device, asked)

    def _keep(self, device: int, asked: int) -> None:
        stats = self._torch.cuda.memory_stats(device)
        need = asked + int(stats["requested_bytes.all.current"])
        if need <= self._needs.get(device, -1):
            return
        held = self._torch.cuda.memory._snapshot()["segments"]
        segments = [segment for segment in held if segment["device"] == device]
        kept = {"device": device, "number": self._counts[device], "segments": segments}
        self._needs[device], self._kept[device] = need, kept

    def found(self) -> list[dict[str, Any]]:
        """Of each GPU that refused: number counts its refusals from 1."""
        return list(self._kept.values())


class StackRecorder(Recorder):
    """Streams allocations with their stacks to a folder, from the first use of CUDA on."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.recording: Any = None
        self.tracker: Any = None
        self.refusals: Any = None  # all of them from `start` on

    def prepare(self, torch: ModuleType) -> None:
        """May compile the adapter."""
        self.tracker = _install.Tracker()
        super().prepare(torch)

    def start(self) -> None:
        """PyTorch's allocator has devices to be tracked."""
        self.recording = _recording.StackRecording(self.folder)
        try:
            self.tracker.start(*_recording.functions(self.recording.library))
        except BaseException:
            self.recording.close()
            raise
        self._mark_steps()
        self.refusals = Refusals(self.torch)
        self.refusals.watch()
        self.started = True

    def _mark_steps(self) -> None:
        hooks = importlib.import_module("torch.optim.optimizer")  # no attribute of torch.optim
        hooks.register_optimizer_step_pre_hook(self._marker("START"))
        hooks.register_optimizer_step_post_hook(self._marker("END"))

    def _marker(self, stage: str) -> Callable[..., None]:
        def mark(optimizer: Any, _arguments: Any, _named: Any) -> None:
            name = f"Optimizer.step#{type(optimizer).__name__}.step"
            self.recording.annotate(stage, name, self.torch.cuda.current_device())

        return mark

    def _look(self) -> dict[str, Any]:
        """What is held at the end; the recording is of use without it, too."""
        try:
            return dict(self.torch.cuda.memory._snapshot())
        except Exception as error:
            say(f"PyTorch cannot say what is held at the end ({error})")
            return {"segments": []}

    def _stop_tracking(self) -> None:
        """The recording is of use also where PyTorch says no more."""
        with contextlib.suppress(Exception):
            self.tracker.stop()

    def _explain_bare(self, counts: Any) -> list[str]:
        """Stacks were asked for: that nearly none was found is said."""
        if counts.bare == 0 or counts.bare < 0.9 * counts.allocs:
            return []
        why = "no Python ran on the threads that made them"
        if self.tracker.was_lent:
            why = "the script called _record_memory_history, which leaves no room for another"
        return [f"{counts.bare:,} of {counts.allocs:,} allocations have no stack: {why}"]

    def dump(self, path: Path) -> list[str]:
        found = self._look()
        self._stop_tracking()
        try:
            counts = self.recording.close()
            segments, settings = found["segments"], found.get("allocator_settings", {})
            devices, refusals = self._devices(segments), self.refusals.found()
            self.recording.save(path, segments, settings, devices, refusals)
        except (_recording.RecordingError, OSError) as error:
            raise NotRecorded(f"the recording could not be written: {error}") from error
        bare = self._explain_bare(counts)
        few = f"{counts.unnamed:,} allocations have no stack: there were too many different ones"
        stacks = "1 stack" if counts.stacks == 1 else f"{counts.stacks:,} different stacks"
        return [*([few] if counts.unnamed else []), *bare, f"{counts.events:,} events, {stacks}"]


class StacksIfPossible(Recorder):
    """With stacks, or where there is no adapter by PyTorch's own history."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.used: Recorder = StackRecorder(folder)

    def prepare(self, torch: ModuleType) -> None:
        """May compile the adapter."""
        super().prepare(torch)
        self._or_without(lambda: self.used.prepare(torch))

    def start(self) -> None:
        """CUDA has just been initialised. Pre: prepared."""
        if self._or_without(self.used.start):
            self.used.start()
        self.started = True

    def _or_without(self, step: Callable[[], None]) -> bool:
        """Does the step; where it cannot be done there will be no stacks. Returns whether so."""
        try:
            step()
        except Exception as error:
            if type(self.used) is Recorder:
                raise
            say(f"this recording has no stacks: {one_line(error)}")
            self.used = Recorder()
            self.used.prepare(self.torch)
            return True
        return False

    def dump(self, path: Path) -> list[str]:
        """Writes what was recorded. Returns remarks."""
        return self.used.dump(path)


def make_recorder(stacks: Optional[bool], folder: Path, max_events: Optional[int]) -> Recorder:
    """A recorder with stacks or without; None: with them where they can be recorded. Of the latest
    events alone it is one without. `folder` takes what is streamed."""
    if stacks is None and max_events is None:
        return StacksIfPossible(folder)
    return StackRecorder(folder) if stacks else Recorder(max_events)
