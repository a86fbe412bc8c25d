# SPDX-License-Identifier: Apache-2.0
"""Ray on Ductile: the hook runs in each worker. Here two actors share a GPU."""

import ray
import torch

import ductile_gpu.torch


@ray.remote(num_gpus=0.5)
class Actor:
    def forward(self):
        torch.nn.Linear(512, 512).cuda()(torch.randn(64, 512, device="cuda"))
        held = ductile_gpu.shared(0).stats().reserved_bytes
        return f"{ductile_gpu.torch.mode()}, holds {held}"


ray.init(num_gpus=1, runtime_env={"worker_process_setup_hook": "ductile_gpu.torch.enable"})
actors = [Actor.remote(), Actor.remote()]
print(*ray.get([actor.forward.remote() for actor in actors]), sep="\n")
