# SPDX-License-Identifier: Apache-2.0
"""The command extras/lab/run: its verbs, and what they say of themselves."""

from __future__ import annotations

import re

import pytest
from running import run
from support import ROOT

LAB = ROOT / "extras" / "lab"
VERBS = [
    "compare", "ranks", "lag", "capped", "cost", "plot",
    "hardware", "torch", "preload", "libraries",
]  # fmt: skip


def test_the_help_names_each_verb():
    done = run(LAB / "run", "--help")
    assert done.returncode == 0
    assert re.findall(r"^  (\w+) ", done.stdout, re.M) == VERBS


@pytest.mark.parametrize("verb", VERBS)
def test_each_verb_says_what_it_does_and_needs_nothing_for_that(verb):
    done = run(LAB / "run", verb, "--help", seconds=60, PYTHON="python3")
    assert done.returncode == 0, done.stderr
    assert f"extras/lab/run {verb}" in done.stdout
    assert done.stdout.startswith("usage: extras/lab/")


@pytest.mark.parametrize("words", ["", "swim"])
def test_a_verb_that_is_none_is_refused(words):
    done = run(LAB / "run", *words.split())
    assert done.returncode == 2
    assert "usage" in done.stderr or "there is no swim" in done.stderr


def test_the_sources_use_public_headers_and_the_benchs():
    """As bench's own do; the rest of the tree is not for the lab."""
    sources = [
        path for path in (LAB / "peers").iterdir() if re.fullmatch(r"\.[ch](pp)?", path.suffix)
    ]
    assert len(sources) > 5
    for source in sources:
        for included in re.findall(r'#include "([^"]+)"', source.read_text(encoding="utf-8")):
            assert included.startswith(("bench/", "extras/lab/", "vmm/base/")), (source, included)
            assert (ROOT / included).exists(), (source, included)
