# SPDX-License-Identifier: Apache-2.0
"""python -m ductile_gpu.torch build: compiles the adapter ahead of time."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Optional

from ductile_gpu.torch import _build


def main(arguments: Optional[list[str]] = None) -> int:
    """Runs one command; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m ductile_gpu.torch")
    commands = parser.add_subparsers(dest="command", required=True)
    build = commands.add_parser("build", help="compile the adapter for the installed PyTorch")
    build.add_argument(
        "--output", type=Path, help="the file; name it in DUCTILE_TORCH_ADAPTER when running"
    )
    given = parser.parse_args(arguments)
    try:
        torch = _build.describe_torch()
        print(_build.build(torch, given.output and given.output.absolute(), again=True))
    except (_build.BuildError, ImportError) as error:
        print(f"ductile_gpu.torch: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
