# SPDX-License-Identifier: Apache-2.0
"""Exceptions: one class for each kind of refusal that a caller may want to tell apart."""

from __future__ import annotations

from typing import Any

from ductile_gpu._binding._abi import STATUS_SENTENCES, Status

__all__ = [
    "Asleep",
    "Awake",
    "BadMessage",
    "Busy",
    "Capturing",
    "CorruptHeap",
    "DeviceLost",
    "DeviceUnavailable",
    "DriverError",
    "Error",
    "ForeignPointer",
    "InteriorPointer",
    "InvalidArgument",
    "LayoutChanged",
    "NoDescriptors",
    "NotLive",
    "NotReady",
    "OutOfAddresses",
    "OutOfHostMemory",
    "OutOfMemory",
    "PointerError",
    "ProcessGone",
    "Unsupported",
]


def status_name(status: int) -> str:
    """The C name of a status, such as "DUCTILE_ERR_OUT_OF_MEMORY"."""
    try:
        return f"DUCTILE_{Status(status).name}"
    except ValueError:
        return f"DUCTILE_ERR_UNKNOWN ({status})"


class Error(Exception):
    """A call of libductile was refused. After it nothing has changed that a caller can see.

    Attributes:
        status: the number of the ductile_status.
        name: its name in C.
        details: lines that the library logged during the call: the driver's call and code, who
            holds the memory. Often empty.
    """

    def __init__(
        self, status: int, what: str = "", details: tuple[str, ...] = (), *, alone: bool = False
    ) -> None:
        self.status = status
        self.name = status_name(status)
        self.details = details
        sentence = STATUS_SENTENCES.get(status, "an unknown status")
        heading = what if alone else f"{what}: {sentence}" if what else sentence
        lines = [heading, *details]
        super().__init__("\n  ".join(lines))

    def __reduce__(self) -> Any:
        """As it is: what a worker process raises reaches the one that waits for it."""
        return _again, (type(self), self.args, self.__dict__)


def _again(kind: type[Error], text: tuple[str, ...], attributes: dict[str, Any]) -> Error:
    error = kind(attributes["status"])
    error.args = text
    error.__dict__.update(attributes)
    return error


class InvalidArgument(Error, ValueError):
    """An argument or an option is outside its documented range."""


class Unsupported(Error):
    """This build, device or combination of options does not support the request."""


class Busy(Error):
    """The object is in use and cannot be changed now."""


class Asleep(Busy):
    """The memory sleeps: wake its pool first."""


class Awake(Busy):
    """The memory does not sleep."""


class PointerError(Error, ValueError):
    """The address is not the start of a live block of this allocator."""


class ForeignPointer(PointerError):
    """The address lies outside every range of the allocator."""


class InteriorPointer(PointerError):
    """The address lies inside a live block but is not its start."""


class NotLive(PointerError):
    """The address was freed already, or never allocated."""


class OutOfMemory(Error, MemoryError):
    """The device or the limit has no memory left. A smaller request may succeed."""


class OutOfHostMemory(Error, MemoryError):
    """The host has no memory left for bookkeeping."""


class OutOfAddresses(Error):
    """No range of virtual addresses is left. Freeing memory does not cure it."""


class NoDescriptors(Error):
    """Too few file descriptors are left: raise the limit (ulimit -n)."""


class BadMessage(Error):
    """What another process sent is no whole and valid export."""


class LayoutChanged(Error):
    """A tag of another process has another layout than the importer expects."""


class DeviceUnavailable(Error):
    """No driver, no such device, or one without virtual memory management."""


class DriverError(Error):
    """The driver refused a call; `details` has its name and code."""


class DeviceLost(Error):
    """An earlier error poisoned the device's context; the driver is not called any more."""


class NotReady(Error):
    """The work has not completed yet."""


class Capturing(Error):
    """The call is not allowed while a stream is being captured."""


class ProcessGone(Error):
    """The process is exiting, or it is a fork of the one that made the allocator."""


class CorruptHeap(Error):
    """An invariant of the allocator does not hold; `details` has the report."""


_CLASSES: dict[int, type[Error]] = {
    Status.ERR_INVALID_ARGUMENT: InvalidArgument,
    Status.ERR_UNSUPPORTED: Unsupported,
    Status.ERR_BUSY: Busy,
    Status.ERR_ASLEEP: Asleep,
    Status.ERR_AWAKE: Awake,
    Status.ERR_FOREIGN_POINTER: ForeignPointer,
    Status.ERR_INTERIOR_POINTER: InteriorPointer,
    Status.ERR_NOT_LIVE: NotLive,
    Status.ERR_OUT_OF_MEMORY: OutOfMemory,
    Status.ERR_OUT_OF_ADDRESSES: OutOfAddresses,
    Status.ERR_OUT_OF_HOST_MEMORY: OutOfHostMemory,
    Status.ERR_NO_DESCRIPTORS: NoDescriptors,
    Status.ERR_BAD_MESSAGE: BadMessage,
    Status.ERR_LAYOUT: LayoutChanged,
    Status.ERR_NO_LIBRARY: DeviceUnavailable,
    Status.ERR_NO_DEVICE: DeviceUnavailable,
    Status.ERR_DRIVER_TOO_OLD: DeviceUnavailable,
    Status.ERR_NO_VMM: DeviceUnavailable,
    Status.ERR_DRIVER: DriverError,
    Status.ERR_DEVICE_LOST: DeviceLost,
    Status.ERR_NOT_READY: NotReady,
    Status.ERR_CAPTURING: Capturing,
    Status.ERR_EXITING: ProcessGone,
    Status.ERR_FORKED: ProcessGone,
    Status.ERR_CORRUPT: CorruptHeap,
}


def not_installed(error: ImportError, library: str, wheel: str) -> ImportError:
    """The exception for an adapter whose library is not there."""
    if (error.name or "").partition(".")[0] != library:
        return error
    message = f"{library} is not installed; its wheel is {wheel}"
    return ModuleNotFoundError(message, name=error.name)


def invalid(message: str) -> InvalidArgument:
    """The exception for an argument about which everything is said by `message`."""
    return InvalidArgument(Status.ERR_INVALID_ARGUMENT, message, alone=True)


def check(status: int, what: str = "") -> None:
    """Raises the exception for a status that is a refusal."""
    if status:
        raise error_from_status(status, what)


def error_from_status(
    status: int, what: str = "", details: tuple[str, ...] = (), *, alone: bool = False
) -> Error:
    """The exception for a status. A status newer than this list is a plain Error.

    Args:
        what: was refused; `alone`: says everything, so that the status' sentence is left out.
    """
    return _CLASSES.get(status, Error)(status, what, details, alone=alone)
