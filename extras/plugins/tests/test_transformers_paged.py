# SPDX-License-Identifier: Apache-2.0
"""The paged cache for transformers' continuous batching, on the CPU beside transformers' own: its
answers are the same, whatever memory there is."""

from __future__ import annotations

import math
import types

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
continuous = pytest.importorskip("transformers.generation.continuous_batching.continuous_api")
pytest.importorskip("transformers.generation.continuous_batching.cache_manager")  # 5.17 has it

from transformers.generation.configuration_utils import ContinuousBatchingConfig

import ductile_gpu
from ductile_gpu import transformers_paged as ours

BLOCK = 16
MIB = 1 << 20


class MemoryOfTheHost:
    """Units without a GPU: what has no memory behind it reads as NaN, and there are `most`."""

    most = 10**9

    def __init__(self, page_shape, pages, dtype, device, unit):
        row_bytes = math.prod(page_shape) * dtype.itemsize
        assert unit % (2 * MIB) == 0
        self.unit = BLOCK * row_bytes  # one block: the real ones are too large for a small model
        self.tensor = torch.full((pages, *page_shape), float("nan"), dtype=dtype)
        self.committed, self.peak, self.refusals = set(), 0, 0

    def room(self):
        return 1 << 60

    def commit(self, first, n):
        if len(self.committed) + n > self.most:
            self.refusals += 1
            return False
        units = set(range(first, first + n))
        assert not units & self.committed
        self.committed |= units
        self.peak = max(self.peak, len(self.committed))
        return True

    def decommit(self, first, n):
        for unit in range(first, first + n):
            self.committed.remove(unit)
            self.tensor[unit * BLOCK : (unit + 1) * BLOCK] = float("nan")

    def clear(self, first, pages):
        assert {first // BLOCK, (first + pages - 1) // BLOCK} <= self.committed
        self.tensor[first : first + pages].zero_()

    def is_used_here(self):
        pass


class Cache(ours.ElasticPagedCache):
    _make_memory = MemoryOfTheHost
    patience = 2.0


def settings(**given):
    return ContinuousBatchingConfig(
        **{
            "block_size": BLOCK,
            "num_blocks": 32,
            "max_batch_tokens": 32,
            "max_requests_per_batch": 16,
            "use_cuda_graph": False,
            "use_async_batching": False,
            "allow_block_sharing": False,
            "max_memory_percent": 0.9,
            "seed": 1,
            **given,
        }
    )


def small_model(**given):
    torch.manual_seed(3)
    config = transformers.LlamaConfig(
        vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512,
        attn_implementation="paged|sdpa", **given,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


def prompts():
    rand = torch.Generator().manual_seed(5)
    return [
        torch.randint(0, 97, (n,), generator=rand).tolist() for n in (3, 40, 17, 90, 5, 33, 16, 64)
    ]


def answers(cache, **given):
    """Of transformers' own where none is given; and the cache."""
    said = transformers.GenerationConfig(do_sample=False, eos_token_id=-1, max_new_tokens=24)
    model = small_model()
    manager = model.init_continuous_batching(said, settings(**given))
    before = continuous.PagedAttentionCache
    with ours.elastic_paged_cache(cache or before):
        manager.warmup()
    assert continuous.PagedAttentionCache is before
    for n, prompt in enumerate(prompts()):
        manager.add_request(prompt, request_id=f"{n}")
    manager.start()
    found = {}
    while len(found) < len(prompts()) and manager.is_running():
        one = manager.get_result(timeout=1)
        if one is not None and one.is_finished():
            found[one.request_id] = one.error or one.generated_tokens
    manager.stop(block=True, keep_for_next_session=True)
    return found, manager.batch_processor.cache


@pytest.mark.parametrize("given", [{}, {"allow_block_sharing": True}, {"num_blocks": 12}])
def test_answers_are_those_of_transformers_own_cache(given):
    theirs, _ = answers(None, **given)
    found, cache = answers(Cache, **given)
    assert found == theirs
    assert len(theirs) == len(prompts())
    kept = len(cache._block_manager._init_block_ids)  # for prompts that begin as others did
    assert sum(cache._block_manager.free._users[:-2]) == kept
    assert (kept > 0) == ("allow_block_sharing" in given)


def test_what_is_kept_of_requests_that_have_ended_goes_before_one_is_refused(monkeypatch):
    theirs, _ = answers(None, allow_block_sharing=True)
    monkeypatch.setattr(MemoryOfTheHost, "most", 2 + 9)
    found, cache = answers(Cache, allow_block_sharing=True)
    assert (found, cache.memory.peak) == (theirs, 11)


def test_what_no_request_holds_has_no_memory():
    _, cache = answers(Cache, num_blocks=64)
    assert 10 < cache.memory.peak < 40
    assert cache.memory.committed == {64, 65}  # those that pad
    assert cache.committed_bytes() == 2 * cache.memory.unit


def test_requests_wait_for_memory_and_are_answered_the_same(monkeypatch):
    theirs, _ = answers(None)
    monkeypatch.setattr(MemoryOfTheHost, "most", 2 + 9)
    found, cache = answers(Cache)
    assert found == theirs
    assert (cache.memory.peak, cache.memory.refusals > 0) == (11, True)


def test_where_a_request_alone_finds_no_memory_it_is_told_in_the_end(monkeypatch):
    monkeypatch.setattr(MemoryOfTheHost, "most", 2 + 3)
    monkeypatch.setattr(Cache, "patience", 0.05)
    found, _ = answers(Cache)
    assert any("No requests can be scheduled" in str(one) for one in found.values())


def made(monkeypatch, most=10**9, **given):
    monkeypatch.setattr(MemoryOfTheHost, "most", most)
    model = small_model()
    said = transformers.GenerationConfig(do_sample=False, eos_token_id=-1)
    manager = model.init_continuous_batching(said, settings(**given))
    with ours.elastic_paged_cache(Cache):
        manager.warmup()
    return manager.batch_processor.cache


def test_a_block_in_the_middle_that_is_free_has_no_memory_and_is_the_next(monkeypatch):
    cache = made(monkeypatch)
    for name in ("a", "b", "c"):
        assert cache.allocate_blocks(2, name, 0) == 2
    cache.free_blocks("b")
    assert cache.memory.committed == {0, 1, 4, 5, 32, 33}
    assert cache.allocate_blocks(1, "d", 0) == 1
    assert cache.group_cache_managers[0].block_table["d"] == [2]


def test_a_refusal_changes_nothing_and_counts_as_no_free_block_until_one_ends(monkeypatch):
    cache = made(monkeypatch, most=2 + 4)
    assert cache.allocate_blocks(3, "a", 0) == 3
    assert cache.get_num_free_blocks() == 29
    assert cache.allocate_blocks(2, "b", 0) is None
    assert (cache.memory.committed, cache.get_num_free_blocks()) == ({0, 1, 2, 32, 33}, 0)
    cache.free_blocks("a")
    assert cache.get_num_free_blocks() == 32


def test_a_step_keeps_its_room(monkeypatch):
    cache = made(monkeypatch)
    room = cache.memory.unit + cache.spare(1)
    monkeypatch.setattr(cache.memory, "room", lambda: room - 1)
    monkeypatch.setattr(cache, "patience", 0)
    assert cache.allocate_blocks(1, "a", 0) is None
    monkeypatch.setattr(cache.memory, "room", lambda: room)
    assert cache.allocate_blocks(1, "a", 0) == 1


def test_where_none_is_admitted_those_that_have_begun_go_on(monkeypatch):
    cache = made(monkeypatch)
    assert cache.allocate_blocks(1, "a", 0) == 1
    cache.admits = False
    assert cache.allocate_blocks(1, "b", 0) is None
    assert cache.allocate_blocks(1, "a", 1) == 1


def test_blocks_that_lie_in_two_units_have_memory_behind_both():
    memory = MemoryOfTheHost((1,), 160, torch.float32, None, 2 * MIB)  # units of 64 bytes
    free = ours._FreeBlocks(6, 1, 96, memory, lambda blocks: 0)
    assert memory.committed == {9, 10}
    assert free.ready(1)
    assert (free.popleft(), memory.committed) == (0, {0, 1, 9, 10})
    assert (free.ready(1), free.popleft(), memory.committed) == (True, 1, {0, 1, 2, 9, 10})
    free.append(0)
    assert memory.committed == {1, 2, 9, 10}


def test_runs_are_units_that_follow_one_another():
    assert ours._runs({7, 1, 2, 3, 9, 8}) == [(1, 3), (7, 3)]


class UserStream:
    """One of torch's, as `_Memory` uses it."""

    def __init__(self, stream):
        self.cuda_stream, self.waited_for = stream, 0

    def wait_stream(self, other):
        self.waited_for += 1


@pytest.fixture
def virtual_memory():
    """`_Memory` of a virtual GPU of 64 MiB, in units of 4 MiB, with a stream that uses it."""
    gpu = ductile_gpu.VirtualGPU("64M")
    memory = object.__new__(ours._Memory)
    memory._allocator, memory.stream, memory.unit = gpu.allocator(), gpu.stream(), 4 * MIB
    memory._range = memory._allocator.elastic("1G", memory.unit, memory.stream)
    user = UserStream(gpu.stream())
    memory._users = {user.cuda_stream: user}
    return gpu, memory, user


def test_on_a_gpu_blocks_and_other_memory_share_one_limit(virtual_memory):
    gpu, memory, user = virtual_memory
    free = ours._FreeBlocks(100, 1, 4 * MIB, memory, lambda blocks: 0)
    assert memory.room() == 60 * MIB
    held = [free.popleft() for _ in range(15) if free.ready(1)]
    assert (len(held), memory.room(), free.ready(1), free.refused) == (15, 0, False, True)
    with pytest.raises(ductile_gpu.OutOfMemory):
        memory._allocator.alloc("8M", user.cuda_stream)
    first = memory._range.address
    gpu.launch(user.cuda_stream, writes=[(first, 8 * MIB)])
    free.extend(held[:2])  # the kernel may still run
    other = memory._allocator.alloc("8M", user.cuda_stream)
    assert (memory.room(), free.ready(1)) == (0, False)
    memory._allocator.free(other)
    assert free.ready(2)
    assert (free.popleft(), user.waited_for > 0) == (0, True)


def test_on_a_gpu_a_commit_leaves_a_step_its_room(virtual_memory):
    _, memory, _ = virtual_memory
    free = ours._FreeBlocks(100, 1, 4 * MIB, memory, lambda blocks: blocks * MIB)
    held = 0
    while free.ready(1):
        free.popleft()
        held += 1
    assert (held, memory.room()) == (12, 12 * MIB)
    assert memory._allocator.alloc(f"{held}M", memory.stream)


def test_what_has_spilled_takes_none_of_the_room():
    gpu = ductile_gpu.VirtualGPU("256M")
    allocator = gpu.allocator(spill_bytes="1G")
    stream = gpu.stream()
    allocator.alloc("200M", stream)
    spilled = allocator.alloc("400M", stream)
    held = allocator.stats().reserved_bytes
    assert ours._Memory.room(types.SimpleNamespace(_allocator=allocator)) == 256 * MIB - held
    allocator.free(spilled)
