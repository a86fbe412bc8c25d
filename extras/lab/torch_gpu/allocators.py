# SPDX-License-Identifier: Apache-2.0
"""The allocators that the scripts here set side by side, and the processes that run on them."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import ductile_gpu.torch

NAMES = ("native", "expandable", "ductile")

before: str | None = None  # where another package of Ductile lies, for the way `before`


def environment(allocator: str) -> dict[str, str]:
    """This process's environment, for a Python whose PyTorch is to allocate from that allocator."""
    found = dict(os.environ)
    for name in ("DUCTILE_TORCH", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        found.pop(name, None)
    if allocator == "expandable":
        found["PYTORCH_CUDA_ALLOC_CONF"] = found["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"
    if allocator != "ductile":
        return found
    # What a program says is compared, and read by its lines.
    return ductile_gpu.torch.child_environment("full", found) | {"DUCTILE_TORCH_QUIET": "1"}


def training_environment(way: str) -> dict[str, str]:
    """The same for a training: it fetches nothing, and libraries say only what went wrong. A way is
    an allocator, with options as in ductile+sizes:2M."""
    allocator, *options = way.split("+")
    found = environment("ductile" if allocator == "before" else allocator)
    if allocator == "before":
        found["PYTHONPATH"] = f"{before}:{found.get('PYTHONPATH', '')}"
    found |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    return found | ({"DUCTILE_CONF": ",".join(options)} if options else {})


def on_one_gpu(way: str) -> dict[str, str]:
    """The same where a training would take all GPUs."""
    return {"CUDA_VISIBLE_DEVICES": "0", **training_environment(way)}


_running: set[subprocess.Popen[str]] = set()


def start(command: Sequence[str], **more: Any) -> subprocess.Popen[str]:
    """A process with a session of its own, which ends with this one, on SIGTERM too."""
    process = subprocess.Popen(command, text=True, start_new_session=True, **more)
    _running.add(process)
    return process


def kill(process: subprocess.Popen[str]) -> None:
    """Ends a process that began a session of its own, and whatever it started."""
    if process.poll() is None:  # afterwards the number may be another's
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _end(*_: Any) -> None:
    for process in tuple(_running):
        kill(process)
    os._exit(128 + signal.SIGTERM)


signal.signal(signal.SIGTERM, _end)


def run(
    command: Sequence[str],
    seconds: float,
    where: dict[str, str] | None = None,
    cwd: str | Path = ".",
    silence: float = math.inf,
) -> tuple[int, str]:
    """A command's status, and all it said. -1: it was killed, for it took longer than `seconds` or
    said nothing for longer than `silence`."""
    with tempfile.TemporaryFile("w+", errors="replace") as said:
        began = heard = time.monotonic()
        process = start(
            command, env=where, cwd=cwd, stdin=subprocess.DEVNULL, stdout=said,
            stderr=subprocess.STDOUT,
        )  # fmt: skip
        reason, size = "", 0
        while process.poll() is None and not reason:
            time.sleep(0.05)
            now = time.monotonic()
            if os.fstat(said.fileno()).st_size != size:
                size, heard = os.fstat(said.fileno()).st_size, now
            if now - began > seconds:
                reason = f"\nkilled: it took more than {seconds:.0f} s"
            elif now - heard > silence:
                reason = f"\nkilled: it said nothing for {silence:.0f} s"
        if reason:
            kill(process)
        status = process.wait()
        said.seek(0)
        return (-1 if reason else status), said.read() + reason
