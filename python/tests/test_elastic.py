# SPDX-License-Identifier: Apache-2.0
"""Elastic ranges, of the allocator and as PyTorch's tensors, on the virtual GPU."""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sysconfig
import types

import fake_torch
import pytest
from running import python
from support import ROOT

import ductile_gpu
from ductile_gpu.torch import _elastic, _plain, _tag_pools, _tags

MIB = 1 << 20
torch = fake_torch.torch


def live(allocator):
    return allocator.stats().allocated_bytes


# ---- The allocator's ---------------------------------------------------------------------------


def test_a_range_has_memory_behind_what_is_committed_and_nothing_else(gpu):
    allocator = gpu.allocator()
    with allocator.elastic("1G", "4M", gpu.stream()) as of:
        assert (of.size, of.unit, live(allocator)) == (1 << 30, 4 * MIB, 0)
        of.commit(0, "8M")
        of.commit("4M", "8M")
        assert live(allocator) == 12 * MIB
        of.decommit("4M", "4M")
        assert live(allocator) == 8 * MIB
        calls = gpu.state().calls
        of.commit(0, "12M")
        assert gpu.state().calls == calls
    assert live(allocator) == 0


def test_a_snapshot_says_which_blocks_are_of_ranges(gpu):
    allocator = gpu.allocator()
    of = allocator.elastic("16M")
    of.commit(0, "4M")
    block = allocator.alloc("4M")
    found = {
        s["address"]: {"elastic" in b for b in s["blocks"]}
        for s in allocator.snapshot()["segments"]
    }
    assert found.pop(of.address) == {True}
    assert set.union(*found.values()) == {False}
    allocator.free(block)


def test_what_is_no_range_and_no_unit_is_refused(gpu):
    allocator = gpu.allocator()
    for size, unit in ((0, 0), ("1G", "3M")):
        with pytest.raises(ductile_gpu.InvalidArgument, match="no range of"):
            allocator.elastic(size, unit)
    of = allocator.elastic("16M", "4M")
    with pytest.raises(ductile_gpu.InvalidArgument, match="no commit of 4194304 bytes at 1"):
        of.commit(1, "4M")
    with pytest.raises(ductile_gpu.InvalidArgument):
        of.decommit("12M", "8M")


def test_a_commit_that_is_refused_has_changed_nothing(gpu):
    allocator = gpu.allocator(limit_bytes="32M")
    of = allocator.elastic("1G", "4M")
    of.commit("8M", "4M")
    with pytest.raises(ductile_gpu.OutOfMemory, match="no commit of 67108864 bytes at 0"):
        of.commit(0, "64M")
    assert live(allocator) == 4 * MIB


def test_the_last_view_ends_the_range(gpu):
    allocator = gpu.allocator()
    of = allocator.elastic("16M", "4M")
    of.commit(0, "16M")
    view = of.view("8M", "4M")
    assert (view.address, view.size) == (of.address + 4 * MIB, 8 * MIB)
    del of
    gc.collect()
    assert live(allocator) == 16 * MIB
    view.record_stream(gpu.stream())  # has no effect
    del view
    gc.collect()
    assert live(allocator) == 0


def test_a_tensor_on_a_view_keeps_the_range(gpu):
    of = gpu.allocator().elastic("16M", "4M")
    of.commit(0, "16M")
    capsule = of.view("8M")._export(None)
    with pytest.raises(BufferError, match="in use"):
        of.free()
    with pytest.raises(BufferError, match="in use"), of:
        pass
    del capsule
    gc.collect()
    of.free()


def test_a_view_that_was_freed_is_read_by_nobody(gpu):
    view = gpu.allocator().elastic("16M").view("2M")
    view.free()
    with pytest.raises(BufferError, match="freed"):
        view.__dlpack__()


