# SPDX-License-Identifier: Apache-2.0
"""vLLM's packages around its sleep mode, as far as they are asked: names, signatures and the order
of calls of vLLM 0.33. `sleep_packages` holds the plug-in to the real ones."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import types
from typing import Any, Callable, ClassVar, Optional


@dataclasses.dataclass
class AllocationData:
    handle: tuple[int, int, int, Any]
    tag: str
    cpu_backup_tensor: Any = None
    is_asleep: bool = False


@dataclasses.dataclass
class OlderAllocationData:
    """Of vLLM 0.24."""

    handle: tuple[int, int, int, Any]
    tag: str
    cpu_backup_tensor: Any = None


class CuMemAllocator:
    instance: Any = None
    default_tag = "default"

    def __init__(self) -> None:
        self.used = 0

    @staticmethod
    def get_instance() -> Any:
        if CuMemAllocator.instance is None:
            CuMemAllocator.instance = CuMemAllocator()
        return CuMemAllocator.instance

    def get_current_usage(self) -> int:
        return self.used


class SleepModeBackend:
    def __init__(self) -> None:
        self._state = "RUNNING"

    def state(self) -> str:
        return self._state


class Factory:
    _registry: ClassVar[dict[str, Callable[[], type]]] = {}

    @classmethod
    def register_backend(cls, name: str, module_path: str, class_name: str) -> None:
        import importlib

        if name in cls._registry:
            raise ValueError(f"Sleep-mode backend '{name}' is already registered.")
        cls._registry[name] = lambda: getattr(importlib.import_module(module_path), class_name)

    @classmethod
    def create_backend(cls, model_config: Any) -> Any:
        return cls._registry[model_config.sleep_mode_backend]()()


class VllmConfig:
    def __init__(self, backend: str = "ductile", offload_graphs: bool = True) -> None:
        self.model_config = types.SimpleNamespace(
            sleep_mode_backend=backend, enable_cumem_allocator=True, offload=offload_graphs
        )

    @property
    def use_cumem_cudagraph_pool(self) -> bool:
        model = self.model_config
        return bool(model.offload and model.sleep_mode_backend == "cumem")


class WorkerBase:
    def __init__(self, vllm_config: VllmConfig, local_rank: int = 0) -> None:
        self.vllm_config = vllm_config


class Worker(WorkerBase):
    """The calls of vLLM's gpu_worker."""

    sleep_mode_backend: Any

    def _maybe_get_memory_pool_context(self, tag: str) -> Any:
        if not self.vllm_config.model_config.enable_cumem_allocator:
            return contextlib.nullcontext()
        allocator = sys.modules["vllm.device_allocator"].get_mem_allocator_instance()
        if tag == "weights":
            assert allocator.get_current_usage() == 0, "one instance per process"
        return allocator.use_memory_pool(tag=tag)

    @contextlib.contextmanager
    def capture_pool(self) -> Any:
        if self.vllm_config.use_cumem_cudagraph_pool:
            allocator = sys.modules["vllm.device_allocator"].get_mem_allocator_instance()
            with allocator.cudagraph_pool() as pool:
                yield pool
        else:
            yield None

    def sleep(self, level: int) -> None:
        if not hasattr(self, "_backend"):
            self._backend = Factory.create_backend(self.vllm_config.model_config)
        self._backend.suspend(level)

    def wake_up(self, tags: Optional[list[str]] = None) -> None:
        self._backend.resume(tags)


def put_into(set_item: Any, with_backends: bool = True) -> types.SimpleNamespace:
    """Makes these `import vllm`'s, in a monkeypatched sys.modules."""
    for own in (CuMemAllocator,):
        own.instance = None
    modules = {
        "vllm": {},
        "vllm.config": {"VllmConfig": type("VllmConfig", (VllmConfig,), dict(vars(VllmConfig)))},
        "vllm.platforms": {"current_platform": types.SimpleNamespace(is_cuda=lambda: True)},
        "vllm.device_allocator": {
            "AllocationData": AllocationData,
            "DEFERRABLE_TAGS": ("weights", "kv_cache"),
            "get_mem_allocator_instance": lambda: cumem.get_instance(),
        },
        "vllm.v1": {},
        "vllm.v1.worker": {},
    }
    cumem = type("CuMemAllocator", (CuMemAllocator,), {"instance": None})
    cumem.get_instance = staticmethod(lambda: get_own(cumem))
    base = type("WorkerBase", (WorkerBase,), {"__init__": WorkerBase.__init__})
    worker = type("Worker", (base, Worker), {})
    modules["vllm.device_allocator.cumem"] = {"CuMemAllocator": cumem}
    modules["vllm.v1.worker.worker_base"] = {"WorkerBase": base}
    if not with_backends:
        del modules["vllm.device_allocator"]["DEFERRABLE_TAGS"]
        modules["vllm.device_allocator"]["AllocationData"] = OlderAllocationData
    else:
        Factory._registry = {}
        modules["vllm.device_allocator.sleep_mode_backend"] = {
            "SleepModeBackend": SleepModeBackend,
            "SleepModeBackendFactory": Factory,
        }
    for name, contents in modules.items():
        module = types.ModuleType(name)
        module.__path__ = []  # type: ignore[attr-defined]
        vars(module).update(contents)
        set_item(sys.modules, name, module)
    sys.modules.pop("ductile_gpu.vllm._backend", None)
    return types.SimpleNamespace(
        allocator=cumem,
        worker=worker,
        config=modules["vllm.config"]["VllmConfig"],
        factory=Factory,
        module=sys.modules["vllm.device_allocator"],
    )


def get_own(cls: Any) -> Any:
    if cls.instance is None:
        cls.instance = cls()
    return cls.instance
