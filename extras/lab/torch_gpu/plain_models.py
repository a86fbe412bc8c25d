# SPDX-License-Identifier: Apache-2.0
"""Six programs in plain torch whose sizes change at every step, each with what makes real ones
hard on an allocator. Weights are random and data is made up: nothing is fetched, and nothing but
torch is needed.

  gpt2      12 layers of 768, batch 1-16 and length 64-1024, AdamW
  lora      a Llama of 16 layers of 2,048 in bfloat16, frozen but for corrections of rank 16;
            activations recomputed
  resnet    ResNet-50, batch 1-64, images of 128-320 pixels, SGD
  moe       8 layers, in each of them 8 experts, of which every token asks 2: uneven parts
  graph     messages along the edges of graphs of 2,000-20,000 nodes, another graph at every step
  generate  16 layers of 1,024, prompts of 16-768 tokens, a cache of keys and values that grows
            token by token; nothing is trained
"""

from __future__ import annotations

import random
from typing import Any, Callable

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from transformer import Transformer

# Makes the loss of step n, and says of how many units: tokens of texts, else samples. What is
# behind it is deterministic in n alone.
Loss = Callable[[int], tuple[torch.Tensor, int]]


class Program:
    """One step after another, each of which says how many units it has done. `step` may be refused
    memory; `drop` forgets what it has left."""

    def __init__(
        self, loss: Loss, model: nn.Module, optimizer: torch.optim.Optimizer | None
    ) -> None:
        self.loss, self.model, self.optimizer = loss, model, optimizer

    def learn(self, n: int) -> tuple[torch.Tensor, int]:
        """The loss, and the units."""
        loss, units = self.loss(n)
        if self.optimizer is not None:
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        return loss.detach(), units

    def step(self, n: int) -> int:
        return self.learn(n)[1]

    def drop(self) -> None:
        self.model.zero_grad(set_to_none=True)

    def held_elsewhere(self) -> int:
        """Bytes that other allocators than PyTorch's hold for it."""
        return 0


class Draw:
    """The random choices of one step: equal for equal numbers, whatever the allocator."""

    def __init__(self, n: int, device: str) -> None:
        self.n = n
        self.choice = random.Random(n)
        self.source = torch.Generator(device).manual_seed(n)
        self.device = device

    def one_of(self, numbers: range) -> int:
        return self.choice.choice(numbers)

    def integers(self, most: int, *shape: int) -> torch.Tensor:
        return torch.randint(most, shape, generator=self.source, device=self.device)

    def normal(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self.source, device=self.device)


# Of a step how many samples, and how long (texts) or wide (images) they are.
Sizes = Callable[[Draw], tuple[int, int]]


def drawn(batches: range, lengths: range) -> Sizes:
    return lambda draw: (draw.one_of(batches), draw.one_of(lengths))


LENGTHS = range(64, 1025, 32)
TEXTS, IMAGES = drawn(range(1, 17), LENGTHS), drawn(range(1, 65), range(128, 321, 32))
FEW_TEXTS, FEW_IMAGES = drawn(range(1, 4), range(8, 33, 8)), drawn(range(1, 4), range(32, 65, 32))


def texts(draw: Draw, words: int, tiny: bool, sizes: Sizes | None = None) -> torch.Tensor:
    sizes = sizes or (FEW_TEXTS if tiny else TEXTS)
    return draw.integers(words, *sizes(draw))


def autocast(device: str) -> Any:
    return torch.autocast(device, dtype=torch.bfloat16)


# ---- GPT-2 -------------------------------------------------------------------------------------


def on_texts(
    model: nn.Module, device: str, words: int, tiny: bool, sizes: Sizes | None = None
) -> Program:
    """A transformer in training."""

    def loss(n: int) -> tuple[torch.Tensor, int]:
        ids = texts(Draw(n, device), words, tiny, sizes)
        with autocast(device):
            return model(ids).mean(), ids.numel()

    return Program(loss, model, torch.optim.AdamW(model.parameters(), lr=3e-4))


def make_gpt2(device: str, tiny: bool, sizes: Sizes | None = None) -> Program:
    words, *shape = (128, 2, 32, 2) if tiny else (50257, 12, 768, 12)
    return on_texts(Transformer(words, *shape), device, words, tiny, sizes)


# ---- A Llama with corrections of low rank --------------------------------------------------------