def test_a_range_that_has_ended_refuses_and_a_second_end_does_nothing(gpu):
    of = gpu.allocator().elastic("16M")
    view = of.view("2M")
    of.free()
    of.free()
    for use in (lambda: of.commit(0, "2M"), lambda: of.decommit(0, "2M"), lambda: of.view("2M")):
        with pytest.raises(BufferError, match="freed"):
            use()
    with pytest.raises(BufferError, match="freed"):
        view.__dlpack__()


def test_a_range_may_outlive_its_allocator(gpu):
    allocator = gpu.allocator()
    of = allocator.elastic("16M")
    of.commit(0, "2M")
    allocator.close()
    of.free()


def test_a_named_stream_keeps_what_is_decommitted_until_it_is_done(lazy_gpu):
    allocator, other = lazy_gpu.allocator(), lazy_gpu.stream()
    of = allocator.elastic("16M", "4M", lazy_gpu.stream())
    of.commit(0, "8M")
    lazy_gpu.launch(other, writes=[(of.address, 4 * MIB)])
    of.decommit(0, "8M", other)
    assert allocator.stats().pending_blocks == 2
    lazy_gpu.sync(other)
    of.commit(0, "8M")
    assert lazy_gpu.state().violations == 0


@pytest.fixture
def lazy_gpu():
    with ductile_gpu.VirtualGPU("256M", schedule="lazy") as made:
        yield made


# ---- PyTorch's ---------------------------------------------------------------------------------


class Bytes:
    """Of a tensor, where it lies, what shape it has and how large its storage is; it keeps its
    owner."""

    def __init__(self, address, size, owner, shape=None, storage=None):
        self.address, self.size, self.owner, self.shape = address, size, owner, shape
        self.storage = size if storage is None else storage

    def __getitem__(self, part):
        rows = part.stop
        size = rows * self.size // self.shape[0]
        return Bytes(self.address, size, self.owner, (rows, *self.shape[1:]), self.storage)

    def view(self, *shape):
        return Bytes(self.address, self.size, self.owner, shape, self.storage)


@pytest.fixture
def allocator(torch, monkeypatch):
    """PyTorch's own allocator, and beside it Ductile, whose ranges become `Bytes`."""
    torch.cuda.current_stream = lambda device: types.SimpleNamespace(cuda_stream=0)
    torch.from_dlpack = lambda made: made
    monkeypatch.setattr(
        _elastic._dlpack,
        "make_capsule",
        lambda address, size, device, owner: Bytes(address, size, owner),
    )
    return _tag_pools.tag_allocators(0)[0]


HALF = types.SimpleNamespace(itemsize=2)


def test_rows_come_and_go_in_place(allocator):
    rows = ductile_gpu.torch.elastic((16, 64), 1 << 16, HALF, rows=100, unit="2M")
    assert (rows.rows, len(rows), rows.max_rows, live(allocator)) == (100, 100, 1 << 16, 2 * MIB)
    first = rows.view()
    assert (first.shape, first.size) == ((100, 16, 64), 100 * 2048)
    rows.resize(4096)
    assert live(allocator) == 8 * MIB
    assert rows.view().address == first.address == rows.tensor.address
    assert rows.tensor.shape == (1 << 16, 16, 64)
    rows.resize(0)
    assert live(allocator) == 0
    assert rows.view().shape == (0, 16, 64)


def test_the_storage_of_a_view_has_memory_to_its_end(allocator):
    rows = ductile_gpu.torch.elastic((16, 64), 1 << 16, HALF, rows=100, unit="2M")
    for n in (100, 4096, 0):  # torch.save and copy.deepcopy read all of it
        rows.resize(n)
        assert rows.view().storage == n * 2048
    assert rows.tensor.storage == 2048 << 16


def test_units_of_rows_come_and_go_anywhere_by_their_range(allocator):
    rows = ductile_gpu.torch.elastic(1 << 20, 16, HALF, unit="2M")
    rows.range.commit("8M", "2M")
    assert live(allocator) == 2 * MIB
    assert rows.tensor.address == rows.range.address
    rows.range.decommit("8M", "2M")
    assert (live(allocator), rows.rows) == (0, 0)


