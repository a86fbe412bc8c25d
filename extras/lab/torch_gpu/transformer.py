# SPDX-License-Identifier: Apache-2.0
"""A small language model in plain torch, for what needs a model but is not about one."""

from __future__ import annotations

from functools import partial
from typing import Callable

import torch
from torch import nn
from torch.nn import functional as F

Attend = Callable[[torch.Tensor], torch.Tensor]


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def parts(self, x: torch.Tensor) -> torch.Tensor:
        """Queries, keys and values of each head."""
        batch, length, _ = x.shape
        return self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)

    def joined(self, y: torch.Tensor) -> torch.Tensor:
        return self.out(y.transpose(1, 2).flatten(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.joined(F.scaled_dot_product_attention(*self.parts(x), is_causal=True))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor, attend: Attend | None = None) -> torch.Tensor:
        x = x + (attend or self.attention)(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    """Gives for each token of a text how surprising it is."""

    def __init__(self, words: int, layers: int, width: int, heads: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(words, width), nn.Embedding(1024, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)

    def next_word(
        self, ids: torch.Tensor, places: torch.Tensor, attend: Callable[..., torch.Tensor]
    ) -> torch.Tensor:
        """The likeliest behind each text, of which `ids` are the newest tokens. Attention is
        attend(layer, attention, x)."""
        x = self.tokens(ids) + self.positions(places)
        for layer, block in enumerate(self.blocks):
            x = block(x, partial(attend, layer, block.attention))
        return self.head(self.norm(x[:, -1:])).argmax(-1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.positions.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))[:, :-1]
        each = F.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten(), reduction="none")
        return each.view(ids.shape[0], -1)
