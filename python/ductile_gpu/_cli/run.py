# SPDX-License-Identifier: Apache-2.0
"""run: runs a script unchanged with Ductile as PyTorch's allocator."""

from __future__ import annotations

import argparse
import importlib
import os
from collections.abc import Mapping
from ctypes import byref
from types import ModuleType
from typing import Any, Optional

import ductile_gpu
from ductile_gpu import _abi, _live
from ductile_gpu._children import inherit
from ductile_gpu._cli.common import MISUSED, Failure, add_settings, in_bytes, read_settings, say
from ductile_gpu._cli.script import (
    add_script_arguments,
    check_script,
    run_script,
    when_torch_is_imported,
)
from ductile_gpu._core import set_option
from ductile_gpu._native import lib

SUMMARY = "run a script with Ductile as PyTorch's allocator"
DESCRIPTION = """\
Runs SCRIPT unchanged, as python would, with Ductile in place of PyTorch's allocator: what
ductile_gpu.torch.enable() does in the first line of a program. The Python programs it starts run on
Ductile too. Options come before the script.

  ductile-gpu run train.py --epochs 1
  ductile-gpu run --set limit_bytes=40G --summary train.py
  ductile-gpu run --live train.py           # and, elsewhere: ductile-gpu top"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    add_settings(parser)
    parser.add_argument(
        "--summary", action="store_true", help="at the end, say what was live and what was held"
    )
    parser.add_argument(
        "--live", action="store_true", help="let `ductile-gpu top` look into it while it runs"
    )
    add_script_arguments(parser)


def _summarise() -> None:
    for device, allocator in sorted(ductile_gpu.allocators().items()):
        stats = allocator.stats()
        say(
            f"GPU {device}: at the peak {in_bytes(stats.allocated_peak_bytes)} live, "
            f"{in_bytes(stats.reserved_peak_bytes)} held; {stats.allocs:,} allocations"
        )


def _check_settings(settings: Mapping[str, Any]) -> None:
    """Refuses at once what would be refused when the script imports torch."""
    probe = _abi.ductile_options()
    lib.ductile_options_init(byref(probe))
    try:
        for key, value in settings.items():
            set_option(probe, key, value)
    except ductile_gpu.InvalidArgument as error:
        raise Failure(f"--set: {error}", MISUSED) from None


def main(options: argparse.Namespace) -> int:
    """Returns the script's exit status."""
    check_script(options.script, options.module)
    settings: dict[str, Any] = dict(read_settings(options.set))
    _check_settings(settings)
    problem: Optional[Exception] = None
    asked = False

    def enable(_torch: ModuleType) -> None:
        nonlocal problem, asked
        asked = True
        try:
            importlib.import_module("ductile_gpu.torch").enable(**settings)
        except Exception as error:
            problem = error
            raise SystemExit(1) from error

    inherit(os.environ, options=settings)
    if options.live:
        os.environ[_live.VARIABLE] = "1"
    when_torch_is_imported(enable)
    status = run_script(options.script, options.module, options.arguments)
    if problem is not None:
        raise Failure(f"PyTorch was not switched to Ductile: {problem}")
    if not asked:
        say("the script did not import torch: Ductile served nothing")
    elif options.summary:
        _summarise()
    return status
