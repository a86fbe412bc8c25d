# SPDX-License-Identifier: Apache-2.0
"""The installed package has what vLLM, SGLang and launchers look for."""

from __future__ import annotations

import sys
from importlib.metadata import distribution

import pytest

import ductile_gpu

INSTALLED = distribution("ductile-gpu")


@pytest.mark.parametrize(
    ("group", "module"),
    [
        ("vllm.general_plugins", "ductile_gpu.vllm"),
        ("sglang.srt.plugins", "ductile_gpu.sglang"),
    ],
)
def test_each_program_finds_the_function_that_it_calls(group, module):
    (point,) = (point for point in INSTALLED.entry_points if point.group == group)
    assert point.name == "ductile"
    assert point.load() is sys.modules[module].register


def test_both_can_be_installed_with_the_package():
    assert {"vllm", "sglang"} <= set(INSTALLED.metadata.get_all("Provides-Extra"))
    wanted = INSTALLED.metadata.get_all("Requires-Dist")
    assert 'vllm>=0.24; extra == "vllm"' in wanted
    assert 'sglang>=0.5.10; extra == "sglang"' in wanted


def test_the_library_that_launchers_preload_is_beside_the_allocators():
    assert ductile_gpu.library_path().with_name("libductile_memory_saver.so").is_file()
