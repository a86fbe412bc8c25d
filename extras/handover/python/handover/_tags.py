# SPDX-License-Identifier: Apache-2.0
"""Whole tags passed between processes on one GPU: the memory stays where it is.

Both ends of the connection have to be of one user. Nothing here orders the processes' work: see
`Epoch`.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import socket
import struct
import sys
import weakref
from collections.abc import Iterator, Mapping
from ctypes import byref
from typing import Any, NamedTuple, Optional, Union

from ductile_gpu import Allocator, Buffer, ProcessGone, Status, shared
from ductile_gpu.interface import (
    Closes,
    ImportedBuffer,
    StreamLike,
    abi,
    check,
    check_peer,
    invalid,
    lib,
    read_text,
    stream_handle,
)

_TIME = struct.Struct("ll")
_READ, _READ_WRITE = 1, 3  # DUCTILE_IMPORT_*


@contextlib.contextmanager
def blocking(connection: socket.socket, seconds: float) -> Iterator[int]:
    """The descriptor as C needs it: blocking, and each word within a time limit."""
    before = connection.gettimeout()
    part, whole = math.modf(seconds)
    limit = _TIME.pack(int(whole), int(part * 1e6))
    connection.settimeout(None)
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        connection.setsockopt(socket.SOL_SOCKET, option, limit)
    try:
        yield connection.fileno()
    finally:
        with contextlib.suppress(OSError):  # it may be closed by now
            for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                connection.setsockopt(socket.SOL_SOCKET, option, _TIME.pack(0, 0))
            connection.settimeout(before)


def tag_bytes(tag: str) -> bytes:
    """A tag as C takes it. Raises InvalidArgument for what cannot be one."""
    return read_text(tag, "a tag", abi.ductile_sleep_report.tag.size)


# ---- Names -------------------------------------------------------------------------------------


class Part(NamedTuple):
    """A named part of a tag. Type and shape are what the exporter's tensor had."""

    offset: int
    """bytes from the start of the tag"""
    size: int
    """bytes"""
    dtype: str
    """such as "float16"; empty for plain memory"""
    shape: tuple[int, ...]


def _spell(name: str, dtype: str, shape: tuple[int, ...]) -> str:
    if any(mark in name for mark in "\t\0"):
        raise invalid(f"a name has no tab and no zero byte: {name!r}")
    return "\t".join((name, dtype, ",".join(map(str, shape))))


_MOST_DIGITS = 20  # of 2**64


def _read(text: str, offset: int, size: int) -> tuple[str, Part]:
    """Names of programs in C have no type and shape."""
    name, _, rest = text.partition("\t")
    dtype, _, shape = rest.partition("\t")
    numbers = shape.split(",") if shape else []
    is_shape = all(number.isdecimal() and len(number) <= _MOST_DIGITS for number in numbers)
    return name, Part(offset, size, dtype, tuple(map(int, numbers)) if is_shape else ())


def _locate(name: str, what: Any) -> tuple[int, int, str]:
    """Address, bytes and text of a tensor, a Buffer, or (address, bytes)."""
    if isinstance(what, Buffer):
        return what.address, what.size, _spell(name, "", (what.size,))
    if isinstance(what, tuple):
        address, size = what
        return int(address), int(size), _spell(name, "", (int(size),))
    if hasattr(what, "data_ptr"):
        if not what.is_contiguous():
            raise invalid(f"{name} is not contiguous: only whole memory can be named")
        dtype = str(what.dtype).rpartition(".")[2]
        size = what.numel() * what.element_size()
        return int(what.data_ptr()), size, _spell(name, dtype, tuple(what.shape))
    raise TypeError(f"{name} is neither a tensor, a Buffer, nor (address, bytes): {what!r}")


