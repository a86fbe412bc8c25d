# SPDX-License-Identifier: Apache-2.0
"""An owner process: keeps the memory of tags alive while those who use it come and go.

It holds the descriptors alone: it opens no driver, has no CUDA context and takes no memory of the
GPU for itself. For each tag:

    EMPTY      no process has passed memory
    COMMITTED  there is memory; one writer and any number of readers may be connected

The connection is the lock. A process is the writer of a tag, or a reader, for as long as its
connection is open; when it ends, in whatever way, the kernel closes that, and the place is free.

On the wire: a request is a line of JSON, and so is the answer, with the descriptor of the tag's
epoch beside it; then the tag passes as from any process (ductile_handover.h).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import resource
import socket
import stat
import threading
import time
from collections.abc import Iterator, Mapping
from ctypes import byref
from pathlib import Path
from typing import Any, Optional, Union

from ductile_gpu import Allocator, Busy, NotLive, Status
from ductile_gpu.handover._epoch import Epoch
from ductile_gpu.handover._tags import (
    ImportedTag,
    TagExport,
    blocking,
    export_tag,
    import_tag,
    tag_bytes,
)
from ductile_gpu.interface import (
    Closes,
    StreamLike,
    abi,
    accept_next,
    check,
    check_peer,
    invalid,
    is_left,
    is_private,
    lib,
    socket_folder,
)

_LONGEST_REQUEST = 4096
_LONGEST_ANSWER = 1 << 24  # a line of some hundred bytes for each tag
_WORD_SECONDS = 60.0
_START_SECONDS = 5.0
_NAP_SECONDS = 0.1


def default_path() -> Path:
    """Where the owner of this user listens: in a folder that only this user may enter."""
    return socket_folder() / "keep.sock"


# ---- Lines -------------------------------------------------------------------------------------


def _send_line(
    connection: socket.socket, what: Mapping[str, Any], descriptor: Optional[int] = None
) -> None:
    line = json.dumps(what).encode() + b"\n"
    sent = socket.send_fds(connection, [line], [] if descriptor is None else [descriptor])
    if sent < len(line):
        connection.sendall(line[sent:])


def _receive_line(
    connection: socket.socket, longest: int
) -> tuple[Optional[dict[str, Any]], Optional[int]]:
    """A line and the descriptor beside it; None: the other side has closed. Never reads past it."""
    line = bytearray()
    found: list[int] = []
    try:
        while not line.endswith(b"\n"):
            byte, descriptors, _, _ = socket.recv_fds(connection, 1, 1)
            found += descriptors
            line += byte
            if not byte:
                return None, None
            if len(line) > longest:
                raise invalid(f"a line has at most {longest} bytes")
        return _read_line(line), found.pop(0) if found else None
    finally:
        for descriptor in found:
            os.close(descriptor)


def _read_line(line: bytearray) -> dict[str, Any]:
    """Nothing where it is no request."""
    try:
        read = json.loads(line)
    except ValueError:
        return {}
    return read if isinstance(read, dict) else {}


# ---- The owner ---------------------------------------------------------------------------------


class _Held:
    """The descriptors of one tag. Dropped with the last thread that passes it on."""

    def __init__(self, connection: socket.socket) -> None:
        self.pointer = ctypes.c_void_p()
        with blocking(connection, _WORD_SECONDS) as descriptor:
            status = lib.ductile_hold_tag(descriptor, 0, byref(self.pointer))
        check(status, "the tag cannot be kept")
        self.info = abi.ductile_held_info(struct_size=ctypes.sizeof(abi.ductile_held_info))
        lib.ductile_held_describe(self.pointer, byref(self.info))

    def pass_to(self, connection: socket.socket) -> None:
        with blocking(connection, _WORD_SECONDS) as descriptor:
            status = lib.ductile_pass_held_tag(self.pointer, descriptor)
        check(status, "the tag was not passed")

    def __del__(self) -> None:
        if self.pointer:
            lib.ductile_drop_held_tag(self.pointer)


class _Tag:
    """Guarded by the keeper's lock, but for what it points at."""

    def __init__(self) -> None:
        self.held: Optional[_Held] = None
        self.writer: Optional[int] = None  # process
        self.readers: list[int] = []
        self.epoch = Epoch()

    def describe(self) -> dict[str, Any]:
        info = self.held.info if self.held is not None else None
        return {
            "state": "empty" if info is None else "committed",
            "bytes": 0 if info is None else info.size,
            "layout": 0 if info is None else info.layout,
            "writer": self.writer,
            "readers": sorted(self.readers),
            "epoch": self.epoch.number,
        }


