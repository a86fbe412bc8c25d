# SPDX-License-Identifier: Apache-2.0
"""ductile_resource.hpp and ductile_rmm.hpp against CCCL's headers, on the virtual GPU."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path

import pytest
from running import run

import ductile_gpu

HERE = Path(__file__).resolve().parent
PACKAGE = Path(ductile_gpu.__file__).parent


def header_folders() -> list[Path]:
    """Where the package index's CCCL and CUDA runtime keep their headers."""
    spec = importlib.util.find_spec("nvidia")
    places = [Path(place) for place in (spec.submodule_search_locations or [])] if spec else []
    for place in places:
        for found in sorted(place.glob("*/include/cccl/cuda/memory_resource")):
            return [found.parent.parent.parent, found.parent.parent]
    return []


_PER_THREAD = "-DCUDA_API_PER_THREAD_DEFAULT_STREAM"


def check(source, flags, tmp_path):
    """Compiles a program and runs it. It says how much is wrong."""
    folders = header_folders()
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if not folders or compiler is None:
        pytest.skip("no CCCL headers, or no C++ compiler")
    program = tmp_path / "check"
    libraries = [*sorted((PACKAGE / "lib").glob("libductile_virtual.so.*"))]
    libraries.append(PACKAGE / "lib" / "libductile.so")
    headers = [f"-I{PACKAGE / 'include'}", f"-I{HERE / 'resource'}"]
    headers += [f"-isystem{folder}" for folder in folders]
    command = [compiler, *flags, "-Wall", "-Wextra", "-Werror", *headers]
    command += [str(HERE / "resource" / source), "-o", str(program), *map(str, libraries)]
    command += [f"-Wl,-rpath,{PACKAGE / 'lib'}"]
    compiled = run(*command)
    assert compiled.returncode == 0, compiled.stderr
    ended = run(program)
    assert (ended.returncode, ended.stdout) == (0, "0 wrong\n"), ended.stdout + ended.stderr


@pytest.mark.parametrize("flags", [["-std=c++17"], ["-std=c++20"], ["-std=c++17", _PER_THREAD]])
def test_the_resource_serves_what_cccl_asks_for(tmp_path, flags):
    check("check.cpp", flags, tmp_path)


def test_under_rmm_a_lack_of_memory_is_rmms_own_exception(tmp_path):
    """librmm's tests of out of memory end the process where a thread throws std::bad_alloc."""
    check("check_rmm.cpp", ["-std=c++20"], tmp_path)
