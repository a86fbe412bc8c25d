# SPDX-License-Identifier: Apache-2.0
"""Stands in for a process of `ductile-gpu run` whose PyTorch has used the GPU."""

from __future__ import annotations

import sys
import types

from ductile_gpu._process import _notes


def leave(mode: str) -> None:
    """Has it leave the note of who served it, and not take that back at its end."""
    held = types.SimpleNamespace(device_count=lambda: 1, max_memory_reserved=lambda device: 1 << 20)
    sys.modules["torch"] = types.SimpleNamespace(cuda=held)  # type: ignore[assignment]
    _notes.leave(mode, None)
