# SPDX-License-Identifier: Apache-2.0
"""The examples run; without what they need they say so in one line."""

from __future__ import annotations

import os
import runpy
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from running import python
from support import ROOT

EXAMPLES = sorted((ROOT / "python" / "examples").glob("*.py"))
TURNS = ("turns_one_process.py", "turns_two_processes.py")
ANYWHERE = {"largest_batch.py", "out_of_memory.py", "replay_without_gpu.py", *TURNS}
NEEDS_MORE = [path for path in EXAMPLES if path.name not in ANYWHERE]
ON_GPU = [path for path in EXAMPLES if path.name != "replay_without_gpu.py"]


def run(path, *words):
    return python(ROOT / "python" / "examples" / path, *words)


def test_a_run_is_replayed_without_a_gpu():
    answer = run("replay_without_gpu.py")
    assert answer.returncode == 0, answer.stderr
    assert "Ductile holds" in answer.stdout
    assert "less than native" in answer.stdout


def test_memory_is_short_until_the_except_clause_is_left():
    answer = run("out_of_memory.py")
    assert answer.returncode == 0, answer.stderr
    said = [line.strip() for line in answer.stdout.splitlines() if line.startswith("  ")]
    inside = [line for line in said if line.startswith("in the except clause")]
    assert inside == [
        "in the except clause 800 MiB are live",
        "in the except clause 1000 MiB are live",
    ]
    assert [line for line in said if line.startswith("behind it")] == ["behind it 0 MiB"] * 2
    assert answer.stdout.splitlines()[-1] == "batch 25 fits in 1G"


def test_a_search_for_the_largest_batch_spills_nothing():
    answer = run("largest_batch.py")
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.splitlines() == [
        "batch 32 is the largest that fits in 1G",
        "batch 40 ran with 288 MiB from the host",
    ]


@pytest.mark.parametrize("name", TURNS)
def test_turns_need_more_memory_than_there_is_at_once(name):
    """The device of each is smaller than both sides together, so that a side which did not sleep
    would end it."""
    answer = run(name, "--virtual", "--turns", "20")
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.count("generat") >= 20


@pytest.mark.parametrize("dies", ["trainer", "generator"])
def test_who_takes_turns_goes_on_when_the_other_is_killed(dies):
    command = [sys.executable, "-u", str(ROOT / "python" / "examples" / TURNS[1]), "--virtual"]
    process = subprocess.Popen([*command, "--turns", "200"], stdout=subprocess.PIPE, text=True)
    other = {"trainer": "generator", "generator": "trainer"}[dies]
    lines = iter(process.stdout.readline, "")
    assert any(line.split()[1] == "generator" for line in lines)  # both are at work
    sides = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    trainer, generator = sorted(int(side) for side in sides if is_side(side))
    os.kill({"trainer": trainer, "generator": generator}[dies], signal.SIGKILL)
    assert any(f"the {dies} has ended: the {other} goes on" in line for line in lines)
    rest = [line.split()[1] for line in lines]
    assert process.wait(100) == 1
    assert rest.count(other) > 100
    assert dies not in rest


def is_side(process):
    return "spawn_main" in Path(f"/proc/{process}/cmdline").read_text()


class Seen:
    """A logger of any kind: keeps what it is told."""

    def __init__(self):
        self.values = {}

    def add_scalar(self, name, value, step):
        self.values[name] = (value, step)

    def log(self, values, step, commit):
        self.values.update({name: (value, step) for name, value in values.items()})


def test_each_logger_is_told_what_is_held(shared):
    example = runpy.run_path(str(ROOT / "python" / "examples" / "callbacks.py"))
    address = shared.alloc(64 << 20)
    writer, run = Seen(), Seen()
    example["to_tensorboard"](writer, 7)
    example["to_wandb"](run, 7)
    for seen in (writer, run):
        assert seen.values["ductile/gpu0/live_gib"] == (1 / 16, 7)
        assert seen.values["ductile/gpu0/held_gib"][0] >= 1 / 16
    shared.free(address)


@pytest.mark.parametrize("path", NEEDS_MORE, ids=lambda path: path.stem)
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
