# SPDX-License-Identifier: Apache-2.0
"""Programs that are nothing but their allocations, small enough to read, and of the kinds whose
memory real ones cannot use again: what stays lies between what goes.

  shapes     a model meets a larger shape; a little state has been left between the activations
  outputs    an evaluation keeps a small output of each of its batches; then a training begins
  requests   a server: texts of different lengths come and go, and each holds a few MiB a layer;
             then a long prompt
  batches    batches that grow a little at every step, three of them under way
  walk       10 units, 1 more, the 10 go, 4 and 11 come
  random     large blocks of all sizes, of which 97 % of the cap is in use
  streams    two streams take turns with all of the memory
  pool       what a `MemPool` was used for is over; the pool lives on
  libraries  what CuPy was used for is over; then PyTorch needs memory: 80 GiB each, of a device
             with less than 160

Each is a generator that yields what it does: ("take", name, bytes, place) or ("give", name); a
place is the number of a stream, "pool" or "cupy". So the same program runs on PyTorch (`Player`)
and, but for those two, as a trace on the virtual GPU:

    python capped_programs.py requests > requests.trace
    ductile-bench replay --capacity 5700M --contender ductile,expandable requests.trace
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

Event = tuple[Any, ...]
MIB = 1 << 20


def take(name: object, mib: float, place: object = 0) -> Event:
    return ("take", name, round(mib * MIB), place)


def give(name: object) -> Event:
    return ("give", name)


def shapes() -> Iterator[Event]:
    layers = range(40)
    for layer in layers:
        yield take(("temporary", layer), 195)
        yield give(("temporary", layer))
        yield take(("state", layer), 3)  # lies where the temporary was, beside the activation
        yield take(("activation", layer), 192)
    for layer in reversed(layers):
        yield give(("activation", layer))
    for layer in layers:
        yield take(("larger", layer), 211)


def outputs() -> Iterator[Event]:
    choice = random.Random(1)
    for batch in range(200):
        size = choice.randint(20, 60)
        for layer in range(4):
            yield take((batch, layer), size)
        yield take(("kept", batch), size / 16)
        for layer in range(4):
            yield give((batch, layer))
    for layer in range(24):
        yield take(("training", layer), 160)


def requests() -> Iterator[Event]:
    choice = random.Random(2)
    layers, alive = 16, []
    for number in range(400):
        for layer in range(layers):
            yield take((number, layer), choice.randint(1, 24) / 2)
        alive.append(number)
        while len(alive) > 48:
            gone = alive.pop(choice.randrange(len(alive)))
            for layer in range(layers):
                yield give((gone, layer))
    for gone in alive[::2]:
        for layer in range(layers):
            yield give((gone, layer))
    for part in range(8):
        yield take(("prompt", part), 256)


def batches() -> Iterator[Event]:
    parts, under_way = range(8), 3
    for step in range(60):
        for part in parts:
            yield take((step, part), 90 + step / 2 + 4 * part)
        if step >= under_way:
            for part in parts:
                yield give((step - under_way, part))


def walk() -> Iterator[Event]:
    unit = 500
    yield take("first", 10 * unit)
    yield take("stays", unit)
    yield give("first")
    yield take("second", 4 * unit)
    yield take("third", 11 * unit)


def at_random() -> Iterator[Event]:
    choice, alive, live = random.Random(3), [], 0.0
    for number in range(400):
        size = 11 + choice.randrange(40) * choice.randrange(160) / 10
        while live + size > 8000:
            gone, freed = alive.pop(choice.randrange(len(alive)))
            live -= freed
            yield give(gone)
        alive.append((number, size))
        live += size
        yield take(number, size)


def streams() -> Iterator[Event]:
    for turn in range(6):
        for block in range(31):
            yield take((turn, block), 128, turn % 2)
        for block in range(31):
            yield give((turn, block))


def pool() -> Iterator[Event]:
    for block in range(32):
        yield take(("pooled", block), 128, "pool")
    for block in range(32):
        yield give(("pooled", block))
    for block in range(32):
        yield take(block, 128)


def libraries() -> Iterator[Event]:
    for block in range(32):
        yield take(("array", block), 2560, "cupy")
    for block in range(32):
        yield give(("array", block))
    for block in range(32):
        yield take(block, 2560)


class Program(NamedTuple):
    events: Callable[[], Iterator[Event]]
    cap: int
    """MiB: between what Ductile and what PyTorch's expandable segments need, by replays of the
    trace on the virtual GPU (`--min-capacity`); of walk and streams, a little above what both
    need. 0: the whole device, because no cap of PyTorch's holds CuPy."""


