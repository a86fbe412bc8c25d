# SPDX-License-Identifier: Apache-2.0
"""What the tests share: virtual devices, and one place that knows whether there is a GPU."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch_server import driver, play, server

import ductile_gpu
from ductile_gpu import _share

__all__ = ["driver", "play", "server"]

ROOT = Path(__file__).resolve().parent.parent.parent


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
