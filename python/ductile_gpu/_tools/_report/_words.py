# SPDX-License-Identifier: Apache-2.0
"""The sentences of a report, of the numbers of `_summary`.

A sentence is a list of pieces: text, and whether it is strong. The verdict is one sentence that
gives the diagnosis, and lines that say why.
"""

from __future__ import annotations

from typing import Any, Optional

from ductile_gpu._tools._report import _openings
from ductile_gpu._tools._report._collect import NAMES, Recording
from ductile_gpu._tools._report._verdict import (
    CROWDED,
    FINE,
    FRAGMENTED,
    FULL,
    is_modelled,
    kept_in_pools,
)
from ductile_gpu._tools._report._who import BEFORE, NO_STACK
from ductile_gpu._tools._sizes import in_bytes

UNKNOWN = (BEFORE, NO_STACK)
Sentence = list[tuple[str, bool]]
Line = tuple[str, str]  # a label, and what is said


def plain(sentence: Sentence) -> str:
    """The text alone."""
    return "".join(text for text, _ in sentence)


def _when(where: dict[str, Any], steps: Optional[int]) -> str:
    if where["event"] == 0:
        return "when the recording began"
    if where["step"] is None:
        return f"at event {where['event']:,}"
    return f"in step {where['step']:,} of {steps:,}"


def _count(n: int, name: str) -> str:
    return f"{n:,} {name}" if n == 1 else f"{n:,} {name}s"


def _list(words: list[str]) -> str:
    if not words:
        return ""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _pieces(found: dict[str, Any]) -> str:
    if found.get("holes") is None:
        return ""
    if found["holes"] == 1:
        return " in 1 hole"
    largest = found["largest_hole"]
    more = f" (largest {in_bytes(largest)})" if largest else ""
    return f" in {found['holes']:,} holes{more}"


def _holes(found: dict[str, Any]) -> str:
    """Free memory, in how many pieces it lies, and how much of it serves one pool alone."""
    text = f"{in_bytes(found['free_bytes'])} free"
    if found.get("holes") == 0:
        return f"{text} in pools of their own"
    kept = found.get("in_pools_bytes", 0)
    return text + _pieces(found) + (f", of it {in_bytes(kept)} in pools" if kept else "")


def _parts(found: dict[str, Any]) -> list[str]:
    parts = [f"{in_bytes(found['live_bytes'])} live"]
    if found["pending_bytes"]:
        parts.append(f"{in_bytes(found['pending_bytes'])} pending")
    return [*parts, _holes(found)] if found["free_bytes"] else parts


def _terms(found: dict[str, Any]) -> str:
    """What held memory consists of: "2.86 GiB live + 1.09 GiB free in 103 holes"."""
    return " + ".join(_parts(found))


def _brief(found: dict[str, Any]) -> str:
    """The same, as far as it is of use at first sight."""
    return ", ".join(_parts({**found, "largest_hole": None}))


# ---- What happened ------------------------------------------------------------------------------


def _room(found: dict[str, Any]) -> str:
    """What lay free, and did not serve the request."""
    parts = []
    if found["free_bytes"]:
        holes = found["holes"]
        in_holes = f" in {_count(holes, 'hole')}" if holes else ""
        largest = found["largest_hole"]
        most = f" of at most {in_bytes(largest)}" if holes and holes > 1 and largest else ""
        parts.append(f"{in_bytes(found['free_bytes'])} free{in_holes}{most}")
    parts.append(f"{in_bytes(found['device_free_bytes'])} on the device")
    return ", ".join(parts)


def _in_pools(found: dict[str, Any]) -> str:
    """Free memory that is needed and serves nothing."""
    size = found["in_pools_bytes"]
    return f", of it {in_bytes(size)} free in pools of their own" if size else ""


def _to_go(s: dict[str, Any]) -> str:
    found = s["refused"]
    size = found["needed_bytes"] - found["device_bytes"]
    missing = in_bytes(size)
    if found["in_pools_bytes"]:
        kept = ", which pools keep free" if found["in_pools_bytes"] >= size else ""
        return f" {missing} are missing{kept}."
    largest = next((row for row in s["holders"] if row["name"] not in UNKNOWN), None)
    holds = f"; `{largest['name']}` holds {in_bytes(largest['bytes'])}" if largest else ""
    return f" No allocator helps: {missing} have to go{holds}."


