# SPDX-License-Identifier: Apache-2.0
# Made by tools/make_abi.py from the public headers. Not to be edited.
"""The public headers of libductile as ctypes declarations."""

from __future__ import annotations

import ctypes
import enum
from typing import Any, Literal, NamedTuple, Optional, TypedDict, Union

VERSION = "0.2.0"
ALIGNMENT = 512


class Status(enum.IntEnum):
    """enum ductile_status."""

    OK = 0
    ERR_INVALID_ARGUMENT = 1
    ERR_UNSUPPORTED = 2
    ERR_BUSY = 3
    ERR_ASLEEP = 4
    ERR_AWAKE = 5
    ERR_FOREIGN_POINTER = 10
    ERR_INTERIOR_POINTER = 11
    ERR_NOT_LIVE = 12
    ERR_OUT_OF_MEMORY = 20
    ERR_OUT_OF_ADDRESSES = 21
    ERR_OUT_OF_HOST_MEMORY = 22
    ERR_NO_DESCRIPTORS = 23
    ERR_NO_LIBRARY = 30
    ERR_NO_DEVICE = 31
    ERR_DRIVER_TOO_OLD = 32
    ERR_NO_VMM = 33
    ERR_DRIVER = 40
    ERR_DEVICE_LOST = 41
    ERR_NOT_READY = 42
    ERR_CAPTURING = 43
    ERR_BAD_MESSAGE = 44
    ERR_LAYOUT = 45
    ERR_EXITING = 50
    ERR_FORKED = 51
    ERR_CORRUPT = 60


class Contents(enum.IntEnum):
    """enum ductile_contents."""

    POLICY = 0
    KEEP = 1
    DROP = 2
    ZERO = 3
    POISON = 4


class Driver(enum.IntEnum):
    """enum ductile_driver."""

    CUDA = 0
    VIRTUAL = 1


class Reuse(enum.IntEnum):
    """enum ductile_reuse."""

    STREAMS = 0
    STREAM = 1
    NEVER = 2
    WAIT = 3


class Sizes(enum.IntEnum):
    """enum ductile_sizes."""

    AUTO = 0
    TIGHT = 1
    QUICK = 2


class RecordPolicy(enum.IntEnum):
    """enum ductile_record_policy."""

    POLL = 0
    WAIT = 1


class Captures(enum.IntEnum):
    """enum ductile_captures."""

    POOLS = 0
    UNANNOUNCED = 1
    ANNOUNCED = 2


class Find(enum.IntEnum):
    """enum ductile_find."""

    NONE = 0
    OVERRUNS = 1


class LogLevel(enum.IntEnum):
    """enum ductile_log_level."""

    ERROR = 0
    WARNING = 1
    INFO = 2


class BlockState(enum.IntEnum):
    """enum ductile_block_state."""

    LIVE = 0
    FREE = 1
    PENDING = 2
    BUSY = 3
    GAP = 4
    RETIRING = 5
    QUARANTINED = 6
    IMPORTED = 7
    PAUSED = 8


class BlockFlags(enum.IntEnum):
    """enum ductile_block_flags."""

    PINNED = 1
    EXPORTED = 2


class ImportAccess(enum.IntEnum):
    """enum ductile_import_access."""

    READ = 1
    READ_WRITE = 3


class PoolKind(enum.IntEnum):
    """enum ductile_pool_kind."""

    CAPTURE = 0
    PLAIN = 1


class PoolState(enum.IntEnum):
    """enum ductile_pool_state."""

    AWAKE = 0
    PAUSING = 1
    ASLEEP = 2
    RESUMING = 3


class ReportFormat(enum.IntEnum):
    """enum ductile_report_format."""

    TEXT = 0
    JSON = 1


class MapChange(enum.IntEnum):
    """enum ductile_map_change."""

    MAPPED = 0
    LEAVING = 1


class Schedule(enum.IntEnum):
    """enum ductile_schedule."""

    EAGER = 0
    LAGGING = 1
    LAZY = 2
    RANDOM = 3


class VirtualRdma(enum.IntEnum):
    """enum ductile_virtual_rdma."""

    WORKS = 0
    NONE = 1
    TRAP = 2


class CaptureMode(enum.IntEnum):
    """enum ductile_capture_mode."""

    GLOBAL = 0
    THREAD_LOCAL = 1
    RELAXED = 2


class Violation(enum.IntEnum):
    """enum ductile_violation."""

    MISUSE = 0
    REUSE = 1
    RACE = 2
    EARLY_UNMAP = 3
    LIVE_UNMAP = 4
    GRAPH_MEMORY = 5
    USE_AFTER_FREE = 6
    UNMAPPED_USE = 7
    OVERLAP = 8

ductile_log_fn = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p)
ductile_walk_fn = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
ductile_write_fn = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t)
ductile_pool_filter = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
ductile_pool_walk_fn = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
ductile_oom_fn = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_void_p)
ductile_map_fn = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)


