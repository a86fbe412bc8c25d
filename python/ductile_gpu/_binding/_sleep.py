# SPDX-License-Identifier: Apache-2.0
"""Pools that sleep: what `Allocator` says to the C library about sets of them."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping, Sequence
from ctypes import byref, sizeof
from typing import Any, Literal, NamedTuple, Optional, Union

from ductile_gpu._binding import _abi, _log
from ductile_gpu._binding._errors import error_from_status, invalid
from ductile_gpu._binding._native import lib, sized
from ductile_gpu._binding._objects import parse_bytes, read_address, read_number, read_text

PoolId = tuple[int, int]
Contents = Literal["keep", "drop", "zero", "poison"]
PoolKind = Literal["capture", "plain"]
Tags = Union[None, str, Iterable[str]]
ContentsBy = Union[None, Contents, Mapping[Optional[str], Contents]]

_TAG_BYTES: int = _abi.ductile_sleep_report.tag.size
_NAMES: dict[int, Any] = {c: c.name.lower() for c in _abi.Contents if c != _abi.Contents.POLICY}
_CONTENTS = {None: _abi.Contents.POLICY, **{name: number for number, name in _NAMES.items()}}
_KINDS: tuple[PoolKind, ...] = ("capture", "plain")  # by their numbers
_STATES: dict[int, Any] = {state: state.name.lower() for state in _abi.PoolState}


class Pool(NamedTuple):
    """A pool, as `Allocator.pools` describes it."""

    id: PoolId
    """(0, 0): all memory outside private pools"""
    tag: str
    """"": none"""
    policy: Optional[Contents]
    """what a sleep does with its contents unless it says otherwise; None: "keep" for the default
    pool, "drop" for others"""
    state: Literal["awake", "falling_asleep", "asleep", "waking"]
    contents: Optional[Contents]
    """what the sleep promised; None while awake"""
    kept_bytes: int
    """contents on the host now"""
    references: int
    open: int
    """how many times it is open now"""
    kind: PoolKind
    """whether its free memory stays its own, for captured graphs, or serves others"""


class Slept(NamedTuple):
    """What a sleep or a wake did."""

    pools: int
    passed_over: int
    """pools that were so already, or do not exist"""
    bytes: int
    """device memory that left, or came back"""
    copied_bytes: int
    """contents copied to the host, or back"""
    stayed_bytes: int
    """memory of sleeping pools that stays on the device: pinned or exported"""


class Promoted(NamedTuple):
    """What a promotion did."""

    bytes: int
    """moved from the host's memory to the device's"""
    left_bytes: int
    """of blocks in use, still in the host's"""


def kind_number(name: Optional[str]) -> Optional[int]:
    """The number of a kind of pool; None: none is named. Raises InvalidArgument."""
    if name is not None and name not in _KINDS:
        raise invalid(f"kind is one of {', '.join(map(repr, _KINDS))}, not {name!r}")
    return None if name is None else _KINDS.index(name)


def contents_number(name: Optional[str]) -> int:
    """The number of a word for contents; None: the pool's policy. Raises InvalidArgument."""
    if name not in _CONTENTS:
        words = ", ".join(repr(word) for word in _CONTENTS if word is not None)
        raise invalid(f"contents is one of {words}, not {name!r}")
    return _CONTENTS[name]


def tag_bytes(tag: Optional[str]) -> bytes:
    """A tag as C takes it. Raises InvalidArgument for what cannot be one."""
    return read_text(tag, "a tag", _TAG_BYTES)


def pool_id(pool: PoolId) -> _abi.ductile_pool_id:
    """The two numbers of a pool. Raises InvalidArgument, TypeError."""
    first, second = pool
    return _abi.ductile_pool_id(
        read_number(first, "a pool's number"), read_number(second, "a pool's number")
    )


def optional_pool(pool: Optional[PoolId]) -> Optional[Any]:
    """As C takes which pool a call is about: None is all."""
    return None if pool is None else byref(pool_id(pool))