def _of_full(s: dict[str, Any]) -> Sentence:
    found = s["refused"]
    asked = in_bytes(found["request_bytes"])
    start = ("Out of memory, and full", True)
    if not found["replayed"]:
        more = f": {asked} were refused, more than any device has; what follows is of the run "
        return [start, (f"{more}without it.", False)]
    if found["limited"]:
        room = f"with {in_bytes(found['device_free_bytes'])} free on the device"
        return [start, (f": a limit of the process refused {asked} {room}.", False)]
    needed, there = in_bytes(found["needed_bytes"]), in_bytes(found["device_bytes"])
    said = f": {needed} needed{_in_pools(found)}, {there} there."
    return [start, (said + _to_go(s), False)]


def _of_fragmented(s: dict[str, Any]) -> Sentence:
    found = s["refused"]
    asked = in_bytes(found["request_bytes"])
    return [
        ("Out of memory, and fragmented", True),
        (f": {_room(found)}; {asked} asked. {_served(s)}", False),
    ]


def _of_crowded(s: dict[str, Any]) -> Sentence:
    found = s["refused"]
    others, there = in_bytes(found["others_bytes"]), in_bytes(found["device_bytes"])
    needed = in_bytes(found["needed_bytes"])
    said = f": others hold {others} of the device; {needed} needed, {there} left."
    return [("Out of memory, and crowded", True), (said, False)]


def _of_unknown(s: dict[str, Any]) -> Sentence:
    """Of a refusal whose device is not known."""
    found = s["refused"]
    said = f": {in_bytes(found['request_bytes'])} refused with {_brief(found)}."
    return [("Out of memory", True), (f"{said}{_needed(s)}", False)]


def _of_capacity(s: dict[str, Any]) -> Sentence:
    """Of replays that ran out of memory on the GPU that was asked for."""
    stopped = _list([run["name"] for run in s["allocators"].values() if not run["completed"]])
    size, live = in_bytes(s["device_bytes"]), in_bytes(s["live_peak_bytes"])
    start = f"Out of memory on {size} with {stopped}, and {s['verdict']}"
    return [(start, True), (f": {live} live at the peak.{_needed(s)}", False)]


def _growing(s: dict[str, Any]) -> str:
    """What no step gives back: the largest line of it."""
    if not s["grown"]:
        return ""
    row = s["grown"][0]
    return f" But `{row['name']}` grows {in_bytes(row['growth'])} a step."


def _of_fine(s: dict[str, Any]) -> Sentence:
    found, live = s["recorded"], in_bytes(s["live_peak_bytes"])
    if not s["history"]:
        held = f"{in_bytes(found['held_bytes'])} held: {_brief(found)}" if found else f"{live} live"
        return [("Fine", True), (f": {held}. No history was recorded.", False)]
    if found is None or not found["held_peak_bytes"]:
        return [("Fine", True), (f": {live} live at the peak.{_growing(s)}{_needed(s)}", False)]
    held = f"{in_bytes(found['held_peak_bytes'])} held for {live} live at the peak"
    end = f"; at the end {_holes(found)}" if found["free_bytes"] else ""
    said = f": {held}{end.split(' (')[0]}.{_growing(s)}{_needed(s)}"
    return [("Fine", True), (said, False)]


# ---- What would do ------------------------------------------------------------------------------


def _needs(s: dict[str, Any]) -> dict[str, int]:
    """The smallest device that suffices, by allocator; the least first. Nothing is
    said of replays that leave out what pools keep for themselves."""
    found = {
        name: run["min_capacity_bytes"]
        for name, run in s["allocators"].items()
        if run["min_capacity_bytes"] and is_modelled(s)
    }
    return dict(sorted(found.items(), key=lambda item: item[1]))


