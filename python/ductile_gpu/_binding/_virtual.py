# SPDX-License-Identifier: Apache-2.0
"""A virtual GPU: a deterministic model of a device, for tests without hardware."""

from __future__ import annotations

import contextlib
import ctypes
import sys
import weakref
from collections.abc import Iterable, Iterator
from ctypes import byref, sizeof
from typing import TYPE_CHECKING, NamedTuple, Optional, Union

from ductile_gpu._binding import _abi
from ductile_gpu._binding._abi import CaptureMode, Options, Schedule
from ductile_gpu._binding._core import Allocator
from ductile_gpu._binding._errors import check, invalid
from ductile_gpu._binding._native import lib, sized, written
from ductile_gpu._binding._objects import (
    INT32,
    Closes,
    parse_bytes,
    read_address,
    read_number,
    read_text,
)
from ductile_gpu._binding._streams import StreamLike, stream_handle

if TYPE_CHECKING:
    from typing_extensions import Unpack

    Span = tuple[int, int]

_BYTE = range(256)


class VirtualState(NamedTuple):
    """What a virtual GPU holds and has seen."""

    used_bytes: int
    """physical memory, mapped or not"""
    used_peak_bytes: int
    handles: int
    mappings: int
    reservations: int
    reserved_address_bytes: int
    streams: int
    events: int
    allocations: int
    """of cuMemAlloc, alive"""
    violations: int
    """mistakes that hardware lets pass silently"""
    calls: int
    """driver calls"""
    time_ns: int
    """virtual time: every driver call costs what it costs on an H200"""
    poisoned: int
    """0, or the sticky error code"""


class VirtualGraph(Closes):
    """The work of one capture on a virtual GPU.

    It ends with `close`, with the object, at the end of a `with`, or with its GPU's `close`.
    """

    def __init__(self, gpu: VirtualGPU) -> None:
        self.pointer: Optional[int] = None
        self._gpu = gpu

    def _begin(self, pointer: Optional[int]) -> None:
        self.pointer = pointer
        if pointer is not None:
            self._gpu._hold(pointer)

    def launch(self, stream: StreamLike = None) -> None:
        """Issues the graph's work, with the addresses of the capture.

        Raises:
            InvalidArgument: the graph is closed, or its capture has not ended.
        """
        status = lib.ductile_virtual_graph_launch(self.pointer, stream_handle(stream))
        check(status, "launch of a graph")

    def rest(self) -> None:
        """Tells the device that the graph is not launched until `wake`: its memory may leave.

        Call it right before the sleep of that memory; a launch meanwhile is a violation.
        """
        lib.ductile_virtual_graph_rest(self.pointer, 1)

    def wake(self) -> None:
        """Tells that it may be launched again. Call it right after the wake."""
        lib.ductile_virtual_graph_rest(self.pointer, 0)

    def close(self) -> None:
        """Destroys the graph; launches under way complete. A second close does nothing."""
        pointer, self.pointer = self.pointer, None
        if pointer is not None:
            lib.ductile_virtual_graph_destroy(pointer)
            self._gpu._let_go(pointer)

    def __del__(self) -> None:
        if getattr(self, "pointer", None) is not None and not sys.is_finalizing():
            self.close()


