# SPDX-License-Identifier: Apache-2.0
"""The figures in the advice of a refusal, on programs made by chance: who follows them is served.
Each sentence has a scenario of its own in tests/scenarios/advice.txt."""

from __future__ import annotations

import random
import re

import pytest

import ductile_gpu

MIB = 1 << 20
UNITS = {"B": 1, "KiB": 1 << 10, "MiB": MIB, "GiB": 1 << 30}
SIZE = r"(\d+\.?\d* \w+)"
BOTH = re.compile(f"free {SIZE} of it, and raise limit_bytes to {SIZE}\\.")
LIMIT = re.compile(f"raise limit_bytes to {SIZE}\\.")
OTHERS = re.compile(f"The request needs {SIZE} of them\\.")


def in_bytes(text):
    number, unit = text.split()
    return int(float(number) * UNITS[unit])


def granules(size):
    return int(size) // (2 * MIB) * 2 * MIB


class Program:
    """Takes and gives memory on three streams, under a limit, beside others, and then asks."""

    def __init__(self, seed, gpu, total, limit, allocator):
        self.gpu, self.allocator, self.limit = gpu, allocator, limit
        self.choice = random.Random(seed)
        self.streams = [0, gpu.stream(), gpu.stream()]
        if self.choice.random() < 0.7:
            room = total - limit * self.choice.uniform(0.3, 1)
            gpu.set_external(granules(room * self.choice.random()))
        self.live = []
        for _ in range(self.choice.randrange(5, 60)):
            if not self._step():
                break
        self.size = int(limit * self.choice.uniform(0.02, 1.2))
        self.stream = self.choice.choice(self.streams)

    def _step(self):
        if self.live and self.choice.random() < 0.4:
            self.allocator.free(self.live.pop(self.choice.randrange(len(self.live))))
            return True
        size = max(512, int(self.limit * self.choice.random() ** 4))
        try:
            self.live.append(self.allocator.alloc(size, self.choice.choice(self.streams)))
        except ductile_gpu.OutOfMemory:
            return False
        return True

    def is_served(self):
        try:
            self.allocator.alloc(self.size, self.stream)
        except ductile_gpu.OutOfMemory:
            return False
        return True

    def follow(self):
        """What the advice says; False where it names no figure."""
        report = self.allocator.oom_report()
        text = " ".join(report["advice"])
        both, limit, others = BOTH.search(text), LIMIT.search(text), OTHERS.search(text)
        if both or others:
            freed = in_bytes((both or others)[1])
            if report["others_bytes"] < freed:
                return False
            self.gpu.set_external(report["others_bytes"] - freed)
        if both or limit:
            self.allocator.set_limit(str(in_bytes(both[2] if both else limit[1])))
        return bool(both or limit or others)


@pytest.mark.parametrize("sizes", ["auto", "2M", "64M"])
@pytest.mark.parametrize("gib", [1, 8, 80])
def test_who_follows_the_figures_of_an_advice_is_served(sizes, gib):
    followed = 0
    for seed in range(30):
        total = gib << 30
        limit = granules(total * random.Random(seed).uniform(0.2, 0.9))
        options = {"limit_bytes": limit, "sizes": sizes}
        with ductile_gpu.VirtualGPU(str(total)) as gpu, gpu.allocator(**options) as allocator:
            program = Program(seed, gpu, total, limit, allocator)
            if not program.is_served() and program.follow():
                assert program.is_served(), (seed, allocator.oom_report())
                followed += 1
    assert followed > 5
