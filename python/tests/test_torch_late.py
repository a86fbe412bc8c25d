# SPDX-License-Identifier: Apache-2.0
"""Which allocator is asked after a switch while CUDA is in use, and when there is no switch; what
programs see of it is in programs/late.txt. PyTorch's own allocator is the real one, on a CUDA
runtime without a GPU; Ductile is on a virtual GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
from running import Answer, python

torch = pytest.importorskip("torch")
if torch.version.cuda is None:
    pytest.skip("this PyTorch is built without CUDA", allow_module_level=True)

# ---- Every function ----------------------------------------------------------------------------

# Who hears of a call on memory, or a pool, that native has / on Ductile's: "o" the allocator that
# has it, "b" both, "d" Ductile alone.
ROUTES = {
    "o": """raw_deleter raw_delete recordStream getBaseAllocation shareIpcHandle getIpcDevPtr
        getContextForPointer annotateMemory createOrIncrefPool ensureExistsAndIncrefPool setUseOnOOM
        setNoSplit checkPoolLiveAllocations getCheckpointState setCheckpointPoolState
        beginAllocateToPool endAllocateToPool getPoolUseCount releasePool""",
    "b": """init emptyCache getExpandableSegmentSizes setMemoryFraction getDeviceStats
        resetAccumulatedStats resetPeakStats snapshot recordHistory pushCompileContext
        popCompileContext setUserMetadata attachOutOfMemoryObserver attachOomRejectionObserver
        attachAllocatorTraceTracker markCaptureBegin markCaptureEnd enablePeerAccess""",
    "d": """allocate raw_alloc raw_alloc_with_stream allocateWithAddress copy_data initialized name
        enable isEnabled cacheInfo getMemoryFraction isHistoryEnabled recordAnnotation
        getUserMetadata supportsUserMetadata memcpyAsync getMemoryInfo""",
}
# What native is asked by another name.
HEARD_AS = {"raw_deleter": "raw_delete"}
# In the order that they need; what each needs before, on the same thing.
BEFORE = {
    "endAllocateToPool": ["beginAllocateToPool"],
    "setCheckpointPoolState": ["getCheckpointState"],
    "markCaptureEnd": ["markCaptureBegin"],
    "popCompileContext": ["pushCompileContext"],
    "getUserMetadata": ["setUserMetadata"],
    "annotateMemory": ["recordHistory"],
}


def declared() -> set[str]:
    from ductile_gpu.torch import _build, _surface

    found = _surface.declared(_build.describe_torch().include)
    return set(found - _surface.INHERITED)


def test_every_function_of_this_pytorch_has_a_route():
    named = [name for names in ROUTES.values() for name in names.split()]
    assert len(named) == len(set(named))
    assert declared() <= set(named), declared() - set(named)


ON_NATIVE_S = [(n, kind) for kind, names in ROUTES.items() for n in names.split()]


@pytest.mark.parametrize(("name", "kind"), ON_NATIVE_S)
@pytest.mark.parametrize("which", ["native", "ductile"])
def test_a_call_goes_to_the_allocator_that_has_what_it_is_about(servers, name, kind, which):
    if name not in declared():
        pytest.skip("this PyTorch has no such function")
    if (name, which) == ("allocateWithAddress", "native"):
        pytest.skip("new memory is Ductile's: that of an open pool of native's is asked below")
    out = servers(
        "late_prelude",
        f"""
        torch.cuda.init()
        call("probe_stand_in")
        tensor(1)
        call("probe_make_things", 0)
        enable("full")
        call("probe_make_things", 1)
        names = ctypes.c_char_p()
        for name in {[*BEFORE.get(name, []), name]!r}:
            call("probe_route", name.encode(), {int(which == "ductile")}, ctypes.byref(names))
        print(names.value.decode())
        sys.stdout.flush()
        os._exit(0)                  # pools may be open
        """,
    )
    is_heard = HEARD_AS.get(name, name) in out.split()
    expected = kind == "b" or (kind == "o" and which == "native")
    assert is_heard == expected, out


def test_an_open_pool_of_native_s_is_asked_for_an_address(servers):
    if "allocateWithAddress" not in declared():
        pytest.skip("this PyTorch has no such function")
    out = servers(
        "late_prelude",
        """
        torch.cuda.init()
        call("probe_stand_in")
        call("probe_make_things", 0)
        enable("full")
        names = ctypes.c_char_p()
        for name in ("beginAllocateToPool", "allocateWithAddress"):
            try:
                call("probe_route", name.encode(), 0, ctypes.byref(names))
            except RuntimeError:                  # it is no address of the pool
                print(names.value.decode())
        sys.stdout.flush()
        os._exit(0)
        """,
    )
    assert "allocateWithAddress" in out


# ---- Threads -----------------------------------------------------------------------------------


def test_threads_may_allocate_use_pools_and_capture_during_switches(runtime, tmp_path):
    """Under the thread sanitizer: python/tests/torch_race."""
    import torch_race

    from ductile_gpu._binding._native import library_path

    program = tmp_path / "switch_race"
    torch_race.build_race(program, library_path(), ["-O0"])
    done = torch_race.run(program, runtime, 60, 300)
    assert done.returncode == 0, done.stderr
    assert "60 switches" in done.stdout


# ---- Who is not replaced -----------------------------------------------------------------------


def run(runtime: Path, program: str, **environment: str) -> Answer:
    return python("-c", program, LD_PRELOAD=runtime, DUCTILE_CONF="driver:virtual", **environment)


ENABLE = """
import torch
import ductile_gpu.torch
torch.cuda.init()
torch.empty(100, device="cuda")
ductile_gpu.torch.enable({mode!r})
kept = torch.empty(100, device="cuda")
print(hex(kept.data_ptr()))
"""


def test_expandable_segments_of_native_are_no_hindrance(runtime):
    """Nothing is allocated under native: the runtime here has no virtual memory calls."""
    program = ENABLE.replace('torch.empty(100, device="cuda")\nductile', "ductile")
    done = run(
        runtime,
        program.format(mode="full"),
        PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True",
    )
    assert done.stdout.startswith("0x1000"), done.stderr


def test_another_allocator_is_refused_in_a_sentence(runtime, driver):
    program = "import ductile_gpu.torch; ductile_gpu.torch.enable()"
    done = run(runtime, program, PYTORCH_CUDA_ALLOC_CONF="backend:cudaMallocAsync")
    assert "backend:cudaMallocAsync cannot be met: it names another allocator" in done.stderr
    program = f"""
