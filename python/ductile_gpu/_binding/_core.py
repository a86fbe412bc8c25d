# SPDX-License-Identifier: Apache-2.0
"""The allocator of one device."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import json
import os
import sys
import threading
import warnings
import weakref
from collections.abc import Iterable, Iterator, Mapping
from ctypes import byref, sizeof
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Optional, Union

from ductile_gpu._binding import _abi, _log
from ductile_gpu._binding._abi import Options, Stats
from ductile_gpu._binding._blocks import Block, block_from_info, blocks_in
from ductile_gpu._binding._buffer import Buffer
from ductile_gpu._binding._elastic import Elastic
from ductile_gpu._binding._errors import (
    CorruptHeap,
    InvalidArgument,
    ProcessGone,
    error_from_status,
    invalid,
)
from ductile_gpu._binding._eviction import Eviction, cheapest
from ductile_gpu._binding._native import formatted, lib, sized, written
from ductile_gpu._binding._objects import (
    INT32,
    UINT64,
    Closes,
    check_callable,
    parse_bytes,
    read_address,
    read_number,
    read_text,
    renew_in_child,
)
from ductile_gpu._binding._sleep import (
    PoolId,
    PoolKind,
    Sleeps,
    kind_number,
    optional_pool,
    pool_id,
    why_asleep,
)
from ductile_gpu._binding._streams import StreamLike, stream_handle

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ductile_gpu._binding._virtual import VirtualGPU

_KEEP = (1 << 64) - 1  # DUCTILE_LIMIT_KEEP
_HAVE_OWNERS = (_abi.BlockState.LIVE, _abi.BlockState.ASLEEP)

VARIABLE = "DUCTILE_CONF"

OptionValue = Union[str, int, float, bool]


class Limits(NamedTuple):
    """How much physical memory an allocator may hold, in bytes."""

    limit_bytes: int
    """the hard cap: limit_bytes, or the device if that is less"""
    soft_limit_bytes: int
    """above it creating comes last; limit_bytes where none is set"""
    device_bytes: int
    """what the device has"""


def option_text(value: OptionValue) -> str:
    """As DUCTILE_CONF has it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)


def set_option(options: _abi.ductile_options, key: str, value: OptionValue) -> None:
    """Sets one option by its key in DUCTILE_CONF. Raises InvalidArgument, which names the key."""
    message = ctypes.create_string_buffer(256)
    named = read_text(key, "the name of an option")
    text = read_text(option_text(value), f"option '{key}'")
    status = lib.ductile_options_set(byref(options), named, text, message, sizeof(message))
    if status:
        raise invalid(message.value.decode(errors="replace") or key)


def make_options(given: Mapping[str, Any]) -> _abi.ductile_options:
    """The defaults, and these by their keys. Raises InvalidArgument."""
    options = _abi.ductile_options()
    lib.ductile_options_init(byref(options))
    for key, value in given.items():
        set_option(options, key, value)
    return options


def parse_options(options: _abi.ductile_options, text: str) -> None:
    """Sets options as DUCTILE_CONF has them. Raises InvalidArgument, which names the key."""
    message = ctypes.create_string_buffer(512)
    if lib.ductile_options_parse(byref(options), os.fsencode(text), message, sizeof(message)):
        raise invalid(message.value.decode(errors="replace"))


def add_environment(options: _abi.ductile_options) -> None:
    """DUCTILE_CONF, which counts on top of them. Raises InvalidArgument, which names it too."""
    try:
        parse_options(options, os.environ.get(VARIABLE, ""))
    except InvalidArgument as error:
        raise invalid(f"{VARIABLE}: {error}") from None


def format_options(options: _abi.ductile_options) -> dict[str, str]:
    """Options as text, by key."""
    text = formatted(lib.ductile_options_format, byref(options)).decode()
    pairs = (item.partition(":") for item in text.split(",") if item)
    return {key: value for key, _, value in pairs}