def _ways(needs: dict[str, int]) -> str:
    names: dict[str, list[str]] = {}
    for name, need in needs.items():
        names.setdefault(in_bytes(need), []).append(name)
    ordered = {size: [NAMES[n] for n in NAMES if n in found] for size, found in names.items()}
    return ", ".join(f"{_list(found)} {size}" for size, found in ordered.items())


def _needed(s: dict[str, Any]) -> str:
    """What each allocator needs: " Needed: Ductile 5.31 GiB, native 5.69 GiB."."""
    needs = _needs(s)
    return f" Needed: {_ways(needs)}." if needs else ""


def _own(s: dict[str, Any]) -> Optional[str]:
    """The allocator that the program ran with, as far as it was recorded."""
    return s["recorded"]["allocator"] if s["recorded"] else None


def _fitting(s: dict[str, Any]) -> list[str]:
    """The allocators with which it fits on the device of the recording, other than the one that
    it ran out of memory with."""
    found = s["refused"]
    return [n for n, need in _needs(s).items() if need <= found["device_bytes"] and n != _own(s)]


def _has_device(s: dict[str, Any]) -> bool:
    return s["refused"] is not None and s["refused"]["device_bytes"] is not None


def _served(s: dict[str, Any]) -> str:
    """Who would have served the request."""
    needs = _needs(s)
    if not needs or not _has_device(s):
        return _needed(s).strip()
    names = [NAMES[name] for name in _fitting(s)]
    if not names:
        return f"Not on this device with any of them:{_needed(s)[8:]}"
    more = f"; so would {_list(names[1:])}" if names[1:] else ""
    return f"{names[0]} would have served it{more}."


_OF = {FULL: _of_full, FRAGMENTED: _of_fragmented, CROWDED: _of_crowded, None: _of_unknown}


def headline(s: dict[str, Any]) -> Sentence:
    """The diagnosis, what was recorded, and what would do."""
    if s["refused"] is not None:
        return _OF[s["verdict"]](s)
    return _of_fine(s) if s["verdict"] == FINE else _of_capacity(s)


# ---- Why ----------------------------------------------------------------------------------------


def _stopped(s: dict[str, Any], recording: Recording, name: str) -> str:
    """Where an allocator did not complete, and what it had."""
    stops = recording.runs[name]["stops"]
    when = _when(s["allocators"][name]["stopped"], s["steps"])
    stop = next((stop for stop in reversed(stops) if not stop["completed"]), None)
    if stop is None:
        return when
    asked, capacity = in_bytes(stop["request_bytes"]), in_bytes(stop["capacity_bytes"])
    found = {f"{term}_bytes": stop[term] for term in ("live", "pending", "free")}
    found.update(holes=stop["holes"], largest_hole=stop["largest_hole"])
    found["in_pools_bytes"] = stop["free_in_pools"]
    room = stop["capacity_bytes"] - stop["held"]
    more = f" + {in_bytes(room)} not held" if room > 0 else ""
    return f"{when}: {asked} refused with {_terms(found)}{more} = {capacity}"


def _stops(s: dict[str, Any], recording: Recording) -> list[Line]:
    stopped = [name for name, run in s["allocators"].items() if not run["completed"]]
    return [(NAMES[name], _stopped(s, recording, name)) for name in stopped]


def _moment(s: dict[str, Any]) -> list[Line]:
    """Of what the holders and all else on the screen are."""
    found = s["moment"]
    if not s["history"]:
        return [("moment", "the end of the run: no history was recorded")]
    kind = "the refusal" if found["kind"] == "refusal" else "the live peak"
    return [("moment", f"{kind}, {_when(found, s['steps'])}: all below is of it")]


def _free(found: dict[str, Any]) -> list[Line]:
    """What lay free, and did not serve the request."""
    room = f"{in_bytes(found['device_free_bytes'])} on the device"
    held = f"{_holes(found)} + " if found["free_bytes"] else ""
    return [("free", f"{held.replace(' free', '', 1)}{room}")]


