# SPDX-License-Identifier: Apache-2.0
"""The diagnosis in one word: full, fragmented, crowded or fine. Of what was recorded, before what
is modelled.

full        what has to be there together is more than what was there
fragmented  it is not, and memory that was free served nothing
crowded     it would have fitted without what other processes hold of the device
fine        nothing was refused
"""

from __future__ import annotations

from typing import Any, Optional

FULL, FRAGMENTED, CROWDED, FINE = "full", "fragmented", "crowded", "fine"
WORDS = (FULL, FRAGMENTED, CROWDED, FINE)

# What this process has of a device beside PyTorch's memory, at most: its context and libraries.
OWN_OUTSIDE = 1 << 30


def kept_in_pools(pools: list[dict[str, Any]]) -> int:
    """Free memory that serves only the pool that it is in."""
    return sum(pool["free_bytes"] for pool in pools)


def is_modelled(s: dict[str, Any]) -> bool:
    """Whether what replays need is what the program does: a trace may not say what is in a pool,
    though pools keep memory for themselves."""
    return bool(s["replays_pools"]) or not kept_in_pools(s["pools"])


def _serves(s: dict[str, Any], capacity: int) -> bool:
    """Whether a replay completed on so much: then it was not too little."""
    needs = [run["min_capacity_bytes"] for run in s["allocators"].values()]
    return is_modelled(s) and any(need is not None and need <= capacity for need in needs)


def _of_limit(found: dict[str, Any]) -> str:
    """A limit of the process refused, which is not recorded: at least what was held was allowed."""
    is_room = found["needed_bytes"] <= found["held_bytes"]
    return FRAGMENTED if is_room and found["replayed"] else FULL


def _of_refusal(s: dict[str, Any], found: dict[str, Any]) -> Optional[str]:
    capacity, others = found["device_bytes"], found["others_bytes"] or 0
    if not found["replayed"]:
        return FULL
    if found["limited"]:
        return _of_limit(found) if found["held_bytes"] else None
    if capacity is None:
        return None
    missing = found["needed_bytes"] - capacity
    if missing <= 0 or _serves(s, capacity):
        return FRAGMENTED
    return CROWDED if others - OWN_OUTSIDE >= missing else FULL


def _of_capacity(s: dict[str, Any]) -> str:
    """Of a run that was refused nothing, on the GPU that was asked for."""
    if all(run["completed"] for run in s["allocators"].values()):
        return FINE
    return FULL if s["live_peak_bytes"] > s["device_bytes"] else FRAGMENTED


def verdict(s: dict[str, Any]) -> Optional[str]:
    """One of WORDS, of the numbers of `_summary`; None: of a refusal too little was recorded."""
    if s["refused"] is not None:
        return _of_refusal(s, s["refused"])
    return _of_capacity(s) if s["capacity_given"] else FINE
