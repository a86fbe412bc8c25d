# SPDX-License-Identifier: Apache-2.0
"""Files that are written whole or not at all."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_MOST_LINKS = 40


def _owner(path: Path) -> int:
    return path.lstat().st_uid


def _refuse_planted(path: Path) -> None:
    """Where others may write, only what is one's own and the folder's owner's is written through,
    as Linux has it for links with fs.protected_symlinks: of links, pipes, sockets and devices."""
    folder = path.parent.stat()
    is_shared = folder.st_mode & (stat.S_IWOTH | stat.S_IWGRP)
    if is_shared and _owner(path) not in (os.geteuid(), folder.st_uid):
        text = "another user made what is there, and it would get what is written"
        raise PermissionError(errno.EACCES, text, str(path))


def _follow(path: Path) -> Path:
    """What a link leads to, which is what writing to it would change. It need not be there."""
    for _ in range(_MOST_LINKS):
        if not path.is_symlink():
            return path
        _refuse_planted(path)
        path = path.parent / os.readlink(path)
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))


def _make_part(path: Path) -> Path:
    """A new file beside it, of a name that cannot be foreseen, as readable as the old one of this
    user; who made another's chose its mode."""
    part = path.with_name(f".{secrets.token_hex(8)}{path.suffix}")
    os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
    if path.exists() and _owner(path) == os.geteuid():
        part.chmod(stat.S_IMODE(path.stat().st_mode) & 0o777)
    return part


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Where to write what is to be at `path`: an older file stays until the new one is complete,
    and when it does not get there, nothing is left of it. A device or a pipe, such as /dev/null, is
    written to, and not replaced. What a link leads to is replaced, and the link stays.

    Raises OSError: also for what is no file and another user made where others may write."""
    target = _follow(path)
    if target.exists() and not target.is_file():
        _refuse_planted(target)
        yield target
        return
    part = _make_part(target)
    try:
        yield part
        os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)
