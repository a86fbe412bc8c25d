# SPDX-License-Identifier: Apache-2.0
"""DDP, FSDP and FSDP2 over NCCL on several GPUs: the same losses as under PyTorch's allocator?

    python distributed.py                                   # native and Ductile, and compares
    DUCTILE_TORCH=full torchrun --nproc-per-node 2 distributed.py --case fsdp-off     # one of them

Every case is a training of its own under torchrun, first native and then on Ductile, with a time
limit: one that hangs is ended, and shows where its ranks stood. Without graphs (`off`), with a
frozen teacher in graphs of several lengths beside an eager student (`part`), and with the whole
step in graphs (`whole`), communication included. What native refuses to capture is reported, and
not asked of Ductile. `copies` copies tensors between the GPUs of one process.

Ends with status 1 when a case fails or hangs on Ductile or its losses differ from native's.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import hashlib
import itertools
import json
import os
import random
import socket
import statistics
import sys
import time
import traceback
from collections.abc import Iterator
from typing import Any, Callable

import allocators
import child

WORDS, LENGTHS = 8192, (64, 160, 256, 384, 512)
CASES = (
    "copies", "ddp-off", "ddp-part", "ddp-whole", "fsdp-off", "fsdp-part", "fsdp2-off",
    "fsdp2-part", "fsdp-whole", "fsdp2-whole",
)  # fmt: skip
REFUSED = 3


# ---- One rank ----------------------------------------------------------------------------------


def wrap(kind: str, model: Any, captured: bool) -> Any:
    import torch
    import transformer

    if kind == "ddp":
        return torch.nn.parallel.DistributedDataParallel(model)
    if kind == "fsdp":
        from torch.distributed.fsdp import FullyShardedDataParallel
        from torch.distributed.fsdp.wrap import ModuleWrapPolicy

        return FullyShardedDataParallel(
            model, auto_wrap_policy=ModuleWrapPolicy({transformer.Block}), use_orig_params=True,
            limit_all_gathers=not captured,  # the host waits for events there
        )  # fmt: skip
    from torch.distributed.fsdp import fully_shard

    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    return model


class Student:
    """The model in training. `scores`, if any, weigh the tokens."""

    def __init__(self, kind: str, rank: int, captured: bool, device: str) -> None:
        import torch
        import transformer

        self.device = device
        layers, width, heads = (8, 768, 12) if device == "cuda" else (2, 64, 2)
        torch.manual_seed(1)
        with torch.device(device):
            model = transformer.Transformer(WORDS, layers, width, heads)
        self.model = wrap(kind, model, captured)
        torch.manual_seed(1 + rank)
        self.choice = random.Random(1 + rank)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4, capturable=captured)

    def batch(self, largest: int, length: int) -> Any:
        import torch

        size = self.choice.randint(1, largest)
        return torch.randint(0, WORDS, (size, length), device=self.device)

    def forget_gradients(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)

    def step(self, ids: Any, scores: Any = None) -> Any:
        import torch

        with torch.autocast(self.device, dtype=torch.bfloat16, cache_enabled=False):
            surprise = self.model(ids)
            loss = (surprise if scores is None else surprise * scores).mean()
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def eager_steps(student: Student, steps: int) -> Iterator[Any]:
    """Batch and length vary; ranks agree on the length alone."""
    lengths = random.Random(0)
    for _ in range(steps):
        student.forget_gradients()
        yield student.step(student.batch(8, lengths.choice(range(64, 513, 32))))


def steps_beside_graphs(student: Student, steps: int) -> Iterator[Any]:
    """A frozen teacher, one graph for each length, scores the tokens of an eager student."""
    import torch
    import transformer

    with torch.device("cuda"):
        teacher = transformer.Transformer(WORDS, layers=4, width=512, heads=8).bfloat16()
    graphs, pool = {}, torch.cuda.graph_pool_handle()
    for length in LENGTHS:
        ids = torch.zeros(8, length, dtype=torch.int64, device="cuda")
        with torch.no_grad():
            graph, scores = child.captured(
                lambda ids=ids: torch.sigmoid(teacher(ids) - 9), warm=2, pool=pool,
                capture_error_mode="thread_local",
            )  # fmt: skip
        graphs[length] = graph, ids, scores
    lengths = random.Random(0)
    for _ in range(steps):
        length = lengths.choice(LENGTHS)
        graph, ids, scores = graphs[length]
        batch = student.batch(8, length)
        ids[: len(batch)].copy_(batch)
        graph.replay()
        student.forget_gradients()
        yield student.step(batch, scores[: len(batch)].clone())
    for graph, _, _ in graphs.values():
        graph.reset()


def steps_in_graphs(student: Student, steps: int) -> Iterator[Any]:
    """Forward, backward and optimiser as one graph for each length, and eager work in between."""
    import torch

    for length in 4 * LENGTHS:  # DDP wants eleven steps before a capture
        student.forget_gradients()
        student.step(torch.zeros(4, length, dtype=torch.int64, device="cuda"))
    torch.cuda.synchronize()
    stream = torch.cuda.current_stream()
    graphs, pool = {}, torch.cuda.graph_pool_handle()
    for length in LENGTHS:
        ids = torch.zeros(4, length, dtype=torch.int64, device="cuda")
        graph = torch.cuda.CUDAGraph()
        student.forget_gradients()
        with torch.cuda.graph(
            graph, pool=pool, stream=stream, capture_error_mode="thread_local"
        ):  # fmt: skip
            loss = student.step(ids)
        graphs[length] = graph, ids, loss
    student.forget_gradients()
    lengths = random.Random(0)
    for _ in range(steps):
        length = lengths.choice(LENGTHS)
        graph, ids, loss = graphs[length]
        ids.random_(0, WORDS)
        noise = torch.randn(lengths.randint(1, 4096), 2048, device="cuda")
        graph.replay()
        yield loss.clone() + 0 * (noise @ noise[:1].T).sum()
        del noise
    for graph, _, _ in graphs.values():
        graph.reset()


def measure(case: str, trained: Iterator[Any], device: str) -> dict[str, Any]:
    """Takes the steps. The row that rank 0 prints."""
    import torch
    import torch.distributed as dist

    losses, times = [], []
    start = time.perf_counter()
    for loss in trained:
        if len(losses) % 8 == 0 and device == "cuda":
            torch.cuda.synchronize()  # else the host runs ahead, as it does in earnest
        losses.append(loss)
        now = time.perf_counter()
        times.append(now - start)
        start = now
    texts = [float(loss).hex() for loss in losses]
    of_all: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(of_all, texts)
    memory = child.peak_memory(device)
    digest = hashlib.sha256(" ".join(itertools.chain(*of_all)).encode()).hexdigest()[:16]
    return {
        "case": case, "ranks": len(of_all), "steps": len(losses), "digest": digest,
        "first_loss": float(losses[0]), "last_loss": float(losses[-1]),
        "step_ms": 1e3 * statistics.fmean(times[len(times) // 4 :]),
        "backend": memory["backend"], "allocated_peak": memory["used"],
        "reserved_peak": memory["held"], "overhead": memory["held"] / max(memory["used"], 1) - 1,
    }  # fmt: skip


def train(given: argparse.Namespace) -> None:
    import torch
    import torch.distributed as dist

    kind, graphs = given.case.split("-")
    child.be_deterministic("cudnn")
    device = "cpu" if given.cpu_check else "cuda"
    if device == "cuda":
        own = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(own)
        dist.init_process_group("nccl", device_id=own)
    else:
        dist.init_process_group("gloo")
    rank = dist.get_rank()
    if graphs == "whole":  # gradients are accumulated where the model was made
        torch.cuda.set_stream(torch.cuda.Stream())
    take: Callable[[Student, int], Iterator[Any]]
    take = {"off": eager_steps, "part": steps_beside_graphs, "whole": steps_in_graphs}[graphs]
    try:
        student = Student(kind, rank, graphs == "whole", device)
        row = measure(given.case, take(student, given.steps), device)
    except Exception as error:
        # A communicator with half a capture may never end: the process just goes.
        traceback.print_exc()
        print(json.dumps({"case": given.case, "rank": rank, "error": repr(error)}), flush=True)
        faulthandler.cancel_dump_traceback_later()
        time.sleep(1)
        os._exit(REFUSED)
    if rank == 0:
        print(json.dumps(row), flush=True)
    del student
    gc.collect()  # nothing may use a communicator that is gone
    dist.barrier()
    dist.destroy_process_group()


def copies(given: argparse.Namespace) -> None:
    """One process reaches every GPU: by peer access where there is any, through the host else."""
    import torch

    pairs = list(itertools.permutations(range(torch.cuda.device_count()), 2))
    assert pairs, "one GPU alone has no peer"
    digest = hashlib.sha256()
    for turn in range(given.steps):
        source, target = pairs[turn % len(pairs)]
        n = random.Random(turn).randint(1, 1 << 22)
        x = torch.arange(n, device=f"cuda:{source}", dtype=torch.float32)
        y = x.to(f"cuda:{target}") * 2
        assert torch.equal(y.to(f"cuda:{source}"), x * 2)
        digest.update(str(float(y.sum())).encode())
        del x, y
        if turn % 16 == 15:
            torch.cuda.empty_cache()
    access = [torch.cuda.can_device_access_peer(*pair) for pair in pairs]
    row = {
        "case": "copies", "backend": torch.cuda.get_allocator_backend(), "steps": given.steps,
        "peer_access": all(access), "digest": digest.hexdigest()[:16],
    }  # fmt: skip
    print(json.dumps(row), flush=True)


# ---- All of them -------------------------------------------------------------------------------


def rows_of(output: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.splitlines() if line.startswith('{"case"')]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def run_case(case: str, allocator: str, given: argparse.Namespace) -> dict[str, Any]:
    """The row of one run; `error` says why there is none, and `said` all that was said."""
    command = [sys.executable]
    if case != "copies":
        command += ["-m", "torch.distributed.run", "--nproc-per-node", str(given.ranks)]
        command += ["--master-addr", "127.0.0.1", "--master-port", str(free_port())]
    command += [__file__, "--case", case, "--steps", str(given.steps)]
    where = allocators.environment(allocator)
    where.update(CUBLAS_WORKSPACE_CONFIG=":4096:8", OMP_NUM_THREADS="4", NCCL_GRAPH_REGISTER="0")
    if case.endswith("whole"):
        where["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"
    # The ranks end themselves: torchrun gives them sessions of their own.
    command += ["--seconds", str(given.seconds)]
    if given.cpu_check:
        command.append("--cpu-check")
    start = time.monotonic()
    status, output = allocators.run(command, given.seconds + 15, where)
    found = {"allocator": allocator, "seconds": round(time.monotonic() - start, 1)}
    rows = rows_of(output)
    whole = next((row for row in rows if "digest" in row), None)
    if status == 0 and whole:
        return {**whole, **found}
    error = next((row["error"] for row in rows if "error" in row), f"ended with status {status}")
    if "Timeout (" in output or status == -1:
        error = f"hung: it took more than {given.seconds:.0f} s"
    return {"case": case, **found, "error": error, "said": output[-6000:]}


def verdict(native: dict[str, Any], own: dict[str, Any] | None) -> str:
    if own is None:
        return "native fails" if not native["case"].endswith("whole") else "native refuses"
    if "error" in own:
        return "FAILED"
    if own["backend"] not in ("ductile", "cpu"):
        return "FAILED: not on Ductile"
    return "equal" if own["digest"] == native["digest"] else "DIFFERS"


def text_of(row: dict[str, Any]) -> str:
    if "error" in row:
        return f"    {row['allocator']:9}{row['error']}"
    parts = [f"    {row['allocator']:9}{row['digest']}  {row['steps']} steps"]
    if "step_ms" in row:
        loss = f"loss {row['first_loss']:.3f} to {row['last_loss']:.3f}"
        parts += [f"{row['step_ms']:7.2f} ms a step, one turn", loss]
        used, held = row["allocated_peak"] / 2**20, row["reserved_peak"] / 2**20
        parts.append(f"used {used:.1f} MiB  held {held:.1f} (+{100 * row['overhead']:.2f} %)")
    return "  ".join([*parts, f"in {row['seconds']} s"])


def compare(case: str, given: argparse.Namespace) -> bool:
    """Prints a case's rows. Is it as it has to be?"""
    native = run_case(case, "native", given)
    own = None if "error" in native else run_case(case, "ductile", given)
    said = verdict(native, own)
    rows = [row for row in (native, own) if row]
    if given.json:
        for row in rows:
            print(json.dumps({**row, "verdict": said}), flush=True)
        return said in ("equal", "native refuses")
    print(f"{case:12}{said}", *map(text_of, rows), sep="\n", flush=True)
    if said in ("FAILED", "native fails"):
        print(rows[-1]["said"], flush=True)
    return said in ("equal", "native refuses")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=90, help="limit for each run of a case")
    parser.add_argument("--cases", default=",".join(CASES), help="which, separated by commas")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument(
        "--cpu-check", action="store_true", help="ddp-off and fsdp2-off, tiny and on the CPU"
    )
    parser.add_argument("--case", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.case:
        faulthandler.dump_traceback_later(given.seconds, exit=True)
        copies(given) if given.case == "copies" else train(given)
        return 0
    names = given.cases.split(",") if not given.cpu_check else ["ddp-off", "fsdp2-off"]
    unknown = [name for name in names if name not in CASES]
    if unknown:
        raise SystemExit(f"no case is called {unknown[0]}: there are {', '.join(CASES)}")
    good = [compare(name, given) for name in names]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
