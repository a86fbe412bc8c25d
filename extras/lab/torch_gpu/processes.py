# SPDX-License-Identifier: Apache-2.0
"""CUDA tensors between processes, and data loaders, under Ductile.

Spawned children run on Ductile too. Each case has a process of its own, with a time limit. Prints
one line per case; ends with status 1 if one failed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Callable

import cases
import torch
import torch.multiprocessing as mp

import ductile_gpu.torch

ductile_gpu.torch.enable("full")

MIB = 1 << 20


def consume(inbox: Any, outbox: Any) -> None:
    """Sums each tensor that comes, changes it, and sends one of its own."""
    for number in iter(inbox.get, None):
        tensor = inbox.get()
        total = int(tensor.sum(dtype=torch.int64))
        tensor.fill_(number)
        own = torch.full((3 * MIB,), number + 1, dtype=torch.uint8, device="cuda")
        torch.cuda.synchronize()
        outbox.put((total, torch.cuda.get_allocator_backend(), own))
        del tensor, own
    outbox.put("done")
    inbox.get()  # the sender of a tensor has to live until it was received


@contextmanager
def a_consumer() -> Iterator[tuple[Any, Any]]:
    """A child on Ductile: its inbox and its outbox."""
    context = mp.get_context("spawn")
    inbox, outbox = context.Queue(), context.Queue()
    child = context.Process(target=consume, args=(inbox, outbox), daemon=True)
    child.start()
    yield inbox, outbox
    inbox.put(None)
    assert outbox.get(timeout=120) == "done"
    inbox.put(None)
    child.join(60)
    assert child.exitcode == 0, child.exitcode


def tensors_go_both_ways() -> None:
    with a_consumer() as (inbox, outbox):
        for number in range(1, 9):
            whole = torch.full((4 * MIB,), number, dtype=torch.uint8, device="cuda")
            part = whole[MIB : 3 * MIB]  # a view, not at the start of its block
            inbox.put(100)
            inbox.put(part)
            total, backend, answer = outbox.get(timeout=120)
            assert total == number * 2 * MIB
            assert backend == "ductile"
            torch.cuda.synchronize()
            assert int(whole[:MIB].sum(dtype=torch.int64)) == number * MIB
            assert int(part.sum(dtype=torch.int64)) == 100 * 2 * MIB
            assert int(answer.sum(dtype=torch.int64)) == 101 * 3 * MIB
            del whole, part, answer
            torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
            torch.cuda.empty_cache()
    torch.cuda.ipc_collect()


def a_block_is_mapped_once() -> None:
    with a_consumer() as (inbox, outbox):
        whole = torch.ones(8 * MIB, dtype=torch.uint8, device="cuda")
        for _ in range(4):
            inbox.put(1)
            inbox.put(whole)
            total, _, answer = outbox.get(timeout=120)
            assert total == 8 * MIB
            del answer


class Samples(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 256

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((1000,), float(index))


def loaders_with_workers_and_pinned_memory() -> None:
    for method in ("fork", "spawn"):
        loader = torch.utils.data.DataLoader(
            Samples(), batch_size=32, num_workers=2, pin_memory=True,
            multiprocessing_context=method,
        )  # fmt: skip
        total = torch.zeros((), device="cuda", dtype=torch.float64)
        for batch in loader:
            assert batch.is_pinned()
            total += batch.to("cuda", non_blocking=True).double().sum()
        assert float(total) == 1000.0 * sum(range(256))


CASES: tuple[Callable[[], None], ...] = (
    loaders_with_workers_and_pinned_memory,
    tensors_go_both_ways,
    a_block_is_mapped_once,
)


if __name__ == "__main__":
    given = cases.parser(__doc__, seconds=150, workers=3).parse_args()
    sys.exit(cases.main(__file__, CASES, given))
