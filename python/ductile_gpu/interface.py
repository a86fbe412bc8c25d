# SPDX-License-Identifier: Apache-2.0
"""What programs that are built on Ductile use of it, beside the names of `ductile_gpu`.

For code that brings its own C library, its own command, its own pools for PyTorch, or that passes
memory between processes. These names, and what they promise, stay within a minor version; modules
whose names begin with an underscore change at any time. See docs/dev/interface.md.
"""

from __future__ import annotations

from ductile_gpu._binding import _abi as abi
from ductile_gpu._binding._buffer import ImportedBuffer
from ductile_gpu._binding._errors import check, invalid
from ductile_gpu._binding._native import find_file, lib
from ductile_gpu._binding._objects import Closes, read_text
from ductile_gpu._binding._sleep import Contents
from ductile_gpu._binding._streams import StreamLike, stream_handle
from ductile_gpu._process._children import inherit
from ductile_gpu._process._live import accept_next, check_peer, is_left, is_private, socket_folder
from ductile_gpu._process._notes import Note
from ductile_gpu._process._notes import read as read_notes
from ductile_gpu._tools._cli.common import MISUSED, Failure, show
from ductile_gpu._tools._sizes import in_bytes
from ductile_gpu.torch._tag_pools import TagPool, tag_allocators, tag_pool
from ductile_gpu.torch._tags import is_apart

__all__ = [
    "MISUSED",
    "Closes",
    "Contents",
    "Failure",
    "ImportedBuffer",
    "Note",
    "StreamLike",
    "TagPool",
    "abi",
    "accept_next",
    "check",
    "check_peer",
    "find_file",
    "in_bytes",
    "inherit",
    "invalid",
    "is_apart",
    "is_left",
    "is_private",
    "lib",
    "read_notes",
    "read_text",
    "show",
    "socket_folder",
    "stream_handle",
    "tag_allocators",
    "tag_pool",
]
