# SPDX-License-Identifier: Apache-2.0
"""The OpenMetrics text: well formed, complete, and equal to the statistics."""

from __future__ import annotations

import re

import pytest
from running import in_child

import ductile_gpu
from ductile_gpu._binding import _cuda

MIB = 1 << 20
KINDS = ("state", "kind", "call", "reason", "who")
parser = pytest.importorskip("prometheus_client.openmetrics.parser")


def read(text):
    """{(name, device, what of it): value}, by Prometheus' own reader, which is strict."""
    values = {}
    for family in parser.text_string_to_metric_families(text):
        for sample in family.samples:
            labels = sample.labels
            kind = next((labels[name] for name in KINDS if name in labels), None)
            key = (sample.name, labels.get("device"), kind)
            assert key not in values, "each sample is there once"
            values[key] = sample.value
    return values


def test_the_states_add_up_to_what_is_held(allocator):
    kept = allocator.alloc(5 * MIB)
    allocator.free(allocator.alloc(30 * MIB))
    found = read(ductile_gpu.metrics({0: allocator}))
    states = {key[2]: value for key, value in found.items() if key[0] == "ductile_memory_bytes"}
    assert set(states) == {"live", "pending", "free", "cached", "quarantined"}
    assert sum(states.values()) == allocator.stats().reserved_bytes
    assert states["live"] == 5 * MIB
    allocator.free(kept)


def test_counters_say_what_was_done(allocator):
    allocator.free(allocator.alloc(3 * MIB))
    found = read(ductile_gpu.metrics({0: allocator}))
    stats = allocator.stats()
    assert found["ductile_allocs_total", "0", None] == 1
    assert found["ductile_frees_total", "0", None] == 1
    assert found["ductile_driver_calls_total", "0", "create"] == stats.creates > 0
    calls = [value for key, value in found.items() if key[0] == "ductile_driver_calls_total"]
    assert sum(calls) == stats.driver_calls


def test_a_refusal_is_counted(allocator):
    with pytest.raises(ductile_gpu.OutOfMemory):
        allocator.alloc(1 << 40)
    assert read(ductile_gpu.metrics({0: allocator}))["ductile_out_of_memory_total", "0", None] == 1


def test_what_a_lack_of_memory_costs_is_counted(gpu):
    with gpu.allocator(reuse="never", limit_bytes=64 * MIB) as short:
        short.alloc(20 * MIB)
        short.free(short.alloc(30 * MIB))
        short.alloc(40 * MIB, gpu.stream())
        stats = short.stats()
        found = read(ductile_gpu.metrics({0: short}))
        assert stats.pressure_returns > 0
        assert found["ductile_pressure_waits_total", "0", None] == stats.pressure_waits
        assert found["ductile_pressure_returns_total", "0", None] == stats.pressure_returns
        gone = found["ductile_pressure_returned_bytes_total", "0", None]
        assert gone == stats.pressure_returned_total_bytes == 26 * MIB


def test_the_shared_allocators_are_the_default(shared):
    address = shared.alloc(MIB)
    assert read(ductile_gpu.metrics())["ductile_memory_bytes", "0", "live"] == MIB
    shared.free(address)


def test_several_allocators_share_a_metric(gpu):
    first, second = gpu.allocator(), gpu.allocator()
    address = second.alloc(MIB)
    found = read(ductile_gpu.metrics({0: first, 3: second}))
    assert found["ductile_memory_bytes", "0", "live"] == 0
    assert found["ductile_memory_bytes", "3", "live"] == MIB
    second.free(address)


def test_without_an_allocator_there_is_the_version_alone():
    text = ductile_gpu.metrics({})
    assert f'ductile_build{{version="{ductile_gpu.__version__}"}} 1' in text
    assert "ductile_memory_bytes" not in text


def test_driver_time_is_there_only_when_it_is_measured(gpu):
    plain, timed = gpu.allocator(), gpu.allocator()
    timed.time_driver_calls()
    timed.free(timed.alloc(MIB))
    assert "ductile_driver_seconds" not in ductile_gpu.metrics({0: plain})
    assert read(ductile_gpu.metrics({0: timed}))["ductile_driver_seconds_total", "0", None] > 0


def test_a_limit_shows(allocator):
    allocator.set_limit("64M")
    found = read(ductile_gpu.metrics({0: allocator}))
    assert found["ductile_limit_bytes", "0", "hard"] == 64 * MIB
    assert found["ductile_limit_bytes", "0", "device"] == 1 << 30


def test_what_is_held_is_a_gauge_of_a_named_device(allocator):
    address = allocator.alloc(7 * MIB)
    families = list(parser.text_string_to_metric_families(ductile_gpu.metrics({0: allocator})))
    memory = next(found for found in families if found.name == "ductile_memory_bytes")
    assert memory.type == "gauge"
    assert {sample.labels["hw_id"] for sample in memory.samples} == {"virtual"}
    allocator.free(address)


def test_node_exporter_can_read_it(allocator):
    parser = pytest.importorskip("prometheus_client.parser")
    families = list(parser.text_string_to_metric_families(ductile_gpu.metrics({0: allocator})))
    assert "ductile_memory_bytes" in {found.name for found in families}


@pytest.mark.gpu
def test_a_gpu_is_named_by_its_uuid():
    with ductile_gpu.Allocator() as allocator:
        assert f'hw_id="{_cuda.device_uuid(0)}"' in ductile_gpu.metrics({0: allocator})
    assert re.fullmatch(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", _cuda.device_uuid(0))


def test_in_a_fork_the_parents_allocators_are_none_of_the_process(allocator):
    def look():
        assert ductile_gpu.allocators() == []
        assert "allocator=" not in ductile_gpu.metrics()
        own = ductile_gpu.Allocator(driver="virtual")
        assert ductile_gpu.allocators() == [own]
        own.close()

    in_child(look)


def test_in_a_fork_the_shared_allocators_are_said_to_be_the_parents(shared):
    def look():
        with pytest.raises(ductile_gpu.ProcessGone):
            ductile_gpu.metrics()

    in_child(look)


def test_allocators_of_the_program_are_told_apart(gpu, allocator):
    with gpu.allocator() as other:
        allocator.alloc(MIB)
        other.alloc(2 * MIB)
        live = re.compile(
            r'^ductile_memory_bytes{.*allocator="([0-9]+)",state="live"} ([0-9]+)$', re.M
        )
        found = dict(live.findall(ductile_gpu.metrics()))
        assert sorted(found.values()) == [str(MIB), str(2 * MIB)]
