# SPDX-License-Identifier: Apache-2.0
"""Memory of the host behind PyTorch's tensors, on the virtual GPU, without PyTorch: what is said of
what lives long, and moving it."""

from __future__ import annotations

import sys
import types
import warnings

import pytest

import ductile_gpu
from ductile_gpu._process import _share
from ductile_gpu.torch import _spilling

MIB = 1 << 20


@pytest.fixture
def steps(monkeypatch):
    """Ends of optimizers' steps; and an allocator that may spill, as the process's."""
    hooks: list = []
    optimizer = types.ModuleType("torch.optim.optimizer")
    optimizer.register_optimizer_step_post_hook = lambda hook: hooks.append(hook) or hook
    monkeypatch.setitem(sys.modules, "torch.optim.optimizer", optimizer)
    monkeypatch.setattr(_spilling, "_handle", None)
    monkeypatch.setattr(_spilling, "_warned_at", 0)
    return hooks


@pytest.fixture
def spilling():
    with open_spilling() as made:
        _share.adopt(0, made)
        yield made
        _share.adopt(0, None)


def open_spilling():
    return ductile_gpu.Allocator(driver="virtual", spill_bytes="1G", limit_bytes="256M")


def step(hooks):
    """What the user is told as a step ends."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for hook in hooks:
            hook(None, (), {})
    return [str(w.message) for w in told]


def test_a_step_is_looked_at_only_where_memory_may_spill(steps, monkeypatch):
    monkeypatch.delenv("DUCTILE_CONF", raising=False)
    _spilling.watch({})
    assert steps == []
    monkeypatch.setenv("DUCTILE_CONF", "spill_bytes:1G")
    _spilling.watch({})
    _spilling.watch({"spill_bytes": "2G"})
    assert len(steps) == 1


def test_a_step_tells_of_what_stays_at_first_and_at_each_doubling(steps, spilling):
    _spilling.watch({"spill_bytes": "1G"})
    filler = spilling.alloc(224 * MIB)
    assert step(steps) == []
    first = spilling.alloc(100 * MIB)
    (told,) = step(steps)
    assert "0.10 GiB" in told
    assert "ductile_gpu.torch.promote()" in told
    assert step(steps) == []
    second = spilling.alloc(50 * MIB)
    assert step(steps) == []
    spilling.alloc(50 * MIB)
    assert "0.20 GiB" in step(steps)[0]
    for block in (filler, first, second):
        spilling.free(block)
    assert step(steps) == []


def test_what_was_freed_before_the_step_ends_is_not_told_of(steps, spilling):
    _spilling.watch({"spill_bytes": "1G"})
    spilling.alloc(224 * MIB)
    spilling.free(spilling.alloc(100 * MIB))
    assert spilling.stats().spilled_bytes == 100 * MIB
    assert step(steps) == []


def test_promote_moves_what_the_gpus_have_room_for(spilling):
    filler = spilling.alloc(224 * MIB)
    spilling.alloc(100 * MIB)
    assert _spilling.promote() == (0, 100 * MIB)
    spilling.free(filler)
    assert _spilling.promote() == (100 * MIB, 0)


def test_what_the_program_has_made_itself_is_neither_told_of_nor_promoted(steps, spilling):
    """Another thread may use its memory, or close it."""
    _spilling.watch({"spill_bytes": "1G"})
    with open_spilling() as own:
        filler = own.alloc(224 * MIB)
        own.alloc(100 * MIB)
        own.free(filler)
        assert step(steps) == []
        assert _spilling.promote() == (0, 0)
        assert own.stats().spilled_bytes == 100 * MIB


def test_what_the_program_has_made_itself_may_be_closed_where_nothing_may_spill(spilling):
    own = open_spilling()
    with _spilling.no_spill():
        own.close()
        filler = spilling.alloc(224 * MIB)
        with pytest.raises(ductile_gpu.OutOfMemory):
            spilling.alloc(100 * MIB)
    spilling.alloc(100 * MIB)
    spilling.free(filler)
