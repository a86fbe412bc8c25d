# SPDX-License-Identifier: Apache-2.0
"""What holds the memory at the moment of the report, what is live at the end, and what grows.

Every view is a partition of the same holders, so that each of them sums to what was live at the
moment and asked for then.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from ductile_gpu._tools._report import _frames
from ductile_gpu._tools._report._collect import Recording
from ductile_gpu._tools._report._scaling import line_of

NO_STACK = "no stack recorded"
REFUSED = "asked for and refused"
BEFORE = "allocated before the recording began"

# The first rule that any frame of a stack matches. Frames are "FUNCTION FILE:LINE".
_RULES = tuple(
    (category, re.compile(pattern))
    for category, pattern in (
        ("graphs", r"torch.cuda.graphs\.py|^capture_begin "),
        ("optimizer", r"torch.optim.|[^ ]*(adam|sgd|optimizer)[^ /\\]*\.py:"),
        (
            "backward pass (gradients)",
            r"torch.autograd.(__init__|graph|function)\.py|^backward |^torch::autograd::Engine::",
        ),
        (
            "weights",
            r"^(_apply|convert|to|cuda|half|bfloat16|float|load_state_dict|from_pretrained|"
            r"reset_parameters|load_weights?|load_model) |nn.init\.py",
        ),
        ("forward pass (activations)", r"^(forward|_call_impl|__call__) |nn.functional\.py"),
    )
)
# Without stacks only the length of life tells.
LASTING = "kept through the run (weights, gradients, optimizer)"
PASSING = "of one step (activations, temporaries)"
TEMPORARY = "temporaries"  # of a known stack that is none of the above, and not kept
OTHER = "other"


def category_of(stack: str, is_before: bool, is_lasting: bool) -> str:
    """What a block is for, as far as its stack and its length of life tell."""
    if not stack:
        return BEFORE if is_before else LASTING if is_lasting else PASSING
    for category, pattern in _RULES:
        if any(pattern.search(frame) for frame in stack.split("\n")):
            return category
    return OTHER if is_lasting else TEMPORARY


def _size_label(size_from: int) -> str:
    names = ("bytes", "KiB", "MiB", "GiB", "TiB")
    unit = 0
    while size_from >= 1024 and unit < len(names) - 1:
        size_from //= 1024
        unit += 1
    upper, upper_unit = (2 * size_from, unit) if size_from < 512 else (1, unit + 1)
    return f"{size_from} {names[unit]} to {upper} {names[upper_unit]}"


def _stack_key(recording: Recording, holder: dict[str, Any]) -> str:
    before = BEFORE if holder["before_recording"] else NO_STACK
    return recording.stack(holder["stack"]) or before


def title(row: dict[str, Any], by: str) -> str:
    """What a row is called in one line."""
    return str(_frames.name_of(row["key"])) if by == "stack" and row["is_stack"] else row["key"]


def _key(recording: Recording, holder: dict[str, Any], by: str) -> str:
    if holder["refused"] and (by == "category" or not holder["stack"]):
        return REFUSED
    if by == "stack":
        return _stack_key(recording, holder)
    if by == "category":
        stack = recording.stack(holder["stack"])
        return category_of(stack, holder["before_recording"], holder["lasting"])
    if by == "stream":
        return f"stream {holder['stream']}"
    return _size_label(holder["size_from"])


FEWEST_STEPS = 3  # that tell whether something grows
FEW_STEPS = 7  # of fewer each has to be more than the one before


def tells_growth(recording: Recording) -> bool:
    """Whether there are steps enough to say what grows from each to the next."""
    return recording.n_steps >= FEWEST_STEPS


def _growth(recording: Recording, levels: list[int]) -> int:
    """Bytes a step that are never given back; 0 unless it grows in nearly all of the later steps,
    or in each of a few."""
    steps: list[int] = recording.facts["level_steps"]
    if len(levels) < FEWEST_STEPS:
        return 0
    are_few = len(levels) < FEW_STEPS
    late = levels if are_few else levels[len(levels) // 2 :]
    rises = sum(b > a for a, b in zip(late, late[1:]))
    falls = sum(b < a for a, b in zip(late, late[1:]))
    least = len(late) - 1 if are_few else (len(late) - 1) / 2
    if falls > 0 or rises < least:
        return 0
    apart = (steps[-1] - steps[0]) / (len(steps) - 1)
    return round(line_of(range(len(late)), late)[1] / apart)  # by least squares


def group(recording: Recording, by: str, always: bool = False) -> list[dict[str, Any]]:
    """Rows of key, bytes, blocks and freed_bytes at the moment; bytes at each of the fullest
    moments of the run, of which the last is its end; and growth a step. The largest first. What
    was refused has rows of its own. always: also what holds nothing at the moment."""
    n = len(recording.facts["moment_events"])
    rows: dict[tuple[str, bool], dict[str, Any]] = {}
    for holder in recording.facts["holders"]:
        key, refused = _key(recording, holder, by), holder["refused"]
        row = rows.setdefault(
            (key, refused),
            {"key": key, "bytes": 0, "blocks": 0, "freed": 0, "levels": [], "moments": [0] * n,
             "refused": refused},
        )  # fmt: skip
        row["is_stack"] = by == "stack" and bool(holder["stack"])
        row["bytes"] += holder["bytes"]
        row["blocks"] += holder["blocks"]
        row["freed"] += holder["freed_bytes"]
        levels = row["levels"] or [0] * len(holder["levels"])
        row["levels"] = [a + b for a, b in zip(levels, holder["levels"])]
        if "moments" in holder:
            row["moments"] = [a + b for a, b in zip(row["moments"], holder["moments"])]
    for row in rows.values():
        row["growth"] = _growth(recording, row.pop("levels"))
        row["end"] = row["moments"][-1] if n else row["bytes"]
    return sorted(
        (
            row
            for row in rows.values()
            if row["bytes"] or row["growth"] or (always and any(row["moments"]))
        ),
        key=lambda row: (
            -row["bytes"],
            -row["growth"],
            -max(row["moments"], default=0),
            row["key"],
        ),
    )


MOST_BANDS = 12


def over_time(recording: Recording, by: str) -> list[dict[str, Any]]:
    """What the largest rows hold at the fullest moments of the run, and what the others do; without
    what was refused, which was never held."""
    n = len(recording.facts["moment_events"])
    rows: dict[str, list[int]] = {}
    for holder in recording.facts["holders"]:
        if "moments" in holder and not holder["refused"]:
            row = {"key": _key(recording, holder, by), "is_stack": bool(holder["stack"])}
            name = title(row, by)
            rows[name] = [a + b for a, b in zip(rows.get(name, [0] * n), holder["moments"])]
    ordered = sorted(rows.items(), key=lambda item: -max(item[1]))
    found = [{"name": name, "moments": moments} for name, moments in ordered[:MOST_BANDS]]
    if len(ordered) > MOST_BANDS:
        rest = [sum(column) for column in zip(*(moments for _, moments in ordered[MOST_BANDS:]))]
        found.append({"name": f"{len(ordered) - MOST_BANDS:,} others", "moments": rest})
    return found


def views(recording: Recording) -> dict[str, list[dict[str, Any]]]:
    """All groupings that say something: by stack only where stacks were recorded."""
    kinds = ["category", "stream", "size"]
    if recording.facts["stacks"]:
        kinds.insert(0, "stack")
    return {by: group(recording, by, always=True) for by in kinds}


def _plain(stack: str) -> str:
    """Lines move between two versions of a program: functions and files tell."""
    return re.sub(r":\d+(?=\n|$)", "", stack)


def _sums(rows: Iterable[dict[str, Any]], is_stack: bool) -> dict[str, tuple[int, int]]:
    sums: dict[str, tuple[int, int]] = {}
    for row in rows:
        key = _plain(row["key"]) if is_stack else row["key"]
        size, blocks = sums.get(key, (0, 0))
        sums[key] = (size + row["bytes"], blocks + row["blocks"])
    return sums


def compare(before: Recording, after: Recording) -> tuple[str, list[dict[str, Any]]]:
    """What grew and what shrank, by stack where both have stacks; largest change first.

    The changes sum to the difference of what was live at the two moments.
    """
    both = bool(before.facts["stacks"]) and bool(after.facts["stacks"])
    by = "stack" if both else "size"
    old = _sums(group(before, by), both)
    new = _sums(group(after, by), both)
    rows: list[dict[str, Any]] = []
    for key in {*old, *new}:
        was, n_was = old.get(key, (0, 0))
        now, n_now = new.get(key, (0, 0))
        row = {"key": key, "before": was, "after": now, "change": now - was}
        rows.append({**row, "blocks_before": n_was, "blocks_after": n_now})
    rows.sort(key=lambda row: (-abs(row["change"]), row["key"]))
    return by, rows
