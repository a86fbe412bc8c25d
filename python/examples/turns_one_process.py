# SPDX-License-Identifier: Apache-2.0
"""Training and generation take turns in one process, as in reinforcement learning: together they
need 1.6 times the memory that there is. What is not used sleeps, and new weights reach the sleeping
generator on the host. With PyTorch and a GPU for real, otherwise on the virtual GPU, with bytes.

python turns_one_process.py [--turns N] [--virtual]
"""

from __future__ import annotations

import argparse
from typing import Any

import ductile_gpu

MIB = 1 << 20
BAR = 40


class OnGpu:
    """A layer that is trained by gradient descent with momentum, and a copy that generates."""

    cap = 4096 * MIB

    def __init__(self) -> None:
        import torch

        import ductile_gpu.torch as memory

        memory.enable(limit_bytes=self.cap)
        self.torch, self.memory = torch, memory
        self.sleep, self.wake = memory.sleep, memory.wake
        n = int((self.cap * 0.7 / 3 / 4) ** 0.5) // 64 * 64
        self.x = torch.randn(32, n, device="cuda")  # in no pool, since both sides read it
        with memory.pool("train"):
            self.layer = torch.nn.Linear(n, n, bias=False, device="cuda")
            self.optimizer = torch.optim.SGD(
                self.layer.parameters(), lr=1e-3, momentum=0.9, foreach=False
            )
            # Backward's threads are outside of the pool: what they make would be, too.
            self.layer.weight.grad = torch.zeros_like(self.layer.weight)
            self.train()  # makes the momentum, which is to sleep too
        memory.sleep("train")
        with memory.pool("weights"):
            self.weights = torch.zeros(n, n, device="cuda")
        with memory.pool("cache", contents="drop"):
            self.cache = torch.empty(int(self.cap * 0.65) // 4, device="cuda")
        memory.sleep(["weights", "cache"])

    def train(self) -> float:
        with self.memory.pool("train"):
            self.optimizer.zero_grad(set_to_none=False)
            loss = (self.layer(self.x) - self.x).square().mean()
            loss.backward()
            self.optimizer.step()
        return float(loss.detach())

    def send_weights(self) -> None:
        """To the host copy of the generator's, which sleeps: its wake brings them."""
        kept = self.memory.kept(self.weights, copy=False)
        assert kept is not None
        kept.copy_(self.layer.weight.detach())
        self.sent = float(kept[:8, :8].double().sum())

    def generate(self) -> float:
        self.cache.zero_()
        self.cache[: self.x.numel()] = (self.x @ self.weights.T).flatten()
        assert float(self.weights[:8, :8].cpu().double().sum()) == self.sent
        return float(self.cache[: self.x.numel()].abs().mean())

    def held(self) -> dict[str, int]:
        return {tag: s.held_bytes for tag, s in self.memory.tags().items() if tag}


class OnVirtualGpu:
    """The same turns with a byte for the weights' contents."""

    cap = 64 * MIB

    def __init__(self) -> None:
        self.gpu = ductile_gpu.VirtualGPU(self.cap)
        self.allocator = ductile_gpu.Allocator(virtual=self.gpu, sizes="2M")
        self.pools = {"train": (1, 1), "weights": (1, 2), "cache": (1, 3)}
        self.blocks: dict[str, int] = {}
        self.step = 0
        sizes = {"train": 44, "weights": 16, "cache": 42}
        for tag, pool in self.pools.items():
            with self.allocator.pool(pool):
                self.blocks[tag] = self.allocator.alloc(sizes[tag] * MIB)
            self.allocator.set_tag(pool, tag, "drop" if tag == "cache" else "keep")
            self.gpu.fill(self.blocks[tag], 0, sizes[tag] * MIB)
            self.sleep(tag)

    def sleep(self, tags: Any) -> None:
        self.allocator.sleep(tags)

    def wake(self, tags: Any) -> None:
        self.allocator.wake(tags)

    def train(self) -> float:
        before = self.gpu.read_back(self.blocks["train"], 1)[0]
        assert before == self.step, "training has lost its state"
        self.step += 1
        self.gpu.fill(self.blocks["train"], self.step, 44 * MIB)
        return 1 / self.step

    def send_weights(self) -> None:
        self.allocator.kept_contents(self.blocks["weights"])[:] = bytes([self.step]) * (16 * MIB)

    def generate(self) -> float:
        self.gpu.fill(self.blocks["cache"], 1, 42 * MIB)
        assert self.gpu.read_back(self.blocks["weights"], 1)[0] == self.step
        return float(self.step)

    def held(self) -> dict[str, int]:
        return {
            p.tag: self.allocator.stats(p.id).reserved_bytes
            for p in self.allocator.pools()
            if p.tag
        }


def draw(turn: int, what: str, held: dict[str, int], cap: int) -> None:
    bars = "".join(tag[0] * round(BAR * size / cap) for tag, size in sorted(held.items()))
    print(f"{turn:3} {what:9} |{bars:<{BAR}}| {sum(held.values()) / cap:4.0%} of the memory")


def main() -> int:
    words = argparse.ArgumentParser(description="Training and generation take turns.")
    words.add_argument("--turns", type=int, default=10)
    words.add_argument("--virtual", action="store_true", help="without PyTorch and a GPU")
    given = words.parse_args()
    side: Any = None if given.virtual else on_gpu()
    side = side or OnVirtualGpu()
    for turn in range(given.turns):
        side.wake("train")
        loss = side.train()
        draw(turn, "trains", side.held(), side.cap)
        if turn == 0:
            print("    t: train, w: weights, c: cache")
        side.send_weights()
        side.sleep("train")
        side.wake(["weights", "cache"])
        said = side.generate()
        draw(turn, "generates", side.held(), side.cap)
        side.sleep(["weights", "cache"])
        print(f"    loss {loss:.4f}, said {said:.4f}")
    side.wake("train")
    return 0


def on_gpu() -> Any:
    try:
        import torch
    except ImportError:
        return None
    return OnGpu() if torch.cuda.is_available() else None


if __name__ == "__main__":
    raise SystemExit(main())
