# SPDX-License-Identifier: Apache-2.0
"""Which live blocks keep free memory apart at the moment of the report, by their names.

Where a request was refused: the blocks whose memory, if they were freed or lay elsewhere, would
make a hole that serves it. Everywhere: the largest hole that opens without 1, 2, 4, ... blocks.
"""

from __future__ import annotations

from typing import Any, Optional

from ductile_gpu._tools._report import _frames, _summary, _who
from ductile_gpu._tools._report._collect import Recording


def _name(recording: Recording, member: dict[str, Any]) -> str:
    """The stack that allocated it, or what else is known of it."""
    if member["stack"]:
        return recording.stack(member["stack"])
    if member["before_recording"]:
        return _who.BEFORE
    kind = _who.LASTING if member["lasting"] else _who.PASSING
    if recording.n_steps < 2:
        return f"{kind}, allocated at event {recording.number_of(member['born']):,}"
    return f"{kind}, allocated in step {recording.step_of(member['born']):,}"


def _who_is_in(recording: Recording, fields: list[str], opening: dict[str, Any]) -> list[Any]:
    """Rows of key, bytes and blocks; the largest first. They sum to the opening's live bytes."""
    rows: dict[str, dict[str, Any]] = {}
    for values in opening["members"]:
        member = dict(zip(fields, values))
        key = _name(recording, member)
        row = rows.setdefault(
            key, {"key": key, "bytes": 0, "blocks": 0, "stack": bool(member["stack"])}
        )
        row["name"] = str(_frames.name_of(key)) if member["stack"] else key
        row["bytes"] += member["bytes"]
        row["blocks"] += 1
    return sorted(rows.values(), key=lambda row: (-row["bytes"], row["key"]))


def _row(recording: Recording, fields: list[str], opening: dict[str, Any]) -> dict[str, Any]:
    kept = {name: opening[name] for name in ("blocks", "bytes", "live_bytes", "moves")}
    return {**kept, "who": _who_is_in(recording, fields, opening)}


def _is_same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return bool(a["members"] == b["members"] and a["bytes"] == b["bytes"])


RECORDED = "recorded"  # PyTorch's own allocator, as it was


def _found(recording: Recording, name: str) -> Optional[dict[str, Any]]:
    if name != RECORDED:
        return dict(recording.runs[name]["openings"])
    at_refusal = (recording.worst_refusal or {}).get("recorded")
    return at_refusal and at_refusal["openings"]


def openings(recording: Recording, name: str) -> Optional[dict[str, Any]]:
    """Of one allocator at the moment of the report: where a replay on the largest device that does
    not suffice was refused just then, of that replay. Of a run that was refused nothing, and a GPU
    that was asked for: where its replay stopped.

    None: the allocator was not looked at, as at a peak that a capped replay never reached.
    """
    found = _found(recording, name)
    if found is None:
        return None
    stop = found["refusal"]
    is_capped = recording.capacity is not None and not recording.is_of_refusal
    is_then = stop is not None and (is_capped or stop["event"] == recording.moment_event)
    moment = stop if is_then else found.get("moment")
    if moment is None:
        return None
    fields, least = found["member_fields"], moment["least"]
    rows = [
        {**_row(recording, fields, opening), "serves": 0 < request <= opening["bytes"]}
        for opening in moment["widest"]
        for request in [moment.get("request_bytes", 0)]
        if least is None or not _is_same(opening, least)
    ]
    return {
        "event": moment["event"],
        "place": _summary.place(recording, moment["event"]),
        "capacity": moment.get("capacity_bytes"),
        "request": moment.get("request_bytes"),
        "largest_hole": moment["largest_hole"],
        "least": None if least is None else _row(recording, fields, least),
        "widest": rows,
    }
