# SPDX-License-Identifier: Apache-2.0
"""A tensor that a side stream uses is dropped without record_stream and joined later.

Meanwhile a third stream allocates near a cap: alone, while another thread captures, and while
another thread has a MemPool open; on PyTorch's own allocator and on Ductile. No other stream may
write to what the third stream gets, and what is refused must be served after the join. Each case
has a process of its own, with a time limit. Prints one line per case; ends with status 1 if one
failed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import Event
from typing import Callable

import cases
import child
import torch

import ductile_gpu.torch

GIB = 1 << 30
CAP = 10 * GIB
SIZE = 6 * GIB  # two of them are more than the cap
CYCLES = 1_500_000_000  # most of a second
BY_SIDE, BY_THIRD, BY_MAIN = 2, 3, 4

Company = Callable[[], AbstractContextManager[None]]


def holds(tensor: torch.Tensor, value: int) -> bool:
    return int(tensor.min()) == int(tensor.max()) == value


def load_kernels() -> None:
    """What is loaded later may wait for the device, or break a capture."""
    torch.cuda._sleep(1)
    assert holds(torch.zeros(1024, dtype=torch.uint8, device="cuda").fill_(1), 1)
    assert float((torch.zeros(1024, device="cuda") + 1).sum()) == 1024
    torch.cuda.synchronize()


@contextmanager
def a_capture() -> Iterator[None]:
    graph, given = torch.cuda.CUDAGraph(), torch.zeros(1024, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        result = given + 1
        yield
    graph.replay()
    assert float(result.sum()) == 1024


@contextmanager
def an_open_pool() -> Iterator[None]:
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        kept = torch.zeros(1024, device="cuda") + 1
        yield
    assert float(kept.sum()) == 1024


@contextmanager
def in_another_thread(company: Company) -> Iterator[None]:
    begun, over = Event(), Event()

    def live() -> None:
        try:
            with company():
                begun.set()
                assert over.wait(60)
        finally:
            begun.set()  # the waiting thread hears of a failure below

    with ThreadPoolExecutor(1) as pool:
        living = pool.submit(live)
        try:
            assert begun.wait(60)
            yield
        finally:
            over.set()
        living.result()


def ask(third: torch.cuda.Stream) -> torch.Tensor | None:
    with torch.cuda.stream(third):
        try:
            return torch.empty(SIZE, dtype=torch.uint8, device="cuda").fill_(BY_THIRD)
        except torch.OutOfMemoryError:
            return None


def use_and_drop(side: torch.cuda.Stream) -> None:
    """The side stream writes all of it, late."""
    tensor = torch.zeros(SIZE, dtype=torch.uint8, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(CYCLES)
        tensor.fill_(BY_SIDE)


def play(allocator: str, company: Company) -> None:
    if allocator == "ductile":
        ductile_gpu.torch.enable("full")
    child.set_cap(CAP)
    load_kernels()
    assert torch.cuda.get_allocator_backend() == allocator
    side, third = torch.cuda.Stream(), torch.cuda.Stream()
    with in_another_thread(company):
        use_and_drop(side)
        assert not side.query(), "the side stream was done too early: nothing was tested"
        got = ask(third)
        is_done = side.query()
        torch.cuda.current_stream().wait_stream(side)
        again = torch.empty(GIB, dtype=torch.uint8, device="cuda").fill_(BY_MAIN)
    outcome = "refused" if got is None else "served"
    print(f"{outcome}, the side stream {'done' if is_done else 'at work'}", flush=True)
    assert got is None or is_done, "served from memory that a stream was at work on"
    torch.cuda.synchronize()
    assert holds(again, BY_MAIN), "the main stream's tensor was written by another"
    del again
    got = ask(third) if got is None else got
    assert got is not None, "refused after the join, too"
    torch.cuda.synchronize()
    assert holds(got, BY_THIRD), "the third stream's tensor was written by another"
    print("contents fine")


def case(allocator: str, name: str, company: Company) -> Callable[[], None]:
    def play_it() -> None:
        play(allocator, company)

    play_it.__name__ = f"{allocator}_{name}"
    return play_it


COMPANIES = {"alone": nullcontext, "beside_a_capture": a_capture,
             "beside_an_open_pool": an_open_pool}  # fmt: skip
CASES = [
    case(allocator, name, company)
    for allocator in ("native", "ductile")
    for name, company in COMPANIES.items()
]

if __name__ == "__main__":
    given = cases.parser(__doc__, seconds=60, workers=3).parse_args()
    sys.exit(cases.main(__file__, CASES, given))
