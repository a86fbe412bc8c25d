# SPDX-License-Identifier: Apache-2.0
"""`extras/lab/run ranks`: each rank has data and a lag of its own, the table is of its rows, and
what is refused."""

from __future__ import annotations

import json

import pytest

import ductile_gpu
import ranks


def run(*words: str) -> int:
    """The exit status."""
    try:
        return ranks.main(["--bench", str(ductile_gpu.bench_path()), *words])
    except SystemExit as end:
        return int(end.code or 0)


def test_each_rank_is_a_row_of_its_own(tmp_path, capsys):
    path = tmp_path / "rows.jsonl"
    assert run("--ranks", "3", "--passes", "1", "--output", str(path)) == 0
    said = capsys.readouterr().out
    rows = [json.loads(text) for text in path.read_text().splitlines()]
    assert len(rows) == 2 * 3 * 3
    for run_name in ("recorded", "generated"):
        own = [row for row in rows if row["run"] == run_name and row["way"] == "default"]
        assert [(row["rank"], row["lag"]) for row in own] == [(0, 0), (1, 10), (2, 30)]
        assert len({row["live_peak_bytes"] for row in own}) == 3
        largest = max(row["reserved_peak_bytes"] for row in own) >> 20
        assert f"-{largest:,} |" in said


@pytest.mark.parametrize("words", ["--ranks 0", "--passes x", "trace"])
def test_what_cannot_be_meant_is_refused(words):
    assert run(*words.split()) == 2
