# SPDX-License-Identifier: Apache-2.0
"""What the extras add to the package's metadata.

An extra with a python.cmake is part of the package. Its python.toml has tables as [project] of
pyproject.toml has them: `optional-dependencies`, and `entry-points` by group.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ductile_version import find_sources

try:
    import tomllib
except ImportError:  # before Python 3.11 scikit-build-core needs this one itself
    import tomli as tomllib


def list_extras() -> list[Path]:
    """The folders of the extras that are part of the package."""
    return sorted(found.parent for found in find_sources().glob("extras/*/python.cmake"))


def _tables(field: str) -> list[dict[str, Any]]:
    files = [folder / "python.toml" for folder in list_extras()]
    texts = [file.read_text(encoding="utf-8") for file in files if file.is_file()]
    return [tomllib.loads(text).get(field, {}) for text in texts]


def dynamic_metadata(field: str, settings: dict[str, Any] | None = None, *_: Any) -> dict[str, Any]:
    """The field of [project], from `own` of the settings and from the extras.

    Raises:
        ValueError: two of them have the same name.
    """
    found: dict[str, Any] = {}
    for table in [(settings or {}).get("own", {}), *_tables(field)]:
        for name, value in table.items():
            if name in found:
                raise ValueError(f"two extras add {name} to {field}")
            found[name] = value
    return found
