# SPDX-License-Identifier: Apache-2.0
"""Under the caps of `extras/lab/run capped` Ductile completes, by default and with sizes=2M, and
expandable segments on two of eight, as docs/settings.md says."""

from __future__ import annotations

import json
from typing import Any

import pytest
from running import run
from support import ROOT

import ductile_gpu

Rows = dict[tuple[str, str, tuple[str, ...]], bool]


@pytest.fixture(scope="module")
def completed() -> Rows:
    """Whether each run did, by trace, contender and settings."""
    words = ("--device", "virtual", ductile_gpu.bench_path())
    done = run(ROOT / "extras" / "lab" / "capped", *words, without=("DUCTILE_CONF",), seconds=900)
    assert done.returncode == 0, done.stderr
    rows: list[dict[str, Any]] = [json.loads(line) for line in done.stdout.splitlines()]
    return {
        (row["trace"], row["contender"], tuple(row.get("settings", ()))): row["completed"]
        for row in rows
    }


@pytest.mark.parametrize(
    "trace",
    [
        "fsdp2_llama",
        "vit_multistream_record",
        "fsdp",
        "oneshot",
        "gpt2_medium_var_batch_seq",
        "resnet50_var_batch_res",
    ],
)
def test_ductile_completes_where_expandable_segments_do_not(completed, trace):
    assert completed[trace, "ductile", ()]
    assert not completed[trace, "expandable", ()]


@pytest.mark.parametrize("trace", ["llama_1b_lora_recompute", "offload"])
def test_ductile_completes_where_expandable_segments_do_too(completed, trace):
    assert completed[trace, "ductile", ()]
    assert completed[trace, "ductile", ("sizes=2M",)]
    assert completed[trace, "expandable", ()]
