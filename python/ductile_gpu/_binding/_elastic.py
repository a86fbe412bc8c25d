# SPDX-License-Identifier: Apache-2.0
"""Elastic ranges: addresses that stay, behind which memory comes and goes."""

from __future__ import annotations

import ctypes
from ctypes import byref
from typing import TYPE_CHECKING, Any, Optional, Union

from ductile_gpu._binding import _abi, _cuda, _log
from ductile_gpu._binding._buffer import Buffer
from ductile_gpu._binding._errors import error_from_status, invalid
from ductile_gpu._binding._native import lib, sized
from ductile_gpu._binding._objects import parse_bytes
from ductile_gpu._binding._sleep import why_asleep
from ductile_gpu._binding._streams import StreamLike, stream_handle

if TYPE_CHECKING:
    from ductile_gpu._binding._core import Allocator

Size = Union[int, str]


class _OfRange(Buffer):
    """Memory of a range: whose end is the end of the range, and no free of a block."""

    def record_stream(self, stream: StreamLike) -> None:
        """Has no effect: name the streams to `Elastic.decommit`, or order them before it."""

    def _hand_to(self, stream: int) -> None:
        if stream != self.stream:
            _cuda.order_streams(self.allocator.device, self.stream, stream)


class Elastic(_OfRange):
    """Addresses that stay, behind which memory comes and goes in units, for what grows in place.

    Other libraries read it as a `Buffer`, as all of its addresses; only what is committed may be
    touched: anything else ends the CUDA context. `view` is what is safe to hand on. The range ends
    with `free`, the end of a `with`, or when neither this object, nor a view, nor what other
    libraries made of them is left.

    Args:
        allocator: whose memory.
        size: how large it can become, in bytes or text such as "32G"; rounded up to whole units.
        unit: what is committed at once, a multiple of the driver's granule; 0: one granule (2 MiB).
        stream: where it will be used; see `Allocator.alloc`.

    Raises:
        InvalidArgument: the size or the unit.
        Asleep, OutOfAddresses, OutOfHostMemory, Busy, DriverError, DeviceLost, ProcessGone.
    """

    def __init__(
        self, allocator: Allocator, size: Size, unit: Size = 0, stream: StreamLike = None
    ) -> None:
        self._range: Optional[int] = None
        self._begin(allocator, 0, stream_handle(stream), 0)
        options = sized(_abi.ductile_elastic_options, unit_bytes=parse_bytes(unit))
        out = ctypes.c_void_p()
        _log.forget()
        status = lib.ductile_elastic_open(
            allocator.pointer, parse_bytes(size), self.stream, byref(options), byref(out)
        )
        if status:
            what = f"no range of {size} bytes in units of {unit or 'a granule'}"
            raise error_from_status(status, what, _log.take())
        self._range = out.value
        self.address = lib.ductile_elastic_address(out)
        self.size = lib.ductile_elastic_bytes(out)
        self.unit: int = lib.ductile_elastic_unit(out)

    def commit(self, offset: Size, size: Size) -> None:
        """Puts memory behind units: all of those that are missing, or none.

        Units that are committed keep their contents; what others contain is undefined.

        Args:
            offset, size: whole units, in bytes.

        Raises:
            InvalidArgument: no such units, or the stream has ended.
            OutOfMemory: recoverable, with a report; no unit has changed.
            Asleep, Capturing, DriverError, OutOfHostMemory, DeviceLost, ProcessGone.
        """
        self._refuse_when_freed()
        offset, size = parse_bytes(offset), parse_bytes(size)
        _log.forget()
        status = lib.ductile_elastic_commit(self._range, offset, size)
        if status:
            what = f"no commit of {size} bytes at {offset}"
            pointer = self.allocator.pointer
            raise error_from_status(status, what, (*why_asleep(pointer, status), *_log.take()))

    def decommit(self, offset: Size, size: Size, *streams: StreamLike) -> None:
        """Gives units back, as `Allocator.free` gives a block: no driver call, no wait.

        They stay mapped until their memory is wanted elsewhere, and a commit before that costs
        nothing. To touch them meanwhile is a use after a free.

        Args:
            offset, size: whole units, in bytes. Those that are not committed are passed over.
            streams: others than the range's own whose work uses them.

        Raises:
            InvalidArgument, OutOfHostMemory, DeviceLost, ProcessGone.
        """
        self._refuse_when_freed()
        offset, size = parse_bytes(offset), parse_bytes(size)
        handles = (ctypes.c_void_p * len(streams))(*map(stream_handle, streams))
        _log.forget()
        status = lib.ductile_elastic_decommit(self._range, offset, size, handles, len(streams))
        _log.check(status, f"decommit of {size} bytes at {offset}")

    def view(self, size: Size, offset: Size = 0) -> ElasticView:
        """The bytes from `offset` on, for other libraries: what is committed, if they are to read
        it. It keeps the range."""
        return ElasticView(self, parse_bytes(size), parse_bytes(offset))

    def _free(self) -> None:
        found, self._range = self._range, None
        self.address, self._freed = 0, True
        if found is not None and not self.allocator.closed:
            _log.check(lib.ductile_elastic_close(found), "close of a range")

    def __repr__(self) -> str:
        return f"<ductile_gpu.Elastic of up to {self.size} bytes at {self.address:#x}>"


class ElasticView(_OfRange):
    """A part of an `Elastic`, as a `Buffer`: it keeps the range, and frees nothing."""

    def __init__(self, of: Elastic, size: int, offset: int) -> None:
        of._refuse_when_freed()
        if offset + size > of.size:
            raise invalid(f"{size} bytes at {offset} are more than the range's {of.size}")
        self._begin(of.allocator, size, of.stream, of.address + offset)
        self.range = of

    def _refuse_when_freed(self) -> None:
        super()._refuse_when_freed()
        self.range._refuse_when_freed()

    def _export(self, max_version: Optional[tuple[int, int]]) -> Any:
        """The tensor keeps the range, too."""
        capsule = super()._export(max_version)
        self.range._exports.update(self._exports)
        return capsule

    def _free(self) -> None:
        self.address, self._freed = 0, True
