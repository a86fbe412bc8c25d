# SPDX-License-Identifier: Apache-2.0
"""The paged cache of transformers' continuous batching, with memory behind the blocks in use.

    import ductile_gpu.torch; ductile_gpu.torch.enable()
    from ductile_gpu.transformers_paged import elastic_paged_cache

    with elastic_paged_cache():
        manager = model.init_continuous_batching(generation_config, config)
        manager.warmup()

`num_blocks` is then how many blocks there can ever be, and costs addresses. A block that a request
gets has memory, the lowest first; where the last one of a unit ends, the unit's memory serves other
tensors. A request whose blocks find no memory waits, or is put off, as where no block is free.
For transformers 5.17 alone.
"""

from __future__ import annotations

import math
import time
from bisect import insort
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Optional

import torch
import transformers
from transformers.generation.continuous_batching import cache as theirs
from transformers.generation.continuous_batching import continuous_api

try:
    from transformers.generation.continuous_batching.cache_manager import BlockManager
except ImportError:
    raise ImportError(
        "ductile_gpu.transformers_paged is for transformers 5.17, whose continuous batching has "
        f"one queue of free blocks; this is {transformers.__version__}"
    ) from None

from ductile_gpu import OutOfMemory
from ductile_gpu.interface import tag_allocators
from ductile_gpu.torch import elastic

__all__ = ["ElasticPagedCache", "elastic_paged_cache"]

_GRANULE = 2 << 20
_LEAST_UNIT = 16 << 20
_RETRY_SECONDS = 0.002


class _Memory:
    """Pages of all layers in one elastic range, on a stream where nothing else runs."""

    def __init__(
        self, page_shape: tuple[int, ...], pages: int, dtype: torch.dtype, device: Any, unit: int
    ) -> None:
        self.stream = torch.cuda.Stream(device)
        place = self.stream.device_index
        self._allocator = tag_allocators(place)[place]
        with torch.cuda.stream(self.stream):
            rows = elastic(page_shape, pages, dtype, unit=unit, device=place)
        self.tensor, self._range = rows.tensor, rows.range
        self.unit = self._range.unit
        self._users: dict[int, torch.cuda.Stream] = {}

    def room(self) -> int:
        """Bytes of the device that could be allocated now."""
        now = self._allocator.stats()
        of_device = now.allocated_bytes - now.spilled_live_bytes
        return int(self._allocator.limits().limit_bytes - of_device)

    def commit(self, first: int, n: int) -> bool:
        """Units, all or none."""
        try:
            self._range.commit(first * self.unit, n * self.unit)
        except OutOfMemory:
            return False
        for user in self._users.values():
            user.wait_stream(self.stream)
        return True

    def decommit(self, first: int, n: int) -> None:
        self._range.decommit(first * self.unit, n * self.unit, *self._users.values())

    def clear(self, first: int, pages: int) -> None:
        with torch.cuda.stream(self.stream):
            self.tensor[first : first + pages].zero_()
        self.stream.synchronize()

    def is_used_here(self) -> None:
        """On the stream that is current, from now on."""
        current = torch.cuda.current_stream(self.stream.device)
        if current.cuda_stream not in self._users:
            current.wait_stream(self.stream)
            self._users[current.cuda_stream] = current


def _runs(units: Iterable[int]) -> list[tuple[int, int]]:
    """The first and the number of those that follow one another."""
    found: list[tuple[int, int]] = []
    for unit in sorted(units):
        if found and sum(found[-1]) == unit:
            found[-1] = (found[-1][0], found[-1][1] + 1)
        else:
            found.append((unit, 1))
    return found


