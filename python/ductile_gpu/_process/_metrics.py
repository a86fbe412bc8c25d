# SPDX-License-Identifier: Apache-2.0
"""What the allocators hold and have done, as OpenMetrics text for Prometheus and its kin."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Callable, NamedTuple, Optional

from ductile_gpu._binding import _abi, _cuda
from ductile_gpu._binding._abi import Stats
from ductile_gpu._binding._core import Allocator, Limits, kept_open
from ductile_gpu._process._outside import outside, pci_bus_id
from ductile_gpu._process._share import numbered

Labels = tuple[tuple[str, str], ...]
Value = tuple[Labels, float]
_Found = tuple[Labels, Stats, Limits]


class _Family(NamedTuple):
    """One metric: what it says, and its values for an allocator."""

    text: str
    values: Callable[[Stats, Limits], Iterable[Value]]


def _by(label: str, **fields: str) -> Callable[[Stats, Limits], Iterator[Value]]:
    """Statistics that share a metric, told apart by a label."""

    def values(stats: Stats, _limits: Limits) -> Iterator[Value]:
        for name, field in fields.items():
            yield ((label, name),), getattr(stats, field)

    return values


def _one(field: str) -> Callable[[Stats, Limits], Iterator[Value]]:
    def values(stats: Stats, _limits: Limits) -> Iterator[Value]:
        yield (), getattr(stats, field)

    return values


def _limits(_stats: Stats, limits: Limits) -> Iterator[Value]:
    yield (("kind", "hard"),), limits.limit_bytes
    yield (("kind", "soft"),), limits.soft_limit_bytes
    yield (("kind", "device"),), limits.device_bytes


def _driver_calls(stats: Stats, _limits: Limits) -> Iterator[Value]:
    counted = 0
    for call in ("create", "release", "map", "unmap"):
        number = getattr(stats, f"{call}s")
        counted += number
        yield (("call", call),), number
    yield (("call", "other"),), max(0, stats.driver_calls - counted)


def _driver_seconds(stats: Stats, _limits: Limits) -> Iterator[Value]:
    """Nothing unless it is measured: 0 would read as a measurement."""
    if stats.driver_time_ns > 0:
        yield (), stats.driver_time_ns / 1e9


_GAUGES = {
    "memory_bytes": _Family(
        "Physical memory held, by what it serves; the states add up to all that is held.",
        _by(
            "state",
            live="allocated_bytes",
            pending="pending_bytes",
            free="free_bytes",
            cached="cached_bytes",
            quarantined="quarantined_bytes",
        ),
    ),
    "memory_peak_bytes": _Family(
        "The most memory held, live, and live or pending, since the peaks were reset.",
        _by(
            "kind",
            held="reserved_peak_bytes",
            live="allocated_peak_bytes",
            active="active_peak_bytes",
        ),
    ),
    "requested_bytes": _Family(
        "Bytes requested for live blocks, before rounding.", _one("requested_bytes")
    ),
    "asleep_bytes": _Family(
        "Bytes of sleeping blocks, which hold no physical memory.", _one("asleep_bytes")
    ),
    "spilled_bytes": _Family(
        "Memory of the host: behind blocks, of those in use, at most since the peaks were reset, "
        "and page-locked.",
        _by(
            "kind",
            now="spilled_bytes",
            live="spilled_live_bytes",
            peak="spilled_peak_bytes",
            locked="spill_locked_bytes",
        ),
    ),
    "imported_bytes": _Family(
        "Memory of other processes that is mapped here.", _one("imported_bytes")
    ),
    "pinned_bytes": _Family(
        "Physical memory that must not move: pinned or exported.", _one("pinned_bytes")
    ),
    "limit_bytes": _Family(
        "How much physical memory the allocator may hold, and what the device has.", _limits
    ),
    "address_bytes": _Family("Virtual addresses reserved.", _one("address_bytes")),
    "host_bytes": _Family("Host memory of the allocator's own bookkeeping.", _one("host_bytes")),
    "blocks": _Family(
        "Blocks by state.",
        _by("state", live="live_blocks", pending="pending_blocks", free="free_blocks"),
    ),
    "handles": _Family("Physical handles held.", _one("handles")),
}
_COUNTERS = {
    "allocs": _Family("Successful allocations.", _one("allocs")),
    "frees": _Family("Successful frees.", _one("frees")),
    "slow_allocs": _Family("Allocations that no free block served at once.", _one("slow_allocs")),
    "out_of_memory": _Family("Requests refused for lack of memory.", _one("out_of_memory")),
    "spills": _Family("Requests that got memory of the host.", _one("spills")),
    "moved_handles": _Family(
        "Handles moved, by what for: a request, or compaction.",
        _by("reason", request="recycled_handles", compaction="compacted_handles"),
    ),
    "waits": _Family(
        "Times the host waited for a stream, and a stream was made to wait for another.",
        _by("who", host="stream_syncs", stream="event_waits"),
    ),
    "pressure_waits": _Family(
        "Times the host waited for the GPU because a request lacked memory.", _one("pressure_waits")
    ),
    "pressure_returns": _Family(
        "Times memory went back to the driver because a request lacked it.",
        _one("pressure_returns"),
    ),
    "pressure_returned_bytes": _Family(
        "Memory that went back to the driver because a request lacked it.",
        _one("pressure_returned_total_bytes"),
    ),
    "driver_calls": _Family("Driver calls.", _driver_calls),
    "driver_seconds": _Family(
        "Time in driver calls; there only after Allocator.time_driver_calls().", _driver_seconds
    ),
}
_OUTSIDE = "outside_bytes"
_OUTSIDE_TEXT = (
    "Memory of the GPU in use outside of this process's allocators, by the process itself and by "
    "others; there only where NVML says so."
)
_UNITS = ("bytes", "seconds")  # which names end with


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.9f}"


def _sample(name: str, labels: Labels, value: float) -> str:
    inside = ",".join(f'{key}="{_escape(text)}"' for key, text in labels)
    return f"{name}{{{inside}}} {_number(value)}"


def hardware_id(device: int, allocator: Allocator) -> str:
    """Which GPU it is, whatever number a process gives it."""
    return "virtual" if allocator.is_virtual else _cuda.device_uuid(device)


def _identity(device: int, allocator: Allocator) -> Labels:
    return (("device", str(device)), ("hw_id", hardware_id(device, allocator)))


def _write_family(name: str, kind: str, family: _Family, found: list[_Found]) -> Iterator[str]:
    suffix = "_total" if kind == "counter" else ""
    samples = [
        _sample(f"ductile_{name}{suffix}", identity + labels, value)
        for identity, stats, limits in found
        for labels, value in family.values(stats, limits)
    ]
    yield from _write_samples(name, kind, family.text, samples)


def _write_samples(name: str, kind: str, text: str, samples: list[str]) -> Iterator[str]:
    unit = name.rpartition("_")[2]
    if samples:
        yield f"# TYPE ductile_{name} {kind}"
        if unit in _UNITS:
            yield f"# UNIT ductile_{name} {unit}"
        yield f"# HELP ductile_{name} {_escape(text)}"
        yield from samples


def _write_outside(gpus: Mapping[Labels, Optional[str]]) -> Iterator[str]:
    """Of each GPU once, however many allocators there are."""
    samples: list[str] = []
    for identity, where in gpus.items():
        found = outside(where)
        if found is not None and found.own_bytes is not None:
            who = {"process": found.own_bytes, "others": sum(found.processes.values())}
            samples += [
                _sample(f"ductile_{_OUTSIDE}", (*identity, ("who", name)), used)
                for name, used in who.items()
            ]
    yield from _write_samples(_OUTSIDE, "gauge", _OUTSIDE_TEXT, samples)


def metrics(of: Optional[Mapping[int, Allocator]] = None) -> str:
    """Statistics of the process's allocators as OpenMetrics text, which Prometheus scrapes.

    Costs a few microseconds for each allocator, however many blocks there are; it makes no call of
    the CUDA driver but, once for each GPU, those that ask for its identity. NVML is asked each time
    who uses the GPUs: some milliseconds. The label hw_id is the GPU's UUID.

    Args:
        of: allocators by device; None for those that `allocators` gives, where the program's own
            have the label `allocator`, the number of each in the process.

    Returns:
        The text, which ends in "# EOF". ductile_memory_bytes is the memory held, by state.
    """
    chosen = _of_process() if of is None else [(*one, ()) for one in sorted(of.items())]
    found: list[_Found] = []
    gpus: dict[Labels, Optional[str]] = {}
    for device, allocator, own in chosen:
        with kept_open(allocator) as is_open:
            if is_open:
                stats = allocator.stats()  # first: in a fork nothing else can be said of it
                identity = _identity(device, allocator)
                found.append(((*identity, *own), stats, allocator.limits()))
                gpus[identity] = pci_bus_id(allocator)
    return _write(found, gpus)


def _of_process() -> list[tuple[int, Allocator, Labels]]:
    return [
        (allocator.device, allocator, () if n is None else (("allocator", str(n)),))
        for n, allocator in numbered()
    ]


def _write(found: list[_Found], gpus: Mapping[Labels, Optional[str]]) -> str:
    lines = [
        "# TYPE ductile_build gauge",
        "# HELP ductile_build The version in use; always 1.",
        _sample("ductile_build", (("version", _abi.VERSION),), 1),
    ]
    for kind, families in (("gauge", _GAUGES), ("counter", _COUNTERS)):
        for name, family in families.items():
            lines.extend(_write_family(name, kind, family, found))
    lines.extend(_write_outside(gpus))
    return "\n".join([*lines, "# EOF", ""])
