# SPDX-License-Identifier: Apache-2.0
"""PyTorch on Ductile, as far as that shows without a GPU: the adapter is compiled against the
installed PyTorch and driven on a virtual GPU, each case in a process of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Callable

import pytest

torch = pytest.importorskip("torch")
if torch.version.cuda is None:
    pytest.skip("this PyTorch is built without CUDA", allow_module_level=True)

from ductile.torch import _build, _conf, _surface

HERE = Path(__file__).parent
PRELUDE = HERE / "torch_adapter"


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program that calls PyTorch's C++ interface, compiled like the adapter."""
    found = _build.describe_torch()
    output = tmp_path_factory.mktemp("driver") / "adapter_driver.so"
    command = [*_build._compiler(), *_build._flags(found), str(PRELUDE / "adapter_driver.cpp")]
    command += ["-o", str(output), f"-L{found.root / 'lib'}", "-lc10", "-lc10_cuda", "-ltorch_cuda"]
    subprocess.run(command, check=True)
    return output


def start(driver: Path, **environment: str) -> subprocess.Popen[str]:
    """A process that has Ductile as PyTorch's allocator on a virtual GPU, and runs programs."""
    changed = {**os.environ, **environment}
    changed.pop("DUCTILE_CONF", None)
    paths = [str(PRELUDE), changed.get("PYTHONPATH", "")]
    changed["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    return subprocess.Popen(
        [sys.executable, str(PRELUDE / "server.py"), str(driver)],
        env=changed,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def ask(server: subprocess.Popen[str], program: str) -> str:
    """Runs a program in a fork of the server; returns what it printed."""
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write(json.dumps(textwrap.dedent(program)) + "\n")
    server.stdin.flush()
    status, output = json.loads(server.stdout.readline())
    assert status == 0, output
    return str(output)


def stop(server: subprocess.Popen[str]) -> None:
    assert server.stdin is not None
    server.stdin.close()
    server.wait(60)


@pytest.fixture(scope="session")
def server(driver: Path) -> Iterator[subprocess.Popen[str]]:
    started = start(driver)
    yield started
    stop(started)


@pytest.fixture
def play(server: subprocess.Popen[str]) -> Callable[[str], str]:
    """Runs a program on Ductile; returns what it printed."""
    return lambda program: ask(server, program)


# ---- The interface -----------------------------------------------------------------------------


def test_every_virtual_function_of_the_installed_pytorch_is_accounted_for() -> None:
    include = _build.describe_torch().include
    names = _surface.declared(include)
    assert {"allocate", "raw_alloc", "snapshot", "recordHistory", "emptyCache"} <= names
    assert len(names) > 35
    assert _surface.unknown(include) == frozenset()


def test_what_is_called_implemented_is() -> None:
    text = (_build.SOURCES / "torch_allocator.h").read_text(encoding="utf-8")
    declared = set(re.findall(r"\b(\w+)\(", text))
    assert declared >= _surface.IMPLEMENTED


def test_a_new_virtual_function_is_noticed(tmp_path: Path) -> None:
    for header in _surface.HEADERS:
        (tmp_path / header).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / header).write_text("", encoding="utf-8")
    (tmp_path / _surface.HEADERS[-1]).write_text(
        "class CUDAAllocator : public DeviceAllocator {\n"
        "  virtual void* raw_alloc(size_t nbytes) = 0;\n"
        "  // virtual void commented();\n"
        "  virtual std::vector<int> defragment(\n      int device) { return {}; }\n"
        "};\n",
        encoding="utf-8",
    )
    assert _surface.unknown(tmp_path) == {"defragment"}


def test_the_adapter_overrides_what_the_header_declares(driver: Path) -> None:
    """Whatever is in the vtable of the base and not ours would call PyTorch's default."""
    path = _build.adapter_path(_build.describe_torch())
    symbols = subprocess.run(["nm", "-C", str(path)], capture_output=True, text=True, check=True)
    own = set(re.findall(r"ductile_torch::Allocator::(\w+)(?:\[abi:cxx11\])?\(", symbols.stdout))
    names = _surface.declared(_build.describe_torch().include) - _surface.INHERITED
    assert names <= own, names - own


