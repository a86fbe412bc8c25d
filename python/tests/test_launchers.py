# SPDX-License-Identifier: Apache-2.0
"""The examples of each launcher on stand-ins for the launchers: what they call, and when.
`python/tests/launchers` has the same with the real ones."""

from __future__ import annotations

import importlib
import runpy
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from support import ROOT

import ductile_gpu
import ductile_gpu.torch

EXAMPLES = ROOT / "python" / "examples" / "launchers"
MIB = 1 << 20


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What happened, in its order; enable() is an event of its own."""
    seen: list[Any] = []
    monkeypatch.setattr(ductile_gpu.torch, "enable", lambda: seen.append("enable"))
    return seen


def stand_in(monkeypatch: pytest.MonkeyPatch, name: str, **members: Any) -> None:
    module = ModuleType(name)
    vars(module).update(members)
    monkeypatch.setitem(sys.modules, name, module)


def play(name: str) -> None:
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")


@pytest.mark.parametrize("path", sorted(EXAMPLES.iterdir()), ids=lambda path: path.stem)
def test_an_example_has_at_most_twenty_lines(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 20


def test_the_trainer_s_model_comes_after_ductile_and_each_log_has_what_is_held(
    monkeypatch, events, shared
):
    class Trainer:
        def __init__(self, model: Any, arguments: Any, *, train_dataset: Any, callbacks: Any):
            events.append("trainer")
            self.arguments, self.callbacks = arguments, callbacks

        def train(self) -> None:
            address = shared.alloc(64 * MIB)
            for loss in (2.0, 1.0):
                logs = {"loss": loss}
                for callback in self.callbacks:
                    callback.on_log(self.arguments, None, None, logs=logs, model=None)
                events.append(logs)
            shared.free(address)

    stand_in(monkeypatch, "torch", randint=lambda *_: [[1, 2]] * 64)
    stand_in(
        monkeypatch,
        "transformers",
        GPT2Config=SimpleNamespace,
        GPT2LMHeadModel=lambda _config: events.append("model"),
        Trainer=Trainer,
        TrainerCallback=object,
        TrainingArguments=lambda *_, **__: SimpleNamespace(device=SimpleNamespace(index=0)),
    )
    play("trainer.py")
    assert events[:3] == ["enable", "model", "trainer"]
    held = shared.stats().reserved_bytes >> 20
    assert held >= 64
    assert events[3:] == [{"loss": loss, "held_mib": held} for loss in (2.0, 1.0)]


def test_lightning_s_callback_enables_in_setup_and_writes_each_step(monkeypatch, events, shared):
    class Trainer:
        strategy = SimpleNamespace(root_device=SimpleNamespace(index=0))
        global_step = 0

        def __init__(self, max_steps: int, callbacks: list[Any], logger: Any) -> None:
            events.append("made")
            self.max_steps, self.callbacks, self.logger = max_steps, callbacks, logger

        def fit(self, model: Any) -> None:
            self.callbacks[0].setup(self, model, "fit")
            events.append("to the GPU")
            for step in range(self.max_steps):
                self.global_step = step
                self.callbacks[0].on_train_batch_end(self, model, None, None, step)

    class Logger:
        def __init__(self, folder: str) -> None:
            pass

        def log_metrics(self, metrics: dict[str, float], step: int) -> None:
            events.append((metrics, step))

    stand_in(monkeypatch, "lightning", Callback=object, Trainer=Trainer)
    for name in ("lightning.pytorch", "lightning.pytorch.demos"):
        stand_in(monkeypatch, name)
    stand_in(monkeypatch, "lightning.pytorch.demos.boring_classes", BoringModel=object)
    stand_in(monkeypatch, "lightning.pytorch.loggers", CSVLogger=Logger)
    address = shared.alloc(64 * MIB)
    play("lightning_fit.py")
    assert events[:3] == ["made", "enable", "to the GPU"]
    held = shared.stats().reserved_bytes >> 20
    assert events[3:] == [({"held_mib": held}, step) for step in range(6)]
    shared.free(address)


def test_ray_s_hook_names_enable(monkeypatch):
    given: dict[str, Any] = {}

    def init(**named: Any) -> None:
        given.update(named)
        raise KeyboardInterrupt  # the rest is Ray's

    stand_in(monkeypatch, "torch")
    stand_in(monkeypatch, "ray", remote=lambda **_: lambda made: made, init=init)
    with pytest.raises(KeyboardInterrupt):
        play("ray_actors.py")
    module, _, name = given["runtime_env"]["worker_process_setup_hook"].rpartition(".")
    assert getattr(importlib.import_module(module), name) is ductile_gpu.torch.enable
