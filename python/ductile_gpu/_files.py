# SPDX-License-Identifier: Apache-2.0
"""Files that are written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["replacing"]


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Where to write what is to be at `path`: an older file stays until the new one is complete,
    and when it does not get there, nothing is left of it. A device or a pipe, such as /dev/null, is
    written to, and not replaced."""
    if path.exists() and not path.is_file():
        yield path
        return
    part = path.with_name(f".{os.getpid()}.{path.name}")
    try:
        yield part
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