class Keeper:
    """Serves one socket; a thread for each connection.

    Args:
        path: of the socket. Its folder is made, for this user alone, if it is not there.

    Raises:
        Busy: another keeper listens there.
        FileExistsError: something else is there, which stays.
        OSError, PermissionError: no socket can be made there.
    """

    def __init__(self, path: Union[str, os.PathLike[str], None] = None) -> None:
        self.path = Path(path) if path is not None else default_path()
        self._tags: dict[str, _Tag] = {}
        self._changed = threading.Condition()
        self._socket = self._open()

    def _open(self) -> socket.socket:
        with contextlib.suppress(FileExistsError):
            self.path.parent.mkdir(mode=0o700, parents=True)
        if self.path.parent == default_path().parent and not is_private(self.path.parent):
            raise PermissionError(f"{self.path.parent} is not this user's alone")
        opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with _alone_in(self.path.parent):
                self._take_place(opened)
                self.path.chmod(0o600)
                opened.listen(64)
            self._inode = self.path.stat().st_ino
        except BaseException:
            opened.close()
            raise
        return opened

    def _take_place(self, opened: socket.socket) -> None:
        try:
            opened.bind(str(self.path))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            self._remove_if_left()
            opened.bind(str(self.path))

    def _remove_if_left(self) -> None:
        """The place of a keeper that was killed is free; that of one at work is not."""
        if not stat.S_ISSOCK(self.path.lstat().st_mode):
            raise FileExistsError(f"{self.path} is there already, and is no socket")
        if not is_left(self.path):
            raise Busy(Status.ERR_BUSY, f"another process keeps tags at {self.path}")
        self.path.unlink(missing_ok=True)

    def serve(self) -> None:
        """Until `close`, from another thread or a signal handler."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != hard:  # a descriptor for each handle
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        while True:
            connection = accept_next(self._socket, _NAP_SECONDS)
            if connection is None:
                return
            try:
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()
            except RuntimeError:  # no thread for now: what is kept stays
                connection.close()

    def close(self) -> None:
        """Listens no more; what it keeps goes when this process ends."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        with contextlib.suppress(FileNotFoundError):
            if self.path.lstat().st_ino == self._inode:  # it may be another keeper's by now
                self.path.unlink()

    # ---- One connection ------------------------------------------------------------------------

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            try:
                check_peer(connection)
                connection.settimeout(_WORD_SECONDS)
                request, unasked = _receive_line(connection, _LONGEST_REQUEST)
                connection.settimeout(None)
                if unasked is not None:
                    os.close(unasked)
                if request is not None:
                    self._answer(connection, request)
            except Exception as error:  # it ends this connection, and none of the others
                _send_line(connection, {"error": f"{error}"})

    def _answer(self, connection: socket.socket, request: dict[str, Any]) -> None:
        what, name = request.get("do"), request.get("tag")
        if what == "status":
            with self._changed:
                tags = {tag: found.describe() for tag, found in self._tags.items()}
            _send_line(connection, {"tags": tags})
        elif not isinstance(name, str) or what not in ("read", "write", "put", "drop"):
            raise invalid("no such request")
        elif what == "drop":
            self._drop(name)
            _send_line(connection, {})
        else:
            wait = request.get("wait")
            until = time.monotonic() + float(wait if wait is not None else 1e9)
            with self._place(connection, what, name, until) as tag:
                self._hand(connection, what, name, tag)
                _wait_for_end(connection)

    def _drop(self, name: str) -> None:
        with self._changed:
            tag = self._tags.get(name)
            if tag is None:
                raise invalid(f"no tag {name!r} is kept")
            if tag.writer is not None or tag.readers:
                raise invalid(f"tag {name!r} is in use: {tag.describe()}")
            del self._tags[name]
            tag.epoch.close()

    @contextlib.contextmanager
    def _place(self, connection: socket.socket, what: str, name: str, until: float) -> Any:
        """A writer's or a reader's, until the connection ends."""
        process = check_peer(connection)
        with self._changed:
            while not self._may_enter(what, name):
                left = until - time.monotonic()
                if left <= 0 or _has_ended(connection):
                    raise invalid(self._explain(what, name))
                self._changed.wait(min(left, _NAP_SECONDS))
            tag = self._tags.setdefault(name, _Tag()) if what == "put" else self._tags[name]
            if what == "read":
                tag.readers.append(process)
            else:
                tag.writer = process
        try:
            yield tag
        finally:
            with self._changed:
                if what == "read":
                    tag.readers.remove(process)
                else:
                    tag.writer = None
                if tag.held is None and not tag.readers:
                    self._tags.pop(name, None)
                self._changed.notify_all()

    def _may_enter(self, what: str, name: str) -> bool:
        tag = self._tags.get(name)
        if what == "put":
            return tag is None
        is_there = tag is not None and tag.held is not None
        return is_there and (what == "read" or tag is None or tag.writer is None)

    def _explain(self, what: str, name: str) -> str:
        tag = self._tags.get(name)
        if tag is None:
            return f"tag {name!r} is empty: no process has passed its memory"
        if what == "put" and tag.held is not None:
            return f"tag {name!r} is there already: open it to write, or drop it"
        return f"tag {name!r} is being written by process {tag.writer}"

    def _hand(self, connection: socket.socket, what: str, name: str, tag: _Tag) -> None:
        _send_line(connection, {"ready": what}, tag.epoch.fileno())
        if what != "put":
            assert tag.held is not None
            tag.held.pass_to(connection)
            return
        held = _Held(connection)
        if held.info.tag != tag_bytes(name):
            raise invalid(f"tag {held.info.tag.decode(errors='replace')!r} was passed for {name!r}")
        with self._changed:
            tag.held = held
            self._changed.notify_all()
        _send_line(connection, {"kept": held.info.layout})