class ductile_pool_id(ctypes.Structure):
    """struct ductile_pool_id."""

    first: int
    second: int

    _fields_ = [
        ("first", ctypes.c_uint64),
        ("second", ctypes.c_uint64),
    ]


class ductile_options(ctypes.Structure):
    """struct ductile_options."""

    struct_size: int
    driver: int
    device: int
    limit_bytes: int
    soft_limit_bytes: int
    sizes: int
    reuse: int
    compact_off: int
    address_budget_bytes: int
    captures: int
    record_stream: int
    caching_off: int
    zero: int
    shareable: int
    rdma: int
    check: int
    find: int
    log: Any
    log_user: Optional[int]
    virtual_gpu: Optional[int]
    sleep_host_bytes: int

    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("driver", ctypes.c_int),
        ("device", ctypes.c_int),
        ("limit_bytes", ctypes.c_uint64),
        ("soft_limit_bytes", ctypes.c_uint64),
        ("sizes", ctypes.c_uint64),
        ("reuse", ctypes.c_int),
        ("compact_off", ctypes.c_int),
        ("address_budget_bytes", ctypes.c_uint64),
        ("captures", ctypes.c_int),
        ("record_stream", ctypes.c_int),
        ("caching_off", ctypes.c_int),
        ("zero", ctypes.c_int),
        ("shareable", ctypes.c_int),
        ("rdma", ctypes.c_int),
        ("check", ctypes.c_int),
        ("find", ctypes.c_int),
        ("log", ductile_log_fn),
        ("log_user", ctypes.c_void_p),
        ("virtual_gpu", ctypes.c_void_p),
        ("sleep_host_bytes", ctypes.c_uint64),
    ]


class ductile_stats(ctypes.Structure):
    """struct ductile_stats."""

    struct_size: int
    requested_bytes: int
    requested_peak_bytes: int
    allocated_bytes: int
    allocated_peak_bytes: int
    reserved_bytes: int
    reserved_peak_bytes: int
    free_bytes: int
    pending_bytes: int
    cached_bytes: int
    quarantined_bytes: int
    retiring_bytes: int
    mapped_bytes: int
    address_bytes: int
    address_span_bytes: int
    address_span_peak_bytes: int
    live_blocks: int
    free_blocks: int
    gap_blocks: int
    pending_blocks: int
    handles: int
    segments: int
    arenas: int
    allocs: int
    frees: int
    slow_allocs: int
    out_of_memory: int
    creates: int
    releases: int
    maps: int
    unmaps: int
    recycled_handles: int
    compacted_handles: int
    stream_syncs: int
    event_waits: int
    event_records: int
    driver_calls: int
    driver_time_ns: int
    driver_host_ns: int
    host_bytes: int
    requested_total_bytes: int
    allocated_total_bytes: int
    active_peak_bytes: int
    live_peak_blocks: int
    created_total_bytes: int
    pinned_bytes: int
    exported_bytes: int
    imported_bytes: int
    paused_bytes: int
    paused_blocks: int
    pressure_waits: int
    pressure_returns: int
    pressure_returned_total_bytes: int
    readdressed_handles: int

    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("requested_bytes", ctypes.c_uint64),
        ("requested_peak_bytes", ctypes.c_uint64),
        ("allocated_bytes", ctypes.c_uint64),
        ("allocated_peak_bytes", ctypes.c_uint64),
        ("reserved_bytes", ctypes.c_uint64),
        ("reserved_peak_bytes", ctypes.c_uint64),
        ("free_bytes", ctypes.c_uint64),
        ("pending_bytes", ctypes.c_uint64),
        ("cached_bytes", ctypes.c_uint64),
        ("quarantined_bytes", ctypes.c_uint64),
        ("retiring_bytes", ctypes.c_uint64),
        ("mapped_bytes", ctypes.c_uint64),
        ("address_bytes", ctypes.c_uint64),
        ("address_span_bytes", ctypes.c_uint64),
        ("address_span_peak_bytes", ctypes.c_uint64),
        ("live_blocks", ctypes.c_uint64),
        ("free_blocks", ctypes.c_uint64),
        ("gap_blocks", ctypes.c_uint64),
        ("pending_blocks", ctypes.c_uint64),
        ("handles", ctypes.c_uint64),
        ("segments", ctypes.c_uint64),
        ("arenas", ctypes.c_uint64),
        ("allocs", ctypes.c_uint64),
        ("frees", ctypes.c_uint64),
        ("slow_allocs", ctypes.c_uint64),
        ("out_of_memory", ctypes.c_uint64),
        ("creates", ctypes.c_uint64),
        ("releases", ctypes.c_uint64),
        ("maps", ctypes.c_uint64),
        ("unmaps", ctypes.c_uint64),
        ("recycled_handles", ctypes.c_uint64),
        ("compacted_handles", ctypes.c_uint64),
        ("stream_syncs", ctypes.c_uint64),
        ("event_waits", ctypes.c_uint64),
        ("event_records", ctypes.c_uint64),
        ("driver_calls", ctypes.c_uint64),
        ("driver_time_ns", ctypes.c_uint64),
        ("driver_host_ns", ctypes.c_uint64),
        ("host_bytes", ctypes.c_uint64),
        ("requested_total_bytes", ctypes.c_uint64),
        ("allocated_total_bytes", ctypes.c_uint64),
        ("active_peak_bytes", ctypes.c_uint64),
        ("live_peak_blocks", ctypes.c_uint64),
        ("created_total_bytes", ctypes.c_uint64),
        ("pinned_bytes", ctypes.c_uint64),
        ("exported_bytes", ctypes.c_uint64),
        ("imported_bytes", ctypes.c_uint64),
        ("paused_bytes", ctypes.c_uint64),
        ("paused_blocks", ctypes.c_uint64),
        ("pressure_waits", ctypes.c_uint64),
        ("pressure_returns", ctypes.c_uint64),
        ("pressure_returned_total_bytes", ctypes.c_uint64),
        ("readdressed_handles", ctypes.c_uint64),
    ]


