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

from ductile_gpu._binding import _abi
from ductile_gpu._process._files import replacing
from ductile_gpu._tools._report import _frames, _openings, _ranks, _summary, _who, _words
from ductile_gpu._tools._report._collect import NAMES, Recording

PARTS = Path(__file__).parent / "page"
SCRIPTS = (
    "data", "state", "first", "timeline", "bands", "map", "device", "tables", "flame", "openings",
    "ranks", "tip", "copy", "address", "start",
)  # fmt: skip
KIB = 1024
SIZES = ("asked", "held", "live", "pending", "free", "cached", "free_in_pools")
SUMMED = ("before", "after", "change", "blocks_before", "blocks_after")
# Of stacks, what a reader opens; the others are summed on the page.
MOST_ROWS = 400
WHO = ("name", "key", "bytes", "growth", "end", "blocks", "refused")  # of a row, in --json


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
        "capacity": run["capacity_bytes"],
        "stopped_at_event": run.get("stopped_at_event"),
        "driver_ns": run["driver_time_ns"],
        "series": _series(run),
        "stops": sorted(map(_stop, run["stops"]), key=lambda stop: int(stop["capacity"])),
        "map": {**plan, "events": _delta(plan["events"])},
    }


# ---- Who ----------------------------------------------------------------------------------------


class _Names:
    """Texts that are said often, each once; the first is empty."""

    def __init__(self) -> None:
        self.all: list[str] = [""]
        self._numbers = {"": 0}

    def number(self, text: str) -> int:
        number = self._numbers.setdefault(text, len(self.all))
        if number == len(self.all):
            self.all.append(text)
        return number


def _frame_text(line: str) -> str:
    """What a field of a flame graph shows: function, file, whether it is the program's own."""
    frame = _frames.read(line)
    return "\t".join((frame.name, frame.place, frame.file, "own" if frame.is_own else ""))


def _flame(recording: Recording, rows: list[dict[str, Any]]) -> Optional[dict[str, Any]]:
    """Of each row by stack its calls from the outermost on, and what it is called at the end."""
    if not recording.facts["stacks"]:
        return None
    names = _Names()
    stacks = []
    for row in rows:
        lines = row["key"].split("\n") if row["is_stack"] else [row["key"]]
        calls = [names.number(_frame_text(line)) for line in reversed(lines)]
        is_python = row["is_stack"] and _frames.read(lines[0]).is_python
        leaf = 0 if is_python else names.number(f"{_who.title(row, 'stack')}\t\t\town")
        stacks.append([leaf, calls])
    return {"frames": names.all, "stacks": stacks}


def _stack_names(recording: Recording) -> dict[str, Any]:
    """What each stack that the maps show is called, by its number."""
    names = _Names()
    titles = [str(_frames.name_of(stack)) for stack in recording.facts["stacks"]]
    return {"names": names.all, "of": [0, *(names.number(title) for title in titles)]}


