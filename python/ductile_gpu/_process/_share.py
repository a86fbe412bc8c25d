# SPDX-License-Identifier: Apache-2.0
"""One allocator for each device of the process, which every library's adapter uses.

What one library frees serves the next, because it is the same allocator. Where PyTorch's adapter
is on, its allocators are the process's; otherwise they are made here, when first asked for.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping
from ctypes import byref
from typing import Any, Callable, Optional, cast

from ductile_gpu._binding import _abi
from ductile_gpu._binding._abi import Options
from ductile_gpu._binding._core import (
    Allocator,
    add_environment,
    format_options,
    made_here,
    make_options,
    when_made,
)
from ductile_gpu._binding._errors import Busy, Error, ForeignPointer, OutOfMemory
from ductile_gpu._binding._log import logger
from ductile_gpu._binding._native import lib
from ductile_gpu._binding._objects import renew_in_child

# Of the process's own allocators: CuPy, Numba and RMM announce no captures.
_OWN = Options(captures="unannounced")

_lock = threading.RLock()
_allocators: dict[int, Allocator] = {}
_options = Options()
_provider: Optional[Callable[[int], int]] = None
_list_used: Optional[Callable[[], Iterable[int]]] = None
_provided = _OWN
_change: Optional[Callable[[Options], None]] = None
renew_in_child(globals(), "_lock", threading.RLock)


# ---- Options -----------------------------------------------------------------------------------


def effective(options: Options) -> dict[str, str]:
    """All options of an allocator that is made with these: DUCTILE_CONF counts on top of them.

    Raises:
        InvalidArgument: an option, or DUCTILE_CONF; the message names it.
    """
    made = make_options({**_provided, **options})
    add_environment(made)
    return format_options(made)


def configure(options: Options) -> None:
    """Sets options of the process's allocators, which may change until one of them was used; none
    is kept where one of them is refused.

    Raises:
        InvalidArgument: an option, or DUCTILE_CONF.
        Busy: an allocator that was used has other options.
    """
    with _lock:
        wanted = cast(Options, {**_options, **options})
        before, after = effective(_options), effective(wanted)
        changed = [key for key, value in after.items() if before[key] != value]
        if changed and (_used() or (_provider is not None and _change is None)):
            raise _too_late(changed[0], before[changed[0]])
        _put(wanted)


def _put(options: Options) -> None:
    global _options
    if _change is not None and options != _options:
        _change(options)
    _options = options


def _too_late(key: str, value: str) -> Busy:
    of_limits = ", or call set_limit() of the allocator" if key.endswith("limit_bytes") else ""
    return Busy(
        _abi.Status.ERR_BUSY,
        f"memory was allocated with other options already ({key} is {value}): give all options "
        f"before the first allocation, or in DUCTILE_CONF{of_limits}",
    )


def given() -> dict[str, object]:
    """The options that were asked for."""
    with _lock:
        return dict(_options)


@contextlib.contextmanager
def configured(options: Options) -> Iterator[Options]:
    """As `configure`; options that were not put to use are forgotten where the block fails."""
    before = _options
    configure(options)
    try:
        yield _options
    except BaseException:
        with _lock:
            if not _used():
                _put(before)
        raise


# ---- Which allocator it is ---------------------------------------------------------------------


def provide(
    open_device: Callable[[int], int],
    list_used: Callable[[], Iterable[int]] = tuple,
    defaults: Optional[Options] = None,
    change: Optional[Callable[[Options], None]] = None,
) -> None:
    """Says where the process's allocators come from: PyTorch's adapter owns those it uses.

    Args:
        open_device: takes a device's ordinal and returns its `ductile_allocator *`, the same in
            every call, valid to the end of the process.
        list_used: the devices that have such an allocator already.
        defaults: what the provider sets, if the caller does not.
        change: takes the options of allocators that are still to be made.

    Raises:
        Busy: a device has a shared allocator already: another library was enabled first.
    """
    global _provider, _list_used, _provided, _change
    with _lock:
        own = [device for device, found in _allocators.items() if not found.is_borrowed]
        if own:
            raise Busy(
                _abi.Status.ERR_BUSY,
                f"device {own[0]} has a shared allocator already: enable PyTorch before the others",
            )
        _provider = open_device
        _list_used = list_used
        _provided = defaults or Options()
        _change = change
    _let_be_watched()


def withdraw() -> None:
    """The provider has failed before it served anything."""
    global _provider, _list_used, _provided, _change
    with _lock:
        _provider = _list_used = _change = None
        _provided = _OWN


def shared(device: int = 0) -> Allocator:
    """The process's allocator of a device, made when first asked for and never closed.

    Args:
        device: ordinal.

    Raises:
        As `Allocator`.
    """
    found = _allocators.get(device)
    return found if found is not None else _open(device)


def _open_of_process(device: int, options: Mapping[str, Any]) -> Optional[int]:
    """The `ductile_allocator *` of the library that serves all calls for a device, made with these
    options where it is not there yet. None: no such library is in the process, or it does not serve
    the device. Raises InvalidArgument."""
    try:
        function = ctypes.CDLL(None).ductile_process_open
    except AttributeError:
        return None
    function.restype = ctypes.c_void_p
    create = ctypes.cast(lib.ductile_create, ctypes.c_void_p)
    found: Optional[int] = function(create, ctypes.c_int(device), byref(make_options(options)))
    return found


def _open(device: int) -> Allocator:
    with _lock:
        found = _allocators.get(device)
        if found is None:
            if _provider is not None:
                found = Allocator.borrow(_provider(device), device)
            else:
                wanted = cast(Options, {**_provided, **_options})
                there = _open_of_process(device, wanted)
                found = (
                    Allocator(device, **wanted)
                    if there is None
                    else Allocator.borrow(there, device)
                )
            _add_callbacks(found)
            _allocators[device] = found
            _let_be_watched()
        return found


def on_first_use(then: Callable[[], None]) -> None:
    """Has `then` called whenever the process gets an allocator, and when PyTorch's are provided."""
    when_made.append(then)


