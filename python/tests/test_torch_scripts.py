# SPDX-License-Identifier: Apache-2.0
"""The scripts that prove PyTorch on a GPU (torch_gpu), as far as they run without one."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).parent / "torch_gpu"
FAKE_TESTS = """\
import os, time, unittest
OWN = os.environ.get("DUCTILE_TORCH")
class TestCuda(unittest.TestCase):
    def test_good(self): pass
    def test_bad(self): self.fail("no")
    def test_lost(self):
        TestCuda.left = OWN
        self.assertFalse(OWN)
    def test_better(self): self.assertTrue(OWN)
    def test_once(self):
        if OWN and not os.path.exists(os.environ["MARK"]):
            open(os.environ["MARK"], "w").close()
            self.fail("once")
    def test_crashes(self): os.abort()
    def test_hangs(self):
        if OWN: time.sleep(1000)
    def test_skipped(self): self.skipTest("not here")
    def test_lost_with_the_former(self): self.assertFalse(getattr(TestCuda, "left", None))
if __name__ == "__main__":
    unittest.main()
"""


@pytest.fixture(autouse=True)
def _scripts_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS))


def run(script: str, *arguments: str, **environment: str) -> tuple[int, list[dict[str, Any]]]:
    """A script's status and the rows it printed."""
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / script), *arguments, "--json"],
        env={**os.environ, **environment}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


def needs(*packages: str) -> None:
    for package in packages:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")


def test_a_process_that_takes_too_long_is_killed_with_what_it_started() -> None:
    import allocators

    start = time.monotonic()
    status, output = allocators.run(["sh", "-c", "echo said; sleep 100 & sleep 100"], 0.5)
    assert (status, output.splitlines()[0]) == (-1, "said")
    assert "took more than" in output
    status, output = allocators.run(["sh", "-c", "sleep 100"], 60, silence=0.5)
    assert status == -1
    assert "said nothing" in output
    assert time.monotonic() - start < 20


