# SPDX-License-Identifier: Apache-2.0
"""Has the Python programs that this process starts run on Ductile too."""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Optional

__all__ = ["child_environment", "inherit"]

SITE = Path(__file__).parent / "torch" / "site"


def inherit(
    environment: MutableMapping[str, str],
    mode: str = "auto",
    options: Optional[Mapping[str, object]] = None,
) -> None:
    """Changes an environment so that Python programs started with it run on Ductile."""
    environment["DUCTILE_TORCH"] = mode
    if options:
        added = ",".join(f"{key}:{value}" for key, value in options.items())
        given = environment.get("DUCTILE_CONF", "")
        environment["DUCTILE_CONF"] = f"{added},{given}" if given else added
    folders = [str(SITE), str(Path(__file__).parents[1])]
    before = environment.get("PYTHONPATH", "").split(os.pathsep)
    folders += [folder for folder in before if folder and folder not in folders]
    environment["PYTHONPATH"] = os.pathsep.join(folders)


def child_environment(
    mode: str = "auto", environment: Optional[Mapping[str, str]] = None
) -> dict[str, str]:
    """An environment for subprocess.run and the like: this process's, on Ductile.

    Needed only where Ductile's .pth file is not installed: there DUCTILE_TORCH=1 alone does it.
    """
    changed = dict(os.environ if environment is None else environment)
    inherit(changed, mode)
    return changed
