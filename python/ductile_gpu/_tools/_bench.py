# SPDX-License-Identifier: Apache-2.0
"""The ductile-bench command: the program that the package carries, and arguments for it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Optional

from ductile_gpu._binding import _native


def replay_arguments(
    gpu: Optional[int], capacity: Optional[str], settings: Sequence[str]
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
