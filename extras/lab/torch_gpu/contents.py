# SPDX-License-Identifier: Apache-2.0
"""What is said of contents that are not as they should be: how many bytes differ, where, what
stands there instead, and whether a second look finds the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Callable

if TYPE_CHECKING:
    import torch

GRANULE = 2 << 20  # bytes: the least that is mapped
SHOWN = 16  # bytes
# Of new memory, of what wake.py makes during a sleep, of a sleep that poisons.
TELLING = {"0x00": 0, "0xA5": 0xA5, "0xFF": 0xFF}


def copy(tensor: torch.Tensor) -> bytes:
    """The tensor's bytes as they are now, behind the work of the current stream."""
    found: bytes = tensor.detach().cpu().contiguous().numpy().tobytes()
    return found


def _array(contents: bytes) -> Any:
    import numpy as np

    return np.frombuffer(contents, np.uint8)


def _where(expected: bytes, found: bytes) -> Any:
    """The numbers of the bytes that differ, ascending."""
    return (_array(expected) != _array(found)).nonzero()[0]


def _count_granules(at: Any, address: int) -> int:
    import numpy as np

    return len(np.unique((at + address % GRANULE) // GRANULE))


def _what_stands_there(found: bytes, at: Any, others: Mapping[str, bytes]) -> str:
    there = _array(found)[at]
    counts = {name: int((there == byte).sum()) for name, byte in TELLING.items()}
    for name, other in others.items():
        if len(other) == len(found):
            counts[f"as in {name}"] = int((there == _array(other)[at]).sum())
    return ", ".join(f"{name}: {n}" for name, n in counts.items() if n > 0) or "of no known kind"


def difference(
    expected: bytes,
    found: bytes,
    look_again: Callable[[], bytes],
    address: int = 0,
    others: Mapping[str, bytes] | None = None,
) -> str:
    """What differs, in a sentence; "" where nothing does.

    Args:
        found: the first look.
        look_again: the second, which is made only where something differs.
        address: of the first byte.
        others: what else may stand there, by name: contents of other steps, or other tensors.
    """
    if found == expected:
        return ""
    if len(found) != len(expected):
        return f"{len(found)} bytes are there, and {len(expected)} should be"
    at = _where(expected, found)
    first, last = int(at[0]), int(at[-1])
    second = look_again()
    again = "the same" if second == found else f"{len(_where(expected, second))} that differ"
    granules = _count_granules(at, address)
    shown = slice(first, first + SHOWN)
    return (
        f"{len(at)} of {len(expected)} bytes differ, {first} to {last} from {address:#x} on, in "
        f"{granules} granules; there stands {found[shown].hex()} for {expected[shown].hex()} "
        f"({_what_stands_there(found, at, others or {})}); a second look finds {again}"
    )


def of_tensor(
    expected: bytes, tensor: torch.Tensor, others: Mapping[str, bytes] | None = None
) -> str:
    """`difference` of a tensor on a GPU: the second look comes after all work of the device."""
    import torch

    def look_again() -> bytes:
        torch.cuda.synchronize()
        return copy(tensor)

    return difference(expected, copy(tensor), look_again, tensor.data_ptr(), others)
