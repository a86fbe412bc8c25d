# SPDX-License-Identifier: Apache-2.0
"""generate() of a model of 1.2 B parameters with random weights under one cache of transformers.

    python elastic_generate.py elastic|dynamic|static PROMPT NEW TOKENS.pt

16 sequences; PROMPT tokens are given, NEW made. With `elastic` Ductile is PyTorch's allocator, else
PyTorch's own is. Prints a row: tokens a second, and the peak of what was in use and of what was
held beside the weights and the cache at its end. The tokens go to a file, to be compared. Half a
minute with 768 new tokens, a minute with 2,048.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

mode, prompt_length, new = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
if mode == "elastic":
    import ductile_gpu.torch as memory

    memory.enable()

import torch
import transformers
from torch.nn.attention import SDPBackend, sdpa_kernel

SEQUENCES, CHUNK = 16, 512
BACKENDS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
config = transformers.LlamaConfig(
    vocab_size=32000,
    hidden_size=2048,
    intermediate_size=8192,
    num_hidden_layers=16,
    num_attention_heads=32,
    num_key_value_heads=32,
    head_dim=64,
    max_position_embeddings=16384,
    attn_implementation="sdpa",
    dtype=torch.bfloat16,
)


def make_cache() -> Any:
    if mode == "elastic":
        from ductile_gpu.transformers import ElasticCache

        return ElasticCache(config, max_length=prompt_length + new)
    if mode == "dynamic":
        return transformers.DynamicCache(config=config)
    return transformers.StaticCache(config=config, max_cache_len=prompt_length + new)


class Clock(transformers.StoppingCriteria):  # type: ignore[misc]
    """Looks at the time of each token, and stops nothing."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def __call__(self, ids: Any, scores: Any, **_: Any) -> Any:
        self.times.append(time.perf_counter())
        return torch.zeros(ids.shape[0], dtype=torch.bool, device=ids.device)


def peaks() -> dict[str, int]:
    if mode != "elastic":
        return {
            "peak_in_use": torch.cuda.max_memory_allocated(),
            "peak_held": torch.cuda.max_memory_reserved(),
        }
    import ductile_gpu

    s = ductile_gpu.shared().stats()
    return {"peak_in_use": s.allocated_peak_bytes, "peak_held": s.reserved_peak_bytes}


torch.manual_seed(0)
torch.set_default_dtype(torch.bfloat16)  # nothing of another size before, whose holes would stay
with torch.device("cuda"):
    model = transformers.LlamaForCausalLM(config).eval()
weights = sum(p.numel() * p.element_size() for p in model.parameters())
seed = torch.Generator().manual_seed(1)
prompt = torch.randint(0, 32000, (SEQUENCES, prompt_length), generator=seed).to("cuda")
row_bytes = 2 * 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim
cache_bytes = SEQUENCES * (prompt_length + new - 1) * row_bytes
clock = Clock()
begin = time.perf_counter()
with sdpa_kernel(BACKENDS):
    out = model.generate(
        prompt,
        past_key_values=make_cache(),
        max_new_tokens=new,
        min_new_tokens=new,
        do_sample=False,
        pad_token_id=0,
        eos_token_id=None,
        disable_compile=True,
        prefill_chunk_size=CHUNK,
        stopping_criteria=transformers.StoppingCriteriaList([clock]),
    )
torch.cuda.synchronize()
end = time.perf_counter()
row: dict[str, Any] = {
    "mode": mode,
    "allocator": memory.mode() if mode == "elastic" else "native",
    "parameters": sum(p.numel() for p in model.parameters()),
    "sequences": SEQUENCES,
    "prompt": prompt_length,
    "new_tokens": new,
    "weights_bytes": weights,
    "live_cache_bytes": cache_bytes,
    "seconds": round(end - begin, 3),
    "prefill_s": round(clock.times[0] - begin, 3),
    "tokens_per_s": round(SEQUENCES * (len(clock.times) - 1) / (end - clock.times[0]), 1),
    "torch": torch.__version__,
    "transformers": transformers.__version__,
    "commit": os.environ.get("DUCTILE_COMMIT", "unknown"),
}
for name, found in peaks().items():
    row[name] = found
    row[f"{name}_over_weights_and_cache"] = round(found / (weights + cache_bytes), 4)
print(json.dumps(row), flush=True)
torch.save(out.cpu(), sys.argv[4])
