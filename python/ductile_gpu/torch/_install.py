# SPDX-License-Identifier: Apache-2.0
"""Loads the adapter and makes it PyTorch's allocator."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Callable, Optional, cast

from ductile_gpu._binding import _abi
from ductile_gpu._binding._core import option_text
from ductile_gpu._binding._log import logger
from ductile_gpu._binding._objects import renew_in_child
from ductile_gpu._process import _share
from ductile_gpu._process._children import is_first_rank
from ductile_gpu.torch import _build, _conf, _later
from ductile_gpu.torch._lazy import torch

_SHARED_STRUCTS = (
    _abi.ductile_options,
    _abi.ductile_stats,
    _abi.ductile_block_info,
    _abi.ductile_oom_report,
    _abi.ductile_limits,
    _abi.ductile_map_event,
)

# The variable's name now and before, and what PyTorch takes for true.
_NCCL_HOOK = (
    "TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK",
    "NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK",
)
_NCCL2_SINCE = 15
_SETTERS = (
    "_accelerator_setAllocatorSettings",
    "_cuda_cudaCachingAllocator_set_allocator_settings",
)
_TRUE = ("1", "y", "yes", "t", "true")

_TOO_LATE = 2  # of ductile_torch_install and ductile_torch_leave

_settings = _conf.environment()  # that PyTorch has parsed last
_says_expandable = False
_lock = threading.Lock()
_adapter: Optional[ctypes.CDLL] = None
renew_in_child(globals(), "_lock", threading.Lock)


class TooLate(RuntimeError):
    """PyTorch's allocator cannot be exchanged now; the message says why, and what to do."""


def adapter() -> Optional[ctypes.CDLL]:
    """The adapter, once it is PyTorch's allocator, also while Ductile is off."""
    _later.do_now()
    return _adapter


def call(function: Any, *arguments: Any) -> None:
    """Calls a function of the adapter that reports by a message."""
    message = ctypes.create_string_buffer(1024)
    status = function(*arguments, message, ctypes.c_size_t(len(message)))
    if status != 0:
        error = TooLate if status == _TOO_LATE else RuntimeError
        raise error(message.value.decode(errors="replace"))


def _wrap(names: tuple[str, ...], changed: Callable[..., None]) -> None:
    """Has a function called in place of functions of torch._C, with the original first."""
    for name in names:
        original = getattr(torch._C, name, None)
        if original is not None:
            setattr(torch._C, name, functools.partial(changed, original))


def _warn(text: str) -> None:
    """Names the line that called `enable`; the first of many ranks speaks for all."""
    if is_first_rank():
        warnings.warn(text, RuntimeWarning, stacklevel=6)
    else:
        logger.info(text)


def _load(path: Path, torch: _build.Torch) -> ctypes.CDLL:
    loaded = _build.load(path)
    loaded.ductile_torch_built_for.restype = ctypes.c_char_p
    loaded.ductile_torch_allocator.restype = ctypes.c_void_p
    loaded.ductile_torch_open.restype = ctypes.c_void_p
    built_for = loaded.ductile_torch_built_for().decode()
    if built_for not in (torch.version, f"2.{torch.minor}"):
        raise _build.BuildError(
            f"{path} is for PyTorch {built_for}, this is {torch.version}: build it again with "
            "`python -m ductile_gpu.torch build`"
        )
    _check_layout(loaded, path)
    return loaded


def _load_any(torch: _build.Torch) -> ctypes.CDLL:
    """A carried adapter may want a newer C++ library than there is: then it is compiled."""
    path = _build.adapter_path(torch)
    try:
        return _load(path, torch)
    except _build.BuildError as unfit:
        if path.parent != _build.CARRIED:
            raise
        try:
            return _load(_build.compiled_path(torch), torch)
        except _build.BuildError as error:
            raise _build.BuildError(f"{unfit}; {error}") from None


def _check_layout(loaded: ctypes.CDLL, path: Path) -> None:
    """Refuses an adapter that was compiled with another libductile's headers."""
    if not hasattr(loaded, "ductile_torch_leave"):
        raise _build.BuildError(f"{path} was made by an older version of Ductile: build it again")
    loaded.ductile_torch_layout.restype = ctypes.POINTER(ctypes.c_size_t)
    sizes = loaded.ductile_torch_layout()
    for at, struct in enumerate(_SHARED_STRUCTS):
        if sizes[at] != ctypes.sizeof(struct):
            raise _build.BuildError(
                f"{path} has {sizes[at]} bytes of {struct.__name__}, this package "
                f"{ctypes.sizeof(struct)}: build it again with `python -m ductile_gpu.torch build`"
            )