PROGRAMS = {
    "requests": Program(requests, 5700),
    "shapes": Program(shapes, 8900),
    "random": Program(at_random, 8300),
    "batches": Program(batches, 4290),
    "outputs": Program(outputs, 4440),
    "pool": Program(pool, 6000),
    "libraries": Program(libraries, 0),
    "walk": Program(walk, 8050),
    "streams": Program(streams, 4000),
}


def live_peak(name: str) -> int:
    """The most bytes that a program has in use at once."""
    sizes: dict[object, int] = {}
    most = live = 0
    for event in PROGRAMS[name].events():
        if event[0] == "take":
            sizes[event[1]] = event[2]
            live += event[2]
        else:
            live -= sizes.pop(event[1])
        most = max(most, live)
    return most


def trace(name: str) -> str:
    """A program as a trace that `ductile-bench replay` reads."""
    numbers: dict[object, int] = {}
    lines = ["# version 2"]
    for event in PROGRAMS[name].events():
        if event[0] == "take":
            numbers[event[1]] = len(numbers)
            lines.append(f"a {numbers[event[1]]} {event[2]} {event[3]}")
        else:
            lines.append(f"f {numbers[event[1]]}")
    return "\n".join(lines) + "\n"


class Player:
    """Runs programs on PyTorch, under whatever allocator it has. Every block is written."""

    def __init__(self, device: str) -> None:
        import torch

        self.torch, self.device, self.on_gpu = torch, device, device == "cuda"
        self.streams = [torch.cuda.current_stream(), torch.cuda.Stream()] if self.on_gpu else []
        self.pool: Any = None

    def make(self, n_bytes: int, place: object) -> Any:
        torch = self.torch
        if not self.on_gpu:
            return n_bytes
        if place == "cupy":
            import cupy

            array = cupy.empty(n_bytes, dtype=cupy.uint8)
            array.data.memset(1, n_bytes)
            return array
        if place == "pool":
            self.pool = self.pool or torch.cuda.MemPool()
            with torch.cuda.use_mem_pool(self.pool):
                return torch.ones(n_bytes, dtype=torch.uint8, device=self.device)
        with torch.cuda.stream(self.streams[int(str(place))]):
            return torch.ones(n_bytes, dtype=torch.uint8, device=self.device)

    def play(self, name: str) -> dict[str, Any]:
        """Whether it was refused memory, after how many of its events, and what was live then."""
        uses_cupy = name == "libraries" and self.on_gpu
        if uses_cupy and self.torch.cuda.get_allocator_backend() == "ductile":
            import ductile_gpu.cupy

            ductile_gpu.cupy.enable()
        live: dict[object, tuple[int, Any]] = {}
        refused, events = False, 0
        for event in PROGRAMS[name].events():
            events += 1
            if event[0] == "give":
                del live[event[1]]
                continue
            try:
                live[event[1]] = event[2], self.make(event[2], event[3])
            except self.torch.OutOfMemoryError:
                refused = True
                break
        left = sum(size for size, _ in live.values())
        live.clear()
        if uses_cupy:
            import cupy

            cupy.get_default_memory_pool().free_all_blocks()
        return {"refused": refused, "events": events, "live": left}


if __name__ == "__main__":
    sys.stdout.write(trace(sys.argv[1]))
