# SPDX-License-Identifier: Apache-2.0
"""One HTML file with its data inside: nothing is fetched when it is opened."""

from __future__ import annotations

import base64
import html
import json
import re
import zlib
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Optional

from ductile_gpu import _abi
from ductile_gpu._files import replacing
from ductile_gpu._report import _openings, _who, _words
from ductile_gpu._report._collect import NAMES, Recording

PARTS = Path(__file__).parent / "page"
SCRIPTS = ("data", "state", "timeline", "map", "device", "tables", "openings", "start")
KIB = 1024
SIZES = ("asked", "held", "live", "pending", "free", "cached")
# Of stacks, what a reader opens; the others are summed on the page.
MOST_ROWS = 400


def _delta(values: Sequence[int]) -> list[int]:
    return [b - a for a, b in zip([0, *values], values)]


def _series(run: dict[str, Any]) -> dict[str, list[int]]:
    """Columns, sizes in KiB: what is drawn needs no more."""
    columns = dict(zip(run["point_fields"], map(list, zip(*run["points"]))))
    columns = columns or {name: [] for name in run["point_fields"]}
    maps, creates = columns.pop("maps"), columns["creates"]
    columns["moves"] = [max(0, m - c) for m, c in zip(maps, creates)]
    for name in SIZES:
        columns[name] = [size // KIB for size in columns[name]]
    return {name: _delta(values) for name, values in columns.items()}


def _stop(stop: dict[str, Any]) -> dict[str, Any]:
    kept = ("completed", "event", "held", "live", "pending", "free", "cached", "holes")
    renamed = {"capacity": "capacity_bytes", "request": "request_bytes", "largest": "largest_hole"}
    found = {name: stop[name] for name in kept if name in stop}
    return {**found, **{new: stop[old] for new, old in renamed.items() if old in stop}}


def _run(name: str, run: dict[str, Any]) -> dict[str, Any]:
    plan = run["map"]
    return {
        "id": name,
        "name": NAMES[name],
        "settings": run["settings"],
        "held_peak": run["reserved_peak_bytes"],
        "min_capacity": run.get("min_capacity_bytes"),
        "completed": run["completed"],
        "stopped_at_event": run.get("stopped_at_event"),
        "driver_ns": run["driver_time_ns"],
        "series": _series(run),
        "stops": sorted(map(_stop, run["stops"]), key=lambda stop: int(stop["capacity"])),
        "map": {**plan, "events": _delta(plan["events"])},
    }


def _opening(recording: Recording, name: str) -> Optional[dict[str, Any]]:
    found = _openings.openings(recording, name)
    return None if found is None else {**found, "note": _words.openings(recording, name, found)}


def _rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    rest = rows[MOST_ROWS:]
    if not rest:
        return rows
    names = ("bytes", "blocks", "freed")
    sums = {name: sum(row[name] for row in rest) for name in names}
    return [*rows[:MOST_ROWS], {"key": f"{len(rest):,} others", **sums, "growth": 0}]


def _recording(recording: Recording, forecast: Optional[dict[str, Any]]) -> dict[str, Any]:
    facts = recording.facts
    kept = ("gpu", "events", "replay_events", "snapshot", "marks_steps", "streams", "step_ends")
    return {
        **{name: facts[name] for name in kept},
        "name": recording.name,
        "n_steps": recording.n_steps,
        "live_peak": recording.live_peak,
        "peak_event": facts["peak_event"],
        "verdict": _words.verdict(recording),
        "runs": [_run(name, recording.runs[name]) for name in NAMES],
        "openings": {name: _opening(recording, name) for name in NAMES},
        "variants": recording.variants,
        "who": {by: _rows(rows) for by, rows in _who.views(recording).items()},
        "refusals": facts["refusals"],
        "forecast": forecast,
    }


def _comparison(recordings: Sequence[Recording]) -> dict[str, Any]:
    before, after = recordings
    by, rows = _who.compare(before, after)
    same = before.name == after.name
    return {
        "by": by,
        "rows": rows[:MOST_ROWS] + _other_changes(rows[MOST_ROWS:]),
        "before": "before" if same else before.name,
        "after": "after" if same else after.name,
        "before_bytes": before.live_peak,
        "after_bytes": after.live_peak,
        "change": after.live_peak - before.live_peak,
        "note": _words.comparison(before, after, by),
    }


def _other_changes(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if not rows:
        return []
    names = ("before", "after", "change", "blocks_before", "blocks_after")
    return [{"key": f"{len(rows):,} others", **{n: sum(row[n] for row in rows) for n in names}}]


def _pack(data: dict[str, Any]) -> str:
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False)
    return base64.b64encode(zlib.compress(text.encode("utf-8", "replace"), 9)).decode("ascii")


def _made() -> str:
    now = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    return f"Made by ductile-gpu {_abi.VERSION} on {now}, by replays on the virtual GPU."


def _verdicts(recordings: Sequence[Recording]) -> str:
    """For readers without JavaScript."""
    lines = [f"{r.name}: {_words.plain(_words.verdict(r))}" for r in recordings]
    return "".join(f"<p>{html.escape(line)}</p>" for line in lines)


def make_page(
    recordings: Sequence[Recording],
    forecasts: Optional[Sequence[Optional[dict[str, Any]]]] = None,
    compares: bool = False,
) -> str:
    """The file's text. compares: two recordings, of which the second is the later run."""
    chosen = forecasts or [None] * len(recordings)
    data = {
        "made": _made(),
        "recordings": [_recording(r, f) for r, f in zip(recordings, chosen)],
        "compare": _comparison(recordings) if compares else None,
    }
    text = (PARTS / "page.html").read_text(encoding="utf-8")
    scripts = "\n".join((PARTS / f"{n}.js").read_text(encoding="utf-8") for n in SCRIPTS)
    pieces = {
        "TITLE": html.escape(" and ".join(r.name for r in recordings[:2])),
        "CSS": (PARTS / "page.css").read_text(encoding="utf-8"),
        "VERDICTS": _verdicts(recordings),
        "PAYLOAD": _pack(data),
        "JS": scripts,
    }
    return re.sub(f"@({'|'.join(pieces)})@", lambda found: pieces[found[1]], text)


def write_page(path: Path, text: str) -> None:
    """All of it or nothing."""
    with replacing(path) as part:
        part.write_text(text, encoding="utf-8")
