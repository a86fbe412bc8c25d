# SPDX-License-Identifier: Apache-2.0
"""Tensors that grow and shrink in place, along their first dimension."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Optional, Union

from ductile_gpu._binding import _dlpack
from ductile_gpu._binding._elastic import Elastic
from ductile_gpu._binding._errors import invalid
from ductile_gpu._binding._objects import parse_bytes, read_number
from ductile_gpu.torch._tag_pools import current_device, tag_allocators

if TYPE_CHECKING:
    import torch
else:
    from ductile_gpu.torch._lazy import torch

__all__ = ["ElasticTensor", "elastic"]

_GRANULE = 2 << 20
_LARGEST_UNIT = 64 << 20
_UNITS = 256  # about so many in a range, so that the last one wastes little


class ElasticTensor:
    """Rows that come and go in place, as `elastic` makes it.

    The addresses of all rows that there can ever be are reserved; memory is behind `rows` of them.
    The range ends when neither this object nor a tensor that it gave is left.
    """

    def __init__(self, of: Elastic, row_shape: tuple[int, ...], max_rows: int, dtype: Any) -> None:
        self._range = of
        self._row_shape = row_shape
        self._row_bytes = math.prod(row_shape) * dtype.itemsize
        self._committed = 0
        self.max_rows = max_rows
        self.dtype = dtype
        self.rows = 0
        """how many there are now"""
        self._all = self._make(max_rows)

    def _make(self, rows: int) -> torch.Tensor:
        """With a storage of so many rows, the first ones."""
        of, size = self._range, rows * self._row_bytes
        device = (_dlpack.CUDA, of.allocator.device)
        all_bytes = torch.from_dlpack(_dlpack.make_capsule(of.address, size, device, of))
        made: torch.Tensor = all_bytes.view(self.dtype).view(rows, *self._row_shape)
        return made

    def resize(self, rows: int, streams: Iterable[Any] = ()) -> None:
        """Grows to that many rows, or shrinks to them. Nothing is copied; rows that stay keep their
        contents, those that come have undefined ones.

        To grow is an allocation on the stream that was current when this object was made: all or
        none. To shrink makes no driver call and waits for nothing. Rows that went must not be
        touched any more, by no view that still names them: that is a use after a free.

        Args:
            rows: from 0 to max_rows.
            streams: others whose work uses the rows that go. `record_stream` of a tensor has no
                effect on this memory.

        Raises:
            InvalidArgument: the number of rows.
            OutOfMemory: recoverable; nothing has changed. Others as `Elastic.commit`.
        """
        rows = read_number(rows, "a number of rows", range(self.max_rows + 1))
        unit = self._range.unit
        wanted = -(-rows * self._row_bytes // unit) * unit
        if wanted > self._committed:
            self._range.commit(self._committed, wanted - self._committed)
        elif wanted < self._committed:
            self._range.decommit(wanted, self._committed - wanted, *streams)
        self._committed = wanted
        self.rows = rows

    def view(self) -> torch.Tensor:
        """The rows that there are now, as a tensor of shape ``(rows, *row_shape)``. It keeps the
        range, and does not follow later resizes; after one that shrinks, ask for a new one. Its
        storage has these rows alone, so that what copies storages (torch.save, copy.deepcopy)
        touches no others."""
        return self._make(self.rows)

    def first(self, rows: int) -> torch.Tensor:
        """The first so many of all rows that there can be, as a part of `tensor`."""
        return self._all[:rows]

    @property
    def tensor(self) -> torch.Tensor:
        """All rows that there can ever be, as one tensor of shape ``(max_rows, *row_shape)``, for
        code that keeps one tensor. A kernel or a copy that touches what is beyond `rows` ends the
        CUDA context with an illegal address; printing the tensor does."""
        return self._all

    @property
    def range(self) -> Elastic:
        """What is behind it, for code that commits and decommits units anywhere by itself, and does
        not resize: `rows` is not told."""
        return self._range

    def __len__(self) -> int:
        return self.rows

    def __repr__(self) -> str:
        shape = "".join(f", {n}" for n in self._row_shape)
        return f"<ElasticTensor ({self.rows} of {self.max_rows}{shape}), {self.dtype}>"


def _unit_for(size: int) -> int:
    """Each driver call costs the same for 2 MiB and for 64 MiB."""
    unit = _GRANULE
    while unit < _LARGEST_UNIT and unit * _UNITS * 2 <= size:
        unit *= 2
    return unit


def elastic(
    row_shape: Union[int, Sequence[int]],
    max_rows: int,
    dtype: torch.dtype,
    rows: int = 0,
    *,
    unit: Union[int, str, None] = None,
    device: Optional[int] = None,
) -> ElasticTensor:
    """Makes a tensor that grows and shrinks in place along its first dimension.

    Works where Ductile is PyTorch's allocator and beside PyTorch's own. Made inside `pool(tag)`
    where Ductile is the allocator, it sleeps with the tag; beside PyTorch's own it has none. Memory
    comes from what the allocator has free, of all streams, before new memory is created; what a
    shrink gives back serves other tensors once the GPU is done with it.

    Args:
        row_shape: of one row; an integer for a vector of so many.
        max_rows: how many rows there can ever be. Addresses cost no memory.
        dtype: of the elements.
        rows: how many there are at first.
        unit: bytes that are committed at once; None: from 2 MiB to 64 MiB, by the whole size.
        device: ordinal; None: the current device.

    Raises:
        InvalidArgument: a shape, a number or the unit. Others as `Elastic` and `Elastic.commit`.
    """
    shape = (row_shape,) if isinstance(row_shape, int) else tuple(row_shape)
    row_bytes = math.prod(shape) * dtype.itemsize
    if row_bytes <= 0 or read_number(max_rows, "the most rows") == 0:
        raise invalid(f"{max_rows} rows of shape {shape} are no memory")
    place = current_device() if device is None else device
    allocator = tag_allocators(place)[place]
    size = max_rows * row_bytes
    stream = torch.cuda.current_stream(place)
    chosen = _unit_for(size) if unit is None else parse_bytes(unit)
    made = ElasticTensor(Elastic(allocator, size, chosen, stream), shape, max_rows, dtype)
    made.resize(rows)
    return made
