# SPDX-License-Identifier: Apache-2.0
"""A rank of launched.py, which a launcher starts: trains a small Llama, and writes its losses and
its memory to FOLDER/RANK.json: launched_rank.py PROGRAM DEVICE FOLDER"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import child
import torch
import transformers

STEPS = 12
BATCH, LENGTH = 4, 256
SEED = 3


def make_model(device: str) -> Any:
    torch.manual_seed(SEED)
    width = 1024 if device == "cuda" else 32
    config = transformers.LlamaConfig(
        vocab_size=1024, hidden_size=width, intermediate_size=3 * width, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=4, attn_implementation="eager",
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def texts(ranks: int) -> list[dict[str, Any]]:
    """Of three lengths, which all ranks have in the same order; each rank has its share."""
    chosen = torch.Generator().manual_seed(SEED)
    rows = [
        torch.randint(1024, (LENGTH // (1 + n % 3),), generator=chosen)
        for n in range(STEPS)
        for _ in range(BATCH * ranks)
    ]
    return [{"input_ids": row, "labels": row} for row in rows]


def batches(rank: int, ranks: int, device: str) -> Any:
    rows = texts(ranks)
    for step in range(STEPS):
        mine = rows[step * BATCH * ranks :][rank::ranks][:BATCH]
        yield torch.stack([row["input_ids"] for row in mine]).to(device)


def train(model: Any, optimizer: Any, rank: int, ranks: int, device: str, back: Any) -> list[str]:
    losses = []
    for ids in batches(rank, ranks, device):
        loss = model(input_ids=ids, labels=ids).loss
        back(loss)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(float(loss.detach()).hex())
    return losses


def by_torch(program: str, rank: int, ranks: int, device: str) -> list[str]:
    """PyTorch's own wrappers, of one process group."""
    torch.distributed.init_process_group("nccl" if device == "cuda" else "gloo")
    model = make_model(device).to(device)
    if program == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(model)
    else:
        from torch.distributed.fsdp import fully_shard

        for layer in model.model.layers:
            fully_shard(layer)
        fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = train(model, optimizer, rank, ranks, device, lambda loss: loss.backward())
    torch.distributed.destroy_process_group()
    return losses


def by_accelerate(rank: int, ranks: int, device: str) -> list[str]:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=device == "cpu")
    model = make_model(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer = accelerator.prepare(model, optimizer)
    losses = train(model, optimizer, rank, ranks, device, accelerator.backward)
    accelerator.end_training()
    return losses


class Losses(transformers.TrainerCallback):  # type: ignore[misc]
    def __init__(self) -> None:
        self.found: list[str] = []

    def on_log(self, _args: Any, _state: Any, _control: Any, logs: Any = None, **_: Any) -> None:
        if "loss" in logs:
            self.found.append(float(logs["loss"]).hex())


def by_trainer(ranks: int, device: str, folder: str) -> tuple[list[str], str]:
    """What launches it says whether its ranks are those of DDP or of FSDP: that comes back, too."""
    losses = Losses()
    arguments = transformers.TrainingArguments(
        f"{folder}/out", max_steps=STEPS, per_device_train_batch_size=BATCH, logging_steps=1,
        save_strategy="no", report_to=[], disable_tqdm=True, use_cpu=device == "cpu",
        learning_rate=1e-3, bf16=device == "cuda", train_sampling_strategy="sequential",
    )  # fmt: skip
    trainer = transformers.Trainer(
        make_model(device), arguments, train_dataset=texts(ranks), callbacks=[losses]
    )
    trainer.train()
    return losses.found, trainer.accelerator.distributed_type.name


def main() -> None:
    program, device, folder = sys.argv[1:]
    # One process has no group, and accelerate starts it without these.
    rank, ranks = (int(os.environ.get(name, n)) for name, n in (("RANK", 0), ("WORLD_SIZE", 1)))
    child.be_deterministic("flash", "mem_efficient", "cudnn")
    torch.use_deterministic_algorithms(True, warn_only=True)
    if device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    kind = program
    if program == "trainer":
        losses, kind = by_trainer(ranks, device, folder)
    elif program == "accelerate":
        losses = by_accelerate(rank, ranks, device)
    else:
        losses = by_torch(program, rank, ranks, device)
    row = {"losses": losses, "kind": kind, **child.peak_memory(device)}
    (Path(folder) / f"{rank}.json").write_text(json.dumps(row))


if __name__ == "__main__":
    main()