def test_an_allocator_is_asked_for_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    import allocators

    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:20")
    monkeypatch.setenv("DUCTILE_TORCH", "1")
    found = {name: allocators.environment(name) for name in allocators.NAMES}
    assert not {"PYTORCH_CUDA_ALLOC_CONF", "DUCTILE_TORCH"} & found["native"].keys()
    assert found["expandable"]["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"
    assert "DUCTILE_TORCH" not in found["expandable"]
    assert found["ductile"]["DUCTILE_TORCH"] == "full"
    assert "PYTORCH_CUDA_ALLOC_CONF" not in found["ductile"]


def test_lost_tests_of_pytorch_are_told_from_those_that_fail_anyway(tmp_path: Path) -> None:
    tests = tmp_path / "test_cuda.py"
    tests.write_text(FAKE_TESTS)
    status, rows = run(
        "pytorch_tests.py", str(tests), "--workers", "3", "--silence", "10",
        MARK=str(tmp_path / "mark"),
    )  # fmt: skip
    verdicts = {row["test"]: row["verdict"] for row in rows if "test" in row}
    assert status == 1
    assert verdicts == {
        "TestCuda.test_bad": "neither",
        "TestCuda.test_better": "other",
        "TestCuda.test_crashes": "neither",
        "TestCuda.test_hangs": "LOST",
        "TestCuda.test_lost": "LOST",
        "TestCuda.test_lost_with_the_former": "again",
        "TestCuda.test_once": "again",
    }
    assert rows[0]["passed"] == 5
    errors = {row["test"]: row["error"] for row in rows if "test" in row}
    assert errors["TestCuda.test_bad"] == "AssertionError: no"
    assert errors["TestCuda.test_once"] == "AssertionError: once"


def test_a_known_difference_is_one_only_with_the_failure_that_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pytorch_tests

    tests = tmp_path / "tests.py"
    tests.write_text(FAKE_TESTS, encoding="utf-8")
    given = argparse.Namespace(silence=60.0)
    end = time.monotonic() + 60

    def judge(pattern: str, end: float) -> str:
        known = {"TestCuda.test_lost": ("reason", pattern)}
        monkeypatch.setattr(pytorch_tests, "DIFFERENCES", known)
        pair = ("native", "ductile")
        return pytorch_tests.judge(tests, "TestCuda.test_lost", pair, given, end)["verdict"]

    assert judge("is not false", end) == "differs"
    assert judge("something else", end) == "LOST"
    assert judge("is not false", time.monotonic() - 1) == "LOST"


@pytest.mark.parametrize(
    ("changed", "missed"),
    [
        ({}, []),
        ({"losses_equal_to_native": False}, ["losses differ from native's"]),
        ({"overhead": 0.02}, ["holds 2.00 % more than is used"]),
        ({"time_of_native": 1.02}, []),
        ({"time_of_native": 1.04}, ["a step takes longer than native's"]),
    ],
)
def test_ductile_is_held_to_losses_memory_and_time(
    changed: dict[str, Any], missed: list[str]
) -> None:
    import compare

    row = {"losses_equal_to_native": True, "overhead": 0.01, "time_of_native": 1.0}
    assert compare.judge({**row, "time_of_native_noise": 0.03, **changed}) == missed


def test_time_is_compared_round_by_round() -> None:
    import compare

    mean, noise = compare.paired([1.0, 2.0, 4.0], [1.0, 2.0, 4.0])
    assert (mean, noise) == (1.0, 0.0)
    mean, noise = compare.paired([1.1, 2.0, 3.6], [1.0, 2.0, 4.0])
    assert mean == pytest.approx(1.0)
    assert noise == pytest.approx(4.30 * 0.1 / 3**0.5)


@pytest.mark.parametrize(
    ("case", "own", "said"),
    [
        ("ddp-off", {"digest": "a", "backend": "ductile"}, "equal"),
        ("ddp-off", {"digest": "b", "backend": "ductile"}, "DIFFERS"),
        ("ddp-off", {"digest": "a", "backend": "native"}, "FAILED: not on Ductile"),
        ("ddp-off", {"error": "hung"}, "FAILED"),
        ("ddp-off", None, "native fails"),
        ("ddp-whole", None, "native refuses"),
    ],
)
def test_ranks_on_ductile_are_held_to_natives_losses(
    case: str, own: dict[str, Any] | None, said: str
) -> None:
    import distributed

    assert distributed.verdict({"case": case, "digest": "a"}, own) == said


@pytest.mark.slow
def test_ranks_train_and_agree() -> None:
    needs("torch")
    status, rows = run("distributed.py", "--cpu-check", "--steps", "2")
    assert [(row["case"], row["allocator"], row["verdict"]) for row in rows] == [
        (case, allocator, "equal")
        for case in ("ddp-off", "fsdp2-off")
        for allocator in ("native", "ductile")
    ], rows
    assert status == 0


@pytest.mark.slow
@pytest.mark.parametrize("model", ["gpt2", "lora", "resnet"])
def test_trainings_take_turns_and_agree(model: str) -> None:
    needs("torch", "transformers", "accelerate", "peft", "torchvision")
    status, rows = run(
        "compare.py", "--cpu-check", "--model", model, "--rounds", "2", "--steps", "2"
    )
    assert status in (0, 1), rows  # time is no criterion here
    assert [row["allocator"] for row in rows] == ["native", "expandable", "ductile"]
    assert all(row["losses_equal_to_native"] and row["steps"] == 6 for row in rows)


def test_a_training_that_lacks_a_package_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    needs("torch")
    import models

    monkeypatch.setitem(models.PACKAGES, "gpt2", ("no_such_package",))
    with pytest.raises(SystemExit, match="pip install no_such_package"):
        models.check(["gpt2"])
    with pytest.raises(SystemExit, match="no training is called bert"):
        models.check(["bert"])
