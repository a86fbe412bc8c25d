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


def shown(text: str) -> str:
    """A text that others may have written, as one line for a terminal: what is no visible character
    (commands, line ends, turned directions, bytes that are no text) is written as in Python."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def say(line: str) -> None:
    """One line on standard error; a program without one is not disturbed."""
    text = shown(line.replace("\n  ", "; "))  # details of an exception
    try:
        sys.stderr.write(f"ductile-gpu: {text}\n")  # print() would take standard output for none
        sys.stderr.flush()
    except (AttributeError, OSError, ValueError):
        return
