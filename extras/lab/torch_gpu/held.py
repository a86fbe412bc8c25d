# SPDX-License-Identifier: Apache-2.0
"""What Ductile holds at the moments at which it holds more than ever, by what it is: why that is
more than what is in use.

Imports nothing of Ductile: a process on PyTorch's own allocator has to be as its users have it.
"""

from __future__ import annotations

import bisect
import threading
from collections.abc import Iterable
from typing import Any

import costs

Row = dict[str, Any]
Handles = dict[int, int]  # address: bytes


def whole_bytes(starts: list[int], handles: Handles, begin: int, end: int) -> int:
    """Of the handles that lie within [begin, end)."""
    inside = starts[bisect.bisect_left(starts, begin) : bisect.bisect_left(starts, end)]
    return sum(handles[start] for start in inside if start + handles[start] <= end)


def shares(held: int, blocks: Iterable[Any], handles: Handles) -> Row:
    """What the held bytes are:

    live      all else: in use, and what the request that is being served gets
    pending   freed, and recorded on a stream that has not come to its end
    movable   free in handles that no block reaches into: they move once their stream is done
    stranded  free beside a block in the same handle: only what fits there can use it
    """
    found = dict.fromkeys(("pending", "movable", "stranded"), 0)
    starts = sorted(handles)
    for block in blocks:
        if block.state.name == "PENDING":
            found["pending"] += block.size
        elif block.state.name == "FREE":
            whole = whole_bytes(starts, handles, block.address, block.address + block.size)
            found["movable"] += whole
            found["stranded"] += block.size - whole
    return {"held": held, "live": held - sum(found.values()), **found}


class Watch:
    """Of one allocator. Looks at all blocks each time it grows, which takes the host a
    millisecond or more: what is timed meanwhile is no measure."""

    def __init__(self, allocator: Any) -> None:
        self.allocator = allocator
        self.handles: Handles = {}
        self.at_most: Row = {}
        self.lock = threading.Lock()
        allocator.add_map_callback(self.tell)

    def tell(self, is_mapped: bool, address: int, size: int) -> None:
        with self.lock:
            if is_mapped:
                self.handles[address] = size
            else:
                self.handles.pop(address, None)
            held = self.allocator.stats().reserved_bytes
            if is_mapped and held > self.at_most.get("held", 0):
                self.at_most = shares(held, self.allocator.blocks(), self.handles)


class Watches:
    """Of all allocators of this process that there are now."""

    def __init__(self, allocators: Iterable[Any]) -> None:
        self.all = [Watch(allocator) for allocator in allocators]

    def begin_again(self) -> None:
        """For another program. What is mapped stays known."""
        for one in self.all:
            one.at_most = {}

    def at_most(self) -> Row:
        """Of the one that held most; nothing without Ductile."""
        found: Row = max(
            (w.at_most for w in self.all), key=lambda row: row.get("held", 0), default={}
        )
        return found


def watch(device: str) -> Watches:
    """Of what serves PyTorch on the current device, before the program takes anything of it."""
    if device == "cuda":
        import torch

        torch.empty(1, device=device)  # an allocator is made when it is first asked
    return Watches(costs.own_allocators())
