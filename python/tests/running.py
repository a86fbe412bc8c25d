# SPDX-License-Identifier: Apache-2.0
"""Programs in processes of their own, as tests start them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Optional

Answer = subprocess.CompletedProcess[str]


def run(
    *words: object,
    folder: Optional[Path] = None,
    without: tuple[str, ...] = (),
    seconds: float = 300,
    **environment: Any,
) -> Answer:
    """Runs a program to its end, without variables whose names begin so, and with these."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(without)}
    return subprocess.run(
        [str(word) for word in words],
        cwd=folder,
        env={**kept, **{name: str(value) for name, value in environment.items()}},
        capture_output=True,
        text=True,
        timeout=seconds,
    )


def python(*words: object, **how: Any) -> Answer:
    return run(sys.executable, *words, **how)


def ductile_gpu(*words: object, **how: Any) -> Answer:
    """The command."""
    return python("-m", "ductile_gpu", *words, **how)
