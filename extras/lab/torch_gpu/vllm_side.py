# SPDX-License-Identifier: Apache-2.0
"""The processes of vllm_sleep.py: what makes a random Llama (`make`), and an engine of vLLM's that
answers by it, sleeps and wakes (`serve`)."""

from __future__ import annotations

import hashlib
import os
import random
import sys
import time
from typing import Any

import child
import torch

SEED = 5
WORDS = 32000
Row = dict[str, Any]


def make(folder: str) -> None:
    """1.6 thousand million weights of 2 bytes."""
    import transformers

    torch.manual_seed(SEED)
    config = transformers.LlamaConfig(
        vocab_size=WORDS, hidden_size=2048, intermediate_size=8192, num_hidden_layers=24,
        num_attention_heads=16, num_key_value_heads=8, max_position_embeddings=4096,
    )  # fmt: skip
    with torch.device("cuda"):
        model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    model.save_pretrained(folder)


def make_prompts(count: int) -> list[Row]:
    rand = random.Random(SEED)
    lengths = [rand.randrange(16, 512) for _ in range(count)]
    return [{"prompt_token_ids": [rand.randrange(10, WORDS) for _ in range(n)]} for n in lengths]


# ---- What an engine's worker is asked; the first argument is the worker ------------------------


def wait(_: Any) -> None:
    torch.cuda.synchronize()


def look(_: Any) -> Row:
    """What the device has in use, of all and of PyTorch; and the allocator of what sleeps."""
    from vllm.device_allocator.cumem import CuMemAllocator

    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    found = CuMemAllocator.instance
    return {
        "in_use": total - free,
        "reserved": torch.cuda.memory_reserved(),
        "tagged": found.get_current_usage() if found is not None else 0,
        "allocator": type(found).__name__,
        "backend": torch.cuda.get_allocator_backend(),
    }


# ---- The engine --------------------------------------------------------------------------------


class Engine:
    def __init__(self) -> None:
        import vllm

        self.vllm = vllm
        self.make = vllm.LLM  # vLLM imports it when it is asked for
        self.llm: Any = None

    def begin(self, folder: str, compiled: bool, requests: int) -> Row:
        """The model in an engine, with graphs, and a cache of the rest of 80 % of the device."""
        began = time.perf_counter()
        how: Row = {} if compiled else {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}
        self.llm = self.make(
            model=folder, skip_tokenizer_init=True, enable_sleep_mode=True, seed=SEED,
            dtype="bfloat16", max_model_len=2048, max_num_batched_tokens=2048,
            max_num_seqs=requests, gpu_memory_utilization=0.8, enable_prefix_caching=False,
            compilation_config={**how, "cudagraph_capture_sizes": [1, 2, 4, 8, 16, 32]},
        )  # fmt: skip
        self.prompts = make_prompts(requests)
        seconds = round(time.perf_counter() - began, 2)
        return {"vllm": self.vllm.__version__, "start_seconds": seconds, **self.ask(look)}

    def ask(self, function: Any) -> Any:
        return self.llm.collective_rpc(function)[0]

    def say(self) -> Row:
        """A hash of each answer: its tokens, and how likely each was."""
        began = time.perf_counter()
        asked = self.vllm.SamplingParams(
            temperature=0, max_tokens=64, ignore_eos=True, detokenize=False, logprobs=0
        )
        answers = self.llm.generate(self.prompts, asked, use_tqdm=False)
        seconds = round(time.perf_counter() - began, 3)
        said = [
            (list(one.token_ids), [sorted((t, p.logprob) for t, p in each.items())
                                   for each in one.logprobs])
            for one in (answer.outputs[0] for answer in answers)
        ]  # fmt: skip
        hashes = [hashlib.sha1(repr(one).encode()).hexdigest()[:12] for one in said]
        n_different = len({token for tokens, _ in said for token in tokens})
        return {"said": hashes, "different_tokens": n_different, "say_seconds": seconds}

    def cycle(self, level: int, reload: bool) -> Row:
        """Sleep and wake. After level 2 the weights are what was there, unless they are loaded
        again, from the model's folder."""
        began = time.perf_counter()
        self.llm.sleep(level=level)
        slept = time.perf_counter()
        asleep = self.ask(look)
        woken = self.timed(lambda: self.llm.wake_up(["weights"] if level == 2 else None))
        row = {"sleep": slept - began, "wake": woken, "asleep": asleep["in_use"]}
        row["reserved"] = asleep["reserved"]
        if reload:
            row["reload"] = self.timed(lambda: self.llm.collective_rpc("reload_weights"))
        if level == 2:
            row["wake"] += self.timed(lambda: self.llm.wake_up(["kv_cache"]))
        return {**row, "awake": self.ask(look)["in_use"]}

    def timed(self, act: Any) -> float:
        """Seconds until the GPU has done it, too."""
        began = time.perf_counter()
        act()
        self.ask(wait)
        return time.perf_counter() - began


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(sys.argv[2])
    else:
        answers = child.open_channel()
        child.serve(Engine(), answers)
        os._exit(0)  # what vLLM takes down at an exit is not what is asked here
