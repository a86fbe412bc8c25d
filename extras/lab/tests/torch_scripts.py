# SPDX-License-Identifier: Apache-2.0
"""Runs scripts of torch_gpu."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from running import python

SCRIPTS = Path(__file__).parents[1] / "torch_gpu"


def run(script: str, *arguments: str, **environment: str) -> tuple[int, list[dict[str, Any]]]:
    """A script's status and the rows it printed."""
    done = python(SCRIPTS / script, *arguments, "--json", seconds=1800, **environment)
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


def needs(*packages: str) -> None:
    for package in packages:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
