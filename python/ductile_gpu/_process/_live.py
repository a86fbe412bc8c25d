# SPDX-License-Identifier: Apache-2.0
"""Lets `ductile-gpu top` look into this process: off unless asked for, for the same user alone.

The process listens on a socket in a folder that only its user may enter, and answers only peers of
that user. An answer is one JSON object; a connection gets one answer.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import secrets
import socket
import stat
import struct
import sys
import threading
import time
from pathlib import Path
from typing import Any, Optional

from ductile_gpu._binding import _abi
from ductile_gpu._binding._core import Allocator, kept_open
from ductile_gpu._binding._errors import invalid
from ductile_gpu._process._children import is_first_rank
from ductile_gpu._process._metrics import hardware_id
from ductile_gpu._process._outside import outside, pci_bus_id
from ductile_gpu._process._share import numbered, on_first_use
from ductile_gpu_words import is_on, say

VARIABLE = "DUCTILE_LIVE"
_SEND_SECONDS = 2.0
_STOP_SECONDS = 1.0
# A walk over the blocks holds up allocations: however many ask, it is made this often at most.
_LEAST_INTERVAL = 0.2
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid


# ---- Where -------------------------------------------------------------------------------------


def is_private(folder: Path) -> bool:
    """Whether it is a folder of this user that no other user may enter."""
    found = os.lstat(folder)
    return (
        stat.S_ISDIR(found.st_mode)
        and found.st_uid == os.geteuid()
        and stat.S_IMODE(found.st_mode) & 0o077 == 0
    )


def accept_next(listening: socket.socket, nap_seconds: float) -> Optional[socket.socket]:
    """The next peer; None when the socket is closed."""
    while listening.fileno() >= 0:
        try:
            return listening.accept()[0]
        except OSError:  # closed, or the process has no descriptor left for now
            time.sleep(nap_seconds)
    return None


def socket_folders() -> list[Path]:
    """Where sockets of this user's processes may be, the best place first. They need not exist."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    bases = [runtime] if runtime else []
    bases += [f"/run/user/{os.geteuid()}", "/tmp"]
    return [Path(base) / f"ductile-{os.geteuid()}" for base in dict.fromkeys(bases)]


def socket_folder() -> Path:
    """The first place that there is: a runtime folder may be named without being there."""
    *others, last = socket_folders()
    usable = (folder for folder in others if os.access(folder.parent, os.W_OK | os.X_OK))
    return next(usable, last)


def why_unusable(folder: Path) -> Optional[str]:
    """Why no process of this user can listen in a folder, with the remedy; None: it can."""
    try:
        if is_private(folder):
            return None
    except FileNotFoundError:
        return None
    except OSError as error:
        return f"{folder}: {error.strerror}"
    return (
        f"{folder} is not this user's alone: remove it, or let XDG_RUNTIME_DIR name a folder of "
        "your own, for the process and for `ductile-gpu top`"
    )


def own_sockets() -> list[Path]:
    """The sockets in those folders that are this user's alone."""
    found: list[Path] = []
    for folder in socket_folders():
        with contextlib.suppress(OSError):
            if is_private(folder):
                found += sorted(folder.glob("*.sock"))
    return found


def pid_of(path: Path) -> str:
    """Whose socket it is, by its own number: containers that share the folder may share it too."""
    return path.stem.partition("-")[0]


def is_left(path: Path) -> bool:
    """Whether a socket has no listener: its process was killed before it could clean up.

    Raises:
        OSError: neither can be said of what is there.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(0)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return True
        except BlockingIOError:
            return False
    return False


def remove_if_left(path: Path) -> bool:
    """Removes such a one; whether it was."""
    with contextlib.suppress(OSError):
        if is_left(path):
            path.unlink(missing_ok=True)
            return True
    return False


def _open_in(folder: Path) -> tuple[Path, socket.socket]:
    """A socket that listens. It gets its name when it does: others remove those that do not."""
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    problem = why_unusable(folder)
    if problem is not None:
        raise PermissionError(problem)
    for left in folder.glob(f"{os.getpid()}-*.sock"):
        remove_if_left(left)
    path = folder / f"{os.getpid()}-{secrets.token_hex(4)}.sock"
    nameless = path.with_suffix(".new")
    opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        opened.bind(str(nameless))
        nameless.chmod(0o600)
        opened.listen(8)
        nameless.rename(path)
    except BaseException:
        opened.close()
        nameless.unlink(missing_ok=True)
        raise
    return path, opened


def _peer(connection: socket.socket) -> tuple[int, int]:
    """Process and user at the other end, by the kernel's word."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(raw)
    return int(pid), int(uid)


def peer_uid(connection: socket.socket) -> int:
    """The user at the other end."""
    return _peer(connection)[1]


def check_peer(connection: socket.socket) -> int:
    """The number of the process at the other end.

    Raises:
        PermissionError: it is of another user.
        InvalidArgument: the other end may be on another machine.
    """
    if connection.family != socket.AF_UNIX:
        raise invalid("memory passes over a UNIX-domain socket alone")
    pid, uid = _peer(connection)
    if uid != os.geteuid():
        raise PermissionError("the process at the other end is of another user")
    return pid


