# SPDX-License-Identifier: Apache-2.0
"""Ductile enabled while CUDA is in use, disabled, and enabled again, in the middle of a training.

A training that switches and one that does not, on PyTorch's own allocator with and without
expandable segments, each in a process of its own: the losses are the same to the bit. In the one
that switches tensors of both sides go to a child, graphs of both sides are replayed after each
switch, a thread has a memory pool open during the first, and both sides together stay under a
memory fraction. Prints one line per case; ends with status 1 if one failed.
"""

from __future__ import annotations

import gc
import os
import queue
import subprocess
import sys
import threading
import warnings
from typing import Any

import allocators
import cases

_parser = cases.parser(__doc__, seconds=100, workers=3)
_parser.add_argument("--train", choices=("plain", "switched"), help="one training, in this process")
GIVEN = _parser.parse_args()
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

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
    ductile_gpu.torch.enable("full")
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
        self.pool = torch.cuda.MemPool()
        self.orders: queue.Queue[None] = queue.Queue()
        self.is_open = threading.Event()
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
    return int(torch.cuda.memory_stats()["reserved_bytes.all.current"])


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
    # how expandable segments go to other processes is not looked at
    child.sums(new if "PYTORCH_CUDA_ALLOC_CONF" in os.environ else old)
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
    print(f"held at the end: {held() / MIB:.0f} MiB", flush=True)
    return training.losses


def train(how: str, allocator: str) -> str:
    """The losses of a training in a process of its own."""
    command = [sys.executable, "-X", "faulthandler", __file__, "--train", how]
    done = subprocess.run(
        command, env=allocators.environment(allocator), capture_output=True, text=True,
        check=False, timeout=GIVEN.seconds,
    )  # fmt: skip
    assert done.returncode == 0, f"{how} on {allocator}: {done.stdout}{done.stderr}"
    *said, losses = done.stdout.splitlines()
    print(f"{how} on {allocator}:", *said, flush=True)
    return losses


def losses_stay(allocator: str) -> None:
    plain_ones, again = train("plain", allocator), train("plain", allocator)
    assert plain_ones == again, "this program is not deterministic here: nothing can be told"
    switched_ones = train("switched", allocator)
    assert len(plain_ones.split()) == 4 * STEPS
    print("first, last loss:", *(float.fromhex(plain_ones.split()[at]) for at in (0, -1)))
    pairs = zip(plain_ones.split(), switched_ones.split())
    differing = [at for at, (one, other) in enumerate(pairs) if one != other]
    assert not differing, f"losses differ from step {differing[0]} on"


def losses_stay_over_native() -> None:
    losses_stay("native")


def losses_stay_over_expandable_segments() -> None:
    losses_stay("expandable")


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


CASES = (losses_stay_over_native, losses_stay_over_expandable_segments, out_of_memory_asks_native)

if __name__ == "__main__":
    if GIVEN.train:
        torch.use_deterministic_algorithms(True, warn_only=True)
        for kind in ("flash", "mem_efficient", "cudnn"):  # their backwards add in any order
            getattr(torch.backends.cuda, f"enable_{kind}_sdp")(False)
        found = plain() if GIVEN.train == "plain" else switched()
        print(*(loss.hex() for loss in found))
        sys.exit(0)
    sys.exit(cases.main(__file__, CASES, GIVEN))
