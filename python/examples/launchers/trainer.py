# SPDX-License-Identifier: Apache-2.0
"""transformers' Trainer on Ductile: one line; the callback writes what is held beside the loss."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

import ductile_gpu.torch

ductile_gpu.torch.enable()


class Held(TrainerCallback):
    def on_log(self, args, state, control, logs, **_):
        logs["held_mib"] = ductile_gpu.shared(args.device.index).stats().reserved_bytes >> 20


model = GPT2LMHeadModel(GPT2Config(vocab_size=256, n_embd=64, n_layer=2, n_head=2))
texts = [{"input_ids": ids, "labels": ids} for ids in torch.randint(256, (64, 128))]
arguments = TrainingArguments("out", max_steps=6, logging_steps=2, save_strategy="no")
Trainer(model, arguments, train_dataset=texts, callbacks=[Held()]).train()
