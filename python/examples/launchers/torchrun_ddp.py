# SPDX-License-Identifier: Apache-2.0
"""DDP on Ductile: DUCTILE_TORCH=1 torchrun --nproc-per-node 2 torchrun_ddp.py"""

import os

import torch

import ductile_gpu.torch

device = int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count()
torch.cuda.set_device(device)
torch.distributed.init_process_group(os.environ.get("BACKEND", "nccl"))
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(512, 512).cuda())
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(5):
    model(torch.randn(64, 512, device="cuda")).square().mean().backward()
    optimizer.step()
held = ductile_gpu.shared(device).stats().reserved_bytes
print(f"rank {os.environ['RANK']}: {ductile_gpu.torch.mode()}, holds {held}", flush=True)
torch.distributed.destroy_process_group()
