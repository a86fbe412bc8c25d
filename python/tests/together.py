# SPDX-License-Identifier: Apache-2.0
"""Libraries that pass memory to one another at the edge of a capped device, in one process.

    python together.py [--libraries torch,cupy,numba] [--rounds 1000] [--limit 4G] [--fill 0.9]

All allocate from one allocator with `--limit` as its cap, and `--fill` of that is in use all the
time. In each round one library's array is read and written by another one, without a copy, on
that one's stream, then by its owner again; then it is dropped without a wait on the host, and a
third hand allocates what has become free. Whose turn it is to hold most of the memory changes, so
that the libraries' own peaks add up to more than the cap: that is only possible if what one frees
serves the others. Every array is checked on the device for what was last written to it.

Needs a GPU, CuPy (which also orders the streams), and the libraries named. Prints one line of
figures; ends with status 1 if an array was not as it should be or memory was not passed.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from typing import Any, NamedTuple, Optional, Protocol

MIB = 1 << 20


class Library(Protocol):
    """One library: its arrays of 32-bit integers, and one stream on which it works."""

    name: str
    stream: int

    def make(self, size: int) -> Any:
        """An array of `size` bytes."""

    def show(self, array: Any, size: int) -> Any:
        """What another library's `see` takes: the same memory."""

    def see(self, shown: Any) -> Any:
        """An array of this library over memory of another one, without a copy."""

    def write(self, array: Any, value: int) -> None:
        """Fills the array, on the library's stream."""

    def check(self, array: Any, value: int) -> None:
        """Counts the elements that are not `value`, on the library's stream."""

    def mistakes(self) -> int:
        """The elements counted so far. Waits on the host."""


class Streams(Protocol):
    """What holds between the libraries."""

    def wait(self, stream: int, on: int) -> None:
        """Later work of `stream` waits for the work issued to `on` so far."""

    def record(self, array: Any, stream: int) -> None:
        """The array's memory waits for `stream` when it is freed."""


class Held(NamedTuple):
    """One array: its owner's position, and what is in it."""

    owner: int
    array: Any
    size: int
    value: int


