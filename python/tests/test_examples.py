# SPDX-License-Identifier: Apache-2.0
"""The examples run; without what they need they say so in one line."""

from __future__ import annotations

import subprocess
import sys

import pytest
from conftest import ROOT

EXAMPLES = sorted((ROOT / "python" / "examples").glob("*.py"))
ON_GPU = [path for path in EXAMPLES if path.name != "replay_without_gpu.py"]


def run(path):
    return subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=300)


def test_a_run_is_replayed_without_a_gpu():
    answer = run(ROOT / "python" / "examples" / "replay_without_gpu.py")
    assert answer.returncode == 0, answer.stderr
    assert "Ductile holds" in answer.stdout
    assert "less than PyTorch native" in answer.stdout


@pytest.mark.parametrize("path", ON_GPU, ids=lambda path: path.stem)
def test_what_is_missing_is_one_line(path):
    answer = run(path)
    if answer.returncode == 0:
        pytest.skip("nothing is missing here")
    assert len(answer.stderr.splitlines()) == 1, answer.stderr
    assert "needs" in answer.stderr


@pytest.mark.gpu
@pytest.mark.parametrize("path", ON_GPU, ids=lambda path: path.stem)
def test_examples_run_on_hardware(path):
    answer = run(path)
    if "needs" in answer.stderr:
        pytest.skip(answer.stderr.strip())
    assert answer.returncode == 0, answer.stderr
