# SPDX-License-Identifier: Apache-2.0
"""`ductile-gpu run --all`: programs that know nothing of Ductile, with a driver that is a fake."""

from __future__ import annotations

import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import noted
import pytest
from running import ductile_gpu as command

from ductile_gpu import include_dir
from ductile_gpu.interface import Note
from ductile_gpu.preload import _counts
from ductile_gpu.preload import command as run_all

PROGRAM = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
typedef unsigned long long addr;
typedef struct CUstream_st *stream;
extern int cuMemAlloc_v2(addr *, size_t), cuMemFree_v2(addr);
extern int cuMemAllocManaged(addr *, size_t, unsigned);
extern int cuIpcGetMemHandle(void *, addr);
int main(int n, char **words) {
    addr at = 0;
    char handle[64];
    for (int i = 1; i < n; i++) {
        size_t size = strtoul(words[i] + 1, NULL, 10) << 20;
        if (words[i][0] == 'm' && cuMemAlloc_v2(&at, size) != 0) return 3;
        if (words[i][0] == 'u' && cuMemAllocManaged(&at, size, 1) != 0) return 4;
        if (words[i][0] == 'f' && cuMemFree_v2(at) != 0) return 5;
        if (words[i][0] == 'i') printf("ipc: %d\n", cuIpcGetMemHandle(handle, at));
        if (words[i][0] == 'x') return atoi(words[i] + 1);
        if (words[i][0] == 'k') abort();
    }
    puts(getenv("XLA_PYTHON_CLIENT_ALLOCATOR"));
    return 0;
}
"""


def write(place, name, text):
    (place / name).write_text(textwrap.dedent(text))


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("run_all")
    driver = folder / "libcuda.so.1"
    source = Path(__file__).with_name("fake_driver.c")
    flags = ["-shared", "-fPIC", "-D_GNU_SOURCE", "-Wl,-soname,libcuda.so.1", "-Wl,-Bsymbolic"]
    include = f"-I{include_dir()}"
    subprocess.run([compiler, *flags, include, str(source), "-o", str(driver)], check=True)
    program = folder / "program.c"
    program.write_text(PROGRAM)
    linked = [str(program), str(driver), f"-Wl,-rpath,{folder}", "-o", str(folder / "program")]
    subprocess.run([compiler, *linked], check=True)
    return folder


def run(place, *words, **environment):
    return command("run", *words, folder=place, LD_LIBRARY_PATH=place, **environment)


def test_nothing_starts_under_a_wrong_environment(place):
    answer = run(place, "--all", "./program", "m8", DUCTILE_CONF="sizes:aut")
    assert (answer.returncode, answer.stdout) == (2, "")
    assert "DUCTILE_CONF: option 'sizes' takes" in answer.stderr
    assert "did you mean auto?" in answer.stderr


def test_a_plain_program_is_served_and_its_share_is_told(place):
    answer = run(place, "--all", "./program", "m8", "f", "m24", "f")
    assert answer.returncode == 0, answer.stderr
    line = "ductile-gpu: program asked for 32.0 MiB in 2 requests: 100% from Ductile\n"
    assert answer.stderr == line  # Ductile's own calls are no requests of a library
    assert answer.stdout == "cuda_async\n"


def test_a_run_inside_a_run_is_told_by_the_outer_one(place):
    inner = [sys.executable, "-m", "ductile_gpu", "run", "--all", "./program"]
    answer = run(place, "--all", *inner, "m8")
    assert answer.returncode == 0, answer.stderr
    line = "ductile-gpu: program asked for 8.0 MiB in 1 request: 100% from Ductile\n"
    assert answer.stderr == line
    assert run(place, "--all", *inner, "u8").returncode == 1


def test_jax_keeps_the_allocator_that_the_user_chose(place):
    answer = run(place, "--all", "./program", "m8", XLA_PYTHON_CLIENT_ALLOCATOR="bfc")
    assert answer.stdout == "bfc\n"


def test_status_1_where_ductile_served_nothing(place):
    answer = run(place, "--all", "./program", "u8")
    assert answer.returncode == 1
    assert "program asked for 8.0 MiB in 1 request: 0% from Ductile" in answer.stderr


# Stands in for a program whose PyTorch has used the GPU, through the adapter or not, beside another
# library, whose memory Ductile does not serve.
BESIDE_PYTORCH = """
import ctypes, subprocess
import noted
noted.leave({mode!r})
driver = ctypes.CDLL("libcuda.so.1")
address = ctypes.c_uint64()
assert driver.cuMemAllocManaged(ctypes.byref(address), ctypes.c_size_t(8 << 20), 1) == 0
if {child!r}:
    subprocess.run({child!r}, check=True)