class ductile_block_info(ctypes.Structure):
    """struct ductile_block_info."""

    struct_size: int
    address: int
    size: int
    requested_size: int
    state: int
    stream: Optional[int]
    segment: int
    segment_bytes: int
    free_before_bytes: int
    free_after_bytes: int
    pool: ductile_pool_id
    flags: int

    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("address", ctypes.c_ulonglong),
        ("size", ctypes.c_uint64),
        ("requested_size", ctypes.c_uint64),
        ("state", ctypes.c_int),
        ("stream", ctypes.c_void_p),
        ("segment", ctypes.c_ulonglong),
        ("segment_bytes", ctypes.c_uint64),
        ("free_before_bytes", ctypes.c_uint64),
        ("free_after_bytes", ctypes.c_uint64),
        ("pool", ductile_pool_id),
        ("flags", ctypes.c_uint32),
    ]


class ductile_tag_name(ctypes.Structure):
    """struct ductile_tag_name."""

    address: int
    size: int
    name: Optional[bytes]

    _fields_ = [
        ("address", ctypes.c_ulonglong),
        ("size", ctypes.c_uint64),
        ("name", ctypes.c_char_p),
    ]


class ductile_tag_part(ctypes.Structure):
    """struct ductile_tag_part."""

    offset: int
    size: int
    name: Optional[bytes]

    _fields_ = [
        ("offset", ctypes.c_uint64),
        ("size", ctypes.c_uint64),
        ("name", ctypes.c_char_p),
    ]


class ductile_imported_tag(ctypes.Structure):
    """struct ductile_imported_tag."""

    struct_size: int
    address: int
    size: int
    layout: int
    tag: Any
    access: int
    n_blocks: int
    blocks: Optional[int]
    n_names: int
    names: Optional[int]

    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("address", ctypes.c_ulonglong),
        ("size", ctypes.c_uint64),
        ("layout", ctypes.c_uint64),
        ("tag", ctypes.c_char * 64),
        ("access", ctypes.c_int),
        ("n_blocks", ctypes.c_size_t),
        ("blocks", ctypes.c_void_p),
        ("n_names", ctypes.c_size_t),
        ("names", ctypes.c_void_p),
    ]


class ductile_held_info(ctypes.Structure):
    """struct ductile_held_info."""

    struct_size: int
    size: int
    layout: int
    n_handles: int
    n_blocks: int
    n_names: int
    tag: Any

    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("size", ctypes.c_uint64),
        ("layout", ctypes.c_uint64),
        ("n_handles", ctypes.c_uint64),
        ("n_blocks", ctypes.c_uint64),
        ("n_names", ctypes.c_uint64),
        ("tag", ctypes.c_char * 64),
    ]


class ductile_pool_info(ctypes.Structure):
    """struct ductile_pool_info."""

    struct_size: int
    id: ductile_pool_id
    references: int
    open: int
    kind: int
    paused: int
    state: int
    policy: int
    contents: int
    kept_bytes: int
    tag: Any

    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("id", ductile_pool_id),
        ("references", ctypes.c_uint64),
        ("open", ctypes.c_uint64),
        ("kind", ctypes.c_int),
        ("paused", ctypes.c_int),
        ("state", ctypes.c_int),
        ("policy", ctypes.c_int),
        ("contents", ctypes.c_int),
        ("kept_bytes", ctypes.c_uint64),
        ("tag", ctypes.c_char * 64),
    ]


class ductile_limits(ctypes.Structure):
    """struct ductile_limits."""

    struct_size: int
    limit_bytes: int
    soft_limit_bytes: int
    device_bytes: int
    margin_bytes: int

    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("limit_bytes", ctypes.c_uint64),
        ("soft_limit_bytes", ctypes.c_uint64),
        ("device_bytes", ctypes.c_uint64),
        ("margin_bytes", ctypes.c_uint64),
    ]


