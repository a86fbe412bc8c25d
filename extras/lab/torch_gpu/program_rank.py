# SPDX-License-Identifier: Apache-2.0
"""The process of steps.py, settings.py and compare.py that runs programs on one allocator, told
what to do in lines."""

from __future__ import annotations

import gc
import sys
import time
from typing import Any

import capped_programs
import child
import costs
import held
import settings_models
import torch

Row = dict[str, Any]
GIVE_UP = 3  # refusals


class Server:
    def __init__(self, device: str) -> None:
        self.device, self.on_gpu = device, device == "cuda"
        self.program: Any = None
        self.before: Row = {}
        self.is_capped = False
        self.watches: held.Watches | None = None

    def start_afresh(self, cap: int) -> None:
        """An empty cache, peaks that begin again, and a cap; 0: none."""
        self.program = None
        child.start_afresh()
        if self.on_gpu:
            torch.cuda.init()
            if cap or self.is_capped:
                child.set_cap(cap or torch.cuda.mem_get_info()[1])
            self.is_capped = bool(cap)
            torch.cuda.reset_peak_memory_stats()
        self.before = child.peak_memory(self.device)

    def memory(self) -> Row:
        found = child.peak_memory(self.device)
        found.update((name, found[name] - self.before[name]) for name in child.COUNTS)
        if self.program is not None:
            found["held"] += self.program.held_elsewhere()
        if self.watches is not None:
            found["at_most"] = self.watches.at_most()
        return found

    def since(self, began: float) -> float:
        """Milliseconds."""
        return round(1e3 * (child.synchronized(self.device) - began), 3)

    # ---- Programs of settings_models.py and plain_models.py ----

    def begin(self, program: str, cap: int, exact: bool = False) -> Row:
        """A program from its beginning, on an empty cache; `exact`: its losses are the same to the
        bit each time."""
        if exact:
            child.be_deterministic("cudnn")
        began = time.perf_counter()
        self.start_afresh(cap)
        if program == "libraries" and self.on_gpu and self.before["backend"] == "ductile":
            import ductile_gpu.cupy

            ductile_gpu.cupy.enable()
        try:
            self.program = settings_models.make(program, self.device, not self.on_gpu)
        except torch.OutOfMemoryError:
            return {"refusals": 1, "units": 0, "ms": 0.0, **self.memory()}
        return {"refusals": 0, "setup_ms": self.since(began)}

    def try_step(self, n: int) -> int:
        try:
            done: int = self.program.step(n)
            return done
        except torch.OutOfMemoryError:
            pass  # its traceback holds the step's tensors until the clause ends
        self.program.drop()
        gc.collect()
        return 0

    def steps(self, count: int, each: bool = False, first: int = 0) -> Row:
        """So many steps, the host as far ahead as it gets; or `each` with its time, if it ended."""
        units = refusals = 0
        times = []
        before = costs.counters(self.device)
        began = last = child.synchronized(self.device)
        for n in range(first, first + count):
            done = self.try_step(n)
            units += done
            refusals += not done
            if each:
                if done:
                    times.append(self.since(last))
                last = child.synchronized(self.device)
            if refusals == GIVE_UP:
                break
        found = {"units": units, "refusals": refusals, "ms": self.since(began), **self.memory()}
        found["spent"] = costs.since(before, costs.counters(self.device))
        return {**found, "times_ms": times} if each else found

    def watch_held(self) -> Row:
        if self.watches is None:
            self.watches = held.watch(self.device)
        self.watches.begin_again()
        return {}

    def time_driver_calls(self) -> Row:
        costs.time_driver_calls()
        return {}

    def watched(self, count: int, first: int = 0) -> Row:
        """So many steps under PyTorch's profiler, and what an allocation takes here."""
        found: Row = {}
        seen = costs.profiled(self.device, lambda: found.update(self.steps(count, first=first)))
        pair = costs.pair_ns(self.device)
        return {**found, "profiled": costs.a_step(seen, count), "pair_ns": pair}

    def train(self, first: int, count: int) -> Row:
        """Steps from the first one, with their losses and times."""
        losses, times = [], []
        last = child.synchronized(self.device)
        for n in range(first, first + count):
            losses.append(self.program.learn(n)[0])
            now = child.synchronized(self.device)
            times.append(now - last)
            last = now
        texts = [loss.float().item().hex() for loss in losses]
        return {"losses": texts, "times": times, **self.memory()}

    def end(self) -> Row:
        self.start_afresh(0)
        return {}

    # ---- Programs of capped_programs.py ----

    def capped(self, program: str, cap: int) -> Row:
        self.start_afresh(cap)
        began = child.synchronized(self.device)
        player = capped_programs.Player(self.device)
        answer = {**player.play(program), "ms": self.since(began), **self.memory()}
        del player
        self.start_afresh(0)
        return answer


if __name__ == "__main__":
    child.serve(Server(sys.argv[1]), child.open_channel())
