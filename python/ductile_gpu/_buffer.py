# SPDX-License-Identifier: Apache-2.0
"""Memory with an owner: an object that other libraries can read and that frees itself."""

from __future__ import annotations

import contextlib
import sys
from types import TracebackType
from typing import TYPE_CHECKING, Any, Optional

from ductile_gpu import _cuda, _dlpack
from ductile_gpu._errors import ProcessGone
from ductile_gpu._streams import StreamLike, stream_handle

if TYPE_CHECKING:
    from ductile_gpu._core import Allocator

__all__ = ["Buffer"]


class Buffer:
    """Bytes of device memory that are freed with this object.

    CuPy, Numba, PyTorch and others read it through __cuda_array_interface__ or DLPack, without a
    copy, as a one-dimensional array of `size` bytes: `torch.as_tensor(buffer)`,
    `torch.from_dlpack(buffer)`, `cupy.asarray(buffer)`.

    Args:
        allocator: whose memory.
        size: bytes.
        stream: where it will be used; see `Allocator.alloc`.

    Raises:
        As `Allocator.alloc`.
    """

    def __init__(self, allocator: Allocator, size: int, stream: StreamLike = None) -> None:
        self.address = 0
        self.allocator = allocator
        self.size = size
        self.stream = stream_handle(stream)
        self.address = allocator.alloc(size, self.stream)

    def record_stream(self, stream: StreamLike) -> None:
        """Tells that work on another stream uses the buffer; see `Allocator.record_stream`."""
        self.allocator.record_stream(self.address, stream)

    def free(self) -> None:
        """Frees the memory now. A second call does nothing."""
        address, self.address = self.address, 0
        if address and not self.allocator.closed:
            self.allocator.free(address)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
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
        if self.allocator.is_virtual:
            raise BufferError("memory of a virtual GPU cannot be read by other libraries")
        if copy or dl_device not in (None, self.__dlpack_device__()):
            raise BufferError("the memory is where it is: Ductile makes no copies")
        if stream != -1:
            self._hand_to(0 if stream in (None, 1) else int(stream or 0))
        device = self.__dlpack_device__()
        return _dlpack.make_capsule(self.address, self.size, device, self, max_version)

    def _hand_to(self, stream: int) -> None:
        """The consumer's stream waits for ours, and the memory's end for the consumer's."""
        if stream != self.stream:
            _cuda.order_streams(self.allocator.device, self.stream, stream)
            self.record_stream(stream)

    def __enter__(self) -> Buffer:
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.free()

    def __del__(self) -> None:
        if getattr(self, "address", 0) and not sys.is_finalizing():
            with contextlib.suppress(ProcessGone):
                self.free()

    def __repr__(self) -> str:
        return f"<ductile_gpu.Buffer of {self.size} bytes at {self.address:#x}>"
