# SPDX-License-Identifier: Apache-2.0
"""The wheel and the source distribution carry what they must, and stand on their own."""

from __future__ import annotations

import configparser
import os
import re
import shutil
import sys
import tarfile
import zipfile
from importlib.metadata import metadata, version
from pathlib import Path

import pytest
from running import check_mistyped, python, run
from support import ROOT

import ductile_gpu
from ductile_gpu.__main__ import COMMANDS

sys.path.insert(0, str(ROOT / "python" / "tools"))

import make_wheels

PACKAGE = ROOT / "python" / "ductile_gpu"
VIRTUAL = "libductile_virtual.so." + ductile_gpu.__version__.rpartition(".")[0]


@pytest.fixture(scope="module")
def wheel():
    folder = os.environ.get("DUCTILE_WHEEL_DIR")
    if folder is None:
        pytest.skip("DUCTILE_WHEEL_DIR names no folder; python/tests/run builds one")
    (found,) = Path(folder).glob("ductile_gpu-*.whl")
    with zipfile.ZipFile(found) as archive:
        yield archive


def test_the_wheel_carries_library_program_headers_and_types(wheel):
    names = set(wheel.namelist())
    assert {
        "ductile_gpu/lib/libductile.so",
        f"ductile_gpu/lib/{VIRTUAL}",
        "ductile_gpu/bin/ductile-bench",
        "ductile_gpu/commands.schema.json",
        "ductile_gpu/traces/demo.trace.gz",
        "ductile_gpu/snapshot.schema.json",
        "ductile_gpu/include/ductile.h",
        "ductile_gpu/include/ductile_process.h",
        "ductile_gpu/include/ductile_virtual.h",
        "ductile_gpu/_binding/_abi.py",
        "ductile_gpu/py.typed",
    } <= names
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_wheel_carries_every_source_of_the_package_and_of_the_extras(wheel):
    kept = {".py", ".c", ".h", ".cpp", ".typed"}
    sources = {
        f"ductile_gpu/{path.relative_to(folder).as_posix()}"
        for folder in [PACKAGE, *ROOT.glob("extras/*/python")]
        for path in folder.rglob("*")
        if path.suffix in kept or path.name == "py.typed"
    }
    assert sources - set(wheel.namelist()) == set()


@pytest.mark.parametrize("module", ["cupy", "numba", "rmm", "cuda_core", "torch"])
def test_a_mistyped_name_of_an_adapter_is_found_by_mypy(tmp_path, module):
    pytest.importorskip("mypy")
    program = tmp_path / "program.py"
    program.write_text(f"import ductile_gpu\n\nductile_gpu.{module}.enabel()\n")
    answer = python("-m", "mypy", "--cache-dir", tmp_path / "cache", program, folder=tmp_path)
    assert 'Module has no attribute "enabel"' in answer.stdout, answer.stdout + answer.stderr


def test_the_wheel_takes_no_name_that_is_not_its_own(wheel):
    """Another project on the package index is called ductile: both can be installed."""
    tops = {name.split("/")[0].split("-")[0] for name in wheel.namelist()}
    assert not [name for name in tops if not re.match(r"ductile_gpu(\W|_|$)", name)]
    (points,) = (name for name in wheel.namelist() if name.endswith("entry_points.txt"))
    groups = configparser.ConfigParser(delimiters="=")
    groups.read_string(wheel.read(points).decode())
    assert set(groups["console_scripts"]) == {"ductile-gpu", "ductile-bench"}
    plugins = [group for group in groups.sections() if group != "console_scripts"]
    assert {name for group in plugins for name in groups[group]} <= {"ductile"}


def test_the_wheel_is_for_every_python_and_not_much_else(wheel):
    assert "-py3-none-" in Path(wheel.filename).name
    binary = ("ductile_gpu/torch/", "ductile_gpu/lib/")
    others = [name for name in wheel.namelist() if not name.startswith(binary)]
    assert not [name for name in others if name.endswith((".c", ".cpp", ".o", ".a", ".so"))]
    assert sum(entry.file_size for entry in wheel.infolist()) < 4 << 20


def test_the_program_can_be_executed(wheel):
    mode = wheel.getinfo("ductile_gpu/bin/ductile-bench").external_attr >> 16
    assert mode & 0o111
    answer = run(ductile_gpu.bench_path(), "--version")
    assert answer.stdout.split()[-1] == ductile_gpu.__version__


def test_library_package_and_metadata_are_one_version():
    from ductile_gpu._binding._native import lib

    assert version("ductile-gpu") == ductile_gpu.__version__ == lib.ductile_version().decode()


