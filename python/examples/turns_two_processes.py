# SPDX-License-Identifier: Apache-2.0
"""A trainer and a generator, two processes, take turns on one GPU: together they need 1.6 times the
memory that both may hold. Who is not at work sleeps and holds nothing: a line for each turn draws
who holds what (t: the trainer, g: the generator). Weights go by host memory that both share. If one
ends, by whatever cause, the other sees it, says so and goes on alone. With PyTorch and a GPU for
real, otherwise each on a virtual GPU, with bytes.

python turns_two_processes.py [--turns N] [--virtual]
"""

from __future__ import annotations

import argparse
import fcntl
import mmap
import multiprocessing
import tempfile
import time
from pathlib import Path
from typing import Any, Callable

import ductile_gpu

MIB = 1 << 20
NAMES = ("trainer", "generator")
TRAINER = 0
SECONDS_TO_TAKE_BACK = 30
BAR = 40


class Turns:
    """Whose turn it is, in a file that both sides map. A side locks a file of its own for as long
    as it lives: the kernel unlocks it when the process ends, and so the other side knows."""

    WHOSE, WEIGHTS, BEGUN, HELD = 0, 1, 2, 4  # BEGUN and HELD: a word for each side; two are free

    def __init__(self, folder: Path, mine: int, tell: Callable[[str], object] = print) -> None:
        self.mine, self.other, self.tell = mine, 1 - mine, tell
        self.is_alone = False
        self.locks = [(folder / f"lives{side}").open("ab") for side in range(2)]
        with (folder / "words").open("a+b") as file:
            file.truncate(64)
            self.words = memoryview(mmap.mmap(file.fileno(), 64)).cast("q")
        fcntl.flock(self.locks[mine], fcntl.LOCK_EX)
        self.words[self.HELD + mine] = 0
        self.words[self.BEGUN + mine] = 1

    def take(self) -> None:
        """Waits for this side's turn, or for the other side's death."""
        while self.words[self.WHOSE] != self.mine:
            if self._other_is_dead():
                return
            time.sleep(0.0005)

    def give(self, held: int) -> None:
        self.words[self.HELD + self.mine] = held
        self.words[self.WHOSE] = self.other

    def _other_is_dead(self) -> bool:
        """Then its turn is ours; no process begins in its place before that."""
        if not self.words[self.BEGUN + self.other]:
            return False
        try:
            fcntl.flock(self.locks[self.other], fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.is_alone = False
            return False
        self.words[self.HELD + self.other] = 0
        self.words[self.WHOSE] = self.mine
        fcntl.flock(self.locks[self.other], fcntl.LOCK_UN)
        if not self.is_alone:
            self.tell(f"    the {NAMES[self.other]} has ended: the {NAMES[self.mine]} goes on")
        self.is_alone = True
        return True


def wake(side: Any) -> int:
    """A process that was killed is gone before the driver has taken back what it held. A wake
    without room changes nothing, so it can be tried again; returns how often that was."""
    until = time.monotonic() + SECONDS_TO_TAKE_BACK
    refused = 0
    while True:
        try:
            side.wake()
            return refused
        except ductile_gpu.OutOfMemory:
            refused += 1
            if time.monotonic() > until:
                raise
            time.sleep(0.01)


class OnGpu:
    """0.8 of the memory that there is: weights, and what else the work needs."""

    cap = 4096 * MIB

    def __init__(self, shared: memoryview) -> None:
        import torch

        import ductile_gpu.torch as memory

        memory.enable(limit_bytes=self.cap)
        self.torch, self.memory = torch, memory
        self.shared = torch.frombuffer(shared, dtype=torch.float32)
        with memory.pool("all"):
            self.weights = torch.zeros(self.shared.numel() // 2, device="cuda")
            self.rest = torch.zeros(int(self.cap * 0.8) // 4 - self.weights.numel(), device="cuda")

    def slot(self, step: int) -> Any:
        """Every other step has its own: who dies writing leaves the weights before it whole."""
        return self.shared[(step % 2) * self.weights.numel() :][: self.weights.numel()]

    def write(self, step: int) -> None:
        """Trains."""
        self.rest.add_(1)
        self.weights.copy_(self.rest[: self.weights.numel()])
        assert float(self.weights[-1]) == step, "training has lost its state"
        self.slot(step).copy_(self.weights)

    def read(self, step: int) -> None:
        """Generates."""
        self.weights.copy_(self.slot(step))
        self.rest.fill_(step)
        assert self.torch.equal(self.weights, self.rest[: self.weights.numel()])

    def set_others(self, held: int) -> None:
        """The device knows itself."""

    def held(self) -> int:
        return self.memory.tags()["all"].held_bytes

    def sleep(self) -> None:
        self.memory.sleep("all")
        self.torch.cuda.empty_cache()

    def wake(self) -> None:
        self.memory.wake("all")


class OnVirtualGpu:
    """The same with a byte. Each process has its own device, and is told what the other holds."""

    cap = 40 * MIB

    def __init__(self, shared: memoryview) -> None:
        self.shared = shared
        self.gpu = ductile_gpu.VirtualGPU(self.cap)
        self.allocator = ductile_gpu.Allocator(virtual=self.gpu, sizes="2M")
        with self.allocator.pool((1, 1)):
            self.block = self.allocator.alloc(32 * MIB)
        self.allocator.set_tag((1, 1), "all", "keep")
        self.gpu.fill(self.block, 0, 32 * MIB)

    def write(self, step: int) -> None:
        assert self.gpu.read_back(self.block, 1)[0] == (step - 1) % 256, "training lost its state"
        self.gpu.fill(self.block, step % 256, 32 * MIB)
        self.shared[4 * (step % 2) :][:4] = self.gpu.read_back(self.block, 4)

    def read(self, step: int) -> None:
        given = bytes(self.shared[4 * (step % 2) :][:4])
        assert given == bytes([step % 256] * 4)
        self.gpu.fill(self.block, given[0], 32 * MIB)

    def set_others(self, held: int) -> None:
        self.gpu.set_external(held)

    def held(self) -> int:
        return self.allocator.stats((1, 1)).reserved_bytes

    def sleep(self) -> None:
        self.allocator.sleep("all")

    def wake(self) -> None:
        self.allocator.wake("all")


def shared_bytes(kind: Any) -> int:
    """A twentieth of the memory, in whole numbers of 4 bytes; twice, see `slot`."""
    return 2 * (int(kind.cap) // 20 // 4 * 4)


def draw(step: int, mine: int, held: dict[int, int], asleep: int, cap: int) -> None:
    """What each side holds while this one is at work, and what both hold once it sleeps."""
    bars = "".join(NAMES[side][0] * round(BAR * size / cap) for side, size in sorted(held.items()))
    share = f"{sum(held.values()) / cap:4.0%} of the memory, then {asleep / cap:.0%}"
    print(f"{step:3} {NAMES[mine]:9} |{bars:<{BAR}}| {share}", flush=True)


def take_one(turns: Turns, side: Any, step: int) -> None:
    turns.take()
    others = turns.words[turns.HELD + turns.other]
    side.set_others(others)
    wake(side)
    if turns.mine == TRAINER:
        side.write(step)
        turns.words[turns.WEIGHTS] = step
    elif turns.words[turns.WEIGHTS]:
        side.read(turns.words[turns.WEIGHTS])
    held = {turns.mine: side.held(), turns.other: others}
    assert sum(held.values()) <= side.cap, "both together hold more than there is"
    side.sleep()
    draw(step, turns.mine, held, side.held() + others, side.cap)
    turns.give(side.held())


def work(mine: int, is_virtual: bool, n_turns: int, folder: Path) -> None:
    """One of the two."""
    kind: Any = OnVirtualGpu if is_virtual else OnGpu
    turns = Turns(folder, mine)
    with (folder / "weights").open("a+b") as file:
        file.truncate(shared_bytes(kind))
        shared = memoryview(mmap.mmap(file.fileno(), shared_bytes(kind)))
    turns.take()  # what is made here holds memory
    side = kind(shared)
    side.sleep()
    turns.give(side.held())
    for step in range(1, n_turns + 1):
        take_one(turns, side, step)


def has_gpu() -> bool:
    try:
        import torch
    except ImportError:
        return False
    return bool(torch.cuda.is_available())


def main() -> int:
    words = argparse.ArgumentParser(description="Two processes take turns on one GPU.")
    words.add_argument("--turns", type=int, default=10)
    words.add_argument("--virtual", action="store_true", help="without PyTorch and a GPU")
    given = words.parse_args()
    is_virtual = given.virtual or not has_gpu()
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        sides = [
            context.Process(target=work, args=(mine, is_virtual, given.turns, Path(folder)))
            for mine in range(2)
        ]
        for side in sides:
            side.start()
        for side in sides:
            side.join()
    failed = [side.exitcode for side in sides if side.exitcode]
    print("together 1.6 times the memory; " + ("failed" if failed else "every turn was taken"))
    return int(bool(failed))


if __name__ == "__main__":
    raise SystemExit(main())
