# SPDX-License-Identifier: Apache-2.0
"""Several recordings side by side, as the ranks of one run: which needs most, and what differs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ductile_gpu._tools._report._collect import NAMES
from ductile_gpu._tools._sizes import in_bytes

ALIKE = 0.02  # of the median: what is within it is no difference


def _short(names: Sequence[str]) -> list[str]:
    """What tells them apart: of rank3-host-4711 the rank, where no other has it."""
    heads = [name.partition("-")[0] for name in names]
    return heads if len(set(heads)) == len(heads) > 1 else list(names)


def _row(summary: dict[str, Any], name: str) -> dict[str, Any]:
    found, refused = summary["recorded"], summary["refused"]
    return {
        "name": name,
        "live_peak_bytes": summary["live_peak_bytes"],
        "recorded_bytes": found["held_peak_bytes"] if found else None,
        "refused_bytes": refused["request_bytes"] if refused else None,
        "needs": {n: run["min_capacity_bytes"] for n, run in summary["allocators"].items()},
        "holders": {row["name"]: row["bytes"] for row in summary["holders"]},
    }


def _differences(most: dict[str, Any], least: dict[str, Any]) -> str:
    """Which of the largest holders are larger in one than in the other."""
    names = {*most["holders"], *least["holders"]}
    change = {n: most["holders"].get(n, 0) - least["holders"].get(n, 0) for n in names}
    grown = sorted(
        (name for name in names if name in most["holders"] and name in least["holders"]),
        key=lambda name: -abs(change[name]),
    )
    said = [
        f"{name} {in_bytes(abs(change[name]))} {'more' if change[name] > 0 else 'less'}"
        for name in grown[:2]
        if abs(change[name]) > ALIKE * most["live_peak_bytes"]
    ]
    only = [name for name in most["holders"] if name not in least["holders"]]
    said += [f"{name} is among its largest alone" for name in only[:1]]
    return f": {'; '.join(said)}" if said else ""


def _sentence(rows: Sequence[dict[str, Any]]) -> str:
    if len(rows) == 1:
        return f"{rows[0]['name']} alone is shown."
    ordered = sorted(rows, key=lambda row: int(row["live_peak_bytes"]))
    least, most = ordered[0], ordered[-1]
    middle = ordered[len(ordered) // 2]["live_peak_bytes"]
    apart = most["live_peak_bytes"] - least["live_peak_bytes"]
    refused = [row["name"] for row in rows if row["refused_bytes"]]
    named = f"all {len(rows)}" if len(refused) == len(rows) else ", ".join(refused)
    ran_out = f" Out of memory: {named}." if refused else ""
    if apart <= ALIKE * middle:
        within = f", within {in_bytes(apart)}" if apart else ""
        return f"All {len(rows)} need the same{within}.{ran_out}"
    return (
        f"{most['name']} needs most: {in_bytes(most['live_peak_bytes'])} at its peak, "
        f"{in_bytes(apart)} more than {least['name']}{_differences(most, least)}.{ran_out}"
    )


def table(summaries: Sequence[dict[str, Any]], broken: Sequence[str] = ()) -> dict[str, Any]:
    """A row for each, and one sentence; one more where files could not be read."""
    names = _short([summary["name"] for summary in summaries])
    rows = [_row(summary, name) for summary, name in zip(summaries, names)]
    note = _sentence(rows) + (f" Missing: {', '.join(broken)}." if broken else "")
    return {"note": note, "rows": rows, "allocators": NAMES}
