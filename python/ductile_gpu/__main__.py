# SPDX-License-Identifier: Apache-2.0
"""The command line: ductile-gpu COMMAND."""

from __future__ import annotations

import argparse
import os
import sys
from types import ModuleType
from typing import Optional

import ductile_gpu
from ductile_gpu._cli import doctor, export, info, plot, record, replay, report, run, top
from ductile_gpu._cli.common import INTERRUPTED, PROGRAM, Failure, say

COMMANDS: dict[str, ModuleType] = {
    "record": record,
    "replay": replay,
    "report": report,
    "plot": plot,
    "export": export,
    "run": run,
    "doctor": doctor,
    "top": top,
    "info": info,
}


def make_parser() -> argparse.ArgumentParser:
    """The commands and their options."""
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description="A memory allocator for NVIDIA GPUs whose segments grow rather than fragment.",
        epilog=f"{PROGRAM} COMMAND --help shows a command's options.",
    )
    version = f"{PROGRAM} {ductile_gpu.__version__}"
    parser.add_argument("--version", action="version", version=version)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, module in COMMANDS.items():
        command = commands.add_parser(
            name,
            help=module.SUMMARY,
            description=module.DESCRIPTION,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(command)
    return parser


def main(arguments: Optional[list[str]] = None) -> int:
    """Runs one command; returns the exit status: 0 done, 1 something failed, 2 misused."""
    parser = make_parser()
    options = parser.parse_args(arguments)
    if options.command is None:
        parser.print_help()
        return 0
    try:
        status = int(COMMANDS[options.command].main(options))
        if sys.stdout is not None and not sys.stdout.closed:
            sys.stdout.flush()
        return status
    except BrokenPipeError:  # the reader has seen enough, as head has
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Failure as failure:
        say(str(failure))
        return failure.status
    except KeyboardInterrupt:
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
