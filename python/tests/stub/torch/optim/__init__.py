# SPDX-License-Identifier: Apache-2.0
"""Optimizers whose steps can be watched."""

from torch.optim import optimizer

__all__ = ["SGD", "optimizer"]


class SGD:
    """Does nothing at a step but call who watches."""

    def step(self):
        for hook in optimizer.before:
            hook(self, (), {})
        for hook in optimizer.behind:
            hook(self, (), {})