def _limit(value: Union[int, str, None]) -> int:
    """A limit as C takes it: bytes, or a share of what it limits."""
    if not isinstance(value, str) or not value.strip().endswith("%"):
        wanted = 0 if value is None else parse_bytes(value)
        if wanted >> 63:  # C's mark of a share
            raise invalid(f"'{value}' is not a limit: less than 8 EiB")
        return wanted
    return int(make_options({"limit_bytes": value.strip()}).limit_bytes)


# What ended an out-of-memory callback, by thread, until `alloc` raises it.
_interrupts: dict[int, BaseException] = {}

# Callbacks registered through an `Allocator.borrow`, by its pointer, kind and number.
_borrowed_callbacks: dict[int, dict[str, dict[int, Any]]] = {}


# Those that were made in this process, by when, and what is told of each; see `made_here`.
_made: weakref.WeakValueDictionary[int, Allocator] = weakref.WeakValueDictionary()
_numbers = itertools.count(1)
_made_lock = threading.Lock()
when_made: list[Callable[[], None]] = []
# Held while an allocator is looked at that another thread may close, and while one is closed.
_open_lock = threading.RLock()
renew_in_child(globals(), "_made", weakref.WeakValueDictionary)
renew_in_child(globals(), "_made_lock", threading.Lock)
renew_in_child(globals(), "_open_lock", threading.RLock)


def made_here() -> dict[int, Allocator]:
    """The allocators that were made by `Allocator(...)` in this process and are open, by the number
    that each has in it."""
    with _made_lock:
        return {n: allocator for n, allocator in sorted(_made.items()) if not allocator.closed}


@contextlib.contextmanager
def kept_open(allocator: Allocator) -> Iterator[bool]:
    """Inside, no other thread closes it; False: it is closed already."""
    with _open_lock:
        yield not allocator.closed


