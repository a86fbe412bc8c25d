# SPDX-License-Identifier: Apache-2.0
"""Memory with an owner: an object that other libraries can read and that frees itself."""

from __future__ import annotations

import contextlib
import sys
import weakref
from typing import TYPE_CHECKING, Any, Optional, Union

from ductile_gpu._binding import _cuda, _dlpack
from ductile_gpu._binding._errors import ProcessGone, invalid
from ductile_gpu._binding._objects import Ends, parse_bytes
from ductile_gpu._binding._streams import StreamLike, stream_handle

if TYPE_CHECKING:
    from ductile_gpu._binding._core import Allocator


class _Export:
    """Keeps a buffer for one consumer, and goes when that lets go."""

    __slots__ = ("__weakref__", "buffer")

    def __init__(self, buffer: Buffer) -> None:
        self.buffer = buffer


class Buffer(Ends):
    """Bytes of device memory that are freed with this object.

    CuPy, Numba, PyTorch and others read it through __cuda_array_interface__ or DLPack, without a
    copy, as a one-dimensional array of `size` bytes: `torch.as_tensor(buffer)`,
    `torch.from_dlpack(buffer)`, `cupy.asarray(buffer)`.

    What they make keeps this object, and with it the memory. While a tensor that came by DLPack
    exists, `free` and the end of `with` are refused. Ductile is not told when an array that came by
    __cuda_array_interface__ goes: do not free under it.

    Args:
        allocator: whose memory.
        size: bytes, or text such as "512M".
        stream: where it will be used; see `Allocator.alloc`.

    Raises:
        As `Allocator.alloc`.
    """

    def __init__(
        self, allocator: Allocator, size: Union[int, str], stream: StreamLike = None
    ) -> None:
        self._begin(allocator, parse_bytes(size), stream_handle(stream), 0)
        self.address = allocator.alloc(self.size, self.stream)

    def _begin(self, allocator: Allocator, size: int, stream: int, address: int) -> None:
        self.address = address
        self._freed = False
        self._exports: weakref.WeakSet[_Export] = weakref.WeakSet()
        self.allocator = allocator
        self.size: int = size
        self.stream: int = stream

    def record_stream(self, stream: StreamLike) -> None:
        """Tells that work on another stream uses the buffer; see `Allocator.record_stream`."""
        self.allocator.record_stream(self.address, stream)

    def free(self) -> None:
        """Frees the memory now. A second call does nothing.

        Raises:
            BufferError: a tensor of another library is on it, by DLPack; nothing is freed.
        """
        self._refuse_while_exported()
        self._free()

    def _refuse_while_exported(self) -> None:
        """Raises BufferError while a tensor of another library is on the memory."""
        if self._exports:
            raise BufferError(f"{self!r} is in use: delete the tensors that came by DLPack first")

    def _free(self) -> None:
        address, self.address = self.address, 0
        self._freed = True
        if address and not self.allocator.closed:
            self.allocator.free(address)

    def _refuse_when_freed(self) -> None:
        if self._freed or self.allocator.closed:
            raise BufferError("the buffer is freed")

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        self._refuse_when_freed()
        if self.allocator.is_virtual:
            raise AttributeError("memory of a virtual GPU cannot be read by other libraries")
        return {
            "shape": (self.size,),
            "typestr": "|u1",
            "data": (self.address, False),
            "strides": None,
            "stream": self.stream or 1,
            "version": 3,
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        return (_dlpack.CUDA, self.allocator.device)

    def __dlpack__(
        self,
        *,
        stream: Optional[int] = None,
        max_version: Optional[tuple[int, int]] = None,
        dl_device: Optional[tuple[int, int]] = None,
        copy: Optional[bool] = None,
    ) -> Any:
        self._refuse_when_freed()
        if self.allocator.is_virtual:
            raise BufferError("memory of a virtual GPU cannot be read by other libraries")
        if copy or dl_device not in (None, self.__dlpack_device__()):
            raise BufferError("the memory is where it is: Ductile makes no copies")
        if stream != -1:
            self._hand_to(0 if stream in (None, 1) else int(stream or 0))
        return self._export(max_version)

    def _export(self, max_version: Optional[tuple[int, int]]) -> Any:
        export = _Export(self)
        self._exports.add(export)
        self.allocator._exported.add(self)
        device = self.__dlpack_device__()
        return _dlpack.make_capsule(self.address, self.size, device, export, max_version)

    def _hand_to(self, stream: int) -> None:
        """The consumer's stream waits for ours, and the memory's end for the consumer's."""
        if stream != self.stream:
            _cuda.order_streams(self.allocator.device, self.stream, stream)
            self.record_stream(stream)

    def _end(self) -> None:
        self.free()

    def __del__(self) -> None:
        if getattr(self, "address", 0) and not sys.is_finalizing():
            with contextlib.suppress(ProcessGone):
                self._free()

    def __repr__(self) -> str:
        return f"<ductile_gpu.Buffer of {self.size} bytes at {self.address:#x}>"


class ImportedBuffer(Buffer):
    """A Buffer on memory of another process, which is mapped here: it frees nothing.

    Who maps the memory asks `refuse_while_in_use` before it unmaps it, and calls `forget` then.

    Args:
        allocator: on whose device the memory is.
        address, size: of the memory, in bytes.
        stream: whose work uses it.
        writable: False: __cuda_array_interface__ says that it is not. DLPack's consumers may not
            know: a kernel that stores to it ends this process's CUDA context.
    """

    def __init__(
        self,
        allocator: Allocator,
        address: int,
        size: int,
        stream: StreamLike = None,
        *,
        writable: bool = True,
    ) -> None:
        self._writable = writable
        self._begin(allocator, size, stream_handle(stream), address)

    def record_stream(self, stream: StreamLike) -> None:
        """Refused: order the work of other streams before the memory is unmapped instead."""
        raise invalid("memory of another process records no streams: order them before the close")

    def refuse_while_in_use(self) -> None:
        """Raises BufferError while a tensor of another library is on it, by DLPack."""
        self._refuse_while_exported()

    def forget(self) -> None:
        """The memory is unmapped, or about to be: it cannot be read from here any more."""
        self.address = 0
        self._freed = True

    def _hand_to(self, stream: int) -> None:
        if stream != self.stream:
            _cuda.order_streams(self.allocator.device, self.stream, stream)

    def _free(self) -> None:
        self.forget()

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        self._refuse_when_freed()
        found = super().__cuda_array_interface__
        found["data"] = (self.address, not self._writable)
        return found
