# SPDX-License-Identifier: Apache-2.0
"""Runs each example of python/examples/launchers under the launcher that it is for, and looks
whether the GPU memory of each process came from Ductile. Run by python/tests/launchers.

Without a GPU they run on PyTorch's CUDA code above a runtime that computes nothing, and on the
virtual GPU: every allocation is made, every loss is zero.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path
from typing import NamedTuple, Optional

TESTS = Path(__file__).resolve().parent
EXAMPLES = TESTS.parent / "examples" / "launchers"
SECONDS = 240

SERVED = r"full, holds [1-9]\d*"
LOGGED = r"'held_mib': '?[1-9]\d*"
WRITTEN = r"(?m)^(?:[1-9]\d*(?:\.\d+)?,[1-6]|[1-6],[1-9]\d*(?:\.\d+)?)$"
STEPS = r"step: +[123] .*memory: +0\.[0-9]*[1-9]"
ANNOUNCED = r"ductile-gpu: Ductile \S+ serves PyTorch \S+ \(full;"


class Row(NamedTuple):
    """A program, and what it has to say how often."""

    name: str
    package: str
    command: tuple[str, ...]
    says: str
    times: int
    environment: tuple[tuple[str, str], ...] = ()


# Its name has no process group, and what is spawned imports the program again.
SPAWNED = """if __name__ == "__main__":
    import os
    from lightning.pytorch.strategies import DDPStrategy
    group = os.environ.get("BACKEND")
    strategy = DDPStrategy(start_method="spawn", process_group_backend=group)
    lightning.Trainer(strategy=strategy, """

HOOK = '"worker_process_setup_hook": "ductile_gpu.torch.enable"'
VARIABLE = '"env_vars": {"DUCTILE_TORCH": "1"}'

# Drawn again until it fits, which never happens where nothing is computed.
UNCOMPUTED = """
import runpy, torch
torch.nn.init._no_grad_trunc_normal_ = lambda tensor, *_, **__: tensor
runpy.run_module("torchtitan.train", run_name="__main__")
"""
SMALL = ("--training.seq_len", "128", "--training.local_batch_size", "1")


def rows(ranks: int) -> list[Row]:
    python, here = sys.executable, str(EXAMPLES)
    on = (("DUCTILE_TORCH", "1"),)
    accelerate = (python, "-m", "accelerate.commands.launch", f"{here}/accelerate_loop.py")
    torchrun = ("torchrun", "--standalone", f"--nproc-per-node={ranks}", "ddp.py")
    deepspeed = ("deepspeed", f"--master_port={free_port()}", f"{here}/deepspeed_steps.py")
    ray = (python, f"{here}/ray_actors.py")
    titan = (f"{here}/torchtitan_debug.sh", *SMALL, "--comm.mode", "fake_backend")
    return [
        Row("Trainer", "transformers", (python, f"{here}/trainer.py"), LOGGED, 4),
        Row("Lightning", "lightning", (python, f"{here}/lightning_fit.py"), WRITTEN, 6),
        Row("Lightning, spawned", "lightning", (python, "spawned.py"), WRITTEN, 6),
        Row("accelerate launch", "accelerate", accelerate, SERVED, 1, on),
        Row(f"torchrun, {ranks} ranks", "torch", torchrun, SERVED, ranks, on),
        Row("Ray, hook", "ray", ray, SERVED, 2),
        Row("Ray, variable", "ray", (python, "variable.py"), SERVED, 2),
        Row("Ray, hook and variable", "ray", ray, SERVED, 2, on),
        Row("deepspeed", "deepspeed", deepspeed, SERVED, 1, on),
        Row("torchtitan", "torchtitan", titan, STEPS, 3),
    ]


def free_port() -> int:
    """Other jobs of this machine may have the usual one."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def version_of(package: str) -> Optional[str]:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


# ---- What the programs find --------------------------------------------------------------------


# DDP's circles hold the process group. With gloo its thread may still ask for the interpreter when
# that ends, and Python 3.11 ends the thread in the middle of a destructor of PyTorch's: SIGABRT.
COLLECTED = "del model, optimizer\n__import__('gc').collect()\n"


def make_assets(folder: Path) -> None:
    """The tokenizer and the texts that torchtitan's smallest configuration reads: bytes."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    special = ["<|begin_of_text|>", "<|end_of_text|>"]
    letters = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *special]
    tokenizer = Tokenizer(models.BPE({letter: n for n, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens(special)
    assets = folder / "tests" / "assets"
    (assets / "tokenizer").mkdir(parents=True)
    (assets / "c4_test").mkdir()
    tokenizer.save(str(assets / "tokenizer" / "tokenizer.json"))
    named = dict(zip(("bos_token", "eos_token"), special))
    (assets / "tokenizer" / "tokenizer_config.json").write_text(json.dumps(named))
    text = json.dumps({"text": "a text of no meaning, again and again. " * 40}) + "\n"
    (assets / "c4_test" / "data.json").write_text(text * 100)


def make_files(row: Row, folder: Path) -> None:
    if row.package == "torchtitan":
        make_assets(folder)
        (folder / "uncomputed.py").write_text(UNCOMPUTED)
    if "spawned.py" in row.command:
        text = (EXAMPLES / "lightning_fit.py").read_text()
        (folder / "spawned.py").write_text(text.replace("\nlightning.Trainer(", f"\n{SPAWNED}"))
    if "ddp.py" in row.command:
        (folder / "ddp.py").write_text((EXAMPLES / "torchrun_ddp.py").read_text() + COLLECTED)
    if "variable.py" in row.command:
        text = (EXAMPLES / "ray_actors.py").read_text()
        (folder / "variable.py").write_text(text.replace(HOOK, VARIABLE))


def environment_of(row: Row, folder: Path, runtime: Optional[Path]) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("DUCTILE_TORCH", "PYTORCH_"))}
    kept["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{kept.get('PATH', '')}"
    kept.update(HF_HUB_OFFLINE="1", WANDB_MODE="disabled", NO_COLOR="1")
    kept.update(RAY_AUTH_MODE="disabled", RAY_USAGE_STATS_ENABLED="0", PYTHONFAULTHANDLER="1")
    if runtime is not None:
        kept.update(LD_PRELOAD=str(runtime), DUCTILE_CONF="driver:virtual", BACKEND="gloo")
        # the small library of BLAS that stands in has no cublasLt; Triton asks for a real driver
        kept.update(DISABLE_ADDMM_CUDA_LT="1", TORCHDYNAMO_DISABLE="1")
    if row.package == "torchtitan":
        kept.update(NGPU="1", TRAIN="uncomputed.py" if runtime else "-mtorchtitan.train")
    return {**kept, **dict(row.environment)}


# ---- Running -----------------------------------------------------------------------------------


def run(row: Row, folder: Path, runtime: Optional[Path]) -> tuple[int, str]:
    """Status and output; what it started ends with it."""
    environment = environment_of(row, folder, runtime)
    process = subprocess.Popen(
        ["env", *row.command],  # a program that is not there is a status
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        said = process.communicate(timeout=SECONDS)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        said = process.communicate()[0] + f"\nended after {SECONDS} seconds"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    written = "".join(path.read_text() for path in sorted(folder.glob("out/**/metrics.csv")))
    return process.returncode, re.sub(r"\x1b\[[0-9;]*m", "", f"{said}\n{written}")


def judge(row: Row, status: int, said: str) -> str:
    """What is wrong; nothing, where all is well."""
    found = len(re.findall(row.says, said))
    wrong = [] if status == 0 else [f"status {status}"]
    if found != row.times:
        wrong.append(f"{found} times instead of {row.times}: {row.says}")
    if row.environment and not re.search(ANNOUNCED, said):
        wrong.append("no rank said that Ductile serves")
    return "; ".join(wrong)


def show(row: Row, runtime: Optional[Path]) -> bool:
    """Runs it and prints a line. Did it do what it has to?"""
    version = version_of(row.package)
    title = f"{row.name:<24} {row.package:<12} {version or '-':<12}"
    if version is None:
        print(f"{title} not installed", flush=True)
        return True
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        make_files(row, folder)
        began = time.monotonic()
        status, said = run(row, folder, runtime)
        wrong = judge(row, status, said)
    first = re.search(row.says, said)
    verdict = f"FAILS: {wrong}" if wrong else f"ok  {row.times} x {first and first[0].strip()}"
    print(f"{title} {time.monotonic() - began:5.1f} s  {verdict}", flush=True)
    if wrong:
        print("\n".join(f"    {line[:200]}" for line in said.splitlines()[-100:]), flush=True)
    return not wrong


def make_runtime(folder: Path) -> Path:
    import torch_race

    output = folder / "fake_runtime.so"
    torch_race.build_runtime(output)
    return output


def main() -> int:
    parser = argparse.ArgumentParser(prog="python/tests/launchers", description=__doc__)
    parser.add_argument("--gpu", action="store_true", help="on the machine's GPU, one rank")
    parser.add_argument("--only", metavar="WORD", default="", help="rows with it in their name")
    given = parser.parse_args()
    import torch

    import ductile_gpu

    where = "a GPU" if given.gpu else "the virtual GPU, nothing is computed"
    print(f"Ductile {ductile_gpu.__version__}, PyTorch {torch.__version__}, Python "
          f"{sys.version.split()[0]}, {where}", flush=True)  # fmt: skip
    chosen = [row for row in rows(1 if given.gpu else 2) if given.only.lower() in row.name.lower()]
    with tempfile.TemporaryDirectory() as place:
        runtime = None if given.gpu else make_runtime(Path(place))
        passed = [show(row, runtime) for row in chosen]
    print(f"{sum(passed)} passed, {len(passed) - sum(passed)} failed")
    return 0 if passed and all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