class ductile_oom_holder(ctypes.Structure):
    """struct ductile_oom_holder."""

    stream: Optional[int]
    pool: ductile_pool_id
    held_bytes: int
    live_bytes: int
    free_bytes: int
    pending_bytes: int
    unproven_bytes: int
    kept_bytes: int
    largest_free_bytes: int

    _fields_ = [
        ("stream", ctypes.c_void_p),
        ("pool", ductile_pool_id),
        ("held_bytes", ctypes.c_uint64),
        ("live_bytes", ctypes.c_uint64),
        ("free_bytes", ctypes.c_uint64),
        ("pending_bytes", ctypes.c_uint64),
        ("unproven_bytes", ctypes.c_uint64),
        ("kept_bytes", ctypes.c_uint64),
        ("largest_free_bytes", ctypes.c_uint64),
    ]


class ductile_oom_report(ctypes.Structure):
    """struct ductile_oom_report."""

    struct_size: int
    number: int
    device: int
    captured: int
    stream: Optional[int]
    pool: ductile_pool_id
    requested_bytes: int
    rounded_bytes: int
    missing_bytes: int
    needed_bytes: int
    limit_bytes: int
    soft_limit_bytes: int
    margin_bytes: int
    device_bytes: int
    device_free_bytes: int
    others_bytes: int
    held_bytes: int
    live_bytes: int
    free_bytes: int
    pending_bytes: int
    cached_bytes: int
    quarantined_bytes: int
    retiring_bytes: int
    unproven_bytes: int
    kept_bytes: int
    pinned_bytes: int
    largest_free_bytes: int
    largest_free_here_bytes: int
    unvisited_bytes: int
    granule_bytes: int
    limit_name: Optional[bytes]
    n_holders: int
    holders: Any
    free_blocks_by_size: Any
    free_bytes_by_size: Any

    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("number", ctypes.c_uint64),
        ("device", ctypes.c_int),
        ("captured", ctypes.c_int),
        ("stream", ctypes.c_void_p),
        ("pool", ductile_pool_id),
        ("requested_bytes", ctypes.c_uint64),
        ("rounded_bytes", ctypes.c_uint64),
        ("missing_bytes", ctypes.c_uint64),
        ("needed_bytes", ctypes.c_uint64),
        ("limit_bytes", ctypes.c_uint64),
        ("soft_limit_bytes", ctypes.c_uint64),
        ("margin_bytes", ctypes.c_uint64),
        ("device_bytes", ctypes.c_uint64),
        ("device_free_bytes", ctypes.c_uint64),
        ("others_bytes", ctypes.c_uint64),
        ("held_bytes", ctypes.c_uint64),
        ("live_bytes", ctypes.c_uint64),
        ("free_bytes", ctypes.c_uint64),
        ("pending_bytes", ctypes.c_uint64),
        ("cached_bytes", ctypes.c_uint64),
        ("quarantined_bytes", ctypes.c_uint64),
        ("retiring_bytes", ctypes.c_uint64),
        ("unproven_bytes", ctypes.c_uint64),
        ("kept_bytes", ctypes.c_uint64),
        ("pinned_bytes", ctypes.c_uint64),
        ("largest_free_bytes", ctypes.c_uint64),
        ("largest_free_here_bytes", ctypes.c_uint64),
        ("unvisited_bytes", ctypes.c_uint64),
        ("granule_bytes", ctypes.c_uint64),
        ("limit_name", ctypes.c_char_p),
        ("n_holders", ctypes.c_uint64),
        ("holders", ductile_oom_holder * 8),
        ("free_blocks_by_size", ctypes.c_uint64 * 32),
        ("free_bytes_by_size", ctypes.c_uint64 * 32),
    ]


class ductile_gpu_process(ctypes.Structure):
    """struct ductile_gpu_process."""

    pid: int
    used_bytes: int

    _fields_ = [
        ("pid", ctypes.c_uint64),
        ("used_bytes", ctypes.c_uint64),
    ]


class ductile_map_event(ctypes.Structure):
    """struct ductile_map_event."""

    struct_size: int
    change: int
    device: int
    address: int
    size: int
    handle: int
    stream: Optional[int]
    pool: ductile_pool_id
    tag: Optional[bytes]

    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("change", ctypes.c_int),
        ("device", ctypes.c_int),
        ("address", ctypes.c_ulonglong),
        ("size", ctypes.c_uint64),
        ("handle", ctypes.c_uint64),
        ("stream", ctypes.c_void_p),
        ("pool", ductile_pool_id),
        ("tag", ctypes.c_char_p),
    ]


