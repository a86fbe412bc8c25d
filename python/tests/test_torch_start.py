# SPDX-License-Identifier: Apache-2.0
"""The installed PyTorch is on Ductile however a program comes to import it."""

from __future__ import annotations

import importlib.util
import textwrap
from typing import Any

import pytest
import running
from running import MODE, Answer

torch = pytest.importorskip("torch")
if torch.version.cuda is None:
    pytest.skip("this PyTorch is built without CUDA", allow_module_level=True)

# What PyTorch calls once it has initialised CUDA, without a GPU.
FIRST_USE = """
for call, _ in torch.cuda._queued_calls:
    if call.__module__.startswith("ductile_gpu"):
        call()
"""


def python(*words: str, **how: Any) -> Answer:
    return running.python(*words, without=("DUCTILE_TORCH", "PYTORCH_"), **how)


@pytest.mark.parametrize("first", ["transformers", "accelerate", "lightning", "diffusers", "timm"])
def test_a_package_that_looks_for_pytorch_first_does_not_keep_ductile_off(first):
    if importlib.util.find_spec(first) is None:
        pytest.skip(f"{first} is not installed")
    done = python("-c", f"import {first}; {MODE}", DUCTILE_TORCH="1")
    assert done.stdout.splitlines()[-1] == "full", done.stderr


@pytest.mark.parametrize("command", [["run"], ["record"], ["record", "--stacks"]])
def test_commands_see_a_pytorch_that_was_looked_for_first(tmp_path, command):
    script = "import importlib.util; importlib.util.find_spec('torch'); import torch"
    (tmp_path / "train.py").write_text(script, encoding="utf-8")
    done = python("-m", "ductile_gpu", *command, "train.py", folder=tmp_path)
    expected = "no process of this run used" if command == ["run"] else "did not use a GPU"
    assert expected in done.stderr
    assert done.returncode == (0 if command == ["run"] else 1)


def test_ranks_of_torchrun_are_served_and_one_speaks(tmp_path):
    script = f"{MODE}\n{FIRST_USE}"
    (tmp_path / "train.py").write_text(script, encoding="utf-8")
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py"]
    done = python(*words, folder=tmp_path, DUCTILE_TORCH="1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["full", "full"]
    assert done.stderr.count("serves PyTorch") == 1, done.stderr


def test_an_allocator_that_comes_afterwards_is_noticed():
    code = """
        from ductile_gpu._binding._native import library_path
        path = str(library_path().with_name("libductile_torch.so"))
        names = "ductile_torch_malloc", "ductile_torch_free"
        other = torch.cuda.memory.CUDAPluggableAllocator(path, *names)
        torch.cuda.memory.change_current_allocator(other)
    """
    done = python("-c", f"{MODE}\n{textwrap.dedent(code)}{FIRST_USE}", DUCTILE_TORCH="1")
    assert done.stdout == "full\n", done.stderr
    assert "another allocator has taken its place" in done.stderr


@pytest.mark.parametrize("mode", ["full", "plain"])
def test_options_may_change_before_memory_is_served_and_wrong_ones_change_nothing(mode):
    code = f"""
        import ductile_gpu
        from ductile_gpu.torch import enable
        for wrong in (lambda: enable({mode!r}, no_such_option=1), lambda: enable(limit_bytes="x")):
            try:
                wrong()
            except ductile_gpu.InvalidArgument as error:
                print("refused")
        enable({mode!r}, limit_bytes="1G")
        enable(limit_bytes=1 << 30)
        enable(limit_bytes="2G")
        enable(zero=True)
        print(ductile_gpu._process._share.given())
    """
    done = python("-c", textwrap.dedent(code))
    given = {"limit_bytes": "2G", "zero": True}
    assert done.stdout == f"refused\nrefused\n{given}\n", done.stderr


def test_the_program_may_complete_what_the_environment_asked_for():
    """Of the library behind PyTorch's pluggable interface; test_start.py has the adapter's."""
    code = "import torch; from ductile_gpu.torch import enable; enable(limit_bytes='1G')"
    done = python("-c", code, DUCTILE_TORCH="plain")
    assert (done.returncode, done.stderr) == (0, "")
