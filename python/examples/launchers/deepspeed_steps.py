# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed on Ductile: DUCTILE_TORCH=1 deepspeed deepspeed_steps.py"""

import os

import deepspeed
import torch

import ductile_gpu.torch

deepspeed.init_distributed(os.environ.get("BACKEND", "nccl"))
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.AdamW(model.parameters())
settings = {"train_batch_size": 8, "zero_optimization": {"stage": 1}}
engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=settings)
for _ in range(5):
    engine.backward(engine(torch.randn(8, 64, device="cuda")).square().mean())
    engine.step()
held = ductile_gpu.shared(0).stats().reserved_bytes
print(f"rank {os.environ['RANK']}: {ductile_gpu.torch.mode()}, holds {held}", flush=True)
