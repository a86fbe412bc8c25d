# SPDX-License-Identifier: Apache-2.0
"""The process of elastic_serving.py: a random Llama that answers by continuous batching, and
between its steps scores whole texts, under one cap."""

from __future__ import annotations

import copy
import hashlib
import itertools
import random
import sys
import time
from typing import Any, NamedTuple

import child
import torch
import transformers
from serving_side import SEED, make_model, make_requests
from transformers.generation.configuration_utils import ContinuousBatchingConfig

from ductile_gpu.transformers_paged import ElasticPagedCache, elastic_paged_cache

Row = dict[str, Any]
BLOCK = 64  # tokens
STEPS_BETWEEN_TEXTS = 4


class Size(NamedTuple):
    layers: int
    width: int
    batch_tokens: int
    longest: int
    """tokens of a prompt, of which what is said has an eighth"""
    longest_text: int
    cap: int


SIZES = {
    "gpu": Size(4, 1024, 512, 2048, 16384, 2304 << 20),
    "tiny": Size(2, 32, 64, 64, 256, 6 << 20),
}


class PlainMemory:
    """Of the CPU, where nothing is elastic."""

    unit = 1 << 20

    def __init__(
        self, page_shape: tuple[int, ...], pages: int, dtype: torch.dtype, *_: Any
    ) -> None:
        self.tensor = torch.empty(pages, *page_shape, dtype=dtype)

    def room(self) -> int:
        return 1 << 40

    def commit(self, first: int, n: int) -> bool:
        return True

    def decommit(self, first: int, n: int) -> None:
        pass

    def clear(self, first: int, pages: int) -> None:
        self.tensor[first : first + pages].zero_()

    def is_used_here(self) -> None:
        pass


class OnHost(ElasticPagedCache):
    _make_memory = PlainMemory


class OnGPU(ElasticPagedCache):
    unit = 4 << 20

    def spare(self, blocks: int) -> int:
        """And for the mask, which paged sdpa copies where its width is odd."""
        return super().spare(blocks) + (64 << 20)


def make_texts(size: Size, count: int) -> list[list[int]]:
    rand = random.Random(SEED + 1)
    lengths = [
        max(8, min(size.longest_text, int(size.longest_text / 12 * rand.lognormvariate(0, 1.2))))
        for _ in range(count)
    ]
    return [[rand.randrange(10, 8192) for _ in range(length)] for length in lengths]