def _list_names(names: Mapping[str, Any]) -> Any:
    """An array of ductile_tag_name."""
    made = (abi.ductile_tag_name * len(names))()
    for entry, (name, what) in zip(made, names.items()):
        address, size, text = _locate(name, what)
        entry.address, entry.size, entry.name = address, size, read_text(text, "a name")
    return made


# ---- To other processes ------------------------------------------------------------------------


class TagExport(Closes):
    """One export of a tag; its memory is pinned until `close`.

    Attributes:
        tag: its name.
        layout: the hash of where everything lies, which an importer can insist on.
    """

    def __init__(self, allocator: Allocator, tag: str, number: int, layout: int) -> None:
        self.tag = tag
        self.layout = layout
        self._allocator = allocator
        self._number = number

    def close(self) -> None:
        """Takes the export back. Importers keep what they map. A second call does nothing."""
        number, self._number = self._number, 0
        if number and not self._allocator.closed:
            status = lib.ductile_unexport_tag(self._allocator.pointer, number)
            check(status, f"the export of {self.tag!r}")


def export_tag(
    tag: str,
    connection: socket.socket,
    names: Optional[Mapping[str, Any]] = None,
    *,
    allocator: Optional[Allocator] = None,
    device: int = 0,
    timeout: float = 60.0,
) -> TagExport:
    """Passes all live memory of the pools with a tag to the process at the other end.

    That calls `import_tag`. Wait for the work that writes the memory before.

    Args:
        tag: of the pools.
        connection: a UNIX-domain socket to a process of the same user.
        names: tensors, Buffers or (address, bytes) in the tag, by name; types and shapes go along.
        allocator: whose tag; the shared one of `device` by default.
        timeout: seconds for each word of the other side.

    Raises:
        LayoutChanged: the importer expects another layout.
        InvalidArgument: no pool has the tag, or a name is not in it.
        NotLive: the tag has no live block.
        Unsupported: the option `shareable` is none.
        BadMessage: the other side closed, timed out or gave up. Close the connection.
        PermissionError: it is of another user.
        Busy, NoDescriptors, DriverError, DeviceLost, ProcessGone.
    """
    named = tag_bytes(tag)
    check_peer(connection)
    found = allocator if allocator is not None else shared(device)
    listed = _list_names(names or {})
    number, layout = ctypes.c_uint64(), ctypes.c_uint64()
    with blocking(connection, timeout) as descriptor:
        status = lib.ductile_export_tag(
            found.pointer,
            named,
            listed,
            len(listed),
            descriptor,
            byref(number),
            byref(layout),
        )
    check(status, f"tag {tag!r} was not exported")
    return TagExport(found, tag, number.value, layout.value)


# ---- From other processes ----------------------------------------------------------------------


class PartBuffer(ImportedBuffer):
    """A named part of an imported tag, as other libraries read it. It keeps the import.

    A read-only part says so in __cuda_array_interface__. DLPack's consumers may not know: a kernel
    that stores to it ends this process's CUDA context.
    """

    def __init__(self, owner: ImportedTag, part: Part) -> None:
        self.owner = owner
        self.part = part
        address = owner.address + part.offset
        super().__init__(owner.allocator, address, part.size, owner.stream, writable=owner.writable)

    def tensor(self) -> Any:
        """A torch tensor on the memory, of the exporter's type and shape. Raises ImportError."""
        import torch

        flat = torch.from_dlpack(self)
        if not self.part.dtype:
            return flat
        return flat.view(getattr(torch, self.part.dtype)).view(self.part.shape)


def _parts(address: int, count: int) -> list[Any]:
    """ductile_tag_part *, as many as that."""
    return list(ctypes.cast(address, ctypes.POINTER(abi.ductile_tag_part))[:count])


