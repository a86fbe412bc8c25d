# SPDX-License-Identifier: Apache-2.0
"""One piece of the training of lasting.py, on whatever allocator its environment asks for.

A Llama with corrections of low rank, which alone are trained: so its checkpoint is small, and what
the device holds is not. Step n is the same whichever piece it falls into, but for what kernels add
up in any order.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import child
import torch
from plain_models import Draw, Llama, texts

EVALUATE_EVERY, SAVE_EVERY, CATCH_EVERY = 50, 100, 150  # steps
LOAD_EVERY = 3  # checkpoints
CAPTURE_EVERY = 4  # evaluations
TOO_LARGE = (96, 1024)
COUNTS = ("retries", "refusals", "caught", "evaluations", "replays", "captures", "saves", "loads")


class Texts(torch.utils.data.Dataset[torch.Tensor]):
    """Item n is the whole batch of step n, of a size of its own; workers make it."""

    def __init__(self, words: int, tiny: bool, seed: int) -> None:
        self.words, self.tiny, self.seed = words, tiny, seed

    def __getitem__(self, n: int) -> torch.Tensor:
        return texts(Draw(10**8 * self.seed + n, "cpu"), self.words, self.tiny)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Evaluation:
    """Losses of texts that are not trained on: by a graph, which says what the plain way says."""

    def __init__(self, model: Llama, given: argparse.Namespace, counts: dict[str, int]) -> None:
        self.model, self.counts = model, counts
        self.words, self.tiny, self.device = given.words, given.tiny, given.device
        self.graph: torch.cuda.CUDAGraph | None = None

    def fixed(self, n: int) -> torch.Tensor:
        return Draw(10**6 + n, self.device).integers(self.words, 4, 256)

    def capture(self) -> None:
        """Another one, in memory of its own; the last one's goes back."""
        self.graph = self.out = None
        self.given = self.fixed(0)
        self.model(self.given)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # the loader pins memory
            self.out = self.model(self.given)
        self.graph = graph
        self.counts["captures"] += 1

    def replay(self, n: int) -> None:
        assert self.graph is not None
        assert self.out is not None
        self.given.copy_(self.fixed(n))
        self.graph.replay()
        self.counts["replays"] += 1
        found, expected = float(self.out), float(self.model(self.given))
        assert abs(found - expected) < 0.01 * expected, f"the graph says {found}, not {expected}"

    @torch.no_grad()
    def run(self, n: int) -> None:
        self.model.eval()
        for i in range(4):
            self.model(texts(Draw(10**6 + 4 * n + i, self.device), self.words, self.tiny))
        if self.device == "cuda":
            if self.graph is None or self.counts["evaluations"] % CAPTURE_EVERY == 0:
                self.capture()
            for i in range(3):
                self.replay(n + i)
        self.model.train()
        self.counts["evaluations"] += 1


class Training:
    def __init__(self, given: argparse.Namespace) -> None:
        self.given, self.device = given, given.device
        self.file = Path(given.state) / f"{given.allocator}.pt"
        torch.manual_seed(0)
        with torch.device(given.device):
            shape = (2, 32, 2, 2) if given.tiny else (16, 2048, 16, 4)
            self.model = Llama(given.words, *shape)
        self.trained = {k: v for k, v in self.model.named_parameters() if v.requires_grad}
        self.optimizer = torch.optim.AdamW(self.trained.values(), lr=3e-4)
        self.counts = dict.fromkeys(COUNTS, 0)
        self.step_number = self.piece = 0
        self.seconds = 0.0  # of the pieces before
        self.evaluation = Evaluation(self.model, given, self.counts)

    # ---- Checkpoints

    def state(self) -> dict[str, Any]:
        return {"weights": self.trained, "optimizer": self.optimizer.state_dict()}

    def save(self, seconds: float) -> None:
        self.counts["saves"] += 1
        progress = {
            "step": self.step_number, "piece": self.piece, "seconds": seconds,
            "counts": self.counts,
        }  # fmt: skip
        following = self.file.with_suffix(".next")
        torch.save({**self.state(), **progress}, following)
        following.replace(self.file)

    def load(self) -> dict[str, Any]:
        found: dict[str, Any] = torch.load(self.file, map_location="cpu")
        with torch.no_grad():
            for name, weight in self.trained.items():
                weight.copy_(found["weights"][name])
        self.optimizer.load_state_dict(found["optimizer"])
        return found

    def load_again(self) -> None:
        """What was saved a moment ago is what there is."""
        before = {name: weight.detach().clone() for name, weight in self.trained.items()}
        self.load()
        for name, weight in self.trained.items():
            assert torch.equal(weight, before[name]), f"{name} was not saved as it is"
        self.counts["loads"] += 1

    def go_on(self) -> None:
        if self.file.exists():
            found = self.load()
            self.step_number, self.piece = found["step"], found["piece"]
            self.seconds = found["seconds"]
            self.counts.update(found["counts"])
        self.piece += 1

    # ---- Steps

    def try_step(self, ids: torch.Tensor) -> float | None:
        """The loss; None: it was refused memory, and all that it had is gone."""
        try:
            loss = self.model(ids.to(self.device, non_blocking=True))
            loss.backward()
            self.optimizer.step()
            return float(loss)
        except torch.OutOfMemoryError:
            return None
        finally:
            self.optimizer.zero_grad(set_to_none=True)

    def step(self, ids: torch.Tensor) -> float | None:
        torch.manual_seed(self.step_number)
        loss = self.try_step(ids)
        self.counts["refusals"] += loss is None
        assert loss is None or loss < 100, f"step {self.step_number} has a loss of {loss}"
        self.step_number += 1
        return loss

    def ask_too_much(self) -> None:
        """A batch that cannot fit: it is refused, and the training goes on. What was held for it is
        given back, and is no part of the rows."""
        if self.device == "cuda":
            ids = torch.zeros(TOO_LARGE, dtype=torch.int64)
            assert self.try_step(ids) is None, "a batch that was to be too large is not"
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            self.counts["caught"] += 1

    def between_steps(self, seconds: float) -> None:
        n = self.step_number
        if n % EVALUATE_EVERY == 0:
            self.evaluation.run(n)
        if n % SAVE_EVERY == 0:
            self.save(seconds)
            if self.counts["saves"] % LOAD_EVERY == 0:
                self.load_again()
        if n % CATCH_EVERY == 0:
            self.ask_too_much()


