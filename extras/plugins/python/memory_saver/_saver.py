# SPDX-License-Identifier: Apache-2.0
"""The object that programs call: torch_memory_saver's interface on tagged pools."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Optional

import ductile_gpu.torch as memory
from ductile_gpu import (
    Allocator,
    Awake,
    ForeignPointer,
    NotLive,
    OutOfMemory,
    Pool,
    Unsupported,
    shared,
)
from ductile_gpu.interface import Contents, TagPool, is_apart, tag_allocators, tag_pool
from ductile_gpu.memory_saver._names import BinaryWrapper

if TYPE_CHECKING:
    import torch

PoolId = tuple[int, int]
HookMode = Literal["preload", "torch"]
CpuBackupBackend = Literal["mmap", "pinned"]

_TAG_DEFAULT = "default"
_ON = frozenset(("1", "true", "TRUE", "yes", "YES"))


def _is_set(name: str) -> bool:
    return os.environ.get(name, "") in _ON


def _refuse_disk(what: str) -> None:
    raise NotImplementedError(
        f"{what}: Ductile keeps contents in the host's memory, and writes no files: use "
        "enable_cpu_backup"
    )


class TorchMemorySaver:
    """torch_memory_saver's object: regions whose memory can be paused, by tag.

    In hook mode "preload", the default, Ductile becomes PyTorch's allocator when that is still
    possible; in "torch", and where CUDA is in use already, regions are pools beside PyTorch's own.
    """

    def __init__(self) -> None:
        self._hook_mode: HookMode = "preload"
        self._impl: Optional[_Impl] = None

    @contextlib.contextmanager
    def region(
        self,
        tag: str = _TAG_DEFAULT,
        enable_cpu_backup: bool = False,
        enable_disk_backup: bool = False,
        cpu_backup_backend: Optional[CpuBackupBackend] = None,
    ) -> Iterator[None]:
        """Inside, tensors that this thread makes can be paused.

        Args:
            tag: fewer than 64 bytes.
            enable_cpu_backup: keep contents over a pause; otherwise they are undefined after it.
            enable_disk_backup: is refused.
            cpu_backup_backend: "mmap" gives the host's memory back after each resume; "pinned"
                keeps it for the next pause. Both are page-locked.

        Raises:
            ValueError: a backend without backup, or no such backend.
            NotImplementedError: enable_disk_backup.
        """
        _check_backend(enable_cpu_backup, cpu_backup_backend)
        if enable_disk_backup:
            _refuse_disk("enable_disk_backup")
        with self._started().region(tag, enable_cpu_backup, cpu_backup_backend):
            yield

    @contextlib.contextmanager
    def cuda_graph(
        self,
        cuda_graph: torch.cuda.CUDAGraph,
        pool: Any = None,
        stream: Optional[torch.cuda.Stream] = None,
        capture_error_mode: str = "global",
        tag: str = _TAG_DEFAULT,
        enable_cpu_backup: bool = False,
        cpu_backup_backend: Optional[CpuBackupBackend] = None,
    ) -> Iterator[None]:
        """torch.cuda.graph, whose memory can be paused; in every hook mode.

        Args:
            cuda_graph, pool, stream, capture_error_mode: as torch.cuda.graph.
            tag, enable_cpu_backup, cpu_backup_backend: as `region`.

        Raises:
            As `region`.
        """
        _check_backend(enable_cpu_backup, cpu_backup_backend)
        with self._started().cuda_graph(
            cuda_graph, pool, stream, capture_error_mode, tag, enable_cpu_backup, cpu_backup_backend
        ):
            yield

    @contextlib.contextmanager
    def disable(self) -> Iterator[None]:
        """Inside a region, or with TMS_INIT_ENABLE: tensors made here are not paused, and can be
        made while all else is. What is free at the end goes back to the device.

        Raises:
            RuntimeError: this thread is in no region.
        """
        with self._started().disable():
            yield

    def pause(self, tag: Optional[str] = None) -> None:
        """Gives the device memory of a tag's regions back; None: of all. Waits for the GPU.

        Raises:
            Asleep: some of it is paused already. Nothing has changed.
            Busy, Capturing, OutOfHostMemory, DriverError, DeviceLost.
        """
        self._started().pause(tag)

    def resume(self, tag: Optional[str] = None) -> None:
        """Puts device memory behind them again, at the same addresses.

        Raises:
            Awake: some of it is not paused. Nothing has changed.
            OutOfMemory: the message says how much more must be free. Nothing has changed.
            Busy, DriverError, DeviceLost.
        """
        self._started().resume(tag)

    @property
    def enabled(self) -> bool:
        """Always."""
        return True

    @property
    def is_preload(self) -> bool:
        """Is the hook mode "preload"? Not in torch_memory_saver."""
        return self._hook_mode == "preload"

    @property
    def hook_mode(self) -> HookMode:
        raise AttributeError("hook_mode can only be set")

    @hook_mode.setter
    def hook_mode(self, mode: HookMode) -> None:
        if mode not in ("preload", "torch"):
            raise ValueError(f"hook_mode is 'preload' or 'torch', not {mode!r}")
        if self._impl is not None:
            raise RuntimeError("hook_mode can be set only before the first use")
        self._hook_mode = mode
        if mode == "preload" and "torch" in sys.modules:
            become_allocator()

    @property
    def memory_margin_bytes(self) -> int:
        raise NotImplementedError("memory_margin_bytes can only be set")

    @memory_margin_bytes.setter
    def memory_margin_bytes(self, value: int) -> None:
        """Requests that would leave less than this free on the device are out of memory."""
        self._started().set_margin(value)

    @property
    def retain_cpu_backup(self) -> bool:
        """Do host copies stay over a resume, so that `get_cpu_backup` still finds them?"""
        return bool(self._started().cdll.tms_get_retain_cpu_backup())

    @retain_cpu_backup.setter
    def retain_cpu_backup(self, value: bool) -> None:
        self._started().cdll.tms_set_retain_cpu_backup(value)

    def get_cpu_backup(self, x: torch.Tensor, zero_copy: bool = False) -> Optional[torch.Tensor]:
        """The kept contents of a tensor; None when there are none.

        Args:
            x: contiguous, on a GPU.
            zero_copy: True: the host copy itself. It must not be used after a resume that drops it,
                nor after the tensor is freed.
        """
        self._started()
        return memory.kept(x, copy=not zero_copy)

    def set_disk_backup_dir(self, path: str) -> None:
        """Is refused.

        Raises:
            NotImplementedError: always.
        """
        _refuse_disk(f"set_disk_backup_dir({path!r})")

    def _started(self) -> _Impl:
        self._ensure_initialized()
        assert self._impl is not None
        return self._impl

    def _ensure_initialized(self) -> None:
        if self._impl is None:
            self._impl = _Impl(self._hook_mode)


def _check_backend(enable_cpu_backup: bool, backend: Optional[str]) -> None:
    if backend is None:
        return
    if not enable_cpu_backup:
        raise ValueError("cpu_backup_backend requires enable_cpu_backup=True")
    if backend not in ("mmap", "pinned"):
        raise ValueError(f"cpu_backup_backend is 'mmap' or 'pinned', not {backend!r}")


def become_allocator() -> None:
    """Makes Ductile PyTorch's allocator, or says why not; with TMS_INIT_ENABLE that is an error."""
    if memory.is_active():
        return
    try:
        memory.enable()
    except memory.TooLate as error:
        if _is_set("TMS_INIT_ENABLE"):
            raise
        warnings.warn(
            f"hook_mode 'preload': {error}. Regions are pools beside PyTorch's own allocator",
            RuntimeWarning,
            stacklevel=3,
        )


