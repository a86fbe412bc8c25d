# SPDX-License-Identifier: Apache-2.0
"""What DUCTILE_RECORD asks for: one recording of this process, in a folder that it shares with
others of its job, written when the process ends: at its exit, after an exception, at SIGTERM."""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import signal
import socket
import sys
from pathlib import Path
from types import FrameType, ModuleType
from typing import Optional

from ductile_gpu._tools._recorder import free_names, make_recorder, parts_folder
from ductile_gpu_words import is_on, one_line, say

STACKS = "DUCTILE_RECORD_STACKS"
MAX_EVENTS = "DUCTILE_RECORD_MAX_EVENTS"


def _stem() -> str:
    """Rank, host and process. Ranks have as many digits as the last: so they stand in order."""
    host = re.sub(r"[^A-Za-z0-9.-]", "_", socket.gethostname())
    rank, count = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "")
    digits = len(str(int(count) - 1)) if count.isdecimal() else 1
    found = f"rank{int(rank):0{digits}}-" if rank.isdecimal() else ""
    return f"{found}{host}-{os.getpid()}"


def _take_name(folder: Path) -> Path:
    """A new, empty file. Containers may have processes of one number and one host name."""
    for path in free_names(folder, _stem()):
        with contextlib.suppress(FileExistsError), open(path, "xb"):
            return path
    raise AssertionError


def _max_events() -> Optional[int]:
    text = os.environ.get(MAX_EVENTS, "").strip()
    if text and not (text.isdecimal() and int(text) > 0):
        raise ValueError(f"{MAX_EVENTS}={text}: it is a number, at least 1")
    return int(text) if text else None


def _stacks() -> Optional[bool]:
    """None: where they can be recorded."""
    return is_on(STACKS) if os.environ.get(STACKS, "").strip() else None


class _Recording:
    """Of the process that makes it; its forks have none."""

    def __init__(self, folder: str, torch: ModuleType) -> None:
        self.folder = Path(folder)
        self.owner: Optional[int] = os.getpid()
        self.is_writing = False
        self.signal: Optional[int] = None
        """came while it was written"""
        stacks, max_events = _stacks(), _max_events()
        with contextlib.ExitStack() as stack:
            parts = stack.enter_context(parts_folder(self.folder))
            self.recorder = make_recorder(stacks, parts, max_events)
            self.recorder.prepare(torch)
            self.recorder.start()
            self.parts = stack.pop_all()

    def write(self) -> None:
        """Once, in its own process."""
        if self.owner != os.getpid():
            return
        self.owner = None
        self.is_writing = True
        try:
            with parts_folder(self.folder) as place:
                self.recorder.dump(place / "snapshot.pickle")
                os.replace(place / "snapshot.pickle", _take_name(self.folder))
        except Exception as error:
            say(f"WARNING: this process was not recorded: {one_line(error)}")
        self.parts.close()
        self.is_writing = False
        if self.signal is not None:
            _die(self.signal)


_recording: Optional[_Recording] = None


def begin(folder: str, torch: ModuleType) -> None:
    """CUDA has just been initialised. Raises what keeps the process from being recorded."""
    global _recording
    _recording = _Recording(folder, torch)
    _write_at_the_end()


def finish() -> None:
    """Writes the recording, if there is one that was not written yet."""
    if _recording is not None:
        _recording.write()


def _write_at_the_end() -> None:
    atexit.register(finish)
    util = sys.modules.get("multiprocessing.util")
    if util is not None:  # its forked children end without atexit
        util.Finalize(None, finish, exitpriority=0)
    with contextlib.suppress(ValueError):  # not in the main thread
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, _end)
            os.register_at_fork(after_in_child=_forget_signal)


def _forget_signal() -> None:
    with contextlib.suppress(ValueError):
        if signal.getsignal(signal.SIGTERM) is _end:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _end(number: int, _frame: Optional[FrameType]) -> None:
    """As the signal would have ended it, after the recording is written."""
    assert _recording is not None
    if _recording.is_writing:
        _recording.signal = number
        return
    _recording.write()
    _die(number)


def _die(number: int) -> None:
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
