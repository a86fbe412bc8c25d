# SPDX-License-Identifier: Apache-2.0
"""What PyTorch asks of its allocator since 2.12, on a virtual GPU. Skipped on older ones."""

from __future__ import annotations

import os
import re
import shutil
import warnings
from pathlib import Path
from typing import Callable, NamedTuple

import pytest

torch = pytest.importorskip("torch")
if torch.version.cuda is None:
    pytest.skip("this PyTorch is built without CUDA", allow_module_level=True)

from ductile_gpu.torch import _build

MINOR = int(torch.__version__.split(".")[1])


def since(minor: int) -> pytest.MarkDecorator:
    return pytest.mark.skipif(minor > MINOR, reason=f"PyTorch 2.{minor} has it")


# ---- 2.12 --------------------------------------------------------------------------------------

REFUSED = """
heard = (ctypes.c_ulonglong * 3)()
call("probe_hear_rejections", heard)
alloc(100 * MIB)
torch._C._accelerator_setAllocatorSettings("{settings}")
try:
    alloc({size})
    print("served")
except RuntimeError as error:
    assert "CUDA out of memory" in str(error), error
s = stats()
print(s["num_oom_rejections"], s["num_ooms"], *heard)
"""
ABOVE = 120 << 30


@since(12)
@pytest.mark.parametrize(
    ("settings", "size", "told"),
    [
        ("per_process_memory_fraction:0.5,throw_on_cudamalloc_oom:True", ABOVE, True),
        ("per_process_memory_fraction:0.5,throw_on_cudamalloc_oom:False", ABOVE, False),
        ("throw_on_cudamalloc_oom:True", 2 * ABOVE, False),
    ],
)
def test_refusals_of_the_policy_are_counted_apart(
    play: Callable[[str], str], settings: str, size: int, told: bool
) -> None:
    rejections, ooms, calls, asked, held = play(
        REFUSED.format(settings=settings, size=size)
    ).split()
    assert (rejections, ooms, calls) == (("1", "0", "1") if told else ("0", "1", "0"))
    assert (int(asked), int(held) >= 100 << 20) == ((size, True) if told else (0, False))


@since(12)
def test_the_stack_of_a_block_is_known(play: Callable[[str], str]) -> None:
    out = play(
        """
        def known(address):
            found = ctypes.c_int()
            call("probe_has_context", ctypes.c_void_p(address), ctypes.byref(found))
            return found.value
        before = alloc(1000)
        record_stacks("state")
        block = alloc(1000)
        print(known(before), known(block), known(block + 512))
        free(block)
        print(known(block))
        """
    )
    assert out.split() == ["0", "1", "0", "0"]


# ---- 2.13 --------------------------------------------------------------------------------------


@since(13)
def test_a_refusal_in_a_capture_says_so(play: Callable[[str], str]) -> None:
    out = play(
        """
        alloc(MIB)
        def refuse():
            try:
                alloc(3 << 40)
            except RuntimeError as error:
                print("being captured" in str(error))
        call("probe_capture", ctypes.c_bool(True))
        refuse()
        call("probe_capture", ctypes.c_bool(False))
        refuse()
        """
    )
    assert out.split() == ["True", "False"]


def test_a_block_is_made_where_it_is_wanted(play: Callable[[str], str]) -> None:
    out = play(
        """
        def put(size, address):
            try:
                _install.call(adapter.ductile_torch_alloc_at, ctypes.c_size_t(size),
                              ctypes.c_void_p(address), ctypes.c_void_p(0))
                print("put")
            except RuntimeError as error:
                print("refused")
        kept, gone, other = alloc(MIB), alloc(MIB), alloc(MIB, 0x10)
        free(gone)
        record(True)
        put(4096, gone + 8192)
        put(4096, gone + 8192)      # it is in use
        put(4096, kept)             # the same
        put(4096, 1 << 20)          # no block's
        put(0, gone)
        free(other)
        put(4096, other)            # another stream's
        assert stats()["allocation"]["all"]["current"] == 2
        free(gone + 8192)
        trace = [e["action"] for e in snapshot()["device_traces"][0] if e["addr"] == gone + 8192]
        assert trace == ["alloc", "free_requested", "free_completed"], trace
        """
    )
    assert out.split() == ["put"] + ["refused"] * 5


@since(13)
def test_what_each_pool_holds_is_counted(play: Callable[[str], str]) -> None:
    play(
        """
        def held(pool):
            found = stats()["reserved_bytes_by_private_pools"]
            key = next(k for k in found if tuple(k) == pool or k == f"{pool[0]}_{pool[1]}")
            return found[key]["all"]
        a, b = (0, 7), (0, 8)
        for pool, size in ((a, 3 * MIB), (b, 10 * MIB)):
            pool_call("probe_pool_begin", pool)
            block = alloc(size)
            pool_call("probe_pool_end", pool)
        four, ten = 4 * MIB, 10 * MIB
        assert held(a) == {"current": four, "peak": four, "allocated": four, "freed": 0}, held(a)
        assert held(b)["current"] == ten
        free(block)
        pool_call("probe_pool_release", b)
        torch._C._cuda_emptyCache()
        gone = {"current": 0, "peak": ten, "allocated": ten, "freed": ten}
        assert held(b) == gone, held(b)
        torch._C._cuda_resetPeakMemoryStats(0)
        assert (held(a)["peak"], held(b)["peak"]) == (four, 0)
        torch._C._cuda_resetAccumulatedMemoryStats(0)
        assert held(a) == {"current": four, "peak": four, "allocated": 0, "freed": 0}
        assert len(stats()["reserved_bytes_by_private_pools"]) == 1
        """
    )


