# SPDX-License-Identifier: Apache-2.0
"""The few functions of PyTorch that Ductile touches, for tests on machines without a GPU.

The snapshot it writes is a real one (STUB_SNAPSHOT names it); STUB_LOG gets one line for each call.
"""

import os

from torch import _C, cuda, optim, version

__all__ = ["_C", "cuda", "optim", "said", "version"]
__version__ = version.__version__


def said(line):
    with open(os.environ["STUB_LOG"], "a", encoding="utf-8") as log:
        log.write(line + "\n")


said("imported")
