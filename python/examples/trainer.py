# SPDX-License-Identifier: Apache-2.0
"""GPT-2 under transformers' Trainer on Ductile, with texts of changing length. Needs a GPU.

python trainer.py
"""

from __future__ import annotations

import sys
import tempfile

try:
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
except ImportError as error:
    sys.exit(f"this example needs PyTorch, transformers and accelerate: {error}")

import ductile_gpu.torch

WORDS, BATCH, STEPS = 50257, 8, 50


class Texts(torch.utils.data.Dataset):
    """Made up. Every eight texts, which come to be a batch, have a length of their own."""

    def __len__(self) -> int:
        return BATCH * STEPS

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        length = 64 + 37 * (index // BATCH) % 960
        ids = torch.randint(0, WORDS, (length,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": ids, "labels": ids}


def main() -> int:
    if not torch.cuda.is_available():
        print("this example needs a GPU that PyTorch can use", file=sys.stderr)
        return 1
    ductile_gpu.torch.enable()  # before CUDA is first used; the rest knows nothing of Ductile
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, max_steps=STEPS, per_device_train_batch_size=BATCH, bf16=True,
            train_sampling_strategy="sequential", save_strategy="no", report_to="none",
            logging_steps=10,
        )  # fmt: skip
        model = GPT2LMHeadModel(GPT2Config(vocab_size=WORDS, use_cache=False))
        Trainer(model, arguments, train_dataset=Texts()).train()
    used, held = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    print(f"used {used >> 20} MiB at the peak, held {held >> 20}: {100 * (held / used - 1):.2f} %")
    return 0


if __name__ == "__main__":
    sys.exit(main())
