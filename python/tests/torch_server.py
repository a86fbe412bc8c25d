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
SKIPPED = 77


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


def build_nvml(output: Path) -> Path:
    """A library that says who uses a GPU, as FAKE_NVML wants it; to be preloaded, or found."""
    source = HERE.parents[1] / "tests" / "fake_cuda" / "fake_nvml.c"
    command = ["cc", "-D_GNU_SOURCE", "-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1"]
    subprocess.run([*command, str(source), "-o", str(output)], check=True)
    return output


@pytest.fixture(scope="session")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CUDA runtime without a GPU, to be preloaded: PyTorch's own allocator works on it."""
    import torch_race

    output = tmp_path_factory.mktemp("runtime") / "fake_runtime.so"
    torch_race.build_runtime(output)
    return output


def start(driver: Path, prelude: str, **environment: str) -> subprocess.Popen[str]:
    """A process that runs programs behind a prelude."""
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
    if status == SKIPPED:
        pytest.skip(output)
    assert status == 0, output
    return str(output)


@pytest.fixture(scope="session")
def servers(request: pytest.FixtureRequest, driver: Path) -> Iterator[Callable[..., str]]:
    """Runs a program behind a prelude, in an environment; returns what it printed."""
    started: dict[tuple[str, ...], subprocess.Popen[str]] = {}

    def play(prelude: str, program: str, **environment: str) -> str:
        key = (prelude, *environment.items())
        if key not in started:
            if prelude == "late_prelude":
                runtime = Path(request.getfixturevalue("runtime"))
                nvml = build_nvml(runtime.with_name("libnvidia-ml.so.1"))
                environment.update(LD_PRELOAD=str(runtime), NVML=str(nvml))
            started[key] = start(driver, prelude, **environment)
        return ask(started[key], program)

    yield play
    for server in started.values():
        assert server.stdin is not None
        server.stdin.close()
        server.wait(60)
