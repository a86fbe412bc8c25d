# SPDX-License-Identifier: Apache-2.0
"""What the reference of the site is made of."""

from __future__ import annotations

import inspect

import pytest

import ductile_gpu
import ductile_gpu.interface
import ductile_gpu.torch


@pytest.mark.parametrize("module", [ductile_gpu, ductile_gpu.torch, ductile_gpu.interface])
def test_everything_public_says_what_it_is(module):
    for name in module.__all__:
        thing = getattr(module, name)
        if inspect.isclass(thing) or inspect.isroutine(thing):
            assert (thing.__doc__ or "").strip(), name
