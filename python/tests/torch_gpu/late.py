# SPDX-License-Identifier: Apache-2.0
"""Ductile enabled while CUDA is in use, disabled, and enabled again, in the middle of a training.

The training is run by three allocators, each case in a process of its own: native, expandable
segments, and both again with Ductile between. The losses must be the same to the bit. With Ductile
between, tensors of both sides go to a child, graphs of both sides are replayed after the switch, a
thread has a memory pool open during it, and what both hold stays under one memory fraction. Prints
one line per case; ends with status 1 if one failed.
"""

from __future__ import annotations

import gc
import os
import queue
import sys
import threading
import warnings
from collections.abc import Sequence
from typing import Any, Callable

import cases

_parser = cases.parser(__doc__, seconds=100, workers=2)
_parser.add_argument("--expandable", action="store_true", help=cases.argparse.SUPPRESS)
GIVEN = _parser.parse_args()
if GIVEN.only and "expandable" in GIVEN.only:
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"

import torch
import torch.multiprocessing as mp
from transformer import Transformer

import ductile_gpu.torch

STEPS = 20
MIB = 1 << 20
FRACTION = 0.5

# ---- The training ------------------------------------------------------------------------------


class Training:
    """GPT-2's shape, of texts whose length varies, so that memory comes and goes."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        self.model = Transformer(words=16384, layers=8, width=512, heads=8).cuda()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.lengths = torch.Generator().manual_seed(2)
        self.losses: list[float] = []

    def step(self) -> None:
        length = int(torch.randint(64, 769, (), generator=self.lengths))
        ids = torch.randint(0, 16384, (8, length), generator=self.lengths).cuda()
        with torch.autocast("cuda", torch.bfloat16):
            loss = self.model(ids).mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.losses.append(float(loss))

    def steps(self) -> None:
        for _ in range(STEPS):
            self.step()


def capture(weight: torch.Tensor, **named: Any) -> tuple[torch.cuda.CUDAGraph, Any, Any]:
    """A graph whose result depends on memory of its own."""
    given = torch.ones(512, 512, device="cuda")
    for _ in range(2):
        (given @ weight).sum()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, **named):
        between = given @ weight
        out = (between * 2).sum()
        del between
    return graph, given, out


def replay(graph: torch.cuda.CUDAGraph, given: torch.Tensor, out: torch.Tensor, by: float) -> float:
    given.fill_(by)
    graph.replay()
    return float(out)


# ---- Beside it ---------------------------------------------------------------------------------


def consume(inbox: Any, outbox: Any) -> None:
    for _ in range(2):
        tensor = inbox.get()
        outbox.put(int(tensor.sum(dtype=torch.int64)))
        del tensor
    inbox.get()


class Child:
    """A process that is sent a tensor from each side."""

    def __init__(self) -> None:
        context = mp.get_context("spawn")
        self.inbox, self.outbox = context.Queue(), context.Queue()
        self.process = context.Process(target=consume, args=(self.inbox, self.outbox), daemon=True)
        self.process.start()

    def sums(self, tensor: torch.Tensor) -> None:
        torch.cuda.synchronize()
        self.inbox.put(tensor)
        assert self.outbox.get(timeout=60) == int(tensor.sum(dtype=torch.int64))

    def end(self) -> None:
        self.inbox.put(None)
        self.process.join(60)
        assert self.process.exitcode == 0, self.process.exitcode


class PoolUser(threading.Thread):
    """Has a memory pool open until it is told to close it."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.pool, self.orders, self.is_open = (
            torch.cuda.MemPool(),
            queue.Queue(),
            threading.Event(),
        )
        self.kept: list[torch.Tensor] = []
        self.start()
        assert self.is_open.wait(30)

    def run(self) -> None:
        with torch.cuda.use_mem_pool(self.pool):
            self.kept.append(torch.full((MIB,), 3, dtype=torch.uint8, device="cuda"))
            self.is_open.set()
            self.orders.get()
            self.kept.append(torch.full((MIB,), 4, dtype=torch.uint8, device="cuda"))

    def close(self) -> None:
        self.orders.put(None)
        self.join(30)
        torch.cuda.synchronize()
        assert [int(t[0]) for t in self.kept] == [3, 4]