@contextlib.contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """While a keeper starts no other one does: each would take the socket of the one before, which
    does not listen yet, for one that was left."""
    until = time.monotonic() + _START_SECONDS
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        while True:
            try:
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= until:
                    text = f"another process has locked {folder}"
                    raise Busy(Status.ERR_BUSY, text) from None
            time.sleep(_NAP_SECONDS)
        yield
    finally:
        os.close(opened)


def _has_ended(connection: socket.socket) -> bool:
    try:
        return connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def _wait_for_end(connection: socket.socket) -> None:
    connection.settimeout(None)
    with contextlib.suppress(OSError):
        while connection.recv(64):
            pass


# ---- Its clients -------------------------------------------------------------------------------


def ask(path: Union[str, os.PathLike[str], None], request: Mapping[str, Any]) -> dict[str, Any]:
    """One question to an owner. Raises OSError when none listens, InvalidArgument when refused."""
    with _connect(path) as connection:
        return _request(connection, request)[0]


def _connect(path: Union[str, os.PathLike[str], None]) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    place = Path(path) if path is not None else default_path()
    try:
        connection.connect(str(place))
        check_peer(connection)
    except OSError as error:
        connection.close()
        if isinstance(error, PermissionError) or error.errno is None:  # no path of a socket
            raise
        raise ConnectionError(f"no owner listens at {place}: start `ductile-gpu keep`") from error
    return connection


def _request(
    connection: socket.socket, request: Mapping[str, Any]
) -> tuple[dict[str, Any], Optional[int]]:
    _send_line(connection, request)
    return _read_answer(connection)


