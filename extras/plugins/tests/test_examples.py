# SPDX-License-Identifier: Apache-2.0
"""The examples beside the plug-ins, without a GPU."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from running import python

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_the_halves_of_grpo_need_more_memory_than_there_is_at_once():
    """The virtual device has room for the optimizer's state or for the cache."""
    answer = python(EXAMPLES / "turns_grpo.py", "--virtual", "20")
    assert answer.returncode == 0, answer.stderr
    lines = answer.stdout.splitlines()
    assert [line.split(None, 1)[1] for line in lines] == ["generates in 50 MiB, learns in 40"] * 20


class Noted:
    """What of ductile_gpu.torch is called, in order."""

    def __init__(self):
        self.calls = []

    def __getattr__(self, name):
        def noted(*tags, **_):
            self.calls.append(" ".join([name, *tags]))
            return self

        return noted

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.calls.append("leave")


@pytest.fixture
def noted(monkeypatch):
    """The halves, with stand-ins of PyTorch, of TRL and of Ductile's module."""
    memory = Noted()

    class AdamW:
        def step(self, closure=None):
            memory.calls.append("step")
            return closure

    class GRPOTrainer:
        def _generate_single_turn(self, *given, **more):
            memory.calls.append("generate")
            return given, more

    torch, trl = ModuleType("torch"), ModuleType("trl")
    torch.optim = SimpleNamespace(AdamW=AdamW)
    trl.GRPOTrainer = GRPOTrainer
    import ductile_gpu

    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "trl", trl)
    monkeypatch.setitem(sys.modules, "ductile_gpu.torch", memory)
    monkeypatch.setattr(ductile_gpu, "torch", memory, raising=False)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import turns_grpo

    return memory, *turns_grpo.halves()


def test_grpos_halves_sleep_while_the_other_is_at_work(noted):
    memory, trainer, adam = noted
    assert memory.calls == ["enable"]
    memory.calls.clear()
    assert trainer()._generate_single_turn([1], images=None) == (([1],), {"images": None})
    assert memory.calls == [
        "sleep learn", "wake generate", "pool generate", "generate", "leave", "sleep generate",
        "wake learn",
    ]  # fmt: skip
    memory.calls.clear()
    assert adam().step("closure") == "closure"
    assert memory.calls == ["pool learn", "step", "leave"]
