# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: F403
"""Ductile as PyTorch's allocator on a virtual GPU, driven below the level that needs a real one."""

from __future__ import annotations

import contextlib
import ctypes
import pickle
from collections.abc import Iterator
from typing import Any

from common import *
from common import MIB, _install, call, ductile_gpu, random, torch
from history import replay as replay

ductile_gpu.torch.enable("full")
adapter = _install.adapter()
assert adapter is not None
_install.call(adapter.ductile_torch_init, 1)
empty_cache = torch._C._cuda_emptyCache


def alloc(size: int, stream: int = 0) -> int:
    out = ctypes.c_void_p()
    call("probe_alloc", ctypes.c_size_t(size), ctypes.c_ulonglong(stream), ctypes.byref(out))
    return out.value or 0


def free(address: int) -> None:
    call("probe_free", ctypes.c_void_p(address))


def record(on: bool, entries: int = 100000) -> None:
    call("probe_record", ctypes.c_bool(on), ctypes.c_size_t(entries))


def record_stacks(when: str) -> None:
    """As _record_memory_history(context=when, stacks="python") does."""
    call("probe_record_stacks", {"state": 1, "alloc": 2, "all": 3}[when])


def functions(entry: dict[str, Any]) -> list[str]:
    """The functions that an entry's frames name, the innermost first."""
    return [frame["name"] for frame in entry.get("frames", [])]


def snapshot() -> dict[str, Any]:
    data, size = ctypes.c_void_p(), ctypes.c_size_t()
    call("probe_snapshot", ctypes.byref(data), ctypes.byref(size))
    found: dict[str, Any] = pickle.loads(ctypes.string_at(data.value or 0, size.value))
    return found


def stats() -> dict[str, Any]:
    found: dict[str, Any] = torch._C._cuda_memoryStats(0)
    return found


def current(name: str) -> int:
    """One of the statistics, of all pools, as it is now."""
    return int(stats()[name]["all"]["current"])


Pool = tuple[int, int]


def pool_words(pool: Pool) -> tuple[Any, Any]:
    return ctypes.c_ulonglong(pool[0]), ctypes.c_ulonglong(pool[1])


def pool_call(name: str, pool: Pool) -> None:
    call(name, *pool_words(pool))


@contextlib.contextmanager
def opened(pool: Pool) -> Iterator[None]:
    """The thread allocates in the pool."""
    pool_call("probe_pool_begin", pool)
    yield
    pool_call("probe_pool_end", pool)


def in_pool(pool: Pool) -> list[dict[str, Any]]:
    """The segments of the pool, as a snapshot has them."""
    return [s for s in snapshot()["segments"] if tuple(s["segment_pool_id"]) == pool]


def allocate_at_random(seed: int, begin: int) -> None:
    """Allocates and frees; the history begins after so many steps."""
    choice = random.Random(seed)
    live: list[int] = []
    for i in range(600):
        if live and choice.random() < 0.45:
            free(live.pop(choice.randrange(len(live))))
        else:
            size = choice.choice((choice.randrange(1, 5000), choice.randrange(1, 9 * MIB)))
            live.append(alloc(size))
        if i == begin:
            record(True)
        if i % 97 == 96:
            empty_cache()


def addresses(segment: dict[str, Any]) -> list[int]:
    """Where the blocks of a segment begin."""
    out, at = [], segment["address"]
    for block in segment["blocks"]:
        out.append(at)
        at += block["size"]
    return out
