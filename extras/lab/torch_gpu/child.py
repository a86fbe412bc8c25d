# SPDX-License-Identifier: Apache-2.0
"""What the processes do that the scripts here measure: answer on a channel of their own, begin
again under a cap, say what memory they used.

Imports nothing of Ductile: a process on PyTorch's own allocator has to be as its users have it.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import sys
import time
from typing import Any, Callable, TextIO

# Of peak_memory, what only ever rises: PyTorch's retries, and what Ductile counts in their place.
COUNTS = ("retries", "pressure_waits", "pressure_returns")


def open_channel() -> TextIO:
    """Where answers go. What libraries print is no answer, and goes to standard error. A process
    that is aborted because it hangs says there where it stood."""
    faulthandler.enable()
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return channel


def serve(server: Any, channel: TextIO) -> None:
    """Answers each line of standard input, {"do": WORD, ...}, with what the server's WORD gives."""
    for line in sys.stdin:
        told = json.loads(line)
        print(json.dumps(getattr(server, told.pop("do"))(**told)), file=channel, flush=True)


def synchronized(device: str) -> float:
    """The time in seconds, when the device has nothing left to do."""
    import torch

    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def timed(call: Callable[..., Any], *given: Any) -> float:
    """Seconds of the call alone, whatever it has left the GPU to do."""
    before = time.perf_counter()
    call(*given)
    return time.perf_counter() - before


def be_deterministic(*attentions: str) -> None:
    """Without these ways to compute attention, whose backward passes add in any order."""
    import torch

    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # no training wants that
    torch.backends.cudnn.benchmark = False
    for name in attentions:
        getattr(torch.backends.cuda, f"enable_{name}_sdp")(False)


def captured(work: Callable[[], Any], warm: int = 3, **named: Any) -> tuple[Any, Any]:
    """A graph of some work, which has been done a few times before, and what it gives."""
    import torch

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(warm):
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, **named):
        out = work()
    return graph, out


def set_cap(n_bytes: float) -> None:
    import torch

    whole = torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction(min(1.0, n_bytes / whole))


def start_afresh() -> int:
    """Gives back what the last attempt has left. Bytes that are held all the same."""
    import torch

    gc.collect()
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved() if torch.cuda.is_initialized() else 0


def pressure() -> dict[str, int]:
    """What it cost Ductile to be short of memory, beside PyTorch's retries; nothing without it."""
    ductile = sys.modules.get("ductile_gpu")
    stats = [a.stats() for a in ductile.allocators()] if ductile else []
    return {name: sum(getattr(one, name) for one in stats) for name in COUNTS if name != "retries"}


def peak_memory(device: str) -> dict[str, Any]:
    import torch

    if device == "cpu":
        return {"backend": "cpu", "used": 0, "active": 0, "held": 0, **dict.fromkeys(COUNTS, 0)}
    stats = torch.cuda.memory_stats()
    return {
        "backend": torch.cuda.get_allocator_backend(),
        "used": stats["allocated_bytes.all.peak"],
        "active": stats["active_bytes.all.peak"],
        "held": stats["reserved_bytes.all.peak"],
        "retries": stats["num_alloc_retries"],
        **pressure(),
    }
