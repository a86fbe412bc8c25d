# SPDX-License-Identifier: Apache-2.0
"""One package whose memory Ductile lets sleep, against that package's own Python code:
sleep_packages.py vllm|sglang|torch_memory_saver FOLDER-OF-WHEELS [SOURCES]. With the package's
sources: those of its own tests that have to do with sleep and need no GPU, with Ductile's plug-in
loaded. See sleep_packages."""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.util
import inspect
import logging
import os
import re
import sys
import types
import zipfile
from pathlib import Path
from typing import Any, Callable

HERE = Path(__file__).parent
MIB = 1 << 20

# A copy of this PyTorch's own may be wrong; what is asked of it is a virtual GPU's.
os.environ["DUCTILE_CONF"] = "driver:virtual,sizes:2M"
sys.path[:0] = [str(HERE), str(HERE.parents[2] / "python" / "tests")]

import fake_torch
import stand_ins
import torch

FAKED = (
    "MemPool", "use_mem_pool", "graph", "graph_pool_handle", "current_device", "device_count",
    "device", "init", "is_initialized", "empty_cache",
)  # fmt: skip


def unpack(package: str, folder: Path) -> tuple[Path, str]:
    """The package's Python files and metadata, and its version."""
    (wheel,) = sorted(folder.glob(f"{package}-*.whl"))[-1:] or [None]
    if wheel is None:
        sys.exit(f"no wheel of {package} in {folder}")
    place = folder / wheel.stem
    if not place.exists():
        with zipfile.ZipFile(wheel) as archive:
            wanted = [n for n in archive.namelist() if re.search(r"\.py$|dist-info/|\.so$", n)]
            wanted = [n for n in wanted if package == "torch_memory_saver" or not n.endswith(".so")]
            archive.extractall(place, wanted)
    return place, wheel.name.split("-")[1]


def on_a_virtual_gpu() -> fake_torch.Torch:
    """PyTorch's functions around pools, on Ductile beside an allocator that only counts."""
    found = fake_torch.Torch()
    for name in FAKED:
        setattr(torch.cuda, name, getattr(found.cuda, name))
    torch.cuda.memory.MemPool = found.cuda.MemPool
    torch.cuda.memory.use_mem_pool = found.cuda.use_mem_pool
    torch.cuda.memory.CUDAPluggableAllocator = fake_torch.Pluggable
    for name in ("synchronize", "empty_cache"):
        if hasattr(torch, "accelerator"):
            setattr(torch.accelerator, name, lambda *_: None)
    fake_torch.throw_nothing(setattr)
    return found


class Report:
    def __init__(self, package: str) -> None:
        self.package, self.failed = package, 0

    def check(self, claim: str, holds: Any, why: object = "") -> None:
        self.failed += not holds
        print(f"{self.package}: {'ok  ' if holds else 'FAIL'} {claim}{'' if holds else f': {why}'}")

    def covers(self, what: str, theirs: Any, ours: Any, but: set[str] = frozenset()) -> None:  # type: ignore[assignment]
        """Every public name of theirs is one of ours, and takes their arguments."""
        names = {n for n in vars(theirs) if not n.startswith("_")} - but
        missing = sorted(n for n in names if not hasattr(ours, n))
        self.check(f"every name of {what} ({len(names)})", not missing, missing)
        for name in sorted(names - set(missing)):
            self._check_arguments(what, name, getattr(theirs, name), getattr(ours, name))

    def _check_arguments(self, what: str, name: str, theirs: Any, ours: Any) -> None:
        if not inspect.isfunction(theirs) or not callable(ours):
            return
        wanted = [p for p in inspect.signature(theirs).parameters if p not in ("self", "cls")]
        found = [p for p in inspect.signature(ours).parameters if p not in ("self", "cls")]
        self.check(f"arguments of {what}.{name}", wanted == found[: len(wanted)], (wanted, found))


