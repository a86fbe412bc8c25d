# SPDX-License-Identifier: Apache-2.0
"""The binding is what the C compiler makes of the headers: sizes, offsets, values, functions."""

from __future__ import annotations

import ctypes
import shutil
import subprocess

import pytest

import ductile_gpu
from ductile_gpu._binding import _abi, _errors

STRUCTS = [
    value
    for name, value in sorted(vars(_abi).items())
    if isinstance(value, type) and issubclass(value, ctypes.Structure)
]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """A C program that prints sizes and offsets of every struct, by name."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    lines = []
    for struct in STRUCTS:
        lines.append(f'printf("{struct.__name__} %zu\\n", sizeof({struct.__name__}));')
        for name, _ in struct._fields_:
            lines.append(
                f'printf("{struct.__name__}.{name} %zu\\n", offsetof({struct.__name__}, {name}));'
            )
    headers = sorted(path.name for path in ductile_gpu.include_dir().glob("*.h"))
    folder = tmp_path_factory.mktemp("abi")
    source = folder / "layout.c"
    source.write_text(
        "#include <stdio.h>\n"
        + "".join(f"#include <{header}>\n" for header in headers)
        + "int main(void) {\n"
        + "\n".join(lines)
        + "\nreturn 0;\n}\n"
    )
    program = folder / "layout"
    command = ["cc", "-I", str(ductile_gpu.include_dir()), str(source), "-o", str(program)]
    subprocess.run(command, check=True)
    answer = subprocess.run([str(program)], check=True, capture_output=True, text=True)
    return dict(line.split() for line in answer.stdout.splitlines())


@pytest.mark.parametrize("struct", STRUCTS, ids=lambda struct: struct.__name__)
def test_structs_are_laid_out_as_in_c(struct, compiled):
    assert int(compiled[struct.__name__]) == ctypes.sizeof(struct)
    for name, _ in struct._fields_:
        assert int(compiled[f"{struct.__name__}.{name}"]) == getattr(struct, name).offset, name


def test_every_function_of_the_libraries_is_declared():
    nm = shutil.which("nm")
    if nm is None:
        pytest.skip("no nm")
    library = ductile_gpu.library_path()
    listed = subprocess.run(
        [nm, "-D", "--defined-only", str(library), *library.parent.glob("libductile_virtual.so.*")],
        check=True,
        capture_output=True,
        text=True,
    )
    exported = {line.split()[-1] for line in listed.stdout.splitlines() if line}
    by_libductile = {"ductile_virtual_backend"}
    assert {name for name in exported if name.startswith("ductile_")} - by_libductile == set(
        _abi.FUNCTIONS
    )


def test_statistics_are_those_of_the_struct():
    declared = [name for name, _ in _abi.ductile_stats._fields_]
    assert ["struct_size", *ductile_gpu.Stats._fields] == declared


@pytest.mark.parametrize("status", [s for s in ductile_gpu.Status if s])
def test_every_status_is_an_exception_of_its_own_name(status):
    from ductile_gpu._binding._native import lib

    error = _errors.error_from_status(status, "what was tried")
    assert isinstance(error, ductile_gpu.Error)
    assert type(error) is not ductile_gpu.Error, f"{status.name} has no class in _errors.py"
    assert error.name == lib.ductile_status_name(status).decode()
    assert lib.ductile_status_string(status).decode() in str(error)


def test_a_status_of_a_newer_library_is_still_an_error():
    assert type(_errors.error_from_status(999)) is ductile_gpu.Error
