# SPDX-License-Identifier: Apache-2.0
"""What of a process's memory lies in the host, and which code holds most of it."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ductile_gpu._binding._core import Allocator
from ductile_gpu._tools._report import _frames
from ductile_gpu._tools._report._words import requests
from ductile_gpu._tools._sizes import in_bytes


def stacks_of(snapshot: Path) -> dict[int, str]:
    """Of the blocks that PyTorch's snapshot has, by address; those without a stack have none."""
    with open(snapshot, "rb") as file:
        segments: list[dict[str, Any]] = pickle.load(file)["segments"]
    found = {}
    for segment in segments:
        at = segment["address"]
        for block in segment["blocks"]:
            frames = (f"{f['name']} {f['filename']}:{f['line']}" for f in block.get("frames", ()))
            found[at] = "\n".join(frames)
            at += block["size"]
    return {address: stack for address, stack in found.items() if stack}


def spilled(allocator: Allocator, stacks: Mapping[int, str]) -> str:
    """In words: how much now, how many requests so far, and whose most of it is; "" where nothing
    has spilled. Pre: it is open, and stays so."""
    stats = allocator.stats()
    if stats.spills == 0:
        return ""
    held = stats.reserved_bytes + stats.spilled_bytes
    spilled_now = f"{in_bytes(stats.spilled_bytes)} of {in_bytes(held)} from the host"
    said = f"{spilled_now}, {requests(stats.spills)}"
    holders: Counter[str] = Counter()
    for block in allocator.blocks():
        if block.spilled_bytes > 0 and block.address in stacks:
            holders[str(_frames.name_of(stacks[block.address]))] += block.spilled_bytes
    most = "".join(f", most by `{name}`" for name, _ in holders.most_common(1))
    return said + most
