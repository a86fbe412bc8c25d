# SPDX-License-Identifier: Apache-2.0
"""In words, what uses a GPU besides the allocators of a process: for top and reports."""

from __future__ import annotations

from typing import Any, Optional

from ductile_gpu._tools._sizes import in_bytes

MOST_NAMED = 4  # of the other processes


def what_uses(found: Optional[dict[str, Any]]) -> str:
    """What `Outside.as_json` has, the process itself first; empty where nothing is known."""
    if found is None:
        return ""
    own, processes = found["own_bytes"], found["processes"]
    parts = [] if own is None else [f"{in_bytes(own)} by this process: CUDA's context, libraries"]
    parts += [
        f"{in_bytes(one['used_bytes'])} by process {one['pid']}" for one in processes[:MOST_NAMED]
    ]
    if len(processes) > MOST_NAMED:
        rest = sum(one["used_bytes"] for one in processes[MOST_NAMED:])
        parts.append(f"{in_bytes(rest)} by {len(processes) - MOST_NAMED} more")
    among = ", this process among them" if own is None and parts else ""
    return "; ".join(parts) + among
