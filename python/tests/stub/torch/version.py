# SPDX-License-Identifier: Apache-2.0
"""A build with CUDA, unless STUB_NO_CUDA is set."""

import os

__version__ = "2.15.0"
cuda = None if "STUB_NO_CUDA" in os.environ else "13.0"
