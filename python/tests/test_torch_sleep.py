# SPDX-License-Identifier: Apache-2.0
"""Tagged memory with PyTorch itself on Ductile, on a virtual GPU: regions, sleep, and what is said
to a program that asks what sleeps for memory."""

from __future__ import annotations

from typing import Callable

import pytest

torch = pytest.importorskip("torch")
if torch.version.cuda is None:
    pytest.skip("this PyTorch is built without CUDA", allow_module_level=True)

# PyTorch's Python functions for pools would initialise CUDA first.
PRELUDE = """
import contextlib, itertools
from ductile_gpu.torch import _tags
tags = ductile_gpu.torch
numbers = itertools.count(100)

class MemPool:
    def __init__(self):
        self.id = (0, next(numbers))
        pool_call("probe_pool_create", self.id)
    def __del__(self):
        pool_call("probe_pool_release", self.id)

@contextlib.contextmanager
def use_mem_pool(pool, device=None):
    pool_call("probe_pool_begin", pool.id)
    try:
        yield
    finally:
        pool_call("probe_pool_end", pool.id)
        pool_call("probe_pool_release", pool.id)

torch.cuda.MemPool, torch.cuda.use_mem_pool = MemPool, use_mem_pool
torch.cuda.current_device = lambda: 0
torch.cuda.device = lambda device: contextlib.nullcontext()
torch.cuda.init = lambda: None
torch.cuda.is_initialized = lambda: True
torch.cuda.device_count = lambda: 1

def bytes_of(name):
    return stats()[name]["all"]["current"]

def refused(size):
    try:
        alloc(size)
    except RuntimeError as error:
        return str(error)
    raise AssertionError("served")
"""


@pytest.fixture
def sleep(play: Callable[[str], str]) -> Callable[[str], str]:
    import textwrap

    return lambda program: play(PRELUDE + textwrap.dedent(program))


def test_a_tag_sleeps_and_pytorchs_numbers_say_so(sleep: Callable[[str], str]) -> None:
    sleep(
        """
        constant = alloc(4 * MIB)
        with tags.pool("weights"):
            weights = alloc(32 * MIB)
        with tags.pool("cache", contents="drop"):
            cache = alloc(64 * MIB)
        assert bytes_of("allocated_bytes") == 100 * MIB
        slept = tags.pause()
        assert (slept.pools, slept.bytes) == (2, 96 * MIB), slept
        assert slept.copied_bytes == 32 * MIB
        assert bytes_of("allocated_bytes") == bytes_of("reserved_bytes") == 4 * MIB
        assert tags.sleeping() == ["cache", "weights"]
        assert tags.tags()["weights"].kept_bytes == 32 * MIB
        tags.resume()
        assert bytes_of("allocated_bytes") == bytes_of("reserved_bytes") == 100 * MIB
        for block in (constant, weights, cache):
            free(block)
        """
    )


def test_a_request_to_what_sleeps_names_the_tag_and_the_way_out(
    sleep: Callable[[str], str],
) -> None:
    sleep(
        """
        with tags.pool("weights"):
            weights = alloc(MIB)
        tags.pause("weights")
        with tags.pool("weights"):
            said = refused(MIB)
        assert "1024.00 KiB" in said or "1.00 MiB" in said, said
        assert "'weights', which sleeps: resume it first" in said, said
        free(weights)                      # freed while it sleeps
        tags.resume("weights")
        assert tags.tags()["weights"].live_bytes == 0
        """
    )


def test_the_whole_process_sleeps_but_for_what_is_named(sleep: Callable[[str], str]) -> None:
    sleep(
        """
        constant = alloc(4 * MIB)
        with tags.pool("cache"):
            cache = alloc(8 * MIB)
        tags.pause_all(awake="cache", serve_others=False)
        assert bytes_of("reserved_bytes") == 8 * MIB
        assert "memory without a tag, which sleeps" in refused(MIB)
        with tags.outside():
            aside = alloc(2 * MIB)
        free(aside)
        torch._C._cuda_emptyCache()
        assert bytes_of("reserved_bytes") == 8 * MIB
        with tags.outside():
            left = alloc(2 * MIB)
        tags.resume_all()
        assert bytes_of("allocated_bytes") == 14 * MIB
        for block in (constant, cache, left):
            free(block)
        """
    )


def test_memory_of_outside_goes_back_at_its_end(sleep: Callable[[str], str]) -> None:
    sleep(
        """
        constant = alloc(4 * MIB)
        tags.pause_all(serve_others=False)
        with tags.outside():
            free(alloc(64 * MIB))
            held = bytes_of("reserved_bytes")
        assert held >= 64 * MIB
        assert bytes_of("reserved_bytes") == 0
        tags.resume_all()
        free(constant)
        """
    )


def test_other_threads_are_served_apart_while_everything_sleeps(
    sleep: Callable[[str], str],
) -> None:
    sleep(
        """
        import threading
        constant = alloc(4 * MIB)
        for _ in range(3):
            tags.pause_all()
            found = []
            thread = threading.Thread(target=lambda: found.append(alloc(MIB)))
            thread.start()
            thread.join()
            tags.resume_all()
            free(found[0])
        torch._C._cuda_emptyCache()
        assert bytes_of("reserved_bytes") == 4 * MIB
        free(constant)
        """
    )


def test_a_graphs_own_pool_can_have_a_tag(sleep: Callable[[str], str]) -> None:
    sleep(
        """
        handle = tags.graph_pool("graphs")
        pool_call("probe_pool_begin", handle)      # as a capture does
        inside = alloc(16 * MIB)
        pool_call("probe_pool_end", handle)
        assert tags.tags()["graphs"].live_bytes == 16 * MIB
        tags.pause("graphs")
        tags.resume("graphs")
        free(inside)
        assert tags.tags()["graphs"].held_bytes == 16 * MIB   # the graph may write it
        pool_call("probe_pool_release", handle)
        del handle
        torch._C._cuda_emptyCache()
        assert bytes_of("reserved_bytes") == 0
        """
    )


def test_cycles_leave_nothing_behind(sleep: Callable[[str], str]) -> None:
    """What sleeps grows and shrinks between turns, as batches vary."""
    sleep(
        """
        import random
        random.seed(3)
        held = []
        with tags.pool("weights"):
            weights = alloc(32 * MIB)
        for turn in range(200):
            with tags.pool("cache", contents="drop"):
                blocks = [alloc(random.randrange(1, 8 * MIB)) for _ in range(random.randrange(9))]
            tags.pause()
            held.append(bytes_of("reserved_bytes"))
            for block in blocks[::2]:
                free(block)
            tags.resume()
            for block in blocks[1::2]:
                free(block)
        assert set(held) == {0}, held
        library().check()
        free(weights)
        """
    )


def test_a_pool_that_is_gone_leaves_nothing(sleep: Callable[[str], str]) -> None:
    sleep(
        """
        from ductile_gpu.torch import _tag_pools
        for turn in range(50):
            found = _tag_pools.tag_pool("short", "drop")
            with found.opened():
                block = alloc(4 * MIB)
            tags.pause("short")
            del found
            free(block)
            tags.resume("short", strict=False)
        torch._C._cuda_emptyCache()
        assert bytes_of("reserved_bytes") == 0
        assert len(library().pools()) < 4, library().pools()
        """
    )
