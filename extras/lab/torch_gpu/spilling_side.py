# SPDX-License-Identifier: Apache-2.0
"""The processes of spilling.py: a training without a cap and under caps, and others that spill.

    python spilling_side.py train PROGRAM WAY ATTENTION cuda|cpu
    python spilling_side.py hold | promote | reach | spike COUNT SECONDS

Each prints its rows. With `cpu` a tiny training, without caps, to try out the script.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import signal
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import child
import plain_models
import settings_models
import torch

MIB, GIB = 1 << 20, 1 << 30
SHARES = (0.95, 0.85)
STEPS, WARM = 8, 3
SIZES = {"gpt2": (12, 1024), "lora": (4, 1024)}  # batch and length
# What attention must not use. The math one is exact wherever cuBLAS is.
ATTENTIONS = {
    "flash": ("cudnn", "mem_efficient"),
    "math": ("cudnn", "mem_efficient", "flash"),
}
Row = dict[str, Any]


def say(**row: Any) -> None:
    print(json.dumps(row), flush=True)


# ---- What is known of memory -------------------------------------------------------------------


def spilled() -> Row:
    """Of all allocators; nothing without Ductile."""
    if "ductile_gpu" not in sys.modules:
        return {}
    found = [allocator.stats() for allocator in sys.modules["ductile_gpu"].allocators()]
    names = ("spilled_bytes", "spilled_peak_bytes", "spill_locked_bytes")
    names += ("spills", "spilled_total_bytes", "reserved_peak_bytes")
    return {name: sum(getattr(s, name) for s in found) for name in names}


def since(before: Row, after: Row) -> Row:
    counts = ("spills", "spilled_total_bytes")
    return {name: after[name] - (before[name] if name in counts else 0) for name in after}


def kilobytes(file: str, *names: str) -> dict[str, int]:
    """Lines of a file of /proc, in MiB."""
    lines = (line.split() for line in Path(file).read_text().splitlines())
    return {words[0][:-1]: int(words[1]) >> 10 for words in lines if words[0][:-1] in names}


def host() -> Row:
    return {
        **kilobytes("/proc/meminfo", "MemAvailable"),
        **kilobytes("/proc/self/status", "VmRSS", "VmLck", "VmPin"),
    }


# ---- A training --------------------------------------------------------------------------------


def make(name: str, device: str) -> plain_models.Program:
    tiny = device == "cpu"
    if name == "unet":
        made: Any = settings_models.make("images", device, tiny)
        made.batches, made.sides = (made.batches, made.sides) if tiny else ((24,), (192,))
        return made
    plain_models.checkpoint = lambda layer, x, **_: layer(x)  # as it is without recomputing
    sizes = (2, 16) if tiny else SIZES[name]
    return plain_models.make(name, device, tiny, sizes=lambda _: sizes)


def recompute(model: torch.nn.Module) -> None:
    from torch.utils.checkpoint import checkpoint

    for name in ("blocks", "layers", "down", "up"):
        for part in getattr(model, name, ()):
            part.forward = functools.partial(checkpoint, part.forward, use_reentrant=False)


def kept_on_host(variant: str) -> contextlib.AbstractContextManager[Any]:
    if variant == "save_on_cpu":
        return torch.autograd.graph.save_on_cpu(pin_memory=torch.cuda.is_available())
    return contextlib.nullcontext()


class Training:
    """A few steps from the beginning, as often as it is asked."""

    def __init__(self, name: str, device: str) -> None:
        self.name, self.device = name, device

    def steps(self, variant: str, losses: list[str], times: list[float], stay: list[int]) -> None:
        program = make(self.name, self.device)
        if variant == "recompute":
            recompute(program.model)
        for n in range(STEPS):
            began = child.synchronized(self.device)
            with kept_on_host(variant):
                loss, _ = program.learn(n)
            losses.append(float(loss).hex())
            times.append(round(1e3 * (child.synchronized(self.device) - began), 2))
            stay.append(spilled().get("spilled_bytes", 0))

    def play(self, variant: str) -> Row:
        """Losses, times, and memory; or why it was refused."""
        on_gpu = self.device == "cuda"
        left = child.start_afresh()
        if on_gpu:
            torch.cuda.reset_peak_memory_stats()
        before = spilled()
        losses: list[str] = []
        times: list[float] = []
        stay: list[int] = []
        refused = ""
        try:
            self.steps(variant, losses, times, stay)
        except torch.OutOfMemoryError as error:
            refused = str(error)[:100]
        memory = child.peak_memory(self.device)
        return {
            "losses": losses,
            "refused": refused,
            "ms": statistics.median(times[WARM:]) if len(times) == STEPS else None,
            "times_ms": times,
            "live_peak": memory["used"],
            "held_peak": memory["held"],
            "held_before": left,
            "stays_spilled": stay,
            **since(before, spilled()),
        }


def uncapped(training: Training, attention: str) -> tuple[Row, bool]:
    """Without a cap, twice: what is compared with it has to be the same each time."""
    child.be_deterministic(*ATTENTIONS[attention])
    first, again = training.play("plain"), training.play("plain")
    same = first["losses"] == again.pop("losses")
    told = {"share": 0, "attention": attention}
    say(**told, variant="plain", **first)
    say(**told, variant="again", same_losses=same, **again)
    return first, same


def train(name: str, way: str, attention: str, device: str) -> None:
    training = Training(name, device)
    free, is_exact = uncapped(training, attention)
    if way == "ductile+spill" and attention == "flash" and not is_exact:
        return  # with the other one, then
    variants = ["plain"] + (["recompute", "save_on_cpu"] if way == "native" else [])
    for share in SHARES:
        if device == "cuda":
            child.set_cap(share * free["live_peak"])
        for variant in variants:
            row = training.play(variant)
            same = row.pop("losses") == free["losses"]
            told = {"share": share, "attention": attention, "variant": variant}
            say(**told, same_losses=same, **row)


# ---- What else spills --------------------------------------------------------------------------


def hold() -> None:
    """24 GiB in the host, until it is killed."""
    child.set_cap(4 * GIB)
    block = torch.ones(28 * GIB, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    say(**spilled(), sum=int(block[::GIB].sum()))
    signal.pause()


def spike(count: int, seconds: float) -> None:
    """Requests that spill and go, each written to: what the host has before, and along the way."""
    child.set_cap(2 * GIB)
    stays = torch.ones(2 * GIB - 128 * MIB, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    began = time.monotonic()
    say(spikes=0, seconds=0.0, **host(), **spilled())
    for n in range(1, count + 1):
        spiked = torch.empty((256 + n % 7) * MIB, dtype=torch.uint8, device="cuda")
        spiked[::MIB].fill_(1)
        del spiked
        is_late = time.monotonic() - began > seconds
        if n in (1, 100) or n % 1000 == 0 or is_late:
            torch.cuda.synchronize()
            say(spikes=n, seconds=round(time.monotonic() - began, 2), **host(), **spilled())
        if is_late:
            break
    assert int(stays[-1]) == 1


@contextlib.contextmanager
def crowded(share: float, n_bytes: int) -> Iterator[None]:
    """A block fills the device but for a share of so many bytes, and goes."""
    free = torch.cuda.get_per_process_memory_fraction() * torch.cuda.mem_get_info()[1]
    size = int(free - torch.cuda.memory_allocated() - share * n_bytes)
    block = torch.empty(size, dtype=torch.uint8, device="cuda")
    yield
    del block


def reach() -> None:
    """A tensor that lies in both kinds of memory is written and read from everywhere."""
    child.set_cap(GIB)
    plain = torch.arange(96 * MIB, dtype=torch.int64).to(torch.uint8)
    tensor = torch.empty(3 * GIB // 2, dtype=torch.uint8, device="cuda")
    across = tensor[GIB - 64 * MIB :][: len(plain)]  # 960 MiB or so are the device's
    driver = ctypes.CDLL("libcuda.so.1")
    address, size = ctypes.c_ulonglong(across.data_ptr()), ctypes.c_size_t(len(plain))
    found: Row = {}
    for name, source in (("pageable", plain), ("pinned", plain.pin_memory()), ("device", None)):
        found["memset"] = driver.cuMemsetD8_v2(address, ctypes.c_ubyte(9), size)
        assert bool((across == 9).all())
        if source is None:
            half = plain[: 48 * MIB].cuda()
            across[: len(half)].copy_(half)
            across[len(half) :].copy_(plain[len(half) :])
        else:
            across.copy_(source, non_blocking=True)
        found[name] = bool(torch.equal(across.cpu(), plain))
    back = torch.empty_like(plain).pin_memory()
    back.copy_(across, non_blocking=True)
    torch.cuda.synchronize()
    found["back"] = bool(torch.equal(back, plain))
    say(**found, **spilled())


def promote() -> None:
    """Optimizer states that are made while the device is full, lie in the host once it has room."""
    child.set_cap(40 * GIB)
    program = make("gpt2", "cuda")
    states = 2 * sum(4 * weight.numel() for weight in program.model.parameters())

    def step(n: int) -> float:
        began = child.synchronized("cuda")
        program.learn(n)
        return round(1e3 * (child.synchronized("cuda") - began), 2)

    def steps(what: str) -> None:
        times = [step(n) for n in range(STEPS)]
        say(what=what, ms=statistics.median(times[WARM:]), times_ms=times, **spilled())

    program.loss(0)[0].backward()
    with crowded(0.1, states):
        program.optimizer.step()
        program.optimizer.zero_grad(set_to_none=True)
    say(what="made", states=states, **spilled())
    steps("spilled")
    move = getattr(sys.modules["ductile_gpu"].torch, "promote", None)
    if move is None:
        say(what="there is no promote()")
        return
    began = child.synchronized("cuda")
    moved = move()
    took = round(1e3 * (child.synchronized("cuda") - began), 2)
    say(what="promote", returned=repr(moved)[:200], ms=took, **spilled())
    steps("promoted")


if __name__ == "__main__":
    if sys.argv[1] == "train":
        train(*sys.argv[2:])
    elif sys.argv[1] == "spike":
        spike(int(sys.argv[2]), float(sys.argv[3]))
    else:
        {"hold": hold, "promote": promote, "reach": reach}[sys.argv[1]]()
