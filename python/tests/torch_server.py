# SPDX-License-Identifier: Apache-2.0
"""PyTorch on Ductile and on a virtual GPU, in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Callable

import pytest

HERE = Path(__file__).parent
PRELUDE = HERE / "torch_adapter"


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program that calls PyTorch's C++ interface, compiled like the adapter."""
    from ductile_gpu.torch import _build

    found = _build.describe_torch()
    output = tmp_path_factory.mktemp("driver") / "adapter_driver.so"
    command = [*_build._compiler(), *_build._flags(found), str(PRELUDE / "adapter_driver.cpp")]
    command += ["-o", str(output), f"-L{found.root / 'lib'}", "-lc10", "-lc10_cuda", "-ltorch_cuda"]
    subprocess.run(command, check=True)
    return output


@pytest.fixture(scope="session")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CUDA runtime without a GPU, to be preloaded: PyTorch's own allocator works on it."""
    import torch_race

    output = tmp_path_factory.mktemp("runtime") / "fake_runtime.so"
    torch_race.build_runtime(output)
    return output


def start(driver: Path, prelude: str = "prelude", **environment: str) -> subprocess.Popen[str]:
    """A process that has Ductile as PyTorch's allocator on a virtual GPU, and runs programs."""
    changed = {**os.environ, **environment}
    changed.pop("DUCTILE_CONF", None)
    paths = [str(PRELUDE), str(HERE), changed.get("PYTHONPATH", "")]
    changed["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    return subprocess.Popen(
        [sys.executable, str(PRELUDE / "server.py"), str(driver), prelude],
        env=changed,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def ask(server: subprocess.Popen[str], program: str) -> str:
    """Runs a program in a fork of the server; returns what it printed."""
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write(json.dumps(textwrap.dedent(program)) + "\n")
    server.stdin.flush()
    status, output = json.loads(server.stdout.readline())
    assert status == 0, output
    return str(output)


def stop(server: subprocess.Popen[str]) -> None:
    assert server.stdin is not None
    server.stdin.close()
    server.wait(60)


@pytest.fixture(scope="session")
def server(driver: Path) -> Iterator[subprocess.Popen[str]]:
    started = start(driver)
    yield started
    stop(started)


@pytest.fixture
def play(server: subprocess.Popen[str]) -> Callable[[str], str]:
    """Runs a program on Ductile; returns what it printed."""
    return lambda program: ask(server, program)


@pytest.fixture(scope="session")
def late_server(driver: Path, runtime: Path) -> Iterator[subprocess.Popen[str]]:
    started = start(driver, "late_prelude", LD_PRELOAD=str(runtime))
    yield started
    stop(started)


@pytest.fixture
def late(late_server: subprocess.Popen[str]) -> Callable[[str], str]:
    """Runs a program with CUDA in use and PyTorch's own allocator; returns what it printed."""
    return lambda program: ask(late_server, program)
