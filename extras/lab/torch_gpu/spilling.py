# SPDX-License-Identifier: Apache-2.0
"""Trainings under caps below what they need: refused without spilling, and with it they end.

    python spilling.py OUT.jsonl [--only PART,...] [--limit SECONDS] [--cpu-check]

Parts, in this order; each program runs in a process of its own for each way:

  gpt2, lora, unet   without a cap, and at 0.95 and 0.85 of the peak of live memory: Ductile with
                     `spill_bytes`, and native, which also recomputes activations, or keeps them on
                     the host (`save_on_cpu`). A row says whether it ended, whether its losses are
                     to the bit those without a cap, the time of a step, what was spilled. Attention
                     is flash where that gives the same losses twice, else the exact one
  reach              a tensor in both kinds of memory, written and read by every kind of copy
  promote            optimizer states made while the device is full: a step before and after they
                     move to the device
  spikes             10,000 requests that spill and go: the host's memory, and what is locked
  refused            expandable segments, and Ductile without spilling, at the same caps
  killed             a process with 24 GiB spilled is killed: what host and device have then
"""

from __future__ import annotations

import argparse
import functools
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import allocators

SPILL = "64G"
PROGRAMS = ("gpt2", "lora", "unet")
SIDE = str(Path(__file__).with_name("spilling_side.py"))
SPIKES, SPIKE_SECONDS = 10000, 120
Row = dict[str, Any]

# ---- Processes ---------------------------------------------------------------------------------


def environment(way: str) -> dict[str, str]:
    allocator, _, spills = way.partition("+")
    found = allocators.environment(allocator)
    found["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    return found | ({"DUCTILE_CONF": f"spill_bytes:{SPILL}"} if spills else {})


def start(way: str, *words: str) -> subprocess.Popen[str]:
    return allocators.start(
        [sys.executable, SIDE, *words], env=environment(way),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def rows_of(process: subprocess.Popen[str], seconds: float, **more: Any) -> list[Row]:
    try:
        out, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        allocators.kill(process)
        out, errors = process.communicate()
        errors += "did not end in time"
    rows = [{**more, **json.loads(line)} for line in out.splitlines() if line.startswith("{")]
    if process.returncode != 0:
        rows.append({**more, "rc": process.returncode, "error": errors[-600:]})
    return rows


def trained(program: str, way: str, attention: str, device: str, seconds: float) -> list[Row]:
    process = start(way, "train", program, way, attention, device)
    return rows_of(process, seconds, part=program, way=way)


def is_exact(rows: list[Row]) -> bool:
    return any(row.get("variant") == "again" and row["same_losses"] for row in rows)


# ---- The parts ---------------------------------------------------------------------------------

attentions: dict[str, str] = {}  # that each program has used


def play_program(device: str, name: str) -> list[Row]:
    rows = []
    for attention in ("flash", "math") if device == "cuda" else ():
        attentions[name] = attention
        found = trained(name, "ductile+spill", attention, device, 90)
        rows += found
        if is_exact(found):
            break
    return rows + trained(name, "native", attentions.get(name, "math"), device, 90)


def play_refused(device: str) -> list[Row]:
    ways = [(name, way) for name in PROGRAMS for way in ("expandable", "ductile")]
    started = [
        (name, way, start(way, "train", name, way, attentions.get(name, "math"), device))
        for name, way in ways
    ]
    return [
        row
        for name, way, process in started
        for row in rows_of(process, 80, part="refused", program=name, way=way)
    ]


def play_reach(_: str) -> list[Row]:
    return rows_of(start("ductile+spill", "reach"), 60, part="reach")


def play_promote(_: str) -> list[Row]:
    return rows_of(start("ductile+spill", "promote"), 60, part="promote")


def play_spikes(_: str) -> list[Row]:
    words = ("spike", str(SPIKES), str(SPIKE_SECONDS))
    return rows_of(start("ductile+spill", *words), SPIKE_SECONDS + 30, part="spikes")


def used() -> Row:
    """Of the device and of the host, in MiB."""
    words = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    of_device = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    lines = Path("/proc/meminfo").read_text().splitlines()
    available = next(line for line in lines if line.startswith("MemAvailable")).split()[1]
    return {"host_mib": int(available) >> 10, "device_mib": int(of_device)}


def play_killed(_: str) -> list[Row]:
    before = used()
    process = start("ductile+spill", "hold")
    assert process.stdout is not None
    held = json.loads(process.stdout.readline() or "{}")
    during = used()
    process.send_signal(signal.SIGKILL)
    process.wait()
    time.sleep(2)
    return [{"part": "killed", **held, "before": before, "during": during, "after": used()}]


PARTS = {
    **{name: functools.partial(play_program, name=name) for name in PROGRAMS},
    "reach": play_reach,
    "promote": play_promote,
    "spikes": play_spikes,
    "refused": play_refused,
    "killed": play_killed,
}


def missed(row: Row) -> str:
    """What does not hold of a row; "": it does."""
    if "error" in row:
        return "failed"
    if row.get("variant") != "plain" or not row["share"]:
        return ""
    if row["way"] != "ductile+spill":
        return "" if row["refused"] else "was refused nothing under its cap"
    if row["refused"] or not row["spills"]:
        return "did not end by spilling"
    return "" if row["same_losses"] else "its losses differ"


def tell(row: Row, is_capped: bool) -> bool:
    """Prints it without what is long. Does it hold?"""
    print(json.dumps({k: v for k, v in row.items() if k != "losses"}), flush=True)
    why = missed(row) if is_capped or "error" in row else ""
    if why:
        print(f"{row['part']}, {row['way']}, {row.get('share')}: {why}", file=sys.stderr)
    return not why


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", help="where rows go")
    parser.add_argument("--only", default=",".join(PARTS), help="of " + ", ".join(PARTS))
    parser.add_argument("--limit", type=float, default=400, help="no part begins later")
    parser.add_argument(
        "--cpu-check", action="store_true", help="programs, tiny and without caps, on the CPU"
    )
    given = parser.parse_args()
    device = "cpu" if given.cpu_check else "cuda"
    begin = time.monotonic()
    holds = True
    with Path(given.out).open("w") as out:
        for part in given.only.split(","):
            if time.monotonic() - begin < given.limit:
                for row in PARTS[part](device):
                    print(json.dumps(row), file=out, flush=True)
                    holds = tell(row, not given.cpu_check) and holds
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
