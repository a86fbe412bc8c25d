# SPDX-License-Identifier: Apache-2.0
"""accelerate on Ductile: DUCTILE_TORCH=1 accelerate launch accelerate_loop.py"""

import torch
from accelerate import Accelerator

import ductile_gpu.torch

accelerator = Accelerator()
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64))
data = torch.utils.data.DataLoader(torch.randn(64, 64), batch_size=8)
model, optimizer, data = accelerator.prepare(model, torch.optim.AdamW(model.parameters()), data)
for batch in data:
    accelerator.backward(torch.nn.functional.mse_loss(model(batch), batch))
    optimizer.step()
    optimizer.zero_grad()
held = ductile_gpu.shared(accelerator.device.index or 0).stats().reserved_bytes
print(f"rank {accelerator.process_index}: {ductile_gpu.torch.mode()}, holds {held}", flush=True)
