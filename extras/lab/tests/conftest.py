# SPDX-License-Identifier: Apache-2.0
"""What pytest reads first: the lab's scripts import each other."""

import sys
from pathlib import Path

LAB = Path(__file__).resolve().parents[1]
sys.path += [str(LAB), *(str(LAB / name) for name in ("peers", "torch_gpu", "libraries"))]
