# SPDX-License-Identifier: Apache-2.0
"""Memory that sleeps: tags for PyTorch's memory, and what can be done with all that has one."""

from __future__ import annotations

import atexit
import contextlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Union

from ductile_gpu._binding._abi import Status
from ductile_gpu._binding._core import Allocator
from ductile_gpu._binding._errors import Awake, ForeignPointer, NotLive, Unsupported, invalid
from ductile_gpu._binding._sleep import Contents, ContentsBy, Pool, PoolId, Slept, Tags, list_tags
from ductile_gpu.torch._tag_pools import (
    TagPool,
    current_device,
    is_beside,
    tag_allocators,
    tag_pool,
)

if TYPE_CHECKING:
    import torch
else:
    from ductile_gpu.torch._lazy import torch

__all__ = [
    "GraphPool",
    "TagStats",
    "graph_pool",
    "kept",
    "outside",
    "pool",
    "release_host",
    "reserve_host",
    "set_margin",
    "sleep",
    "sleep_all",
    "sleeping",
    "tags",
    "wake",
    "wake_all",
]

# The pool that serves the default pool's requests while everything sleeps.
_BYPASS: PoolId = (0x627970617373, 1)


class TagStats(NamedTuple):
    """What has one tag, on all devices or one. All but `pools` and `asleep` are bytes."""

    pools: int
    asleep: int
    """how many of the pools sleep"""
    live_bytes: int
    """of live blocks"""
    asleep_bytes: int
    """of blocks that sleep: they hold no device memory"""
    held_bytes: int
    """device memory behind its live and free blocks"""
    kept_bytes: int
    """contents on the host"""


# ---- Where memory gets its tag -----------------------------------------------------------------

_pools: dict[tuple[str, Optional[Contents], int], TagPool] = {}


@atexit.register
def _drop_pools() -> None:
    """Once the interpreter takes its modules down, PyTorch cannot destroy its pools any more."""
    _pools.clear()


@contextlib.contextmanager
def pool(
    tag: str = "default", *, contents: Contents = "keep", device: Optional[int] = None
) -> Iterator[None]:
    """Inside, tensors that this thread makes get memory with a tag, which can sleep.

    Works where Ductile is PyTorch's allocator and beside PyTorch's own. Other threads, autograd's
    included, are not inside. With another tag inside it, the inner one counts. The memory keeps the
    tag, whatever uses it later.

    Args:
        tag: fewer than 64 bytes.
        contents: what a sleep does with them unless it says otherwise: "keep" copies them to the
            host and back, "drop" leaves them undefined, "zero", or "poison" (0xFF in every byte).
            One tag may have memory of several kinds.
        device: ordinal; None: the current device.

    Raises:
        InvalidArgument: the tag or the contents.
        Busy: beside PyTorch's own allocator: more than 128 pools.
        Inside, a RuntimeError that names the tag, while it sleeps.
    """
    place = current_device() if device is None else device
    key = (tag, contents, place)
    found = _pools.get(key)
    if found is None:
        found = _pools.setdefault(key, tag_pool(tag, contents, place))
    with found.opened():
        yield


class GraphPool(tuple[int, int]):
    """A pool's handle as PyTorch takes it. It holds the pool; graphs that use it do so too."""

    _held: Any

    def __new__(cls, handle: PoolId, held: Any) -> GraphPool:
        made = super().__new__(cls, handle)
        made._held = held
        return made


def graph_pool(
    tag: str = "default", *, contents: Contents = "keep", device: Optional[int] = None
) -> GraphPool:
    """A new pool for torch.cuda.graph(graph, pool=...), whose memory has a tag.

    After a wake the graphs can be launched again as they are. Graphs that are captured with one
    handle share memory, as with torch.cuda.graph_pool_handle(). Contents of a graph's memory count
    where a graph reads what an earlier one, or the capture, left there: "keep" unless it is known
    not to.

    Args:
        tag, contents, device: as `pool`.

    Raises:
        As `pool`.
    """
    found = tag_pool(tag, contents, device, for_graphs=True)
    return GraphPool(found.handle, found)


_apart: set[PoolId] = set()  # pools of `outside`, while it lasts