import torch, ductile_gpu.torch
own = torch.cuda.memory.CUDAPluggableAllocator({str(driver)!r}, "plain_alloc", "plain_free")
torch.cuda.memory.change_current_allocator(own)
torch.empty(100, device="cuda")
ductile_gpu.torch.enable("full")
"""
    done = run(runtime, program)
    assert "is a CUDAPluggableAllocator already: Ductile does not replace it" in done.stderr


def test_without_the_adapter_it_is_too_late(runtime):
    done = run(runtime, ENABLE.format(mode="plain"))
    assert "TooLate" in done.stderr
    assert "install a C++ compiler" in done.stderr


def test_a_warning_of_enable_names_the_line_that_called_it(runtime, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import torch, ductile_gpu.torch\n"
        "with torch.cuda.use_mem_pool(torch.cuda.MemPool()):\n"
        "    torch.empty(10, device='cuda')\n"
        "    ductile_gpu.torch.enable('full')\n"
    )
    done = run(runtime, f"import runpy; runpy.run_path({str(program)!r})")
    assert f"{program}:4: RuntimeWarning: a memory pool or a capture is open" in done.stderr


# ---- NCCL's registration of all memory ---------------------------------------------------------

GROUP = """
import os, sys, tempfile, warnings
import torch, torch.distributed as dist
import ductile_gpu.torch
warnings.simplefilter("always")
torch.empty(100, device="cuda")
def make_group(backend):
    place = tempfile.mkdtemp()
    dist.init_process_group(backend, init_method=f"file://{place}/store", rank=0, world_size=1)
"""
HOOK = "TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK"
# The backend that reads it. The other one, since 2.15, wants a GPU at once.
OLD = {"TORCH_DIST_USE_NCCL2": "0"}


@pytest.mark.parametrize(
    ("backend", "hook", "state", "said"),
    [
        ("gloo", "1", "full 0", f"{HOOK} is turned off: Ductile's memory moves"),
        ("nccl", "1", "off 1", f"{HOOK} has NCCL register all memory, and Ductile's moves: unset"),
        ("nccl", "0", "full 0", ""),
    ],
    ids=["turned off before NCCL reads it", "too late", "no hindrance"],
)
def test_nccls_registration_of_all_memory(runtime, backend, hook, state, said):
    program = f"""{GROUP}
make_group({backend!r})
try:
    ductile_gpu.torch.enable("full")
except ductile_gpu.torch.TooLate as error:
    print(error, file=sys.stderr)
print(ductile_gpu.torch.mode(), os.environ[{HOOK!r}], flush=True)
os._exit(0)
"""
    done = run(runtime, program, **OLD, **{HOOK: hook})
    assert done.stdout == f"{state}\n", done.stderr
    assert said in done.stderr


def test_ranks_are_warned_of_nothing(runtime):
    program = f"{GROUP}ductile_gpu.torch.enable('full')"
    ranks = {"WORLD_SIZE": "2", "RANK": "0"}
    for quiet in ({}, ranks, {**ranks, **OLD}):
        done = run(runtime, program, **quiet)
        assert done.returncode == 0, done.stderr
        assert "Warning" not in done.stderr
