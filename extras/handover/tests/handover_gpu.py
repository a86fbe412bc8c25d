# SPDX-License-Identifier: Apache-2.0
"""Hand over between processes on one GPU: python3 extras/handover/tests/handover_gpu.py [--build]

A trainer updates weights in place, a generator reads them through a read-only mapping, and an owner
process keeps them; every role is a process of its own, and the parent opens no driver. What is
tried, each with one line of result:

    updates   100 reads beside a trainer, ordered by an Epoch: no torn weights
    copies    a copy into read-only memory is refused, and the reader goes on
    stores    a kernel's store ends the reader's context, not the trainer or another reader
    deaths    trainer and generator are killed in turn; the other goes on
    owner     opens no driver; the weights are there when everybody else has ended

--build makes the package in build/handover first (a minute) and uses it; otherwise the installed
one is used. Needs PyTorch; takes about a minute and a half. Exit status: 0 when all is as it should
be, 1 otherwise, 77 without a GPU.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
PLACE = ROOT / "build" / "handover"
BYTES = 512 << 20
READS = 100
EPOCHS = 10**9
SKIPPED = 77


def build() -> None:
    """The package, from this tree."""
    shutil.rmtree(PLACE / "package", ignore_errors=True)
    command = [ROOT / "python/tests/build_package", PLACE]
    subprocess.run(command, env={**os.environ, "PYTHON": sys.executable}, check=True)
    os.environ["PYTHONPATH"] = f"{PLACE / 'package'}:{os.environ.get('PYTHONPATH', '')}"


# ---- Roles -------------------------------------------------------------------------------------


def tell(line: str) -> None:
    print(line, flush=True)


def put(path: str) -> None:
    """Makes the weights, passes them to the owner and ends: they outlive it."""
    import torch

    import ductile_gpu
    from ductile_gpu.interface import abi, lib

    allocator = ductile_gpu.Allocator(0, shareable="fd", sizes="64M")
    pool = abi.ductile_pool_id(7, 1)
    assert lib.ductile_pool_begin(allocator.pointer, pool, None, None) == 0
    assert lib.ductile_pool_set_tag(allocator.pointer, pool, b"weights", 0) == 0
    weights = ductile_gpu.Buffer(allocator, BYTES)
    assert lib.ductile_pool_end(allocator.pointer, pool) == 0
    tensor = torch.from_dlpack(weights).view(torch.int32)
    tensor.zero_()
    torch.cuda.synchronize()
    kept = ductile_gpu.keep_tag("weights", {"w": tensor}, allocator=allocator, path=path)
    with kept.epoch.write():
        pass
    tell(f"layout {kept.layout}")
    os._exit(0)


def _open(path: str, write: bool) -> tuple[Any, Any]:
    import ductile_gpu

    allocator = ductile_gpu.Allocator(0, shareable="fd")
    kept = ductile_gpu.open_kept("weights", write=write, allocator=allocator, path=path, wait=30)
    assert kept.imported is not None
    return kept, kept.imported["w"].tensor()


def train(path: str, turns: str) -> None:
    """Adds one to every weight, again and again."""
    import torch

    kept, weights = _open(path, write=True)
    value = int(weights[0])
    whole = bool((weights == value).all())
    tell(f"begin {value} whole {whole}")
    if not whole:  # the trainer before was killed while it wrote
        value = int(weights.max())
    for _ in range(int(turns)):
        with kept.epoch.write(torch.cuda.synchronize):
            value += 1
            for part in weights.chunk(16):
                part.fill_(value)
        time.sleep(0.002)  # turns are not fair
    tell(f"end {value}")
    os._exit(0)


def generate(path: str, turns: str) -> None:
    """Reads all weights of each epoch that it meets: they are of one value."""
    import torch

    kept, weights = _open(path, write=False)
    tell("begin")
    seen = 0
    for _ in range(int(turns)):
        with kept.epoch.read(after=seen, finish=torch.cuda.synchronize, timeout=60) as seen:
            low, high = (int(one) for one in weights.aminmax())
        if low != high:
            tell(f"torn {low} {high}")
            os._exit(1)
    tell(f"end {seen}")
    os._exit(0)


def misuse(path: str, how: str) -> None:
    """A copy, or a store by a kernel, into read-only memory."""
    import torch

    _, weights = _open(path, write=False)
    host = torch.full((1024,), 99, dtype=torch.int32).pin_memory()
    before = int(weights[0])
    try:
        if how == "copy":
            weights[:1024].copy_(host)
        else:
            weights[:1024].add_(1)
        torch.cuda.synchronize()
        tell("accepted")
        os._exit(1)
    except RuntimeError as error:
        tell(f"refused: {str(error).splitlines()[0]}")
    try:
        lives = int(weights[0]) == before
    except RuntimeError:
        lives = False
    tell(f"context {'lives' if lives else 'ended'}")
    os._exit(0)


# ---- The parent --------------------------------------------------------------------------------


class Role:
    """A process of this script."""

    def __init__(self, what: str, path: Path, *words: object) -> None:
        command = [sys.executable, __file__, what, str(path), *map(str, words)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def end(self) -> list[str]:
        said = self.process.communicate(timeout=120)[0]
        assert self.process.returncode == 0, f"ended with {self.process.returncode}: {said}"
        return said.splitlines()

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


@contextlib.contextmanager
def owner(path: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "ductile_gpu", "keep", "--socket", str(path)]
    process = subprocess.Popen(command)
    try:
        while not path.exists():
            assert process.poll() is None, "the owner has ended"
            time.sleep(0.05)
        yield process
    finally:
        process.kill()
        process.wait()


def try_updates(path: Path) -> str:
    reader = Role("generate", path, READS)
    assert reader.line() == "begin"
    begun = time.monotonic()
    trainer = Role("train", path, EPOCHS)
    seen = reader.end()[-1]
    seconds = time.monotonic() - begun
    trainer.kill()
    return f"{READS} reads of {BYTES >> 20} MiB beside a trainer in {seconds:.1f} s, {seen}"


def try_copies(path: Path) -> str:
    said = Role("misuse", path, "copy").end()
    assert [said[0][:7], said[1]] == ["refused", "context lives"], said
    return said[0]


def try_stores(path: Path) -> str:
    trainer = Role("train", path, EPOCHS)
    trainer.line()
    other = Role("generate", path, 20)
    assert other.line() == "begin"
    said = Role("misuse", path, "store").end()
    assert [said[0][:7], said[1]] == ["refused", "context ended"], said
    other.end()
    assert trainer.process.poll() is None
    trainer.kill()
    return said[0]


def try_deaths(path: Path) -> str:
    reader = Role("generate", path, EPOCHS)
    assert reader.line() == "begin"
    torn = 0
    for turn in range(2):
        trainer = Role("train", path, EPOCHS)
        torn += trainer.line().endswith("False")
        time.sleep(0.2 + 0.037 * turn)
        if turn % 2 == 0:
            trainer.kill()
        else:
            reader.kill()
            reader = Role("generate", path, EPOCHS)
            assert reader.line() == "begin"
            trainer.kill()
        assert reader.process.poll() is None
    reader.kill()
    Role("train", path, 3).end()
    said = Role("generate", path, 1).end()
    return f"2 trainers and 1 generator killed, {torn} of them while it wrote; then {said[-1]}"


def try_owner(path: Path, process: int) -> str:
    ask = ["nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader"]
    if shutil.which(ask[0]) is not None:
        listed = subprocess.run(ask, capture_output=True, text=True, check=False).stdout.split()
        assert str(process) not in listed, "the owner is on the GPU"
    maps = Path(f"/proc/{process}/maps").read_text()
    assert "libcuda" not in maps, "the owner has opened the driver"
    return "no driver opened, no memory of its own"


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "keep.sock"
        with owner(path) as keeper:
            tell(f"put: {Role('put', path).end()[-1]}")
            for name, what in (
                ("updates", try_updates),
                ("copies", try_copies),
                ("stores", try_stores),
                ("deaths", try_deaths),
            ):
                tell(f"{name}: {what(path)}")
            tell(f"owner: {try_owner(path, keeper.pid)}")
    tell("all as it should be")
    return 0


ROLES = {"put": put, "train": train, "generate": generate, "misuse": misuse}

if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] in ROLES:
        ROLES[sys.argv[1]](*sys.argv[2:])
    if not os.path.exists("/dev/nvidiactl"):
        tell("no GPU here")
        sys.exit(SKIPPED)
    if sys.argv[1:] == ["--build"]:
        build()
    sys.exit(main())