@since(13)
def test_the_pinned_limits_are_in_a_snapshot(play: Callable[[str], str]) -> None:
    play(
        """
        found = snapshot()["allocator_settings"]
        assert (found["max_round_threshold"], found["max_cached_size"]) == (-1, -1)  # none
        """
    )


# ---- 2.14 --------------------------------------------------------------------------------------


@since(14)
def test_an_annotation_is_an_entry_of_its_own(play: Callable[[str], str]) -> None:
    out = play(
        """
        def annotate(address, text):
            call("probe_annotate", ctypes.c_void_p(address), text.encode())
        assert driver.probe_has_metadata() == 1
        block = alloc(3000)
        annotate(block, "too early")
        record(True)
        annotate(block, "packed")
        annotate(block + 1024, "inside")
        annotate(1 << 20, "no block's")
        free(block)
        found = snapshot()
        replay({**found, "device_traces": [[e for e in found["device_traces"][0]
                                            if e["action"] != "annotate"]]})
        for e in found["device_traces"][0]:
            print(e["action"], e["addr"] - block, e["size"], e["user_metadata"] or "-")
        """
    )
    assert out.splitlines() == [
        "annotate 0 3000 packed",
        "annotate 0 3000 inside",
        "free_requested 0 3000 -",
        "free_completed 0 3000 -",
    ]


# ---- What is newer than that -------------------------------------------------------------------


@pytest.mark.parametrize("version", ["2.5.1", "1.13.0"])
def test_a_version_that_is_too_old_is_refused_by_number(
    monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    with pytest.raises(_build.BuildError, match=f"^PyTorch {version} is older than 2.6, the old"):
        _build.describe_torch()


@pytest.mark.parametrize(
    ("version", "minor"), [("2.16.0", 16), ("2.16.0.dev20261101+cu132", 16), ("3.1.0", 101)]
)
def test_a_version_that_was_not_tried_is_tried(
    monkeypatch: pytest.MonkeyPatch, version: str, minor: int
) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    assert _build.describe_torch()[:2] == (version, minor)


DEFAULT = "virtual int defragment(int device, std::vector<int> which) { return 0; }"
ANOTHER_FORM = "virtual bool isHistoryEnabled(int device, int level) { return false; }"
PURE = "virtual void defragment() = 0;"


class Newer(NamedTuple):
    """The installed PyTorch with a version of its own and another interface."""

    found: _build.Torch
    header: Path

    def declare(self, function: str) -> None:
        text = self.header.read_text(encoding="utf-8")
        opened = "class CUDAAllocator : public DeviceAllocator {\n public:\n"
        changed = re.sub(r"class CUDAAllocator [^{]*\{\s*public:", f"{opened}{function}", text)
        assert changed != text
        self.header.write_text(changed, encoding="utf-8")


@pytest.fixture
def newer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Newer:
    found = _build.describe_torch()
    root = tmp_path / "torch"
    shutil.copytree(found.include, root / "include", copy_function=os.symlink)
    header = root / "include" / "c10" / "cuda" / "CUDACachingAllocator.h"
    text = header.read_text(encoding="utf-8")
    header.unlink()
    header.write_text(text, encoding="utf-8")
    (root / "lib").symlink_to(found.root / "lib")
    (tmp_path / "nvidia").symlink_to(found.root.parent / "nvidia")
    monkeypatch.setenv("DUCTILE_CACHE", str(tmp_path / "cache"))
    return Newer(found._replace(version="2.16.0", minor=16, root=root), header)


def test_a_newer_version_with_the_same_interface_is_served_in_silence(newer: Newer) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _build.tell_what_is_unknown(newer.found)


@pytest.mark.parametrize(
    ("function", "named"),
    [(DEFAULT, "defragment"), (ANOTHER_FORM, "isHistoryEnabled with 2 parameters")],
    ids=["function", "form"],
)
def test_what_a_newer_version_has_beside_is_named_and_the_rest_served(
    newer: Newer, function: str, named: str
) -> None:
    newer.declare(function)
    assert _build.build(newer.found).exists()
    with pytest.warns(RuntimeWarning, match=rf"2\.16\.0 has .* not know \({named}\): they do"):
        _build.tell_what_is_unknown(newer.found)


def test_a_newer_version_that_wants_what_is_unknown_is_refused_by_its_name(newer: Newer) -> None:
    newer.declare(PURE)
    expected = r"2\.16\.0, which is newer than 2\.15, .*, and declares defragment: .*; all of it is"
    with pytest.raises(_build.BuildError, match=expected):
        _build.build(newer.found)


def test_pytorch_s_headers_get_the_standard_they_need() -> None:
    found = _build.describe_torch()
    assert _build._standard(found._replace(minor=11)) == "-std=c++17"
    assert _build._standard(found._replace(minor=12)) == "-std=c++20"
