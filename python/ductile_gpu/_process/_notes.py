# SPDX-License-Identifier: Apache-2.0
"""Notes of the processes of a `ductile-gpu run`: who serves the GPU memory of each.

A process leaves its note when PyTorch initialises CUDA. One that is killed afterwards has left it;
one that ends, and had no GPU memory, takes it back.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import sys
from pathlib import Path
from typing import NamedTuple, Optional

FOLDER = "DUCTILE_TORCH_NOTES"
_own: Optional[Path] = None


class Note(NamedTuple):
    """Who serves the GPU memory of a process."""

    pid: int
    command: str
    mode: str
    problem: Optional[str]


def leave(mode: str, problem: Optional[str]) -> None:
    """Where the environment names a folder for it."""
    global _own
    folder = os.environ.get(FOLDER)
    if not folder:
        return
    import tempfile  # in the few processes that need it

    command = getattr(sys, "orig_argv", sys.argv)  # from Python 3.10 on
    handle, name = tempfile.mkstemp(suffix=".json", dir=folder)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        json.dump(Note(os.getpid(), " ".join(command[:8]), mode, problem), file)
    _own = Path(name)
    atexit.register(take_back, os.getpid())


def _has_served() -> bool:
    import torch

    devices = range(torch.cuda.device_count())
    return any(torch.cuda.max_memory_reserved(device) > 0 for device in devices)


def take_back(pid: int) -> None:
    """At the end of the process that left a note; its forks keep it."""
    global _own
    with contextlib.suppress(Exception):
        if _own is not None and pid == os.getpid() and not _has_served():
            _own.unlink()
            _own = None


def read(folder: Path) -> list[Note]:
    """Those of all processes, in the order of their beginning."""
    notes = []
    for path in sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime_ns):
        with contextlib.suppress(OSError, ValueError, TypeError):
            notes.append(Note(*json.loads(path.read_text(encoding="utf-8"))))
    return notes