def list_tags(tags: Tags) -> list[str]:
    """One tag, or several; each once, in their order. None is none."""
    if tags is None:
        return []
    return [tags] if isinstance(tags, str) else list(dict.fromkeys(tags))


def describe_sleeper(tag: str, pool: PoolId) -> str:
    """Names a pool that sleeps, and says what to do."""
    name = f"'{tag}'" if tag else "the default pool" if pool == (0, 0) else f"pool {pool}"
    return f"{name}, which sleeps: wake it first, or allocate outside of it"


class Request:
    """A ductile_sleep_request, with everything that it points to."""

    def __init__(
        self,
        tags: Tags,
        pools: Sequence[PoolId] = (),
        contents: ContentsBy = None,
        except_tags: Tags = None,
        except_pools: Sequence[PoolId] = (),
        lenient: bool = False,
        bypass: Optional[PoolId] = None,
        retain: bool = False,
    ) -> None:
        named = list_tags(tags)
        is_all = tags is None and not pools
        by_tag: dict[Optional[str], Any] = (
            dict(contents) if isinstance(contents, Mapping) else {None: contents}
        )
        if is_all:
            named = [tag for tag in by_tag if tag is not None]
        c = sized(_abi.ductile_sleep_request)
        c.all, c.lenient, c.retain = int(is_all), int(lenient), int(retain)
        c.contents = contents_number(by_tag.get(None))
        self._entries = (_abi.ductile_sleep_tag * len(named))(
            *(self._entry(tag, by_tag.get(tag)) for tag in named)
        )
        c.tags, c.n_tags = self._address(self._entries), len(named)
        c.pools, c.n_pools = self._pools(pools)
        c.except_pools, c.n_except_pools = self._pools(except_pools)
        left_out = [tag_bytes(tag) for tag in list_tags(except_tags)]
        self._except = (ctypes.c_char_p * len(left_out))(*left_out)
        c.except_tags, c.n_except_tags = self._address(self._except), len(left_out)
        if bypass is not None:
            c.bypass = pool_id(bypass)
        self.c = c

    @staticmethod
    def _entry(tag: str, contents: Optional[str]) -> _abi.ductile_sleep_tag:
        return _abi.ductile_sleep_tag(tag_bytes(tag), contents_number(contents))

    @staticmethod
    def _address(array: Any) -> Optional[int]:
        return ctypes.addressof(array) if len(array) else None

    def _pools(self, pools: Sequence[PoolId]) -> tuple[Optional[int], int]:
        array = (_abi.ductile_pool_id * len(pools))(*(pool_id(pool) for pool in pools))
        self.__dict__.setdefault("_arrays", []).append(array)
        return self._address(array), len(pools)


def _report(function: Any, what: str, *arguments: Any) -> Any:
    """What a call has written. Raises what the status says, with the library's advice."""
    report = sized(_abi.ductile_sleep_report)
    _log.forget()
    status = function(*arguments, byref(report))
    if status:
        advice = report.message.decode("utf-8", "replace")
        raise error_from_status(status, what, (*((advice,) if advice else ()), *_log.take()))
    return report


def ask(function: Any, pointer: int, request: Request, what: str) -> Slept:
    """Puts to sleep or wakes. Raises what the status says, with the library's advice."""
    report = _report(function, what, pointer, byref(request.c))
    return Slept(
        report.pools, report.passed_over, report.bytes, report.copied_bytes, report.stayed_bytes
    )


def describe_pool(info: _abi.ductile_pool_info) -> Pool:
    """What C has written about a pool."""
    return Pool(
        (info.id.first, info.id.second),
        info.tag.decode("utf-8", "replace"),
        _NAMES.get(info.policy),
        _STATES[info.state],
        _NAMES.get(info.contents),
        info.kept_bytes,
        info.references,
        info.open,
        _KINDS[info.kind],
    )


