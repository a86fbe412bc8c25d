# SPDX-License-Identifier: Apache-2.0
"""Programs that run out of memory, recorded and reported by the two commands of the README.

1. GPT-2 medium whose batch doubles until the GPU has no memory left: `record`, then `report`. What
   the report says of the refusal is held against what PyTorch's own exception says.
2. The same with the options of the README on Ductile.
3. Four ranks under torchrun, of which the last has the largest batch: `record -o ranks/`, `report
   ranks`.

Prints what the commands print. Exit status: 1 when one fails, or a figure is another. At most
--seconds.
"""

from __future__ import annotations

import argparse
import collections
import json
import pickle
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import allocators

GPT = """\
import sys, torch
from transformers import GPT2Config, GPT2LMHeadModel

SIZES = {"tiny": (2, 32, 2, 100, 16), "medium": (24, 1024, 16, 50257, 1024)}
layers, width, heads, words, length = SIZES[sys.argv[1]]
torch.manual_seed(0)
config = {"n_layer": layers, "n_embd": width, "n_head": heads, "vocab_size": words}
model = GPT2LMHeadModel(GPT2Config(**config, n_positions=length)).cuda()
optimizer = torch.optim.AdamW(model.parameters())

def train(batch):
    tokens = torch.randint(0, words, (batch, length), device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        loss = model(tokens, labels=tokens).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

batch = 2
while True:
    for step in range(2):
        train(batch)
    print("batch", batch, "fits", flush=True)
    batch *= 2
"""

RANK = """\
import torch, torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.cuda.set_device(0)
model = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048) for _ in range(4)]).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(5):
    batch = 4096 * (4 if rank == dist.get_world_size() - 1 else 1)
    model(torch.randn(batch, 2048, device="cuda")).relu().sum().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""


class Place:
    """A folder where commands are typed, until a time."""

    def __init__(self, folder: Path, seconds: float) -> None:
        self.folder = folder
        self.end = time.monotonic() + seconds
        self.problems: list[str] = []

    def type(self, *words: str, where: dict[str, str] | None = None) -> tuple[int, str]:
        """ductile-gpu with these words."""
        print(f"$ ductile-gpu {' '.join(words)}", flush=True)
        begin = time.monotonic()
        status, said = allocators.run(
            [sys.executable, "-m", "ductile_gpu", *words], self.end - begin,
            where=where or allocators.training_environment("native"), cwd=self.folder,
        )  # fmt: skip
        for line in said.splitlines():
            print(f"  {line[:400]}")
        print(f"  status {status} after {time.monotonic() - begin:.1f} s", flush=True)
        return status, said

    def expect(self, holds: bool, what: str) -> None:
        print(f"{'holds' if holds else 'FAILS'}: {what}", flush=True)
        if not holds:
            self.problems.append(what)


# ---- One process --------------------------------------------------------------------------------


def in_gib(said: str, pattern: str) -> float:
    """A size in what PyTorch says; -1: it does not say it."""
    found = re.search(pattern.replace("SIZE", r"([0-9.]+) ([KMG]iB)"), said)
    scale = {"KiB": 2**-20, "MiB": 2**-10, "GiB": 1.0}
    return float(found[1]) * scale[found[2]] if found else -1.0


def is_near(bytes_found: int, gib: float) -> bool:
    """PyTorch prints two digits behind the point."""
    return abs(bytes_found / 2**30 - gib) <= 0.006


def whose(path: Path) -> collections.Counter[tuple[str, str]]:
    """Allocations and refusals by the innermost frame of their stack."""
    with open(path, "rb") as file:
        snapshot = pickle.load(file)
    return collections.Counter(
        (entry["action"], entry["frames"][0]["name"] if entry["frames"] else "no stack")
        for trace in snapshot["device_traces"]
        for entry in trace
        if entry["action"] in ("alloc", "oom")
    )


def report_of(place: Place, recording: str) -> dict[str, Any]:
    """What `report` says, for people and for programs."""
    status, _ = place.type("report", recording, "-o", "page.html")
    place.expect(status == 0, f"{recording} is reported")
    status, said = place.type("report", "--json", "--quick", recording)
    return dict(json.loads(said.splitlines()[-1])) if status == 0 else {}


def try_native(place: Place, size: str) -> None:
    status, said = place.type("record", "gpt.py", size)
    place.expect(status == 1 and "OutOfMemoryError" in said, "it ran out of memory")
    found = report_of(place, "gpt.pickle").get("refused") or {}
    if not found:
        place.expect(False, "the report has the refusal")
        return
    print({name: value for name, value in found.items() if name != "stack"})
    asked = in_gib(said, "Tried to allocate SIZE")
    live = in_gib(said, "SIZE is allocated by PyTorch")
    free = in_gib(said, "SIZE is reserved by PyTorch but unallocated")
    room = in_gib(said, "of which SIZE is free")
    place.expect(is_near(found["request_bytes"], asked), f"{asked:.2f} GiB asked")
    place.expect(is_near(found["live_bytes"] + found["pending_bytes"], live), f"{live:.2f} live")
    place.expect(
        is_near(found["free_bytes"] or 0, free), f"{free:.2f} free in {found['holes']} holes"
    )
    place.expect(is_near(found["device_free_bytes"], room), f"{room:.2f} free on the device")
    place.expect(found["holes"] is not None, "the holes are counted")
    place.expect(found["by"] is not None, f"{found['by']} asked")
    print("whose:", whose(place.folder / "gpt.pickle").most_common(12))


def try_ductile(place: Place, size: str) -> None:
    where = allocators.training_environment("ductile")
    status, said = place.type("record", "-o", "ours.pickle", "gpt.py", size, where=where)
    place.expect(status == 1 and "OutOfMemoryError" in said, "under Ductile it ran out of memory")
    found = report_of(place, "ours.pickle").get("refused") or {}
    print({name: value for name, value in found.items() if name != "stack"})
    place.expect(found.get("holes") is not None, "the holes are counted")


# ---- Ranks --------------------------------------------------------------------------------------


def try_ranks(place: Place, n: int) -> None:
    launch = ("-m", "torch.distributed.run", "--nproc-per-node", str(n), "rank.py")
    status, _ = place.type("record", "-o", "ranks/", *launch)
    names = sorted(path.name for path in (place.folder / "ranks").glob("*.pickle"))
    place.expect(status == 0 and len(names) == n, f"{n} ranks are recorded: {', '.join(names)}")
    status, said = place.type("report", "ranks", "-o", "ranks.html")
    place.expect(status == 0 and said.startswith(f"{n} recordings"), "the ranks are reported")
    place.expect(f"rank{n - 1}" in said.splitlines()[0], "the largest is named")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=220)
    parser.add_argument("--size", default="medium", choices=("tiny", "medium"))
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--json", action="store_true", help="what failed as a JSON list, last")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = Place(Path(folder), given.seconds)
        (place.folder / "gpt.py").write_text(GPT)
        (place.folder / "rank.py").write_text(RANK)
        try_native(place, given.size)
        try_ranks(place, given.ranks)
        try_ductile(place, given.size)
    print(json.dumps(place.problems) if given.json else f"{len(place.problems)} problems")
    return int(bool(place.problems))


if __name__ == "__main__":
    sys.exit(main())
