# SPDX-License-Identifier: Apache-2.0
"""run: runs a script unchanged with Ductile as PyTorch's allocator. Extras add ways to run."""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Optional

import ductile_gpu_start
from ductile_gpu import _extras
from ductile_gpu._process import _live, _notes, _share
from ductile_gpu._process._children import inherit
from ductile_gpu._tools._cli.common import (
    MISUSED,
    Failure,
    add_settings,
    read_settings,
)
from ductile_gpu._tools._cli.script import add_script_arguments, check_script, run_script
from ductile_gpu._tools._sizes import in_bytes
from ductile_gpu_words import say

SUMMARY = "Run a script with Ductile as PyTorch's allocator."
_OWN = """\
Runs SCRIPT unchanged, as python would, with Ductile in place of PyTorch's allocator: what
ductile_gpu.torch.enable() does in the first line of a program. The Python programs it starts run on
Ductile too. Options come before the script.

The exit status is the script's. Where that is 0 and another allocator served GPU memory to PyTorch,
in the script or in a Python that it started, it is 1, and a line says why.

  ductile-gpu run train.py --epochs 1
  ductile-gpu run --set limit_bytes=40G --summary train.py
  ductile-gpu run --live train.py           # and, elsewhere: ductile-gpu top"""
DESCRIPTION = "\n\n".join([_OWN, *(module.DESCRIPTION for module in _extras.run_modules())])


class _Missing(argparse.Action):
    """An option of an extra that is not installed."""

    def __call__(self, *_: object, **__: object) -> None:
        raise Failure(str(self.metavar), MISUSED)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    add_settings(parser)
    parser.add_argument(
        "--summary", action="store_true", help="Say at the end what was live and what was held."
    )
    parser.add_argument(
        "--live", action="store_true", help="Let `ductile-gpu top` look into it while it runs."
    )
    parser.add_argument(
        "--spill",
        metavar="BYTES",
        help="Rather than refuse a request serve it by so much memory of the host at most, such as "
        "32G or 25%%: --set spill_bytes=BYTES.",
    )
    for module in _extras.run_modules():
        module.add_arguments(parser)
    for option, why in _extras.missing_run_options().items():
        parser.add_argument(option, action=_Missing, nargs=0, metavar=why, help=argparse.SUPPRESS)
    add_script_arguments(parser)


def _summarise() -> None:
    for device, allocator in sorted(_share.by_device().items()):
        stats = allocator.stats()
        say(
            f"GPU {device}: at the peak {in_bytes(stats.allocated_peak_bytes)} live, "
            f"{in_bytes(stats.reserved_peak_bytes)} held; {stats.allocs:,} allocations"
        )


def _judge(folder: Path) -> int:
    """Says who served the script's GPU memory and its children's, from their notes. Returns 1 where
    it was another allocator."""
    notes = _notes.read(folder)
    if not notes:
        say("no process of this run used GPU memory through PyTorch: Ductile served nothing")
    others = [note for note in notes if note.mode == "off"]
    for note in others:
        say(f"another allocator served process {note.pid} ({note.command}): {note.problem}")
    return 1 if others else 0


def _wanted_mode() -> str:
    """The one of DUCTILE_TORCH; this command itself asks for Ductile, so 0 is none."""
    mode = ductile_gpu_start.wanted_mode() or "auto"
    try:
        ductile_gpu_start.check_mode(mode)
    except ValueError as error:
        raise Failure(str(error), MISUSED) from None
    return mode


def _run(options: argparse.Namespace, settings: Mapping[str, Any], notes: Path) -> int:
    problem: Optional[Exception] = None

    def failed(error: Exception) -> None:
        nonlocal problem
        problem = error
        raise SystemExit(1) from error

    def enable(torch: ModuleType) -> None:
        if torch.version.cuda is None:
            return
        try:
            from ductile_gpu.torch import _start  # which needs torch

            _start.begin(mode, failed)
        except Exception as error:
            failed(error)

    mode = _wanted_mode()
    inherit(os.environ, mode, settings, notes)
    if options.live:
        os.environ[_live.VARIABLE] = "1"
    ductile_gpu_start.when_torch_is_imported(enable)
    status = run_script(options.script, options.module, options.arguments)
    if problem is not None:
        raise Failure(f"PyTorch was not switched to Ductile: {problem}")
    _notes.take_back(os.getpid())
    judged = _judge(notes)
    if options.summary:
        _summarise()
    return status or judged


def main(options: argparse.Namespace) -> int:
    """Returns the script's exit status; 1 where it is 0 and another allocator served GPU memory."""
    spill = [f"spill_bytes={options.spill}"] if options.spill else []
    settings = read_settings([*options.set, *spill])
    for module in _extras.run_modules():
        status = module.main(options, settings)
        if status is not None:
            return int(status)
    check_script(options.script, options.module)
    with tempfile.TemporaryDirectory(prefix="ductile-run-") as folder:
        return _run(options, settings, Path(folder))
