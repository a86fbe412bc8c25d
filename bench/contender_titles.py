# SPDX-License-Identifier: Apache-2.0
"""What pages, pictures and tables call the contenders of ductile-bench, in their order, and those beside them."""

import re
from pathlib import Path

_LIST = Path(__file__).resolve().parent / "contenders" / "names.h"
TITLES = dict(re.findall(r'\bX\((\w+), "([^"]+)"\)', _LIST.read_text(encoding="utf-8")))
# Allocators that are no contenders of ductile-bench, and Ductile in another way: as results name them.
BESIDE = {
    "ductile-tight": "Ductile in C, sizes=2M",
    "torch-ductile": "Ductile under PyTorch",
    "torch-expandable": "PyTorch, expandable segments",
    "torch-native": "PyTorch, native",
    "torch-async": "PyTorch, cudaMallocAsync",
    "rmm-pool": "RMM, pool",
    "rmm-arena": "RMM, arena",
}
