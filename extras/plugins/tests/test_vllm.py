# SPDX-License-Identifier: Apache-2.0
"""vLLM's sleep mode on Ductile, with fakes for vLLM and PyTorch and a virtual GPU.
`sleep_packages` has the same with the real package's Python code."""

from __future__ import annotations

import sys

import fake_torch
import fake_vllm
import pytest

import ductile_gpu
import ductile_gpu.torch as memory
import ductile_gpu.vllm as plugin
from ductile_gpu.interface import tag_allocators
from ductile_gpu.vllm._allocator import SleepAllocator

MIB = 1 << 20
torch = fake_torch.torch


@pytest.fixture
def vllm(monkeypatch, torch):
    found = fake_vllm.put_into(monkeypatch.setitem)
    plugin.register()
    yield found
    if isinstance(found.allocator.instance, SleepAllocator):
        found.allocator.instance.release_pools()


class Engine:
    """A worker with a model and a cache, made as vLLM's makes them."""

    def __init__(self, vllm, torch, config=None):
        self.worker = vllm.worker(config or vllm.config())
        with self.worker._maybe_get_memory_pool_context("weights"):
            self.weights = torch.tensor(64 * MIB)
            scratch = torch.tensor(32 * MIB)
            del scratch
        with (
            self.worker._maybe_get_memory_pool_context("runtime"),
            self.worker._maybe_get_memory_pool_context("kv_cache"),
        ):
            self.cache = torch.tensor(128 * MIB)
        with self.worker._maybe_get_memory_pool_context("runtime"):
            self.state = torch.tensor(2 * MIB)
        with self.worker.capture_pool() as pool:
            self.graph = fake_torch.Graph()
            if pool is not None:
                with torch.cuda.graph(self.graph, pool=pool):
                    self.graph.output = torch.tensor(16 * MIB)
        torch.empty_cache()

    def held(self):
        return {tag: s.held_bytes // MIB for tag, s in memory.tags().items() if tag}

    def kept(self):
        return {tag: s.kept_bytes // MIB for tag, s in memory.tags().items() if s.kept_bytes}


ALL = {"weights": 64, "kv_cache": 128, "runtime": 2, "cudagraph": 16}


def test_a_backend_by_name_brings_allocation_too(vllm, torch):
    engine = Engine(vllm, torch)
    assert isinstance(vllm.allocator.instance, SleepAllocator)
    assert vllm.module.get_mem_allocator_instance() is vllm.allocator.instance
    assert engine.held() == ALL
    assert torch.native_bytes == 0
    assert vllm.allocator.instance.get_current_usage() == sum(ALL.values()) * MIB


@pytest.mark.parametrize(
    ("level", "kept"),
    [(1, {"weights": 64, "runtime": 2, "cudagraph": 16}), (2, {"runtime": 2, "cudagraph": 16})],
)
def test_levels_keep_what_vllm_keeps(vllm, torch, level, kept):
    engine = Engine(vllm, torch)
    engine.worker.sleep(level)
    assert sum(engine.held().values()) == 0
    assert engine.kept() == kept
    assert engine.worker._backend.state() == "SUSPENDED"
    engine.worker.wake_up()
    assert engine.held() == ALL
    assert engine.worker._backend.state() == "RUNNING"


def test_weights_wake_before_the_cache_and_what_is_neither_wakes_with_them(vllm, torch):
    engine = Engine(vllm, torch)
    engine.worker.sleep(1)
    engine.worker.wake_up(["weights"])
    assert engine.held() == {**ALL, "kv_cache": 0}
    engine.worker.wake_up(["kv_cache"])
    assert engine.held() == ALL


def test_discard_is_for_some_tags_only_and_may_be_repeated(vllm, torch):
    engine = Engine(vllm, torch)
    engine.worker.sleep(1)
    engine.worker.wake_up()
    backend = engine.worker._backend
    backend.discard(("kv_cache",))
    backend.discard(("kv_cache",))
    assert engine.held() == {**ALL, "kv_cache": 0}
    engine.worker.sleep(1)
    engine.worker.wake_up()
    assert engine.held() == ALL


def test_another_policy_for_what_sleeps_is_told_of_and_the_first_holds(vllm, torch, caplog):
    engine = Engine(vllm, torch)
    engine.worker.sleep(1)
    engine.worker.sleep(1)
    assert "as it did" not in caplog.text
    engine.worker.sleep(2)
    assert "as it did" in caplog.text
    assert engine.kept()["weights"] == 64
    engine.worker.wake_up()


def test_a_wake_without_room_changes_nothing_and_is_a_runtime_error(vllm, torch):
    engine = Engine(vllm, torch)
    engine.worker.sleep(1)
    (allocator,) = tag_allocators().values()
    allocator.set_limit("100M")
    with pytest.raises(RuntimeError, match="more"):
        engine.worker.wake_up()
    assert engine.worker._backend.state() == "SUSPENDED"
    assert sum(engine.held().values()) == 0
    allocator.set_limit("1G")
    engine.worker.wake_up()
    assert engine.held() == ALL


def test_memory_of_a_discarded_model_goes_back(vllm, torch):
    """Quantising while loading leaves large holes (vllm #49151)."""
    engine = Engine(vllm, torch)
    engine.weights = None
    torch.empty_cache()
    assert engine.held()["weights"] == 0


def test_what_vllm_reads_of_its_allocator_is_there(vllm, torch):
    engine = Engine(vllm, torch)
    own = vllm.allocator.instance
    found = own.pointer_to_data
    assert found[engine.weights.data_ptr()].tag == "weights"
    assert found[engine.cache.data_ptr()].handle[:3] == (0, 128 * MIB, engine.cache.data_ptr())
    engine.worker.sleep(1)
    assert own.pointer_to_data[engine.weights.data_ptr()].is_asleep
    engine.worker.wake_up()
    assert not own.pointer_to_data[engine.weights.data_ptr()].is_asleep
    assert own.current_tag == own.default_tag == "default"
    with own.use_memory_pool("weights"):
        assert own.current_tag == "weights"
    with own.reuse_memory_pool("weights"):
        pass
    with pytest.raises(ValueError, match="'nothing'"), own.reuse_memory_pool("nothing"):
        pass
    with own.use_cudagraph_pool() as pool:
        assert pool == engine.graph.pool_id
    own.release_cudagraph_pool()
    own.release_pools()
    own.close()


def test_those_who_hold_addresses_are_told_before_and_after(vllm, torch):
    engine = Engine(vllm, torch)
    told = []
    end = vllm.allocator.instance.register_tag_hooks(
        "kv_cache", lambda: told.append("leaves"), lambda: told.append("back")
    )
    engine.worker.sleep(1)
    engine.worker.wake_up(["weights"])
    assert told == ["leaves"]
    engine.worker.wake_up()
    assert told == ["leaves", "back"]
    end()
    end()
    engine.worker.sleep(1)
    engine.worker.wake_up()
    assert told == ["leaves", "back"]


def test_those_who_were_told_of_a_sleep_that_failed_are_told_that_it_is_back(
    vllm, torch, monkeypatch
):
    engine = Engine(vllm, torch)
    told = []
    hook = vllm.allocator.instance.register_tag_hooks
    hook("kv_cache", lambda: told.append("leaves"), lambda: told.append("back"))

    def fail(*_, **__):
        raise ductile_gpu.OutOfHostMemory(ductile_gpu.Status.ERR_OUT_OF_HOST_MEMORY, "no room")

    with monkeypatch.context() as failing:
        failing.setattr(ductile_gpu.Allocator, "sleep", fail)
        with pytest.raises(RuntimeError, match="no room"):
            engine.worker.sleep(1)
    assert told == ["leaves", "back"]
    end = hook("weights", lambda: 1 // 0, lambda: told.append("never left"))
    with pytest.raises(ZeroDivisionError):
        engine.worker.sleep(1)
    assert told == ["leaves", "back"] * 2
    end()
    assert engine.held() == ALL


def test_default_tag_is_kept_where_nothing_is_named(vllm, torch):
    engine = Engine(vllm, torch)
    own = vllm.allocator.instance
    with own.use_memory_pool():
        mine = torch.tensor(MIB)
    own.sleep()
    assert engine.kept() == {"default": 1}
    own.wake_up()
    del mine


# ---- When it is not asked for ------------------------------------------------------------------


def test_another_backend_leaves_vllm_as_it_is(vllm, torch):
    config = vllm.config(backend="cumem")
    vllm.worker(config)
    assert vllm.allocator.instance is None
    assert config.use_cumem_cudagraph_pool
    assert type(vllm.module.get_mem_allocator_instance()) is vllm.allocator


def test_the_environment_asks_for_the_allocator_alone(monkeypatch, torch):
    """For versions that know no backends."""
    monkeypatch.setenv("DUCTILE_VLLM", "1")
    found = fake_vllm.put_into(monkeypatch.setitem, with_backends=False)
    monkeypatch.setitem(sys.modules, "vllm.device_allocator.sleep_mode_backend", None)
    plugin.register()
    found.worker(found.config(backend="cumem"))
    own = found.module.get_mem_allocator_instance()
    with own.use_memory_pool("weights"):
        weights = torch.tensor(MIB)
    own.sleep(("weights",))
    assert own.pointer_to_data[weights.data_ptr()].is_asleep
    own.wake_up(["weights"])
    own.release_pools()
    del weights


def test_what_vllms_own_allocator_serves_already_is_not_taken_over(vllm, torch):
    own = vllm.module.get_mem_allocator_instance()
    own.used = 1
    with pytest.raises(RuntimeError, match="in use in this process already"):
        vllm.worker(vllm.config())


def test_registering_twice_changes_nothing(vllm, torch):
    before = vllm.worker.__mro__[1].__init__
    plugin.register()
    assert vllm.worker.__mro__[1].__init__ is before
    assert list(vllm.factory._registry) == ["ductile"]


def test_a_vllm_that_it_does_not_fit_goes_on_without(monkeypatch, torch, caplog):
    found = fake_vllm.put_into(monkeypatch.setitem)
    del sys.modules["vllm.v1.worker.worker_base"].WorkerBase
    plugin.register()
    assert "no backend 'ductile'" in caplog.text
    assert found.allocator.instance is None