def test_an_extra_fits_environments_of_each_cuda_version():
    """A name with a version of CUDA in it would put a second CuPy beside that of another one."""
    wanted = metadata("ductile-gpu").get_all("Requires-Dist")
    assert any(line.startswith("numba-cuda") for line in wanted)
    assert not [line for line in wanted if re.search(r"-cu(da)?\d", line)]


def test_the_python_that_runs_this_is_among_those_that_the_metadata_names():
    python_here = ".".join(map(str, sys.version_info[:2]))
    named = metadata("ductile-gpu").get_all("Classifier")
    assert f"Programming Language :: Python :: {python_here}" in named
    assert metadata("ductile-gpu")["Requires-Python"] == ">=" + next(
        line.rpartition(" ")[2] for line in named if " :: Python :: 3." in line
    )


RELEASED = """\
Name: ductile-gpu
Version: 9.9
Author: Some People
Maintainer-email: A Maintainer <maintainer@example.org>
Project-URL: Repository, https://example.org/ductile
Project-URL: Issues, https://example.org/ductile/issues
Project-URL: Changelog, https://example.org/ductile/changelog
"""


@pytest.mark.parametrize(
    ("before", "after", "missing"),
    [
        ("", "", []),
        ("Author: Some People\n", "", ["an author"]),
        ("Maintainer-email: ", "Summary: ", ["a maintainer"]),
        ("URL: Issues, https", "URL: Tracker, https", ["the URL Issues"]),
        ("Repository, https://", "Repository, ", ["the URL Repository"]),
        ("Version: 9.9", "Version: 9.8", ["a heading 9.8 in docs/changelog.md with its date"]),
    ],
)
def test_a_release_says_who_made_it_and_where_it_lives(before, after, missing):
    changelog = "# Changelog\n\n## 9.9, 1 May 2030\n\n## 9.8, not released yet\n"
    assert make_wheels.missing_for_release(RELEASED.replace(before, after), changelog) == missing


def test_a_wheel_is_fit_for_the_newest_c_library_that_its_tags_name():
    """auditwheel keeps the tag that a wheel came with, and adds the one that it found."""
    found = make_wheels.newest_glibc(
        "ductile_gpu-0.2.0-py3-none-manylinux_2_28_x86_64.manylinux_2_34_x86_64.whl"
    )
    assert found == (2, 34)
    assert found > make_wheels.GLIBC


def test_who_is_cited_is_who_made_the_package():
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    (author,) = re.findall(r"^  - name: (.+)$", citation, re.M)
    assert metadata("ductile-gpu")["Author"] == author
    assert f"license: {metadata('ductile-gpu')['License-Expression']}" in citation


def test_another_versions_library_is_refused(tmp_path):
    other = tmp_path / "libductile.so"
    other.write_bytes(b"\x7fELF not quite")
    answer = python("-c", "import ductile_gpu", DUCTILE_LIBRARY=other)
    assert answer.returncode == 1
    assert "libductile.so cannot be loaded" in answer.stderr


SERVES = (
    "import ductile_gpu\n"
    "with ductile_gpu.Allocator(driver='virtual') as a: a.free(a.alloc(1 << 20))\n"
    "with ductile_gpu.VirtualGPU('1G') as gpu, gpu.allocator() as a: a.free(a.alloc(1 << 20))"
)


def test_another_folders_library_gets_the_virtual_gpu_of_the_package(tmp_path):
    named = tmp_path / "libductile.so"
    shutil.copy(ductile_gpu.library_path(), named)
    for _ in ("the package's", "its own"):
        answer = python("-c", SERVES, DUCTILE_LIBRARY=named)
        assert answer.returncode == 0, answer.stderr
        shutil.copy(ductile_gpu.library_path().with_name(VIRTUAL), tmp_path)


def test_importing_needs_no_gpu_library_and_imports_no_other():
    code = (
        "import sys, ductile_gpu; "
        "print(sorted({'torch', 'cupy', 'numba', 'rmm', 'numpy'} & set(sys.modules)))"
    )
    answer = python("-c", code)
    assert answer.stdout.strip() == "[]", answer.stderr


TYPED = """\
import ductile_gpu
import ductile_gpu.torch
ductile_gpu.Allocator(limit_bytes='4G', compact=False, reuse='never')
ductile_gpu.torch.enable('full', sizes=1 << 26)
ductile_gpu.share('torch', 'cupy', sizes='64M')
"""
MISTYPED = {
    "ductile_gpu.Allocator(limit_byte='4G')": "limit_byte",
    "ductile_gpu.share('cupy', reuse='sometimes')": "reuse",
    "ductile_gpu.torch.enable('fast')": "Literal",
    "ductile_gpu.share('torhc')": "Literal",
    "ductile_gpu.Allocator(sizes='aut')": "sizes",
    "ductile_gpu.torch.enable(zero='yes please')": "zero",
}


