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


def replay(found: dict[str, Any]) -> None:
    """Plays the history backwards from the final segments, by the viewer's rules."""
    live: dict[int, str] = {}
    memory: list[tuple[int, int]] = []
    for segment in found["segments"]:
        at = segment["address"]
        for block in segment["blocks"]:
            assert block.get("address", at) == at
            if block["state"] != "inactive":
                live[at] = block["state"]
            at += block["size"]
        assert at == segment["address"] + segment["total_size"]
        memory.append((segment["address"], at))
    for entry in reversed(found["device_traces"][0]):
        step_back(entry, live, memory)


def step_back(entry: dict[str, Any], live: dict[int, str], memory: list[tuple[int, int]]) -> None:
    action, at = entry["action"], entry.get("addr", 0)
    end = at + entry["size"]
    if action == "alloc":
        assert live.pop(at) == "active_allocated", hex(at)
        assert any(low <= at and end <= high for low, high in memory), hex(at)
    elif action == "free_completed":
        assert at not in live, hex(at)
        live[at] = "active_pending_free"
    elif action == "free_requested":
        assert live[at] == "active_pending_free", hex(at)
        live[at] = "active_allocated"
    elif action == "segment_map":
        home = next(m for m in memory if m[0] <= at and end <= m[1])
        memory.remove(home)
        memory += [m for m in ((home[0], at), (end, home[1])) if m[0] < m[1]]
    elif action == "segment_unmap":
        memory.append((at, end))
        memory.sort()
        joined = [memory[0]]
        for low, high in memory[1:]:
            if joined[-1][1] == low:
                joined[-1] = (joined[-1][0], high)
            else:
                joined.append((low, high))
        memory[:] = joined


def addresses(segment: dict[str, Any]) -> list[int]:
    """Where the blocks of a segment begin."""
    out, at = [], segment["address"]
    for block in segment["blocks"]:
        out.append(at)
        at += block["size"]
    return out