class Corrected(nn.Module):
    """A frozen matrix, and what is added to it."""

    def __init__(self, inner: int, outer: int, rank: int) -> None:
        super().__init__()
        self.frozen = nn.Linear(inner, outer, bias=False, dtype=torch.bfloat16).requires_grad_(
            False
        )
        self.down, self.up = nn.Linear(inner, rank, bias=False), nn.Linear(rank, outer, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        correction = self.up(F.dropout(self.down(x.float()), 0.05, self.training))
        out: torch.Tensor = self.frozen(x) + correction.to(x.dtype)
        return out


class LlamaLayer(nn.Module):
    def __init__(self, width: int, heads: int, rank: int) -> None:
        super().__init__()
        plain = {"bias": False, "dtype": torch.bfloat16}
        self.heads = heads
        self.norms = nn.ModuleList(nn.RMSNorm(width, dtype=torch.bfloat16) for _ in range(2))
        self.qkvo = nn.ModuleList(Corrected(width, width, rank) for _ in range(4))
        self.gate, self.up = (nn.Linear(width, 4 * width, **plain) for _ in range(2))
        self.down = nn.Linear(4 * width, width, **plain)
        for part in (self.norms, self.gate, self.up, self.down):
            part.requires_grad_(False)

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (m(x).view(batch, length, self.heads, -1).transpose(1, 2) for m in self.qkvo[:3])
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: torch.Tensor = self.qkvo[3](y.transpose(1, 2).reshape(batch, length, width))
        return out

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attend(self.norms[0](x))
        y = self.norms[1](x)
        out: torch.Tensor = x + self.down(F.silu(self.gate(y)) * self.up(y))
        return out


class Llama(nn.Module):
    """What is not trained goes its way without recomputing, also into a graph."""

    def __init__(self, words: int, layers: int, width: int, heads: int, rank: int = 16) -> None:
        super().__init__()
        self.tokens = nn.Embedding(words, width, dtype=torch.bfloat16).requires_grad_(False)
        self.layers = nn.ModuleList(LlamaLayer(width, heads, rank) for _ in range(layers))
        self.head = nn.Linear(width, words, bias=False, dtype=torch.bfloat16).requires_grad_(False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.training else layer(x)
        logits = self.head(x)[:, :-1]
        return F.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())


def make_lora(device: str, tiny: bool, sizes: Sizes | None = None) -> Program:
    words = 128 if tiny else 32000
    model = Llama(words, *((2, 32, 2) if tiny else (16, 2048, 16)))
    trained = [weight for weight in model.parameters() if weight.requires_grad]

    def loss(n: int) -> tuple[torch.Tensor, int]:
        ids = texts(Draw(n, device), words, tiny, sizes)
        return model(ids), ids.numel()

    return Program(loss, model, torch.optim.AdamW(trained, lr=3e-4))


# ---- ResNet-50 ---------------------------------------------------------------------------------


class Bottleneck(nn.Module):
    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        after = 4 * width
        self.path = nn.Sequential(
            nn.Conv2d(before, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width),
            nn.ReLU(inplace=True), nn.Conv2d(width, after, 1, bias=False), nn.BatchNorm2d(after),
        )  # fmt: skip
        self.aside = nn.Identity()
        if before != after or stride != 1:
            self.aside = nn.Sequential(
                nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after)
            )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.path(x) + self.aside(x), inplace=True)


def resnet(depths: tuple[int, ...], width: int) -> nn.Module:
    parts: list[nn.Module] = [
        nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
    ]  # fmt: skip
    before = width
    for level, depth in enumerate(depths):
        for block in range(depth):
            own = width << level
            parts.append(Bottleneck(before, own, 2 if level > 0 and block == 0 else 1))
            before = 4 * own
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 1000))


def make_resnet(device: str, tiny: bool, sizes: Sizes | None = None) -> Program:
    model = resnet((1, 1), 8) if tiny else resnet((3, 4, 6, 3), 64)
    model = model.to(memory_format=torch.channels_last)
    drawn_by = sizes or (FEW_IMAGES if tiny else IMAGES)

    def loss(n: int) -> tuple[torch.Tensor, int]:
        draw = Draw(n, device)
        batch, side = drawn_by(draw)
        images = draw.normal(batch, 3, side, side).to(memory_format=torch.channels_last)
        with autocast(device):
            return F.cross_entropy(model(images), draw.integers(1000, batch)), batch

    return Program(loss, model, torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9))


# ---- A mixture of experts ----------------------------------------------------------------------


