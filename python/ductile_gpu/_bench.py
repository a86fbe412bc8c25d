# SPDX-License-Identifier: Apache-2.0
"""The ductile-bench command: the program that the package carries, with the arguments as given."""

from __future__ import annotations

import os
import sys

from ductile_gpu import _native


def main() -> int:
    """Becomes ductile-bench."""
    path = str(_native.bench_path())
    try:
        os.execv(path, ["ductile-bench", *sys.argv[1:]])
    except OSError as error:
        print(f"ductile-bench: {path} cannot be run: {error.strerror}", file=sys.stderr)
        return 1