class _FreeBlocks:
    """Numbers of free blocks, lowest first, in the place of BlockManager's queue; and memory behind
    the units of those that are not free."""

    def __init__(self, blocks: int, always: int, block_bytes: int, memory: Any, spare: Any) -> None:
        self._free = list(range(blocks))
        self._block_bytes, self._memory, self._spare = block_bytes, memory, spare
        self._users = [0] * -(-(blocks + always) * block_bytes // memory.unit)
        self._committed = [False] * len(self._users)
        self.n_blocks, self.refused = blocks, False
        lasting = range(blocks, blocks + always)
        if not self._commit({unit for block in lasting for unit in self._units(block)}):
            raise MemoryError("no memory for the blocks that pad requests")
        for block in lasting:
            self._count(block, 1)

    def _units(self, block: int) -> range:
        first, end = block * self._block_bytes, (block + 1) * self._block_bytes
        return range(first // self._memory.unit, -(-end // self._memory.unit))

    def _count(self, block: int, change: int) -> None:
        for unit in self._units(block):
            self._users[unit] += change

    def _commit(self, units: set[int]) -> bool:
        done: list[tuple[int, int]] = []
        for first, n in _runs(units):
            if not self._memory.commit(first, n):
                for run in done:
                    self._memory.decommit(*run)
                return False
            done.append((first, n))
        for unit in units:
            self._committed[unit] = True
        return True

    def has_memory(self, block: int) -> bool:
        return all(self._committed[unit] for unit in self._units(block))

    def with_memory(self) -> int:
        return sum(map(self.has_memory, self._free))

    def committed_bytes(self) -> int:
        return sum(self._committed) * int(self._memory.unit)

    def ready(self, n: int) -> bool:
        """Memory behind the n that come next, or, where there is none, behind no more than before:
        so much stays free that a step can be made with them."""
        wanted = {u for block in self._free[:n] for u in self._units(block)}
        units = {u for u in wanted if not self._committed[u]}
        spare = self._spare(self.n_blocks - len(self._free) + n)
        enough = not units or self._memory.room() >= len(units) * self._memory.unit + spare
        self.refused = not (enough and self._commit(units))
        return not self.refused

    def popleft(self) -> int:
        block = self._free[0]
        if not self.has_memory(block) and not self._commit(
            {unit for unit in self._units(block) if not self._committed[unit]}
        ):
            raise MemoryError(f"no memory for block {block}")
        self._count(block, 1)
        return self._free.pop(0)

    def append(self, block: int) -> None:
        self.extend([block])

    def extend(self, blocks: Iterable[int]) -> None:
        idle: set[int] = set()
        for block in blocks:
            insort(self._free, block)
            self._count(block, -1)
            idle.update(u for u in self._units(block) if self._users[u] == 0)
        for run in _runs(u for u in idle if self._users[u] == 0):
            self._memory.decommit(*run)
        for unit in idle:
            self._committed[unit] = False
        self.refused = False

    def __len__(self) -> int:
        return len(self._free)


class _ElasticBlocks(BlockManager):  # type: ignore[misc]
    def __init__(self, free: _FreeBlocks, block_size: int) -> None:
        super().__init__(free.n_blocks, block_size, tp_on=False)
        self._uninit_block_ids = self.free = free

    @property
    def num_free_blocks(self) -> int:
        """After a refusal those alone that need no memory more: what ends requests for others'
        sake, and what begins no new ones, goes by this number."""
        if not self.free.refused:
            return len(self.free) + len(self._init_block_ids)
        return self.free.with_memory() + len(self._init_block_ids)

    def has_enough_free_blocks(self, n_blocks: int) -> bool:
        """With memory. What was kept of requests that have ended goes before one is refused."""
        while super().has_enough_free_blocks(n_blocks):
            if self.free.ready(n_blocks):
                return True
            if not self._init_block_ids:
                return False
            super().has_enough_free_blocks(len(self.free) + 1)  # one of them goes
        return False


class ElasticPagedCache(theirs.PagedAttentionCache):  # type: ignore[misc]
    """PagedAttentionCache with memory behind the blocks that are in use, and no others.

    Where Ductile is PyTorch's allocator. Keys and values of a page lie side by side for all layers,
    so that a unit is whole blocks' and costs one call. Prefix sharing, forks and offloading go;
    tensor parallelism is refused. CUDA graphs go, too, but what theirs hold is not elastic, and
    their warm-up takes all blocks for a moment: without them (`use_cuda_graph=False`) a step's
    memory serves the cache between steps.
    """

    patience = 60.0
    """Seconds that the only request waits for memory, before transformers ends its loop: there is
    no other that could be put off for it."""
    unit: Optional[int] = None
    """Bytes that are committed at once; None: one block, or several up to 16 MiB."""
    admits = True
    """False: no request begins, so that others than the cache find memory. Those that have begun
    go on."""

    key_cache: list[torch.Tensor]
    value_cache: list[torch.Tensor]
    _make_memory: Any = _Memory

    def __init__(
        self, config: Any, continuous_batching_config: Any, device: Any, *args: Any, **named: Any
    ) -> None:
        super().__init__(config, continuous_batching_config, "meta", *args, **named)
        self.device = torch.device(device)
        helper = named.get("distributed_helper") or args[0]
        if helper.tp_size > 1:
            raise ValueError("ElasticPagedCache has no tensor parallelism: use PagedAttentionCache")
        self._spare_of_tokens, self._spare_of_block = self._step_bytes(continuous_batching_config)
        self._put_into_memory()

    def _step_bytes(self, settings: Any) -> tuple[int, int]:
        """What transformers expects of a step's activations: of its tokens, and for each block that
        it reads; twice, for the copies that attention makes of what it reads."""
        groups, kinds = theirs.group_layers_by_attn_type(self.config)
        handler = theirs.PagedAttentionMemoryHandler(
            self.config, settings, self.dtype, kinds, len(groups[0])
        )
        peaks = handler.activation_peak.values()
        of_tokens = max(m * self.max_batch_tokens for m, *_ in peaks)
        return 2 * of_tokens, 2 * max(n * self.block_size for _, n, *_ in peaks)

    def spare(self, blocks: int) -> int:
        """Bytes that a commit leaves free, so that a step with so many blocks can be made."""
        return self._spare_of_tokens + blocks * self._spare_of_block

    def _put_into_memory(self) -> None:
        layers, pages = len(self.key_cache), self.cache_shape[0]
        page_shape = (layers, 2, self.num_key_value_heads, self.head_dim)
        block_bytes = math.prod(page_shape) * self.dtype.itemsize * self.block_size
        unit = self.unit or max(1, _LEAST_UNIT // block_bytes) * block_bytes
        unit = -(-unit // _GRANULE) * _GRANULE
        self.memory = self._make_memory(page_shape, pages, self.dtype, self.device, unit)
        of_all = self.memory.tensor
        self.key_cache = [of_all[:, layer, 0] for layer in range(layers)]
        self.value_cache = [of_all[:, layer, 1] for layer in range(layers)]
        for one in (*self.key_cache, *self.value_cache):
            torch._dynamo.mark_static_address(one)
        free = _FreeBlocks(self.num_blocks, 2, block_bytes, self.memory, self.spare)
        self._block_manager = _ElasticBlocks(free, self.block_size)
        self.memory.clear(self.read_trash_index, self.block_size)

    def update(self, *args: Any, **named: Any) -> tuple[torch.Tensor, torch.Tensor]:
        if not torch.compiler.is_compiling():
            self.memory.is_used_here()
        both: tuple[torch.Tensor, torch.Tensor] = super().update(*args, **named)
        return both

    def committed_bytes(self) -> int:
        return self._block_manager.free.committed_bytes()

    def _others_hold(self, request_id: str) -> bool:
        tables = (manager.block_table for manager in self.group_cache_managers)
        return any(held for table in tables for one, held in table.items() if one != request_id)

    def _get_ready(self, needed: int, request_id: str, begins: bool) -> bool:
        """Blocks with memory. The only request waits for it."""
        end = time.monotonic() + self.patience
        while True:
            admitted = self.admits or not begins
            if admitted and self._block_manager.has_enough_free_blocks(needed):
                return True
            ids = len(self._block_manager.free) + len(self._block_manager._init_block_ids)
            waits = ids >= needed and not request_id.startswith("__warmup_")
            if not waits or self._others_hold(request_id) or time.monotonic() > end:
                return False
            time.sleep(_RETRY_SECONDS)

    def allocate_blocks(self, n_blocks: int, request_id: str, allocated_blocks: int) -> Any:
        needed = self.blocks_needed(n_blocks, allocated_blocks)
        if not self._get_ready(needed, request_id, begins=allocated_blocks == 0):
            return None
        return super().allocate_blocks(n_blocks, request_id, allocated_blocks)


@contextmanager
def elastic_paged_cache(of: type[ElasticPagedCache] = ElasticPagedCache) -> Iterator[None]:
    """Inside, what continuous batching makes has such a cache: it makes it at `warmup`, or else at
    `start`, in its own thread."""
    before = continuous_api.PagedAttentionCache
    continuous_api.PagedAttentionCache = of
    try:
        yield
    finally:
        continuous_api.PagedAttentionCache = before
