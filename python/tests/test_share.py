# SPDX-License-Identifier: Apache-2.0
"""One allocator for all libraries: which one it is, who makes it, what may be recorded."""

from __future__ import annotations

import gc
import shutil
import subprocess
import sys

import pytest
from running import held_elsewhere, in_child, python

import ductile_gpu
from ductile_gpu import _adapters
from ductile_gpu._process import _share

MIB = 1 << 20


@pytest.fixture(autouse=True)
def _fresh(monkeypatch):
    monkeypatch.setattr(_share, "_allocators", {})
    monkeypatch.setattr(_share, "_options", {})
    monkeypatch.setattr(_share, "_provider", None)
    monkeypatch.setattr(_share, "_list_used", None)
    monkeypatch.setattr(_share, "_provided", {})
    monkeypatch.setattr(_share, "_change", None)
    monkeypatch.setattr(_share, "_givers", [])


@pytest.fixture
def made():
    """Shared allocators on virtual devices, closed at the end."""
    _share.configure({"driver": "virtual"})
    yield _share.shared
    for allocator in _share.by_device().values():
        allocator.close()


def test_every_library_gets_the_same_allocator(made):
    assert made(0) is made(0)
    assert _share.allocators() == [made(0)]


def test_what_one_frees_serves_the_next(made):
    address = made(0).alloc(8 * MIB)
    made(0).free(address)
    assert made(0).alloc(8 * MIB) == address


def test_a_provider_owns_the_allocators(allocator):
    _share.provide(lambda device: allocator.pointer)
    found = ductile_gpu.shared(0)
    assert found.is_borrowed
    assert found.pointer == allocator.pointer


# Makes one for device 0, by the caller's own function.
SERVES_ALL = """
#include <ductile_process.h>
#include <string.h>
ductile_allocator *ductile_process_open(const void *create, int device,
                                        const ductile_options *options) {
    static ductile_allocator *made;
    ductile_status (*function)(ductile_allocator **, const ductile_options *);
    memcpy(&function, &create, sizeof function);
    if (device == 0 && made == NULL && function(&made, options) != DUCTILE_OK) {
        return NULL;
    }
    return device == 0 ? made : NULL;
}
"""
# Each adapter with C of its own, and Python; the other device is served by none.
ASKS = """
import ctypes, sys
from ductile_gpu import library_path, shared
plain = ctypes.CDLL(str(library_path().with_name("libductile_torch.so")))
plain.ductile_torch_plain_open.restype = ctypes.c_void_p
assert shared(0).is_borrowed and not shared(1).is_borrowed
assert plain.ductile_torch_plain_open(0) == shared(0).pointer
assert plain.ductile_torch_plain_open(1) not in (None, shared(0).pointer)
"""


def test_adapters_ask_the_library_that_serves_all_of_a_process(tmp_path):
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    library, source = tmp_path / "libserves_all.so", tmp_path / "serves_all.c"
    source.write_text(SERVES_ALL)
    include = f"-I{ductile_gpu.include_dir()}"
    subprocess.run(["cc", "-shared", "-fPIC", include, source, "-o", library], check=True)
    answer = python("-c", ASKS, LD_PRELOAD=library, DUCTILE_CONF="driver:virtual")
    assert answer.returncode == 0, answer.stderr


def test_allocators_that_only_the_provider_has_used_are_found(allocator):
    used = []
    _share.provide(lambda device: allocator.pointer, lambda: used)
    assert ductile_gpu.allocators() == [allocator]
    used.append(3)
    (found,) = ductile_gpu.allocators()
    assert (found.device, found.pointer) == (3, allocator.pointer)
    assert 'device="3"' in ductile_gpu.metrics()


def test_a_provider_that_comes_too_late_is_refused(made):
    made(0)
    with pytest.raises(ductile_gpu.Busy, match="before the others"):
        _share.provide(lambda device: 0)


def test_options_cannot_change_once_an_allocator_exists(made):
    made(0)
    _share.configure({"driver": "virtual"})
    with pytest.raises(ductile_gpu.Busy, match="other options"):
        _share.configure({"reuse": "never"})


def test_libraries_that_are_missing_take_no_options_along(monkeypatch):
    monkeypatch.setitem(sys.modules, "ductile_gpu.rmm", None)
    with pytest.raises(ImportError):
        ductile_gpu.share("rmm", limit_bytes="1G")
    assert _share.given() == {}


