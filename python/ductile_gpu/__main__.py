# SPDX-License-Identifier: Apache-2.0
"""The command line: ductile-gpu COMMAND."""

from __future__ import annotations

import argparse
import difflib
import errno
import os
import sys
from types import ModuleType
from typing import Any, Optional

from ductile_gpu import _extras
from ductile_gpu._binding import _abi
from ductile_gpu._tools._cli import (
    completion,
    demo,
    doctor,
    info,
    record,
    replay,
    report,
    run,
    top,
)
from ductile_gpu._tools._cli.common import (
    INTERRUPTED,
    MISUSED,
    PROGRAM,
    Failure,
    standard_output,
)
from ductile_gpu_words import say

COMMANDS: dict[str, ModuleType] = {
    "demo": demo,
    "record": record,
    "replay": replay,
    "report": report,
    "run": run,
    "doctor": doctor,
    "top": top,
    **_extras.commands(),
    "info": info,
    "completion": completion,
}


_EPILOG = f"""\
Where to begin:

  {PROGRAM} demo                      # a run that only Ductile completes, without a GPU
  {PROGRAM} report snapshot.pickle    # a snapshot of PyTorch's: why it ran out, and what would fit
  {PROGRAM} doctor train.py           # will Ductile serve this program here?
  {PROGRAM} run train.py              # the same program, on Ductile

{PROGRAM} COMMAND --help shows the options of a command."""


class _Parser(argparse.ArgumentParser):
    """argparse writes its help without a word about a disk that is full, and not in sentences."""

    def __init__(self, **of: Any) -> None:
        super().__init__(add_help=False, **of)
        self.add_argument("-h", "--help", action="help", help="Show this help and end.")

    def print_help(self, file: Any = None) -> None:
        (file or standard_output()).write(self.format_help())


def make_parser() -> argparse.ArgumentParser:
    """The commands and their options."""
    parser = _Parser(
        prog=PROGRAM,
        description="Ductile allocates GPU memory, and moves what is free to where it is needed.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    version = f"{PROGRAM} {_abi.VERSION}"
    shown = "Show the version and end."
    parser.add_argument("-V", "--version", action="version", version=version, help=shown)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    parser.set_defaults(parser=parser, commands=commands.choices)  # for `completion`
    for name, module in COMMANDS.items():
        command = commands.add_parser(
            name,
            help=module.SUMMARY,
            description=module.DESCRIPTION,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(command)
    return parser


# What writing to a full disk, or to a closed or broken device, answers.
_OUTPUT_FAILS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)


def _check_command(word: str) -> None:
    """What is no command is answered in a line, with the one that was meant."""
    if word.startswith("-") or word in COMMANDS:
        return
    if word in _extras.COMMANDS:
        raise Failure(_extras.say_missing(f"'{word}'", _extras.COMMANDS[word]), MISUSED)
    close = difflib.get_close_matches(word, COMMANDS, 1)
    meant = f"did you mean {close[0]}?" if close else f"there are {', '.join(COMMANDS)}"
    raise Failure(f"'{word}' is no command: {meant}", MISUSED)


def _run(arguments: Optional[list[str]]) -> int:
    given = sys.argv[1:] if arguments is None else arguments
    for word in given[:1]:
        _check_command(word)
    parser = make_parser()
    options = parser.parse_args(given)
    if options.command is None:
        parser.print_help()
        return 0
    return int(COMMANDS[options.command].main(options))


def _flush() -> None:
    if sys.stdout is not None and not sys.stdout.closed:
        sys.stdout.flush()


def _drop_output() -> None:
    """What could not be written is not tried again at the interpreter's end."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main(arguments: Optional[list[str]] = None) -> int:
    """Runs one command; returns the exit status: 0 done, 1 something failed, 2 misused."""
    try:
        try:
            return _run(arguments)
        finally:
            _flush()
    except BrokenPipeError:  # the reader has seen enough, as head has
        _drop_output()
        return 1
    except OSError as error:
        if error.filename is not None or error.errno not in _OUTPUT_FAILS:
            raise
        _drop_output()
        say(f"standard output cannot be written: {error.strerror}")
        return 1
    except Failure as failure:
        say(str(failure))
        return failure.status
    except KeyboardInterrupt:
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
