# SPDX-License-Identifier: Apache-2.0
"""Pools of a snapshot other than the common one. What one holds free serves no other pool."""

from __future__ import annotations

from typing import Any

from ductile_gpu._tools._report._collect import Recording

GRAPH, USER = "graph", "user"
_TERMS = ("held_bytes", "live_bytes", "pending_bytes", "free_bytes", "holes", "largest_hole")


def _row(pool: dict[str, Any]) -> dict[str, Any]:
    """PyTorch numbers a graph's own pools (N, 0); MemPools and graph_pool_handle's are (0, N)."""
    first, second = pool["id"]
    kind = GRAPH if second == 0 else USER
    number = first if second == 0 else second
    name = f"a graph's pool {number}" if kind == GRAPH else f"a user's pool {number}"
    return {"id": [first, second], "kind": kind, "name": name, **{of: pool[of] for of in _TERMS}}


def pools(recording: Recording) -> list[dict[str, Any]]:
    """At the refusal where that is known, else at the end; those that hold most free first."""
    at_refusal = (recording.worst_refusal or {}).get("recorded")
    found = at_refusal or recording.recorded or {}
    rows = [_row(pool) for pool in found.get("pools", [])]
    return sorted(rows, key=lambda row: (-int(row["free_bytes"]), row["id"]))
