# SPDX-License-Identifier: Apache-2.0
"""PyTorch, imported when it is first asked for something: Ductile may be asked for before."""

from __future__ import annotations

import importlib
from typing import Any


class _Torch:
    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module("torch"), name)


torch: Any = _Torch()
