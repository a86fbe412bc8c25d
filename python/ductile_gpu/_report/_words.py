# SPDX-License-Identifier: Apache-2.0
"""The sentences of a report. A sentence is a list of pieces: text, and whether it is strong."""

from __future__ import annotations

import re
from typing import Any, Optional

from ductile_gpu._cli.common import in_bytes
from ductile_gpu._report import _openings
from ductile_gpu._report._collect import NAMES, Recording

Sentence = list[tuple[str, bool]]


def plain(sentence: Sentence) -> str:
    """The text alone."""
    return "".join(text for text, _ in sentence)


def _when(recording: Recording, event: int) -> str:
    if recording.n_steps < 2:
        return f"at event {event:,}"
    return f"in step {recording.step_of(event):,} of {recording.n_steps:,}"


def _list(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _peak(recording: Recording) -> Sentence:
    where = _when(recording, int(recording.facts["peak_event"]))
    live = in_bytes(recording.live_peak)
    return [("The peak is ", False), (f"{live} live", True), (f", {where}. ", False)]


def _recorded_refusals(recording: Recording) -> Sentence:
    """What the recorded program itself was refused."""
    refusals = recording.facts["refusals"]
    if not refusals:
        return []
    first = refusals[0]
    asked, free = in_bytes(first["request_bytes"]), in_bytes(first["device_free_bytes"])
    more = f", and {len(refusals) - 1} more later" if len(refusals) > 1 else ""
    return [
        (f"The program ran out of memory {_when(recording, first['event'])}", True),
        (f": {asked} were refused with {free} free on the device{more}. ", False),
    ]


def _refusal(recording: Recording, name: str, run: dict[str, Any]) -> Sentence:
    event = int(run["stopped_at_event"])
    stop = next((s for s in reversed(run["stops"]) if not s["completed"]), None)
    pieces: Sentence = [(f"With {NAMES[name]}, memory runs out {_when(recording, event)}", True)]
    if stop is not None:
        terms = [f"{in_bytes(stop[term])} {term}" for term in ("live", "pending") if stop[term]]
        if stop["free"]:
            holes = f"{stop['holes']:,} hole{'s' if stop['holes'] != 1 else ''}"
            largest = in_bytes(stop["largest_hole"])
            terms.append(f"{in_bytes(stop['free'])} free in {holes} (largest {largest})")
        room = stop["capacity_bytes"] - stop["held"]
        if room > 0:
            terms.append(f"{in_bytes(room)} not held")
        asked, capacity = in_bytes(stop["request_bytes"]), in_bytes(stop["capacity_bytes"])
        pieces.append((f": {asked} were refused with {' + '.join(terms)} = {capacity}", False))
    return [*pieces, (". ", False)]


def _holding(recording: Recording) -> Sentence:
    done = {name: run for name, run in recording.runs.items() if run["completed"]}
    if not done:
        return []
    peaks = {name: in_bytes(run["reserved_peak_bytes"]) for name, run in done.items()}
    held = [f"{peak} by {NAMES[name]}" for name, peak in peaks.items()]
    held[0] = held[0].replace(" by ", " are held by ", 1)
    return [(f"Without a cap, {_list(held)}. ", False)]


def _smallest(recording: Recording) -> Sentence:
    found = {
        name: run["min_capacity_bytes"]
        for name, run in recording.runs.items()
        if run.get("min_capacity_bytes")
    }
    if not found:
        return []
    sizes = [f"{in_bytes(size)} with {NAMES[name]}" for name, size in found.items()]
    return [("The smallest device that suffices has ", False), (_list(sizes), True), (". ", False)]


def _binding(recording: Recording) -> Sentence:
    """What the allocator that needs most spends beyond what is live."""
    found = {
        name: run["min_capacity_bytes"]
        for name, run in recording.runs.items()
        if run.get("min_capacity_bytes")
    }
    capacity = min(int(run["capacity_bytes"]) for run in recording.runs.values())
    if recording.live_peak > capacity:
        return [
            (f"What binds is live memory: nothing can serve it in {in_bytes(capacity)}.", False)
        ]
    if not found:
        return []
    most = max(found, key=lambda name: found[name])
    beyond = found[most] - recording.live_peak
    verb = "need" if most == "expandable" else "needs"
    if beyond * 50 < recording.live_peak:
        return [("What binds is live memory: no allocator can do with much less.", False)]
    return [
        (
            f"What binds is live memory; {NAMES[most]} {verb} {in_bytes(beyond)} more, "
            "lost between blocks.",
            False,
        )
    ]


def verdict(recording: Recording) -> Sentence:
    """What the peak was or what ran out, what would suffice, and the term that binds."""
    pieces = [*_recorded_refusals(recording), *_peak(recording)]
    for name, run in recording.runs.items():
        if not run["completed"]:
            pieces += _refusal(recording, name, run)
    pieces += [*_holding(recording), *_smallest(recording), *_binding(recording)]
    return [*pieces, *_in_the_way(recording)]


# ---- What stands in the way --------------------------------------------------------------------

_LIBRARY = re.compile(r"[\\/](torch|site-packages|dist-packages|lib[\\/]python)[\\/.]")


def telling_frame(stack: str) -> str:
    """The frame that says most: the innermost of the program itself, not of the library."""
    frames = stack.split("\n")
    return next((frame for frame in frames if not _LIBRARY.search(frame)), frames[0])


def _blocks(row: dict[str, Any]) -> str:
    first = row["who"][0]
    name = f"`{telling_frame(first['key'])}`" if first["stack"] else first["key"]
    mostly = "mostly " if len(row["who"]) > 1 else ""
    of = "1 block" if row["blocks"] == 1 else f"{row['blocks']:,} blocks"
    return f"{of} ({in_bytes(row['live_bytes'])}: {mostly}{name})"


def _elsewhere(row: dict[str, Any]) -> str:
    return "; other holes have room for them" if row["moves"] else ""


def openings(recording: Recording, name: str, found: dict[str, Any]) -> str:
    """One or two sentences about the blocks that keep an allocator's free memory apart."""
    hole = in_bytes(found["largest_hole"])
    where, least = _when(recording, found["event"]), found["least"]
    if found["request"] is None:
        text = f"At the live peak, {where}, the largest hole of {NAMES[name]} has {hole}."
        widest = found["widest"][:1]
        more = [
            f" Without {_blocks(row)} it has {in_bytes(row['bytes'])}{_elsewhere(row)}."
            for row in widest
        ]
        return text + "".join(more)
    asked, capacity = in_bytes(found["request"]), in_bytes(found["capacity"])
    text = (
        f"With {NAMES[name]} on {capacity}, {asked} are refused {where}, where the largest hole "
        f"has {hole}."
    )
    if least is None:
        return f"{text} No 64 neighbouring blocks make room for it."
    return f"{text} Without {_blocks(least)} it has {in_bytes(least['bytes'])}{_elsewhere(least)}."


def _is_won(found: Optional[dict[str, Any]]) -> bool:
    """A hole that serves the request opens for less live memory than the request has bytes."""
    return (
        found is not None
        and found["least"] is not None
        and found["largest_hole"] < found["request"]
        and found["least"]["live_bytes"] < found["request"]
    )


def _in_the_way(recording: Recording) -> Sentence:
    """Of the allocator that needs most, where holes are what it lacks."""

    def need(name: str) -> float:
        run = recording.runs[name]
        return float(run.get("min_capacity_bytes") or 0) if run["completed"] else float("inf")

    most = max(reversed(list(recording.runs)), key=need)
    found = _openings.openings(recording, most)
    if found is None or not _is_won(found):
        return []
    return [(f" {openings(recording, most, found)}", False)]


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