def list_pools(pointer: int) -> list[Pool]:
    """Every pool, the default one first."""
    room = 16
    while True:
        array = (_abi.ductile_pool_info * room)()
        array[0].struct_size = sizeof(_abi.ductile_pool_info)
        found = ctypes.c_size_t()
        _log.forget()
        status = lib.ductile_list_pools(pointer, None, array, room, byref(found))
        _log.check(status, "pools")
        if found.value <= room:
            return [describe_pool(info) for info in array[: found.value]]
        room = 2 * found.value


def why_asleep(pointer: int, status: int) -> tuple[str, ...]:
    """After a refused request: which pool sleeps, and what to do; nothing for other refusals."""
    found = sized(_abi.ductile_refusal)
    if status != _abi.Status.ERR_ASLEEP or lib.ductile_sleep_refusal(pointer, byref(found)):
        return ()
    pool = (found.pool.first, found.pool.second)
    return (f"it belongs to {describe_sleeper(found.tag.decode('utf-8', 'replace'), pool)}",)


class Sleeps:
    """What an `Allocator` can do with its pools while they live: name them, and let them sleep."""

    __slots__ = ()

    @property
    def pointer(self) -> int:
        """The `ductile_allocator *`, for code in C."""
        raise NotImplementedError

    def pools(self) -> list[Pool]:
        """Every pool, the default one, (0, 0), first. Linear in the pools; no driver call."""
        return list_pools(self.pointer)

    def set_tag(self, pool: PoolId, tag: str, contents: Optional[Contents] = None) -> None:
        """Names a pool, and says what a sleep does with its contents unless it says otherwise.

        Several pools may have one tag, each with contents of its own.

        Args:
            pool: (0, 0) is all memory outside private pools.
            tag: fewer than 64 bytes; "": none.
            contents: "keep", "drop", "zero" or "poison" (see `sleep`); None: "keep" for the default
                pool, "drop" for others.

        Raises:
            InvalidArgument: no such pool or contents, the tag is too long.
            Asleep: the pool sleeps: its tag is how it is woken.
            Busy: it is falling asleep or being woken.
        """
        status = lib.ductile_pool_set_tag(
            self.pointer, pool_id(pool), tag_bytes(tag), contents_number(contents)
        )
        _log.check(status, f"tag '{tag}' for pool {pool}")

    def sleep(
        self,
        tags: Tags = None,
        *,
        pools: Sequence[PoolId] = (),
        contents: ContentsBy = None,
        except_tags: Tags = None,
        except_pools: Sequence[PoolId] = (),
        lenient: bool = False,
        bypass: Optional[PoolId] = None,
    ) -> Slept:
        """Gives the memory behind pools back to the driver; every address stays. All or none.

        The blocks fall asleep: nothing may touch them until `wake`. They can be freed. A
        request that belongs to a sleeping pool is refused (Asleep). The call waits for all work of
        the device that was issued before it.

        Args:
            tags: one tag, or several: the pools that have it.
            pools: further pools. Without tags and pools: all pools of the allocator.
            contents: what the blocks hold afterwards: "keep" copies them to the host and back,
                "drop" leaves them undefined, "zero" makes them 0, "poison" 0xFF in every byte.
                Or by tag, with None for the rest: {"weights": "keep", None: "drop"}. Where nothing
                is said it is as `set_tag` said.
            except_tags, except_pools: are left out; they may name what does not exist.
            lenient: passes over what sleeps already and what does not exist; otherwise an error,
                but for all pools.
            bypass: a private pool that serves the default pool's requests while that one sleeps.

        Raises:
            InvalidArgument: no pool has the tag; no such pool; the bypass is one of the pools.
            Asleep: one of them sleeps already.
            Busy, Capturing, OutOfHostMemory, DriverError, DeviceLost: nothing has changed.
        """
        request = Request(tags, pools, contents, except_tags, except_pools, lenient, bypass)
        return ask(lib.ductile_sleep_set, self.pointer, request, "sleep")

    def wake(
        self,
        tags: Tags = None,
        *,
        pools: Sequence[PoolId] = (),
        except_tags: Tags = None,
        except_pools: Sequence[PoolId] = (),
        lenient: bool = False,
        retain: bool = False,
    ) -> Slept:
        """Puts memory behind sleeping pools again, at the same addresses. All of them, or none.

        Args:
            tags, pools, except_tags, except_pools, lenient: as `sleep`.
            retain: kept contents stay on the host, where `kept_contents` finds them until the next
                sleep, a wake without it, or the block is freed.

        Raises:
            InvalidArgument: no pool has the tag; no such pool.
            Awake: one of them does not sleep.
            OutOfMemory: the message says how much more must be free; they sleep as before.
            Busy, OutOfHostMemory, DriverError, DeviceLost: they sleep as before.
        """
        request = Request(tags, pools, None, except_tags, except_pools, lenient, None, retain)
        return ask(lib.ductile_wake_set, self.pointer, request, "wake")

    def promote(self) -> Promoted:
        """Moves memory of live blocks that has spilled (option `spill_bytes`) to the device.

        As far as the device has room by now; the rest stays where it is. Addresses and contents
        stay. A short sleep of the pools with such blocks: it waits for all work of the device, and
        no thread may use these pools until it returns. At once where nothing has spilled.

        Raises:
            Busy, Capturing, OutOfHostMemory: what was moved before stays on the device.
            DriverError, OutOfMemory: the driver maps neither memory of the device nor the host's
                again; the message says so if a pool sleeps now, with its contents: `wake` it.
            DeviceLost, ProcessGone.
        """
        report = _report(lib.ductile_promote, "promote", self.pointer)
        return Promoted(report.bytes, report.stayed_bytes)

    def kept_contents(self, address: int) -> memoryview:
        """The kept contents of a block, from `address` to its end, without a copy.

        Writing to them changes what the wake brings back. Not to be used after the block is
        freed, or once its pool is being woken; where the wake retains them, once it sleeps.

        Raises:
            Awake: the block does not sleep, and nothing was retained.
            Unsupported: its contents were not kept.
            ForeignPointer, NotLive, NotReady.
        """
        host, size = ctypes.c_void_p(), ctypes.c_uint64()
        address = read_address(address)
        status = lib.ductile_kept_contents(self.pointer, address, byref(host), byref(size))
        _log.check(status, f"kept contents of {address:#x}")
        return memoryview((ctypes.c_uint8 * size.value).from_address(host.value or 0)).cast("B")

    def set_margin(self, size: Union[int, str]) -> None:
        """Refuses requests that would leave less than this free on the device.

        Args:
            size: bytes, or text such as "1G"; 0: none.

        Raises:
            DeviceLost, ProcessGone.
        """
        status = lib.ductile_set_margin(self.pointer, parse_bytes(size))
        _log.check(status, f"margin of {size} bytes")

    def reserve_host(self, size: Union[int, str]) -> int:
        """Makes page-locked host memory for kept contents ahead of the sleep that needs it.

        About 0.1 s per GiB. It serves every later sleep, until `release_host`.

        Args:
            size: bytes that there shall be in all, or text such as "40G".

        Returns:
            How many bytes there are now.

        Raises:
            OutOfHostMemory, DriverError, Busy.
        """
        held = ctypes.c_uint64()
        status = lib.ductile_sleep_host_reserve(self.pointer, parse_bytes(size), byref(held))
        _log.check(status, f"host memory of {size} bytes")
        return held.value

    def release_host(self, keep: Union[int, str] = 0) -> int:
        """Gives host memory that holds no contents back; returns the bytes.

        Args:
            keep: bytes that stay, contents kept now included.

        Raises:
            DriverError, Busy.
        """
        released = ctypes.c_uint64()
        status = lib.ductile_sleep_host_release(self.pointer, parse_bytes(keep), byref(released))
        _log.check(status, "release_host")
        return released.value
