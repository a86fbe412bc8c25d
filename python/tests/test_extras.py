# SPDX-License-Identifier: Apache-2.0
"""What is said of extras that are not installed. Those that are have tests of their own."""

from __future__ import annotations

import pytest

import ductile_gpu
import ductile_gpu.interface
from ductile_gpu import __main__ as command_line
from ductile_gpu import _extras

GONE = _extras.Place("gone", "ductile_gpu.gone.inner")


@pytest.fixture
def without(monkeypatch):
    """The package with one extra that is not installed."""
    monkeypatch.setitem(_extras.NAMES, "lost_name", GONE)
    monkeypatch.setitem(_extras.COMMANDS, "lose", GONE)
    monkeypatch.setitem(_extras.RUN_OPTIONS, "--lost", GONE)


def test_a_name_of_an_extra_that_is_not_there_is_answered_in_one_sentence(without):
    with pytest.raises(AttributeError) as raised:
        _ = ductile_gpu.lost_name
    sentence = "ductile_gpu.lost_name is of the extra gone, which is not part of this installation"
    assert str(raised.value) == sentence
    assert not hasattr(ductile_gpu, "lost_name")
    assert "lost_name" not in _extras.names()


def test_a_command_of_an_extra_that_is_not_there_is_answered_in_one_sentence(without, capsys):
    assert command_line.main(["lose"]) == 2
    said = capsys.readouterr().err
    assert said.rstrip().endswith(
        "'lose' is of the extra gone, which is not part of this installation"
    )
    assert said.count("\n") == 1
    assert "lose" not in _extras.commands()


def test_an_option_of_an_extra_that_is_not_there_is_answered_in_one_sentence(without, capsys):
    assert command_line.main(["run", "--lost", "train.py"]) == 2
    said = capsys.readouterr().err
    assert said.rstrip().endswith(
        "run --lost is of the extra gone, which is not part of this installation"
    )
    parser = command_line.make_parser()
    run = parser.get_default("commands")["run"]
    assert "--lost" not in run.format_help()
    command_line.main(["completion"])
    assert "--lost" not in capsys.readouterr().out


def test_a_name_that_nobody_has_is_no_extras():
    with pytest.raises(AttributeError, match="module 'ductile_gpu' has no attribute 'nonsense'"):
        _ = ductile_gpu.nonsense


def test_a_broken_extra_says_what_is_broken_rather_than_that_it_is_not_there(monkeypatch, tmp_path):
    (tmp_path / "broken_extra.py").write_text("import not_there_at_all\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(_extras.NAMES, "lost_name", _extras.Place("gone", "broken_extra"))
    with pytest.raises(ModuleNotFoundError, match="not_there_at_all"):
        _ = ductile_gpu.lost_name


def test_what_is_installed_is_on_the_face():
    assert set(_extras.names()) <= set(ductile_gpu.__all__) <= set(dir(ductile_gpu))
    for name in _extras.names():
        assert getattr(ductile_gpu, name).__doc__
    assert set(_extras.commands()) <= set(command_line.COMMANDS)


def test_each_name_of_the_interface_is_there_and_on_its_page():
    from support import ROOT

    page = (ROOT / "docs" / "dev" / "interface.md").read_text(encoding="utf-8")
    for name in ductile_gpu.interface.__all__:
        assert hasattr(ductile_gpu.interface, name)
        assert f"`{name}`" in page, name
