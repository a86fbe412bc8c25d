# SPDX-License-Identifier: Apache-2.0
"""The package's version is the library's: it stands once, in ductile.h."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parent.parent


def find_sources() -> Path:
    """The C sources: beside this folder in a checkout, inside of it in a source distribution."""
    for candidate in (Path.cwd() / "csrc", PROJECT / "csrc", PROJECT.parent):
        if (candidate / "pool" / "include" / "ductile.h").is_file():
            return candidate
    raise FileNotFoundError(
        "Ductile's C sources are not here: build in a checkout (pip install ./python) or from a "
        f"source distribution, not from a copy of {os.path.basename(PROJECT)}/ alone"
    )


def read_version() -> str:
    text = (find_sources() / "pool" / "include" / "ductile.h").read_text(encoding="utf-8")
    parts = re.findall(r"^#define DUCTILE_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)$", text, re.M)
    if len(parts) != 3:
        raise ValueError("ductile.h does not say its version")
    return ".".join(parts)


def dynamic_metadata(field: str, settings: dict[str, Any] | None = None, *_: Any) -> str:
    if field != "version":
        raise ValueError(f"only the version is dynamic, not {field}")
    return read_version()