class VirtualGPU(Closes):
    """A device's memory, streams and events in the computer's own memory.

    Work on a stream completes when the schedule says so. Addresses cannot be read by the host.
    Source: pool/include/ductile_virtual.h.

    Args:
        capacity: physical memory in bytes, or text such as "8G"; 0 is 139 GiB, an H200's.
        schedule: "eager" (at once), "lagging" (`lag` advances later), "lazy" (when the host waits)
            or "random" (seeded).
        lag: for "lagging".
        seed: for "random"; also where reservations are placed, when not 0.
        log_calls: how many of the latest driver calls to keep for `log`.
        detect: misuse of memory is counted and described (`last_violation`): 0 none, 1 what an
            allocator can cause (memory reused, unmapped or moved too early), 2 also what a program
            does to its own blocks.

    Raises:
        InvalidArgument, OutOfHostMemory.
    """

    def __init__(
        self,
        capacity: Union[int, str] = 0,
        *,
        schedule: Union[str, Schedule] = Schedule.EAGER,
        lag: int = 0,
        seed: int = 0,
        log_calls: int = 0,
        detect: int = 0,
    ) -> None:
        self._pointer: Optional[int] = None
        self._allocators: weakref.WeakSet[Allocator] = weakref.WeakSet()
        self._held_by: set[int] = set()  # allocators and graphs that are open, by their pointers
        self._ends = False
        self._graphs: weakref.WeakSet[VirtualGraph] = weakref.WeakSet()
        options = _abi.ductile_virtual_options()
        lib.ductile_virtual_options_init(byref(options))
        options.capacity_bytes = parse_bytes(capacity)
        options.schedule = _schedule(schedule)
        options.lag = read_number(lag, "lag")
        options.seed = read_number(seed, "seed")
        options.log_calls = read_number(log_calls, "log_calls")
        options.detect = read_number(detect, "detect", INT32)
        out = ctypes.c_void_p()
        check(lib.ductile_virtual_create(byref(out), byref(options)), "no virtual GPU")
        self._pointer = out.value

    # ---- Life ----------------------------------------------------------------------------------

    @property
    def pointer(self) -> int:
        """The `ductile_virtual_gpu *`. Raises InvalidArgument once closed."""
        if self._pointer is None:
            raise invalid("the virtual GPU is closed")
        return self._pointer

    def allocator(self, **options: Unpack[Options]) -> Allocator:
        """An `Allocator` on this GPU. Options and errors: as there."""
        return Allocator(0, virtual=self, **options)

    def _adopt(self, allocator: Allocator) -> None:
        self._allocators.add(allocator)
        self._hold(allocator.pointer)

    def _hold(self, pointer: int) -> None:
        self._held_by.add(pointer)

    def _let_go(self, pointer: int) -> None:
        self._held_by.discard(pointer)
        if self._ends:
            self._destroy_when_unused()

    def _destroy_when_unused(self) -> None:
        pointer = self._pointer
        if pointer is not None and not self._held_by:
            self._pointer = None
            lib.ductile_virtual_destroy(pointer)

    def close(self) -> None:
        """Closes the graphs and the allocators on this GPU, then the GPU. A second close does
        nothing."""
        for graph in list(self._graphs):
            graph.close()
        for allocator in list(self._allocators):
            allocator.close()
        self._ends = True
        self._destroy_when_unused()

    def __del__(self) -> None:
        # What is on it keeps it alive. A cycle of them ends in any order, and without the weak
        # references that `close` goes by: the last of them destroys it.
        if getattr(self, "_pointer", None) is not None and not sys.is_finalizing():
            self._ends = True
            self._destroy_when_unused()

    # ---- Streams and work ----------------------------------------------------------------------

    def stream(self, blocking: bool = False) -> int:
        """Makes a stream. Release it with `destroy_stream`.

        Args:
            blocking: the default stream waits for its work, and it for the default stream's.
        """
        out = ctypes.c_void_p()
        make = (
            lib.ductile_virtual_stream_create_blocking
            if blocking
            else lib.ductile_virtual_stream_create
        )
        check(make(self.pointer, byref(out)), "no stream")
        return out.value or 0

    def destroy_stream(self, stream: StreamLike) -> None:
        """Destroys a stream; work already issued still completes."""
        handle = stream_handle(stream)
        check(lib.ductile_virtual_stream_destroy(self.pointer, handle), "destroy_stream")

    def launch(
        self,
        stream: StreamLike = None,
        *,
        reads: Iterable[Span] = (),
        writes: Iterable[Span] = (),
    ) -> None:
        """Issues a "kernel": work that reads and writes spans when it executes.

        Args:
            stream: where.
            reads, writes: pairs (address, bytes). A span that is not mapped when the work runs
                poisons the device, as on hardware.
        """
        uses = [_use(span, 0) for span in reads] + [_use(span, 1) for span in writes]
        spans = (_abi.ductile_virtual_use * len(uses))(*uses)
        handle = stream_handle(stream)
        check(lib.ductile_virtual_launch(self.pointer, handle, spans, len(uses)), "launch")

    def wait(self, stream: StreamLike, on: StreamLike) -> None:
        """Makes later work of `stream` wait for all work issued to `on` so far."""
        first, second = stream_handle(stream), stream_handle(on)
        check(lib.ductile_virtual_stream_wait(self.pointer, first, second), "wait")

    def sync(self, stream: StreamLike = None) -> None:
        """Waits for a stream: its work, and what that waits for, completes."""
        check(lib.ductile_virtual_stream_sync(self.pointer, stream_handle(stream)), "sync")

    def advance(self, steps: int = 1) -> None:
        """Lets units of work time pass (the unit of `lag`)."""
        lib.ductile_virtual_advance(self.pointer, read_number(steps, "steps"))

    def set_schedule(self, schedule: Union[str, Schedule], lag: int = 0) -> None:
        """Changes when work issued from now on completes."""
        wanted = _schedule(schedule)
        lib.ductile_virtual_set_schedule(self.pointer, wanted, read_number(lag, "lag"))

    @contextlib.contextmanager
    def capture(
        self, stream: StreamLike, mode: CaptureMode = CaptureMode.GLOBAL
    ) -> Iterator[VirtualGraph]:
        """Inside, the stream's work is collected into a graph, which can be launched afterwards.

        Of a body that raises there is no graph.

        Args:
            stream: not the default stream.
            mode: what other calls may do meanwhile, as CUDA defines it.

        Raises:
            Capturing: the capture was broken, or another stream has not joined.
        """
        handle = stream_handle(stream)
        check(lib.ductile_virtual_capture_begin(self.pointer, handle, mode), "capture")
        graph = VirtualGraph(self)
        self._graphs.add(graph)
        try:
            yield graph
        except BaseException:
            lib.ductile_virtual_capture_end(self.pointer, handle, None)
            raise
        out = ctypes.c_void_p()
        status = lib.ductile_virtual_capture_end(self.pointer, handle, byref(out))
        graph._begin(out.value)
        check(status, "capture")

    # ---- Faults --------------------------------------------------------------------------------

    def inject(
        self,
        call: Optional[str] = None,
        *,
        nth: int = 1,
        code: int = 2,
        persistent: bool = False,
        effect: int = 0,
    ) -> None:
        """Plans one failing driver call; it replaces the one planned before.

        Args:
            call: its name ("map", "phys_create", ...); None: any.
            nth: the nth such call from now, counted from 1.
            code: the CUresult it returns; 2 is out of memory.
            persistent: every later one fails too.
            effect: 0: nothing is done; 1: done, then the error; 2: half done.

        Raises:
            InvalidArgument: no such call.
        """
        fault = sized(_abi.ductile_virtual_fault)
        fault.call = None if call is None else read_text(call, "a driver call")
        fault.nth = read_number(nth, "nth")
        fault.code = read_number(code, "code", INT32)
        fault.effect = read_number(effect, "effect", INT32)
        fault.persistent = int(persistent)
        check(lib.ductile_virtual_inject(self.pointer, byref(fault)), f"fault in {call}")

    def clear_fault(self) -> None:
        """Takes the planned fault back."""
        check(lib.ductile_virtual_inject(self.pointer, None), "clear_fault")

    @property
    def faults_fired(self) -> int:
        """How often the planned fault has fired."""
        return int(lib.ductile_virtual_faults_fired(self.pointer))

    def set_external(self, size: Union[int, str]) -> None:
        """Physical memory that "another process" holds. Raises OutOfMemory beyond what is free."""
        wanted = parse_bytes(size)
        check(lib.ductile_virtual_set_external_bytes(self.pointer, wanted), "set_external")

    # ---- What it saw ---------------------------------------------------------------------------

    def state(self) -> VirtualState:
        """What the device holds and has seen."""
        found = sized(_abi.ductile_virtual_state)
        check(lib.ductile_virtual_get_state(self.pointer, byref(found)), "state")
        return VirtualState(*(getattr(found, name) for name in VirtualState._fields))

    def count(self, call: str) -> int:
        """How often a driver call was made. Raises InvalidArgument: no such call."""
        found = int(lib.ductile_virtual_count(self.pointer, read_text(call, "a driver call")))
        if found == (1 << 64) - 1:
            raise invalid(f"no driver call '{call}'")
        return found

    @property
    def last_violation(self) -> str:
        """One sentence about the latest mistake that hardware would let pass; empty: none."""
        text = ctypes.create_string_buffer(512)
        lib.ductile_virtual_last_violation(self.pointer, text, sizeof(text))
        return text.value.decode("utf-8", "replace")

    def log(self) -> list[str]:
        """The kept driver calls, oldest first: "NUMBER NAME ADDRESS SIZE CODE"."""
        text = written(
            lambda writer: lib.ductile_virtual_write_log(self.pointer, writer, None), "log"
        )
        return text.decode(errors="replace").split("\n")[:-1]

    # ---- Contents ------------------------------------------------------------------------------

    def upload(self, address: int, data: bytes, stream: StreamLike = None) -> None:
        """Writes bytes, in stream order. Raises DriverError where the span is not mapped."""
        at, handle = read_address(address), stream_handle(stream)
        status = lib.ductile_virtual_upload(self.pointer, at, data, len(data), handle)
        check(status, f"upload to {address:#x}")

    def fill(self, address: int, value: int, size: int, stream: StreamLike = None) -> None:
        """Fills `size` bytes with `value` (0 to 255), in stream order."""
        at, byte = read_address(address), read_number(value, "value", _BYTE)
        handle = stream_handle(stream)
        status = lib.ductile_virtual_fill(self.pointer, at, byte, parse_bytes(size), handle)
        check(status, f"fill of {address:#x}")

    def read_back(self, address: int, size: int, stream: StreamLike = None) -> bytes:
        """Waits for the stream and reads `size` bytes."""
        at, length = read_address(address), parse_bytes(size)
        room = ctypes.create_string_buffer(max(length, 1))
        handle = stream_handle(stream)
        status = lib.ductile_virtual_read_back(self.pointer, room, at, length, handle)
        check(status, f"read of {address:#x}")
        return room.raw[:length]


def _use(span: Span, is_write: int) -> _abi.ductile_virtual_use:
    address, size = span
    return _abi.ductile_virtual_use(read_address(address), parse_bytes(size), is_write)


def _schedule(schedule: Union[str, Schedule]) -> Schedule:
    if isinstance(schedule, Schedule):
        return schedule
    try:
        return Schedule[schedule.upper()]
    except (AttributeError, KeyError):
        known = ", ".join(member.name.lower() for member in Schedule)
        raise invalid(f"schedule is one of {known}, not {schedule!r}") from None
