# SPDX-License-Identifier: Apache-2.0
"""What Ductile's Python says on standard error, and how it reads a variable of the environment.

It stands beside the package and imports nothing of it: the start-up hook has to say why the package
could not be imported.
"""

from __future__ import annotations

import os
import sys

OFF = frozenset(("", "0", "off", "no", "false"))


def is_on(variable: str) -> bool:
    """Does the environment ask for what this variable stands for?"""
    return os.environ.get(variable, "").strip().lower() not in OFF


def one_line(error: BaseException) -> str:
    """What an exception says, or what it is where it says nothing."""
    return " ".join(str(error).split()) or type(error).__name__


def say(line: str) -> None:
    """One line on standard error; a program without one is not disturbed."""
    try:
        print(f"ductile-gpu: {line}", file=sys.stderr, flush=True)
    except (AttributeError, OSError, ValueError):
        return