def _device(s: dict[str, Any]) -> list[Line]:
    """Whether what the request was refused on would do."""
    found, needs = s["refused"], _needs(s)
    if not _has_device(s):
        return []
    size, own = in_bytes(found["device_bytes"]), _own(s)
    others = f"; others had {in_bytes(found['others_bytes'])}" if found["others_bytes"] else ""
    if s["verdict"] in (FULL, CROWDED) and needs:
        said = f"{size} were there for PyTorch, too little{others}; needed: {_ways(needs)}"
        return [("device", said)]
    missing = _ways({n: need for n, need in needs.items() if need > found["device_bytes"]})
    more = [f"not enough for {missing}"] if missing else []
    if own and needs.get(own, found["device_bytes"] + 1) <= found["device_bytes"]:
        more.append(
            f"a replay of {NAMES[own]} fits too: its blocks lie elsewhere than the program's"
        )
    return [("device", f"{'; '.join([f'{size} for PyTorch', *more])}{others}")]


def _asked(s: dict[str, Any]) -> list[Line]:
    found = s["refused"]
    if found is None:
        return []
    by = f"`{found['by']}`, " if found["by"] else ""
    often = f"; the largest of {found['refusals']:,} refusals" if found["refusals"] > 1 else ""
    lines = [("asked", f"{by}{_when(found, s['steps'])}{often}")]
    if found["limited"]:
        lines.append(("limit", "of the process, such as set_per_process_memory_fraction"))
    pending = f" + {in_bytes(found['pending_bytes'])} pending" if found["pending_bytes"] else ""
    kept = f" + {in_bytes(found['in_pools_bytes'])} in pools" if found["in_pools_bytes"] else ""
    needed = (
        f"{in_bytes(found['needed_bytes'])} = {in_bytes(found['live_bytes'])} live{pending}{kept} "
        f"+ {in_bytes(found['request_bytes'])} asked"
    )
    return [*lines, *_free(found), ("needed", needed), *_device(s)]


def _pools(s: dict[str, Any]) -> list[Line]:
    """Each that is not the common one, and what it keeps from the others."""
    return [
        (
            "pools",
            f"{pool['name']}: {in_bytes(pool['held_bytes'])} held"
            + (f", {_holes(pool)}, for itself alone" if pool["free_bytes"] else ""),
        )
        for pool in s["pools"]
    ]


def _poolless(s: dict[str, Any]) -> list[Line]:
    n = s["blocks_of_unknown_pool"]
    if not n:
        return []
    why = "the segment went back before the end; a replay knows none for"
    return [
        (
            "pools",
            f"of {_count(n, 'block')} the pool is not known: {why} {'it' if n == 1 else 'them'}",
        )
    ]


def _gpus(s: dict[str, Any]) -> list[Line]:
    """The others of the snapshot."""
    others = [
        f"GPU {gpu['gpu']} held {in_bytes(max(gpu['held_peak_bytes'], gpu['live_peak_bytes']))} at "
        f"most ({_count(gpu['events'], 'event')}"
        + (f", {_count(gpu['refusals'], 'refusal')})" if gpu["refusals"] else ")")
        for gpu in s["gpus"]
        if not gpu["shown"]
    ]
    if not others:
        return []
    return [("GPU", f"{s['gpu']} of {len(s['gpus'])} is shown (--gpu N); {'; '.join(others)}")]


def _grown(s: dict[str, Any]) -> list[Line]:
    if s["steps"] is not None and not s["tells_growth"]:
        return [("grows", f"{s['steps']:,} steps are too few to tell")]
    return [
        (
            "grows",
            f"{in_bytes(row['growth'])} a step `{row['name']}`, {in_bytes(row['end'])} at the end",
        )
        for row in s["grown"]
    ]


def _share(size: int, whole: int) -> str:
    return f"{100 * size / whole:.0f} %" if whole else ""


def _holders(s: dict[str, Any]) -> list[Line]:
    whole = s["moment"]["live_bytes"]
    return [
        ("held by", f"{in_bytes(row['bytes'])} ({_share(row['bytes'], whole)}) {row['name']}")
        for row in s["holders"]
    ]


