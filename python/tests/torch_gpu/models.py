# SPDX-License-Identifier: Apache-2.0
"""Three trainings in plain torch, with what makes real ones hard on an allocator: batch and length
that change at every step, frozen weights, recomputed activations. No other package is needed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT2(nn.Module):
    """GPT-2's shape: token and position embeddings, blocks, a tied head."""

    def __init__(
        self, layers: int = 12, width: int = 768, heads: int = 12, recompute: bool = False
    ) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(50257, width), nn.Embedding(1024, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.recompute = recompute

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.positions.weight[: ids.shape[1]]
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recompute else block(x)
        logits = F.linear(self.norm(x), self.tokens.weight)
        return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())


class LowRank(nn.Module):
    """A frozen linear layer with a trained correction of low rank."""

    def __init__(self, frozen: nn.Linear, rank: int = 16) -> None:
        super().__init__()
        self.frozen = frozen
        self.a = nn.Parameter(torch.randn(rank, frozen.in_features) * 0.02)
        self.b = nn.Parameter(torch.zeros(frozen.out_features, rank))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.frozen(x) + F.linear(F.linear(x, self.a), self.b)


def make_lora() -> GPT2:
    """A frozen GPT-2 of medium size with low-rank corrections, its activations recomputed."""
    model = GPT2(layers=24, width=1024, heads=16, recompute=True)
    model.requires_grad_(False)
    for block in model.blocks:
        block.attention.qkv = LowRank(block.attention.qkv)
        block.attention.out = LowRank(block.attention.out)
    return model


class Bottleneck(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(True),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width),
            nn.ReLU(True), nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width),
        )  # fmt: skip
        self.skip: nn.Module = nn.Identity()
        if stride != 1 or inputs != 4 * width:
            self.skip = nn.Sequential(
                nn.Conv2d(inputs, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.body(x) + self.skip(x))


class ResNet50(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [
            nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(True),
            nn.MaxPool2d(3, 2, 1),
        ]  # fmt: skip
        inputs = 64
        for width, depth, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
            for i in range(depth):
                layers.append(Bottleneck(inputs, width, stride if i == 0 else 1))
                inputs = 4 * width
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(inputs, 1000)

    def forward(self, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        images, labels = batch
        return F.cross_entropy(self.head(self.features(images).mean((2, 3))).float(), labels)


class Training(NamedTuple):
    """One training: its model and an endless stream of batches of changing shape."""

    model: nn.Module
    batches: Iterator[object]
    learning_rate: float


def _texts(seed: int, largest: int) -> Iterator[torch.Tensor]:
    choice = random.Random(seed)
    while True:
        batch, length = choice.randint(1, largest), choice.choice(range(64, 1025, 32))
        yield torch.randint(0, 50257, (batch, length), device="cuda")


def _images(seed: int, largest: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    choice = random.Random(seed)
    while True:
        batch, side = choice.randint(1, largest), choice.choice(range(128, 321, 32))
        images = torch.randn(batch, 3, side, side, device="cuda")
        yield images, torch.randint(0, 1000, (batch,), device="cuda")


def make(name: str, seed: int = 0, largest: int = 0) -> Training:
    """A training by name: gpt2, resnet or lora. largest: the largest batch; 0: a usual one."""
    torch.manual_seed(seed)
    with torch.device("cuda"):
        if name == "gpt2":
            return Training(GPT2(), _texts(seed, largest or 16), 3e-4)
        if name == "lora":
            return Training(make_lora(), _texts(seed, largest or 24), 1e-3)
        if name == "resnet":
            return Training(ResNet50(), _images(seed, largest or 64), 1e-3)
    raise ValueError(f"no training is called {name}")


class Trainer:
    """Takes steps in bfloat16."""

    def __init__(self, training: Training) -> None:
        self.training = training
        trained = [p for p in training.model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(trained, lr=training.learning_rate)

    def step(self) -> torch.Tensor:
        batch = next(self.training.batches)
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = self.training.model(batch)
        loss.backward()
        self.optimizer.step()
        return loss.detach()
