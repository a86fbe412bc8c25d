# SPDX-License-Identifier: Apache-2.0
"""Programs under compute-sanitizer (tests/sanitize), as far as that runs without a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
from running import python
from support import ROOT

SANITIZE = ROOT / "tests" / "sanitize"
CLEAN = "echo '========= ERROR SUMMARY: 0 errors'"
FOUND = """\
echo '=========     at void spoil<int>(int*)+0x40'
echo '========= ERROR SUMMARY: 2 errors'"""


def tool(folder: Path, text: str) -> Path:
    """A compute-sanitizer that says so of every program."""
    program = folder / "sanitizer"
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)
    return program


def sanitize(tool: Path, *words: str) -> tuple[int, str]:
    done = python(SANITIZE, "--sanitizer", tool, *words)
    return done.returncode, done.stdout + done.stderr


def test_every_program_is_run_under_both_tools(tmp_path):
    status, said = sanitize(tool(tmp_path, CLEAN), "--programs", str(tmp_path))
    assert status == 0, said
    programs = {path.stem for path in (ROOT / "tests" / "gpu").glob("*.c")}
    wanted = programs - {"sanitizer_blocks", "two_gpus", "conformance", "checkpoint"}
    runs = [line.split()[:2] for line in said.splitlines() if " clean " in line]
    assert sorted(runs) == sorted(
        [tool, name] for tool in ("initcheck", "memcheck") for name in wanted
    )
    assert f"{2 * len(wanted)} runs, 0 not clean" in said


def test_a_finding_is_reported_and_counts(tmp_path):
    words = ("--programs", str(tmp_path), "--only", "sleep", "--tools", "initcheck")
    status, said = sanitize(tool(tmp_path, FOUND), *words)
    assert status == 1
    assert "2 FINDINGS" in said
    assert "spoil" in said


def test_a_program_that_ends_badly_or_never_is_not_clean(tmp_path):
    words = ("--programs", str(tmp_path), "--only", "sleep")
    status, said = sanitize(tool(tmp_path, f"{CLEAN}; exit 3"), *words)
    assert (status, said.count("ended with 3")) == (1, 2)
    judged = f"{CLEAN}; echo memory is not free; exit 1"
    status, said = sanitize(tool(tmp_path, judged), *words)
    assert (status, said.count("ended with 1"), "memory is not free" in said) == (0, 2, True)
    slow = f"sleep 60 & echo $! >{tmp_path}/child; wait"
    status, said = sanitize(tool(tmp_path, slow), *words, "--seconds", "2")
    assert (status, said.count("NOT FINISHED")) == (1, 2)
    left = Path(f"/proc/{(tmp_path / 'child').read_text().strip()}/cmdline")
    assert not left.exists() or not left.read_bytes(), "its child goes on"


def test_a_device_that_cannot_be_watched_is_told_at_once(tmp_path):
    refusing = tool(tmp_path, "echo Device not supported; exit 1")
    status, said = sanitize(refusing, "--programs", str(tmp_path))
    assert status == 77
    assert "refused" in said
    assert sanitize(tmp_path / "none", "--programs", str(tmp_path))[0] == 77


@pytest.mark.parametrize("words", ["", "--programs . --only x", "--programs . --tools racecheck"])
def test_what_sanitize_cannot_run_is_refused(tmp_path, words):
    assert sanitize(tool(tmp_path, CLEAN), *words.split())[0] == 2
