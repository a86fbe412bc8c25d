# SPDX-License-Identifier: Apache-2.0
"""Which Python a command line runs. Nothing of it is run to find out."""

from __future__ import annotations

import itertools
import os
import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import NamedTuple, Optional

_PYTHON = re.compile(r"(python|pypy)[0-9.]*t?$")


class Program(NamedTuple):
    """A command line, as far as it can be told."""

    python: Optional[str]
    """the interpreter; None where no word names one"""
    flags: tuple[str, ...]
    """the interpreter's own, such as -I"""
    launchers: tuple[str, ...]
    """programs in another language that stand before it: mpirun, sudo"""
    script: Optional[str]


def _is_python(path: str) -> bool:
    return _PYTHON.match(os.path.basename(path)) is not None


def _command_of_script(path: str) -> list[str]:
    """What the first line of a file has it run by; empty for a binary."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            first, second = file.readline(1000), file.readline(1000)
        words = shlex.split(first[2:]) if first.startswith("#!") else []
        # What installers write where the interpreter's path is too long for the first line.
        if words and os.path.basename(words[0]) == "sh" and "exec" in second:
            words = shlex.split(second)[1:]
    except (OSError, ValueError):
        return []
    if words and os.path.basename(words[0]) == "env":
        own = itertools.dropwhile(lambda word: word.startswith("-") or "=" in word, words[1:])
        words = list(own)
    return words


def _flags(words: list[str]) -> tuple[str, ...]:
    """The interpreter's options, up to what it is to run."""
    found = []
    at = 0
    while at < len(words) and words[at].startswith("-") and words[at] != "-":
        word = words[at]
        ends = re.search("[mc]", word)  # what follows is a module or code
        if ends is not None and word[1] not in "XW-":
            found += ["-" + word[1 : ends.start()]] if ends.start() > 1 else []
            break
        found.append(word)
        if word in ("-X", "-W"):
            found.append(words[at + 1] if at + 1 < len(words) else "")
            at += 1
        at += 1
    return tuple(found)


def _named(word: str) -> Optional[str]:
    """The program that a word names, as the shell would find it."""
    found = shutil.which(word)
    return found if found is not None or not os.path.isfile(word) else word


def resolve(words: list[str]) -> Optional[Program]:
    """The first word that is a Python, or a program written in it. None: there is no program."""
    scripts = (word for word in words if word.endswith(".py") and os.path.isfile(word))
    script = next(scripts, None)
    launchers: list[str] = []
    for at, word in enumerate(words):
        path = None if word.startswith("-") else _named(word)
        if path is None:
            if at == 0:
                return None
            continue
        if _is_python(path):
            return Program(path, _flags(words[at + 1 :]), tuple(launchers), script)
        command = _command_of_script(path)
        python = shutil.which(command[0]) if command else None
        if python is not None and _is_python(python):
            return Program(python, _flags(command[1:]), tuple(launchers), script)
        if word.endswith(".py"):
            return Program(sys.executable, (), tuple(launchers), script)
        if os.access(path, os.X_OK):
            launchers.append(Path(path).name)
    return Program(None, (), tuple(launchers), script)
