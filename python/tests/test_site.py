# SPDX-License-Identifier: Apache-2.0
"""The documentation's site: what it takes in and refuses. The generator is not run."""

from __future__ import annotations

import sys

import pytest
from running import python
from support import ROOT

sys.path.insert(0, str(ROOT / "python" / "tools"))

import make_recording
import make_site


def test_every_page_of_the_documentation_is_in_one_chapter():
    assert make_site.unnamed_pages() == []
    assert len(make_site.pages()) == len(set(make_site.pages()))


def test_every_file_that_a_page_links_to_is_staged(tmp_path):
    make_site.stage_into(tmp_path)
    for page in make_site.pages():
        for target in make_site.links_of(page):
            assert (tmp_path / target).exists(), f"{page} links to {target}"


def test_a_page_of_the_site_names_the_public_modules_of_the_package(tmp_path):
    make_site.stage_into(tmp_path)
    text = (tmp_path / make_site.REFERENCE).read_text()
    for module in make_site.MODULES:
        assert f".. automodule:: {module}\n" in text
    for target in make_site.LINK.findall(text):
        assert (tmp_path / "docs" / target).exists(), target
    assert make_site.REFERENCE[:-3] in make_site.contents()


def test_the_recording_of_a_terminal_is_what_its_commands_print():
    drawn = make_recording.draw(list(make_recording.lines()))
    assert make_recording.TARGET.read_text(encoding="utf-8") == drawn


def test_a_page_that_no_chapter_names_is_refused(monkeypatch, tmp_path):
    start = [page for page in make_site.CHAPTERS["Use"] if "out-of-memory" not in page]
    monkeypatch.setitem(make_site.CHAPTERS, "Use", start)
    with pytest.raises(make_site.Dead, match="out-of-memory"):
        make_site.stage_into(tmp_path)


def test_a_folder_with_files_of_others_is_not_replaced(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    ended = python(ROOT / "python" / "tools" / "make_site.py", tmp_path)
    assert ended.returncode == 2
    assert "another folder" in ended.stderr
    assert (tmp_path / "mine.txt").read_text() == "mine"
