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
  lstm       an LSTM of four layers, batch and length vary
  policy     as PPO: many small steps whose results are kept, then passes over all in batches
  compiled   a transformer of four shapes, each compiled into graphs of its own
"""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import child
import plain_models
import torch
from plain_models import Draw, Program, autocast
from torch import nn
from torch.nn import functional as F
from transformer import Transformer

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


class Images(Program):
    def __init__(self, device: str, tiny: bool) -> None:
        model = UNet(*((8, 2) if tiny else (96, 4)))
        super().__init__(self.loss_of, model, torch.optim.AdamW(model.parameters(), lr=1e-4))
        self.device = device
        self.batches, self.sides = (
            (range(1, 4), range(16, 33, 8)) if tiny else (range(4, 33), range(64, 193, 16))
        )

    def pair(self, draw: Draw, *shape: int) -> tuple[torch.Tensor, torch.Tensor]:
        """What is given, and what is to be learned."""
        clean, noise = (draw.normal(*shape) for _ in range(2))
        return clean + noise, noise

    def loss_of(self, n: int) -> tuple[torch.Tensor, int]:
        draw = Draw(n, self.device)
        batch, side = draw.one_of(self.batches), draw.one_of(self.sides)
        given, wanted = self.pair(draw, batch, 3, side, side)
        with autocast(self.device):
            return F.mse_loss(self.model(given).float(), wanted), batch


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

    def attend_to_kept(self, layer: int, attention: Any, x: torch.Tensor) -> torch.Tensor:
        """Of one new token of each text, whose keys and values join those that are kept."""
        batch, places = len(x), self.places[: len(x)]
        q, k, v = attention.parts(x).squeeze(3)
        rows = torch.arange(batch, device=x.device)
        keys, values = self.kept[layer, :, :batch]
        keys[rows, :, places], values[rows, :, places] = k, v
        scores = (keys @ q.unsqueeze(-1)).squeeze(-1) / math.sqrt(q.shape[-1])
        later = torch.arange(self.longest, device=x.device) > places[:, None]
        weights = scores.masked_fill(later[:, None], float("-inf")).softmax(-1)
        return attention.joined(weights.unsqueeze(2) @ values)

    def next_token(self, batch: int) -> None:
        ids, places = self.ids[:batch], self.places[:batch]
        ids.copy_(self.model.next_word(ids, places[:, None], self.attend_to_kept))
        places.add_(1)

    def capture(self, batch: int) -> Any:
        """Something that makes the next token of each text."""
        if self.device != "cuda":
            return lambda: self.next_token(batch)
        others = next(iter(self.graphs.values()), None)
        pool = others.__self__.pool() if others else None
        graph, _ = child.captured(lambda: self.next_token(batch), warm=1, pool=pool)
        return graph.replay

    def attend_and_keep(self, layer: int, attention: Any, x: torch.Tensor) -> torch.Tensor:
        """Of whole prompts."""
        batch, length, _ = x.shape
        q, k, v = attention.parts(x)
        self.kept[layer, 0, :batch, :, :length] = k
        self.kept[layer, 1, :batch, :, :length] = v
        return attention.joined(F.scaled_dot_product_attention(q, k, v, is_causal=True))

    def read_prompts(self, ids: torch.Tensor) -> None:
        batch, length = ids.shape
        places = torch.arange(length, device=ids.device)
        self.ids[:batch] = self.model.next_word(ids, places, self.attend_and_keep)
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
        self.model = nn.Identity()

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


def make_small(device: str, tiny: bool) -> Program:
    """Uses less than 3 GiB."""
    words, *shape = (128, 2, 32, 2) if tiny else (8192, 8, 512, 8)
    sizes = None if tiny else plain_models.drawn(range(1, 7), plain_models.LENGTHS)
    return plain_models.on_texts(Transformer(words, *shape), device, words, tiny, sizes)


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

    def pair(self, draw: Draw, *shape: int) -> tuple[torch.Tensor, torch.Tensor]:
        noisy = draw.normal(*shape)
        return noisy, self.filtered(noisy)


# ---- A recurrent network -------------------------------------------------------------------------


class Recurrent(nn.Module):
    """Gives for each token of a text how surprising it is."""

    def __init__(self, words: int, layers: int, width: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(words, width)
        self.cells = nn.LSTM(width, width, layers, batch_first=True)
        self.head = nn.Linear(width, words)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        found = self.head(self.cells(self.tokens(ids[:, :-1]))[0])
        return F.cross_entropy(found.flatten(0, 1).float(), ids[:, 1:].flatten())


def make_lstm(device: str, tiny: bool) -> Program:
    words, *shape = (128, 2, 32) if tiny else (16000, 4, 1024)
    return plain_models.on_texts(Recurrent(words, *shape), device, words, tiny)


# ---- A policy that learns from what it has done --------------------------------------------------


class Policy(Program):
    """Learns from all that it has seen, done and expected since the last time."""

    def __init__(self, device: str, tiny: bool) -> None:
        width, self.actors, self.most = (16, 4, 8) if tiny else (1024, 512, 128)
        layers = [nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh()]
        model = nn.Sequential(*layers, nn.Linear(width, 32))
        super().__init__(self.loss_of, model, torch.optim.AdamW(model.parameters(), lr=1e-4))
        self.device, self.width = device, width

    def likely(self, seen: torch.Tensor, deed: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.model(seen).log_softmax(1).gather(1, deed[:, None])[:, 0]
        return found

    @torch.no_grad()
    def act(self, draw: Draw) -> tuple[torch.Tensor, ...]:
        seen, deed = draw.normal(self.actors, self.width), draw.integers(32, self.actors)
        return seen, deed, self.likely(seen, deed)

    def loss_of(self, n: int) -> tuple[torch.Tensor, int]:
        draw = Draw(n, self.device)
        acts = [self.act(draw) for _ in range(draw.one_of(range(self.most // 4, self.most + 1)))]
        seen, deed, before = map(torch.cat, zip(*acts))
        total = torch.zeros((), device=self.device)
        part = self.actors * draw.one_of(range(1, 9))
        for some in torch.arange(len(seen), device=self.device).split(part):
            ratio = (self.likely(seen[some], deed[some]) - before[some]).exp().clamp(0.8, 1.2)
            total = total - ratio.mean()
        return total, len(seen)


# ---- Compiled graphs -----------------------------------------------------------------------------


class Compiled(Program):
    """Steps without gradients, of four shapes in turn; each has graphs, whose memory is its own."""

    def __init__(self, device: str, tiny: bool) -> None:
        self.words, *shape = (128, 2, 32, 2) if tiny else (32000, 8, 1024, 16)
        model = Transformer(self.words, *shape).to(torch.bfloat16).eval()
        super().__init__(self.loss_of, model, None)
        self.device = device
        self.batches = (1, 2, 3, 4) if tiny else (4, 12, 20, 32)
        self.length = 16 if tiny else 512
        on_gpu = device == "cuda"
        self.run = torch.compile(model, mode="reduce-overhead", dynamic=False) if on_gpu else model

    @torch.inference_mode()
    def loss_of(self, n: int) -> tuple[torch.Tensor, int]:
        batch = self.batches[n % 4]
        ids = Draw(n, self.device).integers(self.words, batch, self.length)
        return self.run(ids).mean().clone(), ids.numel()


# ---- All of them ---------------------------------------------------------------------------------

MAKERS: dict[str, Any] = {
    **plain_models.MAKERS,
    "training": plain_models.make_gpt2,
    "images": Images,
    "streams": Streams,
    "serving": Serving,
    "growing": plain_models.make_generate,
    "notebook": Notebook,
    "small": make_small,
    "libraries": Libraries,
    "lstm": make_lstm,
    "policy": Policy,
    "compiled": Compiled,
}


def make(name: str, device: str, tiny: bool) -> Program:
    """A program by name. tiny: one for trying out the script."""
    torch.manual_seed(0)
    with torch.device(device):  # weights are made where they stay
        made: Program = MAKERS[name](device, tiny)
    return made