class Exchange:
    """Arrays of several libraries that fill `target` bytes, and their way from hand to hand."""

    def __init__(
        self, libraries: list[Library], streams: Streams, target: int, seed: int = 1
    ) -> None:
        self.libraries = libraries
        self.streams = streams
        self.target = target
        self.random = random.Random(seed)
        self.held: list[Held] = []
        self.live: Counter[int] = Counter()
        self.peaks: Counter[int] = Counter()
        self.n_passed = 0
        self.bytes_passed = 0
        self.value = 0

    def fill(self) -> None:
        """Allocates up to the target: about 20 arrays of uneven sizes."""
        while self.missing > self.target // 16:
            size = self.random.randrange(self.target // 32, self.target // 16) // 4 * 4
            self._take(self.random.randrange(len(self.libraries)), size)
        self._take(0, self.missing)

    @property
    def missing(self) -> int:
        """Bytes below the target."""
        return self.target - sum(self.live.values())

    def round(self, favourite: int) -> None:
        """Passes one or two arrays' memory to other libraries, `favourite` if it can be."""
        gifts = self._choose(favourite)
        owners = {self.held[at].owner for at in gifts}
        others = [at for at in range(len(self.libraries)) if at not in owners]
        if not others:
            gifts, owners = gifts[:1], {self.held[gifts[0]].owner}
            others = [at for at in range(len(self.libraries)) if at not in owners]
        taker = favourite if favourite in others else self.random.choice(others)
        for at in sorted(gifts, reverse=True):
            self._give(self.held.pop(at))
        freed = self.missing
        first = freed
        # Few arrays would be large ones, for which nothing has to be found.
        if freed > self.target // 8 or (len(self.held) < 24 and self.random.random() < 0.6):
            first = self.random.randrange(freed // 4, 3 * freed // 4) // 4 * 4
        self._take(taker, first)
        if freed > first:
            self._take(taker, freed - first)
        self.n_passed += 1
        self.bytes_passed += freed

    def clear(self) -> None:
        """Checks and drops all arrays."""
        while self.held:
            self._give(self.held.pop())

    def _choose(self, favourite: int) -> list[int]:
        """Positions of one or two arrays, of others than the favourite where there are any."""
        foreign = [at for at, one in enumerate(self.held) if one.owner != favourite]
        # Now and then the favourite gives too: what it has is not to rest.
        pool = foreign if foreign and self.random.random() < 0.9 else range(len(self.held))
        n_given = 2 if len(self.held) > 12 and len(pool) > 1 and self.random.random() < 0.5 else 1
        return self.random.sample(list(pool), n_given)

    def _next_value(self) -> int:
        self.value = self.value % 100 + 1
        return self.value

    def _take(self, owner: int, size: int) -> None:
        library = self.libraries[owner]
        value = self._next_value()
        array = library.make(size)
        library.write(array, value)
        self.held.append(Held(owner, array, size, value))
        self.live[owner] += size
        self.peaks[owner] = max(self.peaks[owner], self.live[owner])

    def _give(self, one: Held) -> None:
        """Lets another library read and write the array, its owner look at it, and drops it."""
        owner = self.libraries[one.owner]
        guest_at = self.random.choice([at for at in range(len(self.libraries)) if at != one.owner])
        guest = self.libraries[guest_at]
        self.streams.wait(guest.stream, owner.stream)
        seen = guest.see(owner.show(one.array, one.size))
        guest.check(seen, one.value)
        value = self._next_value()
        guest.write(seen, value)
        self.streams.wait(owner.stream, guest.stream)
        owner.check(one.array, value)
        # A last look without a wait: the memory itself has to.
        guest.check(seen, value)
        self.streams.record(one.array, guest.stream)
        self.live[one.owner] -= one.size


# ---- The libraries, on hardware ----------------------------------------------------------------


class _Shown:
    """An array's memory for another library. It names no stream: `Streams.wait` does the waiting,
    and a consumer that saw one would let the host wait."""

    def __init__(self, owner: Any, address: int, size: int) -> None:
        self.owner = owner
        self.__cuda_array_interface__ = {
            "shape": (size // 4,),
            "typestr": "<i4",
            "data": (address, False),
            "strides": None,
            "version": 2,
        }


def _address(array: Any) -> int:
    return int(array.__cuda_array_interface__["data"][0])


class _Torch:
    name = "torch"

    def __init__(self) -> None:
        import torch

        self.torch = torch
        self._stream = torch.cuda.Stream()
        self.stream = int(self._stream.cuda_stream)
        with torch.cuda.stream(self._stream):
            self._wrong = torch.zeros(1, dtype=torch.int64, device="cuda")

    def make(self, size: int) -> Any:
        with self.torch.cuda.stream(self._stream):
            return self.torch.empty(size // 4, dtype=self.torch.int32, device="cuda")

    def show(self, array: Any, size: int) -> Any:
        return _Shown(array, int(array.data_ptr()), size)

    def see(self, shown: Any) -> Any:
        seen = self.torch.as_tensor(shown, device="cuda")
        assert seen.data_ptr() == _address(shown), "PyTorch made a copy"
        return seen

    def write(self, array: Any, value: int) -> None:
        with self.torch.cuda.stream(self._stream):
            array.fill_(value)

    def check(self, array: Any, value: int) -> None:
        with self.torch.cuda.stream(self._stream):
            # A sum would turn the comparison into numbers of 8 bytes: there is no room for that.
            self._wrong += (array != value).any()

    def mistakes(self) -> int:
        self._stream.synchronize()
        return int(self._wrong.item())


class _CuPy:
    name = "cupy"

    def __init__(self) -> None:
        import cupy

        self.cupy = cupy
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self.stream = int(self._stream.ptr)
        with self._stream:
            self._wrong = cupy.zeros((), dtype=cupy.int64)

    def make(self, size: int) -> Any:
        with self._stream:
            return self.cupy.empty(size // 4, dtype=self.cupy.int32)

    def show(self, array: Any, size: int) -> Any:
        return _Shown(array, int(array.data.ptr), size)

    def see(self, shown: Any) -> Any:
        with self._stream:
            seen = self.cupy.asarray(shown)
        assert int(seen.data.ptr) == _address(shown), "CuPy made a copy"
        return seen

    def write(self, array: Any, value: int) -> None:
        with self._stream:
            array.fill(value)

    def check(self, array: Any, value: int) -> None:
        with self._stream:
            self._wrong += self.cupy.count_nonzero(array != value)

    def mistakes(self) -> int:
        self._stream.synchronize()
        with self._stream:
            return int(self._wrong)


class _RMM(_CuPy):
    """RMM has memory and no kernels: CuPy's work on its buffers, on a stream of their own."""

    name = "rmm"

    def __init__(self) -> None:
        super().__init__()
        import rmm
        from rmm.pylibrmm.stream import Stream

        self.rmm = rmm
        self._rmm_stream = Stream(self._stream)

    def make(self, size: int) -> Any:
        return self.rmm.DeviceBuffer(size=size, stream=self._rmm_stream)

    def show(self, array: Any, size: int) -> Any:
        return _Shown(array, int(array.ptr), size)

    def write(self, array: Any, value: int) -> None:
        super().write(self._as_array(array), value)

    def check(self, array: Any, value: int) -> None:
        super().check(self._as_array(array), value)

    def _as_array(self, array: Any) -> Any:
        own = isinstance(array, self.rmm.DeviceBuffer)
        return self.see(self.show(array, array.size)) if own else array


class _Numba:
    name = "numba"

    def __init__(self) -> None:
        import numpy
        from numba import cuda

        from ductile_gpu._binding._streams import stream_handle

        self.cuda = cuda
        self.numpy = numpy
        self._stream = cuda.stream()
        self.stream = stream_handle(self._stream)
        self._write, self._check = numba_kernels(cuda)
        self._wrong = cuda.to_device(numpy.zeros(1, dtype=numpy.int64), stream=self._stream)
        self._stream.synchronize()

    def make(self, size: int) -> Any:
        return self.cuda.device_array(size // 4, dtype=self.numpy.int32, stream=self._stream)

    def show(self, array: Any, size: int) -> Any:
        return _Shown(array, _address(array), size)

    def see(self, shown: Any) -> Any:
        seen = self.cuda.as_cuda_array(shown, sync=False)
        assert _address(seen) == _address(shown), "Numba made a copy"
        return seen

    def write(self, array: Any, value: int) -> None:
        self._write[1024, 256, self._stream](array, self.numpy.int32(value))

    def check(self, array: Any, value: int) -> None:
        self._check[1024, 256, self._stream](array, self.numpy.int32(value), self._wrong)

    def mistakes(self) -> int:
        wrong = self._wrong.copy_to_host(stream=self._stream)
        self._stream.synchronize()
        return int(wrong[0])


def numba_kernels(cuda: Any) -> tuple[Any, Any]:
    """What fills an array, and what counts the elements of one that differ from a value."""

    @cuda.jit
    def write(array, value):  # type: ignore[no-untyped-def]
        for i in range(cuda.grid(1), array.size, cuda.gridsize(1)):
            array[i] = value

    @cuda.jit
    def check(array, value, wrong):  # type: ignore[no-untyped-def]
        found = 0
        for i in range(cuda.grid(1), array.size, cuda.gridsize(1)):
            if array[i] != value:
                found += 1
        if found > 0:
            cuda.atomic.add(wrong, 0, found)

    return write, check


class _Named:
    """A stream of another library, as CUDA's stream protocol has it."""

    def __init__(self, handle: int) -> None:
        self.handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, self.handle)


class _CudaStreams:
    def __init__(self) -> None:
        import cupy

        self._of = cupy.cuda.Stream.from_external
        self._event = cupy.cuda.Event

    def wait(self, stream: int, on: int) -> None:
        event = self._event(disable_timing=True)
        event.record(self._of(_Named(on)))
        self._of(_Named(stream)).wait_event(event)

    def record(self, array: Any, stream: int) -> None:
        import ductile_gpu

        ductile_gpu.record_stream(getattr(array, "ptr", array), stream)


LIBRARIES = {"torch": _Torch, "cupy": _CuPy, "numba": _Numba, "rmm": _RMM}


def play(exchange: Exchange, rounds: int) -> None:
    """`rounds` rounds, in which every library is three times the favourite."""
    exchange.fill()
    n_libraries = len(exchange.libraries)
    span = max(1, rounds // (3 * n_libraries))
    for turn in range(rounds):
        exchange.round(turn // span % n_libraries)


def pass_memory(names: list[str], rounds: int, limit: int, fill: float) -> dict[str, Any]:
    """Everything, on device 0; the figures of the run."""
    import ductile_gpu

    ductile_gpu.share(*names, limit_bytes=limit)
    libraries: list[Library] = [LIBRARIES[name]() for name in names]
    allocator = ductile_gpu.shared(0)
    exchange = Exchange(libraries, _CudaStreams(), int(limit * fill))
    began = time.perf_counter()
    play(exchange, rounds)
    exchange.clear()
    mistakes = {one.name: one.mistakes() for one in libraries}
    took = time.perf_counter() - began
    allocator.check()
    stats = allocator.stats()
    return {
        "libraries": names,
        "torch": ductile_gpu.torch.mode() if "torch" in names else "off",
        "rounds": exchange.n_passed,
        "limit_bytes": limit,
        "target_bytes": exchange.target,
        "passed_bytes": exchange.bytes_passed,
        "peaks_bytes": {one.name: exchange.peaks[at] for at, one in enumerate(libraries)},
        "mistakes": mistakes,
        "reserved_peak_bytes": stats.reserved_peak_bytes,
        "creates": stats.creates,
        "recycled_handles": stats.recycled_handles,
        "stream_syncs": stats.stream_syncs,
        "seconds": round(took, 2),
    }


def find_fault(figures: dict[str, Any]) -> Optional[str]:
    """What is wrong with a run, in one sentence; None: nothing."""
    wrong = {name: count for name, count in figures["mistakes"].items() if count}
    if wrong:
        return f"elements that were not what was written, by who found them: {wrong}"
    if figures["reserved_peak_bytes"] > figures["limit_bytes"]:
        return "more memory was held than the cap allows"
    if sum(figures["peaks_bytes"].values()) < 1.5 * figures["limit_bytes"]:
        return "the libraries' own peaks would fit beside one another: nothing had to be passed"
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--libraries", default="torch,cupy,numba")
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--limit", default="4G")
    parser.add_argument("--fill", type=float, default=0.9)
    given = parser.parse_args()
    from ductile_gpu._binding._objects import parse_bytes

    figures = pass_memory(
        given.libraries.split(","), given.rounds, parse_bytes(given.limit), given.fill
    )
    print(json.dumps(figures), flush=True)
    fault = find_fault(figures)
    if fault is not None:
        print(f"together.py: {fault}", file=sys.stderr)
    return 0 if fault is None else 1


if __name__ == "__main__":
    sys.exit(main())