class Allocator(Sleeps, Closes):
    """One allocator for one device; safe to use from any thread.

    Addresses are plain integers, multiples of 512. Memory belongs to the stream it was allocated
    on. Source: pool/include/ductile.h.

    Args:
        device: ordinal of the CUDA device.
        virtual: a `VirtualGPU` to allocate on instead. `driver="virtual"` makes a private one.
        **options: the keys of DUCTILE_CONF: limit_bytes="40G", sizes="2M", zero=True, ...
            Sizes take K, M, G, T. The environment variable DUCTILE_CONF is applied on top.

    Raises:
        InvalidArgument: an option, or DUCTILE_CONF; the message names the key.
        DeviceUnavailable: no driver, no such device, or one without virtual memory management.
        Unsupported: a combination that this build does not offer.
        DriverError, OutOfHostMemory, ProcessGone.

    Example:
        >>> with Allocator(driver="virtual") as allocator:
        ...     address = allocator.alloc(100 << 20)
        ...     allocator.free(address)
    """

    def __init__(
        self, device: int = 0, *, virtual: Optional[VirtualGPU] = None, **options: Unpack[Options]
    ) -> None:
        self._pointer: Optional[int] = None
        self._borrowed = False
        self._exported: weakref.WeakSet[Buffer] = weakref.WeakSet()
        self._callbacks: dict[str, dict[int, Any]] = {"oom": {}, "map": {}}
        self._device = device
        self._virtual = virtual
        wanted = make_options({"device": device, **options})
        if virtual is not None:
            set_option(wanted, "driver", "virtual")
            wanted.virtual_gpu = virtual.pointer
        wanted.log = _log.callback
        out = ctypes.c_void_p()
        _log.forget()
        status = lib.ductile_create(byref(out), byref(wanted))
        if status:
            why = lib.ductile_create_error().decode(errors="replace")
            raise error_from_status(status, why, alone=True)
        self._pointer = out.value
        if virtual is not None:
            virtual._adopt(self)
        with _made_lock:
            _made[next(_numbers)] = self
        for then in when_made:
            then()

    # ---- Life ----------------------------------------------------------------------------------

    @classmethod
    def borrow(cls, pointer: int, device: int = 0) -> Allocator:
        """An object for an allocator that other code made, and will destroy.

        Args:
            pointer: the `ductile_allocator *`. `close` only lets go of it.
            device: its ordinal.

        Raises:
            InvalidArgument: no pointer.
        """
        found = cls.__new__(cls)
        found._pointer = read_number(pointer, "pointer", UINT64[1:])
        found._borrowed = True
        found._exported = weakref.WeakSet()
        # The library calls them for as long as it lives, whichever thread drops this object.
        found._callbacks = _borrowed_callbacks.setdefault(pointer, {"oom": {}, "map": {}})
        found._device = device
        found._virtual = None
        return found

    @property
    def is_borrowed(self) -> bool:
        """Whether other code made it, and will destroy it."""
        return self._borrowed

    @property
    def pointer(self) -> int:
        """The `ductile_allocator *`, for code in C. Raises InvalidArgument once closed."""
        if self._pointer is None:
            raise invalid("the allocator is closed")
        return self._pointer

    @property
    def device(self) -> int:
        """The ordinal of the device."""
        return self._device

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._pointer is None

    @property
    def is_virtual(self) -> bool:
        """Whether the memory is a virtual GPU's, whose addresses nothing can read."""
        return self.options.get("driver") == "virtual"

    def close(self) -> None:
        """Waits for the streams that used the memory and gives all of it back.

        Live addresses become invalid. No other call may run at the same time. A second close does
        nothing.

        Raises:
            BufferError: tensors of other libraries are on its buffers, by DLPack; it stays open.
            DriverError, DeviceLost: something could not be given back; the rest is.
        """
        for buffer in tuple(self._exported):
            buffer._refuse_while_exported()
        with _open_lock:
            pointer, self._pointer = self._pointer, None
            if pointer is not None and not self._borrowed:
                self._destroy(pointer)

    def _destroy(self, pointer: int) -> None:
        try:
            _log.check(lib.ductile_destroy(pointer), "close")
        finally:
            if self._virtual is not None:
                self._virtual._let_go(pointer)

    def __del__(self) -> None:
        # At exit the driver frees what a process leaves, and others may still use the memory.
        if getattr(self, "_pointer", None) is None or self._borrowed or sys.is_finalizing():
            return
        warnings.warn(f"unclosed {self!r}", ResourceWarning, source=self, stacklevel=1)
        with contextlib.suppress(ProcessGone):
            self.close()

    def __repr__(self) -> str:
        if self._pointer is None:
            return "<ductile_gpu.Allocator closed>"
        place = "virtual GPU" if self.is_virtual else f"device {self._device}"
        return f"<ductile_gpu.Allocator on {place}>"

    # ---- Allocate and free ---------------------------------------------------------------------

    def alloc(self, size: Union[int, str], stream: StreamLike = None) -> int:
        """Allocates device memory for use on one stream.

        Args:
            size: bytes, or text such as "512M". 0 gives address 0.
            stream: an integer, None for the legacy default stream, or any library's stream object.

        Returns:
            The address, a multiple of 512. Contents are undefined unless the option zero is on.

        Raises:
            OutOfMemory: recoverable; a smaller request may succeed.
            OutOfAddresses, OutOfHostMemory, DriverError, DeviceLost, ProcessGone.
        """
        n_bytes = parse_bytes(size)
        out = ctypes.c_ulonglong()
        handle = stream_handle(stream)
        _log.forget()
        status = lib.ductile_alloc(self.pointer, n_bytes, handle, byref(out))
        if _interrupts:
            self._raise_interrupt(out.value)
        if status:
            what = f"no {n_bytes} bytes on stream {handle:#x}"
            raise error_from_status(status, what, (*why_asleep(self.pointer, status), *_log.take()))
        return out.value

    def _raise_interrupt(self, address: int) -> None:
        """What ended an out-of-memory callback of this thread, now that C is left behind."""
        stop = _interrupts.pop(threading.get_ident(), None)
        if stop is not None:
            self.free(address)
            raise stop

    def free(self, address: int, *streams: StreamLike) -> None:
        """Frees a block, ordered after the work issued to its stream and to recorded streams.

        Args:
            address: as `alloc` returned it; 0 does nothing.
            streams: others whose work uses the block: they are recorded first (`record_stream`).

        Raises:
            ForeignPointer, InteriorPointer, NotLive: nothing was freed.
            OutOfHostMemory: a stream could not be recorded; the block stays live.
            DeviceLost, ProcessGone.
        """
        address = read_address(address)
        if streams:
            _log.forget()
            handles = (ctypes.c_void_p * len(streams))(*map(stream_handle, streams))
            status = lib.ductile_free_ex(self.pointer, address, handles, len(streams), None)
        else:
            status = lib.ductile_free(self.pointer, address)
        _log.check(status, f"free of {address:#x}")

    def buffer(self, size: Union[int, str], stream: StreamLike = None) -> Buffer:
        """Allocates memory that is freed with the object that is returned. Errors: as `alloc`."""
        return Buffer(self, size, stream)

    def elastic(
        self, size: Union[int, str], unit: Union[int, str] = 0, stream: StreamLike = None
    ) -> Elastic:
        """Reserves addresses that stay, for memory that grows and shrinks in place. Arguments and
        errors: as `Elastic`."""
        return Elastic(self, size, unit, stream)

    # ---- Streams -------------------------------------------------------------------------------

    def record_stream(self, address: int, stream: StreamLike) -> None:
        """Tells that work on `stream` uses the block: after its free the memory waits for it.

        Args:
            address: the start of a live block.
            stream: another stream than the block's own, which needs no telling.

        Raises:
            ForeignPointer, InteriorPointer, NotLive, OutOfHostMemory.
        """
        address, handle = read_address(address), stream_handle(stream)
        _log.forget()
        status = lib.ductile_record_stream(self.pointer, address, handle)
        _log.check(status, f"record_stream of {address:#x}")

    def stream_done(self, stream: StreamLike) -> None:
        """Tells that a stream will be destroyed, so that the driver is not asked about it again.

        Raises:
            Capturing, DriverError: its progress could not be marked; it is let go all the same.
        """
        _log.forget()
        _log.check(lib.ductile_stream_done(self.pointer, stream_handle(stream)), "stream_done")

    # ---- Give back and limit -------------------------------------------------------------------

    def trim(self, keep: Union[int, str] = 0, pool: Optional[PoolId] = None) -> int:
        """Gives free memory back to the driver until at most `keep` bytes are held.

        Args:
            keep: bytes, or text such as "2G". 0 gives back all that is free.
            pool: of this pool alone; (0, 0): of the memory outside private pools. A pool of a
                captured graph gives nothing while it has references.

        Returns:
            Bytes given back.

        Raises:
            InvalidArgument: there is no such pool.
            Busy, DriverError, DeviceLost, ProcessGone.
        """
        released = ctypes.c_uint64()
        _log.forget()
        status = lib.ductile_trim(
            self.pointer, optional_pool(pool), parse_bytes(keep), byref(released)
        )
        _log.check(status, "trim" if pool is None else f"pool {pool}")
        return released.value

    def time_driver_calls(self) -> None:
        """From now on `driver_time_ns` and `driver_host_ns` of the statistics are kept.

        Each driver call then costs two readings of the clock more.
        """
        lib.ductile_time_driver_calls(self.pointer)

    def set_limit(self, limit: Union[int, str, None]) -> None:
        """Changes the cap on physical memory held.

        Memory above a lower cap goes back with the next `trim` or when requests need it.

        Args:
            limit: bytes, or text such as "40G", or "80%" of the device; None or 0 removes the cap.

        Raises:
            InvalidArgument, DeviceLost, ProcessGone.
        """
        self._set_limits("set_limit", limit_bytes=_limit(limit))

    def set_soft_limit(self, limit: Union[int, str, None]) -> None:
        """Changes the soft limit.

        A request that would create memory above it first tries all that disturbs no other request.

        Args:
            limit: bytes, or text such as "40G", or "90%" of the cap; None or 0 removes it.

        Raises:
            InvalidArgument, DeviceLost, ProcessGone.
        """
        self._set_limits("set_soft_limit", soft_limit_bytes=_limit(limit))

    def _set_limits(self, call: str, **changed: int) -> None:
        kept = {"limit_bytes": _KEEP, "soft_limit_bytes": _KEEP}
        limits = sized(_abi.ductile_limits, **{**kept, **changed})
        _log.check(lib.ductile_set_limits(self.pointer, byref(limits)), call)

    def limits(self) -> Limits:
        """The limits in effect, in bytes."""
        found = sized(_abi.ductile_limits)
        _log.check(lib.ductile_get_limits(self.pointer, byref(found)), "limits")
        return Limits(*(getattr(found, name) for name in Limits._fields))

    # ---- Pressure ------------------------------------------------------------------------------

    def add_oom_callback(self, ask: Callable[[int], int], priority: int = 0) -> int:
        """Registers a function that is asked for memory before a request is refused.

        Args:
            ask: takes the bytes that are missing, and returns the bytes that it gave back, to this
                allocator or to the device; 0 for none. It runs in the requesting thread, which may
                be any, and must not wait for another one. An exception in it is logged and counts
                as 0; KeyboardInterrupt and SystemExit end `alloc`, which raises them. (A request of
                C code cannot raise: they are printed then.)
            priority: the smaller is asked first.

        Returns:
            A number for `remove_oom_callback`.
        """
        check_callable(ask, "ask")

        def answer(_user: Any, _allocator: Any, missing: int, _stream: Any) -> int:
            try:
                if threading.get_ident() in _interrupts:
                    return 0
                return min(max(0, int(ask(missing))), UINT64[-1])
            except Exception:
                _log.logger.exception("an out-of-memory callback failed")
            except BaseException as stop:
                if sys._getframe(1).f_code is not Allocator.alloc.__code__:
                    raise
                _interrupts[threading.get_ident()] = stop
            return 0

        return self._register("oom", _abi.ductile_oom_fn(answer), priority)

    def remove_oom_callback(self, number: int) -> None:
        """Unregisters a callback. Waits for threads that are inside of it.

        Raises:
            InvalidArgument: no such callback.
        """
        self._unregister("oom", number)

    # ---- Registrations -------------------------------------------------------------------------

    def _register(self, kind: str, callback: Any, priority: int) -> int:
        number = ctypes.c_uint64()
        add = getattr(lib, f"ductile_add_{kind}_callback")
        order = read_number(priority, "priority", INT32)
        status = add(self.pointer, callback, None, order, byref(number))
        _log.check(status, f"add_{kind}_callback")
        self._callbacks[kind][number.value] = callback
        return number.value

    def _unregister(self, kind: str, number: int) -> None:
        remove = getattr(lib, f"ductile_remove_{kind}_callback")
        status = remove(self.pointer, read_number(number, "callback"))
        _log.check(status, f"callback {number}")
        self._callbacks[kind].pop(number, None)

    def add_map_callback(self, tell: Callable[[bool, int, int], None], priority: int = 0) -> int:
        """Registers a function that is told where memory is mapped, and before it leaves.

        Args:
            tell: takes whether memory was mapped (True) or is about to leave (False), the address
                and the bytes. It runs in the thread whose call maps or unmaps, which may be any,
                and must not ask for memory. What it raises is logged.
            priority: the smaller is told first that memory was mapped, and last that it leaves.

        Returns:
            A number for `remove_map_callback`.
        """
        check_callable(tell, "tell")

        def pass_on(_user: Any, _allocator: Any, event: Any) -> None:
            try:
                e = ctypes.cast(event, ctypes.POINTER(_abi.ductile_map_event)).contents
                is_mapped = e.change == _abi.MapChange.MAPPED
                tell(is_mapped, int(e.address), int(e.size))
            except Exception:
                _log.logger.exception("a map callback failed")

        return self._register("map", _abi.ductile_map_fn(pass_on), priority)

    def remove_map_callback(self, number: int) -> None:
        """Unregisters a callback. Waits for threads that are inside of it.

        Raises:
            InvalidArgument: no such callback.
        """
        self._unregister("map", number)

    def oom_report(self) -> Optional[dict[str, Any]]:
        """Why this thread's latest request was refused: numbers in bytes by name, and "advice".

        None when this allocator has refused this thread nothing.
        """
        found = sized(_abi.ductile_oom_report)
        _log.check(lib.ductile_get_oom_report(self.pointer, byref(found)), "oom_report")
        if found.number == 0:
            return None
        text = formatted(lib.ductile_oom_report_format, byref(found), _abi.ReportFormat.JSON)
        report: dict[str, Any] = json.loads(text)
        return report

    # ---- Spilling ------------------------------------------------------------------------------

    @contextlib.contextmanager
    def no_spill(self) -> Iterator[None]:
        """Inside, no request of any thread gets memory of the host (the option `spill_bytes`).

        For what probes for out-of-memory, such as a search for the largest batch.
        """
        _log.check(lib.ductile_spill_forbid(self.pointer), "no_spill")
        try:
            yield
        finally:
            _log.check(lib.ductile_spill_allow(self.pointer), "no_spill")

    # ---- Pools ---------------------------------------------------------------------------------

    @contextlib.contextmanager
    def pool(
        self,
        pool: PoolId,
        takes: Optional[Callable[[int], bool]] = None,
        *,
        kind: Optional[PoolKind] = None,
    ) -> Iterator[PoolId]:
        """Inside, requests are served from a private pool: for captured graphs, or to keep apart.

        The pool has one reference more afterwards; give it back with `release_pool`.

        Args:
            pool: two numbers that name it, not (0, 0).
            takes: says for a stream's number whether its requests belong to the pool, in every
                thread; must not call this allocator. None: requests of this thread.
            kind: "capture": its free memory stays its own, for captured graphs; "plain": only kept
                apart, so that its free memory serves others before one of them is refused. It is a
                capture pool from its first request of a capturing stream on. None: as it is, a new
                one "capture".

        Raises:
            InvalidArgument, OutOfHostMemory.
            Busy: the pool is open, or holds memory and cannot become plain.
        """
        named = pool_id(pool)
        number = kind_number(kind)
        chosen: Any = None
        if takes is not None:
            check_callable(takes, "takes")
            wanted = takes

            def belongs(_user: Any, stream: Optional[int]) -> int:
                return int(bool(wanted(stream or 0)))

            chosen = _abi.ductile_pool_filter(belongs)
        with self._retained(pool, number):
            _log.check(lib.ductile_pool_begin(self.pointer, named, chosen, None), f"pool {pool}")
        try:
            yield pool
        finally:
            _log.check(lib.ductile_pool_end(self.pointer, named), f"pool {pool}")

    @contextlib.contextmanager
    def _retained(self, pool: PoolId, kind: Optional[int]) -> Iterator[None]:
        """Inside there is a pool of this kind; None: nothing is done."""
        if kind is None:
            yield
            return
        self.retain_pool(pool)
        try:
            status = lib.ductile_pool_set_kind(self.pointer, pool_id(pool), kind)
            _log.check(status, f"kind of pool {pool}")
            yield
        finally:
            self.release_pool(pool)

    def release_pool(self, pool: PoolId) -> None:
        """Drops a reference: without any, the pool's free memory serves others.

        Raises:
            InvalidArgument: no reference is held.
        """
        named = pool_id(pool)
        _log.check(lib.ductile_pool_release(self.pointer, named), f"pool {pool}")

    def retain_pool(self, pool: PoolId) -> None:
        """Adds a reference to a private pool, and makes it if it does not exist.

        Give the reference back with `release_pool`.

        Raises:
            InvalidArgument, OutOfHostMemory.
        """
        _log.check(lib.ductile_pool_retain(self.pointer, pool_id(pool)), f"pool {pool}")

    # ---- Inspection ----------------------------------------------------------------------------

    @property
    def options(self) -> dict[str, str]:
        """The options in effect, after defaults and DUCTILE_CONF, as text by key."""
        found = make_options({})
        lib.ductile_get_options(self.pointer, byref(found))
        return format_options(found)

    def stats(self, pool: Optional[PoolId] = None) -> Stats:
        """All statistics: bytes, counts and nanoseconds, all as of one moment but the driver's.

        Args:
            pool: of this pool alone; (0, 0): of the memory outside private pools. Peaks, calls and
                handles are 0 then. Linear in its blocks.

        Raises:
            InvalidArgument: there is no such pool.
        """
        found = sized(_abi.ductile_stats)
        status = lib.ductile_get_stats(self.pointer, optional_pool(pool), byref(found))
        _log.check(status, "stats" if pool is None else f"pool {pool}")
        return Stats(*(getattr(found, name) for name in Stats._fields))

    def reset_peaks(self) -> None:
        """Sets every *_peak_* statistic to its current value."""
        lib.ductile_reset_peaks(self.pointer)

    def query(self, address: int) -> Block:
        """Describes the live block that starts at `address`, with the free bytes around it.

        Raises:
            ForeignPointer, InteriorPointer, NotLive.
        """
        found = sized(_abi.ductile_block_info)
        address = read_address(address)
        status = lib.ductile_query_block(self.pointer, address, byref(found))
        _log.check(status, f"query of {address:#x}")
        return block_from_info(found)

    def plan_eviction(
        self, size: Union[int, str], costs: Mapping[int, int], stream: StreamLike = None
    ) -> Eviction:
        """Finds the live blocks that make room for a request at least cost. Frees nothing.

        Room is memory in one piece: free blocks and those to be freed, side by side. Not counted,
        so that less may be enough: memory that is still pending, gaps, other streams' memory.
        Private pools make no room, nor do elastic ranges, nor ranges that one block has for itself.
        No driver call; linear in the blocks of the allocator, as `blocks` is.

        Args:
            size: bytes of the request, or text such as "512M".
            costs: of each live block that may go, by its address; 0 or more, in any unit.
            stream: of the request.

        Raises:
            OutOfMemory: freeing all of them makes too little room; the message says how much.
            ForeignPointer, InteriorPointer, NotLive: of one of the addresses.
        """
        need = parse_bytes(size)
        prices = {read_address(at): read_number(cost, "cost") for at, cost in costs.items()}
        read_number(sum(prices.values()), "the sum of costs")
        if need == 0:
            raise invalid("a hole of 0 bytes")
        segments = self.snapshot()["segments"]
        self._expect_live(prices, blocks_in(segments))
        own, outside = stream_handle(stream), (0, 0)
        for_requests = (of for of in segments if "elastic" not in of["blocks"][0])
        blocks = blocks_in(for_requests)
        of_stream = (block for block in blocks if block.stream == own and block.pool == outside)
        found, largest = cheapest(of_stream, prices, need)
        if found is None:
            what = f"a hole of {size} bytes: the largest without these blocks has {largest:,}"
            raise error_from_status(_abi.Status.ERR_OUT_OF_MEMORY, what)
        return found

    def _expect_live(self, addresses: Iterable[int], blocks: list[Block]) -> None:
        """Raises for the first that is no block of these, by its kind."""
        live = {block.address for block in blocks if block.state in _HAVE_OWNERS}
        for address in addresses:
            if address not in live and self.query(address).state not in _HAVE_OWNERS:
                status = _abi.Status.ERR_FOREIGN_POINTER
                raise error_from_status(status, f"block {address:#x} is another process's")

    def blocks(self) -> list[Block]:
        """Every block of every range, by ascending address, as `snapshot` found them."""
        return blocks_in(self.snapshot()["segments"])

    def snapshot(self) -> dict[str, Any]:
        """The whole state: version, options, statistics, segments with their blocks."""
        text = written(
            lambda writer: lib.ductile_snapshot_json(self.pointer, writer, None), "snapshot"
        )
        state: dict[str, Any] = json.loads(text)
        return state

    def check(self) -> None:
        """Recounts every invariant of the allocator.

        Raises:
            CorruptHeap: one does not hold; `details` has its number and both values.
        """
        report = ctypes.create_string_buffer(1024)
        status = lib.ductile_check(self.pointer, report, sizeof(report))
        if status == _abi.Status.ERR_CORRUPT:
            raise CorruptHeap(status, "check", (report.value.decode("utf-8", "replace"),))
        _log.check(status, "check")
