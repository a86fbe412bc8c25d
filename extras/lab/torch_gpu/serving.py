# SPDX-License-Identifier: Apache-2.0
"""transformers' continuous batching with its paged cache and CUDA graphs: serving.py [--requests N]

A random Llama answers two bursts of 250 requests (--requests: both together) whose length differs
a hundredfold, by a fixed seed, under native, expandable segments and Ductile, which take turns in
processes of their own. Between the bursts it gives way: on Ductile all memory sleeps, the graphs'
too; elsewhere cache and graphs are destroyed, and made again. A row for each: tokens a second, the
99th percentile of the time from the burst to the whole answer, what PyTorch held at its peak over
what it had allocated, what the device had in use (without CUDA's context) at work and while it gave
way, and the seconds of going and of coming back. What is wanted: all is answered; on Ductile less
than 16 MiB stay, and its second burst says what native's does, or what the first one's answers of
native and Ductile differ by is told. Needs transformers. Exit status: 0 if all is as wanted.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import allocators
import turns

Row = dict[str, Any]
SIDE = str(Path(__file__).with_name("serving_side.py"))
MOST_LEFT = 16 << 20


def play(worker: turns.Worker, requests: int, graphs: bool, deadline: float) -> Row:
    half = requests // 2
    told: list[tuple[str, Row]] = [
        ("begin", {"graphs": graphs}),
        ("burst", {"count": half, "skip": 0}),
        ("rest", {}),
        ("rise", {}),
        ("burst", {"count": half, "skip": half}),
    ]
    found = []
    for do, more in told:
        found.append(worker.answer(deadline, do=do, **more))
        if "error" in found[-1]:
            return found[-1]
    worker.close()
    begun, first, rest, rise, second = found
    return {**begun, "bursts": [first, second], "rest": rest, "rise": rise}


def same_answers(row: Row, native: Row | None) -> list[str]:
    """Of each burst the share of answers that are native's, to the token."""
    if native is None or "bursts" not in native:
        return []
    pairs = zip(row["bursts"], native["bursts"])
    return [
        f"{sum(one == other for one, other in zip(mine['said'], theirs['said']))}/{mine['asked']}"
        for mine, theirs in pairs
    ]


def missed(row: Row) -> list[str]:
    if "error" in row:
        return [row["error"]]
    found = [f"{b['answered']} of {b['asked']} answered" for b in row["bursts"]
             if b["answered"] < b["asked"]]  # fmt: skip
    if row["way"].startswith("ductile"):
        found += ["is not on Ductile"] if row["backend"] not in ("ductile", "cpu") else []
        found += ["not all sleeps"] if row["rest"]["on_device"] > MOST_LEFT else []
    return found


def text_of(row: Row) -> str:
    if "error" in row:
        return f"{row['way']:11} FAILED: {row['error']}"
    gib = 2.0**30
    said = [f"{row['way']:11} begins in {row['start_seconds']:.1f} s"]
    for burst in row["bursts"]:
        speed = (burst["tokens"] + burst["tokens_in"]) / burst["seconds"]
        p99 = turns.percentile(burst["latencies"], 99)
        said.append(
            f"{burst['answered']} answered, {speed:.0f} tokens/s, p99 {p99:.2f} s, peak "
            f"{burst['used'] / gib:.2f} GiB, held {burst['held'] / gib:.2f}, on the device "
            f"{burst['on_device'] / gib:.2f}"
        )
    rest, rise = row["rest"], row["rise"]
    said.append(f"gives way in {rest['seconds']:.2f} s to {rest['on_device'] / gib:.2f} GiB")
    said.append(f"is back in {rise['seconds']:.2f} s; answers as native's: {row['same']}")
    return "; ".join(said) + "".join(f"; FAILED: {one}" for one in row["missed"])


def main() -> int:
    words = argparse.ArgumentParser(description="Continuous batching under three allocators.")
    words.add_argument("--requests", type=int, default=500)
    words.add_argument("--ways", default=",".join(allocators.NAMES))
    words.add_argument("--no-graphs", dest="graphs", action="store_false")
    turns.add_common(words, limit=200)
    given = words.parse_args()
    deadline = time.monotonic() + given.limit
    command = [SIDE, *(("cpu", "tiny") if given.cpu_check else ("cuda", "gpu"))]
    ways = given.ways.split(",")
    workers = [turns.Worker(way, command, allocators.on_one_gpu(way)) for way in ways]
    rows: list[Row] = []
    for way, worker in zip(ways, workers):
        row = {"way": way, **play(worker, given.requests, given.graphs, deadline)}
        native = next((one for one in rows if one["way"] == "native"), None)
        row["same"] = [] if "error" in row else same_answers(row, native)
        row["missed"] = missed(row)
        rows.append(row)
        print(json.dumps(row) if given.json else text_of(row), flush=True)
    return int(any(row["missed"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
