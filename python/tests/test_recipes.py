# SPDX-License-Identifier: Apache-2.0
"""The recipes of other packagers, a conda package and an image, say what the package says."""

from __future__ import annotations

import re
import shutil
import sys
from importlib.metadata import metadata
from pathlib import Path

import pytest
from running import run
from support import ROOT

import ductile_gpu

PLACE = ROOT / "python" / "packaging"
PROJECT = (ROOT / "python" / "pyproject.toml").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def recipe():
    rattler = pytest.importorskip("rattler_build")
    return rattler.Stage0Recipe.from_file(str(PLACE / "recipe.yaml"))


def test_the_conda_recipe_makes_one_package_of_this_version_on_linux_alone(recipe):
    rattler = pytest.importorskip("rattler_build")
    compilers = {"c_compiler": ["gcc"], "c_stdlib": ["sysroot"], "c_stdlib_version": ["2.28"]}
    linux = rattler.RenderConfig(rattler.PlatformConfig(target_platform="linux-64"))
    (found,) = recipe.render(rattler.VariantConfig(compilers), linux)
    assert found.recipe.package.name == "ductile-gpu"
    assert str(found.recipe.package.version) == ductile_gpu.__version__
    assert recipe.to_dict()["build"]["skip"] == ["not linux"]


def test_the_conda_recipe_wants_what_the_package_wants(recipe):
    wanted = recipe.to_dict()["requirements"]
    (backend,) = re.findall(r'^requires = \["(.+)"\]$', PROJECT, re.M)
    (cmake,) = re.findall(r'^cmake\.version = "(.+)"$', PROJECT, re.M)
    python = f"python {metadata('ductile-gpu')['Requires-Python']}"
    assert backend.replace(">=", " >=") in wanted["host"]
    assert f"cmake {cmake}" in wanted["build"]
    assert python in wanted["host"]
    assert wanted["run"] == [python]
    assert recipe.to_dict()["about"]["license"] == metadata("ductile-gpu")["License-Expression"]


def test_what_the_conda_recipe_takes_from_the_checkout_is_there(recipe):
    found = recipe.to_dict()
    (source,) = found["source"]
    assert (PLACE / source["path"]).resolve() == ROOT
    assert (ROOT / found["about"]["license_file"][0]).is_file()


def test_the_images_recipe_has_no_fault_that_its_linter_knows():
    linter = shutil.which("hadolint", path=Path(sys.executable).parent)
    if linter is None:
        pytest.skip("no hadolint: python/tests/run installs it where the package index has it")
    answer = run(linter, PLACE / "Dockerfile")
    assert answer.returncode == 0, answer.stdout


def test_the_images_recipe_names_options_and_packages_that_there_are():
    text = (PLACE / "Dockerfile").read_text(encoding="utf-8")
    (variable,) = re.findall(r"cmake\.define\.(\w+)=", text)
    assert f"set({variable} " in (ROOT / "python" / "CMakeLists.txt").read_text(encoding="utf-8")
    installed = set(re.search(r"--no-install-recommends (.+) \\", text)[1].split())
    setup = (ROOT / "bench" / "setup.sh").read_text(encoding="utf-8")
    known = set(re.findall(r"^ +want (\S+) ", setup, re.M))
    assert installed <= known
