# SPDX-License-Identifier: Apache-2.0
"""Trainings under caps below what they need: refused without spilling, and with it they end.

    python spilling.py OUT.jsonl [--only PART,...] [--limit SECONDS]

Parts, in this order; each program runs in a process of its own for each way:

  gpt2, lora, unet   without a cap, and at 0.95 and 0.85 of the peak of live memory: Ductile with
                     `spill_bytes`, and native, which at 0.85 also recomputes activations, or keeps
                     them on the host (`save_on_cpu`). A row says whether it ended, whether its
                     losses are to the bit those without a cap, the time of a step, what was spilled
  killed             a process with 24 GiB spilled is killed: what host and device have then
  spikes             10,000 requests that spill and go: the host's memory, and what is locked
  refused            expandable segments, and Ductile without spilling, at the same caps
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import json
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

GIB = 1 << 30
SPILL = "64G"
SHARES = (0.95, 0.85)
STEPS = 6
PROGRAMS = ("gpt2", "lora", "unet")
Row = dict[str, Any]

# ---- One process --------------------------------------------------------------------------------


def make(name: str) -> Any:
    import plain_models
    import settings_models
    import torch

    torch.manual_seed(0)
    if name == "unet":
        with torch.device("cuda"):
            program = settings_models.Images("cuda", False)
        program.batches, program.sides = range(24, 25), range(192, 193)
        return program
    plain_models.checkpoint = lambda layer, x, **_: layer(x)  # as it is without recomputing
    sizes = {"gpt2": (12, 1024), "lora": (4, 1024)}[name]
    with torch.device("cuda"):
        return plain_models.make(name, sizes=lambda draw: sizes)


def recompute(model: Any) -> None:
    from torch.utils.checkpoint import checkpoint

    parts = [getattr(model, name, []) for name in ("blocks", "layers", "down", "up")]
    for part in (one for many in parts for one in many):
        part.forward = functools.partial(checkpoint, part.forward, use_reentrant=False)


def spilled() -> Row:
    if "ductile_gpu" not in sys.modules:
        return {}
    import ductile_gpu

    found = [allocator.stats() for allocator in ductile_gpu.allocators()]
    names = ("spills", "spilled_total_bytes", "spilled_peak_bytes", "spill_locked_bytes")
    return {name: sum(getattr(s, name) for s in found) for name in names}


def run(name: str, variant: str) -> Row:
    """A few steps of a program that is made for them."""
    import torch

    torch.cuda.reset_peak_memory_stats()
    before = spilled()
    losses: list[str] = []
    times: list[float] = []
    refused = ""
    try:
        program = make(name)
        if variant == "recompute":
            recompute(program.model)
        keep = (
            torch.autograd.graph.save_on_cpu(pin_memory=True) if variant == "save_on_cpu" else None
        )
        for n in range(STEPS):
            start = time.perf_counter()
            with keep or contextlib.nullcontext():
                loss, _ = program.learn(n)
            losses.append(float(loss).hex())  # waits
            times.append(time.perf_counter() - start)
    except torch.OutOfMemoryError as error:
        refused = str(error)[:120]
    after = spilled()
    row = {
        "losses": losses,
        "refused": refused,
        "ms": round(1e3 * statistics.median(times[2:] or [0]), 2),
        "live_peak": torch.cuda.max_memory_allocated(),
        "reserved_peak": torch.cuda.max_memory_reserved(),
        **{key: after[key] - before[key] if "peak" not in key else after[key] for key in after},
    }
    program = loss = keep = None
    gc.collect()
    torch.cuda.empty_cache()
    return row


def play(name: str, way: str) -> None:
    import child
    import torch

    child.be_deterministic("cudnn")
    total = torch.cuda.mem_get_info()[1]
    free = run(name, "plain")
    print(json.dumps({"share": 0, "variant": "plain", **free}), flush=True)
    cases = [(share, "plain") for share in SHARES]
    if way == "native":
        cases += [(SHARES[1], "recompute"), (SHARES[1], "save_on_cpu")]
    for share, variant in cases:
        torch.cuda.set_per_process_memory_fraction(share * free["live_peak"] / total)
        row = run(name, variant)
        row["same_losses"] = row.pop("losses") == free["losses"]
        print(json.dumps({"share": share, "variant": variant, **row}), flush=True)


def hold_spilled() -> None:
    """24 GiB in the host, until it is killed."""
    import torch

    torch.cuda.set_per_process_memory_fraction(4 * GIB / torch.cuda.mem_get_info()[1])
    blocks = [torch.ones(28 * GIB, dtype=torch.uint8, device="cuda")]
    torch.cuda.synchronize()
    print(json.dumps({**spilled(), "sum": int(blocks[0][::GIB].sum())}), flush=True)
    signal.pause()


def spike() -> None:
    import torch

    torch.cuda.set_per_process_memory_fraction(2 * GIB / torch.cuda.mem_get_info()[1])
    stays = torch.ones(2 * GIB - 128 * 2**20, dtype=torch.uint8, device="cuda")
    for n in range(10000):
        spiked = torch.empty((256 + n % 7) * 2**20, dtype=torch.uint8, device="cuda")
        spiked[:: 2**20].fill_(1)
        del spiked
        if n % 1000 == 999:
            torch.cuda.synchronize()
            row = {"spikes": n + 1, "available_mib": available(), **spilled()}
            print(json.dumps(row), flush=True)
    assert int(stays[-1]) == 1


# ---- The parts ----------------------------------------------------------------------------------


def available() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("MemAvailable")).split()[1]) >> 10


def environment(way: str) -> dict[str, str]:
    import allocators

    found = allocators.environment("ductile" if way.startswith("ductile") else way)
    found["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    if way == "ductile+spill":
        found["DUCTILE_CONF"] = f"spill_bytes:{SPILL}"
    return found


def start(way: str, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, "--child", *words]
    return subprocess.Popen(
        command, env=environment(way), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def rows_of(process: subprocess.Popen[str], seconds: float, **more: Any) -> list[Row]:
    try:
        out, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        out, errors = process.communicate()
        errors = "did not end: " + errors
    rows = [{**more, **json.loads(line)} for line in out.splitlines() if line.startswith("{")]
    if process.returncode != 0:
        rows.append({**more, "rc": process.returncode, "error": errors[-400:]})
    return rows


def play_program(name: str) -> list[Row]:
    rows = []
    for way in ("ductile+spill", "native"):
        rows += rows_of(start(way, name, way), 60, part=name, way=way)
    return rows


def play_refused() -> list[Row]:
    ways = [(name, way) for name in PROGRAMS for way in ("expandable", "ductile")]
    started = [(name, way, start(way, name, way)) for name, way in ways]
    return [
        row
        for name, way, process in started
        for row in rows_of(process, 60, part="refused", program=name, way=way)
    ]


def used_on_device() -> int:
    words = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return int(subprocess.run(words, capture_output=True, text=True, check=True).stdout)


def play_killed() -> list[Row]:
    before = {"host_mib": available(), "device_mib": used_on_device()}
    process = start("ductile+spill", "hold", "")
    assert process.stdout is not None
    held = json.loads(process.stdout.readline() or "{}")
    during = {"host_mib": available(), "device_mib": used_on_device()}
    process.send_signal(signal.SIGKILL)
    process.wait()
    time.sleep(2)
    after = {"host_mib": available(), "device_mib": used_on_device()}
    return [{"part": "killed", **held, "before": before, "during": during, "after": after}]


def play_spikes() -> list[Row]:
    return rows_of(start("ductile+spill", "spike", ""), 90, part="spikes")


PARTS = {
    **{name: functools.partial(play_program, name) for name in PROGRAMS},
    "killed": play_killed,
    "spikes": play_spikes,
    "refused": play_refused,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", help="where rows go")
    parser.add_argument("--only", default=",".join(PARTS), help="of " + ", ".join(PARTS))
    parser.add_argument("--limit", type=float, default=400, help="no part begins later")
    given = parser.parse_args()
    begin = time.monotonic()
    with Path(given.out).open("w") as out:
        for part in given.only.split(","):
            if time.monotonic() - begin < given.limit:
                for row in PARTS[part]():
                    print(json.dumps(row), file=out, flush=True)
                    print(json.dumps({k: v for k, v in row.items() if k != "losses"}), flush=True)
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        if sys.argv[2] == "hold":
            hold_spilled()
        elif sys.argv[2] == "spike":
            spike()
        else:
            play(sys.argv[2], sys.argv[3])
    else:
        sys.exit(main())