WHY_APART = {
    "packed again": "the {before} from before the recording lie side by side there, for what was "
    "freed between them is not recorded",
    "pools": "it knows no pools",
    "unknown": "why is not recorded (options, memory given back)",
}


def _apart(s: dict[str, Any]) -> list[Line]:
    """Why the recorded allocator and its model held different amounts."""
    found = s["recorded"]
    if not found["apart"]:
        return []
    name, size = NAMES[found["allocator"]], in_bytes(found["modelled_peak_bytes"])
    until = " before that" if s["refused"] else ""
    why = WHY_APART[found["apart"]].format(before=in_bytes(found["before_bytes"]))
    return [("modelled", f"a replay of the same allocator ({name}) holds {size}{until}: {why}")]


def _recorded(s: dict[str, Any]) -> list[Line]:
    found = s["recorded"]
    if found is None or not s["history"]:
        return []
    ends = f"{in_bytes(found['held_peak_bytes'])} held at most"
    if s["refused"] is None and found["held_bytes"]:
        end = {**found, "in_pools_bytes": kept_in_pools(s["pools"])}
        ends += f"; at the end {in_bytes(found['held_bytes'])} = {_terms(end)}"
    return [("recorded", ends), *_apart(s)]


def _held_lines(s: dict[str, Any]) -> list[Line]:
    """By allocator. Where memory is short, less may do."""
    held = {n: r["held_peak_bytes"] for n, r in s["allocators"].items() if r["completed"]}
    if not held or not is_modelled(s):
        return []
    label = f"on {in_bytes(s['device_bytes'])}" if s["capacity_given"] else "without a cap"
    is_more = any(
        held.get(name, 0) > need and in_bytes(held[name]) != in_bytes(need)
        for name, need in _needs(s).items()
    )
    more = "; where memory is short, less does" if is_more else ""
    return [(label, f"held: {_ways(held)}{more}")]


def _options(s: dict[str, Any]) -> list[Line]:
    """The option of Ductile that saves most, where it saves something."""
    ours = s["allocators"]["ductile"]["min_capacity_bytes"]
    found = [o for o in s["options"] if o["completed"] and o["min_capacity_bytes"]]
    if not ours or not found or not is_modelled(s):
        return []
    best = min(found, key=lambda option: int(option["min_capacity_bytes"]))
    saved = ours - best["min_capacity_bytes"]
    if 200 * saved < ours:
        return []
    option = best["setting"].replace("=", ":")
    return [("with " + option, f"Ductile needs {in_bytes(saved)} less ({best['purpose']})")]


def _outside(recording: Recording) -> list[Line]:
    return [("outside", f"{recording.outside}, now")] if recording.outside else []


def requests(n: int) -> str:
    return "1 request" if n == 1 else f"{n:,} requests"


def _spilled(recording: Recording, s: dict[str, Any]) -> list[Line]:
    """Of a process that lives what lies in the host now, else what did at most."""
    found = s["recorded"]
    if recording.spilled or found is None or not found["spills"]:
        return [("spilled", f"{recording.spilled}, now")] if recording.spilled else []
    most = in_bytes(found["spilled_peak_bytes"])
    return [("spilled", f"{most} from the host at most, {requests(found['spills'])}")]


def lines(recording: Recording, s: dict[str, Any]) -> list[Line]:
    """Why, in the order in which a reader asks."""
    way = _in_the_way(recording, s)
    return [
        *_gpus(s),
        *_asked(s),
        *_outside(recording),
        *_spilled(recording, s),
        *_pools(s),
        *_poolless(s),
        *_stops(s, recording),
        *_moment(s),
        *_holders(s),
        *_grown(s),
        *_recorded(s),
        *_held_lines(s),
        *_options(s),
        *([("in the way", way)] if way else []),
    ]


def spell(name: str, said: Sentence, found: list[Line]) -> list[str]:
    """The verdict as lines of text: the headline, and the others with their labels."""
    width = max((len(label) for label, _ in found), default=0)
    shown, last = [f"{name}: {plain(said).strip()}"], ""
    for label, text in found:
        shown.append(f"  {'' if label == last else label:{width}}  {text}")
        last = label
    return shown


