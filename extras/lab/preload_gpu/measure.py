# SPDX-License-Identifier: Apache-2.0
"""usage: measure.py --plain PROGRAM --output FILE [CASE...]

Runs the cases one after the other and prints a table. `plain`, `cupy` and `numba` run under
`ductile-gpu run --all`; `jax-all` does too, and has to train to the same losses, to the bit, as
`jax-async`; `jax-bfc`, `jax-bfc-grow`, `jax-platform` and `jax-async` are JAX's own allocators;
`jax-turns` is the time of their steps with its noise (jax_turns.py); `both` is PyTorch and JAX in
one process on one Ductile. `nccl` is NCCL in a world of one: its buffers have to pass untouched, as
what is mapped by hand does, beside a PyTorch on its adapter; `nccl-malloc` is the same where NCCL
asks for its buffers with cudaMalloc; `nccl-calls` and `nccl-malloc-calls` say what NCCL asks the
driver, without Ductile. Memory is the most that the GPU had in use beyond what it had before, as
nvidia-smi says every 50 ms.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "torch_gpu"))
import steps

ALL = [sys.executable, "-m", "ductile_gpu", "run", "--all"]
PYTHON = [sys.executable]
TRAIN = [str(HERE / "jax_train.py"), "60"]
LIMIT_S = 150
DETERMINISTIC = "--xla_gpu_deterministic_ops=true"


class Case(NamedTuple):
    """A program and how it is run."""

    command: list[str]
    needs: tuple[str, ...] = ()
    environment: Mapping[str, str] = MappingProxyType({})
    seconds: int = 60
    told: tuple[str, ...] = ()
    """patterns, each of a line that `run --all` has to say"""


# NCCL maps its buffers by itself, unless it is told otherwise.
NCCL_TOLD = (
    r"nvidia/nccl asked for .*: 0% from Ductile",
    r"PyTorch in process \d+ allocated through its adapter, from Ductile",
)


def jax_case(start: list[str], **environment: str) -> Case:
    """The training, with the variables of an allocator."""
    return Case([*start, *TRAIN], ("jax", "flax"), environment)


def own(allocator: str, preallocate: str = "false") -> dict[str, str]:
    """What selects one of JAX's allocators."""
    return {
        "XLA_PYTHON_CLIENT_ALLOCATOR": allocator,
        "XLA_PYTHON_CLIENT_PREALLOCATE": preallocate,
    }


def cases(plain: str) -> dict[str, Case]:
    """All of them, in the order in which they run."""
    programs = str(HERE / "programs.py")
    malloc = {"NCCL_CUMEM_ENABLE": "0"}
    turns = [*PYTHON, str(HERE / "jax_turns.py")]
    return {
        "plain": Case([*ALL, plain]),
        "jax-async": jax_case(PYTHON, **own("cuda_async")),
        "jax-all": jax_case(ALL),
        "both": Case([*ALL, programs, "both"], ("torch", "jax")),
        "cupy": Case([*ALL, programs, "cupy"], ("cupy",)),
        "numba": Case([*ALL, programs, "numba"], ("numba",)),
        "nccl": Case([*ALL, programs, "nccl"], ("torch",), told=NCCL_TOLD),
        "nccl-malloc": Case([*ALL, programs, "nccl"], ("torch",), malloc),
        "nccl-calls": Case([*PYTHON, programs, "nccl-calls"], ("torch",)),
        "nccl-malloc-calls": Case([*PYTHON, programs, "nccl-calls"], ("torch",), malloc),
        "jax-turns": Case(turns, ("jax", "flax"), seconds=100),
        "jax-bfc": jax_case(PYTHON, **own("bfc", "true")),
        "jax-bfc-grow": jax_case(PYTHON, **own("bfc")),
        "jax-platform": jax_case(PYTHON, **own("platform")),
    }


