# SPDX-License-Identifier: Apache-2.0
"""What pytest reads first."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def _nothing_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = ("TMS_", "DUCTILE_VLLM", "DUCTILE_SGLANG", "SGLANG_PLUGINS", "LD_PRELOAD")
    for name in [name for name in os.environ if name.startswith(asked)]:
        monkeypatch.delenv(name)
