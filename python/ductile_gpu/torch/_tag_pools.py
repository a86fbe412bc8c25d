# SPDX-License-Identifier: Apache-2.0
"""Where tagged memory comes from: a pool of Ductile's for PyTorch's requests, in each mode.

- full: a torch.cuda.MemPool is a pool of Ductile's.
- plain: PyTorch knows of no pools; the library's are opened for the thread.
- off, beside PyTorch's own allocator: a torch.cuda.MemPool whose allocator is Ductile, with an
  allocation function of its own (plain/beside.c).
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import sys
import threading
import warnings
import weakref
from collections.abc import Iterator
from typing import Any, Optional

from ductile_gpu._binding._abi import Status
from ductile_gpu._binding._core import Allocator
from ductile_gpu._binding._errors import Busy
from ductile_gpu._binding._sleep import Contents, PoolId, contents_number, tag_bytes
from ductile_gpu._process import _share
from ductile_gpu.torch import _install, _plain
from ductile_gpu.torch._lazy import torch

_DIRECT = 0x64756374696C65  # the first number of the ids of pools that only the library knows
_numbers = itertools.count(1)


def current_device() -> int:
    """The device of the next allocation."""
    return int(torch.cuda.current_device())


class TagPool:
    """A pool that has a tag. It lives as long as this object, its blocks, and graphs that use it.

    Attributes:
        id: Ductile's name of it.
        handle: PyTorch's, for torch.cuda.graph(pool=...).
        mem_pool: the torch.cuda.MemPool; None in plain mode.
    """

    def __init__(self, tag: str, contents: Optional[Contents], device: int) -> None:
        self.tag = tag
        self.contents = contents
        self.device = device
        self.mem_pool: Any = None
        self.id: PoolId = (0, 0)
        self.handle: PoolId = (0, 0)
        self._make()

    def _make(self) -> None:
        raise NotImplementedError

    def _take(self, named: PoolId) -> None:
        """A pool of Ductile's that has no object of PyTorch's goes with this one."""
        self.id = self.handle = named
        allocator = _share.shared(self.device)
        allocator.retain_pool(named)
        weakref.finalize(self, _release, allocator, named)
        allocator.set_tag(named, self.tag, self.contents)

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """Inside, requests of this thread on the pool's device are served from it."""
        _make_workspace(self.device)
        with torch.cuda.use_mem_pool(self.mem_pool, self.device):
            yield

    def __del__(self) -> None:
        if self.mem_pool is not None and not sys.is_finalizing():
            _part_with(self.mem_pool)

    def __repr__(self) -> str:
        return f"<memory '{self.tag}' ({self.contents}) of device {self.device}>"


_threads = threading.local()


@contextlib.contextmanager
def _no_word_of_a_context() -> Iterator[None]:
    """PyTorch warns where cuBLAS is the first use of CUDA. Only the first time of a thread: each
    change of the filters has warnings that were shown once shown again."""
    if getattr(_threads, "has_workspace", False):
        yield
        return
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Attempting to run cuBLAS")
        yield
    _threads.has_workspace = True


def _make_workspace(device: int) -> None:
    """cuBLAS keeps a workspace for each thread and stream, made at the first product. Made in a
    pool it would sleep with the tag, and the next product outside would use it: so it is made
    before. Each time, because PyTorch can drop workspaces in between."""
    # Without cuBLAS there is no workspace; what else is wrong, the first tensor says.
    with contextlib.suppress(RuntimeError), _no_word_of_a_context(), torch.cuda.device(device):
        if not torch.cuda.is_current_stream_capturing():
            torch.cuda.current_blas_handle()


# PyTorch's pools that graphs still use: PyTorch ends a process that destroys one of them.
_in_use: list[Any] = []


def _part_with(mem_pool: Any) -> None:
    if getattr(mem_pool, "use_count", lambda: 1)() > 1:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(mem_pool))  # to the end, where it stays so
        _in_use.append(mem_pool)


def _drop_unused() -> None:
    for mem_pool in [found for found in _in_use if found.use_count() == 1]:
        _in_use.remove(mem_pool)
        ctypes.pythonapi.Py_DecRef(ctypes.py_object(mem_pool))


