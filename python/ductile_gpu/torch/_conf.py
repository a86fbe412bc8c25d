# SPDX-License-Identifier: Apache-2.0
"""What PyTorch's allocator settings mean while Ductile is the allocator.

PyTorch itself parses PYTORCH_CUDA_ALLOC_CONF and PYTORCH_ALLOC_CONF, and refuses keys it does not
know. Here is what becomes of those that it does.
"""

from __future__ import annotations

import os
import re
from enum import Enum
from typing import NamedTuple


class Treatment(Enum):
    """What Ductile does about a key."""

    HONOURED = "honoured"
    NEEDLESS = "accepted, without effect"
    HOST = "honoured by PyTorch: it is about host memory"
    REFUSED = "refused"


class Setting(NamedTuple):
    """One key: what becomes of it, and why."""

    key: str
    value: str
    treatment: Treatment
    reason: str


_EXPANDABLE = "expandable_segments"
_ALWAYS_SPLIT = "blocks of Ductile always split and merge; no size of segment is fixed"
_KEYS: dict[str, tuple[Treatment, str]] = {
    "roundup_power2_divisions": (Treatment.HONOURED, "requests are rounded as PyTorch rounds them"),
    "per_process_memory_fraction": (Treatment.HONOURED, "a cap on what Ductile holds"),
    "garbage_collection_threshold": (Treatment.HONOURED, "Ductile's soft limit"),
    "expandable_segments": (
        Treatment.NEEDLESS,
        "every segment of Ductile expands; PyTorch's NCCL backend, which asks, is told so",
    ),
    "max_split_size_mb": (Treatment.NEEDLESS, _ALWAYS_SPLIT),
    "max_non_split_rounding_mb": (Treatment.NEEDLESS, _ALWAYS_SPLIT),
    "large_segment_size_mb": (Treatment.NEEDLESS, _ALWAYS_SPLIT),
    "release_lock_on_cudamalloc": (
        Treatment.NEEDLESS,
        "no lock that allocations need is held while the driver works",
    ),
    "release_lock_on_hipmalloc": (Treatment.NEEDLESS, "there is no HIP here"),
    "graph_capture_record_stream_reuse": (
        Treatment.NEEDLESS,
        "blocks used by several streams of a capture are reused after it ends",
    ),
    "throw_on_cudamalloc_oom": (
        Treatment.HONOURED,
        "under a memory fraction, what exceeds it is refused without asking others for memory",
    ),
    "expandable_segments_reserve": (
        Treatment.NEEDLESS,
        "see Ductile's option address_budget_bytes",
    ),
    "expandable_segments_reserve_by_class": (Treatment.NEEDLESS, "see address_budget_bytes"),
}


_PART = r"[^,:\[\]]+:(?:\[[^\]]*\]|[^,\[\]]*)"


def parse(text: str) -> dict[str, str]:
    """The keys and values of a setting. Malformed parts are left to PyTorch's own parser."""
    parts = re.findall(r"([^,:\[\]]+):((?:\[[^\]]*\])|[^,]*)", re.sub(r"\s+", "", text))
    return dict(parts)


def _is_well_formed(text: str) -> bool:
    return bool(re.fullmatch(rf"({_PART}(,{_PART})*,?)?", re.sub(r"\s+", "", text)))


def expandable(text: str) -> str:
    """A setting with segments that expand, whatever it says of them. A malformed one stays so:
    PyTorch's own parser says what is wrong."""
    if not _is_well_formed(text):
        return text
    others = {key: value for key, value in parse(text).items() if key != _EXPANDABLE}
    return ",".join(f"{key}:{value}" for key, value in {**others, _EXPANDABLE: "True"}.items())


def explicit(text: str) -> str:
    """A setting that says of segments what it means without a word, too."""
    return (
        text
        if _EXPANDABLE in parse(text)
        else ",".join(filter(None, (text, f"{_EXPANDABLE}:False")))
    )


def _treat(key: str, value: str) -> Setting:
    if key == "backend":
        if value == "native":
            return Setting(key, value, Treatment.NEEDLESS, "Ductile takes native's place")
        return Setting(key, value, Treatment.REFUSED, "it names another allocator than Ductile")
    if key.startswith("pinned_"):
        return Setting(key, value, Treatment.HOST, "")
    treatment, reason = _KEYS.get(key, (Treatment.NEEDLESS, "Ductile does not know this key"))
    return Setting(key, value, treatment, reason)


def environment() -> str:
    """The setting that PyTorch reads: the older name wins, as it does there."""
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        if os.environ.get(name):
            return os.environ[name]
    return ""


def describe(text: str) -> list[Setting]:
    """What becomes of each key of a setting."""
    return [_treat(key, value) for key, value in parse(text).items()]


def check(text: str) -> None:
    """Raises ValueError when a setting contradicts Ductile."""
    for setting in describe(text):
        if setting.treatment is Treatment.REFUSED:
            raise ValueError(
                f"PyTorch's allocator setting {setting.key}:{setting.value} cannot be met: "
                f"{setting.reason}"
            )
