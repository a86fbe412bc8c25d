# SPDX-License-Identifier: Apache-2.0
"""The pictures of long runs (plot_long.py): of two pieces of a soak, and of two of a training."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from running import python, run
from support import ROOT

SCRIPT = ROOT / "extras" / "lab" / "plot_long.py"
SAMPLE = (
    "900 ns each, 9 KiB resident, 9 KiB bookkeeping, 9 handles, 9 mappings, 9 MiB addresses, "
    "9 MiB live"
)
ROW = {"held": 9, "used": 9, "fragmentation_percent": 1, "step_ms": 1, "p99_ms": 1, "resident": 1,
       "retries": 0, "caught": 0}  # fmt: skip


@pytest.fixture(scope="module")
def drawer() -> str:
    """A Python that can draw."""
    for candidate in (sys.executable, "/usr/bin/python3"):
        if run(candidate, "-c", "import matplotlib").returncode == 0:
            return candidate
    pytest.skip("no Python here has matplotlib")


def words_of_picture(drawer: str, source: Path) -> set[str]:
    picture = source.with_suffix(".svg")
    done = run(drawer, SCRIPT, source, picture)
    assert done.returncode == 0, done.stderr
    return set(re.findall(r"<text[^>]*>([^<]*)</text>", picture.read_text(encoding="utf-8")))


def test_a_soak_is_drawn_over_its_operations(drawer, tmp_path):
    soak = tmp_path / "soak.txt"
    soak.write_text(
        f"# piece 1, after 0 operations in 0 s\n10 operations: {SAMPLE}\n"
        "# piece 2, after 10 operations in 1 s\n"
        f"20 operations: {SAMPLE}\n30 operations: {SAMPLE}\n"
    )
    wanted = {"ns an operation", "GiB live", "over operations, millions", "Ductile"}
    assert wanted <= words_of_picture(drawer, soak)


def test_a_training_is_drawn_with_each_allocator(drawer, tmp_path):
    rows = tmp_path / "rows.jsonl"
    pieces = (("ductile", 1, 1), ("ductile", 2, 2), ("expandable", 1, 1))
    rows.write_text(
        "".join(
            json.dumps({"allocator": allocator, "piece": piece, "seconds": seconds, **ROW}) + "\n"
            for allocator, piece, seconds in pieces
        )
    )
    wanted = {"GiB held", "retries", "Ductile", "expandable segments"}
    assert wanted <= words_of_picture(drawer, rows)


def test_a_file_without_samples_is_refused_in_one_line(drawer, tmp_path):
    other = tmp_path / "other.txt"
    other.write_text("nothing\n")
    done = run(drawer, SCRIPT, other, tmp_path / "other.svg")
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1


def test_without_matplotlib_one_line_says_so():
    code = "import sys; sys.modules['matplotlib'] = None; import plot_long; "
    done = python("-c", code + "plot_long.run('', None)", "a", "b", folder=SCRIPT.parent)
    assert done.returncode == 1
    assert re.fullmatch(r"[^\n]* has no matplotlib\n", done.stderr)