def _let_be_watched() -> None:
    for then in when_made:
        then()


def adopt(device: int, allocator: Optional[Allocator]) -> None:
    """Makes an allocator the shared one of a device; None: the next call makes a new one."""
    with _lock:
        if allocator is None:
            _allocators.pop(device, None)
        else:
            _allocators[device] = allocator


def _opened() -> dict[int, Allocator]:
    with _lock:
        return dict(_allocators)


def _used() -> set[int]:
    """The devices of which the provider or this process has an allocator."""
    return {*_allocators, *(_list_used() if _list_used is not None else ())}


def by_device() -> dict[int, Allocator]:
    """The shared allocators that exist, those that only PyTorch has used included."""
    for device in _used():
        shared(device)
    return _opened()


def numbered() -> list[tuple[Optional[int], Allocator]]:
    """All allocators of the process, as `allocators`; those of the program with their numbers."""
    everybodys = [allocator for _, allocator in sorted(by_device().items())]
    pointers = {allocator.pointer for allocator in everybodys if not allocator.closed}
    own = [(n, one) for n, one in made_here().items() if one._pointer not in pointers]
    return [*((None, allocator) for allocator in everybodys), *own]


def allocators() -> list[Allocator]:
    """The allocators of the process: the shared ones in the order of their devices, those that only
    PyTorch has used included; then those of the program's own that are open."""
    return [allocator for _, allocator in numbered()]


# ---- Who is asked for memory -------------------------------------------------------------------

# The adapters' own caches: each function gives back what it can, and returns the bytes.
_givers: list[Callable[[], int]] = []


def add_giver(give: Callable[[], int]) -> None:
    """Has a library asked for its own caches before a request on a shared allocator is refused."""
    with _lock:
        if give not in _givers:
            _givers.append(give)