def _follow_settings(loaded: ctypes.CDLL) -> None:
    """Has the adapter look again when settings are parsed again at run time."""

    def changed(original: Any, text: str) -> None:
        global _settings
        _conf.check(text)
        original(_conf.expandable(text) if _says_expandable else text)
        _settings = text
        named = "per_process_memory_fraction" in _conf.parse(text)
        call(loaded.ductile_torch_refresh, ctypes.c_int(named))

    _wrap(_SETTERS, changed)


def _say_expandable(on: bool) -> None:
    """Tells PyTorch's settings that segments are expandable, as Ductile's are, or again what the
    program has them say. It parses a text whole, so that all of it is said again."""
    global _says_expandable
    if on == _says_expandable:
        return
    setter = next((s for s in (getattr(torch._C, name, None) for name in _SETTERS) if s), None)
    if setter is None:
        return
    original = getattr(setter, "args", (setter,))[0]  # behind `_follow_settings`
    original(_conf.expandable(_settings) if on else _conf.explicit(_settings))
    _says_expandable = on


def options_text(options: Mapping[str, Any]) -> str:
    """Options as DUCTILE_CONF has them."""
    return ",".join(f"{key}:{option_text(value)}" for key, value in options.items())


def _open_device(device: int) -> int:
    """The library's allocator of a device, for those who share it with PyTorch."""
    torch.cuda.init()
    assert _adapter is not None
    message = ctypes.create_string_buffer(1024)
    found = _adapter.ductile_torch_open(device, message, ctypes.c_size_t(len(message)))
    if not found:
        raise RuntimeError(message.value.decode(errors="replace"))
    return int(found)


def _list_used() -> list[int]:
    """The devices whose allocator has served something."""
    if _adapter is None or not torch.cuda.is_initialized():
        return []
    find = _adapter.ductile_torch_allocator
    return [device for device in range(torch.cuda.device_count()) if find(device)]


@contextlib.contextmanager
def no_spill() -> Iterator[None]:
    """Inside, no request of PyTorch spills, on devices that are used only later, either."""
    found = adapter()
    if found is None:
        yield
        return
    call(found.ductile_torch_forbid_spilling, 1)
    try:
        yield
    finally:
        call(found.ductile_torch_forbid_spilling, -1)


def set_options(options: Mapping[str, Any]) -> None:
    """Of the allocators that are still to be made. Where the adapter is not in place yet, those of
    `install` count."""
    if _adapter is not None:
        call(_adapter.ductile_torch_set_options, options_text(options).encode())


def _records_history() -> bool:
    """Does PyTorch's allocator of the moment keep the program's memory history?"""
    asked = getattr(torch._C, "_cuda_isHistoryEnabled", None)
    try:
        return torch.cuda.is_initialized() and asked is not None and bool(asked())
    except RuntimeError:  # an allocator without a history
        return False


def _record_on() -> None:
    """Goes on with a history that was begun under native. What stacks it has, native does not say:
    those of Python it is."""
    try:
        torch.cuda.memory._record_memory_history("all", context="all", stacks="python")
    except Exception as error:
        _warn(f"the memory history ends where Ductile was enabled: {error}")


def _tell_what_stays(loaded: ctypes.CDLL) -> None:
    waiting = loaded.ductile_torch_inherited()
    if waiting:
        pools = "a memory pool or a capture is" if waiting == 1 else f"{waiting} memory pools are"
        _warn(
            f"{pools} open that began before Ductile was enabled: until it is closed, new memory "
            "comes from PyTorch's own allocator"
        )


def _has_nccl() -> bool:
    """Does a process group have NCCL?"""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return False
    world = getattr(sys.modules.get("torch.distributed.distributed_c10d"), "_world", None)
    backends = getattr(world, "pg_backend_config", None)
    return backends is None or any("nccl" in str(backend) for backend in backends.values())