class _Full(TagPool):
    def _make(self) -> None:
        with torch.cuda.device(self.device):
            self.mem_pool = torch.cuda.MemPool()
        first, second = self.mem_pool.id
        self.id = self.handle = (first, second)
        _share.shared(self.device).set_tag(self.id, self.tag, self.contents)


class _Plain(TagPool):
    def _make(self) -> None:
        self._take((_DIRECT, next(_numbers)))

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        allocator = _share.shared(self.device)
        _make_workspace(self.device)
        with allocator.pool(self.id):
            try:
                yield
            finally:
                allocator.release_pool(self.id)  # the opening's; the first one stays


def _release(allocator: Allocator, pool: PoolId) -> None:
    with contextlib.suppress(Exception):  # at exit, in a forked child
        allocator.release_pool(pool)


# ---- Beside PyTorch's own allocator ------------------------------------------------------------

_pluggables: dict[int, Any] = {}  # by slot


def _pluggable(slot: int) -> Any:
    """PyTorch's object for a slot's function. It is never destroyed: PyTorch's pools name it as
    long as a tensor or a graph has memory of them, at the end of the process too."""
    if slot not in _pluggables:
        made = _plain.make(f"ductile_torch_malloc_{slot:02x}", "ductile_torch_beside_free")
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(made))
        _pluggables[slot] = made
    return _pluggables[slot]


class _Beside(TagPool):
    def _make(self) -> None:
        library = _plain.library()
        second = ctypes.c_uint64()
        named, number = tag_bytes(self.tag), contents_number(self.contents)
        slot = library.ductile_torch_beside_take(named, number, ctypes.byref(second))
        if slot < 0:
            raise Busy(
                Status.ERR_BUSY,
                "128 tagged pools are in use beside PyTorch's own allocator: drop some, or let "
                "Ductile be the allocator (ductile_gpu.torch.enable)",
            )
        weakref.finalize(self, library.ductile_torch_beside_give, slot)
        self.id = (int(library.ductile_torch_beside_first()), second.value)
        with torch.cuda.device(self.device):
            self.mem_pool = torch.cuda.MemPool(_pluggable(slot).allocator())
        first, last = self.mem_pool.id
        self.handle = (first, last)


_borrowed: dict[int, Allocator] = {}


def _beside_allocators() -> dict[int, Allocator]:
    for device in _plain.list_used():
        if device not in _borrowed:
            _borrowed[device] = Allocator.borrow(_plain.open_device(device), device)
    return dict(_borrowed)


class _OfGraphs(TagPool):
    """A pool that only captures use. PyTorch makes it at the capture; the library knows it now."""

    def _make(self) -> None:
        first, second = torch.cuda.graph_pool_handle()
        self._take((first, second))


# ---- In whatever mode --------------------------------------------------------------------------


def is_beside() -> bool:
    """Is PyTorch's own allocator the one of the process?"""
    return _kind() is _Beside


def _kind() -> type[TagPool]:
    if _install.is_installed():
        return _Full
    return _Plain if _plain.is_installed() else _Beside


def tag_pool(
    tag: str,
    contents: Optional[Contents],
    device: Optional[int] = None,
    *,
    for_graphs: bool = False,
) -> TagPool:
    """A new pool with this tag.

    Args:
        contents: what a sleep does with them unless it says otherwise; None: "drop".
        device: ordinal; None: the current one.
        for_graphs: for captures alone: the graphs that use it keep it as long as they live.

    Raises:
        InvalidArgument: the tag or the contents.
        Busy: too many pools.
    """
    tag_bytes(tag)
    contents_number(contents)
    place = current_device() if device is None else device
    kind = _kind()
    if for_graphs and kind is not _Beside:
        return _OfGraphs(tag, contents, place)
    _drop_unused()
    return kind(tag, contents, place)


def tag_allocators(device: Optional[int] = None) -> dict[int, Allocator]:
    """The allocators of tagged memory that exist, by device.

    Args:
        device: ordinal of one that is made where it does not exist yet; None: none is made.
    """
    if is_beside():
        if device is not None:
            _plain.open_device(device)
        return _beside_allocators()
    if device is not None:
        _share.shared(device)
    return _share.by_device()
