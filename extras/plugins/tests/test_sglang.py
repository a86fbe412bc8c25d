# SPDX-License-Identifier: Apache-2.0
"""SGLang's memory saver on Ductile, with a fake of SGLang's adapter and of PyTorch.
`sleep_packages` has the same with the real package's Python code."""

from __future__ import annotations

import sys
import types

import fake_torch
import pytest

import ductile_gpu.sglang as plugin
import ductile_gpu.torch as memory
from ductile_gpu import memory_saver

MIB = 1 << 20
ADAPTER = "sglang.srt.utils.torch_memory_saver_adapter"


@pytest.fixture
def torch(monkeypatch):
    monkeypatch.setenv("DUCTILE_CONF", "driver:virtual,sizes:2M")
    fake_torch.throw_nothing(monkeypatch.setattr)
    saver = memory_saver.TorchMemorySaver()
    monkeypatch.setattr(memory_saver, "torch_memory_saver", saver)
    for name in [name for name in sys.modules if name.partition(".")[0] == "torch_memory_saver"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch_memory_saver", None)
    yield fake_torch.put_into(monkeypatch.setitem)
    if saver._impl is not None:
        saver._impl._mem_pools.clear()
    assert not memory.sleeping()
    for name in [name for name in sys.modules if name.partition(".")[0] == "torch_memory_saver"]:
        del sys.modules[name]


def adapter(monkeypatch, found=None):
    """SGLang's adapter as it is after its import, with torch_memory_saver or without."""
    made = types.ModuleType(ADAPTER)
    if found is None:
        made.import_error = ImportError("no torch_memory_saver")
    else:
        made.torch_memory_saver, made._memory_saver = found, found.torch_memory_saver
        made.import_error = None
    monkeypatch.setitem(sys.modules, ADAPTER, made)
    return made


@pytest.mark.parametrize(
    "environment",
    [{"SGLANG_PLUGINS": "other, ductile"}, {"DUCTILE_SGLANG": "1"}],
    ids=["by its name", "by our variable"],
)
def test_it_takes_the_place_where_it_is_asked_for(monkeypatch, torch, environment):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    found = adapter(monkeypatch)
    del sys.modules["torch_memory_saver"]
    plugin.register()
    plugin.register()
    assert found._memory_saver is memory_saver.torch_memory_saver
    assert found.torch_memory_saver is memory_saver
    assert found.import_error is None
    import torch_memory_saver as under_its_name

    assert under_its_name is memory_saver


def test_it_replaces_the_real_one_that_the_adapter_has_imported(monkeypatch, torch):
    monkeypatch.setenv("DUCTILE_SGLANG", "1")
    real = types.SimpleNamespace(torch_memory_saver=object())
    monkeypatch.setitem(sys.modules, "torch_memory_saver", real)
    found = adapter(monkeypatch, real)
    plugin.register()
    assert found._memory_saver is memory_saver.torch_memory_saver
    assert sys.modules["torch_memory_saver"] is memory_saver


@pytest.mark.parametrize("value", ["", "0", "off"])
def test_it_does_nothing_otherwise(monkeypatch, torch, value):
    monkeypatch.setenv("SGLANG_PLUGINS", "another")
    monkeypatch.setenv("DUCTILE_SGLANG", value)
    found = adapter(monkeypatch)
    plugin.register()
    assert found.import_error is not None
    assert sys.modules["torch_memory_saver"] is None


def test_a_turn_as_sglangs_scheduler_takes_it(monkeypatch, torch):
    monkeypatch.setenv("DUCTILE_SGLANG", "1")
    found = adapter(monkeypatch)
    del sys.modules["torch_memory_saver"]
    plugin.register()
    saver = found._memory_saver
    with found.torch_memory_saver.configure_subprocess():
        pass
    with saver.region(tag="weights", enable_cpu_backup=True):
        weights = torch.tensor(32 * MIB)
    with saver.region(tag="kv_cache", enable_cpu_backup=False):
        cache = torch.tensor(64 * MIB)
    handle = torch.cuda.graph_pool_handle()
    graph = fake_torch.Graph()
    with saver.cuda_graph(
        cuda_graph=graph, pool=handle, stream=None, tag="cuda_graph", enable_cpu_backup=True
    ):
        graph.output = torch.tensor(8 * MIB)
    for tag in ("kv_cache", "weights", "cuda_graph"):
        saver.pause(tag=tag)
    assert sum(s.held_bytes for t, s in memory.tags().items() if t) == 0
    for tag in ("cuda_graph", "weights", "kv_cache"):
        saver.resume(tag=tag)
    assert sum(s.held_bytes for t, s in memory.tags().items() if t) == 104 * MIB
    assert torch.native_bytes == 0
    del weights, cache