@contextlib.contextmanager
def outside() -> Iterator[None]:
    """Inside, this thread's tensors get memory without a tag, also while all else sleeps.

    On the current device. What is free at the end goes back to the device; tensors may stay.
    """
    device = current_device()
    if is_beside():
        with torch.cuda.use_mem_pool(torch.cuda.MemPool()):
            yield
        torch.cuda.empty_cache()
        return
    temporary = tag_pool("", None, device)
    named = temporary.id
    _apart.add(named)
    try:
        with temporary.opened():
            yield
    finally:
        _apart.discard(named)
        del temporary
        with contextlib.suppress(ValueError):  # it is empty, and gone
            tag_allocators()[device].trim(pool=named)


def is_apart(found: PoolId) -> bool:
    """Is it a pool that stays awake while everything sleeps: of `outside`, or the bypass?"""
    return found in _apart or found == _BYPASS


# ---- Sleep -------------------------------------------------------------------------------------


def together(done: Iterable[Slept]) -> Slept:
    """What several calls did."""
    return Slept(*map(sum, zip((0, 0, 0, 0, 0), *done)))


def _present(pools: list[Pool]) -> set[str]:
    return {found.tag for found in pools if found.tag}


def _chosen(tag: Tags, strict: bool) -> list[tuple[Allocator, list[str]]]:
    """The allocators with tags of those meant; None: all."""
    found = [(allocator, _present(allocator.pools())) for allocator in tag_allocators().values()]
    known = set().union(*(present for _, present in found))
    wanted = sorted(known) if tag is None else list_tags(tag)
    unknown = [name for name in wanted if name not in known]
    if unknown and strict:
        named = ", ".join(repr(name) for name in sorted(known)) or "none"
        raise invalid(f"no memory has the tag {unknown[0]!r}; tags there are: {named}")
    return [
        (allocator, [name for name in wanted if name in present])
        for allocator, present in found
        if present.intersection(wanted)
    ]


def sleep(tag: Tags = None, *, contents: ContentsBy = None, strict: bool = True) -> Slept:
    """Gives the device memory of what has a tag back to the driver. All addresses stay valid.

    Waits for all work of the device. Afterwards nothing may use the tensors until `wake`: a
    kernel that does ends the process's CUDA context. They can be freed. Each device is all or
    nothing; what fails on a later device leaves the earlier ones asleep.

    Args:
        tag: one, or several; None: every tag. Memory without a tag stays: see `sleep_all`.
        contents: "keep", "drop", "zero" or "poison", or these by tag with None for the rest; where
            nothing is said it is as the memory was made (`pool`).
        strict: False passes over what sleeps already and tags that nothing has.

    Returns:
        What it did; `bytes` is the device memory that left.

    Raises:
        InvalidArgument: no memory has the tag.
        Asleep: some of it sleeps already.
        Capturing: a graph is being captured.
        OutOfHostMemory: for kept contents.
        Busy, DriverError, DeviceLost.
    """
    return together(
        allocator.sleep(names, contents=contents, lenient=not strict)
        for allocator, names in _chosen(tag, strict)
    )


def wake(tag: Tags = None, *, strict: bool = True, retain: bool = False) -> Slept:
    """Puts device memory behind what sleeps again, at the same addresses, contents in place.

    Graphs can be launched again. Each device is all or nothing.

    Args:
        tag: one, or several; None: every tag that sleeps.
        strict: False passes over what is awake and tags that nothing has.
        retain: kept contents stay on the host too, where `kept` finds them, until the next sleep or
            a wake without it.

    Raises:
        InvalidArgument: no memory has the tag.
        Awake: some of it does not sleep.
        OutOfMemory: the message says how much more must be free; all sleeps as before.
        Busy, DriverError, DeviceLost.
    """
    lenient = not strict or tag is None
    return together(
        allocator.wake(names, lenient=lenient, retain=retain)
        for allocator, names in _chosen(tag, strict)
    )


def _whole_process() -> list[Allocator]:
    if is_beside():
        raise Unsupported(
            Status.ERR_UNSUPPORTED,
            "PyTorch's own allocator serves what has no tag, and it cannot sleep: enable Ductile "
            "before CUDA is used (ductile_gpu.torch.enable), or put tags to sleep",
            alone=True,
        )
    return list(tag_allocators().values())


