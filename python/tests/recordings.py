# SPDX-License-Identifier: Apache-2.0
"""Recordings that tests of the report are about: real ones, made ones, and what is said of them."""

from __future__ import annotations

import gzip
import json
import os
import pickle
from pathlib import Path
from typing import Any

from running import Answer, ductile_gpu
from support import ROOT

from ductile_gpu._tools._report import _summary, _words
from ductile_gpu._tools._report._collect import Choices, Recording, collect

TRACES = sorted((ROOT / "bench" / "traces").glob("*.trace.gz"))
DATA = ROOT / "tests" / "bench" / "data"
WHOLE = DATA / "torch_whole.pickle.gz"
MORE = os.environ.get("DUCTILE_RECORDINGS")  # a folder of others to try
OTHERS = sorted(Path(MORE).iterdir()) if MORE else []
RECORDINGS = [*TRACES, *sorted(DATA.glob("*.pickle.gz")), *OTHERS]
SNAPSHOTS = [path for path in RECORDINGS if path.name.endswith((".pickle", ".pickle.gz"))]
VIT = next(path for path in TRACES if path.name.startswith("vit"))
MIB = 1 << 20
BASE = 1 << 32
FREED = ("free_requested", "free_completed")

# ---- What is in a snapshot ---------------------------------------------------------------------


def frame(name: str, file: str = "/code/train.py", line: int = 7) -> dict[str, Any]:
    return {"name": name, "filename": file, "line": line}


def entry(action: str, address: int, size: int, *frames: dict[str, Any]) -> dict[str, Any]:
    made = {"action": action, "addr": address, "size": size, "stream": 0}
    return {**made, "frames": list(frames)}


def refusal(size: int, device_free: int, *frames: dict[str, Any]) -> dict[str, Any]:
    return {"action": "oom", "size": size, "device_free": device_free, "frames": list(frames)}


def block(
    address: int, size: int, state: str = "active_allocated", *frames: dict[str, Any]
) -> dict[str, Any]:
    made = {"address": address, "size": size, "requested_size": size}
    return {**made, "state": state, "frames": list(frames)}


def segment(address: int, *blocks: dict[str, Any], **more: Any) -> dict[str, Any]:
    made = {"device": 0, "stream": 0, "address": address, "blocks": list(blocks)}
    return {**made, "total_size": sum(of["size"] for of in blocks), **more}


def dump(path: Path, *traces: Any, segments: Any = (), **more: Any) -> Path:
    """A snapshot with the history of each GPU, at that place; returns the place."""
    found = {"device_traces": list(traces), "segments": list(segments), **more}
    data = pickle.dumps(found, protocol=4)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


LATE = frame("late", "/code/project/model.py", 9)


def out_of_memory(
    folder: Path, *more: Any, asked: int = 50 * MIB, left: int = 8 * MIB, **facts: Any
) -> Path:
    """100 MiB held: 60 live in two blocks, 40 free in two holes; 50 more are asked, 8 were left.
    `more` is what comes behind it."""
    history = [
        entry("segment_alloc", BASE, 100 * MIB),
        entry("alloc", BASE, 30 * MIB, frame("kept", "/code/project/model.py", 3)),
        entry("alloc", BASE + 55 * MIB, 30 * MIB, frame("also", "/code/project/model.py", 4)),
        refusal(asked, left, LATE),
    ]
    held = segment(
        BASE,
        block(BASE, 30 * MIB),
        block(BASE + 30 * MIB, 25 * MIB, "inactive"),
        block(BASE + 55 * MIB, 30 * MIB),
        block(BASE + 85 * MIB, 15 * MIB, "inactive"),
    )
    return dump(folder / "oom.pickle", [*history, *more], segments=[held], **facts)


def write_trace(path: Path, lines: list[str]) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


def training(folder: Path, batches: list[int], each: int = 100, fixed: int = 1000) -> Path:
    """So many MiB all the time, and for each of a batch in its step."""
    lines = [f"a 1 {fixed * MIB} 0", "a 2 1024 0", "s"]
    for step, batch in enumerate(batches):
        lines += [f"a {10 + step} {batch * each * MIB} 0", f"f {10 + step}", "s"]
    return write_trace(folder / "training.trace", lines)


# ---- What is said of it ------------------------------------------------------------------------

_KNOWN: dict[Path, Recording] = {}


def names(paths: list[Path]) -> list[str]:
    return [path.name.partition(".")[0] for path in paths]


def study(path: Path, **choices: Any) -> Recording:
    return collect(path, Choices(**choices), lambda line: None)


def recording_of(path: Path) -> Recording:
    """Of one that no test changes."""
    if path not in _KNOWN:
        _KNOWN[path] = study(path)
    return _KNOWN[path]


def said(recording: Recording) -> str:
    """The verdict, as the command prints it."""
    s = _summary.summary(recording)
    found = _words.headline(s), _words.lines(recording, s)
    return "\n".join(_words.spell(recording.name, *found))


def report(*words: object, **how: Any) -> Answer:
    return ductile_gpu("report", *words, **how)


def replay(path: Path, *words: str) -> dict[str, dict[str, Any]]:
    """What the command finds, by contender."""
    answer = ductile_gpu("replay", "--min-capacity", "--json", *words, path)
    assert answer.returncode == 0, answer.stderr
    return {line["contender"]: line for line in map(json.loads, answer.stdout.splitlines())}
