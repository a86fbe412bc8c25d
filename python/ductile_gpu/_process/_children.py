# SPDX-License-Identifier: Apache-2.0
"""Has the Python programs that this process starts run on Ductile too, or be recorded."""

from __future__ import annotations

import os
import site
import sys
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Optional, Union

from ductile_gpu._process import _notes

_RANKS = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "LOCAL_RANK")
SITE = str(Path(__file__).parents[1] / "torch" / "site")


def is_first_rank() -> bool:
    """Is this the one of many like it that speaks for all?"""
    rank = next((os.environ[name] for name in _RANKS if os.environ.get(name)), "0")
    module = sys.modules.get("multiprocessing.process")
    place = module.current_process()._identity if module is not None else ()
    return rank == "0" and all(number == 1 for number in place)


def hook_is_installed() -> bool:
    """Does every start of this interpreter read DUCTILE_TORCH?"""
    folders = list(site.getsitepackages())
    if site.ENABLE_USER_SITE:
        folders.append(site.getusersitepackages())
    return any(os.path.exists(os.path.join(folder, "ductile_gpu.pth")) for folder in folders)


def _with_hook(folders: str) -> str:
    """PYTHONPATH with the hook's folder last, or before a sitecustomize that would hide it, to
    which it hands on. It holds nothing else, so it hides nothing."""
    found = [folder for folder in folders.split(os.pathsep) if folder != SITE] if folders else []
    hiding = (
        at
        for at, folder in enumerate(found)
        if os.path.exists(os.path.join(folder, "sitecustomize.py"))
    )
    found.insert(next(hiding, len(found)), SITE)
    return os.pathsep.join(found)


def _add_hook(environment: MutableMapping[str, str]) -> None:
    if not hook_is_installed():
        environment["DUCTILE_TORCH_PREFIX"] = sys.prefix  # other Pythons are left alone
        environment["PYTHONPATH"] = _with_hook(environment.get("PYTHONPATH", ""))


def inherit(
    environment: MutableMapping[str, str],
    mode: Optional[str] = "auto",
    options: Optional[Mapping[str, object]] = None,
    notes: Union[str, os.PathLike[str], None] = None,
) -> None:
    """Changes an environment so that Python programs started with it run on Ductile.

    Args:
        mode: of ductile_gpu.torch.enable; None: what DUCTILE_TORCH says, or another sign for
            ductile_gpu_start, decides.
        options: of Ductile, as in DUCTILE_CONF, which counts on top of them.
        notes: a folder in which each process says who serves its GPU memory (`_notes.read`).
    """
    if mode is not None:
        environment["DUCTILE_TORCH"] = mode
    if notes is not None:
        environment[_notes.FOLDER] = str(notes)
    if options:
        added = ",".join(f"{key}:{value}" for key, value in options.items())
        given = environment.get("DUCTILE_CONF", "")
        environment["DUCTILE_CONF"] = f"{added},{given}" if given else added
    _add_hook(environment)


def record(
    environment: MutableMapping[str, str],
    folder: str,
    stacks: Optional[bool] = None,
    max_events: Optional[int] = None,
) -> None:
    """Changes an environment so that Python programs started with it are recorded in `folder`;
    what is None is as the environment has it."""
    environment["DUCTILE_RECORD"] = folder
    for name, value in (("STACKS", stacks), ("MAX_EVENTS", max_events)):
        if value is not None:
            environment[f"DUCTILE_RECORD_{name}"] = str(int(value))
    _add_hook(environment)


def child_environment(
    mode: str = "auto", environment: Optional[Mapping[str, str]] = None
) -> dict[str, str]:
    """An environment for subprocess.run and the like: this process's, on Ductile.

    Where Ductile's .pth file is installed DUCTILE_TORCH=1 alone does it, and nothing else is set.
    """
    changed = dict(os.environ if environment is None else environment)
    inherit(changed, mode)
    return changed
