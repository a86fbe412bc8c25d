# SPDX-License-Identifier: Apache-2.0
"""The build backend: scikit-build-core's, and a source distribution that carries the C sources.

The C sources and the extras lie beside this folder, not in it. A build in a checkout uses them
where they are. A source distribution has no "beside": it is made from a staged copy of this folder
with them in csrc/, so that nothing in the checkout is touched.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from ductile_extras import list_extras
from ductile_version import PROJECT, find_sources
from scikit_build_core import build as _backend
from scikit_build_core.build import (
    build_editable,
    build_wheel,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

# What `cmake -D DUCTILE_BUILD_TESTS=OFF` reads.
CARRIED = ("CMakeLists.txt", "LICENSE", "README.md", "vmm", "segments", "pool", "bench")
DEMO = "requests.trace.gz"  # the one trace that the package carries
LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.trace.gz", "results", "out")
EXTRAS_LEFT_OUT = shutil.ignore_patterns("__pycache__", "tests", ".*")
OWN_LEFT_OUT = shutil.ignore_patterns(
    "__pycache__", "build", "dist", ".*", "*.egg-info", "*.so", "*.pyc"
)


def _left_out(folder: str, names: list[str]) -> set[str]:
    return LEFT_OUT(folder, names) - {DEMO}


def _copy_sources(to: Path) -> None:
    sources = find_sources()
    to.mkdir()
    for name in CARRIED:
        origin = sources / name
        if origin.is_dir():
            shutil.copytree(origin, to / name, ignore=_left_out)
        else:
            shutil.copy2(origin, to / name)
    for extra in list_extras():
        shutil.copytree(extra, to / "extras" / extra.name, ignore=EXTRAS_LEFT_OUT)


def build_sdist(sdist_directory: str, config_settings: dict[str, Any] | None = None) -> str:
    if find_sources() != PROJECT.parent:
        return str(_backend.build_sdist(sdist_directory, config_settings))
    target = os.path.abspath(sdist_directory)
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as scratch:
        stage = Path(scratch) / "ductile-gpu"
        shutil.copytree(PROJECT, stage, ignore=OWN_LEFT_OUT)
        _copy_sources(stage / "csrc")
        os.chdir(stage)
        try:
            return str(_backend.build_sdist(target, config_settings))
        finally:
            os.chdir(before)
