# SPDX-License-Identifier: Apache-2.0
"""Ductile as PyTorch's allocator on a virtual GPU, driven below the level that needs a real one."""

from __future__ import annotations

import ctypes
import os
import pickle
import sys
from typing import Any

# Handles of 2 MiB, however much room there is: tests count what is held to the byte.
os.environ.setdefault("DUCTILE_CONF", "driver:virtual,sizes:tight")

import torch

import ductile_gpu.torch
from ductile_gpu._binding._core import Allocator
from ductile_gpu.torch import _install

MIB = 1 << 20

ductile_gpu.torch.enable("full")
adapter = _install.adapter()
assert adapter is not None
_install.call(adapter.ductile_torch_init, 1)

driver = ctypes.CDLL(sys.argv[1])


def call(name: str, *arguments: Any) -> None:
    function = getattr(driver, name)
    function.restype = ctypes.c_char_p
    message = function(*arguments)
    if message:
        raise RuntimeError(message.decode())


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


def library() -> Allocator:
    """The library's allocator of device 0: it has to have served something."""
    return Allocator.borrow(adapter.ductile_torch_allocator(0) or 0)


def stats() -> dict[str, Any]:
    found: dict[str, Any] = torch._C._cuda_memoryStats(0)
    return found


def pool_call(name: str, pool: tuple[int, int]) -> None:
    call(name, ctypes.c_ulonglong(pool[0]), ctypes.c_ulonglong(pool[1]))


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