def test_mistyped_options_fail_a_type_checker(tmp_path):
    pytest.importorskip("mypy")
    check_mistyped(TYPED, MISTYPED, tmp_path, "--ignore-missing-imports")


WAYS = {
    # as site.py before 3.15 does, without a local variable that older ones had
    "ductile_gpu.pth": "exec(open(sys.argv[1]).read())",
    # as site.py from 3.15 on does
    "ductile_gpu.start": (
        "module, _, name = open(sys.argv[1]).read().strip().partition(':'); "
        "getattr(__import__(module), name)()"
    ),
}


@pytest.mark.parametrize("name", WAYS)
@pytest.mark.parametrize("request_of", ["DUCTILE_TORCH", "DUCTILE_RECORD"])
@pytest.mark.parametrize(("wanted", "found"), [("1", "True False"), (None, "False False")])
def test_every_interpreter_hears_the_request(name, request_of, wanted, found):
    code = (
        f"import sys\ndef run():\n    {WAYS[name]}\nrun()\n"
        "print(any(type(f).__name__ == 'TorchFinder' for f in sys.meta_path), "
        "'ductile_gpu' in sys.modules)"
    )
    environment = {"PYTHONPATH": PACKAGE.parent, **({request_of: wanted} if wanted else {})}
    program = ("-S", "-c", code, PACKAGE.parent / name)
    answer = python(*program, without=("DUCTILE_TORCH", "DUCTILE_RECORD"), **environment)
    assert answer.stdout.strip() == found, answer.stderr


CHECKOUT = ("CMakeLists.txt", "LICENSE", "README.md", "bench", "pool", "python", "segments", "vmm")
NOT_BUILT = shutil.ignore_patterns("__pycache__", ".*", "results", "dist", "build")
EXTRAS = [path.parent.name for path in ROOT.glob("extras/*/python.cmake")]


@pytest.mark.slow
def test_a_build_with_adapters_writes_nothing_into_the_checkout_of_another_user(tmp_path):
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    for name in [*CHECKOUT, *(f"extras/{name}" for name in EXTRAS)]:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, checkout / name, ignore=NOT_BUILT)
        else:
            shutil.copy(ROOT / name, checkout)
    adapters = tmp_path / "adapters"
    adapters.mkdir()
    (adapters / "torch-2.99-cxx11-cu13-0123456789abcdef.so").write_bytes(b"an adapter")
    before = sorted(checkout.rglob("*"))
    for path in before:
        path.chmod(0o555 if path.is_dir() else 0o444 | path.stat().st_mode & 0o111)
    carry = ("-C", f"cmake.define.DUCTILE_ADAPTERS={adapters}")
    command = ("pip", "wheel", "--no-deps", "-q", *carry, "-w", tmp_path, checkout / "python")
    made = python("-m", *command, seconds=900, PYTHONDONTWRITEBYTECODE=1)
    assert made.returncode == 0, made.stderr
    assert sorted(checkout.rglob("*")) == before
    (built,) = tmp_path.glob("ductile_gpu-*.whl")
    with zipfile.ZipFile(built) as opened:
        carried = opened.read("ductile_gpu/torch/built/torch-2.99-cxx11-cu13-0123456789abcdef.so")
        assert carried == b"an adapter"


@pytest.mark.slow
def test_a_source_distribution_builds_the_same_wheel_on_its_own(tmp_path, wheel):
    pytest.importorskip("build")
    made = python("-m", "build", "--sdist", "-o", tmp_path, ROOT / "python")
    assert made.returncode == 0, made.stderr
    (archive,) = tmp_path.glob("ductile_gpu-*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
        assert "csrc/pool/include/ductile.h" in names
        extras = {name.split("/")[2] for name in names if name.startswith("csrc/extras/")}
        assert extras == set(EXTRAS)
        traces = [name for name in names if name.endswith(".trace.gz")]
        assert traces == ["csrc/bench/traces/synthetic/requests.trace.gz"]
        assert not [name for name in names if name.endswith((".so", ".pyc"))]
        opened.extractall(tmp_path)
    folder = tmp_path / archive.name.removesuffix(".tar.gz")
    wheels = tmp_path / "wheels"
    made = python("-m", "pip", "wheel", "--no-deps", "-q", "-w", wheels, folder, seconds=900)
    assert made.returncode == 0, made.stderr
    (built,) = wheels.glob("ductile_gpu-*.whl")
    with zipfile.ZipFile(built) as opened_wheel:
        assert set(opened_wheel.namelist()) == set(wheel.namelist())


def test_the_forms_for_issues_name_commands_that_there_are():
    forms = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
    assert forms
    for form in forms:
        named = set(re.findall(r"ductile-gpu ([a-z]+)", form.read_text(encoding="utf-8")))
        assert "info" in named <= set(COMMANDS), form
