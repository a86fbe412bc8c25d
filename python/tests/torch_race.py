# SPDX-License-Identifier: Apache-2.0
"""Builds and runs switch_race: threads that use PyTorch's allocator while Ductile takes its place
and gives it back, over and over. Run by python/tests/torch_race under the thread sanitizer."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

from ductile_gpu.torch import _build

HERE = Path(__file__).parent / "torch_adapter"


def build_runtime(output: Path) -> None:
    """The CUDA runtime without a GPU, to be preloaded."""
    command = [*_build._compiler(), "-std=c++17", "-O1", "-fPIC", "-shared", "-Wall", "-Wextra"]
    for folder in _build._cuda_includes(_build.describe_torch()):
        command += ["-isystem", str(folder)]
    command += ["-Wl,-soname,libcuda.so.1", "-o", str(output)]
    command += [str(HERE / name) for name in ("fake_runtime.cpp", "fake_kernels.cpp")]
    subprocess.run(command, check=True)


def _cuda_runtime(torch: _build.Torch) -> Path:
    """What the program is linked with, although it is not called."""
    for folder in _build._cuda_folders(torch):
        for found in sorted([*folder.parent.glob("lib*/libcudart.so.*")]):
            return found
    raise FileNotFoundError("libcudart.so is not to be found")


def build_race(output: Path, library: Path, flags: list[str]) -> None:
    torch = _build.describe_torch()
    kept = [f for f in _build._flags(torch) if f not in ("-shared", "-fvisibility=hidden", "-O2")]
    cudart = _cuda_runtime(torch)
    command = [*_build._compiler(), *kept, *flags, str(HERE / "switch_race.cpp"), "-o", str(output)]
    command += [f"-L{torch.root / 'lib'}", "-lc10", "-lc10_cuda", "-ltorch_cuda", "-ltorch_cpu"]
    command += [str(library), str(cudart), "-lpthread"]
    for folder in (torch.root / "lib", library.parent, cudart.parent):
        command += [f"-Wl,-rpath,{folder}"]
    subprocess.run(command, check=True)


def run(
    program: Path, runtime: Path, switches: int, seconds: float
) -> subprocess.CompletedProcess[str]:
    # the sanitizer needs its own addresses
    fixed = ["setarch", "-R"] if shutil.which("setarch") else []
    return subprocess.run(
        [*fixed, str(program), str(switches)],
        env={
            **os.environ,
            "LD_PRELOAD": str(runtime),
            "DUCTILE_CONF": "driver:virtual",
            "TSAN_OPTIONS": "halt_on_error=0 exitcode=66 history_size=4",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds,
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python/tests/torch_race", description=__doc__)
    parser.add_argument("--switches", type=int, default=200, metavar="N")
    parser.add_argument("--place", type=Path, required=True, help=argparse.SUPPRESS)
    given = parser.parse_args()
    runtime, program = given.place / "fake_runtime.so", given.place / "switch_race"
    build_runtime(runtime)
    build_race(program, given.place / "libductile.so", ["-O1", "-g", "-fsanitize=thread"])
    done = run(program, runtime, given.switches, 900)
    print(done.stdout + done.stderr, end="")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
