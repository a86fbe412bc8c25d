# SPDX-License-Identifier: Apache-2.0
"""TRL's own GRPOTrainer and its loop, on a random Llama and texts made here: grpo.py [--turns N]

    plain   as TRL has it: one process, generation by transformers
    tags    the same with extras/plugins/examples/turns_grpo.py: the optimizer's state sleeps while
            completions are made, and what they were made in sleeps while the model learns
    two     a trainer and a generator, two processes by TRL's rollout_func, who hand the GPU over
            in each turn: on Ductile all memory of the one who waits sleeps; on PyTorch's own
            allocators its cache goes and what it has live stays

Under native, expandable segments and Ductile (tags: Ductile). A row for each: of each half of a
turn (`generate`, `train`; `asleep` is the trainer of two, waiting) the peak that PyTorch held and
what the device had in use at its end, without CUDA's contexts; how much that has grown since the
third turn; the median turn's seconds; what the process has left of its own once it has given way at
the end; and what is others' (kernels and libraries that were loaded, the other process). What is
wanted: rewards to the bit those of native; on Ductile not more than 16 MiB left, and no more by
which it grows asleep. Awake memory grows with the lengths of a turn's texts. Needs trl, datasets,
transformers. Exit status: 0 if all is as wanted.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import allocators
import turns

Row = dict[str, Any]
FORMS = ("plain", "tags", "two")
MOST_RESIDUE = 16 << 20
SIDE = str(Path(__file__).with_name("grpo_side.py"))


class Match:
    """One form under one allocator. Its processes import what they need while others work."""

    def __init__(self, form: str, way: str, device: str) -> None:
        self.form, self.way = form, way
        where = allocators.on_one_gpu(way) | {"TRL_EXPERIMENTAL_SILENCE": "1"}
        command = [SIDE, device, "tiny" if device == "cpu" else "gpu"]
        names = ["generator", "trainer"] if form == "two" else ["trainer"]
        self.sides = [turns.Worker(f"{form} {way} {name}", command, where) for name in names]

    def play(self, n_turns: int, deadline: float) -> Row:
        with tempfile.TemporaryDirectory(dir=memory_folder()) as folder:
            if self.form == "two":
                self.sides[0].send(json.dumps({"do": "generate", "folder": folder}))
                wait_for(Path(folder) / "socket", self.sides[0], deadline)
            told = {"do": "train", "form": self.form, "turns": n_turns, "folder": folder}
            found = self.sides[-1].answer(deadline, **told)
        for side in self.sides:
            side.close()
        return {"form": self.form, "way": self.way, **found}


def memory_folder() -> str | None:
    """Where a file that two processes map is no file of a disk."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def wait_for(path: Path, side: turns.Worker, deadline: float) -> None:
    """Until there is a file, or no process that makes it."""
    while not path.exists() and side.process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)


def missed(row: Row, native: Row | None) -> list[str]:
    """What is wanted and is not so."""
    if "error" in row:
        return [row["error"]]
    found = []
    if native is not None and not all(map(str.__eq__, row["rewards"], native.get("rewards", []))):
        found.append("rewards differ from native's")
    if not row["way"].startswith("ductile"):
        return found
    if row["backend"] not in ("ductile", "cpu"):
        found.append("is not on Ductile")
    if row["phases"].get("asleep", {"grown": 0})["grown"] > MOST_RESIDUE:
        found.append("grows asleep")
    if row["left"] > MOST_RESIDUE:
        found.append("not all sleeps")
    return found


def text_of(row: Row) -> str:
    title = f"{row['form']:6} {row['way']:11}"
    if "error" in row:
        return f"{title} FAILED: {row['error']}"
    said = [f"{title} {row['turns']} turns of {row['seconds']:.3f} s"]
    for name, one in row["phases"].items():
        peak, held, grown = (one[key] / 2**30 for key in ("peak", "held", "grown"))
        said.append(f"{name}: peak {peak:.2f} GiB, in use {held:.2f}, grown {grown:+.3f}")
    said.append(f"left {row['left'] / 2**30:.3f}, others {row['others'] / 2**30:.2f}")
    return "; ".join(said) + "".join(f"; FAILED: {one}" for one in row["missed"])


def chosen(given: argparse.Namespace) -> list[tuple[str, str]]:
    ways = given.ways.split(",")
    return [
        (form, way)
        for form in given.forms.split(",")
        for way in ways
        if form != "tags" or way.startswith("ductile")
    ]


def native_of(rows: list[Row], form: str) -> Row | None:
    """Tags change nothing of what TRL computes: they are held to plain."""
    wanted = "plain" if form == "tags" else form
    found = [row for row in rows if (row["form"], row["way"]) == (wanted, "native")]
    return found[0] if found else None


def main() -> int:
    words = argparse.ArgumentParser(description="TRL's GRPOTrainer under three allocators.")
    words.add_argument("--turns", type=int, default=30)
    words.add_argument(
        "--own-turns", type=int, help="of PyTorch's own allocators, if they are fewer"
    )
    words.add_argument("--forms", default=",".join(FORMS))
    words.add_argument("--ways", default=",".join(allocators.NAMES))
    turns.add_common(words, limit=240)
    given = words.parse_args()
    deadline = time.monotonic() + given.limit
    device = "cpu" if given.cpu_check else "cuda"
    rows: list[Row] = []
    matches = [Match(form, way, device) for form, way in chosen(given)]
    for match in matches:
        own = None if match.way.startswith("ductile") else given.own_turns
        row = match.play(own or given.turns, deadline)
        row["missed"] = missed(row, native_of(rows, row["form"]))
        rows.append(row)
        print(json.dumps(row) if given.json else text_of(row), flush=True)
    return int(any(row["missed"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