class Texts:
    """What is to be scored, one every few steps, in order; the first waits where it finds no
    memory, and until it has been scored an elastic cache begins no request."""

    def __init__(self, scorer: Any, processor: Any, texts: list[list[int]], device: str) -> None:
        self.scorer, self.cache, self.waiting, self.device = scorer, processor.cache, texts, device
        self.stream = processor.inputs_and_outputs.compute_stream  # whose free memory it is
        self.scores: dict[int, float] = {}
        self.ends: dict[int, float] = {}
        self.failed_at: int | None = None  # blocks in use
        self.refused = self.out_of_memory = self.steps = self.next = 0

    def score(self, text: list[int]) -> float:
        ids = torch.tensor([text], device=self.device)
        said = self.scorer(input_ids=ids, use_cache=False).logits[0, :-1].log_softmax(-1)
        return float(said.gather(-1, ids[0, 1:, None]).mean())

    def try_one(self) -> bool:
        """False: it waits. What finds no memory beside a cache without requests never will."""
        try:
            with torch.cuda.stream(self.stream):
                self.scores[self.next] = self.score(self.waiting[self.next])
            self.ends[self.next] = time.perf_counter()
        except torch.OutOfMemoryError:
            self.out_of_memory += 1
            if self.blocks_in_use() > 0:
                self.failed_at = self.blocks_in_use()
                return False
            self.refused += 1
        self.failed_at = None
        self.next += 1
        return True

    def between_steps(self, pending: bool) -> None:
        self.steps += 1
        while not pending and self.next < len(self.waiting):
            self.try_one()
        due = min(self.steps // STEPS_BETWEEN_TEXTS, len(self.waiting))
        # Again where blocks have become free since.
        is_time = self.failed_at is None or self.blocks_in_use() < self.failed_at
        self.cache.admits = self.next >= due or (is_time and self.try_one())

    def blocks_in_use(self) -> int:
        return int(self.cache.num_blocks - len(self.cache._block_manager._uninit_block_ids))


class Server:
    def __init__(self, device: str, size: str) -> None:
        self.device, self.size = device, SIZES[size]

    def begin(self, share: float | None) -> Row:
        """The model, and a cache of that share of what the cap leaves; None: an elastic one."""
        if self.device == "cuda":
            torch.cuda.init()
            self.set_cap()
        torch.backends.cuda.matmul.allow_tf32 = False
        self.model = make_model(self.size, self.device).float()  # type: ignore[arg-type]
        tensors = itertools.chain(self.model.parameters(), self.model.buffers())
        self.scorer = copy.deepcopy(self.model, {id(one): one for one in tensors})
        self.scorer.set_attn_implementation("sdpa")
        page = 2 * self.size.layers * self.size.width * 4
        weights = sum(one.numel() * 4 for one in self.model.parameters())
        # A page's column of the mask, too: an elastic cache's has those of all that can ever be.
        whole = (self.size.cap - weights) // (BLOCK * (page + self.size.batch_tokens * 4))
        blocks = whole if share is None else int(whole * share)
        self.make_manager(blocks, share is None)
        backend = torch.cuda.get_allocator_backend() if self.device == "cuda" else "cpu"
        return {"backend": backend, "blocks": blocks, "block_bytes": BLOCK * page}

    def set_cap(self) -> None:
        import ductile_gpu

        ductile_gpu.shared().set_limit(self.size.cap)

    def make_manager(self, blocks: int, elastic: bool) -> None:
        config = ContinuousBatchingConfig(
            block_size=BLOCK, num_blocks=blocks, max_batch_tokens=self.size.batch_tokens,
            use_cuda_graph=False, use_async_batching=False, allow_block_sharing=False,
            max_requests_per_batch=256, max_memory_percent=1.0, seed=SEED,
        )  # fmt: skip
        said = transformers.GenerationConfig(do_sample=False, eos_token_id=-1, max_new_tokens=64)
        with torch.no_grad():
            self.manager = self.model.init_continuous_batching(said, config)
            if elastic:
                with elastic_paged_cache(OnHost if self.device == "cpu" else OnGPU):
                    self.manager.warmup()
            else:
                self.manager.warmup()

    def watch(self, texts: Texts) -> None:
        """Texts are scored in the thread and between the steps of the others: what runs when is
        the same each time."""
        processor = self.manager.batch_processor
        prepare, offloading = processor.prepare_next_batch, processor.offloading_manager
        offload = offloading.offload_requests
        self.most_blocks = self.put_off = 0

        def prepare_next_batch() -> bool:
            self.most_blocks = max(self.most_blocks, texts.blocks_in_use())
            pending = processor.has_pending_requests() or not self.manager.input_queue.empty()
            texts.between_steps(pending)
            return bool(prepare())

        def offload_requests() -> int:
            found = int(offload())
            self.put_off += found
            return found

        processor.prepare_next_batch = prepare_next_batch
        offloading.offload_requests = offload_requests

    def serve(self, requests: int, texts: int, seconds: float) -> Row:
        """All at once. Ends when all are answered or refused, or the server has."""
        asked = make_requests(self.size, requests)  # type: ignore[arg-type]
        processor = self.manager.batch_processor
        beside = Texts(self.scorer, processor, make_texts(self.size, texts), self.device)
        self.watch(beside)
        if self.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        self.manager.background_thread_status.clear()
        for n, (tokens, out) in enumerate(asked):
            self.manager.add_request(tokens, request_id=f"{n}", max_new_tokens=out)
        began = time.perf_counter()
        self.manager.start()
        answers: dict[str, Any] = {}
        while self.manager.is_running() and time.perf_counter() - began < seconds:
            answer = self.manager.get_result(timeout=0.2)
            if answer is not None and answer.is_finished():
                answers[answer.request_id] = answer
            if len(answers) == requests and beside.next == texts:
                break
        whole = child.synchronized(self.device) - began
        self.manager.stop(block=True, timeout=20, hard_stop=True)
        good = {n: one for n, one in answers.items() if not one.error}
        ends = [*(one.lifespan[1] for one in good.values()), *beside.ends.values()]
        n_tokens = sum(
            len(asked[int(n)][0]) + len(one.generated_tokens) for n, one in good.items()
        ) + sum(len(beside.waiting[n]) for n in beside.scores)
        errors = [one.error for one in answers.values() if one.error]
        fatal = self.manager.background_thread_status.fatal_error or next(iter(errors), None)
        return {
            "asked": requests + texts,
            "answered": len(good) + len(beside.scores),
            "refused": beside.refused,
            "out_of_memory": beside.out_of_memory,
            "put_off": self.put_off,
            "fatal": str(fatal).splitlines()[0][:200] if fatal else None,
            "steps": beside.steps,
            "most_blocks": self.most_blocks,
            "tokens": n_tokens,
            "seconds": round(whole, 3),
            "was_cut": whole >= seconds,
            "latencies": [round(one - began, 4) for one in sorted(ends)],
            "said": {n: digest(one.generated_tokens) for n, one in sorted(good.items())},
            "scores": {str(n): score for n, score in beside.scores.items()},
            **child.peak_memory(self.device),
        }


def digest(tokens: list[int]) -> str:
    return hashlib.sha1(repr(tokens).encode()).hexdigest()[:12]


if __name__ == "__main__":
    transformers.utils.logging.set_verbosity_error()
    child.serve(Server(*sys.argv[1:3]), child.open_channel())