# ---- What it does ------------------------------------------------------------------------------


def _current_device() -> int:
    import torch

    return int(torch.cuda.current_device())


class _Key(NamedTuple):
    """One of these is one pool. torch_memory_saver's users know the order."""

    tag: str
    enable_cpu_backup: bool
    enable_disk_backup: bool
    cpu_backup_backend: str
    device: int

    @property
    def contents(self) -> Contents:
        return "keep" if self.enable_cpu_backup else "drop"


class _Region:
    """A region's pool. When it goes, so does the host memory that nothing needs any more."""

    def __init__(self, key: _Key) -> None:
        self.pool: Optional[TagPool] = tag_pool(key.tag, key.contents, key.device)

    def __del__(self) -> None:
        if sys is None or sys.is_finalizing() or getattr(self, "pool", None) is None:
            return
        self.pool = None
        with contextlib.suppress(Exception):  # a destructor has no caller to tell
            import torch

            torch.cuda.empty_cache()
            memory.release_host()


class _Config(NamedTuple):
    """A thread's region, as the C names have it."""

    tag: bytes
    is_active: bool
    backup: bool
    backend: bytes


class _Settings(threading.local):
    """What the C names have opened for this thread."""

    def __init__(self) -> None:
        self.is_own_change = False
        self.opened: Optional[contextlib.ExitStack] = None
        self.wanted: Any = None


