# SPDX-License-Identifier: Apache-2.0
"""A Llama under FSDP2 on every GPU of the machine: what each allocator holds for what is in use.

    python fsdp2.py                     # each way in turn, a row for each
    python fsdp2.py --ways native,ductile,ductile-wait --steps 100

16 layers of width 2,048, each sharded and checkpointed; batch and length change at every step.
Rank 0's peaks over all steps, the median time of a step, and the last loss. `ductile-wait` sets
cross_stream_reuse:wait; `capped-...` allows 2 % more memory than the first way has in use, and
counts the retries. Losses differ a little from run to run, also under one allocator, because
attention is not deterministic; distributed.py compares losses to the bit.

Ends with status 1 when a way fails, or when its last loss is further than 1 % from the first way's.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import random
import statistics
import sys
import time
from typing import Any

import allocators
from distributed import free_port, rows_of

WAYS = ("native", "expandable", "ductile", "ductile-wait", "capped-expandable", "capped-ductile")
WORDS, LAYERS, WIDTH = 32000, 16, 2048
MIB = 1 << 20


# ---- One rank ----------------------------------------------------------------------------------


def make_model() -> Any:
    import torch
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=WORDS, hidden_size=WIDTH, intermediate_size=5504, num_hidden_layers=LAYERS,
        num_attention_heads=16, num_key_value_heads=16, use_cache=False,
    )  # fmt: skip
    with torch.device("cuda"):
        model = LlamaForCausalLM(config)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.model.layers:
        fully_shard(layer, mp_policy=policy)
    return fully_shard(model, mp_policy=policy)


def train_step(model: Any, optimizer: Any, choose: random.Random) -> float:
    """The loss, of a batch that every rank draws alike."""
    import torch

    shape = (choose.randint(1, 6), choose.randrange(128, 2049, 64))
    tokens = torch.randint(WORDS, shape, device="cuda")
    loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return float(loss.item())


def train(given: argparse.Namespace) -> None:
    import torch
    import torch.distributed as dist

    rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(rank)
    if given.cap:
        total = torch.cuda.mem_get_info()[1]
        torch.cuda.set_per_process_memory_fraction(given.cap * MIB / total)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    choose, losses, times = random.Random(7), [], []
    torch.manual_seed(100 + rank)
    for _ in range(given.steps):
        start = time.perf_counter()
        losses.append(train_step(model, optimizer, choose))
        times.append(time.perf_counter() - start)
    stats = torch.cuda.memory_stats()
    used, held = stats["allocated_bytes.all.peak"], stats["reserved_bytes.all.peak"]
    if rank == 0:
        row = {
            "case": "fsdp2", "backend": torch.cuda.get_allocator_backend(), "steps": given.steps,
            "ranks": dist.get_world_size(), "last_loss": losses[-1],
            "used_mib": round(used / MIB, 1), "held_mib": round(held / MIB, 1),
            "efficiency": round(used / held, 4), "retries": stats["num_alloc_retries"],
            "step_ms": round(1e3 * statistics.median(times[5:]), 1),
            "first_steps_ms": round(1e3 * sum(times[:5]), 1),
        }  # fmt: skip
        print(json.dumps(row), flush=True)
    dist.destroy_process_group()


# ---- All of them -------------------------------------------------------------------------------


def run_way(way: str, cap: int, given: argparse.Namespace) -> dict[str, Any]:
    allocator = way.removeprefix("capped-").removesuffix("-wait")
    where = allocators.environment(allocator)
    where.update(CUBLAS_WORKSPACE_CONFIG=":4096:8", OMP_NUM_THREADS="4")
    if way.endswith("-wait"):
        where["DUCTILE_CONF"] = "cross_stream_reuse:wait"
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(given.ranks)]
    command += ["--master-addr", "127.0.0.1", "--master-port", str(free_port()), __file__]
    command += ["--rank", "--steps", str(given.steps), "--seconds", str(given.seconds)]
    command += ["--cap", str(cap if way.startswith("capped-") else 0)]
    status, output = allocators.run(command, given.seconds + 15, where)
    rows = rows_of(output)
    if status != 0 or not rows:
        return {"way": way, "error": f"ended with status {status}", "said": output[-3000:]}
    return {"way": way, **rows[0]}


def text_of(row: dict[str, Any]) -> str:
    if "error" in row:
        return f"{row['way']:18}FAILED: {row['error']}\n{row['said']}"
    return (
        f"{row['way']:18}used {row['used_mib']:9.1f} MiB  held {row['held_mib']:9.1f} MiB  "
        f"{row['efficiency']:.4f}  {row['step_ms']:7.1f} ms a step  first five "
        f"{row['first_steps_ms']:8.1f} ms  {row['retries']} retries  loss {row['last_loss']:.3f}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=48)
    parser.add_argument("--ranks", type=int, help="processes, one on each GPU (default: all GPUs)")
    parser.add_argument("--seconds", type=float, default=120, help="limit for each way")
    parser.add_argument("--ways", default=",".join(WAYS), help="which, separated by commas")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--cap", type=int, default=0, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank:
        faulthandler.dump_traceback_later(given.seconds, exit=True)
        train(given)
        return 0
    if given.ranks is None:
        import torch

        given.ranks = torch.cuda.device_count()
    unknown = [way for way in given.ways.split(",") if way not in WAYS]
    if unknown:
        raise SystemExit(f"no way is called {unknown[0]}: there are {', '.join(WAYS)}")
    rows: list[dict[str, Any]] = []
    for way in given.ways.split(","):
        used = next((row["used_mib"] for row in rows if "used_mib" in row), 0)
        rows.append(run_way(way, int(used * 1.02), given))
        print(json.dumps(rows[-1]) if given.json else text_of(rows[-1]), flush=True)
    losses = [row["last_loss"] for row in rows if "last_loss" in row]
    is_close = all(abs(loss - losses[0]) <= 0.01 * losses[0] for loss in losses)
    return 0 if len(losses) == len(rows) and is_close else 1


if __name__ == "__main__":
    sys.exit(main())