def sleep_all(
    *, awake: Tags = None, contents: ContentsBy = None, serve_others: bool = True
) -> Slept:
    """As `sleep`, for all memory of the process, what has no tag included. Needs Ductile as
    PyTorch's allocator.

    Memory without a tag holds the state of generators, cuBLAS's workspaces and constants: its
    contents are kept, unless `contents` says otherwise.

    Args:
        awake: tags that stay awake.
        contents: as `sleep`.
        serve_others: requests that come meanwhile are served from memory apart, which stays awake;
            False: they are refused. See `outside`, too.

    Raises:
        Unsupported: Ductile is not PyTorch's allocator.
        As `sleep`. What sleeps already is passed over.
    """
    left_out, bypass = [*_apart, _BYPASS], _BYPASS if serve_others else None
    return together(
        a.sleep(contents=contents, except_tags=awake, except_pools=left_out, bypass=bypass)
        for a in _whole_process()
    )


def wake_all() -> Slept:
    """Wakes all that sleeps, what has no tag included.

    Raises:
        Unsupported: Ductile is not PyTorch's allocator.
        OutOfMemory: the message says how much more must be free; all sleeps as before.
        Busy, DriverError, DeviceLost.
    """
    return together(a.wake(except_pools=[_BYPASS], lenient=True) for a in _whole_process())


# ---- What sleeps -------------------------------------------------------------------------------


def sleeping() -> list[str]:
    """The tags of which something sleeps; "" where memory without a tag does."""
    found = {
        p.tag
        for a in tag_allocators().values()
        for p in a.pools()
        if p.state in ("asleep", "falling_asleep")
    }
    return sorted(found)


def tags(device: Optional[int] = None) -> dict[str, TagStats]:
    """Statistics by tag; "" is all that has none. Linear in the blocks; no driver call.

    Args:
        device: ordinal; None: all devices together.
    """
    out: dict[str, TagStats] = {}
    for place, allocator in tag_allocators().items():
        for found in allocator.pools() if device in (None, place) else ():
            before = out.get(found.tag, TagStats(0, 0, 0, 0, 0, 0))
            out[found.tag] = TagStats(*(a + b for a, b in zip(before, _stats(allocator, found))))
    return out


def _stats(allocator: Allocator, found: Pool) -> TagStats:
    try:
        s = allocator.stats(found.id)
    except ValueError:  # gone meanwhile
        return TagStats(0, 0, 0, 0, 0, 0)
    return TagStats(
        1,
        int(found.state != "awake"),
        s.allocated_bytes,
        s.asleep_bytes,
        s.reserved_bytes,
        found.kept_bytes,
    )


def kept(tensor: torch.Tensor, *, copy: bool = True) -> Optional[torch.Tensor]:
    """The kept contents of a tensor, as a tensor on the host; None when there are none.

    Args:
        tensor: contiguous, on a GPU.
        copy: False: no copy. Changes to it come back with the wake; it must not be used after the
            tensor is freed or woken.

    Raises:
        ValueError: the tensor is not on a GPU, or not contiguous.
    """
    if not tensor.is_cuda or not tensor.is_contiguous():
        raise ValueError("kept contents are those of a contiguous tensor on a GPU")
    if tensor.nbytes == 0:
        return torch.empty(tensor.shape, dtype=tensor.dtype)
    memory = kept_memory(tensor.data_ptr(), tensor.nbytes)
    if memory is None:
        return None
    found = torch.frombuffer(memory, dtype=tensor.dtype).view(tensor.shape)
    return found.clone() if copy else found


def kept_memory(address: int, size: int) -> Optional[memoryview]:
    """The kept contents behind a device address; None when there are none."""
    for allocator in tag_allocators().values():
        try:
            return allocator.kept_contents(address)[:size]
        except (Awake, Unsupported, ForeignPointer, NotLive):
            continue
    return None


# ---- Host memory -------------------------------------------------------------------------------


def _allocator_of(device: Optional[int]) -> Allocator:
    place = current_device() if device is None else device
    return tag_allocators(place)[place]


def reserve_host(size: Union[int, str], device: Optional[int] = None) -> int:
    """`Allocator.reserve_host` for the tagged memory of a device; None: the current one."""
    return _allocator_of(device).reserve_host(size)


def set_margin(size: Union[int, str], device: Optional[int] = None) -> None:
    """`Allocator.set_margin` for a device, None: the current one, for NCCL and other processes.

    It holds for requests for tagged memory; where Ductile is PyTorch's allocator, for all.
    """
    _allocator_of(device).set_margin(size)


def release_host(keep: Union[int, str] = 0) -> int:
    """Gives host memory that holds no contents back, of all devices; returns the bytes.

    Args:
        keep: bytes that stay for each device.
    """
    return sum(allocator.release_host(keep) for allocator in tag_allocators().values())
