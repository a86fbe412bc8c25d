# SPDX-License-Identifier: Apache-2.0
"""How the adapter comes to be: what is remembered, what is trusted, who waits for whom."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from running import python

torch = pytest.importorskip("torch")
if torch.version.cuda is None:
    pytest.skip("this PyTorch is built without CUDA", allow_module_level=True)

import ductile_gpu.torch
from ductile_gpu.torch import _build, _install, _plain


class Compiler:
    """Stands in for g++: counts its calls, and fails or writes its output."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "some-c++"
        self.log = folder / "calls"
        self.log.write_text("", encoding="utf-8")

    def write(self, body: str) -> None:
        self.path.write_text(f"#!/bin/sh\necho x >> {self.log}\n{body}\n", encoding="utf-8")
        self.path.chmod(0o755)

    @property
    def calls(self) -> int:
        return self.log.read_text(encoding="utf-8").count("x")


FAILS = "echo 'here.cpp:1: error: no such thing' >&2; exit 1"
MAKES = 'while [ "$1" != -o ]; do shift; done; echo made > "$2"'


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where adapters are compiled to; none is carried."""
    folder = tmp_path / "cache"
    monkeypatch.setattr(_build, "CARRIED", tmp_path / "built")
    monkeypatch.setenv("DUCTILE_CACHE", str(folder))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir(mode=0o700)
    monkeypatch.setattr("tempfile.tempdir", None)
    return folder


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Compiler:
    made = Compiler(tmp_path)
    monkeypatch.setenv("CXX", str(made.path))
    return made


# ---- Failures ----------------------------------------------------------------------------------


def test_a_failure_is_remembered_until_the_compiler_changes(cache, compiler):
    found = _build.describe_torch()
    compiler.write(FAILS)
    with pytest.raises(_build.BuildError, match=r"no such thing; all of it is in .*failed$"):
        _build.build(found)
    for _ in range(3):
        with pytest.raises(_build.FailedBefore, match=r"no such thing; .* tries again$"):
            _build.build(found)
    assert compiler.calls == 1
    assert sorted(path.suffix for path in cache.iterdir()) == ["", ".failed"]
    assert "none: the adapter does not compile" in _build.describe_adapter()
    with pytest.raises(_build.BuildError, match="no such thing"):
        _build.build(found, again=True)
    assert compiler.calls == 2
    compiler.write(MAKES)
    assert _build.build(found).read_text(encoding="utf-8") == "made\n"
    assert sorted(path.suffix for path in cache.iterdir()) == ["", ".so"]
    assert _build.describe_adapter() == str(next(cache.glob("*.so")))


def test_a_compiler_that_is_too_old_is_told_apart(cache, compiler):
    compiler.write("echo \"c++: error: unrecognized option '-std=c++20'\" >&2; exit 1")
    found = _build.describe_torch()._replace(minor=15)
    with pytest.raises(_build.BuildError, match=r"it needs a compiler for C\+\+20 \(GCC 10, Clang"):
        _build.build(found)


def test_a_compiler_that_says_nothing_is_called_so(cache, compiler):
    compiler.write("exit 1")
    with pytest.raises(_build.BuildError, match=r"\d: the compiler says nothing; all of it is in"):
        _build.build(_build.describe_torch()._replace(version="2.15.0", minor=15))


def test_a_missing_compiler_is_said(cache, compiler):
    with pytest.raises(_build.BuildError, match=r"some-c\+\+ cannot be run"):
        _build.build(_build.describe_torch())


def test_what_is_known_already_is_not_said_by_each_rank(cache, compiler, monkeypatch):
    monkeypatch.setattr(_plain, "install", lambda options: None)
    compiler.write(FAILS)
    said = []
    for rank in ("0", "0", "1"):
        monkeypatch.setenv("LOCAL_RANK", rank)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            ductile_gpu.torch.enable()
        said.append([str(warning.message) for warning in caught])
    assert [len(texts) for texts in said] == [1, 1, 0]
    assert "pluggable interface, because the adapter does not compile" in said[1][0]
    assert compiler.calls == 1


def test_without_pytorch_there_is_one_error(monkeypatch):
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import ductile_gpu.torch; ductile_gpu.torch.enable()"
    )
    answer = python("-c", code)
    assert answer.stderr.count("Traceback") == 1
    assert answer.stderr.strip().splitlines()[-1].startswith("ModuleNotFoundError")


def test_many_ranks_build_once(cache, compiler):
    compiler.write('exec g++ "$@"')
    program = "from ductile_gpu.torch import _build; print(_build.build(_build.describe_torch()))"
    command = [sys.executable, "-c", program]
    ranks = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    paths = {rank.communicate(timeout=600)[0] for rank in ranks}
    assert len(paths) == 1
    assert all(rank.returncode == 0 for rank in ranks)
    assert compiler.calls == 1
    assert [path.suffix for path in cache.glob("torch-*")] == [".so"]


# ---- When it is compiled -----------------------------------------------------------------------

LINE = "ductile-gpu: compiling the adapter for PyTorch "
GROUP = (
    "import torch.distributed as d; "
    "d.init_process_group('gloo', store=d.HashStore(), rank=0, world_size=1)"
)
NEEDS = {
    "torch.zeros(3) + torch.cuda.is_available()": 0,
    "import ductile_gpu.torch; ductile_gpu.torch.mode()": 1,
    "torch.cuda.init()": 1,
    "torch.zeros(3, device='cuda')": 1,
    "torch.cuda.memory._set_allocator_settings('garbage_collection_threshold:0.5')": 1,
    GROUP: 1,
}


@pytest.mark.parametrize("by", ["hook", "run"])
@pytest.mark.parametrize(("needs", "calls"), NEEDS.items())
def test_what_must_be_compiled_is_so_when_it_is_needed_and_a_line_says_it(
    cache, compiler, tmp_path, by, needs, calls
):
    compiler.write(FAILS)
    (tmp_path / "program.py").write_text(
        f"import contextlib, torch\nwith contextlib.suppress(RuntimeError):\n    {needs}\n"
        "print('end')\n",
        encoding="utf-8",
    )
    if by == "hook":
        answer = python(tmp_path / "program.py", without=("DUCTILE_TORCH",), DUCTILE_TORCH="1")
    else:
        answer = python("-m", "ductile_gpu", "run", tmp_path / "program.py")
    assert answer.stdout == "end\n", answer.stderr
    assert (compiler.calls, answer.stderr.count(LINE)) == (calls, calls), answer.stderr


@pytest.mark.parametrize("by", ["hook", "run"])
def test_where_full_cannot_be_had_the_program_ends_where_it_needs_it(cache, compiler, tmp_path, by):
    compiler.write(FAILS)
    text = "import torch\nprint('imported')\ntorch.cuda.init()\nprint('not reached')\n"
    (tmp_path / "program.py").write_text(text, encoding="utf-8")
    words = () if by == "hook" else ("-m", "ductile_gpu", "run")
    answer = python(*words, tmp_path / "program.py", DUCTILE_TORCH="full")
    assert (answer.returncode, answer.stdout) == (1, "imported\n"), answer.stderr
    assert "no such thing" in answer.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("variable", "value"),
    [("DUCTILE_CONF", "sizes:aut"), ("PYTORCH_CUDA_ALLOC_CONF", "backend:cudaMallocAsync")],
)
def test_a_wrong_setting_is_told_at_the_import_and_nothing_is_compiled(
    cache, compiler, variable, value
):
    answer = python("-c", "import torch", DUCTILE_TORCH="1", **{variable: value})
    assert "WARNING: Ductile is off, PyTorch keeps its own allocator: " in answer.stderr
    assert compiler.calls == 0


def test_an_adapter_that_is_there_serves_from_the_import_on(cache, compiler):
    compiler.write('exec g++ "$@"')
    code = (
        "import torch, sys; print(sys.modules['ductile_gpu.torch._install']._adapter is not None)"
    )
    assert python("-c", code, DUCTILE_TORCH="1").stdout == "False\n"
    assert compiler.calls == 0
    _build.build(_build.describe_torch())
    answer = python("-c", code, DUCTILE_TORCH="1")
    assert (answer.stdout, answer.stderr) == ("True\n", "")


# ---- Whose file it is --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file_mode", "folder_mode", "fault"),
    [
        (0o755, 0o700, None),
        (0o755, 0o755, None),
        (0o775, 0o700, "because other users can write it"),
        (0o757, 0o700, "because other users can write it"),
        (0o755, 0o777, "because other users can write .*place"),
        (0o755, 0o1777, "because other users can write .*place"),
    ],
)
def test_what_others_can_write_is_not_loaded(tmp_path, file_mode, folder_mode, fault):
    folder = tmp_path / "place"
    folder.mkdir()
    planted = folder / "torch-adapter.so"
    planted.write_bytes(b"")
    planted.chmod(file_mode)
    folder.chmod(folder_mode)
    if fault is None:
        _build.check_trusted(planted)
    else:
        with pytest.raises(_build.BuildError, match=fault):
            _build.check_trusted(planted)


def test_a_folder_above_that_everybody_can_write_is_seen(tmp_path):
    folder = tmp_path / "scratch" / "place"
    folder.mkdir(parents=True)
    (folder / "torch-adapter.so").write_bytes(b"")
    folder.parent.chmod(0o1777)
    _build.check_trusted(folder / "torch-adapter.so")  # only its owner can rename what is in it
    folder.parent.chmod(0o777)
    with pytest.raises(_build.BuildError, match=r"because every user can write .*scratch"):
        _build.check_trusted(folder / "torch-adapter.so")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_another_user_s_file_is_not_loaded(tmp_path):
    planted = tmp_path / "torch-adapter.so"
    planted.write_bytes(b"")
    _build.check_trusted(planted)
    os.chown(planted, 31001, 31001)
    with pytest.raises(_build.BuildError, match="because other users can write it"):
        _build.check_trusted(planted)


def test_the_cache_is_a_folder_of_one_user(cache, tmp_path):
    assert _build._writable_cache() == cache
    assert cache.stat().st_mode & 0o777 == 0o700
    cache.chmod(0o777)
    other = tmp_path / "tmp" / f"ductile-gpu-{os.geteuid()}"
    assert _build._writable_cache() == other
    other.chmod(0o770)
    with pytest.raises(_build.BuildError, match="set DUCTILE_CACHE to one"):
        _build._writable_cache()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a link away")
def test_another_user_s_link_is_not_followed(cache, tmp_path):
    mine = tmp_path / "mine"
    mine.mkdir(mode=0o700)
    cache.symlink_to(mine)
    assert _build._writable_cache() == cache  # this user's own link is
    os.chown(cache, 31001, 31001, follow_symlinks=False)
    assert _build._writable_cache() != cache


def test_a_lock_is_not_waited_for_for_ever(cache, compiler, monkeypatch):
    monkeypatch.setattr(_build, "PATIENCE", 0.2)
    cache.mkdir(mode=0o700)
    with open(cache / ".lock", "a", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(_build.BuildError, match=r"another process has held .*\.lock for 0.2"):
            _build.build(_build.describe_torch())
    assert compiler.calls == 0


# ---- Adapters that were made beforehand --------------------------------------------------------


def test_a_carried_adapter_needs_no_compiler(tmp_path, monkeypatch):
    monkeypatch.setattr(_build, "CARRIED", tmp_path)
    monkeypatch.setenv("CXX", str(tmp_path / "no-such-compiler"))
    found = _build.describe_torch()
    carried = tmp_path / _build.carried_name(found)
    carried.write_bytes(b"")
    assert _build.adapter_path(found) == carried
    assert _build.describe_adapter() == str(carried)
    monkeypatch.setenv("DUCTILE_TORCH_ADAPTER", "named")
    assert _build.adapter_path(found) == Path("named")


def test_where_a_carried_adapter_cannot_be_loaded_it_is_compiled(tmp_path, monkeypatch):
    monkeypatch.setattr(_build, "CARRIED", tmp_path / "built")
    monkeypatch.setenv("DUCTILE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CXX", str(tmp_path / "no-such-compiler"))
    found = _build.describe_torch()
    (tmp_path / "built").mkdir()
    (tmp_path / "built" / _build.carried_name(found)).write_bytes(b"for another C++ library")
    with pytest.raises(_build.BuildError, match=r"cannot be loaded: .*; .*compiler cannot be run"):
        _install._load_any(found)


def test_a_carried_adapter_is_for_one_interface(tmp_path):
    found = _build.describe_torch()
    patch = found._replace(version=f"{found.version}.post9")
    assert _build.carried_name(patch) == _build.carried_name(found)
    for header in _build.INTERFACE:
        copy = tmp_path / "include" / header
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes((found.include / header).read_bytes())
    assert _build.carried_name(found._replace(root=tmp_path)) == _build.carried_name(found)
    with open(copy, "a", encoding="utf-8") as changed:
        changed.write("\n")
    assert _build.carried_name(found._replace(root=tmp_path)) != _build.carried_name(found)
