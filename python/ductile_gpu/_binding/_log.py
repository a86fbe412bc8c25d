# SPDX-License-Identifier: Apache-2.0
"""What libductile says goes to the logger "ductile_gpu", and into the exception of the call."""

from __future__ import annotations

import logging
import threading
from typing import Optional

from ductile_gpu._binding._abi import LogLevel, ductile_log_fn
from ductile_gpu._binding._errors import error_from_status

logger = logging.getLogger("ductile_gpu")
logger.addHandler(logging.NullHandler())

_LEVELS = {
    LogLevel.ERROR: logging.ERROR,
    LogLevel.WARNING: logging.WARNING,
    LogLevel.INFO: logging.INFO,
}
_MOST_LINES = 64


class _Said(threading.local):
    """The lines of the calls that this thread is in. The library logs in the caller's thread."""

    def __init__(self) -> None:
        self.lines: list[str] = []


_said = _Said()


def forget() -> None:
    """Before a call: what earlier ones said does not explain it."""
    if _said.lines:
        _said.lines.clear()


def take() -> tuple[str, ...]:
    """After a refused call: what it said."""
    lines = tuple(_said.lines)
    _said.lines.clear()
    return lines


def check(status: int, what: str) -> None:
    """Raises the exception for a refused call, with what it said."""
    if status:
        raise error_from_status(status, what, take())


def _hear(_user: Optional[int], level: int, text: Optional[bytes]) -> None:
    line = (text or b"").decode("utf-8", "replace")
    if level <= LogLevel.WARNING and len(_said.lines) < _MOST_LINES:
        _said.lines.append(line)
    logger.log(_LEVELS.get(LogLevel(level), logging.INFO), "%s", line)


# Lives as long as the process: any allocator may call it.
callback = ductile_log_fn(_hear)
