# SPDX-License-Identifier: Apache-2.0
"""The doctor says what then happens: around stubs of PyTorch, its adapter and the driver."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest
from running import MODE
from stub_torch import Place, adapter, compile_stub
from support import ROOT

from ductile_gpu._tools._cli.program import Program, resolve

__all__ = ["adapter"]


@pytest.fixture(scope="session")
def driver(tmp_path_factory):
    output = tmp_path_factory.mktemp("driver") / "libcuda.so.1"
    flags = ("-DFAKE_FIND=0", "-D_GNU_SOURCE", f"-I{ROOT}", f"-I{ROOT / 'pool' / 'include'}")
    return compile_stub(ROOT / "tests" / "fake_cuda" / "fake_libcuda.c", output, *flags)


@pytest.fixture
def place(tmp_path, adapter, driver):
    """Where all that is needed is there."""
    found = Place(tmp_path, adapter)
    found.environment["LD_LIBRARY_PATH"] = str(driver.parent)
    found.environment["DUCTILE_TORCH"] = "1"
    return found


def program(folder, name, text):
    path = folder / name
    path.write_text(text)
    path.chmod(0o755)
    return path


def checks(place, *words, **environment):
    """The exit status and what was not in order, by name."""
    answer = place.command("doctor", "--json", *words, **environment)
    assert answer.stderr == "", answer.stderr
    found = json.loads(answer.stdout)
    assert found["served"] is (answer.returncode == 0)
    rows = {row["name"]: row["text"] for row in found["checks"] if row["state"] == "FAIL"}
    assert bool(rows) is (answer.returncode == 1)
    return rows


# ---- What stands in the way --------------------------------------------------------------------

FAULTS = {
    "a GPU": ("driver", {"LD_LIBRARY_PATH": ""}, "where there is a GPU"),
    "a visible one": ("driver", {"FAKE_CUDA_DEVICES": "0"}, "CUDA_VISIBLE_DEVICES"),
    "virtual memory": ("driver", {"FAKE_CUDA_VMM": "0"}, "no virtual memory management"),
    "CUDA": ("pytorch", {"STUB_NO_CUDA": "1"}, "built without CUDA"),
    "PyTorch": ("pytorch", {"PYTHONPATH": ""}, "no PyTorch"),
    "the request": ("request", {"DUCTILE_TORCH": "0"}, "Set it to 1"),
    "a right one": ("request", {"DUCTILE_TORCH": "plian"}, "auto, full, plain"),
    "the allocator": (
        "settings",
        {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"},
        "Take it out of PYTORCH_CUDA_ALLOC_CONF",
    ),
    "caching": ("settings", {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}, "Unset it"),
    "options": ("settings", {"DUCTILE_CONF": "limit_byte:4G"}, "limit_byte"),
    "the adapter": (
        "adapter",
        {"DUCTILE_TORCH": "full", "DUCTILE_TORCH_ADAPTER": "", "CXX": "", "PATH": "/none"},
        "no C++ compiler",
    ),
}


def test_where_nothing_is_missing_the_program_will_be_served(place):
    script = program(place.folder, "train.py", MODE)
    assert checks(place) == checks(place, script) == checks(place, sys.executable, script) == {}
    assert place.python(script).stdout == "full\n"
    answer = place.command("doctor", "train.py", "--epochs", "3")
    assert (answer.returncode, answer.stderr) == (0, "")
    lines = answer.stdout.splitlines()
    assert lines[-1].startswith("Ductile will serve train.py --epochs 3, and the Pythons")
    assert {line.split()[0] for line in lines[:-1]} == {"ok"}
    assert all(line.split(maxsplit=2)[2].endswith(".") for line in lines[:-1])


@pytest.mark.parametrize("missing", FAULTS)
def test_what_stands_in_the_way_is_named_with_a_remedy(place, missing):
    name, environment, remedy = FAULTS[missing]
    found = checks(place, **environment)
    assert list(found) == [name]
    assert remedy in found[name]
    assert re.fullmatch(r"[A-Z/\W].+\.", found[name], re.S)


NOTES = {
    "the driver is older": ("driver", {"FAKE_CUDA_VERSION": "12040"}, "from 12.5 on"),
    "the request is to come": ("request", {"DUCTILE_TORCH": ""}, "DUCTILE_TORCH"),
    "no compiler": (
        "adapter",
        {"DUCTILE_TORCH_ADAPTER": "", "CXX": "", "PATH": "/none"},
        "plain mode",
    ),
}


@pytest.mark.parametrize("which", NOTES)
def test_what_is_worth_knowing_is_no_failure(place, which):
    name, environment, said = NOTES[which]
    place.environment.pop("DUCTILE_TORCH") if "DUCTILE_TORCH" in environment else None
    kept = {key: value for key, value in environment.items() if key != "DUCTILE_TORCH"}
    answer = place.command("doctor", **kept)
    assert answer.returncode == 0, answer.stdout
    (line,) = (line for line in answer.stdout.splitlines() if line.startswith("note"))
    assert line.split()[1] == name
    assert said in line


def test_libraries_that_may_capture_are_named(place):
    (place.folder / "warp.py").touch()
    paths = os.pathsep.join([place.environment["PYTHONPATH"], str(place.folder)])
    said = place.command("doctor", PYTHONPATH=paths).stdout
    assert "captures graphs with" in said
    assert "warp" in said
    said = place.command("doctor", PYTHONPATH=paths, DUCTILE_CONF="captures:unannounced").stdout
    assert "captures graphs" not in said


# ---- The program -------------------------------------------------------------------------------


def test_nothing_of_the_program_is_run(place):
    text = "open('ran', 'w').close()\n"
    script = program(place.folder, "train.py", text)
    tool = program(place.folder, "tool", f"#!{sys.executable}\n{text}")
    assert checks(place, script) == checks(place, tool) == {}
    assert checks(place, sys.executable, "-c", text) == {}
    assert not (place.folder / "ran").exists()


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("torch.cuda.memory.change_current_allocator(a)", "another allocator"),
        ("os.environ['PYTORCH_CUDA_ALLOC_CONF'] = 'backend:cudaMallocAsync'", "cudaMallocAsync"),
        ("print(", "cannot be read as Python"),
    ],
)
def test_a_script_that_brings_another_allocator_is_told(place, line, fault):
    script = program(place.folder, "train.py", f"import os, torch\n{line}\n")
    assert fault in checks(place, script)["script"]


def test_packages_beside_the_script_count(place):
    (place.folder / "own").mkdir()
    (place.folder / "own" / "torch.py").write_text("raise ImportError('a file of my own')")
    script = program(place.folder / "own", "train.py", "")
    assert "a file of my own" in checks(place, script, PYTHONPATH="")["pytorch"]


def test_a_python_without_ductile_or_without_its_hook_is_told(place):
    base = Path(sys._base_executable).resolve()
    if base == Path(sys.executable).resolve() and base.parent == Path(sys.executable).parent:
        pytest.skip("no other Python here")
    assert "has no Ductile" in checks(place, base, "train.py")["hook"]
    packages = os.pathsep.join([place.environment["PYTHONPATH"], *sys.path])
    found = checks(place, sys.executable, "-S", "train.py", PYTHONPATH=packages)
    assert "Start it without -S" in found["hook"]


def test_what_is_no_program_is_misuse(place):
    answer = place.command("doctor", "no-such-program")
    assert answer.returncode == 2
    assert (
        answer.stderr
        == "ductile-gpu: no-such-program: no such program; it comes after the options\n"
    )
    assert checks(place, "ls", "-l")["program"].startswith("None of these words names a Python ")


@pytest.mark.parametrize(("name", "fails"), [("sudo", True), ("ssh", True), ("mpirun", False)])
def test_a_launcher_that_drops_the_request_is_told(place, name, fails):
    program(place.folder, name, "#!/bin/sh\n")
    path = f"{place.folder}{os.pathsep}{os.environ['PATH']}"
    found = checks(place, name, "-n", "2", sys.executable, "train.py", PATH=path)
    assert ("launcher" in found) is fails


# ---- Which Python it is ------------------------------------------------------------------------

LINES = {
    "#!/some/python3\n": None,
    "#!{python}\n": (),
    "#!{python} -sP\n": ("-sP",),
    "#!/usr/bin/env python3\n": (),
    "#!/usr/bin/env -S python3 -I\n": ("-I",),
    "#!/bin/sh\n'''exec' '{python}' \"$0\" \"$@\"\n": (),
    "#!/bin/sh\nexec something\n": None,
    "\x7fELF": None,
}


@pytest.mark.parametrize("line", LINES)
def test_the_first_line_of_a_program_names_its_python(tmp_path, line):
    tool = program(tmp_path, "tool", line.replace("{python}", sys.executable))
    found = resolve([str(tool), "--option"])
    assert found is not None
    if LINES[line] is None:
        assert found.python is None
        assert found.launchers == ("tool",)
    else:
        assert Path(found.python).name.startswith("python")
        assert found.flags == LINES[line]


@pytest.mark.parametrize(
    ("words", "flags"),
    [
        ([], ()),
        (["-I", "x.py", "-S"], ("-I",)),
        (["-u", "-m", "torch.distributed.run", "-n"], ("-u",)),
        (["-Im", "pytest"], ("-I",)),
        (["-X", "dev", "-W", "error", "-c", "pass"], ("-X", "dev", "-W", "error")),
        (["-"], ()),
    ],
)
def test_flags_are_the_interpreters_own(words, flags):
    assert resolve([sys.executable, *words]) == Program(sys.executable, flags, (), None)


def test_the_first_python_behind_a_launcher_counts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    script = program(tmp_path, "train.py", "")
    found = resolve(["/bin/sh", "-c", "4", sys.executable, "-u", "train.py"])
    assert found == Program(sys.executable, ("-u",), ("sh",), "train.py")
    assert resolve(["train.py"]) == Program(sys.executable, (), (), "train.py")
    assert resolve([str(script)]).script == str(script)
