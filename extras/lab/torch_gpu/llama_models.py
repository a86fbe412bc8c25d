# SPDX-License-Identifier: Apache-2.0
"""A Llama of transformers, or a T5, divided among the ranks in each of the ways that are tried."""

from __future__ import annotations

from typing import Any, Callable, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM, T5Config, T5ForConditionalGeneration


class Size(NamedTuple):
    words: int
    layers: int
    width: int
    inner: int
    heads: int
    experts: int
    expert_inner: int


FULL = Size(32000, 16, 2048, 5504, 16, 8, 1408)
TINY = Size(128, 2, 64, 96, 4, 4, 32)  # to try out the scripts on the CPU
CHOSEN = 2  # experts for each token
TOO_MANY = 48  # sequences of a batch that cannot fit under the cap of `refused`

# Gives the loss of a batch, whose gradients are then in the parameters.
Learn = Callable[[torch.Tensor], torch.Tensor]
Step = Callable[[torch.Tensor], torch.Tensor]


def make_llama(size: Size, device: str) -> Any:
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=size.words, hidden_size=size.width, intermediate_size=size.inner,
        num_hidden_layers=size.layers, num_attention_heads=size.heads,
        num_key_value_heads=size.heads, use_cache=False, attn_implementation="sdpa",
    )  # fmt: skip
    with torch.device(device):
        model = LlamaForCausalLM(config)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    return model


def make_t5(size: Size, device: str) -> Any:
    """Half of the layers in its encoder, and half in its decoder."""
    torch.manual_seed(1)
    config = T5Config(
        vocab_size=size.words, d_model=size.width, d_ff=size.inner, num_heads=size.heads,
        d_kv=size.width // size.heads, num_layers=size.layers // 2, dropout_rate=0.0,
        feed_forward_proj="gated-gelu", use_cache=False, decoder_start_token_id=0,
    )  # fmt: skip
    with torch.device(device):
        model = T5ForConditionalGeneration(config)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    return model


# ---- Experts on every rank ---------------------------------------------------------------------


