# SPDX-License-Identifier: Apache-2.0
"""Versions of PyTorch that are older or newer than what was tried, and what those declare."""

from __future__ import annotations

import os
import re
import shutil
import warnings
from pathlib import Path
from typing import NamedTuple

import pytest

torch = pytest.importorskip("torch")
if torch.version.cuda is None:
    pytest.skip("this PyTorch is built without CUDA", allow_module_level=True)

from ductile_gpu.torch import _build


@pytest.mark.parametrize("version", ["2.5.1", "1.13.0"])
def test_a_version_that_is_too_old_is_refused_by_number(monkeypatch, version):
    monkeypatch.setattr(torch, "__version__", version)
    with pytest.raises(_build.BuildError, match=f"^PyTorch {version} is older than 2.6, the old"):
        _build.describe_torch()


@pytest.mark.parametrize(
    ("version", "minor"), [("2.16.0", 16), ("2.16.0.dev20261101+cu132", 16), ("3.1.0", 101)]
)
def test_a_version_that_was_not_tried_is_tried(monkeypatch, version, minor):
    monkeypatch.setattr(torch, "__version__", version)
    assert _build.describe_torch()[:2] == (version, minor)


DEFAULT = "virtual int defragment(int device, std::vector<int> which) { return 0; }"
ANOTHER_FORM = "virtual bool isHistoryEnabled(int device, int level) { return false; }"
PURE = "virtual void defragment() = 0;"


class Newer(NamedTuple):
    """The installed PyTorch with a version of its own and another interface."""

    found: _build.Torch
    header: Path

    def declare(self, function: str) -> None:
        text = self.header.read_text(encoding="utf-8")
        opened = "class CUDAAllocator : public DeviceAllocator {\n public:\n"
        changed = re.sub(r"class CUDAAllocator [^{]*\{\s*public:", f"{opened}{function}", text)
        assert changed != text
        self.header.write_text(changed, encoding="utf-8")


@pytest.fixture
def newer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Newer:
    found = _build.describe_torch()
    root = tmp_path / "torch"
    shutil.copytree(found.include, root / "include", copy_function=os.symlink)
    header = root / "include" / "c10" / "cuda" / "CUDACachingAllocator.h"
    text = header.read_text(encoding="utf-8")
    header.unlink()
    header.write_text(text, encoding="utf-8")
    (root / "lib").symlink_to(found.root / "lib")
    (tmp_path / "nvidia").symlink_to(found.root.parent / "nvidia")
    monkeypatch.setenv("DUCTILE_CACHE", str(tmp_path / "cache"))
    return Newer(found._replace(version="2.16.0", minor=16, root=root), header)


def test_a_newer_version_with_the_same_interface_is_served_in_silence(newer):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _build.tell_what_is_unknown(newer.found)


@pytest.mark.parametrize(
    ("function", "named"),
    [(DEFAULT, "defragment"), (ANOTHER_FORM, "isHistoryEnabled with 2 parameters")],
    ids=["function", "form"],
)
def test_what_a_newer_version_has_beside_is_named_and_the_rest_served(newer, function, named):
    newer.declare(function)
    assert _build.build(newer.found).exists()
    with pytest.warns(RuntimeWarning, match=rf"2\.16\.0 has .* not know \({named}\): they do"):
        _build.tell_what_is_unknown(newer.found)


def test_a_newer_version_that_wants_what_is_unknown_is_refused_by_its_name(newer):
    newer.declare(PURE)
    expected = r"2\.16\.0, which is newer than 2\.15, .*, and declares defragment: .*; all of it is"
    with pytest.raises(_build.BuildError, match=expected):
        _build.build(newer.found)


def test_pytorch_s_headers_get_the_standard_they_need():
    found = _build.describe_torch()
    assert _build._standard(found._replace(minor=11)) == "-std=c++17"
    assert _build._standard(found._replace(minor=12)) == "-std=c++20"
