# SPDX-License-Identifier: Apache-2.0
"""Programs under their launchers, on NCCL, a rank for each GPU: launched.py [--ranks N]

    torchrun ddp           torchrun, PyTorch's DistributedDataParallel
    torchrun fsdp2         torchrun, PyTorch's fully_shard
    torchrun trainer       torchrun, transformers' Trainer
    accelerate loop        accelerate launch, a loop of accelerate's
    accelerate trainer     accelerate launch, transformers' Trainer under DDP
    accelerate fsdp2       accelerate launch, transformers' Trainer under FSDP2

Each is the same program under native, expandable segments and Ductile, of which it knows nothing:
DUCTILE_TORCH=1 reaches the ranks by the launcher. They run beside each other: nothing is timed. A
row for each: the launcher's status, losses of every rank, and of the rank that holds most its peak
and what of it was in use. What is wanted: status 0, losses to the bit native's, every rank on the
allocator of its row. Needs transformers and accelerate. Exit status: 0 if all is as wanted.
"""

from __future__ import annotations

import argparse
import json
import re
import socket
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import allocators
import turns

Row = dict[str, Any]
RANK = str(Path(__file__).with_name("launched_rank.py"))
SHARDED = (
    "--use_fsdp", "--fsdp_version", "2", "--fsdp_auto_wrap_policy", "TRANSFORMER_BASED_WRAP",
    "--fsdp_transformer_layer_cls_to_wrap", "LlamaDecoderLayer", "--fsdp_reshard_after_forward",
    "true", "--fsdp_state_dict_type", "SHARDED_STATE_DICT",
)  # fmt: skip


class Program(NamedTuple):
    launcher: str
    program: str
    """of launched_rank.py"""
    words: tuple[str, ...] = ()


PROGRAMS = {
    "torchrun ddp": Program("torchrun", "ddp"),
    "torchrun fsdp2": Program("torchrun", "fsdp2"),
    "torchrun trainer": Program("torchrun", "trainer"),
    "accelerate loop": Program("accelerate", "accelerate", ("--multi_gpu",)),
    "accelerate trainer": Program("accelerate", "trainer", ("--multi_gpu",)),
    "accelerate fsdp2": Program("accelerate", "trainer", SHARDED),
}


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def command_of(program: Program, ranks: int, device: str, folder: str) -> list[str]:
    python, port = sys.executable, str(free_port())
    told = [RANK, program.program, device, folder]
    if program.launcher == "torchrun":
        words = [f"--nproc-per-node={ranks}", f"--master-port={port}"]
        return [python, "-m", "torch.distributed.run", *words, *told]
    words = ["--num_processes", str(ranks), "--num_machines", "1", "--main_process_port", port]
    words += ["--mixed_precision", "no", "--dynamo_backend", "no"]
    words += ["--cpu"] if device == "cpu" else list(program.words)
    return [python, "-m", "accelerate.commands.launch", *words, *told]


def run(name: str, way: str, ranks: int, device: str, deadline: float) -> Row:
    if device == "cpu" and PROGRAMS[name].launcher == "accelerate":
        ranks = 1  # more it starts by MPI
    where = allocators.training_environment(way) | {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    where["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        command = command_of(PROGRAMS[name], ranks, device, folder)
        status, said = allocators.run(command, deadline - time.monotonic(), where, folder)
        files = sorted(Path(folder).glob("*.json"))
        found = [json.loads(file.read_text()) for file in files]
    row: Row = {"program": name, "way": way, "status": status, "ranks": len(found)}
    if status != 0 or len(found) != ranks:
        print(said[-3000:], file=sys.stderr, flush=True)
        return {**row, "said": last_error(said)}
    most = max(found, key=lambda one: one["held"])
    row.update({key: most[key] for key in ("kind", "backend", "used", "held", "retries")})
    row["backends"] = sorted({one["backend"] for one in found})
    row["losses"] = [one["losses"] for one in found]
    return row


def last_error(said: str) -> str:
    """What a rank said last; the launchers themselves say only that one failed."""
    found = re.findall(r"^(?:\[rank\d+\]: *)?(\w+(?:\.\w+)*(?:Error|Exception): .*)$", said, re.M)
    ranks = [one for one in found if "CalledProcessError" not in one]
    return ranks[-1][:200] if ranks else said.strip()[-200:]


def missed(row: Row, native: Row | None) -> list[str]:
    if "said" in row:
        return [f"status {row['status']}: {row['said']}"]
    found = []
    if native is not None and row["losses"] != native.get("losses"):
        found.append("losses differ from native's")
    if row["program"] == "accelerate fsdp2" and row["kind"] not in ("FSDP", "NO"):
        found.append(f"is {row['kind']}, not FSDP")
    wanted = "ductile" if row["way"].startswith("ductile") else "native"
    if row["backends"] not in ([wanted], ["cpu"]):
        found.append(f"is on {row['backends']}")
    return found


def text_of(row: Row) -> str:
    title = f"{row['program']:19} {row['way']:11}"
    if "said" in row:
        return f"{title} FAILED: {row['missed'][0]}"
    said = f"{title} status {row['status']}, {row['ranks']} ranks, {len(row['losses'][0])} losses, "
    said += f"last {float.fromhex(row['losses'][0][-1]):.4f}, in use {row['used'] / 2**20:.0f} MiB "
    said += f"of {row['held'] / 2**20:.0f} held"
    return said + "".join(f"; FAILED: {one}" for one in row["missed"])


def main() -> int:
    words = argparse.ArgumentParser(description="Launchers under three allocators.")
    words.add_argument("--ranks", type=int, default=2)
    words.add_argument("--programs", default=",".join(PROGRAMS))
    words.add_argument("--ways", default=",".join(allocators.NAMES))
    words.add_argument("--beside", type=int, default=6, help="programs at work beside each other")
    turns.add_common(words, limit=150)
    given = words.parse_args()
    deadline = time.monotonic() + given.limit
    device = "cpu" if given.cpu_check else "cuda"
    todo = [(name, way) for name in given.programs.split(",") for way in given.ways.split(",")]
    with ThreadPoolExecutor(given.beside) as pool:
        rows = list(pool.map(lambda one: run(one[0], one[1], given.ranks, device, deadline), todo))
    natives = {row["program"]: row for row in rows if row["way"] == "native"}
    for row in rows:
        row["missed"] = missed(row, natives.get(row["program"]))
        print(json.dumps(row) if given.json else text_of(row), flush=True)
    return int(any(row["missed"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
