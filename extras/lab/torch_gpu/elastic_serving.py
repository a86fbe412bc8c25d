# SPDX-License-Identifier: Apache-2.0
"""Continuous batching with an elastic cache beside the best static split of the same memory.

A random Llama in float32 answers 400 requests by transformers' continuous batching, and between its
steps scores 100 texts whose length differs a hundredfold, by a fixed seed, all under one cap of
Ductile's. The paged cache is elastic, or has a share of what the weights leave, fixed beforehand:
one too large leaves long texts, or a step, no memory; one too small makes requests queue. A process
for each, one after another. A row for each: tokens a second, the 99th percentile of the time to an
answer, what PyTorch held at its peak, how many were refused, put off (by transformers, which makes
them again from the beginning) or found no memory for a moment, and what was answered as the elastic
one did. The best static split is the one that answered most, and of those the fastest. What is
wanted: the elastic one answers all, and what others answered it answered with the same tokens and
scores. Needs transformers. Exit status: 0 if all is as wanted.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from pathlib import Path
from typing import Any

import allocators
import turns

Row = dict[str, Any]
LEAST_SECONDS = 15
SIDE = str(Path(__file__).with_name("elastic_serving_side.py"))


def name_of(share: float | None) -> str:
    return "elastic" if share is None else f"static {share:.0%}"


def play(worker: turns.Worker, share: float | None, given: Any, deadline: float) -> Row:
    if deadline - time.monotonic() < LEAST_SECONDS:
        worker.close()
        return {"error": "not begun: the time is up"}
    begun = worker.answer(deadline, do="begin", share=share)
    if "error" in begun:
        return begun
    seconds = min(given.seconds, deadline - time.monotonic() - 5)
    told = {"requests": given.requests, "texts": given.texts, "seconds": seconds}
    found = worker.answer(deadline, do="serve", **told)
    worker.close()
    return {**begun, **found}


def differ(row: Row, elastic: Row | None) -> list[str]:
    """What both answered, and not the same."""
    if elastic is None or "error" in elastic or "error" in row:
        return []
    said = [n for n in row["said"] if elastic["said"].get(n, row["said"][n]) != row["said"][n]]
    scores = [
        f"text {n}"
        for n, score in row["scores"].items()
        if not math.isclose(elastic["scores"].get(n, score), score, rel_tol=1e-4)
    ]
    return said + scores


def missed(row: Row) -> list[str]:
    if "error" in row:
        return [row["error"]] if row["share"] is None else []
    found = []
    if row["share"] is None and row["answered"] < row["asked"]:
        found.append(f"{row['answered']} of {row['asked']} answered")
    if row["backend"] not in ("ductile", "cpu"):
        found.append("is not on Ductile")
    return found + ([f"{len(row['differ'])} answers differ"] if row["differ"] else [])


def speed(row: Row) -> float:
    return float(row["tokens"] / row["seconds"])


def best(rows: list[Row]) -> Row | None:
    static = [
        row
        for row in rows
        if row["share"] is not None and "error" not in row and not row["was_cut"]
    ]
    return max(static, key=lambda row: (row["answered"], speed(row)), default=None)


def text_of(row: Row) -> str:
    if "error" in row:
        return f"{row['way']:11} ended: {row['error']}"
    p99 = turns.percentile(row["latencies"], 99) if row["latencies"] else math.nan
    said = [
        f"{row['way']:11} {row['answered']} of {row['asked']} answered, {speed(row):.0f} tokens/s",
        f"p99 {p99:.2f} s",
        f"held {row['held'] / 2**30:.2f} GiB",
        f"at most {row['most_blocks']} of {row['blocks']} blocks",
        f"{row['refused']} refused, {row['put_off']} put off, {row['out_of_memory']} out of memory",
        f"{row['steps']} steps",
    ]
    said += ["cut by the time limit"] if row["was_cut"] else []
    said += [f"ended by: {row['fatal']}"] if row["fatal"] else []
    return "; ".join(said) + "".join(f"; FAILED: {one}" for one in row["missed"])


def told_at_end(rows: list[Row]) -> str:
    elastic, static = rows[0], best(rows)
    if static is None or "error" in elastic:
        return "no comparison"
    return (
        f"elastic beside {static['way']}: {speed(elastic) / speed(static):.3f} of its tokens/s, "
        f"{elastic['answered']} answered beside {static['answered']}"
    )


def main() -> int:
    words = argparse.ArgumentParser(description="Continuous batching with an elastic cache.")
    words.add_argument("--requests", type=int, default=400)
    words.add_argument("--texts", type=int, default=100)
    words.add_argument("--shares", default="0.3,0.4,0.5,0.35,0.65", help="of the static splits")
    words.add_argument("--seconds", type=float, default=40, help="limit for each")
    turns.add_common(words, limit=110)
    given = words.parse_args()
    deadline = time.monotonic() + given.limit
    command = [SIDE, *(("cpu", "tiny") if given.cpu_check else ("cuda", "gpu"))]
    shares: list[float | None] = [None, *map(float, given.shares.split(","))]
    where = allocators.on_one_gpu("ductile")
    workers = [turns.Worker(name_of(share), command, where) for share in shares]
    rows: list[Row] = []
    for share, worker in zip(shares, workers):
        row: Row = {"way": name_of(share), "share": share}
        row.update(play(worker, share, given, deadline))
        row["differ"] = differ(row, rows[0] if rows else None)
        row["missed"] = missed(row)
        rows.append(row)
        print(json.dumps(row) if given.json else text_of(row), flush=True)
    print(told_at_end(rows), file=sys.stderr, flush=True)
    return int(any(row["missed"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