def held() -> dict[str, int]:
    from ductile_gpu.torch import tags

    return {tag: s.held_bytes // MIB for tag, s in tags().items() if tag}


# ---- vLLM --------------------------------------------------------------------------------------


OWN_OF_CUMEM = {
    "python_malloc_callback", "python_free_callback", "instance", "get_instance",
}  # fmt: skip


def show_cuda_to_vllm() -> None:
    import vllm.platforms as platforms

    real = platforms.current_platform
    names = ("is_cuda", "is_cuda_alike", "is_rocm", "is_xpu", "is_cpu")
    fake: Any = types.SimpleNamespace(
        dispatch_key="CUDA",
        **{name: (lambda found=name: found.startswith("is_cuda")) for name in names},
    )
    platforms.current_platform = stand_in_for(real, fake)


def load_plugin_of_vllm() -> None:
    os.environ["VLLM_PLUGINS"] = "ductile"
    from vllm.plugins import load_general_plugins

    load_general_plugins()


def check_vllm(report: Report) -> None:
    memory = on_a_virtual_gpu()
    show_cuda_to_vllm()
    if importlib.util.find_spec("vllm.device_allocator.sleep_mode_backend") is None:
        check_vllm_without_backends(report, memory)
        return
    load_plugin_of_vllm()
    from vllm.device_allocator.sleep_mode_backend import SleepModeBackend, SleepModeBackendFactory

    report.check("the plug-in loads through the entry point", _knows(SleepModeBackendFactory))
    from vllm.config import VllmConfig
    from vllm.device_allocator import get_mem_allocator_instance
    from vllm.device_allocator.cumem import CuMemAllocator
    from vllm.v1.worker.worker_base import WorkerBase

    from ductile_gpu.vllm._allocator import SleepAllocator
    from ductile_gpu.vllm._backend import DuctileBackend

    report.covers("CuMemAllocator", CuMemAllocator, SleepAllocator, OWN_OF_CUMEM)
    report.covers("SleepModeBackend", SleepModeBackend, DuctileBackend)

    config: Any = types.SimpleNamespace(
        model_config=types.SimpleNamespace(
            sleep_mode_backend="ductile", enable_cumem_allocator=True, enable_sleep_mode=True,
            sleep_mode_offload_cudagraph=True,
        ),
        compilation_config=types.SimpleNamespace(cudagraph_mode=object()),
    )  # fmt: skip
    with contextlib.suppress(Exception):  # the configuration is too small for the rest of it
        WorkerBase.__init__(object.__new__(type("W", (WorkerBase,), {})), config, 0, 0, "")
    allocator = get_mem_allocator_instance()
    report.check(
        "a worker with the backend gets the allocation, too", isinstance(allocator, SleepAllocator)
    )
    pool = vars(VllmConfig).get("use_cumem_cudagraph_pool")
    if pool is not None:
        report.check("graphs are captured where they can sleep", pool.fget(config) is True)
    turn(report, memory, allocator, SleepModeBackendFactory.create_backend(config.model_config))


def check_vllm_without_backends(report: Report, memory: fake_torch.Torch) -> None:
    """Before 0.31: the environment asks for the allocator."""
    os.environ["DUCTILE_VLLM"] = "1"
    load_plugin_of_vllm()
    from vllm.device_allocator import get_mem_allocator_instance
    from vllm.device_allocator.cumem import CuMemAllocator
    from vllm.v1.worker.worker_base import WorkerBase

    from ductile_gpu.vllm._allocator import SleepAllocator

    report.covers("CuMemAllocator", CuMemAllocator, SleepAllocator, OWN_OF_CUMEM)
    config = types.SimpleNamespace(model_config=types.SimpleNamespace(enable_cumem_allocator=True))
    with contextlib.suppress(Exception):  # the configuration is too small for the rest of it
        WorkerBase.__init__(object.__new__(type("W", (WorkerBase,), {})), config, 0, 0, "")
    allocator = get_mem_allocator_instance()
    report.check("a worker gets the allocation", isinstance(allocator, SleepAllocator))
    turn_without_backend(report, memory, allocator)


def turn_without_backend(report: Report, memory: fake_torch.Torch, allocator: Any) -> None:
    context = pool_context(report)
    with context("weights"):
        weights = memory.tensor(64 * MIB)
    with context("kv_cache"):
        cache = memory.tensor(128 * MIB)
    full = {"weights": 64, "kv_cache": 128}
    report.check("memory by tag", held() == full and memory.native_bytes == 0, held())
    for level, kept in ((1, ("weights",)), (2, ())):
        allocator.sleep(offload_tags=kept)
        report.check(f"sleep of level {level}", not sum(held().values()), held())
        report.check("pointer_to_data", allocator.pointer_to_data[cache.data_ptr()].is_asleep)
        allocator.wake_up(["weights"])
        report.check("wake_up(['weights'])", held() == {**full, "kv_cache": 0}, held())
        allocator.wake_up(["kv_cache"])
        report.check("wake_up(['kv_cache'])", held() == full, held())
    report.check("get_current_usage", allocator.get_current_usage() == sum(full.values()) * MIB)
    allocator.release_pools()
    del weights, cache


def _knows(factory: Any) -> bool:
    return bool(factory.get_backend_class("ductile").__name__ == "DuctileBackend")


def stand_in_for(real: Any, changed: Any) -> Any:
    class Seen:
        def __getattr__(self, name: str) -> Any:
            return getattr(changed if hasattr(changed, name) else real, name)

    return Seen()


def turn(report: Report, memory: fake_torch.Torch, allocator: Any, backend: Any) -> None:
    context = pool_context(report)
    with context("weights"):
        weights = memory.tensor(64 * MIB)
    with context("runtime"), context("kv_cache"):
        cache = memory.tensor(128 * MIB)
    with context("runtime"):
        state = memory.tensor(2 * MIB)
    graph = fake_torch.Graph()
    with allocator.cudagraph_pool() as pool, torch.cuda.graph(graph, pool=pool):
        graph.output = memory.tensor(16 * MIB)
    full = {"weights": 64, "kv_cache": 128, "runtime": 2, "cudagraph": 16}
    report.check("memory by tag", held() == full and memory.native_bytes == 0, held())
    backend.suspend(1)
    report.check("suspend(1)", not sum(held().values()) and backend.state() == "SUSPENDED", held())
    backend.resume(["weights"])
    report.check("resume(['weights'])", held() == {**full, "kv_cache": 0}, held())
    backend.resume(["kv_cache"])
    report.check("resume(['kv_cache'])", held() == full and backend.state() == "RUNNING", held())
    backend.discard(("kv_cache",))
    report.check("discard(('kv_cache',))", held() == {**full, "kv_cache": 0}, held())
    backend.suspend(2)
    backend.resume()
    report.check("suspend(2), resume()", held() == full, held())
    call_hooks(report, allocator, backend)
    with allocator.reuse_memory_pool("weights"):
        more = memory.tensor(2 * MIB)
    report.check("reuse_memory_pool", held()["weights"] == 66, held())
    report.check("reuse_memory_pool of no tag", refuses(allocator.reuse_memory_pool, ValueError))
    del more
    full = held()
    report.check("pointer_to_data", allocator.pointer_to_data[cache.data_ptr()].tag == "kv_cache")
    report.check("get_current_usage", allocator.get_current_usage() == sum(full.values()) * MIB)
    allocator.release_pools()
    del weights, cache, state


def call_hooks(report: Report, allocator: Any, backend: Any) -> None:
    heard: list[str] = []
    end = allocator.register_tag_hooks(
        "kv_cache", lambda: heard.append("leaves"), lambda: heard.append("is back")
    )
    for _ in range(2):
        backend.suspend(1)
        backend.resume()
        end()
    report.check("register_tag_hooks, until they end", heard == ["leaves", "is back"], heard)


def refuses(context: Any, error: type[Exception]) -> bool:
    try:
        with context("nothing"):
            return False
    except error:
        return True


def pool_context(report: Report) -> Any:
    """The worker's own function. Its module needs vLLM's compiled parts, which a machine without
    CUDA cannot load; the function needs none of them, and is read out of the module's text."""
    import vllm.device_allocator as module
    import vllm.platforms as platforms

    text = Path(str(module.__file__)).parents[1] / "v1" / "worker" / "gpu_worker.py"
    found = [
        node
        for node in ast.walk(ast.parse(text.read_text()))
        if isinstance(node, ast.FunctionDef) and node.name == "_maybe_get_memory_pool_context"
    ]
    report.check("the worker has _maybe_get_memory_pool_context", len(found) == 1, len(found))
    names: dict[str, Any] = {
        "current_platform": platforms.current_platform,
        "nullcontext": contextlib.nullcontext,
        "AbstractContextManager": contextlib.AbstractContextManager,
        **{name: getattr(module, name) for name in vars(module) if not name.startswith("_")},
    }
    exec(compile(ast.Module(list(found), []), str(text), "exec"), names)
    config = types.SimpleNamespace(enable_cumem_allocator=True, enable_sleep_mode=True)
    own = types.SimpleNamespace(vllm_config=types.SimpleNamespace(model_config=config))
    return lambda tag: names["_maybe_get_memory_pool_context"](own, tag)


# ---- SGLang ------------------------------------------------------------------------------------


def load_plugin_of_sglang() -> Any:
    os.environ["SGLANG_PLUGINS"] = "ductile"
    adapter = importlib.import_module("sglang.srt.utils.torch_memory_saver_adapter")
    from sglang.srt.plugins import load_plugins

    load_plugins()
    return adapter


def check_sglang(report: Report) -> None:
    memory = on_a_virtual_gpu()
    adapter = load_plugin_of_sglang()
    from ductile_gpu import memory_saver

    report.check(
        "the plug-in loads through the entry point",
        adapter._memory_saver is memory_saver.torch_memory_saver,
    )
    saver = adapter.TorchMemorySaverAdapter.create(enable=True)
    report.check("the adapter is enabled", saver.enabled)
    with saver.configure_subprocess():
        report.check("children are left to the plug-in", "LD_PRELOAD" not in os.environ)
    with saver.region("weights", enable_cpu_backup=True):
        weights = memory.tensor(64 * MIB)
    with saver.region(tag="kv_cache"):
        cache = memory.tensor(128 * MIB)
    graph = fake_torch.Graph()
    with saver.cuda_graph(
        tag="cuda_graph", enable_cpu_backup=True, cuda_graph=graph,
        pool=torch.cuda.graph_pool_handle(), stream=None,
    ):  # fmt: skip
        graph.output = memory.tensor(16 * MIB)
    full = {"weights": 64, "kv_cache": 128, "cuda_graph": 16}
    report.check("memory by tag", held() == full and memory.native_bytes == 0, held())
    for tag in ("kv_cache", "weights", "cuda_graph"):
        saver.pause(tag)
    report.check("pause in SGLang's order", not sum(held().values()), held())
    for tag in ("cuda_graph", "weights", "kv_cache"):
        saver.resume(tag)
    report.check("resume in SGLang's order", held() == full, held())
    with saver.region("weights"), saver.disable():
        aside = memory.tensor(MIB)
    report.check("disable", held() == full and memory.native_bytes == MIB, held())
    del weights, cache, aside


# ---- torch_memory_saver ------------------------------------------------------------------------


def check_torch_memory_saver(report: Report) -> None:
    memory = on_a_virtual_gpu()
    entrypoint = importlib.import_module("torch_memory_saver.entrypoint")
    utils = importlib.import_module("torch_memory_saver.utils")
    from ductile_gpu import memory_saver

    report.covers("TorchMemorySaver", entrypoint.TorchMemorySaver, memory_saver.TorchMemorySaver)
    private = {"warnings", "logger"}
    public = {
        n: v
        for n, v in vars(utils).items()
        if inspect.isfunction(v) and v.__module__ == utils.__name__
    }
    report.covers("utils", types.SimpleNamespace(**public), memory_saver.utils, private)
    folder = Path(entrypoint.__file__).parent.parent
    found: set[str] = set()
    for library in folder.rglob("*.so"):
        found |= set(
            re.findall(rb"\x00(tms_[a-z_]+|set_memory_margin_bytes)\x00", library.read_bytes())
        )
    names = {name.decode() for name in found} - {"tms_torch_malloc", "tms_torch_free"}
    names = {name for name in names if not name.startswith("tms_xpu")}
    import ctypes

    path = memory_saver.utils.get_binary_path_from_package("torch_memory_saver_hook_mode_torch")
    ours = ctypes.CDLL(str(path))
    missing = sorted(name for name in names if not hasattr(ours, name))
    report.check(
        f"every C name that an allocator can have ({len(names)})", names and not missing, missing
    )
    call_saver(report, memory, memory_saver.torch_memory_saver)


def as_tensor(fake: Any, size: int) -> Any:
    """What get_cpu_backup asks a tensor for."""
    return types.SimpleNamespace(
        is_cuda=True, is_contiguous=lambda: True, nbytes=size, shape=(size,), dtype=torch.uint8,
        data_ptr=fake.data_ptr,
    )  # fmt: skip


def call_saver(report: Report, memory: fake_torch.Torch, saver: Any) -> None:
    """What SGLang does not call, and others do."""
    saver.hook_mode = "torch"
    with saver.region("kept", enable_cpu_backup=True):
        made = memory.tensor(4 * MIB)
    tensor = as_tensor(made, 4 * MIB)
    saver.pause("kept")
    backup = saver.get_cpu_backup(tensor, zero_copy=True)
    report.check("get_cpu_backup of what is paused", backup is not None and len(backup) == 4 * MIB)
    backup[0] = 9
    saver.retain_cpu_backup = True
    saver.resume("kept")
    backup = saver.get_cpu_backup(tensor)
    report.check("retain_cpu_backup", backup is not None and int(backup[0]) == 9)
    saver.retain_cpu_backup = False
    saver.memory_margin_bytes = 1 << 50
    is_refused = False
    try:
        with saver.region("more"):
            memory.tensor(MIB)
    except memory.OutOfMemoryError:
        is_refused = True
    saver.memory_margin_bytes = 0
    report.check("memory_margin_bytes", is_refused)
    saver.pause("kept")
    saver.resume("kept")
    report.check("a backup that is not retained goes", saver.get_cpu_backup(tensor) is None)


# ---- Their own tests ---------------------------------------------------------------------------

COMPILED = "needs the worker's module, and so vLLM's compiled parts"
REPLACED = "calls vLLM's own allocator and replaces the C functions below it, which Ductile has not"

OWN_TESTS: dict[str, dict[str, str]] = {
    "vllm": {
        "tests/v1/worker/test_sleep_mode_backend.py": "",
        "tests/v1/worker/test_sleep_mode_backend.py::test_worker_drives_communicator_suspension": (
            COMPILED
        ),
        "tests/device_allocator/test_alloc_conf.py": "",
        "tests/device_allocator/test_cudagraph_pool_policy.py": "",
        "tests/device_allocator/test_cudagraph_pool_policy.py::test_engine_config_applies_policy": (
            "fetches a model's configuration"
        ),
        "tests/device_allocator/test_cumem.py": REPLACED,
        "tests/device_allocator/test_cumem_sync_before_unmap.py": REPLACED,
        "tests/device_allocator/test_cumem_wake_synchronize.py": REPLACED,
        "tests/device_allocator/test_cumem_wake_up_recovery.py": REPLACED,
    },
    "sglang": {"test/registered/unit/utils/test_torch_memory_saver_adapter.py": ""},
}
"""Of each test why it does not apply; "": it does."""


class Outcomes:
    """Of each test, as pytest tells them."""

    def __init__(self) -> None:
        self.found: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" or report.outcome != "passed":
            self.found[report.nodeid] = report.outcome


def outcomes(sources: Path, run: list[str], but: list[str]) -> dict[str, str]:
    import pytest

    seen = Outcomes()
    plain = ["-q", "--no-header", "--no-summary", "--tb=no", "--noconftest", "-c", os.devnull]
    where = [f"--rootdir={sources}", "-p", "no:cacheprovider"]
    chosen = [f"--deselect={name}" for name in but]
    pytest.main([*plain, *where, *chosen, *(str(sources / name) for name in run)], plugins=[seen])
    return seen.found


def run_own_tests(package: str, sources: Path, load_plugin: Callable[[], object]) -> int:
    """What passes without the plug-in has to pass with it. What fails without is of a version that
    the sources are not of."""
    tests = OWN_TESTS[package]
    there = [name for name in tests if (sources / name.partition("::")[0]).is_file()]
    for name in tests:
        said = tests[name] or ("runs" if name in there else "")
        print(f"{package}: {name}: {said or 'not in these sources'}", flush=True)
    run = [name for name in there if not tests[name]]
    but = [name for name in there if "::" in name and tests[name]]
    if not run:
        return 0
    sys.path.insert(0, str(sources))
    before = outcomes(sources, run, but)
    load_plugin()
    after = outcomes(sources, run, but)
    lost = [name for name, said in before.items() if said == "passed" != after.get(name)]
    for name, said in before.items():
        print(f"{package}: {name}: {said}, with the plug-in {after.get(name)}")
    passed = sum(said == "passed" for said in before.values())
    print(f"{package}: {passed} of {len(before)} pass; with the plug-in {len(lost)} fewer")
    return int(bool(lost) or not passed)


def main(package: str, folder: Path, sources: str = "") -> int:
    place, version = unpack(package, folder)
    sys.path.insert(0, str(place))
    report = Report(f"{package} {version}")
    finder = stand_ins.Finder(package)
    sys.meta_path.append(finder)  # type: ignore[arg-type]
    logging.getLogger("ductile_gpu").addHandler(logging.StreamHandler())
    if sources:
        on_a_virtual_gpu()
        load: Callable[[], object] = load_plugin_of_sglang
        if package == "vllm":
            show_cuda_to_vllm()
            load = load_plugin_of_vllm
        return run_own_tests(package, Path(sources), load)
    globals()[f"check_{package}"](report)
    print(f"{report.package}: stand-ins for {', '.join(sorted(finder.made)) or 'nothing'}")
    return int(report.failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:]))
