# SPDX-License-Identifier: Apache-2.0
"""The command line: python -m ductile COMMAND."""

from __future__ import annotations

import argparse
import sys
from typing import Optional

import ductile

PROGRAM = "python -m ductile"


def make_parser() -> argparse.ArgumentParser:
    """The commands and their options."""
    parser = argparse.ArgumentParser(
        prog=PROGRAM, description="A memory allocator for NVIDIA GPUs whose segments grow."
    )
    parser.add_argument("--version", action="version", version=f"ductile {ductile.__version__}")
    return parser


def main(arguments: Optional[list[str]] = None) -> int:
    """Runs one command; returns the exit status."""
    parser = make_parser()
    parser.parse_args(arguments)
    parser.print_help()
    return 0


if __name__ == "__main__":
    sys.exit(main())
