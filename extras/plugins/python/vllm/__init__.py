# SPDX-License-Identifier: Apache-2.0
"""vLLM's sleep mode on Ductile.

    vllm serve MODEL --enable-sleep-mode --sleep-mode-backend ductile

The package's entry point in `vllm.general_plugins` calls `register` in each of vLLM's processes. It
adds the backend; weights, caches and graphs come from Ductile only where that backend is chosen, or
DUCTILE_VLLM=1 is in the environment, which is the way for versions without backends. What sleeps
are pools beside PyTorch's own allocator, or Ductile's own where it is PyTorch's allocator.
"""

from __future__ import annotations

import functools
import logging
from typing import Any, Callable, Optional

from ductile_gpu.vllm._allocator import SleepAllocator
from ductile_gpu_words import is_on

__all__ = ["BACKEND", "adopt", "register"]

BACKEND = "ductile"
"""the name for --sleep-mode-backend"""

VARIABLE = "DUCTILE_VLLM"
_logger = logging.getLogger("ductile_gpu")


def register() -> None:
    """What vLLM calls as it loads its plugins. Doing it again does nothing.

    A vLLM that it does not fit runs as it would without: the reason goes to the log "ductile_gpu".
    """
    for step in (_register_backend, _watch_workers, _let_graphs_sleep, _take_tag_hooks):
        try:
            step()
        except Exception as error:
            _logger.warning("vLLM's sleep mode has no backend '%s': %s", BACKEND, error)
            return


def is_wanted(vllm_config: Any) -> bool:
    """Is vLLM's memory to come from Ductile?"""
    model = getattr(vllm_config, "model_config", None)
    return is_on(VARIABLE) or getattr(model, "sleep_mode_backend", None) == BACKEND


def adopted() -> Optional[SleepAllocator]:
    """Ductile's allocator, where vLLM's sleep mode uses it in this process."""
    from vllm.device_allocator.cumem import CuMemAllocator

    found = CuMemAllocator.instance
    return found if isinstance(found, SleepAllocator) else None


def adopt() -> SleepAllocator:
    """Makes Ductile's allocator the one that vLLM's sleep mode uses in this process.

    Raises:
        RuntimeError: vLLM's own has served something already.
    """
    from vllm.device_allocator.cumem import CuMemAllocator

    found = adopted()
    if found is not None:
        return found
    own = CuMemAllocator.instance
    if own is not None and own.get_current_usage() > 0:
        raise RuntimeError(
            "vLLM's own sleep allocator is in use in this process already: Ductile cannot take its "
            f"place. Choose the backend, or set {VARIABLE}=1, before the first engine is made"
        )
    made = SleepAllocator()
    CuMemAllocator.instance = made
    # vLLM asks for its own C extension first, which this one does without.
    original = CuMemAllocator.get_instance
    CuMemAllocator.get_instance = staticmethod(lambda: adopted() or original())
    _logger.info("vLLM's sleep mode uses Ductile")
    return made


# ---- vLLM's hook points ------------------------------------------------------------------------


def _in_place_of(original: Any, function: Callable[..., Any]) -> Any:
    """The function, which gets the original first; the original where it is such a one already."""
    if getattr(original, "_of_ductile", False):
        return original

    @functools.wraps(original)
    def called(*values: Any, **named: Any) -> Any:
        return function(original, *values, **named)

    called._of_ductile = True  # type: ignore[attr-defined]
    return called


def _register_backend() -> None:
    try:
        from vllm.device_allocator.sleep_mode_backend import SleepModeBackendFactory
    except ImportError:  # before 0.31
        return
    if BACKEND in getattr(SleepModeBackendFactory, "_registry", ()):
        return
    SleepModeBackendFactory.register_backend(BACKEND, f"{__name__}._backend", "DuctileBackend")


def _watch_workers() -> None:
    """The first place that knows the configuration, before anything is allocated."""
    from vllm.v1.worker.worker_base import WorkerBase

    def init(original: Any, self: Any, vllm_config: Any, *more: Any, **named: Any) -> None:
        if is_wanted(vllm_config):
            adopt()
        original(self, vllm_config, *more, **named)

    WorkerBase.__init__ = _in_place_of(WorkerBase.__init__, init)


class _Seen:
    """An object with one attribute changed."""

    def __init__(self, seen: Any, **changed: Any) -> None:
        self.__dict__.update(changed, _seen=seen)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._seen, name)


def _let_graphs_sleep() -> None:
    """vLLM puts graphs where they can sleep only for its own backend."""
    from vllm.config import VllmConfig

    original = vars(VllmConfig).get("use_cumem_cudagraph_pool")
    if not isinstance(original, property):
        return

    def use_cumem_cudagraph_pool(ask: Any, self: Any) -> bool:
        model = self.model_config
        if getattr(model, "sleep_mode_backend", None) != BACKEND:
            return bool(ask(self))
        return bool(ask(_Seen(self, model_config=_Seen(model, sleep_mode_backend="cumem"))))

    VllmConfig.use_cumem_cudagraph_pool = property(
        _in_place_of(original.fget, use_cumem_cudagraph_pool)
    )


def _take_tag_hooks() -> None:
    """Versions whose allocator tells of unmapping have a function of the module for it."""
    import vllm.device_allocator as module

    def register_tag_hooks(original: Any, tag: str, before_unmap: Any, after_map: Any) -> Any:
        found = adopted()
        register = original if found is None else found.register_tag_hooks
        return register(tag, before_unmap, after_map)

    if hasattr(module, "register_tag_hooks"):
        module.register_tag_hooks = _in_place_of(module.register_tag_hooks, register_tag_hooks)