def is_ours(tensor: torch.Tensor) -> bool:
    try:
        ductile_gpu.torch.block_of(tensor)
    except ValueError:
        return False
    return True


def held() -> int:
    return torch.cuda.memory_stats()["reserved_bytes.all.current"]


# ---- Cases -------------------------------------------------------------------------------------


def plain() -> list[float]:
    training = Training()
    for _ in range(4):
        training.steps()
    return training.losses


def switched() -> list[float]:
    cap = FRACTION * torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction(FRACTION)
    training, child = Training(), Child()
    training.steps()
    weight = torch.full((512, 512), 0.5, device="cuda")
    before = capture(weight)
    expected = [replay(*before, by) for by in (1.0, 3.0)]
    old = torch.full((4 * MIB,), 7, dtype=torch.uint8, device="cuda")
    user = PoolUser()

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        ductile_gpu.torch.enable("full")
    assert any("is open that began before" in str(w.message) for w in told), told
    user.close()
    new = torch.full((4 * MIB,), 8, dtype=torch.uint8, device="cuda")
    assert not is_ours(old)
    assert is_ours(new)
    assert ductile_gpu.torch.mode() == "full"
    old.record_stream(torch.cuda.Stream())
    training.steps()
    assert [replay(*before, by) for by in (1.0, 3.0)] == expected
    after = capture(weight)
    assert is_ours(after[2])
    assert [replay(*after, by) for by in (1.0, 3.0)] == expected
    child.sums(new)
    assert held() <= cap

    ductile_gpu.torch.disable()
    back = torch.full((4 * MIB,), 9, dtype=torch.uint8, device="cuda")
    assert not is_ours(back)
    assert ductile_gpu.torch.mode() == "off"
    training.steps()
    for graph in (before, after):
        assert [replay(*graph, by) for by in (1.0, 3.0)] == expected
    if not GIVEN.only.startswith("expandable"):  # its own way to other processes is not looked at
        child.sums(old)
    else:
        child.sums(new)
    assert held() <= cap

    ductile_gpu.torch.enable()
    assert is_ours(torch.empty(MIB, device="cuda"))
    training.steps()
    del old, new, back, user
    child.end()
    before[0].reset()
    after[0].reset()
    del before, after
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    print(f"held at the end: {held() / MIB:.0f} MiB, peak of both {peak() / MIB:.0f} MiB")
    return training.losses


def peak() -> int:
    return torch.cuda.memory_stats()["reserved_bytes.all.peak"]


def compare(run: Callable[[], Sequence[float]]) -> None:
    """Each in a process of its own would have other kernels in no way: one after the other."""
    losses = run()
    print(f"first and last loss: {losses[0]!r} {losses[-1]!r}")
    print("losses", " ".join(loss.hex() for loss in losses))


def native() -> None:
    compare(plain)


def native_switched() -> None:
    compare(switched)


def expandable() -> None:
    compare(plain)


def expandable_switched() -> None:
    compare(switched)


def out_of_memory_asks_native() -> None:
    """What native has cached serves Ductile's request, and the other way round."""
    whole = torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction(8192 * MIB / whole)
    old = torch.empty(5000 * MIB, dtype=torch.uint8, device="cuda")
    ductile_gpu.torch.enable("full")
    del old
    new = torch.empty(5000 * MIB, dtype=torch.uint8, device="cuda")
    assert is_ours(new)
    ductile_gpu.torch.disable()
    del new
    back = torch.empty(5000 * MIB, dtype=torch.uint8, device="cuda")
    assert not is_ours(back)
    try:
        torch.empty(5000 * MIB, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError as error:
        print(str(error).splitlines()[0])
    else:
        raise AssertionError("the fraction does not hold")


CASES = (native, native_switched, expandable, expandable_switched, out_of_memory_asks_native)


def losses_of(said: str) -> str:
    return next((line for line in said.splitlines() if line.startswith("losses ")), "none")


if __name__ == "__main__":
    sys.exit(cases.main(__file__, CASES, GIVEN))
