# SPDX-License-Identifier: Apache-2.0
"""A trainer and a generator, two processes, take turns on one GPU: together they need 1.6 times the
memory that both may hold. Who is not at work sleeps and holds nothing; weights go by host memory
that both share. With PyTorch and a GPU for real, otherwise each on a virtual GPU, with bytes.

python turns_two_processes.py [--turns N] [--virtual]
"""

from __future__ import annotations

import argparse
import multiprocessing
from multiprocessing.connection import Connection
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import ductile_gpu

MIB = 1 << 20


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
            self.weights = torch.zeros(self.shared.numel(), device="cuda")
            self.rest = torch.zeros((int(self.cap * 0.8) - len(shared)) // 4, device="cuda")

    def write(self, step: int) -> None:
        """Trains."""
        self.rest.add_(1)
        self.weights.copy_(self.rest[: self.weights.numel()])
        assert float(self.weights[-1]) == step, "training has lost its state"
        self.shared.copy_(self.weights)

    def read(self, step: int) -> None:
        """Generates."""
        self.weights.copy_(self.shared)
        self.rest.fill_(step)
        assert self.torch.equal(self.weights, self.rest[: self.weights.numel()])

    def set_others(self, held: int) -> None:
        """The device knows itself."""

    def held(self) -> int:
        return self.memory.tags()["all"].held_bytes

    def pause(self) -> None:
        self.memory.pause("all")
        self.torch.cuda.empty_cache()

    def resume(self) -> None:
        self.memory.resume("all")


class OnVirtualGpu:
    """The same with a byte. Each process has its own device, and is told what the other holds."""

    cap = 40 * MIB

    def __init__(self, shared: memoryview) -> None:
        self.shared = shared
        self.gpu = ductile_gpu.VirtualGPU(self.cap)
        self.allocator = ductile_gpu.Allocator(virtual=self.gpu, sizes="tight")
        with self.allocator.pool((1, 1)):
            self.block = self.allocator.alloc(32 * MIB)
        self.allocator.set_tag((1, 1), "all", "keep")
        self.gpu.fill(self.block, 0, 32 * MIB)

    def write(self, step: int) -> None:
        assert self.gpu.read_back(self.block, 1)[0] == step - 1, "training has lost its state"
        self.gpu.fill(self.block, step, 32 * MIB)
        self.shared[:4] = self.gpu.read_back(self.block, 4)

    def read(self, step: int) -> None:
        assert self.shared[0] == step
        self.gpu.upload(self.block, bytes(self.shared[:4]))

    def set_others(self, held: int) -> None:
        self.gpu.set_external(held)

    def held(self) -> int:
        return self.allocator.pool_stats((1, 1)).reserved_bytes

    def pause(self) -> None:
        self.allocator.pause("all")

    def resume(self) -> None:
        self.allocator.resume("all")


def shared_bytes(kind: Any) -> int:
    """A fifth of the memory, in whole numbers of 4 bytes."""
    return int(kind.cap) // 5 // 4 * 4


def work(is_trainer: bool, is_virtual: bool, turns: int, name: str, peer: Connection) -> None:
    """One of the two. A message is what the sender holds now: with it the turn is passed on."""
    kind: Any = OnVirtualGpu if is_virtual else OnGpu
    block = SharedMemory(name)
    if not is_trainer:
        peer.recv()  # the trainer is made and sleeps
    side = kind(block.buf[: shared_bytes(kind)])
    side.pause()
    peer.send(side.held())
    for step in range(1, turns + 1):
        side.set_others(peer.recv())
        side.resume()
        side.write(step) if is_trainer else side.read(step)
        before = side.held()
        side.pause()
        who = "trainer  " if is_trainer else "generator"
        print(
            f"{step:3} {who} held {before >> 20:5} MiB, holds {side.held() >> 20} now", flush=True
        )
        peer.send(side.held())
    if is_trainer:
        peer.recv()
    del side


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
    kind: Any = OnVirtualGpu if is_virtual else OnGpu
    context = multiprocessing.get_context("spawn")
    block = SharedMemory(create=True, size=shared_bytes(kind))
    try:
        ends = context.Pipe()
        sides = [
            context.Process(target=work, args=(who, is_virtual, given.turns, block.name, end))
            for who, end in zip((True, False), ends)
        ]
        for side in sides:
            side.start()
        for side in sides:
            side.join()
    finally:
        block.close()
        block.unlink()
    failed = [side.exitcode for side in sides if side.exitcode]
    print("together 1.6 times the memory; " + ("failed" if failed else "every turn was taken"))
    return int(bool(failed))


if __name__ == "__main__":
    raise SystemExit(main())
