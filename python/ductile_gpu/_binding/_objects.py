# SPDX-License-Identifier: Apache-2.0
"""What holds of every object that stands for something in C, and of the numbers it is given."""

from __future__ import annotations

import contextlib
import math
import operator
import os
from types import TracebackType
from typing import Any, Callable, Optional, TypeVar, Union

from ductile_gpu._binding._abi import Status
from ductile_gpu._binding._errors import ForeignPointer, invalid

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_END = 1 << 64
UINT64 = range(_END)
INT32 = range(-(1 << 31), 1 << 31)


class Unique:
    """An object that frees what it stands for: a copy would free it again, and in another process
    its numbers mean something else."""

    __slots__ = ()

    def __reduce__(self) -> Any:
        name = type(self).__name__
        raise TypeError(
            f"{name} cannot be copied or pickled: it stands for memory of this process; share the "
            "object, or make one in the other process"
        )


def close_behind(error: Optional[BaseException]) -> contextlib.suppress:
    """For the end of a `with`: an error that ended its body is not hidden by the refusal to close,
    whose cause it most often is: its traceback keeps the tensors."""
    return contextlib.suppress(*(() if error is None else (BufferError,)))


_Ends = TypeVar("_Ends", bound="Ends")


class Ends(Unique):
    """An object that the end of a `with` lets go of."""

    __slots__ = ()

    def _end(self) -> None:
        raise NotImplementedError

    def __enter__(self: _Ends) -> _Ends:
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        with close_behind(error):
            self._end()


class Closes(Ends):
    """One that is closed."""

    __slots__ = ()

    def close(self) -> None:
        raise NotImplementedError

    def _end(self) -> None:
        self.close()


def renew_in_child(names: dict[str, Any], name: str, make: Callable[[], Any]) -> None:
    """Has a forked child make something of a module again: a lock, which a thread of the parent may
    have held, or a list of what is the parent's."""
    os.register_at_fork(after_in_child=lambda: names.__setitem__(name, make()))


def read_number(value: Any, what: str, within: range = UINT64) -> int:
    """An integer of any library that C can take: what it would cut off is refused."""
    try:
        number = int(operator.index(value))
    except TypeError:
        raise TypeError(f"{what} is an integer, not {value!r}") from None
    if number in within:
        return number
    if number < 0 <= within.start:
        raise invalid(f"{what} {number} is negative")
    raise invalid(f"{what} {number} is not from {within.start} to {within.stop - 1}")


def check_callable(function: Any, what: str) -> None:
    """Raises TypeError for what C could not call back."""
    if not callable(function):
        raise TypeError(f"{what} is a function, not {function!r}")


def read_text(text: Any, what: str, room: Optional[int] = None) -> bytes:
    """A text as C takes it: what it would cut off, and what is no Unicode, is refused.

    Args:
        what: names it in a refusal, such as "a tag".
        room: bytes that C has for it, with the zero byte at its end; None: any number.

    Raises:
        InvalidArgument.
    """
    if not isinstance(text, str):
        raise invalid(f"{what} is a text, not {text!r}")
    if "\0" in text:
        raise invalid(f"{what} has no NUL character: {text!r}")
    try:
        found = text.encode()
    except UnicodeEncodeError:
        raise invalid(f"{what} is no text in Unicode: {text!r}") from None
    if room is not None and len(found) >= room:
        raise invalid(f"{what} has fewer than {room} bytes: {text!r}")
    return found


def parse_bytes(value: Union[int, str]) -> int:
    """A number of bytes: an integer, or text such as "512M" (K, M, G, T are powers of 1024)."""
    if type(value) is int and 0 <= value < _END:
        return value
    if not isinstance(value, str):
        return read_number(value, "size")
    text = value.strip().upper().removesuffix("IB").removesuffix("B")
    unit = text[-1:] if text[-1:].isalpha() else ""
    try:
        return read_number(math.floor(float(text[: len(text) - len(unit)]) * _UNITS[unit]), "size")
    except (KeyError, OverflowError, ValueError):
        raise invalid(f"'{value}' is not a number of bytes such as 512M") from None


def read_address(value: int) -> int:
    """An address as C takes it. What is none lies outside every range."""
    if type(value) is int and 0 <= value < _END:
        return value
    try:
        return read_number(value, "address")
    except ValueError as error:
        raise ForeignPointer(Status.ERR_FOREIGN_POINTER, str(error)) from None
