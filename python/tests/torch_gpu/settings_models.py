# SPDX-License-Identifier: Apache-2.0
"""The programs of settings.py: one for each kind of use. Weights are random, data is made up, and
sizes change at every step.

  training   GPT-2 (plain_models.py), batch and length vary
  lora       a Llama with corrections of low rank, activations recomputed (plain_models.py)
  images     a U-Net that removes noise, batch and side vary
  streams    weights come to the device on a stream of their own, layer by layer and ahead of the
             work, and gradients leave it on another: `record_stream` on both, as FSDP does
  serving    prompts of all lengths, then tokens by CUDA graphs, one graph for each size of batch
  growing    prompts, then tokens with keys and values in tensors that grow (plain_models.py)
  notebook   cells that train another model each time, while results of earlier cells are kept
  small      a small GPT-2 under a cap of 3 GiB
  libraries  CuPy filters images, PyTorch learns from them, in one process
"""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import plain_models
import torch
from plain_models import Draw, autocast
from torch import nn
from torch.nn import functional as F
from transformer import Transformer


class Program:
    """One step after another, each of which says how many units it has done."""

    unit = "samples"

    def step(self, n: int) -> int:
        raise NotImplementedError

    def drop(self) -> None:
        """Forgets what a step that was refused memory has left."""

    def held_elsewhere(self) -> int:
        """Bytes that other allocators than PyTorch's hold for it."""
        return 0


class Plain(Program):
    """A program of plain_models.py; its first two choices of a step are batch and length."""

    def __init__(self, name: str, device: str, tiny: bool) -> None:
        self.program = plain_models.make(name, device, tiny)
        self.ranges = (
            (range(1, 4), range(8, 33, 8)) if tiny else (range(1, 17), range(64, 1025, 32))
        )
        self.device, self.unit = device, "tokens"

    def step(self, n: int) -> int:
        self.program.step(n)
        draw = Draw(n, self.device)
        return math.prod(draw.one_of(values) for values in self.ranges)

    def drop(self) -> None:
        self.program.drop()


class Growing(Plain):
    """Generation, of which the new tokens count."""

    def __init__(self, device: str, tiny: bool) -> None:
        super().__init__("generate", device, tiny)
        self.n_new = 4 if tiny else 16
        self.batches = range(1, 4 if tiny else 17)

    def step(self, n: int) -> int:
        self.program.step(n)
        return Draw(n, self.device).one_of(self.batches) * self.n_new


class Trained(Program):
    """A model, an optimizer, and a loss of step n that says how many units it is of."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def loss(self, n: int) -> tuple[torch.Tensor, int]:
        raise NotImplementedError

    def step(self, n: int) -> int:
        loss, units = self.loss(n)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return units

    def drop(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)


# ---- A U-Net -----------------------------------------------------------------------------------


def two_convolutions(before: int, after: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(before, after, 3, padding=1), nn.GroupNorm(8, after), nn.SiLU(),
        nn.Conv2d(after, after, 3, padding=1), nn.GroupNorm(8, after), nn.SiLU(),
    )  # fmt: skip


class UNet(nn.Module):
    """What a level makes on the way down is kept until the way up."""

    def __init__(self, width: int, levels: int) -> None:
        super().__init__()
        widths = [width << level for level in range(levels)]
        self.down = nn.ModuleList(
            two_convolutions(before, after) for before, after in zip([3, *widths], widths)
        )
        self.up = nn.ModuleList(
            two_convolutions(low + high, high) for low, high in zip(widths[:0:-1], widths[-2::-1])
        )
        self.out = nn.Conv2d(width, 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept: list[torch.Tensor] = []
        for level, part in enumerate(self.down):
            x = part(F.avg_pool2d(x, 2) if level else x)
            kept.append(x)
        kept.pop()
        for part in self.up:
            x = part(torch.cat((F.interpolate(x, scale_factor=2.0), kept.pop()), 1))
        out: torch.Tensor = self.out(x)
        return out


class Images(Trained):
    def __init__(self, device: str, tiny: bool) -> None:
        super().__init__(UNet(*((8, 2) if tiny else (96, 4))))
        self.device = device
        self.batches, self.sides = (
            (range(1, 4), range(16, 33, 8)) if tiny else (range(4, 33), range(64, 193, 16))
        )

    def loss(self, n: int) -> tuple[torch.Tensor, int]:
        draw = Draw(n, self.device)
        batch, side = draw.one_of(self.batches), draw.one_of(self.sides)
        clean, noise = (draw.normal(batch, 3, side, side) for _ in range(2))
        with autocast(self.device):
            return F.mse_loss(self.model(clean + noise).float(), noise), batch


# ---- Two more streams --------------------------------------------------------------------------


class Gathered(torch.autograd.Function):
    """A layer of two matrices whose weights are on the device only while it is at work."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, x: torch.Tensor, owner: Streams, layer: int
    ) -> torch.Tensor:
        ctx.owner, ctx.layer = owner, layer
        up, down = owner.weights(layer, ahead=1)
        ctx.save_for_backward(x)
        out: torch.Tensor = x + F.gelu(x @ up) @ down
        return out

    @staticmethod
    def backward(  # type: ignore[override]
        ctx: Any, gradient: torch.Tensor
    ) -> tuple[torch.Tensor, None, None]:
        (x,) = ctx.saved_tensors
        weights = [w.requires_grad_() for w in ctx.owner.weights(ctx.layer, ahead=-1)]
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            out = x + F.gelu(x @ weights[0]) @ weights[1]
        found = torch.autograd.grad(out, (x, *weights), gradient)
        ctx.owner.reduce(ctx.layer, found[1:])
        return found[0], None, None


