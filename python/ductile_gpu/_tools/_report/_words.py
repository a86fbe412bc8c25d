# SPDX-License-Identifier: Apache-2.0
"""The sentences of a report, of the numbers of `_summary`.

A sentence is a list of pieces: text, and whether it is strong. The verdict is one sentence that
says what happened and what would do, and lines that say why.
"""

from __future__ import annotations

from typing import Any, Optional

from ductile_gpu._tools._report import _openings
from ductile_gpu._tools._report._collect import NAMES, Recording
from ductile_gpu._tools._sizes import in_bytes

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


def _list(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _holes(found: dict[str, Any]) -> str:
    """Free memory, and in how many pieces it lies."""
    text = f"{in_bytes(found['free_bytes'])} free"
    if found.get("holes") is None:
        return text
    if found["holes"] == 1:
        return f"{text} in 1 hole"
    largest = found["largest_hole"]
    more = f" (largest {in_bytes(largest)})" if largest else ""
    return f"{text} in {found['holes']:,} holes{more}"


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


def _of_refusal(s: dict[str, Any]) -> Sentence:
    found = s["refused"]
    asked = in_bytes(found["request_bytes"])
    if not found["replayed"]:
        return [
            (f"{asked} were refused", True),
            (", more than any device has; what follows is of the run without it. ", False),
        ]
    return [(f"{asked} refused", True), (f": {_brief(found)}. ", False)]


def _of_held(s: dict[str, Any]) -> Sentence:
    found = s["recorded"]
    if found is None:
        return [(f"{in_bytes(s['live_peak_bytes'])} live", True), (". ", False)]
    return [(f"{in_bytes(found['held_bytes'])} held", True), (f": {_brief(found)}. ", False)]


def _of_stops(s: dict[str, Any], stopped: list[str]) -> Sentence:
    """Under allocators that did not complete."""
    names = _list([NAMES[name] for name in stopped])
    return [(f"Memory runs out with {names}", True), (". ", False)]


def _of_peak(s: dict[str, Any]) -> Sentence:
    return [(f"{in_bytes(s['live_peak_bytes'])} live at the peak", True), (". ", False)]


# ---- What would do ------------------------------------------------------------------------------


def _needs(s: dict[str, Any]) -> dict[str, int]:
    """The smallest device that suffices, by allocator; the least first."""
    found = {
        name: run["min_capacity_bytes"]
        for name, run in s["allocators"].items()
        if run["min_capacity_bytes"]
    }
    return dict(sorted(found.items(), key=lambda item: item[1]))


def _ways(needs: dict[str, int]) -> str:
    names: dict[str, list[str]] = {}
    for name, need in needs.items():
        names.setdefault(in_bytes(need), []).append(NAMES[name])
    return ", ".join(f"{size} with {_list(found)}" for size, found in names.items())


def _fitting(s: dict[str, Any]) -> list[str]:
    """The allocators with which it fits on the device of the recording, other than the one that
    it ran out of memory with."""
    found, own = s["refused"], s["recorded"]["allocator"] if s["recorded"] else None
    return [n for n, need in _needs(s).items() if need <= found["device_bytes"] and n != own]


def _has_device(s: dict[str, Any]) -> bool:
    return s["refused"] is not None and s["refused"]["device_bytes"] is not None


def _fits(s: dict[str, Any]) -> Sentence:
    needs = _needs(s)
    if not needs:
        return _held(s)
    if _has_device(s) and _fitting(s):
        names = _list([NAMES[name] for name in _fitting(s)])
        size = in_bytes(s["refused"]["device_bytes"])
        return [("Fits", True), (f" on its {size} with {names}.", False)]
    told = list(needs)
    if s["refused"] is not None and len(needs) > 1:  # the least, and what it ran with
        own = s["recorded"]["allocator"] if s["recorded"] else "classic"
        told = [told[0], own if own in needs and own != told[0] else told[-1]]
    return [("Fits", True), (f" on {_ways({name: needs[name] for name in told})}.", False)]


def _held(s: dict[str, Any]) -> Sentence:
    done = {n: run for n, run in s["allocators"].items() if run["completed"]}
    if not done:
        return []
    sizes = [f"{in_bytes(run['held_peak_bytes'])} by {run['name']}" for run in done.values()]
    sizes[0] = sizes[0].replace(" by ", " are held by ", 1)
    return [(f"Without a cap, {_list(sizes)}.", False)]


def headline(s: dict[str, Any]) -> Sentence:
    """What happened, and on which device it would fit with what."""
    stopped = [name for name, run in s["allocators"].items() if not run["completed"]]
    if not s["history"]:
        return [*_of_held(s), ("No history was recorded", True), (".", False)]
    if s["refused"] is not None:
        return [*_of_refusal(s), *_fits(s)]
    if stopped:
        return [*_of_stops(s, stopped), *_fits(s)]
    return [*_of_peak(s), *_fits(s)]


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
    room = stop["capacity_bytes"] - stop["held"]
    more = f" + {in_bytes(room)} not held" if room > 0 else ""
    return f"{when}: {asked} refused with {_terms(found)}{more} = {capacity}"


def _stops(s: dict[str, Any], recording: Recording) -> list[Line]:
    stopped = [name for name, run in s["allocators"].items() if not run["completed"]]
    return [(NAMES[name], _stopped(s, recording, name)) for name in stopped]


def _peak(s: dict[str, Any]) -> list[Line]:
    if s["refused"] is not None or not s["history"]:
        return []
    return [("peak", _when(s["peak"], s["steps"]))]


def _free(found: dict[str, Any]) -> list[Line]:
    """What lay free, and did not serve the request."""
    room = f"{in_bytes(found['device_free_bytes'])} on the device"
    held = f"{_holes(found)} + " if found["free_bytes"] else ""
    return [("free", f"{held.replace(' free', '', 1)}{room}")]


def _device(s: dict[str, Any]) -> list[Line]:
    """Whether what the request was refused on would do."""
    found, needs = s["refused"], _needs(s)
    if not _has_device(s) or not needs:
        return []
    size, own = in_bytes(found["device_bytes"]), s["recorded"] and s["recorded"]["allocator"]
    others = f"; {in_bytes(found['others_bytes'])} had others" if found["others_bytes"] else ""
    if not _fitting(s):
        return [("device", f"its {size} for PyTorch do not suffice{others}")]
    missing = _ways({n: need for n, need in needs.items() if need > found["device_bytes"]})
    more = [f"it needs {missing}"] if missing else []
    if own and needs.get(own, found["device_bytes"] + 1) <= found["device_bytes"]:
        more.append(f"the model of {NAMES[own]} fits too, unlike the recorded one")
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
    needed = (
        f"{in_bytes(found['needed_bytes'])} = {in_bytes(found['live_bytes'])} live{pending} + "
        f"{in_bytes(found['request_bytes'])} asked"
    )
    return [*lines, *_free(found), ("needed", needed), *_device(s)]


def _share(size: int, whole: int) -> str:
    return f"{100 * size / whole:.0f} %" if whole else ""


def _holders(s: dict[str, Any]) -> list[Line]:
    whole = s["live_peak_bytes"]
    return [
        ("held by", f"{in_bytes(row['bytes'])} ({_share(row['bytes'], whole)}) {row['name']}")
        for row in s["holders"]
    ]


WHY_APART = {
    "packed again": "a replay packs what was there before the recording again, without its holes",
    "unknown": "why is not recorded (options, pools of graphs, memory given back)",
}


def _recorded(s: dict[str, Any]) -> list[Line]:
    found = s["recorded"]
    if found is None or not s["history"]:
        return []
    ends = f"{in_bytes(found['held_peak_bytes'])} held at most"
    if s["refused"] is None and found["held_bytes"]:
        ends += f"; at the end {in_bytes(found['held_bytes'])} = {_terms(found)}"
    lines = [("recorded", ends)]
    if found["apart"]:
        name, size = NAMES[found["allocator"]], in_bytes(found["modelled_peak_bytes"])
        until = " before that" if s["refused"] else ""
        lines.append(("modelled", f"{name} holds {size}{until}: {WHY_APART[found['apart']]}"))
    return lines


def _held_lines(s: dict[str, Any]) -> list[Line]:
    held = plain(_held(s)).removeprefix("Without a cap, ").rstrip(".")
    return [("without a cap", held)] if held and _needs(s) else []


def _options(s: dict[str, Any]) -> list[Line]:
    """The option of Ductile that saves most, where it saves something."""
    ours = s["allocators"]["ductile"]["min_capacity_bytes"]
    found = [o for o in s["options"] if o["completed"] and o["min_capacity_bytes"]]
    if not ours or not found:
        return []
    best = min(found, key=lambda option: int(option["min_capacity_bytes"]))
    saved = ours - best["min_capacity_bytes"]
    if 200 * saved < ours:
        return []
    option = best["setting"].replace("=", ":")
    return [("with " + option, f"Ductile needs {in_bytes(saved)} less ({best['purpose']})")]


def lines(recording: Recording, s: dict[str, Any]) -> list[Line]:
    """Why, in the order in which a reader asks."""
    way = _in_the_way(recording, s)
    return [
        *_asked(s),
        *_peak(s),
        *_stops(s, recording),
        *_holders(s),
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


def openings(recording: Recording, name: str, found: dict[str, Any]) -> str:
    """One or two sentences about the blocks that keep an allocator's free memory apart."""
    hole = in_bytes(found["largest_hole"])
    where, least = _when(found["place"], recording.n_steps), found["least"]
    if found["request"] is None:
        text = f"At the live peak, {where}, the largest hole of {NAMES[name]} has {hole}."
        return text + "".join(_without(row) for row in found["widest"][:1])
    asked, capacity = in_bytes(found["request"]), in_bytes(found["capacity"])
    if capacity == in_bytes(recording.runs[name].get("min_capacity_bytes") or 0):
        capacity = f"just below {capacity}"
    text = (
        f"With {NAMES[name]} on {capacity}, {asked} are refused {where}, where the largest hole "
        f"has {hole}."
    )
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
    """Of the allocator that needs most, where holes are what it lacks."""

    def need(name: str) -> float:
        run = s["allocators"][name]
        return float(run["min_capacity_bytes"] or 0) if run["completed"] else float("inf")

    most = max(reversed(list(s["allocators"])), key=need)
    found = _openings.openings(recording, most)
    return openings(recording, most, found) if found is not None and _is_won(found) else None


def comparison(before: Recording, after: Recording, by: str) -> str:
    """One sentence about two runs."""
    change = after.live_peak - before.live_peak
    verb = "grew" if change > 0 else "shrank"
    if change == 0:
        return f"Both runs have a live peak of {in_bytes(before.live_peak)}."
    held = []
    for name in NAMES:
        was, now = (r.runs[name]["reserved_peak_bytes"] for r in (before, after))
        held.append(f"{NAMES[name]} from {in_bytes(was)} to {in_bytes(now)}")
    how = "by the stack that allocated it" if by == "stack" else "by the size of blocks"
    return (
        f"The live peak {verb} by {in_bytes(abs(change))}, from {in_bytes(before.live_peak)} to "
        f"{in_bytes(after.live_peak)}; what is held changed under {_list(held)}. Below, live "
        f"memory at each run's own peak, {how}."
    )
