# SPDX-License-Identifier: Apache-2.0
"""The processes of grpo.py: a trainer with TRL's own GRPOTrainer, and the generator of the form in
which two processes hand the GPU over."""

from __future__ import annotations

import os
import random
import statistics
import sys
import time
import warnings
from multiprocessing.connection import Client, Listener
from pathlib import Path
from typing import Any, NamedTuple

import child
import datasets
import tokenizers
import torch
import transformers
import trl

warnings.filterwarnings("ignore")
LETTERS = "abcdefghijklmnopqrstuvwxyz "
SEED = 11
WARM = 3  # turns, after which memory may grow no more
TEXTS_OF = 30  # turns: TRL draws from all of them, so that fewer turns are the first of these
Row = dict[str, Any]


class Size(NamedTuple):
    layers: int
    width: int
    prompts: int
    """of a turn, completions of the same text counted"""
    new_tokens: int
    longest: int
    """letters of a prompt"""


SIZES = {"gpu": Size(4, 1536, 192, 32, 160), "tiny": Size(2, 32, 8, 6, 24)}
GENERATIONS = 8  # completions of a text


def make_tokenizer() -> Any:
    """A token for each letter."""
    words = {word: n for n, word in enumerate(["<pad>", "<s>", "</s>", *LETTERS])}
    made = tokenizers.Tokenizer(tokenizers.models.BPE(words, []))
    made.decoder = tokenizers.decoders.Fuse()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", bos_token="<s>", eos_token="</s>"
    )


def make_model(size: Size, device: str) -> Any:
    torch.manual_seed(SEED)
    config = transformers.LlamaConfig(
        vocab_size=4096, hidden_size=size.width, intermediate_size=4 * size.width,
        num_hidden_layers=size.layers, num_attention_heads=max(1, size.width // 128),
        num_key_value_heads=max(1, size.width // 128), max_position_embeddings=1024,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, attn_implementation="eager",
    )  # fmt: skip
    with torch.device(device):
        return transformers.LlamaForCausalLM(config)


def make_texts(size: Size, count: int) -> Any:
    """Of very different length, by a fixed seed."""
    rand = random.Random(SEED)
    texts = ["".join(rand.choices(LETTERS, k=rand.randint(8, size.longest))) for _ in range(count)]
    return datasets.Dataset.from_dict({"prompt": texts})


def used_on_device(device: str) -> int:
    if device == "cpu":
        return 0
    free, total = torch.cuda.mem_get_info()
    return total - free


class Phases:
    """Memory of each turn's halves: the peak of what PyTorch held, and what the device had in use
    when the half was over."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.peaks: dict[str, list[int]] = {}
        self.held: dict[str, list[int]] = {}

    def begin(self) -> None:
        if self.device == "cuda":
            torch.cuda.reset_peak_memory_stats()

    def end(self, name: str) -> None:
        child.synchronized(self.device)
        self.peaks.setdefault(name, []).append(child.peak_memory(self.device)["held"])
        self.held.setdefault(name, []).append(used_on_device(self.device))
        self.begin()

    def found(self, name: str, before: int) -> Row:
        held = self.held[name]
        return {
            "peak": max(self.peaks[name]),
            "held": max(held) - before,
            "grown": held[-1] - held[min(WARM, len(held)) - 1],
        }


class Watched(transformers.TrainerCallback):  # type: ignore[misc]
    """The end of each turn: a step of TRL's loop."""

    def __init__(self, phases: Phases) -> None:
        self.phases, self.ended = phases, [time.perf_counter()]

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.phases.end("train")
        self.ended.append(time.perf_counter())

    def seconds(self) -> float:
        """Of the median turn, without the first ones."""
        times = [late - early for early, late in zip(self.ended, self.ended[1:])]
        return round(statistics.median(times[WARM:] or times), 4)


def rewarded(log: list[str]) -> Any:
    """The share of even tokens in what was said."""

    def reward(completion_ids: list[list[int]], **_: Any) -> list[float]:
        found = [sum(one % 2 == 0 for one in said) / len(said) for said in completion_ids]
        log.append(statistics.fmean(found).hex())
        return found

    return reward


def settings(device: str, size: Size, turns: int, folder: str) -> Any:
    return trl.GRPOConfig(
        output_dir=folder, max_steps=turns, per_device_train_batch_size=size.prompts,
        num_generations=GENERATIONS, max_completion_length=size.new_tokens, beta=0.0,
        learning_rate=1e-4, lr_scheduler_type="constant", gradient_checkpointing=False,
        logging_strategy="no", save_strategy="no", report_to=[], disable_tqdm=True,
        bf16=device == "cuda", use_cpu=device == "cpu", seed=SEED, dataloader_num_workers=0,
        temperature=1.0, top_p=1.0, top_k=0,
    )  # fmt: skip


# ---- Handing over ------------------------------------------------------------------------------


def is_on_ductile() -> bool:
    return torch.cuda.is_available() and torch.cuda.get_allocator_backend() == "ductile"


def give_way(device: str) -> None:
    """What a process can do for another one: with PyTorch's allocator its cache goes, and what it
    has live stays."""
    if is_on_ductile():
        import ductile_gpu.torch as memory

        memory.sleep_all()
    if device == "cuda":
        torch.cuda.empty_cache()


def come_back() -> None:
    if is_on_ductile():
        import ductile_gpu.torch as memory

        memory.wake_all()


def weights_in(path: str, model: Any) -> list[Any]:
    """The model's parameters, in a file that both processes map."""
    sizes = [one.numel() for one in model.parameters()]
    shared = torch.from_file(path, shared=True, size=sum(sizes), dtype=torch.float32)
    return [part.view_as(one) for part, one in zip(shared.split(sizes), model.parameters())]


class Elsewhere:
    """TRL's `rollout_func`: completions of another process, for which this one gives way."""

    def __init__(self, device: str, folder: str, phases: Phases) -> None:
        self.device, self.folder, self.phases = device, Path(folder), phases
        self.generator = Client(str(self.folder / "socket"))
        self.contexts = 2 * int(self.generator.recv())
        self.weights: list[Any] = []

    def __call__(self, prompts: list[str], trainer: Any) -> Row:
        ids = trainer.processing_class(prompts)["input_ids"]
        model = trainer.accelerator.unwrap_model(trainer.model)
        self.weights = self.weights or weights_in(str(self.folder / "weights"), model)
        for target, source in zip(self.weights, model.parameters()):
            target.copy_(source.detach())
        give_way(self.device)
        self.phases.end("asleep")
        self.generator.send(ids)
        said, peak, held = self.generator.recv()
        self.phases.peaks.setdefault("generate", []).append(peak)
        self.phases.held.setdefault("generate", []).append(held)
        come_back()
        self.phases.begin()
        return {"prompt_ids": ids, "completion_ids": said, "logprobs": None}


# ---- Served ------------------------------------------------------------------------------------


def generating(phases: Phases, base: Any) -> Any:
    """TRL's trainer, which says when its completions are made."""

    class Told(base):  # type: ignore[misc]
        def _generate_single_turn(self, *given: Any, **more: Any) -> Any:
            phases.begin()
            said = super()._generate_single_turn(*given, **more)
            phases.end("generate")
            return said

    return Told


def halves() -> tuple[Any, Any]:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "plugins" / "examples"))
    import turns_grpo

    found: tuple[Any, Any] = turns_grpo.halves()
    return found


