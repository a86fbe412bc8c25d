# SPDX-License-Identifier: Apache-2.0
"""The libraries' adapters by their names: one call enables those that a program uses."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal, get_args

from ductile_gpu._binding._abi import Options
from ductile_gpu._binding._errors import invalid
from ductile_gpu._process._share import configured

if TYPE_CHECKING:
    from typing_extensions import Unpack

Library = Literal["torch", "cupy", "numba", "rmm"]
LIBRARIES: tuple[str, ...] = get_args(Library)


def _chosen(libraries: Iterable[str]) -> list[str]:
    named = list(libraries)
    unknown = [name for name in named if name not in LIBRARIES]
    if unknown:
        raise invalid(
            f"no adapter for '{unknown[0]}'; there are {', '.join(LIBRARIES)}",
        )
    if not named:
        named = [name for name in LIBRARIES if name in sys.modules]
    if not named:
        raise invalid(
            "none of torch, cupy, numba and rmm is imported: import them first, or name them",
        )
    # PyTorch first: where it is on, the others use its allocators.
    return sorted(set(named), key=LIBRARIES.index)


def share(*libraries: Library, **options: Unpack[Options]) -> list[str]:
    """Lets libraries allocate from one allocator for each device.

    Call it before any of them has used the GPU: Numba cannot change its allocator later, and what
    the others hold stays with their own.

    Args:
        *libraries: some of "torch", "cupy", "numba", "rmm". None: those imported so far.
        **options: of the allocators; see `Allocator`.

    Returns:
        The names of the libraries that share now.

    Raises:
        InvalidArgument: no such library, no library, or an option.
        Busy: the process's allocators have other options already, PyTorch's included.
        ImportError: a library is not installed.
        RuntimeError: Numba has used the GPU already, or PyTorch has and cannot change now
            (`ductile_gpu.torch.TooLate`).

    Example:
        >>> import torch, cupy, ductile_gpu
        >>> ductile_gpu.share("torch", "cupy")      # doctest: +SKIP
    """
    names = _chosen(libraries)
    adapters: list[Any] = [importlib.import_module(f"ductile_gpu.{name}") for name in names]
    with configured(options):
        for adapter in adapters:
            adapter.enable()
    return names