def test_the_adapter_brings_no_c_plus_plus_library_of_its_own() -> None:
    """Two in one process mix neither locales nor exceptions."""
    path = _build.adapter_path(_build.describe_torch())
    symbols = subprocess.run(
        ["nm", "--defined-only", str(path)], capture_output=True, text=True, check=True
    )
    assert "ductile_torch_install" in symbols.stdout
    assert "_ZNSt6locale" not in symbols.stdout


def test_an_interface_that_does_not_fit_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DUCTILE_CACHE", str(tmp_path))
    found = _build.describe_torch()
    with pytest.raises(_build.BuildError, match="does not compile against PyTorch") as caught:
        _build.build(found._replace(root=tmp_path, minor=11))
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.glob("torch-*.so"))


def test_a_missing_compiler_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DUCTILE_CACHE", str(tmp_path))
    monkeypatch.setenv("CXX", str(tmp_path / "no-such-compiler"))
    with pytest.raises(_build.BuildError, match="no-such-compiler cannot be run"):
        _build.build(_build.describe_torch())


def test_many_ranks_build_once(tmp_path: Path) -> None:
    program = "from ductile.torch import _build; print(_build.build(_build.describe_torch()))"
    counting = tmp_path / "count-c++"
    log = tmp_path / "log"
    counting.write_text(f'#!/bin/sh\necho x >> {log}\nexec g++ "$@"\n', encoding="utf-8")
    counting.chmod(0o755)
    cache = tmp_path / "cache"
    environment = {**os.environ, "CXX": str(counting), "DUCTILE_CACHE": str(cache)}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    paths = {rank.communicate(timeout=600)[0] for rank in ranks}
    assert len(paths) == 1
    assert all(rank.returncode == 0 for rank in ranks)
    assert log.read_text(encoding="utf-8").count("x") == 1
    assert [path.suffix for path in cache.glob("torch-*")] == [".so"]


# ---- The scripts for a GPU ---------------------------------------------------------------------


def test_results_of_pytorchs_own_tests_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HERE / "torch_gpu"))
    import pytorch_tests

    output = """\
test_a (__main__.TestCuda.test_a) ... ok
test_b (__main__.TestCuda.test_b)
What it is about. ... /somewhere/x.py:1: UserWarning: ok?
  noise
FAIL
test_c (__main__.TestMemPool.test_c) ... skipped 'not here'
test_d (__main__.TestCuda.test_d) ... expected failure
test_e (__main__.TestCuda.test_e) ... Segmentation"""
    assert pytorch_tests.read_results(output) == {
        "TestCuda.test_a": "passed",
        "TestCuda.test_b": "failed",
        "TestMemPool.test_c": "skipped",
        "TestCuda.test_d": "xfailed",
        "TestCuda.test_e": "crashed",
    }


# ---- Switching on ------------------------------------------------------------------------------


def test_enabling_makes_ductile_the_allocator(play: Callable[[str], str]) -> None:
    out = play(
        """
        print(torch.cuda.get_allocator_backend(), ductile.torch.mode(), ductile.torch.is_active())
        ductile.torch.enable()
        print(torch.cuda.is_initialized())
        """
    )
    assert out.split() == ["ductile", "full", "True", "False"]