class Server:
    def __init__(self, device: str, size: str) -> None:
        self.device, self.size = device, SIZES[size]

    def train(self, form: str, turns: int, folder: str) -> Row:
        before = self.begin()
        phases, log = Phases(self.device), []
        base, optimizer, rollout = trl.GRPOTrainer, torch.optim.AdamW, None
        if form == "tags":
            base, optimizer = halves()
        if form == "two":
            rollout = Elsewhere(self.device, folder, phases)
            before = rollout.contexts
        watched = Watched(phases)
        model = make_model(self.size, self.device)
        trainer = generating(phases, base)(
            model,
            reward_funcs=rewarded(log),
            args=settings(self.device, self.size, turns, folder),
            train_dataset=make_texts(
                self.size, self.size.prompts // GENERATIONS * max(turns, TEXTS_OF)
            ),
            processing_class=make_tokenizer(),
            callbacks=[watched],
            optimizers=(optimizer(model.parameters(), lr=1e-4), None),
            rollout_func=rollout,
        )
        trainer.train()
        found = {name: phases.found(name, before) for name in phases.held}
        backend = torch.cuda.get_allocator_backend() if self.device == "cuda" else "cpu"
        row = {"backend": backend, "turns": len(watched.ended) - 1, "seconds": watched.seconds()}
        others = self.held_by_others()
        give_way(self.device)
        left = used_on_device(self.device) - others
        return {**row, "phases": found, "left": left, "others": others - before, "rewards": log}

    def generate(self, folder: str) -> Row:
        """Until the trainer has gone."""
        context = self.begin()
        phases = Phases(self.device)
        model = make_model(self.size, self.device).eval()
        weights = weights_in(str(Path(folder) / "weights"), model)
        said = transformers.GenerationConfig(
            max_new_tokens=self.size.new_tokens, do_sample=True, temperature=1.0, top_k=0,
            pad_token_id=0, bos_token_id=1, eos_token_id=2,
        )  # fmt: skip
        give_way(self.device)
        with Listener(str(Path(folder) / "socket")) as listener, listener.accept() as trainer:
            trainer.send(context)
            turns = 0
            while True:
                try:
                    ids = trainer.recv()
                except EOFError:
                    return {"turns": turns}
                turns += 1
                come_back()
                phases.begin()
                for target, source in zip(model.parameters(), weights):
                    target.data.copy_(source)
                made = self.complete(model, ids, said, turns)
                phases.end("generate")
                give_way(self.device)
                trainer.send((made, phases.peaks["generate"][-1], phases.held["generate"][-1]))

    def complete(self, model: Any, ids: list[list[int]], said: Any, turn: int) -> list[list[int]]:
        torch.manual_seed(SEED + turn)
        longest = max(map(len, ids))
        rows = torch.tensor([[0] * (longest - len(one)) + one for one in ids], device=self.device)
        with torch.no_grad():
            made = model.generate(rows, attention_mask=(rows != 0).long(), generation_config=said)
        return [cut(one) for one in made[:, longest:].tolist()]

    def held_by_others(self) -> int:
        """What is in use and not PyTorch's: contexts, libraries, their kernels, other processes."""
        mine = torch.cuda.memory_reserved() if self.device == "cuda" else 0
        return used_on_device(self.device) - mine

    def begin(self) -> int:
        """What the device has in use with no memory of ours: the context."""
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.utils.deterministic.fill_uninitialized_memory = False
        if self.device == "cuda":
            torch.cuda.init()
            torch.cuda.synchronize()
        return used_on_device(self.device)


def cut(tokens: list[int]) -> list[int]:
    """Up to and with the end."""
    return tokens[: tokens.index(2) + 1] if 2 in tokens else tokens


if __name__ == "__main__":
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    transformers.utils.logging.set_verbosity_error()
    child.serve(Server(*sys.argv[1:3]), child.open_channel())
