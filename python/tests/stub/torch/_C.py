# SPDX-License-Identifier: Apache-2.0
"""A build with CUDA, unless STUB_NO_CUDA is set."""

import os

_GLIBCXX_USE_CXX11_ABI = True

if "STUB_NO_CUDA" not in os.environ:

    def _cuda_record_memory_history():
        raise NotImplementedError
