# SPDX-License-Identifier: Apache-2.0
"""Whole tags passed between processes on one GPU, epochs that order them, and who keeps them.

`ductile_gpu` has these names too.
"""

from __future__ import annotations

from ductile_gpu.handover._epoch import Epoch
from ductile_gpu.handover._keep import KeptTag, keep_tag, open_kept
from ductile_gpu.handover._tags import ImportedTag, TagExport, export_tag, import_tag

__all__ = [
    "Epoch",
    "ImportedTag",
    "KeptTag",
    "TagExport",
    "export_tag",
    "import_tag",
    "keep_tag",
    "open_kept",
]
