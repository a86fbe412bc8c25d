# SPDX-License-Identifier: Apache-2.0
"""vLLM's sleep mode with its own allocator and with Ductile's plug-in: vllm_sleep.py [--cycles N]

A random Llama of 1.6 thousand million weights answers 32 requests, greedily and with CUDA graphs,
before and after sleeps of level 1 (weights are kept on the host) and of level 2 (they are dropped;
vLLM's reload_weights loads them again, at the first and the last of the cycles and at each fifth).

    cumem     vLLM's own CuMemAllocator
    plug-in   DUCTILE_VLLM=1: what sleeps comes from Ductile, the rest from PyTorch's own allocator
    ductile   the same where Ductile is PyTorch's allocator

A row for each start of an engine and for each level: seconds to fall asleep and to wake until the
GPU has done it, what the device had in use asleep in each cycle (CUDA's context, kernels and
graphs, which neither puts to sleep, are in it), and how many answers were those of before, to the
token and to the probability. What is wanted: that all are, and those of cumem; that the plug-in's
allocator is the one that served; and that what is in use asleep does not grow by more than 16 MiB
from the third cycle on. With --processes answers are told and not compared: requests arrive while
others are answered already, and the sums of another batch are rounded otherwise. Needs vLLM, of
which FlashInfer may be missing. Exit status: 0 if all is as wanted.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Callable

import allocators
import turns

Row = dict[str, Any]
SIDE = str(Path(__file__).with_name("vllm_side.py"))
WAYS = ("cumem", "plug-in", "ductile")
MOST_GROWTH = 16 << 20
REQUESTS = 32


def environment(way: str, in_processes: bool) -> dict[str, str]:
    found = allocators.on_one_gpu("ductile" if way == "ductile" else "native")
    found |= {"VLLM_ENABLE_V1_MULTIPROCESSING": str(int(in_processes)), "VLLM_NO_USAGE_STATS": "1"}
    found |= {"VLLM_ALLOW_INSECURE_SERIALIZATION": "1"}  # a worker is asked by a function
    found |= {"VLLM_HOST_IP": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
    found |= {"VLLM_USE_FLASHINFER_SAMPLER": "0"}
    found.pop("DUCTILE_VLLM", None)
    return found if way == "cumem" else found | {"DUCTILE_VLLM": "1"}


def is_loaded_again(cycle: int, cycles: int) -> bool:
    return cycle in (0, cycles - 1) or cycle % 5 == 4


class Match:
    """One way's engine."""

    def __init__(self, given: argparse.Namespace, way: str, tell: Callable[[Row], None]) -> None:
        self.way, self.cycles, self.compiled = way, given.cycles, given.compiled
        self.worker = turns.Worker(way, [SIDE, "serve"], environment(way, given.processes))
        self.tell = tell

    def play(self, folder: str, deadline: float) -> None:
        how = {"folder": folder, "compiled": self.compiled, "requests": REQUESTS}
        row = self.worker.answer(deadline, do="begin", **how)
        if "error" not in row:
            row.update(self.worker.answer(deadline, do="say"))
        self.tell({"way": self.way, "level": 0, **row})
        self.said = row.get("said", [])
        for level in (1, 2):
            if "error" not in row:
                row = self.play_level(level, deadline)
                self.tell({"way": self.way, "level": level, **row})
        self.worker.close()

    def play_level(self, level: int, deadline: float) -> Row:
        """All cycles; or those until one failed, and why."""
        found: list[Row] = []
        row: Row = {"cycles": found, "same": []}
        for n in range(self.cycles):
            reload = level == 2 and is_loaded_again(n, self.cycles)
            one = self.worker.answer(deadline, do="cycle", level=level, reload=reload)
            if "error" in one:
                return {**row, "error": one["error"]}
            found.append({k: round(v, 4) if isinstance(v, float) else v for k, v in one.items()})
            if reload or (level == 1 and is_loaded_again(n, self.cycles)):
                said = self.worker.answer(deadline, do="say")
                if "error" in said:
                    return {**row, "error": said["error"]}
                row["same"].append(sum(map(str.__eq__, said["said"], self.said)))
        return row


def missed(row: Row, rows: list[Row], are_compared: bool = True) -> list[str]:
    """What is wanted and is not so. `rows` are those of before."""
    if "error" in row:
        return [row["error"]]
    found = []
    if row["level"] == 0:
        own = [one["said"] for one in rows if one["way"] == "cumem" and "said" in one]
        if are_compared and own and row["said"] != own[0]:
            found.append("answers are not cumem's")
        wanted = "CuMemAllocator" if row["way"] == "cumem" else "SleepAllocator"
        return found + ([f"is on {row['allocator']}"] if row["allocator"] != wanted else [])
    if are_compared and min(row["same"], default=REQUESTS) < REQUESTS:
        found.append(f"{min(row['same'])} of {REQUESTS} answers are those of before")
    asleep = [one["asleep"] for one in row["cycles"]][2:]
    return found + (["grows asleep"] if asleep and asleep[-1] - asleep[0] > MOST_GROWTH else [])


def median(cycles: list[Row], name: str) -> float:
    return statistics.median([one[name] for one in cycles if name in one] or [0])


def text_of(row: Row) -> str:
    gib = 2.0**30
    said = [f"{row['way']:8} level {row['level']}"]
    if "start_seconds" in row:
        said.append(f"begins in {row['start_seconds']} s, in use {row['in_use'] / gib:.2f} GiB")
    if row.get("cycles"):
        cycles = row["cycles"]
        said.append(
            f"{len(cycles)} cycles: sleep {median(cycles, 'sleep'):.3f} s, wake "
            f"{median(cycles, 'wake'):.3f} s, reload {median(cycles, 'reload'):.2f} s, asleep "
            f"{cycles[0]['asleep'] / gib:.3f} to {cycles[-1]['asleep'] / gib:.3f} GiB, awake "
            f"{cycles[-1]['awake'] / gib:.2f}; answers as before: {row['same']}"
        )
    return "; ".join(said) + "".join(f"; FAILED: {one}" for one in row["missed"])


def main() -> int:
    words = argparse.ArgumentParser(description="vLLM's sleep mode under three allocators.")
    words.add_argument("--cycles", type=int, default=20, help="of each level")
    words.add_argument("--ways", default=",".join(WAYS))
    words.add_argument("--compiled", action="store_true", help="as vLLM compiles by default")
    words.add_argument("--processes", action="store_true", help="engines in processes of their own")
    words.add_argument("--limit", type=float, default=240, help="seconds")
    words.add_argument("--json", action="store_true", help="one JSON object a line")
    given = words.parse_args()
    turns.split_lists(given, ways=WAYS)
    deadline = time.monotonic() + given.limit
    rows: list[Row] = []

    def tell(row: Row) -> None:
        row["missed"] = missed(row, rows, not given.processes)
        rows.append(row)
        print(json.dumps(row) if given.json else text_of(row), flush=True)

    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        matches = [Match(given, way, tell) for way in given.ways]  # they import meanwhile
        make = [sys.executable, SIDE, "make", folder]
        subprocess.run(make, env=allocators.on_one_gpu("native"), check=True, stdout=sys.stderr)
        for match in matches:
            match.play(folder, deadline)
    return int(any(row["missed"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