class Memory:
    """What nvidia-smi says of the GPU, while it is asked."""

    def __init__(self) -> None:
        query = "--query-gpu=memory.used"
        command = ["nvidia-smi", query, "--format=csv,noheader,nounits", "-i", "0", "-lms", "50"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self._before = int(self._process.stdout.readline())

    def stop(self) -> int:
        """The most beyond the first answer, in MiB."""
        self._process.terminate()
        output, _ = self._process.communicate()
        return max((int(line) for line in output.split()), default=self._before) - self._before


def run(name: str, case: Case) -> dict[str, object]:
    """A row of the table."""
    missing = [module for module in case.needs if find_spec(module) is None]
    if missing:
        return {"case": name, "left_out": f"no {missing[0]} here"}
    flags = f"{os.environ.get('XLA_FLAGS', '')} {DETERMINISTIC}".strip()
    environment = {**os.environ, "XLA_FLAGS": flags, **case.environment}
    memory, start = Memory(), time.monotonic()
    limited = ["timeout", "--kill-after=5", str(case.seconds), *case.command]
    done = subprocess.run(limited, env=environment, capture_output=True, text=True, check=False)
    row: dict[str, object] = {
        "case": name,
        "status": done.returncode,
        "held_mib": memory.stop(),
        "seconds": round(time.monotonic() - start, 1),
        "told": [line for line in done.stderr.splitlines() if line.startswith("ductile-gpu:")],
    }
    if done.returncode != 0:
        row["error"] = done.stderr[-2000:]
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            row.update(json.loads(line))
    row.update(not_told(case, done.stderr))
    return row


def not_told(case: Case, said: str) -> dict[str, object]:
    """What a row has more where a line is missing that the case has to say."""
    missing = [line for line in case.told if re.search(line, said) is None]
    return {"not_told": missing} if missing else {}


def details(row: dict[str, Any]) -> Iterator[str]:
    """What a case found, a line each."""
    for name, count in row.get("calls", {}).items():
        yield f"{name}: {count}"
    for line in row.get("not_told", ()):
        yield f"not told: {line}"
    for way, found in row.get("turns", {}).items():
        ratio = f"{found['of_async']:.3f} ± {found['noise']:.3f}"
        yield f"{way:<10} {found['step_ms']:6.2f} ms, {ratio} of async"


def tell(row: dict[str, object]) -> None:
    """A line of the table, and what was told beside it."""
    if "left_out" in row:
        print(f"{row['case']:<17} left out: {row['left_out']}", flush=True)
        return
    step = f"{row['step_ms']:.2f} ms" if "step_ms" in row else ""
    outcome = f"FAILED ({row['status']})" if has_failed(row) else "ok"
    held = f"{row['held_mib']:>7} MiB"
    print(
        f"{row['case']:<17} {outcome:<11} {held} {step:>12} {row['seconds']:>6} s",
        *(str(line) for line in row["told"]),  # type: ignore[attr-defined]
        *details(row),
        *([str(row["error"])] if "error" in row else []),
        sep="\n    ",
        flush=True,
    )


def has_failed(row: dict[str, object]) -> bool:
    """By its status, or by what it did not say."""
    return row.get("status", 0) != 0 or "not_told" in row


def judge(rows: dict[str, dict[str, object]]) -> int:
    """1 where a case failed, or trained to other losses."""
    failed = [name for name, row in rows.items() if has_failed(row)]
    all_losses = {name: row["losses"] for name, row in rows.items() if "losses" in row}
    base = all_losses.get("jax-async")
    for name, losses in all_losses.items():
        if base is not None:
            print(f"{name}: losses {'equal to the bit' if losses == base else 'DIFFER'}")
            failed += [name] if losses != base and name == "jax-all" else []
    return 1 if failed else 0


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--plain", required=True)
    parser.add_argument("--output", required=True, type=Path)
    parser.add_argument("case", nargs="*")
    options = parser.parse_args()
    known = cases(options.plain)
    unknown = [name for name in options.case if name not in known]
    if unknown:
        parser.error(f"no case is called {unknown[0]}; there are {', '.join(known)}")
    chosen = options.case or list(known)
    builds = any("torch" in known[name].needs for name in chosen) and find_spec("torch") is not None
    adapter = subprocess.Popen([*PYTHON, "-m", "ductile_gpu.torch", "build"]) if builds else None
    where = steps.where_from()
    where["command"] = " ".join(["extras/lab/run preload", "FOLDER", *options.case])
    rows: dict[str, dict[str, object]] = {}
    begun = time.monotonic()
    for name in chosen:
        if time.monotonic() - begun > LIMIT_S:
            rows[name] = {"case": name, "left_out": "the time is up", "status": 1}
            tell(rows[name])
            continue
        if "torch" in known[name].needs and adapter is not None:
            adapter.wait()
        rows[name] = {**run(name, known[name]), **where}
        tell(rows[name])
        options.output.write_text("".join(json.dumps(row) + "\n" for row in rows.values()))
    return judge(rows)


if __name__ == "__main__":
    sys.exit(main())