class ductile_sleep_tag(ctypes.Structure):
    """struct ductile_sleep_tag."""

    tag: Optional[bytes]
    contents: int

    _fields_ = [
        ("tag", ctypes.c_char_p),
        ("contents", ctypes.c_int),
    ]


class ductile_sleep_request(ctypes.Structure):
    """struct ductile_sleep_request."""

    struct_size: int
    all: int
    lenient: int
    tags: Optional[int]
    n_tags: int
    pools: Optional[int]
    n_pools: int
    except_tags: Optional[int]
    n_except_tags: int
    except_pools: Optional[int]
    n_except_pools: int
    contents: int
    bypass: ductile_pool_id
    retain: int

    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("all", ctypes.c_int),
        ("lenient", ctypes.c_int),
        ("tags", ctypes.c_void_p),
        ("n_tags", ctypes.c_size_t),
        ("pools", ctypes.c_void_p),
        ("n_pools", ctypes.c_size_t),
        ("except_tags", ctypes.c_void_p),
        ("n_except_tags", ctypes.c_size_t),
        ("except_pools", ctypes.c_void_p),
        ("n_except_pools", ctypes.c_size_t),
        ("contents", ctypes.c_int),
        ("bypass", ductile_pool_id),
        ("retain", ctypes.c_int),
    ]


class ductile_sleep_report(ctypes.Structure):
    """struct ductile_sleep_report."""

    struct_size: int
    pools: int
    passed_over: int
    bytes: int
    copied_bytes: int
    stayed_bytes: int
    missing_bytes: int
    pool: ductile_pool_id
    tag: Any
    message: Any

    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("pools", ctypes.c_uint64),
        ("passed_over", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
        ("copied_bytes", ctypes.c_uint64),
        ("stayed_bytes", ctypes.c_uint64),
        ("missing_bytes", ctypes.c_uint64),
        ("pool", ductile_pool_id),
        ("tag", ctypes.c_char * 64),
        ("message", ctypes.c_char * 192),
    ]


class ductile_refusal(ctypes.Structure):
    """struct ductile_refusal."""

    struct_size: int
    pool: ductile_pool_id
    tag: Any
    bytes: int

    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("pool", ductile_pool_id),
        ("tag", ctypes.c_char * 64),
        ("bytes", ctypes.c_uint64),
    ]


class ductile_virtual_options(ctypes.Structure):
    """struct ductile_virtual_options."""

    struct_size: int
    capacity_bytes: int
    granule_bytes: int
    address_bytes: int
    schedule: int
    lag: int
    seed: int
    log_calls: int
    n_devices: int
    unreachable_devices: int
    no_descriptors: int
    has_fabric: int
    rdma: int
    detect: int
    no_context_events: int

    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("capacity_bytes", ctypes.c_uint64),
        ("granule_bytes", ctypes.c_uint64),
        ("address_bytes", ctypes.c_uint64),
        ("schedule", ctypes.c_int),
        ("lag", ctypes.c_uint64),
        ("seed", ctypes.c_uint64),
        ("log_calls", ctypes.c_uint64),
        ("n_devices", ctypes.c_uint32),
        ("unreachable_devices", ctypes.c_uint64),
        ("no_descriptors", ctypes.c_int),
        ("has_fabric", ctypes.c_int),
        ("rdma", ctypes.c_int),
        ("detect", ctypes.c_int),
        ("no_context_events", ctypes.c_int),
    ]


class ductile_virtual_use(ctypes.Structure):
    """struct ductile_virtual_use."""

    address: int
    size: int
    writes: int

    _fields_ = [
        ("address", ctypes.c_ulonglong),
        ("size", ctypes.c_uint64),
        ("writes", ctypes.c_int),
    ]


class ductile_virtual_fault(ctypes.Structure):
    """struct ductile_virtual_fault."""

    struct_size: int
    call: Optional[bytes]
    nth: int
    code: int
    persistent: int
    effect: int

    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("call", ctypes.c_char_p),
        ("nth", ctypes.c_uint64),
        ("code", ctypes.c_int),
        ("persistent", ctypes.c_int),
        ("effect", ctypes.c_int),
    ]


class ductile_virtual_state(ctypes.Structure):
    """struct ductile_virtual_state."""

    struct_size: int
    used_bytes: int
    used_peak_bytes: int
    handles: int
    mappings: int
    reservations: int
    reserved_address_bytes: int
    streams: int
    events: int
    allocations: int
    violations: int
    calls: int
    time_ns: int
    poisoned: int
    detects: int

    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("used_bytes", ctypes.c_uint64),
        ("used_peak_bytes", ctypes.c_uint64),
        ("handles", ctypes.c_uint64),
        ("mappings", ctypes.c_uint64),
        ("reservations", ctypes.c_uint64),
        ("reserved_address_bytes", ctypes.c_uint64),
        ("streams", ctypes.c_uint64),
        ("events", ctypes.c_uint64),
        ("allocations", ctypes.c_uint64),
        ("violations", ctypes.c_uint64),
        ("calls", ctypes.c_uint64),
        ("time_ns", ctypes.c_uint64),
        ("poisoned", ctypes.c_int),
        ("detects", ctypes.c_int),
    ]


