# SPDX-License-Identifier: Apache-2.0
"""Sizes as people read them."""

from __future__ import annotations


def in_bytes(size: float) -> str:
    """A size for people: "12.3 GiB"."""
    for unit in ("bytes", "KiB", "MiB"):
        if abs(size) < 1024:
            return f"{size:.0f} bytes" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    size, unit = (size, "GiB") if abs(size) < 1024 else (size / 1024, "TiB")
    return f"{size:.2f} {unit}" if abs(size) < 100 else f"{size:.1f} {unit}"
