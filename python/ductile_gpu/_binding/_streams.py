# SPDX-License-Identifier: Apache-2.0
"""Streams of all libraries as the one number that CUDA knows them by."""

from __future__ import annotations

import ctypes
import operator
from typing import Any, Optional, Union

from ductile_gpu._binding._objects import UINT64

# An integer, None for the legacy default stream, or a stream object of any library.
StreamLike = Union[int, None, Any]


def _from_object(stream: Any) -> Optional[int]:
    # PyTorch: cuda_stream; CuPy: ptr; Numba and cuda.core: handle, an integer or a ctypes object.
    for attribute in ("cuda_stream", "ptr", "handle", "value"):
        found = getattr(stream, attribute, None)
        if isinstance(found, ctypes.c_void_p):
            return found.value or 0
        if found is not None:
            try:
                return int(found)
            except (TypeError, ValueError):
                continue
    try:
        return int(operator.index(stream))  # NumPy's integers
    except TypeError:
        return None


# cudaStreamLegacy is another name of the default stream; one stream must have one name.
_LEGACY = 1


def stream_handle(stream: StreamLike) -> int:
    """The CUstream behind a stream object, as an integer.

    Args:
        stream: an integer, NumPy's too (a CUstream or cudaStream_t); None for the legacy default
            stream; or a stream of PyTorch, CuPy, Numba, RMM or cuda.core, or anything else with the
            __cuda_stream__ protocol.

    Raises:
        TypeError: it is none of these.
    """
    if stream is None:
        return 0
    if type(stream) is int:
        if stream not in UINT64:
            raise TypeError(f"not a CUDA stream: {stream}")
        return 0 if stream == _LEGACY else stream
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        answer = protocol() if callable(protocol) else protocol
        return stream_handle(int(answer[1]))
    found = None if isinstance(stream, bool) else _from_object(stream)
    if found is None:
        raise TypeError(f"not a CUDA stream: {stream!r}")
    return stream_handle(found)