class Streams(Program):
    """Shards of the weights lie on the device in two halves; a layer's are joined on the gathering
    stream ahead of its turn, and what becomes of its gradients is done on the reducing one."""

    unit = "tokens"

    def __init__(self, device: str, tiny: bool) -> None:
        width, self.layers = (32, 3) if tiny else (2048, 12)
        self.device, self.width = device, width
        self.batches, self.lengths = (
            (range(1, 4), range(8, 33, 8)) if tiny else (range(1, 9), range(128, 2049, 64))
        )
        shapes = ((width, 4 * width), (4 * width, width))
        draw = Draw(0, device)
        self.shards = [
            [[draw.normal(rows // 2, columns).mul_(0.02).bfloat16() for _ in range(2)]
             for rows, columns in shapes] for _ in range(self.layers)
        ]  # fmt: skip
        on_gpu = device == "cuda"
        self.gathering, self.reducing = (torch.cuda.Stream() if on_gpu else None for _ in range(2))
        self.ready: dict[int, tuple[list[torch.Tensor], Any]] = {}
        if self.gathering is not None:
            self.gathering.wait_stream(torch.cuda.current_stream())  # the shards are written

    def gather(self, layer: int) -> None:
        if layer in self.ready or not 0 <= layer < self.layers:
            return
        with torch.cuda.stream(self.gathering):
            whole = [torch.cat(halves) for halves in self.shards[layer]]
            done = self.gathering.record_event() if self.gathering else None
        self.ready[layer] = whole, done

    def weights(self, layer: int, ahead: int) -> list[torch.Tensor]:
        """A layer's, for the stream that asks; those of the next one are on their way."""
        self.gather(layer)
        self.gather(layer + ahead)
        whole, done = self.ready.pop(layer)
        if done is not None:
            own = torch.cuda.current_stream()
            own.wait_event(done)
            for weight in whole:
                weight.record_stream(own)
        return whole

    def reduce(self, layer: int, gradients: tuple[torch.Tensor, ...]) -> None:
        if self.reducing is not None:
            self.reducing.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.reducing):
            for halves, gradient in zip(self.shards[layer], gradients):
                for half, part in zip(halves, (gradient * 0.5).chunk(2)):
                    half.sub_(part, alpha=1e-4)
        if self.reducing is not None:
            for gradient in gradients:
                gradient.record_stream(self.reducing)

    def step(self, n: int) -> int:
        draw = Draw(n, self.device)
        batch, length = draw.one_of(self.batches), draw.one_of(self.lengths)
        x = draw.normal(batch * length, self.width).bfloat16().requires_grad_()
        for layer in range(self.layers):
            x = Gathered.apply(x, self, layer)
        x.float().square().mean().backward()
        self.ready.clear()
        if self.reducing is not None:
            self.gathering.wait_stream(self.reducing)  # the next step reads what has been written
            torch.cuda.current_stream().wait_stream(self.reducing)
        return batch * length

    def drop(self) -> None:
        self.ready.clear()


# ---- A server with graphs ------------------------------------------------------------------------


class Serving(Program):
    """Keys and values lie in one tensor that stays. A batch's prompts are read eagerly, and then
    each token is one launch of the graph of the next larger batch."""

    unit = "tokens"

    def __init__(self, device: str, tiny: bool) -> None:
        words, layers, width, heads = (128, 2, 32, 2) if tiny else (32000, 16, 1024, 16)
        self.device = device
        self.most, self.longest = (4, 64) if tiny else (32, 1024)
        self.n_new = 4 if tiny else 16
        self.prompts = range(8, 33, 8) if tiny else range(16, 961, 16)
        self.model = Transformer(words, layers, width, heads).to(torch.bfloat16).eval()
        shape = (layers, 2, self.most, heads, self.longest, width // heads)
        self.kept = torch.zeros(shape, dtype=torch.bfloat16, device=device)
        self.words = words
        self.ids = torch.zeros(self.most, 1, dtype=torch.int64, device=device)
        self.places = torch.zeros(self.most, dtype=torch.int64, device=device)
        self.graphs: dict[int, Any] = {}
        with torch.inference_mode():
            sizes = [1 << level for level in range(self.most.bit_length())]
            for size in reversed(sizes):  # the largest first: the others fit in its memory
                self.graphs[size] = self.capture(size)

    def attend(self, layer: int, block: Any, x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """Of one new token of each text, whose keys and values join those that are kept."""
        batch, _, width = x.shape
        q, k, v = block.attention.qkv(x).view(batch, 3, block.attention.heads, -1).unbind(1)
        rows = torch.arange(batch, device=x.device)
        keys, values = self.kept[layer, 0, :batch], self.kept[layer, 1, :batch]
        keys[rows, :, places], values[rows, :, places] = k, v
        scores = (keys @ q.unsqueeze(-1)).squeeze(-1) / math.sqrt(q.shape[-1])
        later = torch.arange(self.longest, device=x.device) > places[:, None]
        weights = scores.masked_fill(later[:, None], float("-inf")).softmax(-1)
        y = (weights.unsqueeze(2) @ values).reshape(batch, 1, width)
        out: torch.Tensor = block.attention.out(y)
        return out

    def next_token(self, batch: int) -> None:
        ids, places = self.ids[:batch], self.places[:batch]
        x = self.model.tokens(ids) + self.model.positions(places)[:, None]
        for layer, block in enumerate(self.model.blocks):
            x = x + self.attend(layer, block, block.norm1(x), places)
            x = x + block.down(F.gelu(block.up(block.norm2(x))))
        ids.copy_(self.model.head(self.model.norm(x)).argmax(-1))
        places.add_(1)

    def capture(self, batch: int) -> Any:
        """Something that makes the next token of each text."""
        if self.device != "cuda":
            return lambda: self.next_token(batch)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self.next_token(batch)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        others = next(iter(self.graphs.values()), None)
        with torch.cuda.graph(graph, pool=others.__self__.pool() if others else None):
            self.next_token(batch)
        return graph.replay

    def read_prompts(self, ids: torch.Tensor) -> None:
        batch, length = ids.shape
        x = self.model.tokens(ids) + self.model.positions.weight[:length]
        for layer, block in enumerate(self.model.blocks):
            qkv = block.attention.qkv(block.norm1(x))
            q, k, v = qkv.view(batch, length, 3, block.attention.heads, -1).permute(2, 0, 3, 1, 4)
            self.kept[layer, 0, :batch, :, :length] = k
            self.kept[layer, 1, :batch, :, :length] = v
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + block.attention.out(y.transpose(1, 2).reshape(batch, length, -1))
            x = x + block.down(F.gelu(block.up(block.norm2(x))))
        self.ids[:batch] = self.model.head(self.model.norm(x[:, -1:])).argmax(-1)
        self.places.fill_(0)  # a graph has more texts than the batch: theirs lead nowhere
        self.places[:batch] = length

    @torch.inference_mode()
    def step(self, n: int) -> int:
        draw = Draw(n, self.device)
        batch, length = draw.one_of(range(1, self.most + 1)), draw.one_of(self.prompts)
        self.read_prompts(draw.integers(self.words, batch, length))
        launch = self.graphs[1 << (batch - 1).bit_length()]
        for _ in range(self.n_new):
            launch()
        return batch * self.n_new


# ---- A notebook ----------------------------------------------------------------------------------


class Notebook(Program):
    """A cell makes a model while the last one still lives, trains it a little, and leaves a result
    behind. The last thirty results stay."""

    def __init__(self, device: str, tiny: bool) -> None:
        self.device, self.tiny = device, tiny
        self.results: deque[torch.Tensor] = deque(maxlen=30)
        self.model: nn.Module | None = None

    def step(self, n: int) -> int:
        draw = Draw(n, self.device)
        width = draw.one_of(range(16, 65, 16) if self.tiny else range(512, 4097, 256))
        batch = draw.one_of(range(8, 33, 8) if self.tiny else range(1024, 16385, 512))
        depth, times = draw.one_of(range(2, 7)), 4
        with torch.device(self.device):
            layers = [nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(depth)]
            self.model = nn.Sequential(*layers, nn.Linear(width, 64))
        optimizer = torch.optim.AdamW(self.model.parameters())
        inputs = draw.normal(batch, width)
        for _ in range(times):
            with autocast(self.device):
                found = self.model(inputs)
                loss = found.float().square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.results.append(found.detach())
        return batch * times


# ---- A small card --------------------------------------------------------------------------------


class Small(Trained):
    """Uses less than 3 GiB."""

    unit = "tokens"

    def __init__(self, device: str, tiny: bool) -> None:
        self.words, *shape = (128, 2, 32, 2) if tiny else (8192, 8, 512, 8)
        super().__init__(Transformer(self.words, *shape))
        self.device = device
        self.batches, self.lengths = (
            (range(1, 4), range(8, 33, 8)) if tiny else (range(1, 7), range(64, 1025, 32))
        )

    def loss(self, n: int) -> tuple[torch.Tensor, int]:
        draw = Draw(n, self.device)
        batch, length = draw.one_of(self.batches), draw.one_of(self.lengths)
        with autocast(self.device):
            return self.model(draw.integers(self.words, batch, length)).mean(), batch * length


# ---- Two libraries -------------------------------------------------------------------------------


class Libraries(Images):
    """CuPy's part is a filter in the frequencies of the images; its arrays are dropped before
    PyTorch learns, and CuPy keeps their memory where it has a pool of its own."""

    def __init__(self, device: str, tiny: bool) -> None:
        super().__init__(device, tiny)
        self.arrays: Any
        if device == "cuda":
            import cupy

            self.arrays = cupy
        else:
            import numpy

            self.arrays = numpy

    def held_elsewhere(self) -> int:
        """CuPy's pool, which is empty where Ductile serves it."""
        on_gpu = self.device == "cuda"
        return self.arrays.get_default_memory_pool().total_bytes() if on_gpu else 0

    def filtered(self, images: torch.Tensor) -> torch.Tensor:
        waves = self.arrays.fft.rfft2(self.arrays.asarray(images))
        waves[..., waves.shape[-1] // 2 :] = 0
        return torch.as_tensor(
            self.arrays.fft.irfft2(waves, tuple(images.shape[-2:])).astype("float32"),
            device=self.device,
        )

    def loss(self, n: int) -> tuple[torch.Tensor, int]:
        draw = Draw(n, self.device)
        batch, side = draw.one_of(self.batches), draw.one_of(self.sides)
        noisy = draw.normal(batch, 3, side, side)
        clean = self.filtered(noisy)
        with autocast(self.device):
            return F.mse_loss(self.model(noisy).float(), clean), batch


# ---- All of them ---------------------------------------------------------------------------------

MAKERS: dict[str, Any] = {
    "training": lambda device, tiny: Plain("gpt2", device, tiny),
    "lora": lambda device, tiny: Plain("lora", device, tiny),
    "images": Images,
    "streams": Streams,
    "serving": Serving,
    "growing": Growing,
    "notebook": Notebook,
    "small": Small,
    "libraries": Libraries,
}


def make(name: str, device: str, tiny: bool) -> Program:
    """A program by name. tiny: one for trying out the script."""
    torch.manual_seed(0)
    with torch.device(device):  # weights are made where they stay
        made: Program = MAKERS[name](device, tiny)
    return made