def _over_time(recording: Recording) -> dict[str, Any]:
    """What live memory is for, at the fullest moments of the run; in KiB."""
    found = {
        by: [
            {"name": row["name"], "bytes": _delta([size // KIB for size in row["moments"]])}
            for row in _who.over_time(recording, by)
        ]
        for by in ("category", *(["stack"] if recording.facts["stacks"] else []))
    }
    return {"events": _delta(recording.facts["moment_events"]), "by": found}


def _opening(recording: Recording, name: str) -> Optional[dict[str, Any]]:
    found = _openings.openings(recording, name)
    return None if found is None else {**found, "note": _words.openings(recording, name, found)}


def _others(rows: list[dict[str, Any]], *summed: str, **more: Any) -> list[dict[str, Any]]:
    """One row for those that a reader does not open."""
    key = f"{len(rows):,} others"
    sums = {name: sum(row[name] for row in rows) for name in summed}
    return [{"key": key, "name": key, **sums, **more}] if rows else []


def _rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The largest, by what they ever hold, and one row for the others."""
    kept = sorted(rows, key=lambda row: -max(row["bytes"], *row["moments"], 0))[:MOST_ROWS]
    keys = {(row["key"], row["refused"]) for row in kept}
    rest = [row for row in rows if (row["key"], row["refused"]) not in keys]
    more = {"growth": 0, "refused": False, "is_stack": False}
    others = _others(rest, "bytes", "blocks", "freed", "end", **more)
    for row in others:
        row["moments"] = [sum(column) for column in zip(*(of["moments"] for of in rest))]
    return [row for row in rows if (row["key"], row["refused"]) in keys] + others


def _views(recording: Recording) -> dict[str, list[dict[str, Any]]]:
    found = _who.views(recording)
    for by, rows in found.items():
        for row in rows:
            row["name"] = _who.title(row, by)
    return {by: _rows(rows) for by, rows in found.items()}


def _drawn(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Moments as differences, which are short."""
    return [{**row, "moments": _delta(row["moments"])} for row in rows]


# ---- The whole ----------------------------------------------------------------------------------


def _recording(recording: Recording, forecast: Optional[dict[str, Any]]) -> dict[str, Any]:
    facts, summary, views = recording.facts, _summary.summary(recording), _views(recording)
    kept = (
        "gpu",
        "replay_events",
        "blocks_before",
        "snapshot",
        "marks_steps",
        "streams",
        "step_ends",
    )
    held = list(zip(*facts.get("recorded_held", [])))
    return {
        **{name: facts[name] for name in kept},
        "name": recording.name,
        "events": recording.n_events,
        "n_steps": recording.n_steps,
        "live_peak": recording.live_peak,
        "peak_event": facts["peak_event"],
        "summary": summary,
        "headline": _words.headline(summary),
        "lines": _words.lines(recording, summary),
        "runs": [_run(name, recording.runs[name]) for name in NAMES],
        "openings": {name: _opening(recording, name) for name in (*NAMES, _openings.RECORDED)},
        "variants": recording.variants,
        "who": {by: _drawn(rows) for by, rows in views.items()},
        "flame": _flame(recording, views.get("stack", [])),
        "stack_names": _stack_names(recording),
        "over_time": _over_time(recording),
        "refusals": facts["refusals"],
        "recorded_map": recording.recorded_map,
        "recorded_held": [_delta(column) for column in held] or None,
        "forecast": forecast,
    }


def numbers(data: dict[str, Any]) -> dict[str, Any]:
    """Of what a page has of a recording, what is said in numbers: --json."""
    who = {
        by: [{name: row[name] for name in WHO} for row in rows if any(row[n] for n in WHO[2:5])]
        for by, rows in data["who"].items()
    }
    return {
        **data["summary"],
        "headline": _words.plain(data["headline"]).strip(),
        "lines": data["lines"],
        "who": who,
        "openings": data["openings"],
        "forecast": data["forecast"],
    }


def _comparison(recordings: Sequence[Recording]) -> dict[str, Any]:
    before, after = recordings
    by, rows = _who.compare(before, after)
    for row in rows:
        row["is_stack"] = by == "stack" and row["key"] not in (_who.BEFORE, _who.NO_STACK)
        row["name"] = _who.title(row, by)
    same = before.name == after.name
    return {
        "by": by,
        "rows": rows[:MOST_ROWS] + _others(rows[MOST_ROWS:], *SUMMED),
        "before": "before" if same else before.name,
        "after": "after" if same else after.name,
        "before_bytes": before.moment_bytes,
        "after_bytes": after.moment_bytes,
        "change": after.moment_bytes - before.moment_bytes,
        "note": _words.comparison(before, after, by),
    }


def _pack(data: dict[str, Any]) -> str:
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False)
    return base64.b64encode(zlib.compress(text.encode("utf-8", "replace"), 9)).decode("ascii")


def _made() -> str:
    now = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    return f"Made by ductile-gpu {_abi.VERSION} on {now}, by replays on the virtual GPU."


def _verdicts(recordings: Sequence[dict[str, Any]]) -> str:
    """For readers without JavaScript."""
    texts = ["\n".join(_words.spell(r["name"], r["headline"], r["lines"])) for r in recordings]
    return "".join(f"<pre>{html.escape(text)}</pre>" for text in texts)


def gather(
    recordings: Sequence[Recording],
    forecasts: Optional[Sequence[Optional[dict[str, Any]]]] = None,
    compares: bool = False,
    broken: Sequence[str] = (),
) -> dict[str, Any]:
    """All that a page says. compares: two recordings, of which the second is the later run. broken:
    names of those that could not be read."""
    chosen = forecasts or [None] * len(recordings)
    found = [_recording(r, f) for r, f in zip(recordings, chosen)]
    return {
        "made": _made(),
        "recordings": found,
        "compare": _comparison(recordings) if compares else None,
        "ranks": (
            _ranks.table([data["summary"] for data in found], broken)
            if len(found) > 1 or broken
            else None
        ),
    }


def make_page(
    recordings: Sequence[Recording],
    forecasts: Optional[Sequence[Optional[dict[str, Any]]]] = None,
    compares: bool = False,
) -> str:
    """The file's text; see gather."""
    return page_of(gather(recordings, forecasts, compares))


def page_of(data: dict[str, Any]) -> str:
    """The file's text, of what was gathered."""
    recordings = data["recordings"]
    text = (PARTS / "page.html").read_text(encoding="utf-8")
    scripts = "\n".join((PARTS / f"{n}.js").read_text(encoding="utf-8") for n in SCRIPTS)
    pieces = {
        "TITLE": html.escape(" and ".join(r["name"] for r in recordings[:2])),
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
