# SPDX-License-Identifier: Apache-2.0
"""Three trainings with what makes real ones hard on an allocator: batch and length that change at
every step, padding, frozen weights, recomputed activations.

GPT-2 and a LoRA fine-tune of a Llama are models of transformers, trained by its Trainer; ResNet-50
is torchvision's, in a loop. Weights are random and data is made up: nothing is fetched.
"""

from __future__ import annotations

import importlib.util
import random
import tempfile
from typing import Any, Callable, NamedTuple

import torch

Hook = Callable[[], None]
AfterStep = Callable[[torch.Tensor], None]

PACKAGES = {
    "gpt2": ("transformers", "accelerate"),
    "resnet": ("torchvision",),
    "lora": ("transformers", "accelerate", "peft"),
}


def check(names: list[str]) -> None:
    """Ends the program, with one line, when a training is not known or lacks a package."""
    unknown = [name for name in names if name not in PACKAGES]
    if unknown:
        raise SystemExit(f"no training is called {unknown[0]}: there are {', '.join(PACKAGES)}")
    wanted = dict.fromkeys(package for name in names for package in PACKAGES[name])
    missing = [package for package in wanted if importlib.util.find_spec(package) is None]
    if missing:
        raise SystemExit(f"missing packages: pip install {' '.join(missing)}")


def preload(name: str) -> None:
    """Imports what a training takes, so that no measurement waits for it."""
    if name == "resnet":
        import torchvision.models  # noqa: F401

        return
    from transformers import Trainer  # noqa: F401

    if name == "lora":
        import peft  # noqa: F401
        from transformers import LlamaForCausalLM  # noqa: F401
    else:
        from transformers import GPT2LMHeadModel  # noqa: F401


class Shape(NamedTuple):
    """Of one step's batch: how many samples, and how long (texts) or wide (images) they are."""

    batch: int
    length: int


class Range(NamedTuple):
    """Where shapes are drawn from. Texts are as long as `lengths` says, images as wide."""

    batches: range
    lengths: range

    def of_batch(self, batch: int) -> Range:
        return self._replace(batches=range(batch, batch + 1))


RANGES = {
    "gpt2": Range(range(1, 17), range(64, 1025, 32)),
    "resnet": Range(range(1, 65), range(128, 321, 32)),
    "lora": Range(range(1, 13), range(64, 1025, 32)),
}
TINY = Range(range(1, 4), range(32, 65, 16))


def draw(shapes: Range, steps: int, seed: int) -> list[Shape]:
    """The shapes of all steps: equal for equal arguments, in every process."""
    choice = random.Random(seed)
    return [Shape(choice.choice(shapes.batches), choice.choice(shapes.lengths))
            for _ in range(steps)]  # fmt: skip


# ---- Texts, under the Trainer ------------------------------------------------------------------


