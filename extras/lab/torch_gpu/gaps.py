# SPDX-License-Identifier: Apache-2.0
"""What the host does before each all-gather of FSDP, and how far it is ahead of the GPU then.

Wraps the functions of PyTorch 2.11 that do it. Imports nothing of Ductile: a process on PyTorch's
own allocator has to be as its users have it.
"""

from __future__ import annotations

import functools
import time
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, Callable, NamedTuple

FIGURES = ("gap_us", "alloc_us", "wait_us", "ahead_ms", "ahead_units")
KINDS = ("fsdp1", "fsdp1-unlimited", "fsdp1-t5", "fsdp2")
Note = Callable[[int, int], None]


class Gather(NamedTuple):
    """Times are nanoseconds, the last two since the step's beginning."""

    step: int  # its number
    gap: int  # from where the unit's whole parameters are allocated until it is enqueued
    alloc: int  # of that, in the allocation
    wait: int  # before, in FSDP's rate limiter
    enqueued: int
    reached: int  # by the GPU's computation: what was enqueued before on the default stream is done


def follow(owner: Any, name: str, note: Note) -> None:
    """Has `note` told when each call of a function began and when it ended."""
    inner = getattr(owner, name)

    @functools.wraps(inner)
    def outer(*args: Any, **named: Any) -> Any:
        start = time.perf_counter_ns()
        result = inner(*args, **named)
        note(start, time.perf_counter_ns())
        return result

    setattr(owner, name, outer)


class HostClock:
    """Without a GPU, work is done when it is enqueued."""

    def mark(self) -> int:
        return time.perf_counter_ns()

    def between(self, start: int, end: int) -> int:
        return end - start


class GpuClock:
    def mark(self) -> Any:
        import torch

        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.default_stream())
        return event

    def between(self, start: Any, end: Any) -> int:
        return int(1e6 * start.elapsed_time(end))


class Watch:
    """The all-gathers of one rank. A unit's calls come one after another, although those of the
    backward pass come in another thread."""

    def __init__(self, clock: Any) -> None:
        self.clock = clock
        self.done: list[Gather] = []
        self._open: list[tuple[Gather, Any]] = []
        self._step = self._let_go = self._began = self._alloc = 0

    def begin_step(self) -> None:
        """The GPU has nothing to do."""
        self._start_mark, self._start = self.clock.mark(), time.perf_counter_ns()

    def end_step(self) -> None:
        """The GPU has done it all."""
        for gather, mark in self._open:
            reached = self.clock.between(self._start_mark, mark)
            self.done.append(gather._replace(reached=reached))
        self._open.clear()
        self._step += 1

    def take(self) -> list[Gather]:
        done, self.done = self.done, []
        return done

    def note_limiter(self, _start: int, end: int) -> None:
        """Has told what to wait for; the wait follows."""
        self._let_go = end

    def note_alloc(self, start: int, end: int) -> None:
        self._alloc = end - start

    def note_unit(self, start: int, _end: int) -> None:
        self._began = start

    def note_unit_alloc(self, start: int, end: int) -> None:
        self.note_unit(start, end)
        self.note_alloc(start, end)

    def note_gather(self, _start: int, end: int) -> None:
        wait = self._began - self._let_go if self._let_go else 0
        gap, enqueued = end - self._began, end - self._start
        gather = Gather(self._step, gap, self._alloc, wait, enqueued, reached=0)
        self._open.append((gather, self.clock.mark()))
        self._let_go = 0


def follow_fsdp1(watch: Watch) -> None:
    from torch.distributed.fsdp import _flat_param, _limiter_utils

    handle = _flat_param.FlatParamHandle
    follow(_limiter_utils._FreeEventQueue, "dequeue_if_needed", watch.note_limiter)
    follow(_flat_param, "_alloc_storage", watch.note_alloc)
    follow(handle, "_alloc_padded_unsharded_flat_param", watch.note_unit)
    follow(handle, "_all_gather_flat_param", watch.note_gather)


def follow_fsdp2(watch: Watch) -> None:
    from torch.distributed.fsdp._fully_shard import _fsdp_collectives

    gather = _fsdp_collectives.DefaultAllGather
    follow(gather, "allocate", watch.note_unit_alloc)
    follow(gather, "__call__", watch.note_gather)


def watch(kind: str, device: str) -> Watch | None:
    """None where there is nothing to watch, or this PyTorch does it otherwise."""
    if kind not in KINDS:
        return None
    made = Watch(GpuClock() if device == "cuda" else HostClock())
    try:
        (follow_fsdp2 if kind == "fsdp2" else follow_fsdp1)(made)
    except (ImportError, AttributeError):
        return None
    return made


def figures(taken: Sequence[Sequence[int]]) -> dict[str, list[float]]:
    """What FIGURES names, of each all-gather of one rank."""
    found: dict[str, list[float]] = {name: [] for name in FIGURES} if taken else {}
    gathers = [Gather(*one) for one in taken]
    # In ascending order: the computation comes to places as the host did.
    reached = [(one.step, one.reached) for one in gathers]
    for n, one in enumerate(gathers):
        behind = n - bisect_right(reached, (one.step, one.enqueued), hi=n)
        ahead = max(0, one.reached - one.enqueued)
        values = one.gap / 1e3, one.alloc / 1e3, one.wait / 1e3, ahead / 1e6, float(behind)
        for name, value in zip(FIGURES, values):
            found[name].append(value)
    return found