class Experts(nn.Module):
    """In place of a block's two matrices: how many tokens go to which differs at every step."""

    def __init__(self, width: int, experts: int, chosen: int = 2) -> None:
        super().__init__()
        self.chosen = chosen
        self.router = nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
            for _ in range(experts)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.flatten(0, -2)
        weight, chosen = self.router(tokens).softmax(-1).topk(self.chosen)
        out = torch.zeros_like(tokens)
        for at, expert in enumerate(self.experts):
            rows, slot = (chosen == at).nonzero(as_tuple=True)
            part = expert(tokens[rows]) * weight[rows, slot, None]
            out = out.index_add(0, rows, part.to(out.dtype))
        return out.view_as(x)


def make_moe(device: str, tiny: bool) -> Program:
    words, layers, width, heads, experts = (128, 2, 32, 2, 4) if tiny else (32000, 8, 1024, 16, 8)
    model = Transformer(words, layers, width, heads)
    for block in model.blocks:
        block.up, block.down = Experts(width, experts), nn.Identity()
    return on_texts(model, device, words, tiny)


# ---- A network on graphs -----------------------------------------------------------------------


class Messages(nn.Module):
    """Each node hears from its neighbours, along the edges."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.edge = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, width))
        self.node = nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        source, target = edges
        said = self.edge(torch.cat((x[source], x[target]), 1))
        heard = torch.zeros_like(x).index_add(0, target, said)
        return x + F.relu(self.node(torch.cat((x, heard), 1)))


class GraphNetwork(nn.Module):
    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Messages(width) for _ in range(layers))
        self.out = nn.Linear(width, 1)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x, edges)
        out: torch.Tensor = self.out(x).square().mean()
        return out


def make_graph(device: str, tiny: bool) -> Program:
    width, layers = (8, 2) if tiny else (256, 6)
    nodes = range(20, 60) if tiny else range(2000, 20001)
    model = GraphNetwork(width, layers)

    def loss(n: int) -> tuple[torch.Tensor, int]:
        draw = Draw(n, device)
        size, degree = draw.one_of(nodes), draw.one_of(range(4, 17))
        return model(draw.normal(size, width), draw.integers(size, 2, size * degree)), size

    return Program(loss, model, torch.optim.AdamW(model.parameters(), lr=1e-4))


# ---- Generating text ---------------------------------------------------------------------------


class Generator(nn.Module):
    """A transformer that keeps the keys and values of all tokens before, in tensors that grow."""

    def __init__(self, words: int, layers: int, width: int, heads: int) -> None:
        super().__init__()
        self.base = Transformer(words, layers, width, heads)

    def forward(self, ids: torch.Tensor, n_new: int) -> torch.Tensor:
        kept: list[list[torch.Tensor]] = [[] for _ in self.base.blocks]

        def attend(layer: int, attention: Any, x: torch.Tensor) -> torch.Tensor:
            q, *new = attention.parts(x)
            own = kept[layer]
            own[:] = [torch.cat(pair, 2) for pair in zip(own, new)] if own else new
            is_prompt = x.shape[1] > 1
            return attention.joined(F.scaled_dot_product_attention(q, *own, is_causal=is_prompt))

        given, at = ids, 0
        for _ in range(n_new):
            places = torch.arange(at, at + given.shape[1], device=ids.device)
            at += given.shape[1]
            given = self.base.next_word(given, places, attend)
            ids = torch.cat((ids, given), 1)
        return ids


def make_generate(device: str, tiny: bool) -> Program:
    words, *shape = (128, 2, 32, 2) if tiny else (32000, 16, 1024, 16)
    n_new = 4 if tiny else 16
    model = Generator(words, *shape).to(torch.bfloat16)
    prompts = range(8, 33) if tiny else range(16, 769)

    @torch.inference_mode()
    def generate(n: int) -> tuple[torch.Tensor, int]:
        draw = Draw(n, device)
        batch, length = draw.one_of(range(1, 4 if tiny else 17)), draw.one_of(prompts)
        return model(draw.integers(words, batch, length), n_new), batch * n_new

    return Program(generate, model, None)


MAKERS: dict[str, Callable[..., Program]] = {
    "gpt2": make_gpt2,
    "lora": make_lora,
    "resnet": make_resnet,
    "moe": make_moe,
    "graph": make_graph,
    "generate": make_generate,
}


def make(name: str, device: str = "cuda", tiny: bool = False, **more: Sizes) -> Program:
    """A program by name; the first three may be told their `sizes`. tiny: to try out a script."""
    torch.manual_seed(0)
    with torch.device(device):  # weights are made where they stay
        return MAKERS[name](device, tiny, **more)