class ductile_virtual_side(ctypes.Structure):
    """struct ductile_virtual_side."""

    is_host: int
    stream: Optional[int]
    stream_id: int
    operation: int
    address: int
    size: int
    writes: int
    handle: int
    block: int

    _fields_ = [
        ("is_host", ctypes.c_int),
        ("stream", ctypes.c_void_p),
        ("stream_id", ctypes.c_uint64),
        ("operation", ctypes.c_uint64),
        ("address", ctypes.c_ulonglong),
        ("size", ctypes.c_uint64),
        ("writes", ctypes.c_int),
        ("handle", ctypes.c_uint64),
        ("block", ctypes.c_uint64),
    ]


class ductile_virtual_violation(ctypes.Structure):
    """struct ductile_virtual_violation."""

    struct_size: int
    kind: int
    first: ductile_virtual_side
    second: ductile_virtual_side
    text: Any

    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("kind", ctypes.c_int),
        ("first", ductile_virtual_side),
        ("second", ductile_virtual_side),
        ("text", ctypes.c_char * 240),
    ]


class Stats(NamedTuple):
    """Statistics of an allocator: each as its name and unit say."""

    requested_bytes: int
    """bytes requested for live blocks"""
    requested_peak_bytes: int
    """its peak"""
    allocated_bytes: int
    """bytes of live blocks, rounded"""
    allocated_peak_bytes: int
    """its peak"""
    reserved_bytes: int
    """physical memory held, in use or cached"""
    reserved_peak_bytes: int
    """its peak"""
    free_bytes: int
    """mapped, in free blocks"""
    pending_bytes: int
    """freed, but another stream may still use them"""
    cached_bytes: int
    """in handles that are mapped nowhere"""
    quarantined_bytes: int
    """lost because the driver failed to undo a call"""
    retiring_bytes: int
    """old addresses not unmapped yet; their memory serves elsewhere"""
    mapped_bytes: int
    """addresses with memory behind them, retiring ones included"""
    address_bytes: int
    """virtual addresses reserved"""
    address_span_bytes: int
    """from the lowest to the highest mapped address, summed over ranges"""
    address_span_peak_bytes: int
    """its peak"""
    live_blocks: int
    """live blocks"""
    free_blocks: int
    """free blocks"""
    gap_blocks: int
    """spans of addresses without memory, range ends included"""
    pending_blocks: int
    """pending blocks"""
    handles: int
    """physical handles held"""
    segments: int
    """address ranges reserved"""
    arenas: int
    """streams known, counted once for each pool"""
    allocs: int
    """successful allocations"""
    frees: int
    """successful frees"""
    slow_allocs: int
    """allocations that no free block served at once"""
    out_of_memory: int
    """requests refused for lack of memory"""
    creates: int
    """handles created"""
    releases: int
    """handles released"""
    maps: int
    """mappings made"""
    unmaps: int
    """mappings removed"""
    recycled_handles: int
    """handles moved to serve a request"""
    compacted_handles: int
    """handles moved by compaction"""
    stream_syncs: int
    """times the host waited for a stream"""
    event_waits: int
    """times a stream was made to wait for another"""
    event_records: int
    """markers recorded"""
    driver_calls: int
    """driver calls, all kinds"""
    driver_time_ns: int
    """time in driver calls, modelled on the virtual GPU; 0: not timed"""
    driver_host_ns: int
    """time in driver calls, as this host spent it; 0: not timed"""
    host_bytes: int
    """host memory of the allocator's own bookkeeping"""
    requested_total_bytes: int
    """bytes requested by all successful allocations"""
    allocated_total_bytes: int
    """bytes of all successful allocations, rounded"""
    active_peak_bytes: int
    """peak of allocated_bytes + pending_bytes"""
    live_peak_blocks: int
    """peak of live_blocks"""
    created_total_bytes: int
    """bytes of all handles created"""
    pinned_bytes: int
    """physical memory that must not move: pinned or exported"""
    exported_bytes: int
    """of pinned_bytes, passed to other processes"""
    imported_bytes: int
    """memory of other processes, mapped here; in no other statistic"""
    paused_bytes: int
    """bytes of paused blocks; not in allocated_bytes"""
    paused_blocks: int
    """paused blocks; not in live_blocks"""
    pressure_waits: int
    """times the host waited for the GPU because a request lacked memory"""
    pressure_returns: int
    """times memory went back to the driver because a request lacked it"""
    pressure_returned_total_bytes: int
    """bytes that went back so"""
    readdressed_handles: int
    """handles back at an earlier address, without a driver call"""