class Exchange(torch.autograd.Function):
    """Sends each rank its rows, and takes those of all ranks; gradients go back the same way."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, give: list[int], take: list[int]) -> torch.Tensor:
        ctx.give, ctx.take = give, take
        taken = rows.new_empty(sum(take), rows.shape[1])
        dist.all_to_all_single(taken, rows.contiguous(), take, give)
        return taken

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, None, None]:
        return Exchange.apply(gradients[0], ctx.take, ctx.give), None, None


class Experts(nn.Module):
    """In place of a layer's MLP: each rank has some of the experts, each token asks a few. How many
    rows go where differs from rank to rank and from step to step."""

    def __init__(self, size: Size, rank: int, ranks: int) -> None:
        super().__init__()
        assert size.experts % ranks == 0, f"{size.experts} experts are for 2, 4 or 8 ranks"
        self.ranks, self.n_experts, self.n_own = ranks, size.experts, size.experts // ranks
        self.router = nn.Linear(size.width, size.experts, bias=False)
        torch.manual_seed(1000 + rank)
        make = {"up": (size.width, size.expert_inner), "gate": (size.width, size.expert_inner),
                "down": (size.expert_inner, size.width)}  # fmt: skip
        for name, shape in make.items():
            weight = nn.Parameter(torch.randn(self.n_own, *shape) * 0.02)
            weight.register_hook(lambda gradient: gradient / ranks)  # of the mean loss of all ranks
            setattr(self, name, weight)

    def own(self) -> list[nn.Parameter]:
        return [self.up, self.gate, self.down]

    def _serve(self, rows: torch.Tensor, counts: list[int]) -> torch.Tensor:
        """The rows of one expert lie together."""
        served = []
        for expert, part in enumerate(rows.split(counts)):
            up, gate, down = (weight[expert].to(rows.dtype) for weight in self.own())
            served.append((F.silu(part @ gate) * (part @ up)) @ down)
        return torch.cat(served)

    def _counts(self, expert: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows for each expert, of this rank; and for each own expert, of each rank."""
        given = (expert[:, None] == torch.arange(self.n_experts, device=expert.device)).sum(0)
        taken = torch.empty_like(given)
        dist.all_to_all_single(taken, given)
        return given, taken.view(self.ranks, self.n_own)

    def _ask_all(self, rows: torch.Tensor, expert: torch.Tensor) -> torch.Tensor:
        """Rows in the order of their experts go to the ranks that have these, and come back."""
        given, taken = self._counts(expert)
        give = given.view(self.ranks, self.n_own).sum(1).tolist()
        take = taken.sum(1).tolist()
        arrived = Exchange.apply(rows, give, take)
        owner = torch.arange(self.n_own, device=rows.device).repeat(self.ranks)
        order = owner.repeat_interleave(taken.flatten()).argsort(stable=True)
        served = self._serve(arrived[order], taken.sum(0).tolist())
        return Exchange.apply(served[order.argsort()], take, give)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.flatten(0, -2)
        weight, expert = self.router(tokens).softmax(-1).topk(CHOSEN)
        order = expert.flatten().argsort(stable=True)
        rows = self._ask_all(tokens[order // CHOSEN], expert.flatten()[order])
        answers = rows[order.argsort()].view(len(tokens), CHOSEN, -1)
        return (answers * weight[..., None]).sum(1).view_as(x)


def give_experts(model: Any, size: Size, rank: int, ranks: int, device: str) -> list[nn.Parameter]:
    """Every other layer gets experts. Returns their weights, which differ from rank to rank."""
    own: list[nn.Parameter] = []
    with torch.device(device):
        for layer in model.model.layers[::2]:
            layer.mlp = Experts(size, rank, ranks)
            own.extend(layer.mlp.own())
    return own


# ---- The ways to divide it ---------------------------------------------------------------------


def shard(model: Any, device: str, ranks: int, apart: list[nn.Parameter]) -> Any:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh = init_device_mesh(device, (ranks,))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for part in (*model.model.layers, model):
        fully_shard(part, mesh=mesh, mp_policy=policy, ignored_params=set(apart))
    return model


def shard_flat(model: Any, layer: Any, device: str, is_limited: bool) -> Any:
    """FSDP as it was first: a unit's parameters lie in one flat tensor. Without the limit the host
    enqueues all-gathers as fast as it can."""
    from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    precision = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    return FullyShardedDataParallel(
        model, auto_wrap_policy=ModuleWrapPolicy({type(layer)}),
        mixed_precision=precision, limit_all_gathers=is_limited,
        device_id=torch.cuda.current_device() if device == "cuda" else torch.device(device),
    )  # fmt: skip


def replicate(model: Any, device: str) -> tuple[Any, Learn]:
    whole = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    return whole, cast_learn(whole, device)


def share_layers(model: Any, device: str, ranks: int) -> list[nn.Parameter]:
    """Tensor parallelism: each rank has some heads, and some of what an MLP has inside. Returns the
    weights that all ranks have whole."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    attention = {f"self_attn.{name}_proj": ColwiseParallel() for name in "qkv"}
    mlp = {f"mlp.{name}_proj": ColwiseParallel() for name in ("gate", "up")}
    back = {name: RowwiseParallel() for name in ("self_attn.o_proj", "mlp.down_proj")}
    mesh = init_device_mesh(device, (ranks,))
    for layer in model.model.layers:
        parallelize_module(layer, mesh, {**attention, **mlp, **back})
    return [weight for weight in model.parameters() if not isinstance(weight, DTensor)]


def cast_loss(model: Any, device: str, ids: torch.Tensor) -> torch.Tensor:
    with torch.autocast(device, dtype=torch.bfloat16):
        loss: torch.Tensor = model(input_ids=ids, labels=ids).loss
    return loss


def cast_learn(model: Any, device: str) -> Learn:
    def learn(ids: torch.Tensor) -> torch.Tensor:
        loss = cast_loss(model, device, ids)
        loss.backward()
        return loss.detach()

    return learn


def sharded_learn(model: Any) -> Learn:
    def learn(ids: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = model(input_ids=ids, labels=ids).loss
        loss.backward()
        return loss.detach()

    return learn


def as_step(model: Any, learn: Learn, apart: list[nn.Parameter]) -> Step:
    """Weights that are not sharded have an optimizer of their own: one takes only one sort."""
    own = set(apart)
    shared = [weight for weight in model.parameters() if weight not in own]
    weights = [some for some in (shared, apart) if some]
    optimizers = [torch.optim.AdamW(some, lr=1e-4, fused=True) for some in weights]

    def step(ids: torch.Tensor) -> torch.Tensor:
        loss = learn(ids)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        return loss

    return step


def voting_step(model: Any, device: str) -> Step:
    """DDP in which a rank that is refused memory tells the others, before the gradients are
    averaged: all of them leave the step out, whose loss is then no number."""
    whole = nn.parallel.DistributedDataParallel(
        model, gradient_as_bucket_view=True, broadcast_buffers=False
    )
    optimizer = torch.optim.AdamW(whole.parameters(), lr=1e-4, fused=True)
    voters = dist.new_group(backend="gloo")

    def forward(ids: torch.Tensor) -> torch.Tensor | None:
        try:
            if device == "cpu" and ids.shape[0] > TOO_MANY // 2:
                raise torch.OutOfMemoryError("too many for the script that is tried out")
            return cast_loss(whole, device, ids)
        except torch.OutOfMemoryError:
            return None

    def step(ids: torch.Tensor) -> torch.Tensor:
        loss = forward(ids)
        refused = torch.tensor(int(loss is None))
        dist.all_reduce(refused, group=voters)
        if loss is None or refused.item():
            return torch.tensor(float("nan"))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def make_step(kind: str, device: str, size: Size) -> Step:
    """A training step of one rank: `fsdp1`, `fsdp1-unlimited`, `fsdp1-t5`, `fsdp2`, `ddp`, `tp`,
    `refused`, `moe`, `compiled`, `compiled-step`."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if kind == "fsdp1-t5":
        model = make_t5(size, device)
        model = shard_flat(model, model.encoder.block[0], device, is_limited=True)
        return as_step(model, sharded_learn(model), [])
    model = make_llama(size, device)
    compiler: dict[str, Any] = {"dynamic": True}
    if device == "cpu":
        compiler["backend"] = "aot_eager"  # to try it out, without minutes of C++
    if kind == "refused":
        return voting_step(model, device)
    if kind == "tp":
        whole = share_layers(model, device, ranks)
        return as_step(model, cast_learn(model, device), whole)
    if kind == "ddp":
        return as_step(*replicate(model, device), [])
    if kind == "compiled-step":
        torch._dynamo.config.optimize_ddp = False  # it cannot take checkpoints apart
        return torch.compile(as_step(*replicate(model, device), []), **compiler)
    if kind.startswith("fsdp1"):
        model = shard_flat(model, model.model.layers[0], device, is_limited=kind == "fsdp1")
        return as_step(model, sharded_learn(model), [])
    apart = give_experts(model, size, rank, ranks, device) if kind == "moe" else []
    if kind == "compiled":
        for layer in model.model.layers:
            layer.compile(**compiler)
    model = shard(model, device, ranks, apart)
    return as_step(model, sharded_learn(model), apart)
