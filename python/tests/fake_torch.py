# SPDX-License-Identifier: Apache-2.0
"""As much of PyTorch as tagged memory touches, on Ductile's virtual GPU, for tests without PyTorch.

PyTorch's own allocator is no more than a count. A torch.cuda.MemPool with an allocator asks that
for a segment for each tensor, as PyTorch does for large ones, and frees the segments of freed
tensors in empty_cache; a tensor is an address.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys
import threading
import types
import weakref
from collections.abc import Iterator
from typing import Any, Callable, Optional

import pytest

from ductile_gpu.torch import _plain, _tags

ADDRESS = 0x7000_0000_0000


class Thread(threading.local):
    def __init__(self) -> None:
        self.pools: list[MemPool] = []
        self.capturing: Optional[MemPool] = None


class Segment:
    def __init__(self, address: int, size: int, pool: Optional[MemPool]) -> None:
        self.address, self.size, self.pool, self.is_live = address, size, pool, True


class FakeTensor:
    """Bytes on the device, of which only the address is known."""

    is_cuda = True

    def __init__(self, torch: Torch, segment: Segment) -> None:
        self._torch, self._segment = torch, segment
        self.nbytes = segment.size

    def data_ptr(self) -> int:
        return self._segment.address

    def is_contiguous(self) -> bool:
        return True

    def __del__(self) -> None:
        self._segment.is_live = False
        if self._segment.pool is None:
            self._torch.native_bytes -= self.nbytes


class Pluggable:
    """torch.cuda.memory.CUDAPluggableAllocator, and its allocator()."""

    def __init__(self, path: str, malloc: str, free: str) -> None:
        library = ctypes.CDLL(path)
        self.malloc: Any = getattr(library, malloc)
        self.malloc.restype = ctypes.c_void_p
        self.malloc.argtypes = [ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
        self.free: Any = getattr(library, free)
        self.free.restype = None
        self.free.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]

    def allocator(self) -> Pluggable:
        return self

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("set_"):
            return lambda *_: None
        raise AttributeError(name)


class MemPool:
    made = 0

    def __init__(self, allocator: Any = None, **_: bool) -> None:
        MemPool.made += 1
        self.id = (0, MemPool.made)
        self.allocator = allocator
        self.segments: list[Segment] = []
        self.users: weakref.WeakSet[Any] = weakref.WeakSet()  # graphs

    def use_count(self) -> int:
        return 1 + len(self.users)

    def empty(self) -> None:
        for segment in [s for s in self.segments if not s.is_live]:
            self.segments.remove(segment)
            if self.allocator is not None:
                self.allocator.free(segment.address, segment.size, 0, None)

    def __del__(self) -> None:
        if self.use_count() > 1:  # PyTorch ends the process
            destroyed_in_use.append(self.id)
        self.empty()


class Graph:
    """A torch.cuda.CUDAGraph: what keeps its pool."""

    output: Any
    pool_id: Any


destroyed_in_use: list[tuple[int, int]] = []


class OutOfMemoryError(RuntimeError):
    pass


class Torch(types.ModuleType):
    """The module. `tensor(n)` is a tensor of n bytes, from where the thread allocates."""

    def __init__(self) -> None:
        super().__init__("torch")
        self.native_bytes = 0
        self.thread = Thread()
        self.pools: list[Any] = []
        self.is_initialized = True
        self.OutOfMemoryError = OutOfMemoryError
        self.version = types.SimpleNamespace(cuda="13.0", hip=None)
        self.Tensor = FakeTensor
        cuda: Any = types.ModuleType("torch.cuda")
        cuda.memory = types.ModuleType("torch.cuda.memory")
        cuda.memory.CUDAPluggableAllocator = Pluggable
        cuda.MemPool = self._mem_pool
        cuda.use_mem_pool = self._use_mem_pool
        cuda.graph = self._graph
        cuda.graph_pool_handle = self._handle
        cuda.current_device = lambda: 0
        cuda.device_count = lambda: 1
        cuda.device = lambda _device: contextlib.nullcontext()
        cuda.init = lambda: None
        cuda.is_current_stream_capturing = lambda: self.thread.capturing is not None
        cuda.current_blas_handle = lambda: 1
        cuda.is_initialized = lambda: self.is_initialized
        cuda.empty_cache = self.empty_cache
        self.cuda = cuda
        self.__file__ = "/nowhere/torch/__init__.py"
        self.__version__ = "2.15.0"
        self._C = types.SimpleNamespace(_GLIBCXX_USE_CXX11_ABI=True)

    def _mem_pool(self, *given: Any, **named: Any) -> MemPool:
        made = MemPool(*given, **named)
        self.pools.append(weakref.ref(made))
        return made

    def _handle(self) -> tuple[int, int]:
        MemPool.made += 1
        return (0, MemPool.made)

    @contextlib.contextmanager
    def _use_mem_pool(self, pool: MemPool, device: Any = None) -> Any:
        self.thread.pools.append(pool)
        try:
            yield
        finally:
            self.thread.pools.remove(pool)

    @contextlib.contextmanager
    def _graph(self, graph: Any, pool: Any = None, **_: Any) -> Any:
        found = [p for p in (ref() for ref in self.pools) if p is not None and p.id == pool]
        graph.pool_id = pool
        for used in found:
            used.users.add(graph)
        self.thread.capturing = found[0] if found else None
        try:
            yield
        finally:
            self.thread.capturing = None

    def empty_cache(self) -> None:
        for pool in [ref() for ref in self.pools]:
            if pool is not None:
                pool.empty()

    def tensor(self, size: int) -> FakeTensor:
        pool = self.thread.capturing or (self.thread.pools or [None])[-1]
        if pool is None or pool.allocator is None:
            self.native_bytes += size
            return FakeTensor(self, Segment(ADDRESS + self.native_bytes, size, None))
        address = pool.allocator.malloc(size, 0, None)
        if not address:
            raise OutOfMemoryError(f"CUDA out of memory: {size} bytes")
        segment = Segment(address, size, pool)
        pool.segments.append(segment)
        return FakeTensor(self, segment)


def throw_nothing(set_attribute: Callable[..., None]) -> None:
    """PyTorch's C++ library, which throws for Ductile, is not there."""
    set_attribute(_plain, "_let_it_throw", lambda library: None)


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Torch]:
    """PyTorch's own allocator, and Ductile beside it on a virtual GPU."""
    monkeypatch.setenv("DUCTILE_CONF", "driver:virtual,sizes:2M,limit_bytes:1G")
    throw_nothing(monkeypatch.setattr)
    found = put_into(monkeypatch.setitem)
    yield found
    _tags._pools.clear()
    found.empty_cache()
    assert not _tags.sleeping()


def put_into(modules: Any) -> Torch:
    """Makes it `import torch`'s, in a monkeypatched sys.modules."""
    made = Torch()
    for name, module in (
        ("torch", made),
        ("torch.cuda", made.cuda),
        ("torch.cuda.memory", made.cuda.memory),
    ):
        modules(sys.modules, name, module)
    gc.collect()
    return made