"""


@pytest.mark.parametrize(
    ("mode", "child", "status"),
    [
        ("full", [], 0),
        ("plain", [], 0),
        ("off", [], 1),
        ("full", ["./program", "u1"], 1),
        ("full", ["./program", "m1"], 0),
        ("off", ["./program", "m1"], 1),
    ],
)
def test_a_process_whose_pytorch_is_on_its_adapter_is_served(place, mode, child, status):
    (place / "beside.py").write_text(BESIDE_PYTORCH.format(mode=mode, child=child))
    answer = run(place, "--all", "beside.py", PYTHONPATH=Path(noted.__file__).parent)
    assert answer.returncode == status, answer.stderr
    assert "asked for 8.0 MiB in 1 request: 0% from Ductile" in answer.stderr
    assert ("allocated through its adapter" in answer.stderr) == (mode != "off")


@pytest.mark.parametrize(("served", "status"), [(9, 0), (3, 1)])
def test_what_is_served_beside_pytorch_is_weighed_with_other_processes(served, status):
    """JAX in PyTorch's process, on Ductile; NCCL there, and a helper elsewhere, from the driver."""
    libraries = (
        _counts.Asked("jax", 1, served << 20, 0, 0),
        _counts.Asked("nccl", 0, 0, 1, 100 << 20),
    )
    helper = _counts.Counts(2, "helper", None, (_counts.Asked("helper", 0, 0, 1, 4 << 20),))
    counts = [_counts.Counts(1, "train", None, libraries), helper]
    assert run_all._judge(counts, [Note(1, "train", "full", None)]) == status
    assert run_all._judge(counts, []) == 1


def test_status_0_and_a_line_where_no_memory_was_asked_for(place):
    answer = run(place, "--all", "./program")
    assert answer.returncode == 0
    assert "no process of this run asked for GPU memory" in answer.stderr


def test_the_programs_own_status_counts_first(place):
    assert run(place, "--all", "./program", "m8", "x7").returncode == 7


def test_a_file_that_cannot_be_executed_is_refused_for_that(place):
    (place / "notes.txt").write_text("no program")
    for name in ("./notes.txt", "."):
        answer = run(place, "--all", name)
        assert answer.returncode == 2
        assert answer.stderr == f"ductile-gpu: {name}: is not executable\n"


def test_what_a_killed_program_asked_for_is_told(place):
    answer = run(place, "--all", "./program", "m8", "k0")
    assert answer.returncode == 134
    assert "100% from Ductile" in answer.stderr


def test_a_refused_ipc_handle_is_told_with_what_would_help(place):
    answer = run(place, "--all", "./program", "m8", "i")
    assert answer.stdout.startswith("ipc: 801\n")
    assert "DUCTILE_PRELOAD=async" in answer.stderr


def test_native_malloc_leaves_cuda_malloc_to_the_driver(place):
    answer = run(place, "--all", "--native-malloc", "./program", "m8", "i")
    assert answer.stdout.startswith("ipc: 0\n")
    assert answer.returncode == 1


def test_scripts_and_their_children_are_served(place):
    code = """
        import os, subprocess, sys
        print(os.environ["DUCTILE_TORCH"], sys.argv[1:])
        sys.exit(subprocess.run(["./program", "m8"]).returncode)
    """
    write(place, "script.py", code)
    answer = run(place, "--all", "script.py", "--mine")
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.splitlines()[0] == "auto ['--mine']"
    assert "program asked for 8.0 MiB" in answer.stderr


def test_options_reach_the_allocator(place):
    answer = run(place, "--all", "--set", "limit_bytes=16M", "./program", "m64")
    assert answer.returncode == 3


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("--all", "--set", "nonsense=1", "./program"), "nonsense"),
        (("--all", "./no-such-program"), "no such program"),
        (("--all", "--summary", "./program"), "not with --all"),
        (("--native-malloc", "script.py"), "goes with --all"),
    ],
)
def test_misuse_is_told_before_anything_runs(place, words, line):
    answer = run(place, *words)
    assert answer.returncode == 2
    assert line in answer.stderr


def test_a_static_program_is_refused(place):
    (place / "empty.c").write_text("int main(void) { return 0; }")
    made = subprocess.run(["cc", "-static", "empty.c", "-o", "static"], cwd=place, check=False)
    if made.returncode != 0:
        pytest.skip("no static C library")
    assert "linked statically" in run(place, "--all", "./static").stderr


@pytest.mark.parametrize("first", ["driver", "python"])
def test_python_shares_the_allocator_of_the_interposed_calls(place, first):
    code = f"""
        import ctypes
        from ductile_gpu import shared
        if "{first}" == "python":
            shared(0)
        driver = ctypes.CDLL("libcuda.so.1")
        address = ctypes.c_uint64()
        assert driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(1 << 20)) == 0
        block = shared(0).query(address.value)
        assert block.requested_size == 1 << 20, block
        assert shared(0).is_borrowed
        again = shared(0).alloc(1 << 20)
        assert driver.cuMemFree_v2(ctypes.c_uint64(again)) == 0
    """
    write(place, "sharing.py", code)
    answer = run(place, "--all", "sharing.py")
    assert answer.returncode == 0, answer.stderr


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/v/lib/python3.12/site-packages/jax_plugins/xla_cuda13/plugin.so", "jax_plugins"),
        ("/v/lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2", "nvidia/nccl"),
        ("/usr/lib/libfoo.so.1", "libfoo.so.1"),
        ("./program", "program"),
    ],
)
def test_a_library_is_named_by_its_package(path, name):
    assert _counts.library_of(path) == name


def test_files_of_others_are_passed_over(tmp_path):
    (tmp_path / "short").write_bytes(b"x")
    (tmp_path / "other").write_bytes(b"y" * 4096)
    assert _counts.read(tmp_path) == []
