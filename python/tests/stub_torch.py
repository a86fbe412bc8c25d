# SPDX-License-Identifier: Apache-2.0
"""Programs around stubs of PyTorch, its adapter and the driver, in processes of their own."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from running import run

from ductile_gpu.torch import _install

HERE = Path(__file__).parent
STUB = HERE / "stub"


def compile_stub(source, output, *flags):
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    command = [compiler, "-shared", "-fPIC", *flags, "-o", str(output), str(HERE / source)]
    subprocess.run(command, check=True)
    return output


@pytest.fixture(scope="session")
def adapter(tmp_path_factory):
    sizes = ",".join(str(ctypes.sizeof(struct)) for struct in _install._SHARED_STRUCTS)
    output = tmp_path_factory.mktemp("adapter") / "adapter.so"
    return compile_stub("stub_adapter.c", output, f"-DLAYOUT={sizes}")


class Place:
    """A folder with programs, and an environment with the stub of PyTorch."""

    def __init__(self, folder, adapter=None):
        self.folder = folder
        self.environment = {"PYTHONPATH": str(STUB), "STUB_LOG": str(folder / "stub.log")}
        if adapter is not None:
            self.environment["DUCTILE_TORCH_ADAPTER"] = str(adapter)

    def write(self, name, text):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        return path

    def execute(self, *words, **environment):
        more = {**self.environment, **environment}
        return run(*words, folder=self.folder, without=("DUCTILE_", "PYTORCH_"), **more)

    def python(self, *words, **environment):
        return self.execute(sys.executable, *words, **environment)

    def command(self, *words, **environment):
        return self.python("-m", "ductile_gpu", *words, **environment)

    def start(self, *words, **how):
        """The command, which is left running."""
        command = [sys.executable, "-m", "ductile_gpu", *map(str, words)]
        environment = {**os.environ, **self.environment}
        return subprocess.Popen(command, cwd=self.folder, env=environment, text=True, **how)

    def said(self):
        """What the stubs have written down."""
        log = self.folder / "stub.log"
        return log.read_text().splitlines() if log.exists() else []

    def options(self):
        return [line.partition(" ")[2] for line in self.said() if line.startswith("options")]
