# SPDX-License-Identifier: Apache-2.0
"""DLPack: the capsules, over the host's memory, which every machine has."""

from __future__ import annotations

import ctypes
import gc
import weakref

import pytest

from ductile_gpu._binding import _dlpack

numpy = pytest.importorskip("numpy")


class Bytes:
    """Host memory that is given away as a Buffer gives away a GPU's."""

    def __init__(self, text: bytes) -> None:
        self.memory = ctypes.create_string_buffer(text, len(text))
        self.version = "not asked"

    def __dlpack_device__(self):
        return (_dlpack.CPU, 0)

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        self.version = max_version
        place = ctypes.addressof(self.memory)
        return _dlpack.make_capsule(place, len(self.memory), (_dlpack.CPU, 0), self, max_version)


def is_gone(seen) -> bool:
    gc.collect()
    return seen() is None


@pytest.mark.parametrize("version", [None, (0, 8), (1, 0), (1, 1)])
def test_a_capsule_that_nobody_takes_lets_go(version):
    given = Bytes(b"abc")
    seen = weakref.ref(given)
    capsule = given.__dlpack__(max_version=version)
    del given
    assert not is_gone(seen)
    name = "dltensor_versioned" if version and version >= (1, 0) else "dltensor"
    assert f'"{name}"' in repr(capsule)
    del capsule
    assert is_gone(seen)
    assert not _dlpack._given


def test_the_consumer_reads_the_memory_and_holds_its_owner():
    given = Bytes(b"ductile")
    seen = weakref.ref(given)
    array = numpy.from_dlpack(given)
    del given
    assert array.dtype == numpy.uint8
    assert array.tobytes() == b"ductile"
    assert not is_gone(seen)
    view = array[2:]
    del array
    assert view.tobytes() == b"ctile"
    assert not is_gone(seen)
    del view
    assert is_gone(seen)
    assert not _dlpack._given


def test_memory_of_a_virtual_gpu_is_not_given_away(allocator):
    with allocator.buffer(1000) as buffer:
        assert buffer.__dlpack_device__() == (_dlpack.CUDA, 0)
        with pytest.raises(BufferError, match="virtual GPU"):
            buffer.__dlpack__()
