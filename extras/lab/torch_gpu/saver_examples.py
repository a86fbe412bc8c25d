# SPDX-License-Identifier: Apache-2.0
"""torch_memory_saver's own examples, with ductile_gpu.memory_saver in its place.

saver_examples.py FOLDER: the sources of torch_memory_saver, whose test/examples are run. Each
example is a process of its own, as its author's tests start it: in hook mode "preload" as a child
of `configure_subprocess`, in "torch" after `install()`. One that an allocator cannot serve is run
too, and is to fail: backups on disk. That of memory of `cudaMalloc` passes, because the memory
stays awake. Those for two devices run where there are two. Prints one line for each; ends with
status 1 if one is not as it should be.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import allocators

from ductile_gpu import memory_saver

WHOLE = {"TMS_INIT_ENABLE": "1", "TMS_INIT_ENABLE_CPU_BACKUP": "1"}
MMAP = {"TMS_INIT_CPU_BACKUP_BACKEND": "mmap"}
RETAIN = {"TMS_RETAIN_CPU_BACKUP": "1"}

PROGRAM = """
import importlib, sys
module, function, mode = sys.argv[1:4]
if mode == "torch":
    from ductile_gpu import memory_saver
    memory_saver.install()
import torch_memory_saver
assert torch_memory_saver.__name__ == "ductile_gpu.memory_saver", torch_memory_saver
getattr(importlib.import_module(module), function)(hook_mode=mode)
import ductile_gpu.torch
assert ductile_gpu.torch.mode() == ("full" if mode == "preload" else "off"), "the other mode"
"""


class Example(NamedTuple):
    module: str
    mode: str
    function: str = "run"
    variables: Mapping[str, str] = MappingProxyType({})
    devices: int = 1
    cannot: str = ""  # why it is to fail


EXAMPLES = (
    Example("cpu_backup", "preload", "run_preload_backend_from_env", {**WHOLE, **MMAP}),
    Example("simple", "preload"),
    Example("simple", "torch"),
    Example("cuda_graph", "preload"),
    Example("cuda_graph", "torch"),
    Example("cpu_backup", "preload"),
    Example("cpu_backup", "torch"),
    Example("cpu_backup", "torch", "run_rss"),
    Example("cpu_backup", "preload", "run_backend_from_env", MMAP),
    Example("cpu_backup", "torch", "run_backend_from_env", MMAP),
    Example("cpu_backup", "preload", "run_retain_from_env", RETAIN),
    Example("cpu_backup", "torch", "run_retain_from_env", RETAIN),
    Example("training_engine", "preload", "run", WHOLE),
    Example("nested_region", "preload", "run", WHOLE),
    Example("rl_example", "preload"),
    Example("rl_example", "torch"),
    Example("disk_backup", "torch", cannot="no backup on disk"),
    Example("cuda_vmm_granularity", "preload", "run", WHOLE),
    Example("cpu_backup", "preload", "run_multi_device_mmap_restore", devices=2),
    Example("cpu_backup", "torch", "run_multi_device_mmap_restore", devices=2),
    Example("multi_device", "preload", devices=2),
    Example("multi_device", "torch", devices=2),
    Example("multi_device_torch_mode", "torch", devices=2),
)


def try_one(example: Example, folder: Path, seconds: float) -> tuple[bool, str]:
    """Did it end as it should within the time, and what it said."""
    command = [sys.executable, "-X", "faulthandler", "-c", PROGRAM]
    command += [example.module, example.function, example.mode]
    with contextlib.ExitStack() as stack:
        if example.mode == "preload":
            stack.enter_context(memory_saver.configure_subprocess())
        there = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
        variables = {**os.environ, **example.variables, "PYTHONPATH": there}
        status, said = allocators.run(command, seconds, variables, folder)
    return status != -1 and (status != 0) == bool(example.cannot), said


def tell(example: Example, folder: Path, given: argparse.Namespace) -> bool:
    name = f"{example.module} {example.function} {example.mode}"
    start = time.monotonic()
    is_right, said = try_one(example, folder, given.seconds)
    took = time.monotonic() - start
    note = f" (it cannot: {example.cannot})" if example.cannot else ""
    print(f"{'ok    ' if is_right else 'FAILED'}  {name} in {took:.0f} s{note}", flush=True)
    if example.cannot or not is_right or given.verbose:
        lines = said.splitlines()[-1 if example.cannot and is_right else -25 :]
        print("\n".join(f"    {line[:200]}" for line in lines), flush=True)
    return is_right


def count_devices() -> int:
    import torch

    return torch.cuda.device_count()


def main() -> int:
    words = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    words.add_argument("folder", type=Path, help="torch_memory_saver's sources")
    words.add_argument("--seconds", type=float, default=60, help="limit for each example")
    words.add_argument("--verbose", action="store_true", help="show what every example said")
    given = words.parse_args()
    folder = (given.folder / "test" / "examples").resolve()
    if not folder.is_dir():
        words.error(f"{folder} is not there")
    devices = count_devices()
    chosen = [one for one in EXAMPLES if one.devices <= devices]
    right = sum(tell(one, folder, given) for one in chosen)
    left = len(EXAMPLES) - len(chosen)
    print(f"{right} of {len(chosen)} as they should be; {left} need more devices")
    return int(right < len(chosen))


if __name__ == "__main__":
    sys.exit(main())