# ---- What stands in the way --------------------------------------------------------------------


def _blocks(row: dict[str, Any]) -> str:
    first = row["who"][0]
    name = f"`{first['name']}`" if first["stack"] else first["name"]
    mostly = "mostly " if len(row["who"]) > 1 else ""
    of = "1 block" if row["blocks"] == 1 else f"{row['blocks']:,} blocks"
    return f"{of} ({in_bytes(row['live_bytes'])}: {mostly}{name})"


def _without(row: dict[str, Any]) -> str:
    elsewhere = "; other holes have room for them" if row["moves"] else ""
    return f" Without {_blocks(row)} it has {in_bytes(row['bytes'])}{elsewhere}."


def _who_has(name: str) -> str:
    return "PyTorch" if name == _openings.RECORDED else NAMES[name]


def _refused_on(recording: Recording, name: str, found: dict[str, Any]) -> str:
    """What was refused, and on how much."""
    asked, capacity = in_bytes(found["request"]), in_bytes(found["capacity"])
    if name == _openings.RECORDED:
        return f"{asked} were refused"
    if capacity == in_bytes(recording.runs[name].get("min_capacity_bytes") or 0):
        capacity = f"just below {capacity}"
    return f"With {NAMES[name]} on {capacity}, {asked} are refused"


def openings(recording: Recording, name: str, found: dict[str, Any]) -> str:
    """One or two sentences about the blocks that keep an allocator's free memory apart."""
    hole = in_bytes(found["largest_hole"])
    where, least = _when(found["place"], recording.n_steps), found["least"]
    if found["request"] is None:
        kind = "Just before the refusal" if recording.is_of_refusal else "At the live peak"
        text = f"{kind}, {where}, the largest hole of {_who_has(name)} has {hole}."
        return text + "".join(_without(row) for row in found["widest"][:1])
    refused = _refused_on(recording, name, found)
    text = f"{refused} {where}, where the largest hole that may serve it has {hole}."
    if least is None:
        return f"{text} No 64 neighbouring blocks make room for it."
    return text + _without(least)


def _is_won(found: Optional[dict[str, Any]]) -> bool:
    """A hole that serves the request opens for less live memory than the request has bytes."""
    return (
        found is not None
        and found["least"] is not None
        and found["largest_hole"] < found["request"]
        and found["least"]["live_bytes"] < found["request"]
    )


def _in_the_way(recording: Recording, s: dict[str, Any]) -> Optional[str]:
    """Of the recorded allocator at the refusal, else of the one that needs most, where holes are
    what it lacks."""

    def need(name: str) -> float:
        run = s["allocators"][name]
        return float(run["min_capacity_bytes"] or 0) if run["completed"] else float("inf")

    if s["verdict"] == FULL:
        return None
    most = max(reversed(list(s["allocators"])), key=need)
    name = _openings.RECORDED if s["refused"] is not None else most
    found = _openings.openings(recording, name)
    return openings(recording, name, found) if found is not None and _is_won(found) else None


def comparison(before: Recording, after: Recording, by: str) -> str:
    """One sentence about two runs."""
    change = after.moment_bytes - before.moment_bytes
    verb = "grew" if change > 0 else "shrank"
    is_refusal = before.is_of_refusal or after.is_of_refusal
    what = "need at the moment" if is_refusal else "live peak"
    if change == 0:
        return f"Both runs have a {what} of {in_bytes(before.moment_bytes)}."
    held = []
    for name in NAMES:
        was, now = (r.runs[name]["reserved_peak_bytes"] for r in (before, after))
        held.append(f"{NAMES[name]} from {in_bytes(was)} to {in_bytes(now)}")
    how = "by the stack that allocated it" if by == "stack" else "by the size of blocks"
    return (
        f"The {what} {verb} by {in_bytes(abs(change))}, from {in_bytes(before.moment_bytes)} to "
        f"{in_bytes(after.moment_bytes)}; what is held changed under {_list(held)}. Below, live "
        f"memory at each run's own {'moment' if is_refusal else 'peak'}, {how}."
    )
