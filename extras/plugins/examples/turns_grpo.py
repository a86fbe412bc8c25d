# SPDX-License-Identifier: Apache-2.0
"""TRL's GRPOTrainer: the optimizer's state sleeps while completions are made, their memory while
the model learns. `T, Adam = halves()`; T(..., optimizers=(Adam(...), None)). Alone: --virtual."""

import argparse
from typing import Any

import ductile_gpu


def halves() -> tuple[Any, Any]:
    import torch
    import trl

    import ductile_gpu.torch as memory

    class Adam(torch.optim.AdamW):
        def step(self, closure: Any = None) -> Any:
            with memory.pool("learn"):
                return super().step(closure)

    class Trainer(trl.GRPOTrainer):
        def _generate_single_turn(self, *given: Any, **more: Any) -> Any:
            memory.sleep("learn", strict=False)  # in the first turn neither has memory yet
            memory.wake("generate", strict=False)
            with memory.pool("generate", contents="drop"):
                said = super()._generate_single_turn(*given, **more)
            memory.sleep("generate")
            memory.wake("learn", strict=False)
            return said

    memory.enable()
    return Trainer, Adam


def play(turns: int) -> None:
    gpu = ductile_gpu.VirtualGPU(64 << 20)  # no room for state and cache at once
    memory = ductile_gpu.Allocator(virtual=gpu, sizes="2M")
    with memory.pool((1, 1)):
        state = memory.alloc(40 << 20)
    memory.set_tag((1, 1), "learn", "keep")
    for turn in range(turns):
        gpu.fill(state, turn % 256, 40 << 20)
        memory.sleep("learn")
        memory.wake("generate", lenient=True)
        with memory.pool((1, 2)):
            cache = memory.alloc(50 << 20)
        memory.set_tag((1, 2), "generate", "drop")
        held = memory.stats().reserved_bytes >> 20
        memory.free(cache)
        memory.sleep("generate")
        memory.wake("learn")
        assert gpu.read_back(state, 1)[0] == turn % 256, "the state is lost"
        print(f"{turn:3} generates in {held} MiB, learns in {memory.stats().reserved_bytes >> 20}")


if __name__ == "__main__":
    words = argparse.ArgumentParser(description="GRPO's halves on the virtual GPU: the calls alone")
    words.add_argument("--virtual", metavar="TURNS", type=int, nargs="?", const=10, default=10)
    play(words.parse_args().virtual)
