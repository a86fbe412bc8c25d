# SPDX-License-Identifier: Apache-2.0
"""What proves long runs on a GPU, as far as it runs without one: the training in pieces
(torch_gpu/lasting.py), clients of MPS (torch_gpu/mps.py), two processes that take turns
(torch_gpu/turns_gpu.py), trainings under compute-sanitizer (torch_gpu/sanitized.py)."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from running import python
from torch_scripts import SCRIPTS, needs, run

# ---- A training in pieces ------------------------------------------------------------------------


def train(state: Path, *words: str) -> list[dict[str, Any]]:
    words = ("--device", "cpu", "--tiny", "--seconds", "300", "--every", "1", *words)
    status, rows = run(
        "lasting.py", "--state", str(state), "--allocators", "native", *words, OMP_NUM_THREADS="1"
    )
    assert status == 0, rows
    return rows


@pytest.mark.slow
def test_a_training_in_pieces_ends_as_one_in_one_piece(tmp_path):
    needs("torch")
    import torch

    whole = train(tmp_path / "whole", "--steps", "24")
    train(tmp_path / "parts", "--steps", "11")
    rows = tmp_path / "parts" / "native.jsonl"
    with rows.open("a") as file:  # of a piece that was killed behind its checkpoint
        file.write('{"step": 15}\n')
    last = train(tmp_path / "parts", "--steps", "24")
    assert (whole[-1]["piece"], last[-1]["piece"]) == (1, 2)
    assert last[0]["step"] > 11
    assert last[-1]["step"] == whole[-1]["step"] == 24
    assert 15 not in [json.loads(line)["step"] for line in rows.read_text().splitlines()[:-1]]
    one, other = (torch.load(tmp_path / name / "native.pt") for name in ("whole", "parts"))
    assert all(torch.equal(one["weights"][k], other["weights"][k]) for k in one["weights"])
    assert one["weights"]
    assert train(tmp_path / "other", "--steps", "2", "--seed", "1")[-1]["loss"] != whole[0]["loss"]


def test_a_training_is_held_to_its_allocator_and_to_no_refusal():
    import argparse

    import lasting

    given = argparse.Namespace(device="cuda")
    assert lasting.missed("ductile", [{"backend": "ductile", "refusals": 0}], given) == []
    assert lasting.missed("expandable", [{"backend": "native", "refusals": 9}], given) == []
    assert "no step" in lasting.missed("ductile", [], given)[0]
    assert "refused" in lasting.missed("ductile", [{"backend": "ductile", "refusals": 1}], given)[0]
    assert "ran on" in lasting.missed("ductile", [{"backend": "native", "refusals": 0}], given)[0]


# ---- MPS -----------------------------------------------------------------------------------------


def put_program(folder: Path, name: str, text: str) -> Path:
    program = folder / name
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)
    return program


@pytest.mark.parametrize(
    ("program", "said"),
    [(None, "there is no nvidia-cuda-mps-control"), ("echo not root; exit 1", "not root")],
)
def test_a_machine_without_mps_is_told_at_once(tmp_path, program, said):
    if program is not None:
        put_program(tmp_path, "nvidia-cuda-mps-control", program)
    done = python(SCRIPTS / "mps.py", PATH=tmp_path)
    assert done.returncode == 77, done.stderr
    assert said in done.stdout


def test_a_client_of_mps_is_well_only_on_mps_and_with_its_contents():
    import mps

    assert mps.is_well({"mps": True, "wrong": 0})
    assert mps.is_well({"mps": True, "got_mib": 4096})
    assert mps.renumbered("3,1") == {"CUDA_VISIBLE_DEVICES": "0,1"}
    assert mps.renumbered(None) == {}
    assert not mps.is_well({"mps": False, "wrong": 0})
    assert not mps.is_well({"mps": True, "wrong": 1})
    assert not mps.is_well({"mps": True, "status": -9})


# ---- Two processes that take turns ---------------------------------------------------------------


def test_turns_and_deaths_change_no_result():
    """With bytes: 200 turns, and each side killed at random moments."""
    given = ("--virtual", "--turns", "200", "--kills", "6", "--pairs", "2")
    answer = python(SCRIPTS / "turns_gpu.py", *given)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    said = dict(line.split(": ", 1) for line in answer.stdout.splitlines() if ": " in line)
    assert "0 refused, asleep 0 bytes" in said["turns"]
    assert said["kills"].startswith("12 of 12 ")


# ---- compute-sanitizer ---------------------------------------------------------------------------

CLEAN = "echo '========= ERROR SUMMARY: 0 errors'"
FOUND = """\
case "$*" in
*"{0}"*)
    echo '=========     at void spoil<int>(int*)+0x40'
    echo '========= ERROR SUMMARY: 2 errors' ;;
*) echo '========= ERROR SUMMARY: 0 errors' ;;
esac"""


def sanitized(tool: Path, *words: str) -> tuple[int, str]:
    done = python(SCRIPTS / "sanitized.py", "--sanitizer", tool, *words)
    return done.returncode, done.stdout + done.stderr


def plain_models_names() -> list[str]:
    text = (SCRIPTS / "plain_models.py").read_text().split("MAKERS", 1)[1].split("}", 1)[0]
    return re.findall(r'"(\w+)":', text)


def test_every_training_is_run_under_both_tools(tmp_path):
    tool = put_program(tmp_path, "sanitizer", CLEAN)
    status, said = sanitized(tool)
    assert status == 0, said
    wanted = plain_models_names()
    runs = [line.split()[:2] for line in said.splitlines() if " clean " in line]
    assert sorted(runs) == sorted(
        [tool, name] for tool in ("initcheck", "memcheck") for name in wanted
    )
    assert f"{2 * len(wanted)} runs, 0 not clean" in said


def test_a_finding_counts_unless_pytorchs_own_allocator_has_it(tmp_path):
    both = put_program(tmp_path, "both", FOUND.format("moe"))
    status, said = sanitized(both, "--tools", "initcheck")
    assert status == 0, said
    assert "PyTorch's own allocator has these findings" in said
    own = put_program(tmp_path, "own", FOUND.format("moe ductile"))
    status, said = sanitized(own, "--tools", "initcheck")
    assert status == 1
    assert "2 FINDINGS" in said
    assert "spoil" in said


def test_a_training_that_ends_badly_or_never_is_not_clean(tmp_path):
    bad = put_program(tmp_path, "bad", f"{CLEAN}; exit 1")
    assert sanitized(bad, "--only", "moe")[0] == 1
    slow = put_program(tmp_path, "slow", f"sleep 60 & echo $! >{tmp_path}/child; wait")
    status, said = sanitized(slow, "--only", "gpt2", "--seconds", "2")
    assert (status, said.count("NOT FINISHED")) == (1, 2)
    left = Path(f"/proc/{(tmp_path / 'child').read_text().strip()}/cmdline")
    assert not left.exists() or not left.read_bytes(), "its child goes on"


@pytest.mark.parametrize("words", [["--only", "x"], ["--tools", "racecheck"]])
def test_what_cannot_be_run_is_refused(tmp_path, words):
    tool = put_program(tmp_path, "sanitizer", CLEAN)
    status, said = sanitized(tool, *words)
    assert status == 2
    assert words[1] in said


def test_a_machine_without_the_tool_is_told_at_once(tmp_path):
    assert sanitized(tmp_path / "none")[0] == 77