def _read_answer(connection: socket.socket) -> tuple[dict[str, Any], Optional[int]]:
    answer, descriptor = _receive_line(connection, _LONGEST_ANSWER)
    if answer is None:
        raise ConnectionError("the owner has ended")
    if "error" in answer:
        raise invalid(str(answer["error"]))
    return answer, descriptor


class KeptTag(Closes):
    """A place at a tag that an owner process keeps: the writer's, or a reader's.

    Attributes:
        epoch: orders the writer and the readers; see `Epoch`.
        imported: the tag as mapped here; None where this process passed the memory itself.
    """

    def __init__(
        self,
        connection: socket.socket,
        epoch: Epoch,
        imported: Optional[ImportedTag] = None,
        exported: Optional[TagExport] = None,
    ) -> None:
        self.epoch = epoch
        self.imported = imported
        self._exported = exported
        self._connection = connection

    @property
    def layout(self) -> int:
        """The hash of where everything lies."""
        known = self.imported if self.imported is not None else self._exported
        if known is None:
            raise NotLive(Status.ERR_NOT_LIVE, "the place is given up")
        return known.layout

    def close(self) -> None:
        """Unmaps the memory and gives the place up. A second call does nothing.

        Raises:
            As `ImportedTag.close`; then nothing is given up.
        """
        if self.imported is not None:
            self.imported.close()
        if self._exported is not None:
            self._exported.close()
        self._connection.close()
        self.epoch.close()


@contextlib.contextmanager
def _entered(
    path: Union[str, os.PathLike[str], None], do: str, tag: str, wait: Optional[float]
) -> Iterator[tuple[socket.socket, Epoch]]:
    """A connection that has the place at the tag; it ends where the block fails."""
    tag_bytes(tag)
    connection = _connect(path)
    try:
        _, descriptor = _request(connection, {"do": do, "tag": tag, "wait": wait})
        if descriptor is None:
            raise ConnectionError("the owner passed no epoch: is it of another version?")
        yield connection, Epoch(descriptor)
    except BaseException:
        connection.close()
        raise


def keep_tag(
    tag: str,
    names: Optional[Mapping[str, Any]] = None,
    *,
    path: Union[str, os.PathLike[str], None] = None,
    allocator: Optional[Allocator] = None,
    device: int = 0,
    wait: Optional[float] = 0.0,
) -> KeptTag:
    """Passes the memory of a tag to the owner process, and is its writer until `close`.

    The memory then outlives this process. A later one opens it with `open_kept(tag, write=True)`.

    Args:
        tag, names, allocator, device: as for `export_tag`.
        path: of the owner's socket; where `ductile-gpu keep` listens by default.
        wait: seconds to wait for another writer that is passing it; None: as long as it takes.

    Raises:
        InvalidArgument: the owner has the tag already.
        ConnectionError: no owner listens, or it ended.
        As `export_tag`.
    """
    with _entered(path, "put", tag, wait) as (connection, epoch):
        exported = export_tag(tag, connection, names, allocator=allocator, device=device)
        _read_answer(connection)
        return KeptTag(connection, epoch, exported=exported)


def open_kept(
    tag: str,
    *,
    write: bool = False,
    layout: Optional[int] = None,
    path: Union[str, os.PathLike[str], None] = None,
    stream: StreamLike = None,
    allocator: Optional[Allocator] = None,
    device: int = 0,
    wait: Optional[float] = 0.0,
) -> KeptTag:
    """Maps a tag that the owner process keeps, as a reader or as its only writer.

    Args:
        tag: its name.
        write, layout, stream, allocator, device: as for `import_tag`.
        path: of the owner's socket; where `ductile-gpu keep` listens by default.
        wait: seconds to wait until there is memory and, to write, no writer; None: as long as it
            takes.

    Raises:
        InvalidArgument: there is no memory, or another writer.
        ConnectionError: no owner listens, or it ended.
        As `import_tag`.
    """
    with _entered(path, "write" if write else "read", tag, wait) as (connection, epoch):
        imported = import_tag(
            connection,
            write=write,
            layout=layout,
            stream=stream,
            allocator=allocator,
            device=device,
        )
        return KeptTag(connection, epoch, imported)
