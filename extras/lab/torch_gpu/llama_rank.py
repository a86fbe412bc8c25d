# SPDX-License-Identifier: Apache-2.0
"""One rank of llama.py. Imports at once; each line of standard input asks for something:

    {"do": "begin", "cap": BYTES}               makes the model, under a cap (0: none)
    {"do": "take", "shapes": [[B, L], ...]}     trains with a batch of that size and length for each
    {"do": "watched", "shapes": [[B, L], ...]}  the same under PyTorch's profiler
    {"do": "asleep", "rounds": N}               sleeps and wakes, at the same time as all ranks

The answer is a line of JSON.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import time
from typing import Any

import child
import costs
import gaps
import held
import llama_models
import torch
import torch.distributed as dist


class Rank:
    def __init__(self, plan: dict[str, Any]) -> None:
        self.plan = plan
        self.device = plan["device"]
        self.size = llama_models.TINY if self.device == "cpu" else llama_models.FULL
        if plan["kind"] == "compiled-step":
            self.size = self.size._replace(layers=self.size.layers // 2)
        if plan["layers"]:
            self.size = self.size._replace(layers=plan["layers"])
        self.watch = gaps.watch(plan["kind"], self.device)
        self.held: held.Watches | None = None
        self.steps_done = 0

    def begin(self, cap: int) -> dict[str, Any]:
        plan, own = self.plan, None
        if self.device == "cuda":
            own = torch.device("cuda", plan["rank"])
            torch.cuda.set_device(own)
            if cap:
                child.set_cap(cap)
        if plan.get("held"):
            self.held = held.watch(self.device)
        if plan["exact"]:
            child.be_deterministic("flash", "mem_efficient", "cudnn")
        dist.init_process_group(
            "nccl" if own else "gloo", init_method=f"file://{plan['store']}", rank=plan["rank"],
            world_size=plan["ranks"], device_id=own,
        )  # fmt: skip
        self.step = llama_models.make_step(plan["kind"], self.device, self.size)
        if plan["kind"].startswith("compiled"):
            self.take([[2, 128], [3, 192], *plan["shapes"]])  # all ways compile at the same time
        child.synchronized(self.device)
        costs.time_driver_calls()
        return {"ready": True}

    def shape_of(self, shapes: list[list[int]], at: int) -> list[int]:
        """The same on all ranks, but where batches are to differ, or one of them cannot fit."""
        rank, ranks = self.plan["rank"], self.plan["ranks"]
        if self.plan.get("is_uneven"):
            return shapes[(at + rank) % len(shapes)]
        if self.plan["kind"] == "refused" and self.steps_done % 4 == 2:
            turn = self.steps_done // 4 % ranks
            longest = max(length for _, length in shapes)
            return [llama_models.TOO_MANY, longest] if rank == turn else shapes[at]
        return shapes[at]

    def train(self, shape: list[int]) -> float:
        # Under tensor parallelism all ranks have the same batch.
        own = 0 if self.plan["kind"] == "tp" else self.plan["rank"]
        seed = self.steps_done * self.plan["ranks"] + own
        self.steps_done += 1
        source = torch.Generator().manual_seed(seed)
        ids = torch.randint(self.size.words, shape, generator=source).to(self.device)
        if self.watch:
            self.watch.begin_step()
        loss = float(self.step(ids).item())
        if self.watch:
            self.watch.end_step()
        return loss

    def take(self, shapes: list[list[int]]) -> dict[str, Any]:
        losses, times = [], []
        before = costs.counters(self.device)
        for at in range(len(shapes)):
            start = time.perf_counter()
            losses.append(self.train(self.shape_of(shapes, at)).hex())
            if len(losses) == len(shapes):
                child.synchronized(self.device)  # the next turn is another's
            times.append(time.perf_counter() - start)
        gathers = self.watch.take() if self.watch else []
        memory = child.peak_memory(self.device)
        if self.held is not None:
            memory["at_most"] = self.held.at_most()
        spent = costs.since(before, costs.counters(self.device))
        return {"losses": losses, "times": times, "gathers": gathers, "spent": spent, **memory}

    def asleep(self, rounds: int) -> dict[str, Any]:
        """Seconds of each sleep and wake, bytes that left, and of the device what was in use."""
        import ductile_gpu.torch as memory

        found: dict[str, Any] = {"sleep_s": [], "wake_s": [], "bytes": [], "left": []}
        waiters = dist.new_group(backend="gloo")  # takes no memory of the GPU
        for _ in range(rounds):
            dist.barrier(waiters)
            start = time.perf_counter()
            found["bytes"].append(memory.sleep_all().bytes)
            found["sleep_s"].append(time.perf_counter() - start)
            dist.barrier(waiters)
            free, whole = torch.cuda.mem_get_info()
            found["left"].append(whole - free)
            dist.barrier(waiters)
            found["wake_s"].append(child.timed(memory.wake_all))
        return found

    def watched(self, shapes: list[list[int]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        seen = costs.profiled(self.device, lambda: found.update(self.take(shapes)))
        pair = costs.pair_ns(self.device)
        return {**found, "profiled": costs.a_step(seen, len(shapes)), "pair_ns": pair}


if __name__ == "__main__":
    plan = json.loads(sys.argv[1])
    channel = child.open_channel()
    faulthandler.dump_traceback_later(plan["seconds"], exit=True)
    child.serve(Rank(plan), channel)
    # Communicators with several ranks end in an order that is not ours: the process just goes.
    sys.stderr.flush()
    os._exit(0)