class Texts(torch.utils.data.Dataset):
    """Item i is the whole batch of step i; with padding, its texts differ in length."""

    def __init__(self, shapes: list[Shape], words: int, padded: bool, seed: int) -> None:
        self.shapes, self.words, self.padded, self.seed = shapes, words, padded, seed

    def __len__(self) -> int:
        return len(self.shapes)

    def __getitem__(self, step: int) -> dict[str, torch.Tensor]:
        batch, length = self.shapes[step]
        source = torch.Generator().manual_seed(self.seed * 1_000_003 + step)
        ids = torch.randint(0, self.words, (batch, length), generator=source)
        if not self.padded:
            return {"input_ids": ids, "labels": ids.clone()}
        lengths = torch.randint(length // 2, length + 1, (batch, 1), generator=source)
        lengths[0] = length
        real = torch.arange(length) < lengths
        return {
            "input_ids": ids.where(real, 0),
            "attention_mask": real.long(),
            "labels": ids.where(real, -100),
        }


def take_only(items: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    (item,) = items
    return item


def make_gpt2(tiny: bool) -> Any:
    from transformers import AutoModelForCausalLM, GPT2Config

    small = {"n_layer": 2, "n_embd": 64, "n_head": 2, "vocab_size": 256} if tiny else {}
    return AutoModelForCausalLM.from_config(
        GPT2Config(use_cache=False, **small), attn_implementation="sdpa"
    )


def make_lora(tiny: bool) -> Any:
    """A Llama of 1.1 billion frozen weights in bfloat16, and low-rank corrections to be trained."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, LlamaConfig

    width, depth, heads = (64, 2, 4) if tiny else (2048, 16, 32)
    config = LlamaConfig(
        vocab_size=256 if tiny else 32000, hidden_size=width, intermediate_size=4 * width,
        num_hidden_layers=depth, num_attention_heads=heads, num_key_value_heads=heads // 4,
        max_position_embeddings=2048, use_cache=False,
    )  # fmt: skip
    frozen = AutoModelForCausalLM.from_config(
        config, dtype=torch.bfloat16, attn_implementation="sdpa"
    )
    corrections = LoraConfig(
        r=16, lora_alpha=32, lora_dropout=0.05, task_type="CAUSAL_LM",
        target_modules=["q_proj", "k_proj", "v_proj", "o_proj"],
    )  # fmt: skip
    return get_peft_model(frozen, corrections)


class TextTraining:
    """A language model and transformers' Trainer, which is told what to do between steps."""

    def __init__(self, name: str, shapes: list[Shape], seed: int, device: str, tiny: bool) -> None:
        with torch.device(device):
            self.model = make_lora(tiny) if name == "lora" else make_gpt2(tiny)
        self.data = Texts(shapes, self.model.config.vocab_size, name == "gpt2", seed)
        self.recompute = name == "lora"
        self.on_cpu = device == "cpu"
        self.seed = seed

    def _arguments(self, folder: str) -> Any:
        from transformers import TrainingArguments

        more: dict[str, Any] = {}
        if self.recompute:
            more["gradient_checkpointing"] = True
            more["gradient_checkpointing_kwargs"] = {"use_reentrant": False}
        return TrainingArguments(
            output_dir=folder, max_steps=len(self.data), per_device_train_batch_size=1,
            train_sampling_strategy="sequential", learning_rate=3e-4, bf16=True,
            use_cpu=self.on_cpu, seed=self.seed,
            save_strategy="no", logging_strategy="no", report_to="none", disable_tqdm=True,
            **more,
        )  # fmt: skip

    def train(self, before_step: Hook, after_step: AfterStep) -> None:
        from transformers import Trainer, TrainerCallback

        class Told(Trainer):
            def training_step(self, *arguments: Any, **named: Any) -> torch.Tensor:
                self.step_loss = super().training_step(*arguments, **named)
                return self.step_loss

        class Hooks(TrainerCallback):
            def on_step_begin(self, *_: Any, **__: Any) -> None:
                before_step()

            def on_step_end(self, *_: Any, **__: Any) -> None:
                after_step(trainer.step_loss)

        with tempfile.TemporaryDirectory() as folder:
            trainer = Told(
                model=self.model, args=self._arguments(folder), train_dataset=self.data,
                data_collator=take_only, callbacks=[Hooks()],
            )  # fmt: skip
            trainer.train()


# ---- Images, in a loop -------------------------------------------------------------------------


class ImageTraining:
    """ResNet-50 in bfloat16, with SGD."""

    def __init__(self, shapes: list[Shape], device: str, tiny: bool) -> None:
        from torchvision.models import resnet18, resnet50

        self.shapes, self.device = shapes, device
        with torch.device(device):
            self.model = (resnet18 if tiny else resnet50)()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3, momentum=0.9)

    def _step(self, shape: Shape) -> torch.Tensor:
        images = torch.randn(shape.batch, 3, shape.length, shape.length, device=self.device)
        labels = torch.randint(0, 1000, (shape.batch,), device=self.device)
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast(self.device, dtype=torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(self.model(images), labels)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def train(self, before_step: Hook, after_step: AfterStep) -> None:
        self.model.train()
        for shape in self.shapes:
            before_step()
            after_step(self._step(shape))


def make(
    name: str, shapes: list[Shape], seed: int = 0, device: str = "cuda", tiny: bool = False
) -> TextTraining | ImageTraining:
    """A training by name, with one step for each shape. tiny: a model for trying out the script."""
    torch.manual_seed(seed)
    if name == "resnet":
        return ImageTraining(shapes, device, tiny)
    return TextTraining(name, shapes, seed, device, tiny)