def _registering() -> list[str]:
    """The variables by which NCCL's hook is to register all memory.

    The hook hears of whole segments that come and leave, and of memory that moves neither: what it
    has found once would stay registered. PyTorch turns it off under expandable segments for that.
    NCCL reads the variable when its first process group is made.
    """
    on = [name for name in _NCCL_HOOK if os.environ.get(name, "").lower() in _TRUE]
    if on and _has_nccl():
        raise TooLate(
            f"{on[0]} has NCCL register all memory, and Ductile's moves: unset it, or call "
            "enable() before init_process_group(), which turns it off"
        )
    return on


def _register_nothing(names: list[str]) -> None:
    for name in names:
        os.environ[name] = "0"
        _warn(
            f"{name} is turned off: Ductile's memory moves, and would stay registered with NCCL "
            "where it was, as with PyTorch's expandable segments"
        )


def _asks_nccl2(torch: _build.Torch) -> bool:
    """May a process group have the NCCL backend that registers all memory without a variable? It
    leaves that out where PyTorch's settings say that segments are expandable."""
    is_old = torch.minor < _NCCL2_SINCE or os.environ.get("TORCH_DIST_USE_NCCL2") == "0"
    return not is_old and not _has_nccl()


def _take_over(loaded: ctypes.CDLL, options: Mapping[str, Any]) -> None:
    call(loaded.ductile_torch_set_options, options_text(options).encode())
    _share.provide(_open_device, _list_used, {"captures": "announced"}, set_options)
    try:
        call(loaded.ductile_torch_install)
    except RuntimeError:
        _share.withdraw()
        raise


def install(options: Mapping[str, Any]) -> None:
    """Makes Ductile PyTorch's allocator, or makes it serve again.

    Raises BuildError where there is no adapter, and TooLate.
    """
    global _adapter
    registering = _registering()
    with _lock:
        if _adapter is not None:
            if not _adapter.ductile_torch_is_installed():
                raise TooLate("another allocator has taken Ductile's place in this process")
            call(_adapter.ductile_torch_install)
            _say_expandable(_asks_nccl2(_build.describe_torch()))
            return _register_nothing(registering)
        torch = _build.describe_torch()
        _conf.check(_conf.environment())
        loaded = _load_any(torch)
        goes_on = _records_history() and not loaded.ductile_torch_is_gathering()
        _take_over(loaded, options)
        _adapter = loaded  # from here on it serves, whatever fails
        _follow_settings(loaded)
        _say_expandable(_asks_nccl2(torch))
    _register_nothing(registering)
    if goes_on:
        _record_on()
    _build.tell_what_is_unknown(torch)
    _tell_what_stays(loaded)


def leave() -> None:
    """New memory comes from PyTorch's own allocator again. Pre: installed. Raises TooLate."""
    with _lock:
        call(cast(Any, _adapter).ductile_torch_leave)
        _say_expandable(False)


class Tracker:
    """Has PyTorch's allocator, whichever it is, tell of each allocation and free.

    The call before an allocation is PyTorch's history, which it can keep for one only: a script
    that records its own has it, until it ends that.

    Raises:
        BuildError: there is no adapter.
    """

    def __init__(self) -> None:
        self._loaded = adapter() or _load_any(_build.describe_torch())
        self._before: Optional[int] = None
        self._is_lent = False
        self.was_lent = False
        """the script has recorded history itself"""
        self._follow_history()

    def start(self, event: int, before: int) -> None:
        """From now on, with the addresses of C functions that adapter/install.cpp describes: for
        ductile_torch_track, and for ductile_torch_gather. Pre: CUDA is initialised."""
        call(self._loaded.ductile_torch_track, ctypes.c_void_p(event))
        self._gather(before)

    def stop(self) -> None:
        """Nothing is called before allocations any more; of them it is told on."""
        self._gather(None)

    def _gather(self, before: Optional[int]) -> None:
        self._before = before
        if not self._is_lent:
            call(self._loaded.ductile_torch_gather, ctypes.c_void_p(before))

    def _follow_history(self) -> None:
        def changed(original: Any, enabled: Any, *more: Any, **named: Any) -> None:
            original(enabled, *more, **named)
            self._is_lent = bool(enabled)
            self.was_lent = self.was_lent or self._is_lent
            if self._before is not None:
                self._gather(self._before)

        _wrap(("_cuda_record_memory_history", "_cuda_record_memory_history_legacy"), changed)


def is_installed() -> bool:
    """Is Ductile what PyTorch allocates from?"""
    _later.do_now()
    return _adapter is not None and bool(_adapter.ductile_torch_is_serving())
