# SPDX-License-Identifier: Apache-2.0
"""What uses a GPU besides the allocators of a process, as NVML says it: in metrics and in top. The
library is a stand-in, and the virtual GPU is taken for the GPU that it knows."""

from __future__ import annotations

import ctypes
import json

import pytest
from running import python
from stub_torch import compile_stub
from test_metrics import read

import ductile_gpu
from ductile_gpu._process import _live, _metrics, _outside
from ductile_gpu._tools._cli.top import render
from ductile_gpu._tools._report import _live as _report_live

MIB, GIB = 1 << 20, 1 << 30
SOURCE = "../../tests/fake_cuda/fake_nvml.c"


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    """libnvidia-ml.so.1 without a driver."""
    output = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
    return compile_stub(SOURCE, output, "-D_GNU_SOURCE", "-Wl,-soname,libnvidia-ml.so.1")


@pytest.fixture
def nvml(library, monkeypatch):
    """Has it say something from here on."""
    for module in _outside, _live, _metrics, _report_live:
        monkeypatch.setattr(module, "pci_bus_id", lambda allocator: "0000:18:00.0")
    ctypes.CDLL(str(library))
    return lambda says: monkeypatch.setenv("FAKE_NVML", says)


def outside_samples(allocator):
    found = read(ductile_gpu.metrics({0: allocator}))
    return {key[2]: value for key, value in found.items() if key[0] == "ductile_outside_bytes"}


def test_metrics_say_what_the_process_and_others_use_outside(shared, nvml):
    nvml(f"4711:{5 * GIB} self:{600 * MIB} 42:{GIB}")
    kept = shared.alloc(88 * MIB)
    assert outside_samples(shared) == {"process": 512 * MIB, "others": 6 * GIB}
    shared.free(kept)


def test_what_all_allocators_of_the_process_hold_is_not_outside(gpu, shared, nvml):
    nvml(f"self:{600 * MIB}")
    with gpu.allocator() as second:
        second.alloc(20 * MIB)
        shared.alloc(80 * MIB)
        for allocator in shared, second:
            assert outside_samples(allocator) == {"process": 500 * MIB, "others": 0}
        samples = [line for line in ductile_gpu.metrics().splitlines() if "outside_bytes{" in line]
        assert len(samples) == 2, "of a GPU once, however many allocators there are"


@pytest.mark.parametrize("says", ["elsewhere", "silent", f"999999999:{GIB}"])
def test_metrics_have_no_sample_where_it_is_not_known(shared, nvml, says):
    nvml(says)
    assert outside_samples(shared) == {}
    assert "outside" not in ductile_gpu.metrics({0: shared})


def test_top_names_the_largest_of_the_others(shared, nvml):
    nvml(f"self:{512 * MIB} " + " ".join(f"{n}:{n * MIB}" for n in range(1, 8)))
    found = _live.describe()
    assert found["allocators"][0]["outside"] == {
        "own_bytes": 512 * MIB,
        "processes": [{"pid": n, "used_bytes": n * MIB} for n in range(7, 0, -1)],
    }
    assert (
        "  outside of it: 512.0 MiB by this process: CUDA's context, libraries; 7.0 MiB by process "
        "7; 6.0 MiB by process 6; 5.0 MiB by process 5; 4.0 MiB by process 4; 6.0 MiB by 3 more"
    ) in render([found], {})


def test_top_says_where_this_process_is_not_told_from_the_others(shared, nvml):
    nvml(f"999999999:{GIB}")
    lines = render([_live.describe()], {})
    said = "  outside of it: 1.00 GiB by process 999999999, this process among them"
    assert said in lines


@pytest.mark.parametrize("says", ["elsewhere", "silent", ""])
def test_top_has_no_line_where_nothing_is_known(shared, nvml, says):
    nvml(says)
    assert not [line for line in render([_live.describe()], {}) if "by process" in line]


def test_a_report_of_this_process_names_them(shared, nvml, tmp_path):
    nvml(f"4711:{5 * GIB} self:{600 * MIB}")
    kept = shared.alloc(88 * MIB)
    page = ductile_gpu.report(tmp_path / "live.html").read_text("utf-8")
    assert "512.0 MiB by this process" in page
    assert "5.00 GiB by process 4711, now" in page
    nvml("silent")
    assert "by this process" not in ductile_gpu.report(tmp_path / "live.html").read_text("utf-8")
    shared.free(kept)


def test_a_virtual_gpu_has_no_other_users(shared, library, monkeypatch):
    ctypes.CDLL(str(library))
    monkeypatch.setenv("FAKE_NVML", f"4711:{GIB}")
    assert _live.describe()["allocators"][0]["outside"] is None
    assert outside_samples(shared) == {}


def test_the_library_is_found_by_its_name(library):
    """As the driver installs it, in a process that has not loaded it."""
    program = """
import json, os
import ductile_gpu
from ductile_gpu._process import _outside
_outside.pci_bus_id = lambda allocator: "0000:18:00.0"
with ductile_gpu.VirtualGPU("1G") as gpu, gpu.allocator() as allocator:
    print(json.dumps(_outside.outside("0000:18:00.0").as_json()))
"""
    answer = python(
        "-c", program, LD_LIBRARY_PATH=library.parent, FAKE_NVML=f"17:{GIB} self:{4 * MIB}"
    )
    assert json.loads(answer.stdout) == {
        "own_bytes": 4 * MIB,
        "processes": [{"pid": 17, "used_bytes": GIB}],
    }, answer.stderr
