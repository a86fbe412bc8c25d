# SPDX-License-Identifier: Apache-2.0
"""What users type: the names of `ductile_gpu`, as they are and as a type checker sees them."""

from __future__ import annotations

import pytest
from running import check_mistyped
from running import ductile_gpu as command

import ductile_gpu
from ductile_gpu import handover

PROGRAM = """\
import socket
import ductile_gpu
from ductile_gpu import Epoch, KeptTag, open_kept


def train(kept: KeptTag) -> int:
    with kept.epoch.write() as number:
        return number


def pass_on(connection: socket.socket) -> int:
    with ductile_gpu.export_tag("weights", connection) as exported:
        return exported.layout


train(open_kept("weights", write=True))
Epoch().close()
"""
MISTYPED = {
    'ductile_gpu.export_tag("weights", None)': "socket",
    "ductile_gpu.import_tag()": "connection",
    'ductile_gpu.keep_tag("weights", paht="x")': "paht",
    'ductile_gpu.open_kept("weights", write="yes")': "bool",
    "ductile_gpu.Epoch().nubmer": "nubmer",
    "ductile_gpu.exprot_tag": "exprot_tag",
}


def test_who_checks_types_sees_the_signatures(tmp_path):
    pytest.importorskip("mypy")
    check_mistyped(PROGRAM, MISTYPED, tmp_path, "--strict")


def test_the_package_has_every_name_of_the_module_and_the_command():
    for name in handover.__all__:
        assert getattr(ductile_gpu, name) is getattr(handover, name)
        assert name in ductile_gpu.__all__
    assert command("keep", "--help").returncode == 0
