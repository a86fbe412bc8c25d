# SPDX-License-Identifier: Apache-2.0
"""Libraries that pass memory to one another at 90 % of a cap: together.py, on the virtual GPU with
the adapters that are installed, and on hardware with the libraries themselves."""

from __future__ import annotations

import contextlib
import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

import pytest
import together
from running import python
from together import Exchange, play

import ductile_gpu
from ductile_gpu._process import _share

PROGRAM = Path(together.__file__)
MIB = 1 << 20
LIMIT = 2048 * MIB


class _Virtual:
    """A library's adapter on the virtual GPU, with "kernels" that use what they are given."""

    def __init__(
        self,
        gpu: ductile_gpu.VirtualGPU,
        name: str,
        make: Callable[[int, int], Any],
        address: Callable[[Any], int],
        blocking: bool = False,
    ) -> None:
        self.gpu = gpu
        self.name = name
        self.stream = gpu.stream(blocking=blocking)
        self._make = make
        self._address = address
        self.sizes: dict[int, int] = {}

    def make(self, size: int) -> Any:
        array = self._make(size, self.stream)
        self.sizes[self._address(array)] = size
        return array

    def show(self, array: Any, size: int) -> Any:
        return (self._address(array), size)

    def see(self, shown: Any) -> Any:
        return shown

    def _span(self, array: Any) -> tuple[int, int]:
        if isinstance(array, tuple):
            return array
        address = self._address(array)
        return (address, self.sizes[address])

    def write(self, array: Any, value: int) -> None:
        self.gpu.launch(self.stream, writes=[self._span(array)])

    def check(self, array: Any, value: int) -> None:
        """With a temporary array of truth values, as PyTorch and CuPy have one."""
        span = self._span(array)
        temporary = self._make(span[1] // 4, self.stream)
        truth = (self._address(temporary), span[1] // 4)
        self.gpu.launch(self.stream, reads=[span], writes=[truth])
        self.gpu.launch(self.stream, reads=[truth])

    def mistakes(self) -> int:
        return self.gpu.state().violations


class _VirtualStreams:
    def __init__(self, gpu: ductile_gpu.VirtualGPU, records: bool = True) -> None:
        self.gpu = gpu
        self.records = records

    def wait(self, stream: int, on: int) -> None:
        self.gpu.wait(stream, on)

    def record(self, array: Any, stream: int) -> None:
        if self.records:
            ductile_gpu.record_stream(_address_of(array), stream)


def _address_of(array: Any) -> int:
    for name in ("address", "ptr", "device_pointer_value"):
        found = getattr(array, name, None)
        if found is not None:
            return int(found)
    raise TypeError(f"no address: {array!r}")


def _has(library: str) -> bool:
    return importlib.util.find_spec(library) is not None


class _Buffer:
    """A buffer of RMM: it goes back on the stream that it was made on."""

    def __init__(self, resource: Any, size: int, stream: Any) -> None:
        self.address = resource.allocate(size, stream)
        self._back = (resource, size, stream)

    def __del__(self) -> None:
        resource, size, stream = self._back
        resource.deallocate(self.address, size, stream)


@contextlib.contextmanager
def _adopted(allocator: ductile_gpu.Allocator) -> Iterator[None]:
    """The allocator as the one that libraries share."""
    _share.adopt(0, allocator)
    try:
        yield
    finally:
        _share.adopt(0, None)


@pytest.fixture
def gpu() -> Iterator[ductile_gpu.VirtualGPU]:
    with ductile_gpu.VirtualGPU("4G", detect=2) as found:
        yield found
        assert found.state().violations == 0, found.last_violation


def _rmm(gpu: ductile_gpu.VirtualGPU, allocator: ductile_gpu.Allocator) -> _Virtual:
    from rmm.pylibrmm.stream import Stream
    from test_rmm import _Stream

    import ductile_gpu.rmm as adapter

    resource = adapter.DuctileMemoryResource(allocator)
    return _Virtual(
        gpu,
        "rmm",
        lambda size, stream: _Buffer(resource, size, Stream(_Stream(stream))),
        _address_of,
    )


def _cupy(gpu: ductile_gpu.VirtualGPU, allocator: ductile_gpu.Allocator) -> _Virtual:
    import ductile_gpu.cupy as adapter

    return _Virtual(
        gpu,
        "cupy",
        lambda size, stream: adapter._allocate(allocator, size, 0, stream),
        _address_of,
    )


def _numba(gpu: ductile_gpu.VirtualGPU, allocator: ductile_gpu.Allocator) -> _Virtual:
    from test_numba import _Context, _Stream

    import ductile_gpu.numba as adapter

    manager = adapter.DuctileNumbaManager(context=_Context())
    manager._memory = adapter._Memory(allocator, _Stream(gpu))
    return _Virtual(
        gpu, "numba", lambda size, stream: manager.memalloc(size), _address_of, blocking=True
    )


def _virtual_libraries(
    gpu: ductile_gpu.VirtualGPU, allocator: ductile_gpu.Allocator
) -> list[together.Library]:
    """Three or more: the adapters of what is installed, and Ductile's own buffers."""
    known = {"cupy": _cupy, "numba": _numba, "rmm": _rmm}
    found: list[together.Library] = [
        make(gpu, allocator) for name, make in known.items() if _has(name)
    ]
    while len(found) < 3 or not any(one.name == "buffers" for one in found):
        found.append(_Virtual(gpu, "buffers", allocator.buffer, _address_of))
    return found


@pytest.mark.parametrize("schedule", ["lazy", "random", "lagging"])
def test_adapters_pass_memory_at_90_percent_of_a_cap(gpu, schedule):
    gpu.set_schedule(schedule, 6)
    limited = gpu.allocator(limit_bytes=LIMIT)
    with _adopted(limited):
        libraries = _virtual_libraries(gpu, limited)
        exchange = Exchange(libraries, _VirtualStreams(gpu), int(LIMIT * 0.9), seed=7)
        play(exchange, 1000)
        assert limited.stats().allocated_bytes >= int(LIMIT * 0.9)
        assert limited.stats().reserved_peak_bytes <= LIMIT
        assert sum(exchange.peaks.values()) > 1.5 * LIMIT
        assert exchange.n_passed == 1000
        exchange.clear()
        limited.check()
        for one in libraries:
            gpu.sync(one.stream)


def test_a_use_that_nobody_records_is_seen():
    """What the exchange would overlook if it could not fail. The device may not survive it."""
    lost = contextlib.suppress(ductile_gpu.DeviceLost)
    with lost, ductile_gpu.VirtualGPU("4G", detect=2) as gpu:
        gpu.set_schedule("lazy")
        limited = gpu.allocator(limit_bytes=LIMIT)
        with _adopted(limited):
            libraries = _virtual_libraries(gpu, limited)
            exchange = Exchange(libraries, _VirtualStreams(gpu, records=False), int(LIMIT * 0.9))
            with contextlib.suppress(ductile_gpu.DeviceLost):
                play(exchange, 100)
        assert gpu.state().violations > 0


# ---- On hardware -------------------------------------------------------------------------------


def _run(libraries: str) -> dict[str, Any]:
    for name in libraries.split(","):
        if not _has(name):
            pytest.skip(f"{name} is not installed")
    answer = python(PROGRAM, "--libraries", libraries, seconds=180)
    print(answer.stdout)
    assert answer.returncode == 0, answer.stdout + answer.stderr[-4000:]
    figures: dict[str, Any] = json.loads(answer.stdout.splitlines()[-1])
    return figures


@pytest.mark.gpu
@pytest.mark.parametrize(
    "libraries", ["torch,cupy,numba", "cupy,numba,rmm", "torch,cupy,rmm", "torch,cupy,numba,rmm"]
)
def test_libraries_pass_memory_at_90_percent_of_a_cap(libraries):
    figures = _run(libraries)
    assert figures["rounds"] == 1000
    assert together.find_fault(figures) is None
