# SPDX-License-Identifier: Apache-2.0
"""The process of serving.py: a random Llama behind transformers' continuous batching."""

from __future__ import annotations

import gc
import hashlib
import random
import sys
import time
from typing import Any, NamedTuple

import child
import torch
import transformers
from transformers.generation.configuration_utils import ContinuousBatchingConfig

SEED = 5
Row = dict[str, Any]


class Size(NamedTuple):
    layers: int
    width: int
    blocks: int
    """of 256 tokens, in the paged cache"""
    batch_tokens: int
    longest: int
    """tokens of a text, of which what is said has an eighth"""


SIZES = {"gpu": Size(8, 2048, 192, 1024, 4096), "tiny": Size(2, 32, 8, 64, 64)}


def make_model(size: Size, device: str) -> Any:
    torch.manual_seed(SEED)
    heads = max(1, size.width // 128)
    config = transformers.LlamaConfig(
        vocab_size=8192, hidden_size=size.width, intermediate_size=4 * size.width,
        num_hidden_layers=size.layers, num_attention_heads=heads, num_key_value_heads=heads,
        max_position_embeddings=8192, attn_implementation="paged|sdpa",
    )  # fmt: skip
    with torch.device(device):
        return transformers.LlamaForCausalLM(config).to(torch.bfloat16).eval()


def make_requests(size: Size, count: int) -> list[tuple[list[int], int]]:
    """Tokens in, and how many out: most are short, and some very long."""
    rand = random.Random(SEED)
    made = []
    for _ in range(count):
        length = max(8, min(size.longest, int(size.longest / 24 * rand.lognormvariate(0, 1.2))))
        out = max(4, min(size.longest // 8, int(length / 4 * rand.uniform(0.2, 2))))
        made.append(([rand.randrange(10, 8192) for _ in range(length)], out))
    return made


class Server:
    def __init__(self, device: str, size: str) -> None:
        self.device, self.size = device, SIZES[size]
        self.manager: Any = None

    def begin(self, graphs: bool) -> Row:
        """The model, the cache and, with graphs, those of the largest shapes."""
        if self.device == "cuda":
            torch.cuda.init()
            torch.cuda.synchronize()
        self.context = self.used()
        self.graphs = graphs
        self.model = make_model(self.size, self.device)
        seconds = self.start()
        backend = torch.cuda.get_allocator_backend() if self.device == "cuda" else "cpu"
        return {"backend": backend, "start_seconds": seconds, "on_device": self.held()}

    def start(self) -> float:
        began = time.perf_counter()
        config = ContinuousBatchingConfig(
            num_blocks=self.size.blocks, max_batch_tokens=self.size.batch_tokens,
            use_cuda_graph=self.graphs, use_async_batching=False, allow_block_sharing=False,
            max_requests_per_batch=256, q_padding_interval_size=self.size.batch_tokens // 4,
            kv_padding_interval_size=self.size.blocks * 256 // 4, seed=SEED,
        )  # fmt: skip
        said = transformers.GenerationConfig(do_sample=False, eos_token_id=-1, max_new_tokens=64)
        with torch.no_grad():
            self.manager = self.model.init_continuous_batching(said, config)
            self.manager.warmup()
        return round(child.synchronized(self.device) - began, 3)

    def used(self) -> int:
        if self.device == "cpu":
            return 0
        free, total = torch.cuda.mem_get_info()
        return total - free

    def held(self) -> int:
        return self.used() - self.context

    def burst(self, count: int, skip: int) -> Row:
        """So many requests at once, and what each took until it was answered whole."""
        asked = make_requests(self.size, skip + count)[skip:]
        if self.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        # One that has been stopped drops what it is asked until it starts. It starts when all
        # requests are there: how they are put together is the same each time.
        self.manager.background_thread_status.clear()
        began = time.perf_counter()
        for n, (tokens, out) in enumerate(asked):
            if self.manager.add_request(tokens, request_id=f"{n}", max_new_tokens=out) is None:
                raise RuntimeError(f"request {n} was dropped")
        self.manager.start()
        answers: dict[str, Any] = {}
        while len(answers) < count and self.manager.is_running():
            answer = self.manager.get_result(timeout=1)
            if answer is not None and answer.is_finished():
                answers[answer.request_id] = answer
        seconds = child.synchronized(self.device) - began
        self.manager.stop(block=True, keep_for_next_session=True)
        took = [one.lifespan[1] - began for one in answers.values()]
        said = [answers[f"{n}"].generated_tokens for n in range(count) if f"{n}" in answers]
        errors = [one.error for one in answers.values() if one.error]
        return {
            "answered": len(answers) - len(errors),
            "asked": count,
            "tokens": sum(map(len, said)),
            "tokens_in": sum(len(tokens) for tokens, _ in asked),
            "seconds": round(seconds, 3),
            "latencies": [round(one, 4) for one in sorted(took)],
            "said": [hashlib.sha1(repr(one).encode()).hexdigest()[:12] for one in said],
            "errors": errors[:3],
            **child.peak_memory(self.device),
            "on_device": self.held(),
        }

    def rest(self) -> Row:
        """On Ductile all memory sleeps, graphs' too. Elsewhere the cache and the graphs go."""
        if self.device == "cuda":  # without the kernels that were loaded meanwhile
            self.context = self.used() - torch.cuda.memory_reserved()
        began = child.synchronized(self.device)
        if self.sleeps():
            import ductile_gpu.torch as memory

            memory.sleep_all()
        else:
            self.manager = None
            self.model.destroy_cached_continuous_batching_manager()
            gc.collect()
        if self.device == "cuda":
            torch.cuda.empty_cache()
        return {"seconds": round(time.perf_counter() - began, 3), "on_device": self.held()}

    def rise(self) -> Row:
        began = child.synchronized(self.device)
        if self.sleeps():
            import ductile_gpu.torch as memory

            memory.wake_all()
        else:
            self.start()
        return {"seconds": round(time.perf_counter() - began, 3), "on_device": self.held()}

    def sleeps(self) -> bool:
        return self.device == "cuda" and torch.cuda.get_allocator_backend() == "ductile"


if __name__ == "__main__":
    transformers.utils.logging.set_verbosity_error()
    child.serve(Server(*sys.argv[1:3]), child.open_channel())
