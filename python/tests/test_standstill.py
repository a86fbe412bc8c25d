# SPDX-License-Identifier: Apache-2.0
"""Two ranks whose streams wait for one another, and the waits on the GPU that `record_stream:wait`
adds (docs/dev/decisions/0040). What a rank enqueues is written down here; whether an allocation
adds a wait is asked of Ductile itself, on a virtual GPU for each rank. Then both ranks' streams run
against each other: work that needs its peer begins when the peer's has its turn, as NCCL's."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

import pytest

import ductile_gpu
from ductile_gpu._binding._objects import Closes

MIB = 1 << 20
SIZE = 6 * MIB


class Meeting(NamedTuple):
    """Work that ends once both ranks have come to it."""

    name: str


class Until(NamedTuple):
    """A wait for the first `count` works of another stream."""

    stream: str
    count: int


class Rank(Closes):
    """A program that enqueues on the streams `compute`, `reduce` and `pass_on`."""

    def __init__(self, record_stream: str) -> None:
        self._gpu = ductile_gpu.VirtualGPU("2G", schedule="lazy")
        self._allocator = self._gpu.allocator(record_stream=record_stream)
        names = ("compute", "reduce", "pass_on")
        self._streams = {name: self._gpu.stream() for name in names}
        self.queues: dict[str, list[object]] = {name: [] for name in names}
        self._lent: dict[int, Until] = {}

    def close(self) -> None:
        self._gpu.close()

    def join(self, stream: str, on: str) -> None:
        self._gpu.wait(self._streams[stream], self._streams[on])
        self.queues[stream].append(Until(on, len(self.queues[on])))

    def meet(self, stream: str, name: str) -> None:
        self.queues[stream].append(Meeting(name))

    def alloc(self) -> int:
        """On `compute`, which Ductile may let wait for what others do with that memory."""
        before = self._gpu.count("stream_wait_event")
        address = self._allocator.alloc(SIZE, self._streams["compute"])
        uses = [at for at in self._lent if abs(at - address) < SIZE]
        assert (self._gpu.count("stream_wait_event") > before) == bool(uses)
        self.queues["compute"] += [self._lent.pop(at) for at in uses]
        return address

    def lend_and_free(self, address: int, stream: str) -> None:
        self._gpu.launch(self._streams[stream], reads=[(address, SIZE)])
        self._allocator.record_stream(address, self._streams[stream])
        self._allocator.free(address)
        self._lent[address] = Until(stream, len(self.queues[stream]))

    def send(self, name: str) -> None:
        """A block's contents leave on `pass_on`, and the block is freed at once."""
        address = self.alloc()
        self.join("pass_on", "compute")
        self.meet("pass_on", name)
        self.lend_and_free(address, "pass_on")

    def receive(self, name: str) -> None:
        self.join("pass_on", "compute")
        self.meet("pass_on", name)

    def reduce(self, name: str) -> None:
        address = self.alloc()
        self.join("reduce", "compute")
        self.meet("reduce", name)
        self.join("compute", "reduce")
        self.lend_and_free(address, "reduce")


Place = tuple[int, str]


def _may_pass(ranks: tuple[Rank, Rank], done: dict[Place, int], rank: int, stream: str) -> bool:
    queue = ranks[rank].queues[stream]
    work = queue[done[rank, stream]]
    if isinstance(work, Until):
        return done[rank, work.stream] >= work.count
    other = ranks[1 - rank].queues
    for at, theirs in other.items():
        reached = done[1 - rank, at]
        if work in theirs[:reached] or (reached < len(theirs) and theirs[reached] == work):
            return True
    return False


def ends(ranks: tuple[Rank, Rank]) -> bool:
    """Do the streams come to their ends?"""
    done = {(rank, stream): 0 for rank in (0, 1) for stream in ranks[rank].queues}
    moved = True
    while moved:
        moved = False
        for rank, stream in done:
            queue = ranks[rank].queues[stream]
            while done[rank, stream] < len(queue) and _may_pass(ranks, done, rank, stream):
                done[rank, stream] += 1
                moved = True
    return all(n == len(ranks[rank].queues[stream]) for (rank, stream), n in done.items())


def play(record_stream: str, program: Callable[[Rank, Rank], None]) -> bool:
    with Rank(record_stream) as first, Rank(record_stream) as second:
        program(first, second)
        return ends((first, second))


def sends_before_its_peer_receives(first: Rank, second: Rank) -> None:
    """The sender goes on and reduces; the receiver reduces first. Streams of their own allow it."""
    first.send("layer 1")
    first.reduce("loss")
    second.reduce("loss")
    second.receive("layer 1")


def test_ranks_in_different_orders_end_where_no_wait_is_added():
    assert play("poll", sends_before_its_peer_receives)


def test_an_added_wait_can_close_a_circle_between_ranks_in_different_orders():
    assert not play("wait", sends_before_its_peer_receives)


@pytest.mark.parametrize("seed", range(20))
def test_ranks_in_one_order_end_whatever_each_of_them_allocates(seed):
    rng = random.Random(seed)
    order = [rng.choice(["reduce", "send", "receive"]) for _ in range(12)]
    opposite = {"send": "receive", "receive": "send", "reduce": "reduce"}

    def program(first: Rank, second: Rank) -> None:
        for number, what in enumerate(order):
            for rank, act in ((first, what), (second, opposite[what])):
                for _ in range(rng.randrange(3)):
                    rank.lend_and_free(rank.alloc(), rng.choice(["reduce", "pass_on"]))
                getattr(rank, act)(str(number))

    assert play("wait", program)
