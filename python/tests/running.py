# SPDX-License-Identifier: Apache-2.0
"""Programs in processes of their own, as tests start them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable, Optional

from ductile_gpu import bench_path

Answer = subprocess.CompletedProcess[str]

# A program that says how Ductile serves its PyTorch.
MODE = "import torch, ductile_gpu.torch; print(ductile_gpu.torch.mode())"


def run(
    *words: object,
    folder: Optional[Path] = None,
    without: tuple[str, ...] = (),
    seconds: float = 300,
    **environment: Any,
) -> Answer:
    """Runs a program to its end, without variables whose names begin so, and with these."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(without)}
    return subprocess.run(
        [str(word) for word in words],
        cwd=folder,
        env={**kept, **{name: str(value) for name, value in environment.items()}},
        capture_output=True,
        text=True,
        timeout=seconds,
    )


def python(*words: object, **how: Any) -> Answer:
    return run(sys.executable, *words, **how)


def ductile_gpu(*words: object, **how: Any) -> Answer:
    """The command."""
    return python("-m", "ductile_gpu", *words, **how)


def bench(*words: object) -> str:
    """What ductile-bench prints. It must succeed."""
    answer = run(bench_path(), *words)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


def replayed(*words: object) -> dict[str, dict[str, Any]]:
    """What its replay finds on the virtual GPU, by contender."""
    lines = bench("replay", "--device", "virtual", "--json", *words).splitlines()
    return {line["contender"]: line for line in map(json.loads, lines)}


def at_once(*works: Callable[[], Any]) -> list[Any]:
    """What each of them returns, on a thread of its own."""
    out: dict[int, Any] = {}
    threads = [
        threading.Thread(target=lambda n=n, work=work: out.update({n: work()}))
        for n, work in enumerate(works)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(out) == len(works), "a thread failed, or goes on"
    return [out[n] for n in range(len(works))]


def in_child(work: Callable[[], Any]) -> None:
    """Does it in a fork, which has 20 seconds; False is a failure, too."""
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        is_wrong = True
        try:
            is_wrong = work() is False
        finally:
            os._exit(int(is_wrong))
    assert os.waitpid(child, 0)[1] == 0


@contextlib.contextmanager
def held_elsewhere(*locks: Any) -> Iterator[None]:
    """Another thread holds them."""
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with contextlib.ExitStack() as stack:
            for lock in locks:
                stack.enter_context(lock)
            held.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    try:
        yield
    finally:
        done.set()
        thread.join()


def check_mistyped(program: str, mistyped: dict[str, str], folder: Path, *options: str) -> None:
    """mypy finds a fault in each of the lines behind the program, and no other; what it says of a
    line has the word that the line is given with."""
    file = folder / "program.py"
    file.write_text(program + "\n".join(mistyped), encoding="utf-8")
    answer = python("-m", "mypy", *options, file, folder=folder)
    faults = [line for line in answer.stdout.splitlines() if ": error: " in line]
    first = program.count("\n") + 1
    expected = [f"program.py:{first + at}:" for at in range(len(mistyped))]
    assert [line[line.index("program.py") :].split(" ")[0] for line in faults] == expected, faults
    assert all(word in line for word, line in zip(mistyped.values(), faults)), faults