def test_options_of_ductile_are_taken_and_wrong_ones_refused(driver: Path) -> None:
    program = """
import ductile.torch
try:
    ductile.torch.enable("full", no_such_option=1)
except ValueError as error:
    print("refused", error)
print(ductile.torch.mode())
ductile.torch.enable("full", limit_bytes="40G")
print(ductile.torch.mode())
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert "refused" in done.stdout
    assert "no_such_option" in done.stdout
    assert done.stdout.split()[-2:] == ["off", "full"]


@pytest.mark.parametrize("mode", ["full", "plain"])
def test_children_inherit_it(mode: str) -> None:
    from ductile.torch import child_environment

    program = "import torch, ductile.torch; print(ductile.torch.mode())"
    nested = (
        "import subprocess, sys; "
        f"print(subprocess.run([sys.executable, '-c', {program!r}], "
        "capture_output=True, text=True).stdout)"
    )
    done = subprocess.run(
        [sys.executable, "-c", nested],
        env=child_environment(mode),
        capture_output=True,
        text=True,
        check=True,
    )
    if mode == "plain" and "libductile_torch" in done.stderr:
        pytest.skip("this installation has no libductile_torch.so")
    assert done.stdout.strip() == mode, done.stderr


def test_without_the_request_nothing_is_changed() -> None:
    from ductile.torch import child_environment

    environment = {**child_environment(), "DUCTILE_TORCH": "0"}
    program = "import torch; print(torch.cuda.get_allocator_backend())"
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "native"


# ---- Settings ----------------------------------------------------------------------------------


def test_settings_are_split_as_pytorch_splits_them() -> None:
    text = "expandable_segments:True, roundup_power2_divisions:[256:1,512:2,>:8],backend:native"
    assert _conf.parse(text) == {
        "expandable_segments": "True",
        "roundup_power2_divisions": "[256:1,512:2,>:8]",
        "backend": "native",
    }


def test_every_key_has_a_treatment() -> None:
    text = "garbage_collection_threshold:0.8,max_split_size_mb:64,pinned_num_register_threads:4"
    kinds = {s.key: s.treatment for s in _conf.describe(text)}
    assert kinds == {
        "garbage_collection_threshold": _conf.Treatment.HONOURED,
        "max_split_size_mb": _conf.Treatment.NEEDLESS,
        "pinned_num_register_threads": _conf.Treatment.HOST,
    }


def test_another_allocator_is_refused() -> None:
    with pytest.raises(ValueError, match="backend:cudaMallocAsync"):
        _conf.check("backend:cudaMallocAsync")


def test_rounding_is_pytorchs(driver: Path) -> None:
    server = start(driver, PYTORCH_CUDA_ALLOC_CONF="roundup_power2_divisions:4")
    out = ask(
        server,
        """
        def count():
            s = stats()
            for key in ("allocated_bytes", "requested_bytes"):
                found = s[key]["all"]
                print(found["current"], found["allocated"], found["freed"])

        a = alloc(5 * MIB + 1)
        count()
        free(a)
        count()
        torch._C._cuda_resetAccumulatedMemoryStats(0)
        free(alloc(5 * MIB + 1))
        count()
        """,
    )
    stop(server)
    held, asked = 6 << 20, (5 << 20) + 1
    assert [int(x) for x in out.split()] == [
        *(held, held, 0),
        *(asked, asked, 0),
        *(0, held, held),
        *(0, asked, asked),
        *(0, held, held),
        *(0, asked, asked),
    ]


# ---- Statistics --------------------------------------------------------------------------------


def test_statistics_count_every_block(play: Callable[[str], str]) -> None:
    play(
        """
        blocks = [alloc(1000 * (i + 1)) for i in range(50)]
        for block in blocks[::2]:
            free(block)
        s = stats()
        asked = [1000 * (i + 1) for i in range(50)]
        held = [(n + 511) // 512 * 512 for n in asked]
        for pool in ("all", "large_pool"):
            counts = {"current": 25, "peak": 50, "allocated": 50, "freed": 25}
            assert s["allocation"][pool] == counts
            assert s["requested_bytes"][pool]["current"] == sum(asked[1::2])
            assert s["requested_bytes"][pool]["allocated"] == sum(asked)
            assert s["allocated_bytes"][pool]["peak"] == sum(held)
            assert s["allocated_bytes"][pool]["freed"] == sum(held[::2])
        assert s["reserved_bytes"]["all"]["current"] % (2 * MIB) == 0
        torch._C._cuda_resetPeakMemoryStats(0)
        torch._C._cuda_resetAccumulatedMemoryStats(0)
        s = stats()
        assert s["allocated_bytes"]["all"]["peak"] == sum(held[1::2])
        assert s["allocated_bytes"]["all"]["allocated"] == 0
        assert s["allocated_bytes"]["all"]["freed"] == 0
        free(blocks[1])
        assert stats()["allocated_bytes"]["all"]["freed"] == held[1]
        """
    )


def test_the_first_allocation_is_the_first_that_counts(play: Callable[[str], str]) -> None:
    """What the library tried out when it opened the device is nobody's."""
    play(
        """
        a = alloc(1000)
        s = stats()
        held = {"current": 2 * MIB, "peak": 2 * MIB, "allocated": 2 * MIB, "freed": 0}
        assert s["reserved_bytes"]["all"] == held, s["reserved_bytes"]["all"]
        assert (s["num_device_alloc"], s["num_device_free"]) == (1, 0)
        free(a)
        torch._C._cuda_emptyCache()
        s = stats()
        assert (s["num_device_alloc"], s["num_device_free"]) == (1, 1)
        assert s["reserved_bytes"]["all"]["freed"] == 2 * MIB
        """
    )


@pytest.mark.parametrize("settle", [False, True])
@pytest.mark.parametrize(
    ("size", "native", "native_left"),
    [
        (512, 2, 2),
        (1 << 20, 4, 2),
        ((1 << 20) + 512, 20, 20),
        ((10 << 20) - 512, 40, 20),
        ((10 << 20) + 512, 36, 12),
    ],
)
def test_memory_of_a_graph_is_counted_while_it_lives_and_after(
    play: Callable[[str], str], size: int, native: int, native_left: int, settle: bool
) -> None:
    """What PyTorch's own test of this demands, but for the sizes of native's segments (MiB)."""
    play(
        f"""
        def count():
            s = stats()
            return [s[k]["all"]["current"] for k in ("active", "active_bytes", "reserved_bytes")]

        def grown():
            return [now - then for now, then in zip(count(), before)]

        size, pool = {size}, (0, 9)
        kept = alloc(size)
        before = count()
        random_state = [alloc(8), alloc(8)]  # a generator's, outside the graph's pool
        pool_call("probe_pool_begin", pool)
        result = alloc(size)
        for _ in range(5):
            clone, added = alloc(size), alloc(size)
            free(clone)
            free(result)
            result = added
        pool_call("probe_pool_end", pool)
        for turn in range(1 + {settle}):
            blocks, in_use, held = grown()
            assert (blocks, in_use) == (3, size + 1024), (blocks, in_use)
            assert 3 * size <= held <= {native} * MIB, held
            torch._C._cuda_emptyCache()
        pool_call("probe_pool_release", pool)
        for address in random_state:
            free(address)
        torch._C._cuda_emptyCache()
        blocks, in_use, held = grown()
        assert (blocks, in_use) == (1, size), (blocks, in_use)
        assert size <= held <= {native_left} * MIB, held
        free(result)
        torch._C._cuda_emptyCache()
        assert grown() == [0, 0, 0], grown()
        """
    )


def test_every_documented_key_is_there(play: Callable[[str], str]) -> None:
    play(
        """
        s = stats()
        for name in ("allocation", "segment", "active", "inactive_split", "allocated_bytes",
                     "reserved_bytes", "active_bytes", "inactive_split_bytes", "requested_bytes"):
            for pool in ("all", "small_pool", "large_pool"):
                assert set(s[name][pool]) == {"current", "peak", "allocated", "freed"}
        for name in ("oversize_allocations", "oversize_segments"):
            assert set(s[name]) == {"current", "peak", "allocated", "freed"}
        for name in ("num_alloc_retries", "num_ooms", "num_sync_all_streams", "num_device_alloc",
                     "num_device_free", "max_split_size"):
            assert isinstance(s[name], int)
        """
    )


# ---- Refusals ----------------------------------------------------------------------------------


def test_a_refusal_is_pytorchs_error_and_recoverable(play: Callable[[str], str]) -> None:
    out = play(
        """
        kept = alloc(100 * MIB)
        try:
            torch._C._cuda_cudaCachingAllocator_raw_alloc(3 << 40, 0)
        except torch.OutOfMemoryError as error:
            print(error)
        assert stats()["num_ooms"] == 1
        free(alloc(MIB))
        """
    )
    assert re.match(
        r"CUDA out of memory\. Tried to allocate 3072\.00 GiB\. GPU 0 has a total capacity of "
        r".+? of which .+? is free\. Of the allocated memory 100\.00 MiB is allocated by PyTorch, "
        r"and .+? is reserved by PyTorch but unallocated\. ",
        out,
    ), out
    assert "Ductile: " in out
    assert "What would help" in out
    assert "See documentation for Memory Management  (https://" in out


def test_more_than_an_exabyte_is_refused_as_pytorch_does(play: Callable[[str], str]) -> None:
    out = play(
        """
        try:
            alloc(1 << 61)
        except RuntimeError as error:
            print(error)
        """
    )
    assert "Tried to allocate more than 1EB memory" in out


def test_a_double_free_is_told(play: Callable[[str], str]) -> None:
    out = play(
        """
        a = alloc(1000)
        free(a)
        try:
            free(a)
        except RuntimeError as error:
            print(error)
        """
    )
    assert "invalid device pointer" in out


# ---- History -----------------------------------------------------------------------------------

RANDOM = """
import random
choice = random.Random({seed})
live = []
for i in range(600):
    if live and choice.random() < 0.45:
        free(live.pop(choice.randrange(len(live))))
    else:
        size = choice.choice((choice.randrange(1, 5000), choice.randrange(1, 9 * MIB)))
        live.append(alloc(size, choice.choice({streams})))
    if i == {start}:
        record(True)
    if i % 97 == 96:
        torch._C._cuda_emptyCache()
"""


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("start", [0, 300])
def test_the_history_obeys_the_viewers_rules(
    play: Callable[[str], str], seed: int, start: int
) -> None:
    out = play(
        RANDOM.format(seed=seed, start=start, streams="(0,)")
        + """
found = snapshot()
replay(found)
actions = [entry["action"] for entry in found["device_traces"][0]]
print(actions.count("alloc"), actions.count("free_completed"), actions.count("segment_map"),
      actions.count("segment_unmap"), actions[-1])
"""
    )
    allocs, frees, maps, unmaps, last = out.split()
    assert int(allocs) > 100
    assert int(frees) > 50
    assert int(maps) > 0
    assert int(unmaps) > 0
    assert last != "snapshot"


def test_a_snapshot_agrees_with_the_statistics(play: Callable[[str], str]) -> None:
    play(
        RANDOM.format(seed=5, start=0, streams="(0,)")
        + """
found, s = snapshot(), stats()
total = {"total_size": "reserved_bytes", "allocated_size": "allocated_bytes",
         "active_size": "active_bytes"}
for key, stat in total.items():
    assert sum(x[key] for x in found["segments"]) == s[stat]["large_pool"]["current"], key
blocks = [b for x in found["segments"] for b in x["blocks"]]
assert sum(b["state"] == "active_allocated" for b in blocks) == s["allocation"]["all"]["current"]
asked = sum(b["requested_size"] for b in blocks if b["state"].startswith("active"))
assert asked == s["requested_bytes"]["all"]["current"]
"""
    )


def test_the_memory_visualiser_s_own_code_reads_it(play: Callable[[str], str]) -> None:
    play(
        RANDOM.format(seed=6, start=0, streams="(0,)")
        + """
from torch.cuda import _memory_viz as viz
found = snapshot()
for segment in found["segments"]:
    segment.setdefault("frames", [])
    at = segment["address"]
    for block in segment["blocks"]:
        block.setdefault("address", at)
        block.setdefault("frames", [])
        at += block["size"]
for entry in found["device_traces"][0]:
    entry.setdefault("frames", [])
viz.segsum(found)
viz.trace(found)
assert "html" in viz.trace_plot(found)
assert "html" in viz.segment_plot(found)
"""
    )


def test_the_oldest_entries_make_room(play: Callable[[str], str]) -> None:
    play(
        """
        record(True, 10)
        for i in range(50):
            free(alloc(1000 + i))
        found = snapshot()["device_traces"][0]
        assert len(found) == 10
        assert found[-1]["action"] == "free_completed"
        assert [e["time_us"] for e in found] == sorted(e["time_us"] for e in found)
        record(False)
        assert snapshot()["device_traces"][0] == []
        """
    )


def test_a_snapshot_is_in_the_history_of_the_next_one(play: Callable[[str], str]) -> None:
    play(
        """
        record(True)
        a = alloc(3 * MIB + 1)
        assert snapshot()["device_traces"][0][-1]["action"] == "alloc"
        free(a)
        entries = [(e["action"], e["size"]) for e in snapshot()["device_traces"][0]]
        assert entries[-4:] == [("alloc", 3 * MIB + 1), ("snapshot", 3 * MIB + 512),
                                ("free_requested", 3 * MIB + 1),
                                ("free_completed", 3 * MIB + 1)], entries
        """
    )


@pytest.mark.parametrize("when", ["state", "alloc", "all"])
def test_the_history_has_the_stack_of_whom_memory_moved_for(
    play: Callable[[str], str], when: str
) -> None:
    """With "alloc", a free has the stack of its allocation."""
    play(
        f"""
        def allocate():
            return alloc(3 * MIB)

        def give_back(address):
            free(address)

        def empty_the_cache():
            torch._C._cuda_emptyCache()

        record_stacks("{when}")
        give_back(allocate())
        empty_the_cache()
        callers = {{"allocate", "give_back", "empty_the_cache"}}
        found = dict()
        for entry in snapshot()["device_traces"][0]:
            who = found.setdefault(entry["action"], [])
            who.append(callers.intersection(functions(entry)))
        freed = {{"give_back" if "{when}" == "all" else "allocate"}}
        wanted = dict(alloc={{"allocate"}}, segment_map={{"allocate"}}, free_requested=freed,
                      free_completed=freed,
                      segment_unmap={{"empty_the_cache"}} if "{when}" == "all" else set())
        if "{when}" == "state":
            wanted = dict.fromkeys(wanted, set())
        assert set(found) == set(wanted), found
        for action, who in wanted.items():
            assert all(one == who for one in found[action]), (action, found[action])
        """
    )


def test_every_entry_has_the_metadata_of_its_time(play: Callable[[str], str]) -> None:
    if not hasattr(torch._C, "_cuda_setMemoryMetadata"):
        pytest.skip("this PyTorch has no metadata of the user")
    play(
        """
        torch._C._cuda_setMemoryMetadata("a step")
        record(True)
        free(alloc(3 * MIB))
        torch._C._cuda_emptyCache()
        torch._C._cuda_setMemoryMetadata("")
        entries = snapshot()["device_traces"][0]
        assert {e["action"] for e in entries} >= {"alloc", "free_completed", "segment_unmap"}
        assert {e["user_metadata"] for e in entries} == {"a step"}, entries
        """
    )


def test_actions_can_be_left_out(play: Callable[[str], str]) -> None:
    if _build.describe_torch().minor < 11:
        pytest.skip("since PyTorch 2.11")
    play(
        """
        call("probe_skip", b"free_requested")
        free(alloc(1000))
        actions = {e["action"] for e in snapshot()["device_traces"][0]}
        assert "free_requested" not in actions
        assert {"alloc", "free_completed"} <= actions
        """
    )


def test_a_tracker_hears_all_without_history(play: Callable[[str], str]) -> None:
    play(
        """
        counts = (ctypes.c_int * 16)()
        call("probe_listen", counts)
        for i in range(5):
            free(alloc(1000))
        assert counts[0] == 5 and counts[1] == 5 and counts[2] == 5, list(counts)
        assert counts[5] > 0, "memory was mapped"
        """
    )


def test_a_tracker_hears_of_memory_before_it_leaves(play: Callable[[str], str]) -> None:
    play(
        """
        heard = (ctypes.c_ulonglong * 3)()
        kept = alloc(3 * MIB)
        call("probe_listen_to_memory", heard)
        outside = alloc(5 * MIB)
        mapped = heard[0]
        assert mapped in (4 * MIB, 6 * MIB), "what was mapped before is not told"
        free(outside)
        torch._C._cuda_emptyCache()
        assert heard[0] == 0, list(heard)
        assert heard[1] == mapped, "it was still held when it was said to leave"
        assert heard[2] == 0, "memory was not there when it was said to be"
        free(kept)
        """
    )


# ---- Pools -------------------------------------------------------------------------------------


def test_a_pool_keeps_its_memory_apart(play: Callable[[str], str]) -> None:
    play(
        """
        pool = (0, 7)
        pool_call("probe_pool_begin", pool)
        a = alloc(MIB)
        pool_call("probe_pool_end", pool)
        assert driver.probe_pool_uses(ctypes.c_ulonglong(0), ctypes.c_ulonglong(7)) == 1
        b = alloc(MIB)
        homes = {tuple(s["segment_pool_id"]): s for s in snapshot()["segments"]}
        assert homes[pool]["address"] <= a < homes[pool]["address"] + homes[pool]["total_size"]
        assert not homes[pool]["address"] <= b < homes[pool]["address"] + homes[pool]["total_size"]
        free(a)
        torch._C._cuda_emptyCache()
        assert pool in {tuple(s["segment_pool_id"]) for s in snapshot()["segments"]}
        pool_call("probe_pool_release", pool)
        torch._C._cuda_emptyCache()
        assert pool not in {tuple(s["segment_pool_id"]) for s in snapshot()["segments"]}
        free(b)
        """
    )


def test_a_pool_of_the_user_gives_back_what_is_free_with_the_cache(
    play: Callable[[str], str],
) -> None:
    play(
        """
        pool = (0, 5)
        pool_call("probe_pool_create", pool)
        pool_call("probe_pool_begin", pool)
        kept, freed = alloc(2 * MIB), alloc(20 * MIB)
        free(freed)
        torch._C._cuda_emptyCache()
        pool_call("probe_pool_end", pool)
        found = [s for s in snapshot()["segments"] if tuple(s["segment_pool_id"]) == pool]
        assert [(s["address"], s["total_size"]) for s in found] == [(kept, 2 * MIB)], found
        assert stats()["reserved_bytes"]["all"]["current"] == 2 * MIB
        """
    )


def test_a_pool_serves_a_second_stream_in_a_segment_of_its_own(play: Callable[[str], str]) -> None:
    """While another thread allocates outside, and the pool's opener does so afterwards."""
    play(
        """
        import threading

        def segments():
            found = [s for s in snapshot()["segments"] if tuple(s["segment_pool_id"]) == pool]
            return [(s["stream"], s["total_size"]) for s in found]

        def use(stream):
            blocks = [alloc(20 * MIB, stream) for _ in range(3)]
            for block in blocks:
                free(block)

        def use_the_pool():
            pool_call("probe_pool_begin", pool)
            for _ in range(10):
                use(2)
            pool_call("probe_pool_end", pool)
            pool_call("probe_pool_release", pool)
            use(2)

        def use_no_pool():
            for _ in range(10):
                use(0)

        pool = (0, 9)
        pool_call("probe_pool_begin", pool)
        free(alloc(16))
        pool_call("probe_pool_end", pool)
        assert segments() == [(0, 2 * MIB)], segments()
        threads = [threading.Thread(target=f) for f in (use_the_pool, use_no_pool)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert segments() == [(0, 2 * MIB), (2, 60 * MIB)], segments()
        pool_call("probe_pool_release", pool)
        torch._C._cuda_emptyCache()
        assert segments() == [], segments()
        """
    )


def test_graphs_in_turn_hold_the_memory_of_one(play: Callable[[str], str]) -> None:
    play(
        """
        held = []
        for turn in range(100):
            torch._C._cuda_emptyCache()
            pool_call("probe_pool_begin", (0, 20 + turn))
            workspace, result = alloc(32 * MIB), alloc(128 * 1024)
            free(workspace)
            pool_call("probe_pool_end", (0, 20 + turn))
            held.append(stats()["reserved_bytes"]["all"]["current"])
            free(result)
            pool_call("probe_pool_release", (0, 20 + turn))
        assert set(held) == {34 * MIB}, held
        """
    )


def test_a_checkpoint_is_restored_by_address(play: Callable[[str], str]) -> None:
    play(
        """
        pool = (3, 0)
        pool_call("probe_pool_begin", pool)
        kept, gone = alloc(3 * MIB), alloc(5 * MIB)
        pool_call("probe_checkpoint", pool)
        free(gone)
        new = alloc(MIB)
        assert new == gone
        freed, allocated = ctypes.c_size_t(), ctypes.c_size_t()
        call("probe_restore", ctypes.byref(freed), ctypes.byref(allocated))
        assert (freed.value, allocated.value) == (2, 2)
        pool_call("probe_pool_end", pool)
        live = {b_at: b["requested_size"] for s in snapshot()["segments"]
                for b_at, b in zip(addresses(s), s["blocks"]) if b["state"] == "active_allocated"}
        assert live == {kept: 3 * MIB, gone: 5 * MIB}, live
        free(kept)
        free(gone)
        pool_call("probe_pool_release", pool)
        """
    )


# ---- Sharing -----------------------------------------------------------------------------------


def test_a_receiver_that_stalls_does_not_stall_frees_of_other_blocks(
    play: Callable[[str], str],
) -> None:
    play(
        """
        import socket, threading

        shared, other = alloc(4 * MIB), alloc(4 * MIB)
        data, size = ctypes.c_void_p(), ctypes.c_size_t()
        call("probe_share", ctypes.c_void_p(shared), ctypes.byref(data), ctypes.byref(size))
        handle = ctypes.string_at(data.value, size.value)
        receiver = socket.socket(socket.AF_UNIX)
        receiver.settimeout(20)
        receiver.connect(b"\\0" + handle[4:28])
        receiver.send(handle[32:])
        assert receiver.recv(1)  # the export has begun; no answer follows

        def free_in_background(address):
            thread = threading.Thread(target=free, args=(address,))
            thread.start()
            thread.join(5)
            return thread

        assert not free_in_background(other).is_alive()
        own = free_in_background(shared)
        assert own.is_alive()  # not while it is being passed
        receiver.close()
        own.join(20)
        assert not own.is_alive()
        """
    )


# ---- Queries -----------------------------------------------------------------------------------


def test_an_address_inside_a_block_leads_to_its_base(play: Callable[[str], str]) -> None:
    play(
        """
        a = alloc(10000)
        base, size = ctypes.c_void_p(), ctypes.c_size_t()
        call("probe_base", ctypes.c_void_p(a + 4321), ctypes.byref(base), ctypes.byref(size))
        assert base.value == a
        assert size.value == 10240
        """
    )


def test_the_largest_free_block_is_told(play: Callable[[str], str]) -> None:
    play(
        """
        a = alloc(64 * MIB)
        b = alloc(MIB)
        free(a)
        largest = ctypes.c_size_t(1)
        call("probe_cache_info", ctypes.byref(largest))
        assert largest.value == 64 * MIB, largest.value
        """
    )


# ---- The quick path ----------------------------------------------------------------------------


def test_a_hit_makes_no_driver_call(play: Callable[[str], str]) -> None:
    play(
        """
        sizes = [512, 4096, 3 * MIB, 40 * MIB]
        for address in [alloc(size) for size in sizes for _ in range(4)]:
            free(address)
        before = library().stats()
        for turn in range(200):
            for address in [alloc(size) for size in sizes]:
                free(address)
        after = library().stats()
        assert after.allocs - before.allocs == 800
        assert after.driver_calls == before.driver_calls
        """
    )


def test_the_profiler_hears_of_hits_and_frees(play: Callable[[str], str]) -> None:
    play(
        """
        from torch.profiler import ProfilerActivity, profile
        free(alloc(8 * MIB))
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
            free(alloc(8 * MIB))
        changes = [e.device_memory_usage for e in profiled.events() if e.name == "[memory]"]
        assert changes == [8 * MIB, -8 * MIB], changes
        free(alloc(8 * MIB))
        """
    )


def test_a_tracer_hears_of_hits_and_frees(play: Callable[[str], str]) -> None:
    play(
        """
        from torch.cuda import _gpu_trace as trace
        free(alloc(8 * MIB))
        heard = []
        trace.register_callback_for_memory_allocation(lambda at: heard.append(("alloc", at)))
        trace.register_callback_for_memory_deallocation(lambda at: heard.append(("free", at)))
        torch._C._activate_gpu_trace()
        address = alloc(8 * MIB)
        free(address)
        assert heard == [("alloc", address), ("free", address)], heard
        """
    )