def test_a_child_of_fork_does_not_wait_for_a_lock_of_its_parent():
    """Another thread, such as the one that `top` asks, holds it at the moment of the fork."""
    with held_elsewhere(_share._lock):
        in_child(_share.allocators)


def test_sharing_needs_a_library_by_its_right_name(monkeypatch):
    with pytest.raises(ductile_gpu.InvalidArgument, match="tensorflow"):
        ductile_gpu.share("tensorflow")
    for name in _adapters.LIBRARIES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(ductile_gpu.InvalidArgument, match="import them first"):
        ductile_gpu.share()


def test_pytorch_comes_first(monkeypatch):
    order = []

    class _Adapter:
        def __init__(self, name):
            self.name = name

        def enable(self, **options):
            order.append(self.name)

    for name in ("torch", "cupy"):
        monkeypatch.setitem(sys.modules, f"ductile_gpu.{name}", _Adapter(name))
    assert ductile_gpu.share("cupy", "torch") == ["torch", "cupy"] == order


# ---- Who is asked for memory -------------------------------------------------------------------


def giver_of(allocator, cached):
    """Frees the 200 MiB that a library has cached, once."""

    def give():
        if not cached:
            return 0
        allocator.free(cached.pop())
        return 200 * MIB

    return give


def test_a_library_gives_up_its_own_cache_before_another_is_refused(made):
    with ductile_gpu.VirtualGPU("256M") as gpu:
        _share.configure({})
        allocator = gpu.allocator()
        _share._add_callbacks(allocator)
        cached = [allocator.alloc(200 * MIB)]
        give = giver_of(allocator, cached)
        _share.add_giver(give)
        _share.add_giver(give)
        allocator.free(allocator.alloc(128 * MIB))
        assert cached == []


def test_arrays_in_cycles_are_collected_before_a_request_is_refused():
    class Node:
        def __init__(self, buffer):
            self.buffer = buffer
            self.me = self

    with ductile_gpu.VirtualGPU("256M") as gpu:
        allocator = gpu.allocator()
        _share._add_callbacks(allocator)
        gc.disable()
        try:
            Node(allocator.buffer(200 * MIB))
            assert allocator.stats().live_blocks == 1
            allocator.free(allocator.alloc(128 * MIB))
        finally:
            gc.enable()


def test_for_pytorchs_allocator_the_adapters_ask_after_the_refusal():
    with ductile_gpu.VirtualGPU("256M") as gpu:
        owner = gpu.allocator()
        borrowed = ductile_gpu.Allocator.borrow(owner.pointer)
        _share._add_callbacks(borrowed)
        cached = [owner.alloc(200 * MIB)]
        _share.add_giver(giver_of(owner, cached))
        with pytest.raises(ductile_gpu.OutOfMemory):
            borrowed.alloc(128 * MIB)
        assert len(cached) == 1
        assert _share.allocate(borrowed, 128 * MIB, 0, "CuPy") != 0
        assert cached == []
        with pytest.raises(ductile_gpu.OutOfMemory):
            _share.allocate(borrowed, 200 * MIB, 0, "CuPy")


# ---- Uses on other streams ---------------------------------------------------------------------


class _Array:
    def __init__(self, address):
        self.__cuda_array_interface__ = {"data": (address, False)}


class _Tensor:
    def __init__(self, address):
        self._address = address

    def untyped_storage(self):
        return self

    def data_ptr(self):
        return self._address


@pytest.mark.parametrize("kind", [_Array, _Tensor, int])
def test_arrays_of_all_libraries_can_be_recorded(kind, gpu, allocator):
    _share.adopt(0, allocator)
    gpu.set_schedule("lazy")
    address = allocator.alloc(MIB)
    other = gpu.stream()
    gpu.launch(other, reads=[(address, MIB)])
    ductile_gpu.record_stream(kind(address), other)
    allocator.free(address)
    assert allocator.stats().pending_bytes == MIB
    gpu.sync(other)


def test_memory_of_others_cannot_be_recorded(allocator):
    with pytest.raises(ductile_gpu.ForeignPointer, match="no allocator is shared"):
        ductile_gpu.record_stream(_Array(1 << 50), 0)
    _share.adopt(0, allocator)
    with pytest.raises(ductile_gpu.ForeignPointer):
        ductile_gpu.record_stream(_Array(1 << 50), 0)
    with pytest.raises(TypeError, match="neither"):
        ductile_gpu.record_stream("array", 0)
