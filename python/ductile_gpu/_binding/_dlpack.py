# SPDX-License-Identifier: Apache-2.0
"""DLPack: memory as other libraries take it over without a copy, by `from_dlpack`."""

from __future__ import annotations

import ctypes
from typing import Any, Optional

CPU, CUDA = 1, 2
_UNSIGNED = 1
_VERSION = (1, 0)


class _Tensor(ctypes.Structure):
    """DLTensor: here always one dimension of bytes."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("n_dimensions", ctypes.c_int32),
        ("type_code", ctypes.c_uint8),
        ("type_bits", ctypes.c_uint8),
        ("type_lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Managed(ctypes.Structure):
    """DLManagedTensor, for those who do not say which version they take."""

    _fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _Deleter)]


class _Versioned(ctypes.Structure):
    """DLManagedTensorVersioned."""

    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", _Deleter),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    ]


# What consumers hold, by address: the struct, and whose memory it is.
_given: dict[int, tuple[Any, ...]] = {}


def _forget(address: int) -> None:
    _given.pop(address, None)


_let_go = _Deleter(_forget)


# By address, not as objects: inside a destructor the capsule must not come to life again.
_Destructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
_new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, _Destructor)(
    ("PyCapsule_New", ctypes.pythonapi)
)
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi)
)
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_NAMES = (b"dltensor", b"dltensor_versioned")


def _end_capsule(capsule: int) -> None:
    """A capsule that a consumer has taken has another name: then its memory is the consumer's."""
    for name in _NAMES:
        if _is_valid(capsule, name):
            _forget(_pointer(capsule, name))


_drop = _Destructor(_end_capsule)


def make_capsule(
    address: int,
    size: int,
    device: tuple[int, int],
    owner: object,
    max_version: Optional[tuple[int, int]] = None,
) -> Any:
    """What __dlpack__ returns for `size` bytes. `owner` is kept until the consumer lets go."""
    shape, strides = (ctypes.c_int64 * 1)(size), (ctypes.c_int64 * 1)(1)
    tensor = _Tensor(address, *device, 1, _UNSIGNED, 8, 1, shape, strides, 0)
    managed: Any
    if max_version is not None and max_version >= _VERSION:
        managed, name = _Versioned(*_VERSION, None, _let_go, 0, tensor), _NAMES[1]
    else:
        managed, name = _Managed(tensor, None, _let_go), _NAMES[0]
    place = ctypes.addressof(managed)
    _given[place] = (managed, shape, strides, owner)
    return _new(place, name, _drop)
