# SPDX-License-Identifier: Apache-2.0
"""A build with CUDA, unless STUB_NO_CUDA is set."""

import os

_GLIBCXX_USE_CXX11_ABI = True

if "STUB_NO_CUDA" not in os.environ:

    def _accelerator_setAllocatorSettings(text):
        with open(os.environ["STUB_LOG"], "a", encoding="utf-8") as log:
            log.write(f"settings {text}\n")

    def _cuda_record_memory_history():
        raise NotImplementedError
