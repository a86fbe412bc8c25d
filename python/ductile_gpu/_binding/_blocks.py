# SPDX-License-Identifier: Apache-2.0
"""Blocks, as queries and snapshots describe them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from ductile_gpu._binding import _abi
from ductile_gpu._binding._abi import BlockState


class Block(NamedTuple):
    """A span of a segment, as `Allocator.query` and `Allocator.blocks` describe it."""

    address: int
    size: int
    """bytes, rounded up to the alignment"""
    requested_size: int
    """bytes asked for; 0 unless live"""
    state: BlockState
    stream: int
    """the stream whose arena holds it; 0 is the legacy default stream"""
    segment: int
    """address where its range begins"""
    segment_bytes: int
    free_before_bytes: int
    """free bytes just before it"""
    free_after_bytes: int
    """free bytes just after it"""
    pool: tuple[int, int]
    """the private pool it is in; (0, 0): none"""
    spilled_bytes: int = 0
    """bytes of it that lie in the host's memory"""


def blocks_of(segment: dict[str, Any]) -> list[Block]:
    """The blocks of a segment, of `Allocator.snapshot`."""
    spans = segment["blocks"]
    free = [0, *(span["size"] if span["state"] == "free" else 0 for span in spans), 0]
    return [
        Block(
            span["address"],
            span["size"],
            span.get("requested_size", 0),
            BlockState[span["state"].upper()],
            segment["stream"],
            segment["address"],
            segment["size"],
            free[i],
            free[i + 2],
            tuple(segment["pool"]),
            span.get("spilled", 0),
        )
        for i, span in enumerate(spans)
    ]


def blocks_in(segments: Iterable[dict[str, Any]]) -> list[Block]:
    """The blocks of all of these segments, in order."""
    return [block for segment in segments for block in blocks_of(segment)]


def block_from_info(info: _abi.ductile_block_info) -> Block:
    """What `ductile_query_block` has written."""
    return Block(
        info.address,
        info.size,
        info.requested_size,
        BlockState(info.state),
        info.stream or 0,
        info.segment,
        info.segment_bytes,
        info.free_before_bytes,
        info.free_after_bytes,
        (info.pool.first, info.pool.second),
        info.spilled_bytes,
    )
