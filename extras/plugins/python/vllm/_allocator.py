# SPDX-License-Identifier: Apache-2.0
"""What vLLM calls its CuMemAllocator, on tagged pools of Ductile's."""

from __future__ import annotations

import contextlib
import gc
import logging
from collections.abc import Iterator
from typing import Any, Callable, NamedTuple, Optional, Union

from ductile_gpu import Allocator, OutOfHostMemory, OutOfMemory, Pool, Slept
from ductile_gpu.interface import Contents, TagPool, tag_allocators, tag_pool

_logger = logging.getLogger("ductile_gpu")
_GRAPHS = "cudagraph"


def _deferrable() -> tuple[str, ...]:
    """What a wake of other tags leaves asleep."""
    import vllm.device_allocator as module

    return tuple(getattr(module, "DEFERRABLE_TAGS", ("weights", "kv_cache")))


class _Hooks(NamedTuple):
    tag: str
    before_unmap: Callable[[], object]
    after_map: Callable[[], object]


class SleepAllocator:
    """The interface of vLLM's CuMemAllocator: memory with tags that sleeps and wakes.

    One of the process. Differences: a tag's memory is one growable pool, which serves each entry of
    `use_memory_pool`; sleep and wake-up change everything or nothing; what runs on the GPU is
    waited for.
    """

    default_tag = "default"

    def __init__(self) -> None:
        self.current_tag = self.default_tag
        self.allocator_and_pools: dict[str, list[TagPool]] = {}
        self._hooks: list[_Hooks] = []

    # ---- Where memory comes from ---------------------------------------------------------------

    @contextlib.contextmanager
    def use_memory_pool(self, tag: Optional[str] = None) -> Iterator[None]:
        """Inside, this thread's tensors have the tag. What is free at the end goes back."""
        found = self._pool(tag or self.default_tag)
        with self._current(found.tag), found.opened():
            yield
        self._trim(found)

    @contextlib.contextmanager
    def reuse_memory_pool(self, tag: str) -> Iterator[None]:
        """As `use_memory_pool`, for a tag that was used before. Raises ValueError otherwise."""
        if not self.allocator_and_pools.get(tag):
            raise ValueError(f"no memory pool has the tag {tag!r}")
        with self.use_memory_pool(tag):
            yield

    @contextlib.contextmanager
    def cudagraph_pool(self) -> Iterator[tuple[int, int]]:
        """The pool that graphs are to be captured into. They share it."""
        found = self._pool(_GRAPHS, for_graphs=True)
        with self._current(_GRAPHS):
            yield found.handle

    use_cudagraph_pool = cudagraph_pool

    def release_cudagraph_pool(self) -> None:
        """Lets go of the graphs' pool: their memory goes with the graphs."""
        self.allocator_and_pools.pop(_GRAPHS, None)

    @contextlib.contextmanager
    def _current(self, tag: str) -> Iterator[None]:
        before, self.current_tag = self.current_tag, tag
        try:
            yield
        finally:
            self.current_tag = before

    def _pool(self, tag: str, for_graphs: bool = False) -> TagPool:
        import torch

        pools = self.allocator_and_pools.setdefault(tag, [])
        device = torch.cuda.current_device()
        for found in pools:
            if found.device == device:
                return found
        made = tag_pool(tag, "drop", device, for_graphs=for_graphs)
        pools.append(made)
        return made

    def _trim(self, pool: TagPool) -> None:
        allocator = tag_allocators().get(pool.device)
        if allocator is not None:
            with contextlib.suppress(ValueError):  # nothing was allocated
                allocator.trim(pool=pool.id)

    def release_pools(self) -> None:
        """Lets go of all pools. Their memory goes with the tensors. More than once does nothing."""
        self.allocator_and_pools.clear()
        gc.collect()

    close = release_pools

    # ---- Sleep ---------------------------------------------------------------------------------

    def sleep(self, offload_tags: Union[tuple[str, ...], str, None] = None) -> None:
        """Everything sleeps: these tags are kept on the host, the rest is dropped. What sleeps
        already stays as it is.

        Args:
            offload_tags: None: the default tag.

        Raises:
            RuntimeError: the host has too little memory; nothing sleeps that did not.
        """
        kept = (self.default_tag,) if offload_tags is None else _as_tuple(offload_tags)
        found = self._pools()
        self._warn_of_others("sleep", found, lambda p: p.tag in kept)
        done = self._put_to_sleep(found, lambda tag: "keep" if tag in kept else "drop")
        _logger.info(
            "sleep freed %.2f GiB, of which %.2f GiB are kept on the host",
            done.bytes / 1024**3,
            done.copied_bytes / 1024**3,
        )
        _tidy()

    def discard(self, tags: Union[tuple[str, ...], str]) -> None:
        """These tags sleep, and their contents are dropped. What sleeps already stays as it is."""
        named = _as_tuple(tags)
        found = [(a, p) for a, p in self._pools() if p.tag in named]
        self._warn_of_others("discard", found, lambda p: False)
        done = self._put_to_sleep(found, lambda tag: "drop")
        _logger.info("discard freed %.2f GiB of %s", done.bytes / 1024**3, named)

    def wake_up(self, tags: Optional[list[str]] = None) -> None:
        """Wakes these tags, and all that are not weights or caches; None: all. What was kept is in
        place again, what was dropped is undefined.

        Raises:
            RuntimeError: too little memory is free; the message says how much is missing. What
                slept sleeps, and the call can be repeated.
        """
        _tidy()
        deferrable = _deferrable()
        found = [
            (a, p)
            for a, p in self._pools()
            if p.state != "awake" and (tags is None or p.tag in tags or p.tag not in deferrable)
        ]
        done = _call(found, lambda a, pools: a.wake(pools=[p.id for p in pools]))
        for hook in self._hooks_of(found):
            hook.after_map()
        _logger.info("wake-up took %.2f GiB", done.bytes / 1024**3)

    def _put_to_sleep(
        self, found: list[tuple[Allocator, Pool]], contents: Callable[[str], Contents]
    ) -> Slept:
        awake = [(a, p) for a, p in found if p.state == "awake"]

        def sleep(allocator: Allocator, pools: list[Pool]) -> Slept:
            by_tag: dict[Optional[str], Contents] = {p.tag: contents(p.tag) for p in pools}
            return allocator.sleep(
                list(dict.fromkeys(p.tag for p in pools)), contents=by_tag, lenient=True
            )

        with self._told(awake):
            return _call(awake, sleep)

    def _pools(self) -> list[tuple[Allocator, Pool]]:
        """The pools of vLLM's tags: where Ductile is the allocator, others may have tags, too."""
        return [
            (allocator, found)
            for allocator in tag_allocators().values()
            for found in allocator.pools()
            if found.tag in self.allocator_and_pools
        ]

    @staticmethod
    def _warn_of_others(
        what: str, found: list[tuple[Allocator, Pool]], is_kept: Callable[[Pool], bool]
    ) -> None:
        if any(p.state != "awake" and is_kept(p) != (p.contents == "keep") for _, p in found):
            _logger.warning("%s: what sleeps already keeps, or drops, its contents as it did", what)

    # ---- Who is told ---------------------------------------------------------------------------

    def register_tag_hooks(
        self, tag: str, before_unmap: Callable[[], object], after_map: Callable[[], object]
    ) -> Callable[[], None]:
        """Calls `before_unmap` before the tag's memory leaves and `after_map` once it is back.

        Returns the function that ends it.
        """
        hooks = _Hooks(tag, before_unmap, after_map)
        self._hooks.append(hooks)

        def unregister() -> None:
            with contextlib.suppress(ValueError):
                self._hooks.remove(hooks)

        return unregister

    @contextlib.contextmanager
    def _told(self, found: list[tuple[Allocator, Pool]]) -> Iterator[None]:
        """Those who hold addresses know that the memory leaves, and that it has not left when it
        could not."""
        told: list[_Hooks] = []
        try:
            for hook in self._hooks_of(found):
                hook.before_unmap()
                told.append(hook)
            yield
        except BaseException:
            asleep = {p.tag for _, p in self._pools() if p.state != "awake"}
            for hook in told:
                if hook.tag not in asleep:
                    hook.after_map()
            raise

    def _hooks_of(self, found: list[tuple[Allocator, Pool]]) -> list[_Hooks]:
        tags = {p.tag for _, p in found}
        return [hooks for hooks in self._hooks if hooks.tag in tags]

    # ---- What there is -------------------------------------------------------------------------

    def get_current_usage(self) -> int:
        """Bytes of what lives in the pools, asleep or awake."""
        total = 0
        for allocator, found in self._pools():
            stats = allocator.stats(found.id)
            total += stats.allocated_bytes + stats.asleep_bytes
        return total

    @property
    def pointer_to_data(self) -> dict[int, Any]:
        """vLLM's description of each block, by address. A new one for each call."""
        from vllm.device_allocator import AllocationData

        out: dict[int, Any] = {}
        for allocator, found in _by_allocator(self._pools()).items():
            pools = {pool.id: pool for pool in found}
            for block in allocator.blocks():
                home = pools.get(block.pool)
                if home is not None and block.state.name in ("LIVE", "ASLEEP"):
                    handle = (allocator.device, block.size, block.address, 0)
                    found = out[block.address] = AllocationData(handle, home.tag)
                    found.is_asleep = block.state.name == "ASLEEP"  # no field of older versions
        return out


def _as_tuple(tags: Union[tuple[str, ...], str]) -> tuple[str, ...]:
    return (tags,) if isinstance(tags, str) else tuple(tags)


def _tidy() -> None:
    """Tensors in reference cycles, and what PyTorch caches, are no reason to run short."""
    import torch

    gc.collect()
    torch.cuda.empty_cache()


def _by_allocator(found: list[tuple[Allocator, Pool]]) -> dict[Allocator, list[Pool]]:
    out: dict[Allocator, list[Pool]] = {}
    for allocator, pool in found:
        out.setdefault(allocator, []).append(pool)
    return out


def _call(
    found: list[tuple[Allocator, Pool]], act: Callable[[Allocator, list[Pool]], Slept]
) -> Slept:
    """One call for each allocator. vLLM takes a RuntimeError for the lack of memory."""
    try:
        done = [act(*each) for each in _by_allocator(found).items()]
        return Slept(*map(sum, zip((0, 0, 0, 0, 0), *done)))
    except (OutOfMemory, OutOfHostMemory) as error:
        raise RuntimeError(str(error)) from error
