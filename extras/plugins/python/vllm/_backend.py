# SPDX-License-Identifier: Apache-2.0
"""The backend that vLLM's --sleep-mode-backend ductile names. vLLM imports this by its name."""

from __future__ import annotations

import os
from typing import Any, Optional

from vllm.device_allocator.sleep_mode_backend import SleepModeBackend

from ductile_gpu.vllm import adopt

# What level 1 keeps; level 2 drops the weights, which are loaded again.
_KEPT = ("weights", "runtime", "cudagraph")


class DuctileBackend(SleepModeBackend):  # type: ignore[misc]
    """vLLM's levels: 1 keeps the weights on the host, 2 drops them; caches are dropped in both.

    A call that fails changes neither memory nor state.
    """

    def __init__(self) -> None:
        super().__init__()
        self._allocator = adopt()

    def suspend(self, level: int = 1) -> None:
        """Everything sleeps.

        Raises:
            RuntimeError: what was kept could not be copied to the host; nothing sleeps.
        """
        kept = _KEPT if level == 1 else _KEPT[1:]
        self._allocator.sleep(offload_tags=kept)
        self._state = "SUSPENDED"

    def resume(self, tags: Optional[list[str]] = None) -> None:
        """Wakes these of "weights" and "kv_cache", and everything else; None: all.

        Raises:
            RuntimeError: too little memory is free; the message says how much is missing, and what
                slept sleeps.
        """
        before, self._state = self._state, "RESUMING"
        try:
            self._allocator.wake_up(tags)
        except BaseException:
            self._state = before
            raise
        self._state = "RUNNING"

    def discard(self, tags: tuple[str, ...]) -> None:
        """These sleep, without contents."""
        self._allocator.discard(tags)
        self._state = "SUSPENDED"

    @classmethod
    def is_supported(cls) -> bool:
        """On NVIDIA's GPUs."""
        from vllm.platforms import current_platform

        return bool(current_platform.is_cuda())

    @classmethod
    def preserves_communicators(cls) -> bool:
        """Their memory does not come from the allocator."""
        return True

    @classmethod
    def preserves_compiled_artifacts(cls) -> bool:
        """Addresses stay."""
        return True

    @classmethod
    def preserves_graphs_with_communicators(cls) -> bool:
        """Unless NCCL registers the memory of graphs, which is other memory after a resume."""
        return os.environ.get("NCCL_GRAPH_REGISTER") == "0"

    @classmethod
    def verify_config(cls, vllm_config: Any) -> None:
        """Every configuration is fine."""

    def bind(self, vllm_config: Any, models: Any) -> None:
        """Nothing of the models needs to be known."""