STATUS_SENTENCES: dict[int, str] = {
    0: "success",
    1: "an argument is outside its documented range",
    2: "this build, device or option combination does not support the request",
    3: "the object is in use and cannot be changed now",
    4: "the memory sleeps: resume its pool first",
    5: "the memory does not sleep",
    10: "the address lies outside every range of this allocator",
    11: "the address lies inside a live block but is not its start",
    12: "no live block starts at the address: it was freed, or never allocated",
    20: "the device, or the limit, leaves no physical memory for the request",
    21: "no virtual addresses are left for the request",
    22: "the host has no memory left for bookkeeping",
    23: "the process has too few file descriptors left: raise ulimit -n",
    30: "no library to drive the device with; ductile_create_error() says which, and the remedy",
    31: "the driver reports no such device",
    32: "the driver is too old: Ductile needs CUDA 11.2 or newer",
    33: "the device does not support virtual memory management",
    40: "a driver call failed; the log callback gets its name and code",
    41: "an earlier error ended the CUDA context; Ductile calls it no more",
    42: "the work has not completed yet",
    43: "the call is not allowed while a stream is being captured",
    44: "the other process sent an incomplete or invalid export",
    45: "the tag has another layout than the importer expects",
    50: "the process is exiting; Ductile no longer calls the driver",
    51: "the allocator belongs to the parent process",
    60: "an invariant of the allocator is broken; see the report",
}

# What pages and tables call those of ductile-bench.
CONTENDERS: dict[str, str] = {
    "ductile": "Ductile",
    "expandable": "expandable segments",
    "classic": "native",
    "cumemalloc": "cudaMalloc",
    "cumemallocasync": "cudaMallocAsync",
}

