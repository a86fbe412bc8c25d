# SPDX-License-Identifier: Apache-2.0
"""What is known of a run in numbers: the page, the verdict and --json all say these.

Beside what the replays say stands what was recorded: what PyTorch's own allocator held, and the
request that it refused.
"""

from __future__ import annotations

from typing import Any, Optional

from ductile_gpu._tools._report import _frames, _pools, _verdict, _who
from ductile_gpu._tools._report._collect import NAMES, Recording

MOST_HOLDERS = 3
MOST_GROWN = 3
APART = 0.01  # a model that is further from what was recorded is explained


def place(recording: Recording, event: int) -> dict[str, Any]:
    """Where an event lies; steps and events count from 1."""
    found: dict[str, Any] = {"event": recording.number_of(event), "step": None}
    if recording.n_steps > 1:
        found["step"] = recording.step_of(event)
    return found


# ---- The refused request ----------------------------------------------------------------------


TERMS = ("held_bytes", "live_bytes", "pending_bytes", "free_bytes", "holes", "largest_hole")


def _terms(refusal: dict[str, Any]) -> dict[str, Any]:
    """What held memory consisted of when the request was refused."""
    if "recorded" in refusal:
        return {name: refusal["recorded"][name] for name in TERMS}
    held, live = refusal["held_bytes"], refusal["live_bytes"]
    free = held - live if held > live else None
    found = {"held_bytes": held, "live_bytes": live, "pending_bytes": 0, "free_bytes": free}
    return {**found, "holes": None, "largest_hole": None}


def _others(recording: Recording, held: int, free: int) -> Optional[int]:
    """Memory of the device that other processes, contexts and libraries had."""
    recorded = recording.recorded
    total = int(recorded["device_bytes"]) if recorded is not None else 0
    return total - held - free if total > held + free else None


def refused(recording: Recording) -> Optional[dict[str, Any]]:
    """The refused request that needs most; None: the program was refused nothing."""
    refusal = recording.worst_refusal
    if refusal is None:
        return None
    terms, stack = _terms(refusal), recording.stack(refusal["stack"])
    in_pools = _verdict.kept_in_pools(_pools.pools(recording)) if "recorded" in refusal else 0
    free, held = refusal["device_free_bytes"], terms["held_bytes"]
    # Where so much was free on the device, what refused it was a limit of the process.
    is_limited = free >= refusal["request_bytes"]
    return {
        "request_bytes": refusal["request_bytes"],
        "by": str(_frames.name_of(stack)) if stack else None,
        "stack": stack or None,
        **place(recording, refusal["event"]),
        "replay_event": refusal["event"],
        **terms,
        "device_free_bytes": free,
        "device_bytes": held + free if held and not is_limited else None,
        "limited": is_limited,
        "others_bytes": _others(recording, held, free),
        "in_pools_bytes": in_pools,
        "needed_bytes": terms["live_bytes"]
        + terms["pending_bytes"]
        + in_pools
        + refusal["request_bytes"],
        "replayed": refusal["replayed"],
        "refusals": recording.facts["n_refusals"],
    }


# ---- What was recorded ------------------------------------------------------------------------


def _modelled(recording: Recording, name: str) -> int:
    """What the model holds at most before anything was refused, which is what was recorded."""
    run, refusals = recording.runs[name], recording.facts["refusals"]
    if not refusals:
        return int(run["reserved_peak_bytes"])
    event, held = (run["point_fields"].index(field) for field in ("event", "held"))
    until = refusals[0]["event"]
    return max((int(point[held]) for point in run["points"] if point[event] < until), default=0)


def recorded(recording: Recording) -> Optional[dict[str, Any]]:
    """What PyTorch's allocator held, and how far its model is from that; None: it is not known."""
    found = recording.recorded
    if found is None:
        return None
    kept = {name: found[name] for name in (*TERMS, "segments", "held_peak_bytes")}
    total, free = found["device_bytes"], found["device_free_bytes"]
    model = "expandable" if found["expandable"] else "classic"
    modelled, held = _modelled(recording, model), found["held_peak_bytes"]
    is_apart = held > 0 and abs(modelled - held) > APART * held and recording.has_history
    is_packed = 2 * recording.bytes_before > recording.live_peak
    are_ignored = bool(found["pools"]) and not recording.replays_pools
    why = "packed again" if is_packed else "pools" if are_ignored else "unknown"
    return {
        **kept,
        "expandable": found["expandable"],
        "device_bytes": total or None,
        "device_free_bytes": free if total else None,
        "spills": found["spills"],
        "spilled_peak_bytes": found["spilled_peak_bytes"],
        "allocator": model,
        "modelled_peak_bytes": modelled,
        "apart": why if is_apart else None,
        "before_bytes": recording.bytes_before,
    }


# ---- The device ---------------------------------------------------------------------------------

USUAL = (8, 12, 16, 24, 40, 80, 141)  # GiB


