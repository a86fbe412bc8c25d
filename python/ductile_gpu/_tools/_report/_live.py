# SPDX-License-Identifier: Apache-2.0
"""A report of this process: of what PyTorch has recorded, else of the blocks that are live now."""

from __future__ import annotations

import os
import pickle
import sys
import tempfile
from pathlib import Path
from typing import Any, Optional, Union

from ductile_gpu._binding._blocks import Block
from ductile_gpu._binding._core import Allocator, kept_open
from ductile_gpu._process import _share
from ductile_gpu._process._outside import outside, pci_bus_id
from ductile_gpu._tools._others import what_uses
from ductile_gpu._tools._report._collect import Choices, Recording, RecordingError, collect
from ductile_gpu._tools._report._page import make_page, write_page
from ductile_gpu._tools._report._spilled import spilled, stacks_of

OTHERS = "others"  # PyTorch, or the program itself
_HELD = ("LIVE", "PENDING")
# What a snapshot without history is refused with: that it should be recorded, or has nothing.
_IS_OFF = ("_record_memory_history", "held nothing")


def _silent(_line: str) -> None:
    pass


def _of_history(folder: Path) -> Optional[Recording]:
    """What torch.cuda.memory._record_memory_history has recorded; None: nothing."""
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    path = folder / "this process.pickle"
    try:
        torch.cuda.memory._dump_snapshot(str(path))
    except (RuntimeError, AssertionError, AttributeError):
        return None  # this PyTorch has no CUDA
    try:
        return collect(path, Choices(), _silent)
    except RecordingError as error:
        if any(words in str(error) for words in _IS_OFF):
            return None
        raise


def _named(blocks: list[Block], owners: dict[int, str]) -> dict[str, Any]:
    """A snapshot of a history in which each block is allocated by its library."""
    history = [
        {
            "action": "alloc",
            "addr": block.address,
            "size": block.requested_size or block.size,
            "stream": block.stream,
            "frames": [{"name": owners.get(block.address, OTHERS), "filename": "", "line": 0}],
        }
        for block in blocks
    ]
    return {"device_traces": [history], "segments": []}


def _place(number: Optional[int], allocator: Allocator) -> str:
    """What its recording is called."""
    own = "" if number is None else f", allocator {number}"
    return f"live on GPU {allocator.device}{own}"


def _of_blocks(number: Optional[int], allocator: Allocator, folder: Path) -> Optional[Recording]:
    """The blocks as a recording in which they are allocated one after another; with the library
    that each is of in place of a stack, where several share the allocator."""
    owners = _share.owners(allocator)
    with kept_open(allocator) as is_open:
        found = allocator.blocks() if is_open else []
    blocks = [block for block in found if block.state.name in _HELD]
    if not blocks:
        return None
    name = _place(number, allocator)
    if any(block.address in owners for block in blocks):
        path = folder / f"{name}.pickle"
        path.write_bytes(pickle.dumps(_named(blocks, owners)))
        return collect(path, Choices(), _silent)
    streams = {stream: i for i, stream in enumerate(sorted({block.stream for block in blocks}))}
    lines = [
        f"a {i} {block.requested_size or block.size} {streams[block.stream]}"
        for i, block in enumerate(blocks)
    ]
    path = folder / f"{name}.trace"
    path.write_text("\n".join(lines) + "\n", encoding="ascii")
    return collect(path, Choices(), _silent)


def _outside_of(allocator: Allocator) -> str:
    """What else uses its GPU, in words."""
    with kept_open(allocator) as is_open:
        where = pci_bus_id(allocator) if is_open else None
    found = outside(where)
    return what_uses(found.as_json()) if found is not None else ""


def _spilled_of(allocator: Allocator, history: Optional[Recording]) -> str:
    """What of its memory lies in the host, in words; with a history also whose it is."""
    with kept_open(allocator) as is_open:
        any_has = is_open and allocator.stats().spills > 0
        stacks = stacks_of(history.path) if history is not None and any_has else {}
        return spilled(allocator, stacks) if any_has else ""


def _serving(gpu: Any) -> Optional[Allocator]:
    """The allocator that serves PyTorch's memory of the GPU; None: not Ductile's."""
    return next((one for _, one in _share.numbered() if one.device == gpu), None)


def _collect_all(folder: Path) -> list[Recording]:
    history = _of_history(folder)
    if history is not None and history.has_history:
        serving = _serving(history.facts["gpu"])
        if serving is not None:
            history.outside = _outside_of(serving)
            history.spilled = _spilled_of(serving, history)
        return [history]
    found = []
    for number, allocator in _share.numbered():
        recording = _of_blocks(number, allocator, folder)
        if recording is not None:
            recording.outside = _outside_of(allocator)
            recording.spilled = _spilled_of(allocator, None)
            found.append(recording)
    # else what PyTorch's allocator holds now is all that is known
    return found or ([history] if history is not None else [])


def write_live(path: Union[str, os.PathLike[str]]) -> Path:
    """See ductile_gpu.report."""
    target = Path(path)
    with tempfile.TemporaryDirectory(prefix="ductile-") as name:
        try:
            found = _collect_all(Path(name))
        except RecordingError as error:
            raise RuntimeError(f"the report failed: {error}") from error
    if not found:
        raise RuntimeError(
            "nothing to report: call torch.cuda.memory._record_memory_history() before the work, "
            "or report while an allocator of Ductile has live blocks"
        )
    write_page(target, make_page(found))
    return target