class Rows:
    """One for every few seconds, in the state's folder and on the channel."""

    def __init__(self, training: Training, channel: Any) -> None:
        self.training, self.channel = training, channel
        given = training.given
        self.file = Path(given.state) / f"{given.allocator}.jsonl"
        self.retries_before = training.counts["retries"]
        self.forget_what_was_lost()
        self.begin()

    def forget_what_was_lost(self) -> None:
        """Rows behind the checkpoint, of a piece that was killed."""
        if self.file.exists():
            lines = self.file.read_text().splitlines()
            kept = [s for s in lines if json.loads(s)["step"] <= self.training.step_number]
            self.file.write_text("".join(f"{line}\n" for line in kept))

    def begin(self) -> None:
        self.times: list[float] = []
        self.losses: list[float] = []
        if self.training.device == "cuda":
            torch.cuda.reset_peak_memory_stats()

    def memory(self) -> dict[str, Any]:
        found = child.peak_memory(self.training.device)
        self.training.counts["retries"] = self.retries_before + found.pop("retries")
        used, held = found["used"], found["held"]
        free = torch.cuda.mem_get_info()[0] if self.training.device == "cuda" else 0
        excess = 100 * (held / used - 1) if used else 0.0
        return {**found, "fragmentation_percent": round(excess, 2), "free": free,
                "resident": resident_bytes()}  # fmt: skip

    def add(self, seconds: float) -> None:
        ordered = sorted(self.times)
        row = {
            "allocator": self.training.given.allocator, "piece": self.training.piece,
            "seconds": round(seconds, 1), "step": self.training.step_number,
            "step_ms": round(statistics.median(ordered), 2),
            "p99_ms": round(ordered[int(0.99 * len(ordered))], 2),
            "worst_ms": round(ordered[-1], 2),
            "loss": round(statistics.mean(self.losses), 4) if self.losses else None,
            **self.memory(), **self.training.counts,
        }  # fmt: skip
        line = json.dumps(row)
        with self.file.open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")
        print(line, file=self.channel, flush=True)
        self.begin()


def batches(training: Training) -> Iterator[torch.Tensor]:
    given = training.given
    loader = torch.utils.data.DataLoader(
        Texts(given.words, given.tiny, given.seed), batch_size=None, num_workers=2,
        sampler=range(training.step_number, 10**9), pin_memory=given.device == "cuda",
    )  # fmt: skip
    return iter(loader)


def train(training: Training, rows: Rows) -> None:
    given = training.given
    begin = last_row = time.monotonic()

    def passed() -> float:
        return training.seconds + time.monotonic() - begin

    for ids in batches(training):
        if time.monotonic() - begin >= given.seconds or training.step_number >= given.steps:
            break
        step_begins = time.monotonic()
        loss = training.step(ids)
        rows.times.append(1e3 * (time.monotonic() - step_begins))
        rows.losses += [] if loss is None else [loss]
        training.between_steps(passed())
        if time.monotonic() - last_row >= given.every:
            rows.add(passed())
            last_row = time.monotonic()
    if rows.times:
        rows.add(passed())
    training.save(passed())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--state", required=True)
    parser.add_argument("--allocator", required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--steps", type=int, default=10**9)
    parser.add_argument("--every", type=float, default=10)
    parser.add_argument("--cap", type=float, default=16, help="GiB")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tiny", action="store_true")
    given = parser.parse_args()
    given.words = 128 if given.tiny else 32000
    channel = child.open_channel()
    if given.device == "cuda":
        child.set_cap(given.cap * 2**30)
    training = Training(given)
    training.go_on()
    train(training, Rows(training, channel))
    print("{}", file=channel, flush=True)  # no more rows
    return 0


if __name__ == "__main__":
    sys.exit(main())
