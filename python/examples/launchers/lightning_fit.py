# SPDX-License-Identifier: Apache-2.0
"""Lightning on Ductile: the processes of every strategy call setup before they use the GPU."""

import lightning
from lightning.pytorch.demos.boring_classes import BoringModel
from lightning.pytorch.loggers import CSVLogger

import ductile_gpu.torch


class Ductile(lightning.Callback):
    def setup(self, trainer, pl_module, stage):
        ductile_gpu.torch.enable()

    def on_train_batch_end(self, trainer, *_):
        stats = ductile_gpu.shared(trainer.strategy.root_device.index).stats()
        trainer.logger.log_metrics({"held_mib": stats.reserved_bytes >> 20}, trainer.global_step)


lightning.Trainer(max_steps=6, callbacks=[Ductile()], logger=CSVLogger("out")).fit(BoringModel())
