# SPDX-License-Identifier: Apache-2.0
"""keep: an owner process, which keeps the memory of tags alive while its users come and go."""

from __future__ import annotations

import argparse
import json
import os
import signal
from typing import Any

from ductile_gpu import Error
from ductile_gpu.handover._keep import Keeper, ask, default_path
from ductile_gpu.interface import Failure, in_bytes, show
from ductile_gpu_words import say

SUMMARY = "Keep the memory of tags alive across restarts of those who use it."
DESCRIPTION = """\
Keeps the memory of tags (ductile_gpu.keep_tag) while trainers and generators come and go. It
holds descriptors alone: no driver is opened, and no memory of the GPU is its own. It takes a file
descriptor for each handle, and raises its own limit as far as it may.

  ductile-gpu keep &                   # until it is ended
  ductile-gpu keep --status            # what it keeps, and who uses it
  ductile-gpu keep --drop weights      # what no process uses

Only processes of the same user are served. When it ends, the driver frees what no process maps."""

FORMAT = 1  # of what --json prints; see commands.schema.json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument(
        "--socket", metavar="PATH", help=f"Where it listens. Default: {default_path()}."
    )
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--status", action="store_true", help="Print what it keeps, and end.")
    group.add_argument("--json", action="store_true", help="Print what it keeps as JSON, and end.")
    group.add_argument("--drop", metavar="TAG", help="Have it drop a tag, and end.")


def _line(tag: str, found: dict[str, Any]) -> str:
    writer = f"writer {found['writer']}" if found["writer"] is not None else "no writer"
    readers = ", ".join(map(str, found["readers"])) or "none"
    held = f"{in_bytes(found['bytes'])}, layout {found['layout']:#018x}"
    is_torn = found["epoch"] % 2 != 0 and found["writer"] is None
    torn = ": a writer ended while it wrote" if is_torn else ""
    return (
        f"{tag}: {found['state']}, {held}, {writer}, readers: {readers}; "
        f"epoch {found['epoch']}{torn}"
    )


def _serve(path: Any) -> int:
    try:
        keeper = Keeper(path)
    except (Error, OSError) as error:
        raise Failure(str(error)) from None

    def end(*_: object) -> None:
        keeper.close()

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    say(f"keeps tags at {keeper.path} (process {os.getpid()})")
    keeper.serve()
    return 0


def main(options: argparse.Namespace) -> int:
    """Serves until it is ended, or asks the one that serves."""
    try:
        if options.drop is not None:
            ask(options.socket, {"do": "drop", "tag": options.drop})
        elif options.status or options.json:
            tags = ask(options.socket, {"do": "status"})["tags"]
            if options.json:
                show(json.dumps({"format": FORMAT, "tags": tags}))
            else:
                lines = [_line(tag, found) for tag, found in sorted(tags.items())]
                show(*(lines or ["it keeps nothing"]))
        else:
            return _serve(options.socket)
    except (Error, OSError) as error:
        raise Failure(str(error)) from None
    return 0
