# SPDX-License-Identifier: Apache-2.0
"""libductile and the virtual GPU's library, opened and typed. The declarations are made from their
headers (`_abi`)."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, Callable, Optional, TypeVar

from ductile_gpu._binding import _abi, _log

Struct = TypeVar("Struct", bound=ctypes.Structure)


def _package_folders() -> list[Path]:
    """Where the package's files may be: an editable installation spreads them over two folders."""
    return [Path(folder) for folder in sys.modules["ductile_gpu"].__path__]


def find_file(kind: str, name: str) -> Path:
    """A file of the package.

    Args:
        kind: its folder in the package: "lib", "bin", "include", "traces".

    Raises:
        ImportError: it is not part of this installation.
    """
    for folder in _package_folders():
        if (folder / kind / name).exists():
            return folder / kind / name
    raise ImportError(
        f"{name} is not part of this installation of ductile-gpu: install it with "
        "`pip install ./python`, or set DUCTILE_LIBRARY to a libductile.so of the same version"
    )


def library_path() -> Path:
    """The libductile.so in use: DUCTILE_LIBRARY if it is set, else the package's own."""
    named = os.environ.get("DUCTILE_LIBRARY")
    return Path(named) if named else find_file("lib", "libductile.so")


def _virtual_path(library: Path) -> Path:
    """The virtual GPU's library: beside the libductile.so in use, else the package's own."""
    name = "libductile_virtual.so." + _abi.VERSION.rpartition(".")[0]
    beside = library.with_name(name)
    return beside if beside.exists() else find_file("lib", name)


def bench_path() -> Path:
    """The ductile-bench program that belongs to this package."""
    return find_file("bin", "ductile-bench")


def include_dir() -> Path:
    """The folder of the public C headers, as this package was built from them."""
    return find_file("include", "ductile.h").parent


def schema_path() -> Path:
    """The JSON schema of what `Allocator.snapshot` returns."""
    return find_file("", "snapshot.schema.json")


def _sized_structs(functions: Collection[str]) -> Iterator[tuple[type[Any], str]]:
    """Structs whose size a library itself can be asked for, and its function that says it."""
    for name in dir(_abi):
        if name.endswith("_options") and f"{name}_init" in functions:
            yield getattr(_abi, name), f"{name}_init"


def _load(path: Path, functions: Collection[str]) -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise ImportError(f"{path} cannot be loaded: {error}") from None
    for name in functions:
        try:
            function = getattr(library, name)
        except AttributeError:
            raise ImportError(
                f"{path} has no {name}: it is another version than {_abi.VERSION}"
            ) from None
        function.restype, function.argtypes = _abi.FUNCTIONS[name]
    _check_layout(library, path, functions)
    return library


def _check_layout(library: ctypes.CDLL, path: Path, functions: Collection[str]) -> None:
    """Refuses a library that was built from other headers than this binding."""
    for struct, init in _sized_structs(functions):
        room = ctypes.create_string_buffer(4096)
        getattr(library, init)(room)
        size = ctypes.c_size_t.from_buffer(room).value
        if size != ctypes.sizeof(struct):
            raise ImportError(
                f"{path} has {size} bytes of {struct.__name__}, this package "
                f"{ctypes.sizeof(struct)}: they were built from different headers"
            )


def _load_both() -> ctypes.CDLL:
    """libductile, with the functions of the virtual GPU beside its own."""
    path = library_path()
    of_virtual = [name for name in _abi.FUNCTIONS if name.startswith("ductile_virtual_")]
    library = _load(path, _abi.FUNCTIONS.keys() - of_virtual)
    found = library.ductile_version().decode()
    if found != _abi.VERSION:
        raise ImportError(f"{path} is version {found}, this package is {_abi.VERSION}")
    virtual = _load(_virtual_path(path), of_virtual)
    for name in of_virtual:
        setattr(library, name, getattr(virtual, name))
    return library


lib = _load_both()


def sized(kind: type[Struct], **fields: int) -> Struct:
    """A struct of C's that says how large it is, as the library wants to know."""
    return kind(struct_size=ctypes.sizeof(kind), **fields)


def formatted(write: Callable[..., int], *what: Any) -> bytes:
    """What a function writes that is called for the size first."""
    size = write(*what, None, 0) + 1
    text = ctypes.create_string_buffer(size)
    write(*what, text, size)
    return text.value


def written(ask: Callable[[Any], int], what: str) -> bytes:
    """What a function writes piece by piece, by a callback. Raises what its status says."""
    pieces: list[bytes] = []

    def write(_user: Any, text: Optional[bytes], length: int) -> int:
        pieces.append((text or b"")[:length])
        return 0

    _log.check(ask(_abi.ductile_write_fn(write)), what)
    return b"".join(pieces)