def test_a_resize_that_is_refused_leaves_the_rows_as_they_are(allocator):
    rows = ductile_gpu.torch.elastic(1 << 20, 1 << 16, HALF, rows=3)
    with pytest.raises(ductile_gpu.OutOfMemory):
        rows.resize(1 << 15)
    assert (rows.rows, rows.view().shape) == (3, (3, 1 << 20))
    for wrong in (-1, (1 << 16) + 1):
        with pytest.raises(ductile_gpu.InvalidArgument, match="a number of rows"):
            rows.resize(wrong)
    rows.resize(4)


def test_what_has_no_size_is_no_tensor(allocator):
    for shape, most in (((0, 4), 10), ((4,), 0)):
        with pytest.raises(ductile_gpu.InvalidArgument, match="no memory"):
            ductile_gpu.torch.elastic(shape, most, HALF)


def test_the_last_tensor_ends_the_range(allocator):
    rows = ductile_gpu.torch.elastic(1 << 20, 64, HALF, rows=3)
    view = rows.view()
    del rows
    gc.collect()
    assert live(allocator) > 0
    del view
    gc.collect()
    assert live(allocator) == 0


def test_units_are_as_large_as_the_whole_allows(allocator):
    sizes = {1 << 20: 2 * MIB, 1 << 30: 4 * MIB, 32 << 30: 64 * MIB, 1 << 40: 64 * MIB}
    assert {size: _elastic._unit_for(size) for size in sizes} == sizes


def test_streams_that_use_the_rows_are_named_to_a_resize(allocator, monkeypatch):
    said = []
    rows = ductile_gpu.torch.elastic(1 << 20, 64, HALF, rows=8, unit="2M")
    monkeypatch.setattr(rows._range, "decommit", lambda *given: said.append(given))
    rows.resize(7, streams=[5])
    assert said == [(14 * MIB, 2 * MIB, 5)]


def test_a_tensor_that_was_made_inside_a_tag_sleeps_with_it(allocator, shared, monkeypatch):
    monkeypatch.setattr(_plain, "is_installed", lambda: True)
    with _tags.pool("cache", contents="drop"):
        rows = ductile_gpu.torch.elastic(1 << 20, 64, HALF, rows=3)
    assert _tags.tags()["cache"].live_bytes == live(shared) == 6 * MIB
    _tags.sleep("cache")
    with pytest.raises(ductile_gpu.Asleep, match="cache"):
        rows.resize(4)
    rows.resize(2)
    _tags.wake("cache")
    rows.resize(5)
    assert _tags.tags()["cache"].live_bytes == 10 * MIB
    del rows


# ---- The page's examples -----------------------------------------------------------------------


def example(language):
    page = (ROOT / "docs" / "elastic.md").read_text()
    assert len(page.splitlines()) <= 80
    text = re.search(rf"^```{language}\n(.*?)^```$", page, re.M | re.S).group(1)
    assert len(text.splitlines()) <= 30
    return text


def test_the_example_in_python_runs(tmp_path):
    (tmp_path / "table.py").write_text(example("python") + "print(gpu.state().violations)")
    answer = python(tmp_path / "table.py")
    assert (answer.returncode, answer.stdout) == (0, "0\n"), answer.stderr


def test_the_example_in_c_runs(tmp_path):
    (tmp_path / "cache.c").write_text(example("c"))
    library = ductile_gpu.library_path()
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    build = [
        compiler,
        "-std=c11",
        "cache.c",
        "-o",
        "cache",
        library,
        f"-I{ductile_gpu.include_dir()}",
    ]
    subprocess.run([*build, f"-Wl,-rpath,{library.parent}"], cwd=tmp_path, check=True)
    conf = {**os.environ, "DUCTILE_CONF": "driver:virtual,check:3"}
    answer = subprocess.run(
        [tmp_path / "cache"], env=conf, capture_output=True, text=True, check=True
    )
    assert re.fullmatch(r"64 MiB at 0x[0-9a-f]+\n", answer.stdout)
