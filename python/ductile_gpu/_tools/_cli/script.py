# SPDX-License-Identifier: Apache-2.0
"""Runs a user's script as Python would."""

from __future__ import annotations

import argparse
import os
import runpy
import signal
import sys
import traceback
from types import FrameType
from typing import Any, Optional

from ductile_gpu._tools._cli.common import INTERRUPTED, MISUSED, Failure
from ductile_gpu_words import say


def add_script_arguments(parser: argparse.ArgumentParser) -> None:
    """SCRIPT and all that follows it, or -m MODULE."""
    parser.add_argument(
        "-m",
        dest="module",
        action="store_true",
        help="SCRIPT is the name of a module, as with python -m.",
    )
    parser.add_argument("script", metavar="SCRIPT", help="The program to run.")
    parser.add_argument(
        "arguments", metavar="ARGUMENT", nargs=argparse.REMAINDER, help="Its own arguments."
    )


def _terminate(_number: int, _frame: Optional[FrameType]) -> None:
    raise SystemExit(128 + signal.SIGTERM)


def _exit_status(code: Any) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code
    if sys.stderr is not None:  # print() would take standard output for none
        print(code, file=sys.stderr)
    return 1


_OURS = (__file__, runpy.__file__, "<frozen runpy>")


def _print_error(error: BaseException) -> None:
    """The traceback of the script, without the frames that are ours."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename in _OURS:
        trace = trace.tb_next
    # Of a script that does not compile only the error itself is left.
    if sys.stderr is not None:
        traceback.print_exception(type(error), error, trace)


def _execute(script: str, is_module: bool, arguments: list[str]) -> None:
    sys.argv = [script, *arguments]
    if is_module:
        sys.path.insert(0, os.getcwd())
        runpy.run_module(script, run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, os.path.dirname(os.path.realpath(script)))
        runpy.run_path(script, run_name="__main__")


def check_script(script: str, is_module: bool) -> None:
    """Refuses what cannot be run, before anything else is done."""
    if not is_module and not os.path.isfile(script):
        raise Failure(f"{script}: no such file; the script comes after the options", MISUSED)


def run_script(script: str, is_module: bool, arguments: list[str]) -> int:
    """Runs it to its end, however it ends, and returns the exit status it would have had."""
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _terminate)
    try:
        _execute(script, is_module, arguments)
    except SystemExit as error:
        return _exit_status(error.code)
    except KeyboardInterrupt:
        say("interrupted")
        return INTERRUPTED
    except BaseException as error:
        _print_error(error)
        return 1
    return 0