def _ask_libraries(_missing: int) -> int:
    """Out-of-memory callback of the shared allocators."""
    return sum(give() for give in tuple(_givers))


def _ask_collector(allocator: Allocator) -> Callable[[int], int]:
    """Asked last: arrays that hang in reference cycles hold memory until Python looks for them."""

    def collect(_missing: int) -> int:
        before = allocator.stats().allocated_bytes
        gc.collect()
        return max(0, before - allocator.stats().allocated_bytes)

    return collect


def _add_callbacks(allocator: Allocator) -> None:
    """Not for PyTorch's own allocators, whose requests are asked for memory PyTorch's way.

    `allocate` asks there, after the refusal of another library's request.
    """
    if allocator.is_borrowed:
        return
    allocator.add_oom_callback(_ask_libraries, priority=0)
    allocator.add_oom_callback(_ask_collector(allocator), priority=100)


# Which library a live block is of, by its address; PyTorch's and the program's own are not here.
_owners: weakref.WeakKeyDictionary[Allocator, dict[int, str]] = weakref.WeakKeyDictionary()


def allocate(allocator: Allocator, size: int, stream: int, library: str) -> int:
    """What the adapters of CuPy, Numba and RMM allocate with, until they call `forget`. Errors: as
    `Allocator.alloc`."""
    address = _allocate(allocator, size, stream)
    _owners.setdefault(allocator, {})[address] = library
    return address


def forget(allocator: Allocator, address: int) -> None:
    """The block is about to be freed: then it may be another's."""
    _owners.get(allocator, {}).pop(address, None)


def free(allocator: Allocator, address: int, *streams: int) -> None:
    """Frees what `allocate` gave, for a library whose frees may not fail: a refusal is logged."""
    forget(allocator, address)
    try:
        allocator.free(address, *streams)
    except Error as error:
        logger.error("%s", error)


def owners(allocator: Allocator) -> dict[int, str]:
    """Which library each live block is of, as far as an adapter of Python allocated it."""
    return dict(_owners.get(allocator, {}))


def _allocate(allocator: Allocator, size: int, stream: int) -> int:
    try:
        return allocator.alloc(size, stream)
    except OutOfMemory:
        if not allocator.is_borrowed:
            raise
        if _ask_libraries(size) + _ask_collector(allocator)(size) == 0:
            raise
    return allocator.alloc(size, stream)


# ---- Arrays of any library ----------------------------------------------------------------------


def _address_of(array: Any) -> int:
    """Where the allocation begins that an array of some library looks at."""
    if isinstance(array, int):
        return array
    storage = getattr(array, "untyped_storage", None)  # PyTorch
    if storage is not None:
        return int(storage().data_ptr())
    memory = getattr(getattr(array, "data", None), "mem", None)  # CuPy
    if memory is not None:
        return int(memory.ptr)
    interface = getattr(array, "__cuda_array_interface__", None)
    if interface is not None:
        return int(interface["data"][0])
    raise TypeError(f"neither an address nor an array on a GPU: {array!r}")


def record_stream(array: Any, stream: Any) -> None:
    """Tells that work on `stream` uses an array of any library: its memory waits for that work.

    Needed where an array is used on another stream than the one it was made on, and dropped before
    that work is done.

    Args:
        array: a tensor, an array with __cuda_array_interface__, or an address. PyTorch and CuPy
            find the allocation behind a view; otherwise the array must begin where it does.
        stream: any library's stream object, or an integer.

    Raises:
        ForeignPointer: no shared allocator holds the memory.
        InteriorPointer: the array is a view into an allocation.
        TypeError: not an array, or not a stream.
    """
    address = _address_of(array)
    refused: Optional[ForeignPointer] = None
    for allocator in _opened().values():
        try:
            allocator.record_stream(address, stream)
            return
        except ForeignPointer as error:
            refused = error
    if refused is not None:
        raise refused
    raise ForeignPointer(_abi.Status.ERR_FOREIGN_POINTER, "no allocator is shared yet")