def device(recording: Recording, refusal: Optional[dict[str, Any]]) -> tuple[int, bool]:
    """The memory to begin with, and whether it is the recording's own. It is what was asked for,
    else what the recording's allocator could have, else the usual device that tells the allocators
    apart, or on which all complete."""
    if recording.capacity is not None:
        return recording.capacity, False
    if refusal is not None and refusal["device_bytes"]:
        return int(refusal["device_bytes"]), True
    known = recording.recorded
    if known is not None and known["device_bytes"]:
        return int(known["held_bytes"] + known["device_free_bytes"]), True
    needs = [
        int(run.get("min_capacity_bytes") or run["reserved_peak_bytes"])
        for run in recording.runs.values()
    ]
    sizes = [size << 30 for size in USUAL]
    telling = [size for size in sizes if min(needs) <= size < max(needs)]
    enough = [size for size in sizes if size >= max(needs)]
    return [*telling, *enough, sizes[-1]][0], False


# ---- The whole ---------------------------------------------------------------------------------


def _by_name(recording: Recording) -> list[dict[str, Any]]:
    """What is held, by the code that allocated it where that is known, at the moment and at the
    end."""
    by = "stack" if recording.facts["stacks"] else "category"
    sums: dict[str, dict[str, Any]] = {}
    for row in _who.group(recording, by, always=True):
        if not row["refused"]:
            name = _who.title(row, by)
            empty = {"name": name, "bytes": 0, "blocks": 0, "end": 0, "growth": 0}
            found = sums.setdefault(name, empty)
            for of in ("bytes", "blocks", "end", "growth"):
                found[of] += row[of]
    return list(sums.values())


def holders(recording: Recording) -> list[dict[str, Any]]:
    """The largest, by the code that allocated them where it is known. What was refused is none."""
    kept = sorted(_by_name(recording), key=lambda row: -int(row["bytes"]))[:MOST_HOLDERS]
    return [{n: row[n] for n in ("name", "bytes", "blocks")} for row in kept if row["bytes"]]


def grown(recording: Recording) -> list[dict[str, Any]]:
    """What is more at the end of each step than before, and by how much; as far as it adds up to
    something."""
    least = APART * recording.live_peak / max(1, recording.n_steps - 1)
    kept = [row for row in _by_name(recording) if row["growth"] > least]
    kept.sort(key=lambda row: -int(row["growth"]))
    return [{n: row[n] for n in ("name", "growth", "end")} for row in kept[:MOST_GROWN]]


def _allocator(recording: Recording, name: str) -> dict[str, Any]:
    run = recording.runs[name]
    found = {
        "name": NAMES[name],
        "completed": run["completed"],
        "held_peak_bytes": run["reserved_peak_bytes"],
        "min_capacity_bytes": run.get("min_capacity_bytes"),
        "driver_time_ns": run["driver_time_ns"],
        "settings": run["settings"],
    }
    if not run["completed"]:
        found["stopped"] = place(recording, run["stopped_at_event"])
    return found


def moment(recording: Recording) -> dict[str, Any]:
    """What holders, percentages, maps and what stands in the way are of: the refusal that needed
    most, or the live peak where nothing was refused."""
    return {
        "kind": "refusal" if recording.is_of_refusal else "peak",
        "replay_event": recording.moment_event,
        **place(recording, recording.moment_event),
        "bytes": recording.moment_bytes,
        "live_bytes": recording.moment_bytes - recording.refused_bytes,
    }


def _gpus(recording: Recording) -> list[dict[str, Any]]:
    """All of a snapshot, in their order."""
    own = recording.facts["gpu"]
    return [{**gpu, "shown": gpu["gpu"] == own} for gpu in recording.facts["gpus"]]


def summary(recording: Recording) -> dict[str, Any]:
    """All that the verdict says."""
    facts, refusal = recording.facts, refused(recording)
    start, is_own = device(recording, refusal)
    found = {
        "file": str(recording.path),
        "name": recording.name,
        "gpu": facts["gpu"] if facts["snapshot"] else None,
        "gpus": _gpus(recording),
        "events": recording.n_events,
        "steps": recording.n_steps if recording.n_steps > 1 else None,
        "history": recording.has_history,
        "live_peak_bytes": recording.live_peak,
        "peak": place(recording, facts["peak_event"]),
        "moment": moment(recording),
        "device_bytes": start,
        "device_is_recorded": is_own,
        "capacity_given": recording.capacity is not None,
        "refused": refusal,
        "recorded": recorded(recording),
        "pools": _pools.pools(recording),
        "replays_pools": recording.replays_pools,
        "blocks_of_unknown_pool": facts["blocks_of_unknown_pool"],
        "allocators": {name: _allocator(recording, name) for name in NAMES},
        "options": recording.variants,
        "holders": holders(recording),
        "grown": grown(recording),
        "tells_growth": _who.tells_growth(recording),
    }
    return {**found, "verdict": _verdict.verdict(found)}
