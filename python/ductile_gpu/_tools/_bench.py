# SPDX-License-Identifier: Apache-2.0
"""The ductile-bench command: the program that the package carries, and arguments for it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Optional

from ductile_gpu._binding import _native


class BenchError(Exception):
    """It has failed; what it said last."""

    def __init__(self, said: str, command: str, status: int = 1) -> None:
        lines = said.strip().splitlines() or [f"ductile-bench {command} failed"]
        super().__init__(lines[-1].removeprefix("ductile-bench: "))
        self.status = status


def ask_bench(command: str, *arguments: str) -> str:
    """What it prints. Raises BenchError."""
    words = [str(_native.bench_path()), command, *arguments]
    done = subprocess.run(
        words, capture_output=True, encoding="utf-8", errors="replace", check=False
    )
    if done.returncode != 0:
        raise BenchError(done.stderr, command, done.returncode)
    return done.stdout


def replay_arguments(
    gpu: Optional[int], capacity: Optional[str] = None, settings: Sequence[str] = ()
) -> list[str]:
    """For ductile-bench: on what a recording is replayed, and which part of it."""
    arguments = []
    if capacity is not None:
        arguments += ["--capacity", capacity]
    if gpu is not None:
        arguments += ["--gpu", str(gpu)]
    for setting in settings:
        arguments += ["--set", setting]
    return arguments


def main() -> int:
    """Becomes ductile-bench."""
    path = str(_native.bench_path())
    try:
        os.execv(path, ["ductile-bench", *sys.argv[1:]])
    except OSError as error:
        print(f"ductile-bench: {path} cannot be run: {error.strerror}", file=sys.stderr)
        return 1
