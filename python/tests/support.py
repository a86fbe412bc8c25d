# SPDX-License-Identifier: Apache-2.0
"""What all tests share: virtual devices, and one place that knows whether there is a GPU."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch_server import driver, runtime, servers

import ductile_gpu
from ductile_gpu._process import _share

__all__ = ["driver", "runtime", "servers"]

ROOT = Path(__file__).resolve().parent.parent.parent


def _children(pid: int) -> list[int]:
    found = [pid]
    for task in Path(f"/proc/{pid}/task").glob("*"):
        for child in (task / "children").read_text().split():
            found += _children(int(child))
    return found


def _resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def peak_rss(command: list[str], folder: Path) -> int:
    """The most that a program and its children hold in memory together, pages that they share
    counted in each. It must succeed."""
    process = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    peak = 0
    while process.poll() is None:
        with contextlib.suppress(OSError):  # one of them has ended
            peak = max(peak, sum(_resident(pid) for pid in _children(process.pid)))
        time.sleep(0.002)
    assert process.stderr is not None
    assert process.returncode == 0, process.stderr.read()
    process.communicate()
    return peak


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.path.exists("/dev/nvidiactl"):
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="no GPU here"))


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DUCTILE_CONF", raising=False)


@pytest.fixture
def gpu() -> Iterator[ductile_gpu.VirtualGPU]:
    """A virtual GPU; at the end it must have seen no mistake."""
    with ductile_gpu.VirtualGPU("1G") as found:
        yield found
        assert found.state().violations == 0, found.last_violation
        assert found.state().poisoned == 0


@pytest.fixture
def allocator(gpu: ductile_gpu.VirtualGPU) -> ductile_gpu.Allocator:
    return gpu.allocator(check=2)


@pytest.fixture
def shared(allocator: ductile_gpu.Allocator) -> Iterator[ductile_gpu.Allocator]:
    """The allocator on the virtual GPU as the process's allocator of device 0."""
    _share.adopt(0, allocator)
    yield allocator
    _share.adopt(0, None)
