# SPDX-License-Identifier: Apache-2.0
"""What fails, or goes on elsewhere, in the middle of enable(): without PyTorch."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
from running import in_child

from ductile_gpu.torch import _install, _plain


def _succeed(*_: object) -> int:
    return 0


class Adapter:
    """Stands in for a loaded adapter: each function succeeds."""

    ductile_torch_set_options = staticmethod(_succeed)
    ductile_torch_install = staticmethod(_succeed)
    ductile_torch_inherited = staticmethod(_succeed)
    ductile_torch_is_gathering = staticmethod(_succeed)


def test_a_history_that_cannot_go_on_leaves_ductile_on(monkeypatch):
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no such context")

    memory = SimpleNamespace(_record_memory_history=fail)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=SimpleNamespace(memory=memory)))
    made = Adapter()
    for name, stand_in in (
        ("_adapter", None),
        ("_load_any", lambda torch: made),
        ("_records_history", lambda: True),
        ("_follow_settings", _succeed),
    ):
        monkeypatch.setattr(_install, name, stand_in)
    found = SimpleNamespace(version="2.11.0", minor=11)
    monkeypatch.setattr(_install._build, "describe_torch", lambda: found)
    monkeypatch.setattr(_install._build, "tell_what_is_unknown", _succeed)
    monkeypatch.setattr(_install._share, "provide", _succeed)
    with pytest.warns(RuntimeWarning, match="memory history .* no such context"):
        _install.install({})
    assert _install.adapter() is made


def test_a_library_that_cannot_be_prepared_is_not_kept(monkeypatch):
    def fail(loaded: object) -> None:
        raise OSError("no libc10")

    monkeypatch.setattr(_plain, "_library", None)
    monkeypatch.setattr(_plain, "_let_it_throw", fail)
    for _ in range(2):
        with pytest.raises(OSError, match="no libc10"):
            _plain.library()


@pytest.mark.parametrize("module", [_install, _plain])
def test_a_child_does_not_wait_for_a_thread_of_its_parent(module):
    with module._lock:
        in_child(lambda: module._lock.acquire(blocking=False))
