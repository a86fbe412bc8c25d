# SPDX-License-Identifier: Apache-2.0
"""The few driver calls that adapters need beside libductile. Opened when first used."""

from __future__ import annotations

import contextlib
import ctypes
import uuid
from collections.abc import Iterator
from ctypes import byref
from functools import cache, lru_cache
from typing import NamedTuple, Optional

_CAPTURE_RELAXED = 2
_STREAM_DEFAULT = 0
_NO_TIMING = 2
_NOT_READY = 600
_COMPUTE_MAJOR, _COMPUTE_MINOR, _HAS_VMM = 75, 76, 102


class Device(NamedTuple):
    """A GPU as the driver describes it."""

    ordinal: int
    name: str
    total_bytes: int
    capability: tuple[int, int]
    has_vmm: bool
    """whether it supports virtual memory management, without which Ductile cannot work"""


class CudaError(RuntimeError):
    """The driver refused a call."""


@lru_cache(maxsize=1)
def _open() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise CudaError(f"no NVIDIA driver: {error}") from None
    _check(library.cuInit(0), "cuInit", library)
    return library


def _check(code: int, call: str, library: Optional[ctypes.CDLL] = None) -> None:
    if code == 0:
        return
    name = ctypes.c_char_p()
    lib = library or _open()
    lib.cuGetErrorName(code, byref(name))
    raise CudaError(f"{call}: {(name.value or b'error').decode(errors='replace')} ({code})")


def _device(ordinal: int) -> ctypes.c_int:
    device = ctypes.c_int()
    _check(_open().cuDeviceGet(byref(device), ordinal), "cuDeviceGet")
    return device


def driver_version() -> tuple[int, int]:
    """The CUDA version that the driver supports. Raises CudaError where there is none."""
    number = ctypes.c_int()
    _check(_open().cuDriverGetVersion(byref(number)), "cuDriverGetVersion")
    return number.value // 1000, number.value % 1000 // 10


def _attribute(device: ctypes.c_int, attribute: int) -> int:
    value = ctypes.c_int()
    _check(_open().cuDeviceGetAttribute(byref(value), attribute, device), "cuDeviceGetAttribute")
    return value.value


def devices() -> list[Device]:
    """All GPUs of this process. Raises CudaError where there is no driver or no device."""
    library = _open()
    count = ctypes.c_int()
    _check(library.cuDeviceGetCount(byref(count)), "cuDeviceGetCount")
    return [_describe(library, ordinal) for ordinal in range(count.value)]


def _describe(library: ctypes.CDLL, ordinal: int) -> Device:
    device = _device(ordinal)
    name = ctypes.create_string_buffer(256)
    total = ctypes.c_size_t()
    _check(library.cuDeviceGetName(name, len(name), device), "cuDeviceGetName")
    _check(library.cuDeviceTotalMem_v2(byref(total), device), "cuDeviceTotalMem")
    capability = (_attribute(device, _COMPUTE_MAJOR), _attribute(device, _COMPUTE_MINOR))
    has_vmm = bool(_attribute(device, _HAS_VMM))
    return Device(ordinal, name.value.decode(errors="replace"), total.value, capability, has_vmm)


@cache
def device_uuid(ordinal: int) -> str:
    """What nvidia-smi calls the device: "GPU-" and its UUID."""
    raw = (ctypes.c_ubyte * 16)()
    _check(_open().cuDeviceGetUuid(raw, _device(ordinal)), "cuDeviceGetUuid")
    return f"GPU-{uuid.UUID(bytes=bytes(raw))}"


@cache
def pci_bus_id(ordinal: int) -> str:
    """Where the device is, as the driver writes it: "0000:18:00.0"."""
    text = ctypes.create_string_buffer(32)
    code = _open().cuDeviceGetPCIBusId(text, len(text), _device(ordinal))
    _check(code, "cuDeviceGetPCIBusId")
    return text.value.decode()


@contextlib.contextmanager
def _primary_context(ordinal: int) -> Iterator[ctypes.CDLL]:
    """The device's primary context is current inside, whatever was before and is afterwards."""
    library, device = _open(), _device(ordinal)
    context = ctypes.c_void_p()
    _check(library.cuDevicePrimaryCtxRetain(byref(context), device), "cuDevicePrimaryCtxRetain")
    try:
        _check(library.cuCtxPushCurrent_v2(context), "cuCtxPushCurrent")
        try:
            yield library
        finally:
            library.cuCtxPopCurrent_v2(byref(ctypes.c_void_p()))
    finally:
        library.cuDevicePrimaryCtxRelease_v2(device)


def memory_info(ordinal: int) -> tuple[int, int]:
    """Free and total bytes of a device, by the driver's word."""
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    with _primary_context(ordinal) as library:
        _check(library.cuMemGetInfo_v2(byref(free), byref(total)), "cuMemGetInfo")
    return free.value, total.value


@contextlib.contextmanager
def relaxed_capture() -> Iterator[None]:
    """Inside, this thread's queries and frees do not break the captures of other threads."""
    library = _open()
    mode = ctypes.c_int(_CAPTURE_RELAXED)
    library.cuThreadExchangeStreamCaptureMode(byref(mode))
    try:
        yield
    finally:
        library.cuThreadExchangeStreamCaptureMode(byref(mode))


def order_streams(ordinal: int, first: int, then: int) -> None:
    """What the one stream is given from now on waits for what the other was given until now."""
    event = ctypes.c_void_p()
    with _primary_context(ordinal) as library:
        _check(library.cuEventCreate(byref(event), _NO_TIMING), "cuEventCreate")
        try:
            _check(library.cuEventRecord(event, ctypes.c_void_p(first)), "cuEventRecord")
            _check(library.cuStreamWaitEvent(ctypes.c_void_p(then), event, 0), "cuStreamWaitEvent")
        finally:
            library.cuEventDestroy_v2(event)


class Stream:
    """A stream of a device's primary context, ordered with its default stream. Never destroyed."""

    def __init__(self, ordinal: int) -> None:
        out = ctypes.c_void_p()
        self.ordinal = ordinal
        with _primary_context(ordinal) as library:
            _check(library.cuStreamCreate(byref(out), _STREAM_DEFAULT), "cuStreamCreate")
        self.handle = out.value or 0

    def synchronize(self) -> None:
        """Waits on the host for the stream; most often there is nothing to wait for."""
        library = _open()
        with relaxed_capture():
            code = library.cuStreamQuery(ctypes.c_void_p(self.handle))
            if code == _NOT_READY:
                code = library.cuStreamSynchronize(ctypes.c_void_p(self.handle))
        _check(code, "cuStreamSynchronize")