class _Impl:
    def __init__(self, hook_mode: HookMode) -> None:
        self.hook_mode = hook_mode
        self.is_whole = _is_set("TMS_INIT_ENABLE")
        if _is_set("TMS_INIT_ENABLE_DISK_BACKUP"):
            _refuse_disk("TMS_INIT_ENABLE_DISK_BACKUP")
        if self.is_whole or hook_mode == "preload":
            become_allocator()
        self._margin: Optional[int] = None
        self._mem_pools: dict[_Key, _Region] = {}
        self._mmap_tags: set[str] = set()  # whose host memory goes back after a resume
        if _is_set("TMS_INIT_ENABLE_CPU_BACKUP"):
            self._note_backend(_TAG_DEFAULT, os.environ.get("TMS_INIT_CPU_BACKUP_BACKEND"))
        self._cached: dict[Allocator, int] = {}  # what slept without a block on it
        self._graph_pools: dict[PoolId, Any] = {}
        self._thread = _Settings()
        self._binary_wrapper = BinaryWrapper(self)
        self.cdll = self._binary_wrapper.cdll
        atexit.register(self._mem_pools.clear)

    # ---- Where memory comes from ---------------------------------------------------------------

    def _key(self, tag: str, backup: bool, backend: Optional[str]) -> _Key:
        kind = (backend or self.cdll.tms_get_cpu_backup_backend().decode()) if backup else ""
        self._note_backend(tag, kind)
        return _Key(tag, backup, False, kind, _current_device())

    def _note_backend(self, tag: str, backend: Optional[str]) -> None:
        if backend == "mmap":
            self._mmap_tags.add(tag)

    def _opened(self, key: _Key) -> AbstractContextManager[None]:
        found = self._mem_pools.get(key)
        if found is None:
            found = self._mem_pools.setdefault(key, _Region(key))
            if self._margin is not None:  # the device may be another than before
                self.set_margin(self._margin)
        assert found.pool is not None
        return found.pool.opened()

    @contextlib.contextmanager
    def region(self, tag: str, backup: bool, backend: Optional[str]) -> Iterator[None]:
        with (
            self._opened(self._key(tag, backup, backend)),
            self._with_region_config(tag, backup, backend),
        ):
            yield

    @contextlib.contextmanager
    def cuda_graph(
        self,
        graph: torch.cuda.CUDAGraph,
        pool: Any,
        stream: Optional[torch.cuda.Stream],
        mode: str,
        tag: str,
        backup: bool,
        backend: Optional[str],
    ) -> Iterator[None]:
        import torch

        contents = self._key(tag, backup, backend).contents
        with (
            self._capture_pool(pool, tag, contents) as handle,
            torch.cuda.graph(graph, pool=handle, stream=stream, capture_error_mode=mode),
            self._with_region_config(tag, backup, backend),
        ):
            yield

    @contextlib.contextmanager
    def _capture_pool(self, pool: Any, tag: str, contents: Contents) -> Iterator[PoolId]:
        """A pool with the tag, for a capture: the one that is named, where it is Ductile's."""
        if pool is None:
            yield memory.graph_pool(tag, contents=contents)
            return
        named: PoolId = tuple(getattr(pool, "id", pool))
        if not memory.is_active():  # a pool beside PyTorch's own stands in, the same each time
            if named not in self._graph_pools:
                made = memory.graph_pool(tag, contents=contents)
                self._graph_pools[named] = self._graph_pools[made] = made
            yield self._graph_pools[named]
            return
        allocator = shared(_current_device())
        allocator.retain_pool(named)
        try:
            allocator.set_tag(named, tag, contents)
            yield named
        finally:
            allocator.release_pool(named)

    @contextlib.contextmanager
    def disable(self) -> Iterator[None]:
        if not self.cdll.tms_get_interesting_region():
            raise RuntimeError(
                "disable() is for a thread that is in a region, or under TMS_INIT_ENABLE"
            )
        self._set_config(self._config()._replace(is_active=False))
        try:
            with memory.outside():
                yield
        finally:  # whatever else was set meanwhile stays
            self._set_config(self._config()._replace(is_active=True))

    # ---- The region of a thread, as C has it ---------------------------------------------------

    def _config(self) -> _Config:
        c = self.cdll
        return _Config(
            c.tms_get_current_tag(),
            c.tms_get_interesting_region(),
            c.tms_get_enable_cpu_backup(),
            c.tms_get_cpu_backup_backend(),
        )

    def _set_config(self, config: _Config) -> None:
        before, self._thread.is_own_change = self._thread.is_own_change, True
        try:
            self.cdll.tms_set_current_tag(config.tag)
            self.cdll.tms_set_interesting_region(config.is_active)
            self.cdll.tms_set_enable_cpu_backup(config.backup)
            self.cdll.tms_set_cpu_backup_backend(config.backend)
        finally:
            self._thread.is_own_change = before

    @contextlib.contextmanager
    def _with_region_config(
        self,
        tag: str,
        enable_cpu_backup: bool,
        cpu_backup_backend: Optional[str] = None,
        enable_disk_backup: bool = False,
    ) -> Iterator[None]:
        before = self._config()
        backend = cpu_backup_backend.encode() if cpu_backup_backend else before.backend
        self._set_config(_Config(tag.encode(), True, enable_cpu_backup, backend))
        try:
            yield
        finally:
            self._set_config(before)

    def follow_region(self) -> None:
        """A thread has changed its region by the C names: its memory comes from there from now on.

        A region that it enters and leaves meanwhile counts inside."""
        own = self._thread
        if own.is_own_change:
            return
        wanted = self._wanted()
        if wanted == own.wanted:
            return
        opened, own.opened, own.wanted = own.opened, None, None
        if opened is not None:
            opened.close()
        with contextlib.ExitStack() as stack:
            if isinstance(wanted, _Key):
                stack.enter_context(self._opened(wanted))
            elif wanted == "outside":
                stack.enter_context(memory.outside())
            own.opened, own.wanted = stack.pop_all(), wanted

    def _wanted(self) -> Any:
        """The pool's key; "outside" of the process's; None for nothing special."""
        tag, is_active, backup, backend = self._config()
        if not is_active:
            return "outside" if self.is_whole else None
        named = tag.decode()
        is_default = named == _TAG_DEFAULT and backup == _is_set("TMS_INIT_ENABLE_CPU_BACKUP")
        if self.is_whole and is_default:
            return None
        return self._key(named, backup, backend.decode())

    # ---- Pause and resume ----------------------------------------------------------------------

    def _allocators(self) -> list[Allocator]:
        return list(tag_allocators().values())

    def _tag_the_rest(self, allocator: Allocator) -> None:
        """TMS_INIT_ENABLE: what is in no region is, under the default tag."""
        contents: Contents = "keep" if _is_set("TMS_INIT_ENABLE_CPU_BACKUP") else "drop"
        for found in allocator.pools():
            if not found.tag and found.state == "awake" and not is_apart(found.id):
                allocator.set_tag(found.id, _TAG_DEFAULT, contents)

    def _find(self, allocator: Allocator, tag: Optional[str]) -> list[Pool]:
        if self.is_whole:
            self._tag_the_rest(allocator)
        return [p for p in allocator.pools() if p.tag and tag in (None, "", p.tag)]

    def pause(self, tag: Optional[str]) -> None:
        for allocator in self._allocators():
            found = [p for p in self._find(allocator, tag) if not _is_empty(allocator, p)]
            if found:
                cached = _cached_bytes(allocator)
                allocator.sleep(pools=[p.id for p in found])
                if _DEFAULT in (p.id for p in found):
                    self._cached[allocator] = cached

    def resume(self, tag: Optional[str]) -> None:
        for allocator in self._allocators():
            found = [
                p
                for p in self._find(allocator, tag)
                if p.state != "awake" or not _is_empty(allocator, p)
            ]
            if found:
                retain = self.cdll.tms_get_retain_cpu_backup()
                allocator.wake(pools=[p.id for p in found], retain=retain)
                self._give_host_back(allocator, {p.tag for p in found})
                _hold_again(allocator, self._cached.pop(allocator, 0))

    def _give_host_back(self, allocator: Allocator, tags: set[str]) -> None:
        if self._mmap_tags & tags and not self.cdll.tms_get_retain_cpu_backup():
            allocator.release_host()

    def set_margin(self, size: int) -> None:
        for allocator in tag_allocators(_current_device()).values():
            allocator.set_margin(size)
        self._margin = size

    def find_backup(self, address: int, size: int) -> int:
        for allocator in self._allocators():
            with contextlib.suppress(Awake, Unsupported, ForeignPointer, NotLive):
                found = allocator.kept_contents(address)[:size]
                return ctypes.addressof(ctypes.c_uint8.from_buffer(found))
        return 0


_DEFAULT: PoolId = (0, 0)


def _cached_bytes(allocator: Allocator) -> int:
    """Memory in no region that is held and free."""
    stats = allocator.stats(_DEFAULT)
    return stats.reserved_bytes - stats.allocated_bytes


def _hold_again(allocator: Allocator, size: int) -> None:
    """A process that was paused whole holds afterwards what it held before: who took the memory
    meanwhile is missed at the resume, not later. No memory for it is no reason to fail."""
    import torch

    if size > 0:
        with contextlib.suppress(OutOfMemory):
            allocator.free(allocator.alloc(size, torch.cuda.current_stream(allocator.device)))


def _is_empty(allocator: Allocator, pool: Pool) -> bool:
    """Does nothing live in it? torch_memory_saver knows no pools, only what they hold."""
    stats = allocator.stats(pool.id)
    return stats.live_blocks + stats.asleep_blocks + stats.pending_blocks == 0