# ---- What --------------------------------------------------------------------------------------


def _groups(snapshot: dict[str, Any]) -> list[dict[str, Any]]:
    """What each stream and pool has: bytes and blocks by state, and the largest free block."""
    groups: dict[tuple[int, int, int], dict[str, Any]] = {}
    for segment in snapshot["segments"]:
        first, second = segment["pool"]
        found = groups.setdefault(
            (segment["stream"], first, second),
            {
                "stream": segment["stream"],
                "pool": [first, second],
                "bytes": {},
                "blocks": {},
                "largest_free_bytes": 0,
            },
        )
        for block in segment["blocks"]:
            state, size = block["state"], block["size"]
            found["bytes"][state] = found["bytes"].get(state, 0) + size
            found["blocks"][state] = found["blocks"].get(state, 0) + 1
            if state == "free":
                found["largest_free_bytes"] = max(found["largest_free_bytes"], size)
    return list(groups.values())


def _describe_allocator(number: Optional[int], allocator: Allocator) -> dict[str, Any]:
    snapshot = allocator.snapshot()
    return {
        "device": allocator.device,
        "own": number,
        "hw_id": hardware_id(allocator.device, allocator),
        "limits": allocator.limits()._asdict(),
        "statistics": snapshot["statistics"],
        "groups": _groups(snapshot),
    }


def _describe_outside(where: Optional[str]) -> Optional[dict[str, Any]]:
    found = outside(where)
    return found.as_json() if found is not None else None


def describe() -> dict[str, Any]:
    """What `top` shows of this process. `own`: the number of one that the program made itself.
    `outside`: what uses the GPU besides its allocators; null: not known."""
    found: list[dict[str, Any]] = []
    for number, allocator in numbered():
        with kept_open(allocator) as is_open:
            if is_open:
                where = pci_bus_id(allocator)
                found.append(_describe_allocator(number, allocator))
        if is_open:
            found[-1]["outside"] = _describe_outside(where)
    return {
        "version": _abi.VERSION,
        "pid": os.getpid(),
        "command": " ".join(sys.argv) or sys.executable,
        "time": time.time(),
        "allocators": found,
    }


# ---- Listening ---------------------------------------------------------------------------------


class _Listener:
    """One thread with one socket. After a fork the child has neither."""

    def __init__(self) -> None:
        self.path, self._socket = _open_in(socket_folder())
        self._answer = b""
        self._answered = 0.0
        self._thread = threading.Thread(target=self._serve, name="ductile-gpu top", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:  # the host has no thread left
            self._end()
            raise OSError(str(error)) from None

    def close(self) -> None:
        self._end()
        self._thread.join(_STOP_SECONDS)

    def _end(self) -> None:
        self.path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self._socket.close()

    def forget(self) -> None:
        """In a child: the socket is the parent's."""
        self._socket.close()

    def _serve(self) -> None:
        while True:
            connection = accept_next(self._socket, _LEAST_INTERVAL)
            if connection is None:
                return
            with connection, contextlib.suppress(OSError):
                connection.settimeout(_SEND_SECONDS)
                if peer_uid(connection) == os.geteuid():
                    connection.sendall(self._make_answer())

    def _make_answer(self) -> bytes:
        now = time.monotonic()
        if not self._answer or now - self._answered >= _LEAST_INTERVAL:
            try:
                found = describe()
            except Exception as error:  # said to who asks: the program is not concerned
                found = {"pid": os.getpid(), "error": f"{type(error).__name__}: {error}"}
            self._answer = json.dumps(found).encode()
            self._answered = time.monotonic()
        return self._answer


_lock = threading.Lock()
_listener: Optional[_Listener] = None
_has_told = False


def _after_fork() -> None:
    global _listener, _lock
    _lock = threading.Lock()
    if _listener is not None:
        _listener.forget()
        _listener = None


os.register_at_fork(after_in_child=_after_fork)


def listen() -> Path:
    """Lets `ductile-gpu top` of the same user look into this process. Doing it again does nothing.

    It shows what `allocators` gives. A thread waits at a socket that only this user can open, and
    costs nothing until a viewer comes: then the blocks are walked, at most five times a second.
    DUCTILE_LIVE=1 in the environment and `ductile-gpu run --live` do the same without a change to
    the program.

    Returns:
        The socket, which goes with the process.

    Raises:
        OSError: it cannot be made, or its folder is not this user's alone.
    """
    global _listener
    with _lock:
        if _listener is None:
            _listener = _Listener()
        return _listener.path


def stop() -> None:
    """Ends what `listen` began."""
    global _listener
    with _lock:
        if _listener is not None:
            _listener.close()
            _listener = None


atexit.register(stop)


def listen_if_asked() -> None:
    """What DUCTILE_LIVE wants. A program is not ended because it cannot be watched; it says so
    once, the first of many ranks for all."""
    global _has_told
    if not is_on(VARIABLE):
        return
    try:
        listen()
    except OSError as error:
        if not _has_told and is_first_rank():
            say(f"WARNING: {VARIABLE}: `ductile-gpu top` cannot look into this process: {error}")
        _has_told = True


on_first_use(listen_if_asked)
