# SPDX-License-Identifier: Apache-2.0
"""docs/python-reference.md says what the package is."""

from __future__ import annotations

import runpy
import sys

import pytest
from conftest import ROOT

import ductile_gpu


@pytest.mark.skipif(sys.version_info < (3, 10), reason="inspect.get_annotations")
def test_the_page_is_what_the_docstrings_say():
    made = runpy.run_path(str(ROOT / "python" / "tools" / "make_reference.py"))["make"]()
    kept = (ROOT / "docs" / "python-reference.md").read_text(encoding="utf-8")
    assert made == kept, "run python/tools/make_reference.py docs/python-reference.md"


def test_everything_public_says_what_it_is():
    for name in ductile_gpu.__all__:
        thing = getattr(ductile_gpu, name)
        if callable(thing):
            assert (thing.__doc__ or "").strip(), name