class ImportedTag(Closes):
    """A tag of another process, mapped here; made by `import_tag`.

    Attributes:
        tag, layout: as exported; U+FFFD stands for bytes of a tag that are no UTF-8.
        address, size: its range, in bytes.
        writable: whether it was imported so. Otherwise a copy into it is refused by the driver, and
            a kernel that stores to it ends this process's CUDA context.
        blocks: (offset, bytes) of each block.
        parts: what the exporter named.
    """

    def __init__(self, allocator: Allocator, found: Any, stream: int) -> None:
        self._found: Any = found  # first: what fails below must not keep the memory
        self._buffers: weakref.WeakSet[PartBuffer] = weakref.WeakSet()
        view = found.contents
        self.allocator = allocator
        self.stream = stream
        self.tag: str = view.tag.decode(errors="replace")
        self.layout: int = view.layout
        self.address: int = view.address
        self.size: int = view.size
        self.writable = view.access == _READ_WRITE
        self.blocks = [(b.offset, b.size) for b in _parts(view.blocks, view.n_blocks)]
        named = _parts(view.names, view.n_names)
        self.parts: dict[str, Part] = dict(
            _read(n.name.decode(errors="replace"), n.offset, n.size) for n in named
        )

    def __getitem__(self, name: str) -> PartBuffer:
        if self._found is None:
            raise BufferError("the tag is released")
        buffer = PartBuffer(self, self.parts[name])
        self._buffers.add(buffer)
        return buffer

    def tensors(self) -> dict[str, Any]:
        """A torch tensor for each name, of the exporter's types and shapes. Raises ImportError."""
        return {name: self[name].tensor() for name in self.parts}

    def close(self) -> None:
        """Unmaps the memory once the work on `stream` is done. A second call does nothing.

        Raises:
            BufferError: a tensor of another library is on a part, by DLPack; nothing is released.
            Capturing, DriverError, DeviceLost, ProcessGone.
        """
        for buffer in tuple(self._buffers):
            buffer.refuse_while_in_use()
        found, self._found = self._found, None
        if found is None or self.allocator.closed:
            return
        status = lib.ductile_import_release(self.allocator.pointer, found)
        if status:
            if status != Status.ERR_DEVICE_LOST:
                self._found = found  # to be released by another call
            check(status, f"the import of {self.tag!r}")
        for buffer in tuple(self._buffers):
            buffer.forget()

    def __del__(self) -> None:
        if getattr(self, "_found", None) is not None and not sys.is_finalizing():
            with contextlib.suppress(ProcessGone):
                self.close()

    def __repr__(self) -> str:
        access = "writable" if self.writable else "read only"
        return f"<ductile_gpu.ImportedTag {self.tag!r}, {self.size} bytes, {access}>"


def import_tag(
    connection: socket.socket,
    *,
    write: bool = False,
    layout: Union[int, None] = None,
    stream: StreamLike = None,
    allocator: Optional[Allocator] = None,
    device: int = 0,
    timeout: float = 60.0,
) -> ImportedTag:
    """Maps a tag that another process passes with `export_tag`.

    Args:
        connection: a UNIX-domain socket to a process of the same user.
        write: map it writable; otherwise the device lets this process only read.
        layout: the only one that is accepted; None: any.
        stream: whose work will use it.
        allocator: that maps it; the shared one of `device` by default.
        timeout: seconds for each word of the other side.

    Raises:
        LayoutChanged: the tag has another layout; nothing was mapped.
        BadMessage: the message is not whole, or the other side closed or timed out.
        PermissionError: the other side is of another user.
        OutOfAddresses, NoDescriptors, DriverError, DeviceLost, ProcessGone.
    """
    check_peer(connection)
    found = allocator if allocator is not None else shared(device)
    out = ctypes.POINTER(abi.ductile_imported_tag)()
    handle = stream_handle(stream)
    with blocking(connection, timeout) as descriptor:
        status = lib.ductile_import_tag(
            found.pointer,
            descriptor,
            handle,
            _READ_WRITE if write else _READ,
            layout or 0,
            byref(out),
        )
    check(status, "no tag was imported")
    return ImportedTag(found, out, handle)