# name: (result, arguments)
FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "ductile_status_name": (ctypes.c_char_p, [ctypes.c_int]),
    "ductile_status_string": (ctypes.c_char_p, [ctypes.c_int]),
    "ductile_version": (ctypes.c_char_p, []),
    "ductile_options_init": (None, [ctypes.c_void_p]),
    "ductile_options_set": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t]),
    "ductile_options_parse": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t]),
    "ductile_options_format": (ctypes.c_size_t, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]),
    "ductile_create": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_void_p]),
    "ductile_create_error": (ctypes.c_char_p, []),
    "ductile_destroy": (ctypes.c_int, [ctypes.c_void_p]),
    "ductile_get_options": (None, [ctypes.c_void_p, ctypes.c_void_p]),
    "ductile_alloc": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_void_p]),
    "ductile_free": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_ulonglong]),
    "ductile_free_ex": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_ulonglong, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]),
    "ductile_record_stream": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_ulonglong, ctypes.c_void_p]),
    "ductile_stream_done": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_void_p]),
    "ductile_trim": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_void_p]),
    "ductile_get_stats": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]),
    "ductile_time_driver_calls": (None, [ctypes.c_void_p]),
    "ductile_reset_peaks": (None, [ctypes.c_void_p]),
    "ductile_query_block": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_ulonglong, ctypes.c_void_p]),
    "ductile_walk": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]),
    "ductile_snapshot_json": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]),
    "ductile_check": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]),
    "ductile_export_tag": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]),
    "ductile_unexport_tag": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_uint64]),
    "ductile_import_tag": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64, ctypes.c_void_p]),
    "ductile_import_release": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_void_p]),
    "ductile_hold_tag": (ctypes.c_int, [ctypes.c_int, ctypes.c_uint64, ctypes.c_void_p]),
    "ductile_pass_held_tag": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_int]),
    "ductile_held_describe": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_void_p]),
    "ductile_drop_held_tag": (None, [ctypes.c_void_p]),
    "ductile_capture_begin": (None, []),
    "ductile_capture_end": (None, []),
    "ductile_set_captures": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_int]),
    "ductile_pool_retain": (ctypes.c_int, [ctypes.c_void_p, ductile_pool_id]),
    "ductile_pool_begin": (ctypes.c_int, [ctypes.c_void_p, ductile_pool_id, ctypes.c_void_p, ctypes.c_void_p]),
    "ductile_pool_end": (ctypes.c_int, [ctypes.c_void_p, ductile_pool_id]),
    "ductile_pool_release": (ctypes.c_int, [ctypes.c_void_p, ductile_pool_id]),
    "ductile_pool_set_kind": (ctypes.c_int, [ctypes.c_void_p, ductile_pool_id, ctypes.c_int]),
    "ductile_walk_pools": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]),
    "ductile_list_pools": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]),
    "ductile_pool_alloc_at": (ctypes.c_int, [ctypes.c_void_p, ductile_pool_id, ctypes.c_ulonglong, ctypes.c_size_t]),
    "ductile_get_limits": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_void_p]),
    "ductile_set_limits": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_void_p]),
    "ductile_set_margin": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_uint64]),
    "ductile_add_oom_callback": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]),
    "ductile_remove_oom_callback": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_uint64]),
    "ductile_get_oom_report": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_void_p]),
    "ductile_oom_report_format": (ctypes.c_size_t, [ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t]),
    "ductile_list_gpu_processes": (ctypes.c_int, [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]),
    "ductile_pin": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_ulonglong]),
    "ductile_unpin": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_ulonglong]),
    "ductile_add_map_callback": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]),
    "ductile_remove_map_callback": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_uint64]),
    "ductile_alloc_dedicated": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_void_p]),
    "ductile_enable_peer": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_int]),
    "ductile_disable_peer": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_int]),
    "ductile_export": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_ulonglong, ctypes.c_int]),
    "ductile_unexport": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_ulonglong]),
    "ductile_import": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]),
    "ductile_import_close": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_ulonglong]),
    "ductile_pool_set_tag": (ctypes.c_int, [ctypes.c_void_p, ductile_pool_id, ctypes.c_char_p, ctypes.c_int]),
    "ductile_pause_set": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]),
    "ductile_resume_set": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]),
    "ductile_pause": (ctypes.c_int, [ctypes.c_void_p, ductile_pool_id, ctypes.c_int]),
    "ductile_resume": (ctypes.c_int, [ctypes.c_void_p, ductile_pool_id]),
    "ductile_sleep_refusal": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_void_p]),
    "ductile_kept_contents": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_ulonglong, ctypes.c_void_p, ctypes.c_void_p]),
    "ductile_sleep_reserve": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_void_p]),
    "ductile_sleep_release": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_void_p]),
    "ductile_virtual_options_init": (None, [ctypes.c_void_p]),
    "ductile_virtual_create": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_void_p]),
    "ductile_virtual_destroy": (None, [ctypes.c_void_p]),
    "ductile_virtual_stream_create": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_void_p]),
    "ductile_virtual_stream_create_blocking": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_void_p]),
    "ductile_virtual_stream_create_on": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]),
    "ductile_virtual_stream_create_foreign": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_void_p]),
    "ductile_virtual_stream_destroy": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_void_p]),
    "ductile_virtual_launch": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]),
    "ductile_virtual_stream_wait": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]),
    "ductile_virtual_stream_sync": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_void_p]),
    "ductile_virtual_advance": (None, [ctypes.c_void_p, ctypes.c_uint64]),
    "ductile_virtual_set_schedule": (None, [ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64]),
    "ductile_virtual_capture_begin": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int]),
    "ductile_virtual_capture_end": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]),
    "ductile_virtual_graph_launch": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_void_p]),
    "ductile_virtual_graph_rest": (None, [ctypes.c_void_p, ctypes.c_int]),
    "ductile_virtual_graph_destroy": (None, [ctypes.c_void_p]),
    "ductile_virtual_inject": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_void_p]),
    "ductile_virtual_faults_fired": (ctypes.c_uint64, [ctypes.c_void_p]),
    "ductile_virtual_set_external_bytes": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_uint64]),
    "ductile_virtual_get_state": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_void_p]),
    "ductile_virtual_access": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_ulonglong, ctypes.c_int]),
    "ductile_virtual_count": (ctypes.c_uint64, [ctypes.c_void_p, ctypes.c_char_p]),
    "ductile_virtual_last_violation": (None, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]),
    "ductile_virtual_violation_name": (ctypes.c_char_p, [ctypes.c_int]),
    "ductile_virtual_violations_of": (ctypes.c_uint64, [ctypes.c_void_p, ctypes.c_int]),
    "ductile_virtual_get_violation": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_void_p]),
    "ductile_virtual_block_begin": (None, [ctypes.c_void_p, ctypes.c_ulonglong, ctypes.c_uint64]),
    "ductile_virtual_block_end": (None, [ctypes.c_void_p, ctypes.c_ulonglong]),
    "ductile_virtual_write_log": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]),
    "ductile_virtual_upload": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_ulonglong, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_void_p]),
    "ductile_virtual_fill": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_ulonglong, ctypes.c_uint8, ctypes.c_uint64, ctypes.c_void_p]),
    "ductile_virtual_read_back": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_ulonglong, ctypes.c_uint64, ctypes.c_void_p]),
}


class Options(TypedDict, total=False):
    """The keys of DUCTILE_CONF. Sizes are bytes, or text such as "40G"."""

    driver: Literal["cuda", "virtual"]
    limit_bytes: Union[int, str]
    soft_limit_bytes: Union[int, str]
    sizes: Union[int, str]
    reuse: Literal["streams", "stream", "never", "wait"]
    compact: bool
    address_budget_bytes: Union[int, str]
    captures: Literal["pools", "unannounced", "announced"]
    record_stream: Literal["poll", "wait"]
    caching: bool
    zero: bool
    shareable: Literal["none", "fd", "fabric"]
    rdma: bool
    check: int
    find: Literal["none", "overruns"]
    sleep_host_bytes: Union[int, str]
