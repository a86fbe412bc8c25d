# SPDX-License-Identifier: Apache-2.0
"""A process that has imported PyTorch and touches no GPU: for each line that it is told it forks a
child, which runs one case of wake.py and so begins on the GPU with a sleep.

Imports PyTorch where it is asked to serve, so that its other parts run without.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Callable, NoReturn

import child

if TYPE_CHECKING:
    import torch

MIB = 1 << 20
WRONG, FAILED, HUNG = 1, 3, -99  # statuses of a child; a signal's is its number below zero
SAID = 6000  # characters that are kept of what a child said
SMALL = 1024  # bytes; seeds and offsets of generators are no larger
# Kept by host memory that is not fresh: less than the case needs, and more.
HOST_MIB = {"fresh": 0, "grown": 4, "ahead": 512}
LARGE_MIB, N_LARGE = 20, 8  # what makes 4 MiB too little
Told = dict[str, Any]
Play = Callable[[Told], None]


# ---- A child -----------------------------------------------------------------------------------


def _be_child(play: Play, told: Told, said: int) -> NoReturn:
    os.dup2(said, 1)
    os.dup2(said, 2)
    status = FAILED
    try:
        play(told)
        status = 0
    except AssertionError:
        traceback.print_exc()
        status = WRONG
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _wait_for(pid: int, seconds: float) -> int:
    """Its status; HUNG: it was killed, for it took longer."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, found = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(found)
        time.sleep(0.005)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return HUNG


def try_one(play: Play, told: Told) -> dict[str, Any]:
    """What becomes of a case in a child of its own."""
    sys.stdout.flush()
    with tempfile.TemporaryFile("w+", errors="replace") as said:
        begin = time.monotonic()
        pid = os.fork()
        if pid == 0:
            _be_child(play, told, said.fileno())
        status = _wait_for(pid, told["seconds"])
        took = round(time.monotonic() - begin, 3)
        said.seek(0)
        text = said.read()[-SAID:] if status else ""
    if status == HUNG:
        text += f"\nkilled: it took more than {told['seconds']:g} s"
    return {"status": status, "said": text, "s": took}


# ---- What a child does -------------------------------------------------------------------------


class Ballast:
    """Tensors beside those of the case, each with contents of its own: many small ones apart from
    one another, so that there are many copies, or a few large ones."""

    def __init__(self, n_small: int, n_large: int) -> None:
        sizes = [512 + 3072 * (i % 40) for i in range(n_small)] + [LARGE_MIB * MIB] * n_large
        self.expected = [bytes([i % 250 + 1]) * size for i, size in enumerate(sizes)]
        self.tensors, gaps = [], []
        for i, size in enumerate(sizes):
            self.tensors.append(_filled(size, i % 250 + 1))
            gaps.append(_filled(512 * (1 + i % 5), 0))

    def expect_unchanged(self) -> None:
        import contents

        for i, (expected, tensor) in enumerate(zip(self.expected, self.tensors)):
            said = contents.of_tensor(expected, tensor)
            assert not said, f"ballast {i} differs: {said}"


def _filled(size: int, byte: int) -> torch.Tensor:
    import torch

    return torch.full((size,), byte, dtype=torch.uint8, device="cuda")


def print_small_blocks(most: int = 16) -> None:
    """What stands in small live blocks: seeds and offsets of generators are among them."""
    import ductile_gpu

    cuda = ctypes.CDLL("libcuda.so.1")
    words = (ctypes.c_uint64 * 4)()
    for allocator in ductile_gpu.allocators():
        live = [block for block in allocator.blocks() if block.state.name == "LIVE"]
        for block in [block for block in live if block.size <= SMALL][:most]:
            address = ctypes.c_uint64(block.address)
            code = cuda.cuMemcpyDtoH_v2(words, address, ctypes.c_size_t(ctypes.sizeof(words)))
            print(f"block {block.address:#x} of {block.size} bytes: {[*words]}, code {code}")


def play_case(told: Told) -> None:
    import torch
    import wake

    import ductile_gpu.torch as memory

    memory.enable("full")
    torch.cuda.init()
    if HOST_MIB[told["host"]]:
        memory.reserve_host(HOST_MIB[told["host"]] * MIB)
    ballast = Ballast(told["pieces"], N_LARGE if told["host"] == "grown" else 0)
    try:
        getattr(wake, told["case"])()
        ballast.expect_unchanged()
    except AssertionError:
        with suppress(Exception):
            print_small_blocks()
        raise


# ---- The two processes -------------------------------------------------------------------------


def serve(play: Play) -> None:
    """Says that it is ready, and answers each line with what became of its case."""
    channel = child.open_channel()
    print(json.dumps({"ready": os.getpid()}), file=channel, flush=True)
    for line in sys.stdin:
        print(json.dumps(try_one(play, json.loads(line))), file=channel, flush=True)


def serve_cases() -> None:
    """All that a child would import is imported before, Ductile's adapter too."""
    sys.argv = ["wake.py"]
    import wake  # noqa: F401

    words = [sys.executable, "-m", "ductile_gpu.torch", "build"]
    built = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
    ctypes.CDLL(built.stdout.strip())
    serve(play_case)


def load() -> None:
    """Computes, copies over the link, and gives memory back to the device, until it is ended: on
    PyTorch's own allocator."""
    import torch

    a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    host = torch.empty(64 * MIB, dtype=torch.uint8, pin_memory=True)
    side = torch.cuda.Stream()
    while True:
        for _ in range(40):
            a = torch.nn.functional.normalize(a @ a)
        with torch.cuda.stream(side):
            other = _filled(64 * MIB, 0x5A)
            host.copy_(other, non_blocking=True)
            other.copy_(host, non_blocking=True)
        torch.cuda.synchronize()
        del other
        torch.cuda.empty_cache()


if __name__ == "__main__":
    load() if sys.argv[1:] == ["--load"] else serve_cases()
