# SPDX-License-Identifier: Apache-2.0
"""A snapshot's history, played backwards from its final segments by the rules of PyTorch's viewer.
What contradicts them is an AssertionError."""

from __future__ import annotations

from typing import Any


def replay(found: dict[str, Any]) -> None:
    live: dict[int, str] = {}
    memory: list[tuple[int, int]] = []
    for segment in found["segments"]:
        at, active = segment["address"], 0
        for block in segment["blocks"]:
            assert block.get("address", at) == at
            if block["state"] != "inactive":
                live[at] = block["state"]
                active += block["size"]
            at += block["size"]
        assert at == segment["address"] + segment["total_size"]
        assert active == segment["active_size"]
        memory.append((segment["address"], at))
    for entry in reversed(found["device_traces"][0]):
        step_back(entry, live, memory)


def step_back(entry: dict[str, Any], live: dict[int, str], memory: list[tuple[int, int]]) -> None:
    action, at = entry["action"], entry.get("addr", 0)
    end = at + entry["size"]
    if action == "alloc":
        assert live.pop(at) == "active_allocated", hex(at)
        assert any(low <= at and end <= high for low, high in memory), hex(at)
    elif action == "free_completed":
        assert at not in live, hex(at)
        live[at] = "active_pending_free"
    elif action == "free_requested":
        assert live[at] == "active_pending_free", hex(at)
        live[at] = "active_allocated"
    elif action == "segment_map":
        home = next(m for m in memory if m[0] <= at and end <= m[1])
        memory.remove(home)
        memory += [m for m in ((home[0], at), (end, home[1])) if m[0] < m[1]]
    elif action == "segment_unmap":
        memory[:] = joined([*memory, (at, end)])


def joined(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    out: list[tuple[int, int]] = []
    for low, high in sorted(spans):
        if out and out[-1][1] == low:
            out[-1] = (out[-1][0], high)
        else:
            out.append((low, high))
    return out
