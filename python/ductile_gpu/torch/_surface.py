# SPDX-License-Identifier: Apache-2.0
"""The virtual functions of PyTorch's CUDA allocator interface, as a header declares them.

The compiler sees to it that every pure virtual function is there, and that what says `override`
does. What it does not see is a function that a newer PyTorch adds with a default body: this does.
"""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["KNOWN", "declared", "unknown"]

HEADERS = (
    "c10/core/Allocator.h",
    "c10/core/CachingDeviceAllocator.h",
    "c10/cuda/CUDACachingAllocator.h",
)
CLASSES = ("Allocator", "DeviceAllocator", "CUDAAllocator")

# Implemented by the adapter, each in every form that 2.6 to 2.15 declare.
_NAMES = """
    allocate raw_deleter copy_data raw_alloc raw_alloc_with_stream raw_delete init initialized
    getMemoryFraction setMemoryFraction getExpandableSegmentSizes emptyCache enable isEnabled
    cacheInfo getBaseAllocation recordStream getDeviceStats resetAccumulatedStats resetPeakStats
    snapshot beginAllocateToPool endAllocateToPool releasePool getPoolUseCount
    ensureExistsAndIncrefPool createOrIncrefPool setUseOnOOM setNoSplit checkPoolLiveAllocations
    shareIpcHandle getIpcDevPtr isHistoryEnabled recordHistory recordAnnotation pushCompileContext
    popCompileContext setUserMetadata getUserMetadata attachOutOfMemoryObserver
    attachAllocatorTraceTracker enablePeerAccess memcpyAsync getCheckpointState
    setCheckpointPoolState name getMemoryInfo attachOomRejectionObserver getContextForPointer
    markCaptureBegin markCaptureEnd allocateWithAddress supportsUserMetadata annotateMemory
"""
IMPLEMENTED = frozenset(_NAMES.split())
# Whose default body is right: a block's context is its address.
INHERITED = frozenset(("is_simple_data_ptr",))
KNOWN = IMPLEMENTED | INHERITED

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_VIRTUAL = re.compile(r"\bvirtual\b[^;{}()]*?(~?\w+)\s*\(")


def _body(text: str, name: str) -> str:
    """What is between the braces of `class name` or `struct name`; empty if it is not there."""
    found = re.search(rf"\b(?:class|struct)\s+(?:\w+\s+)?{name}\b[^;{{]*{{", text)
    if found is None:
        return ""
    depth = 1
    for at in range(found.end(), len(text)):
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if depth == 0:
            return text[found.end() : at]
    raise ValueError(f"{name} has no end")


def declared(include: Path) -> frozenset[str]:
    """The names of the virtual functions that the headers in this folder declare."""
    names: set[str] = set()
    for header in HEADERS:
        text = _COMMENT.sub("", (include / header).read_text(encoding="utf-8"))
        for name in CLASSES:
            names.update(_VIRTUAL.findall(_body(text, name)))
    return frozenset(name for name in names if not name.startswith("~"))


def unknown(include: Path) -> frozenset[str]:
    """What the headers declare and the adapter has never heard of."""
    return declared(include) - KNOWN
