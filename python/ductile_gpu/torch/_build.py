# SPDX-License-Identifier: Apache-2.0
"""Compiles the adapter against the installed PyTorch, once for each version of either.

A plain C++ compiler is enough; neither nvcc nor a CUDA toolkit is needed. The result is kept in
$DUCTILE_CACHE, else $XDG_CACHE_HOME/ductile-gpu, else ~/.cache/ductile-gpu, under a name that says
what it was made from. Many ranks may start at once: one compiles, the others wait for it.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import hashlib
import os
import shlex
import shutil
import stat
import subprocess
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple, Optional

from ductile_gpu._binding._native import include_dir, library_path
from ductile_gpu._process._files import replacing
from ductile_gpu.torch import _surface
from ductile_gpu_words import say

SOURCES = Path(__file__).parent / "adapter"
# What the adapter was compiled against and tried with; see python/tests/torch_versions. A newer
# PyTorch is tried where the program runs.
OLDEST = (2, 6)
NEWEST = (2, 15)
# Adapters that were made before the package was, for who has no compiler.
CARRIED = Path(__file__).parent / "built"
# What a carried adapter relies on: with other headers it is not for this PyTorch.
INTERFACE = (
    *_surface.HEADERS,
    "c10/core/AllocatorConfig.h",
    "ATen/cuda/MemPool.h",
    "c10/cuda/CUDAAllocatorConfig.h",
    "c10/cuda/CUDAGraphsC10Utils.h",
    "c10/cuda/CUDAStream.h",
    "c10/util/ApproximateClock.h",
    "torch/csrc/cuda/CUDAPluggableAllocator.h",
)
# Seconds for which another process may compile.
PATIENCE = 600


class BuildError(RuntimeError):
    """The adapter cannot be made here. The message says why, in one line."""


class FailedBefore(BuildError):
    """It was tried on this machine with this compiler already, and is not tried again."""


class Torch(NamedTuple):
    """What is needed to know of the installed PyTorch. None of it initialises CUDA."""

    version: str
    minor: int
    """of 2; each major version after it counts as a hundred"""
    cuda: str
    root: Path
    cxx11_abi: bool

    @property
    def include(self) -> Path:
        return self.root / "include"


def describe_torch() -> Torch:
    """The PyTorch of this interpreter. Raises BuildError when the adapter is not for it."""
    import torch

    version = torch.__version__
    if torch.version.cuda is None:
        raise BuildError(f"PyTorch {version} is built without CUDA")
    minor = count_minor(version)
    if minor < OLDEST[1]:
        oldest = ".".join(map(str, OLDEST))
        raise BuildError(f"PyTorch {version} is older than {oldest}, the oldest that is supported")
    root = Path(torch.__file__).parent
    abi = bool(torch._C._GLIBCXX_USE_CXX11_ABI)
    return Torch(version, minor, torch.version.cuda, root, abi)


def count_minor(version: str) -> int:
    """The minor version as Torch has it; negative for PyTorch 1."""
    major, minor = (int(part) for part in version.split(".")[:2])
    return 100 * (major - 2) + minor


def _is_untried(torch: Torch) -> bool:
    return torch.minor > NEWEST[1]


# ---- Where things are --------------------------------------------------------------------------


def _cuda_folders(torch: Torch) -> Iterator[Path]:
    """Wheels for CUDA 12 and for 13 may lie beside each other: that of PyTorch's version first."""
    wheels = torch.root.parent / "nvidia"
    major = int(torch.cuda.split(".")[0])
    yield wheels / (f"cu{major}" if major >= 13 else "cuda_runtime") / "include"
    yield from sorted(wheels.glob("*/include"))
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(variable):
            yield Path(os.environ[variable]) / "include"
    yield Path("/usr/local/cuda/include")


def _cuda_includes(torch: Torch) -> list[Path]:
    """The folder of CUDA's runtime headers, behind one that completes it where it needs that."""
    for folder in _cuda_folders(torch):
        if (folder / "cuda_runtime_api.h").exists():
            if (folder / "crt" / "host_defines.h").exists():
                return [folder]
            return [SOURCES / "cuda_crt", folder]
    raise BuildError(
        "cuda_runtime_api.h is not to be found: install the wheel nvidia-cuda-runtime of PyTorch's "
        "CUDA version, or set CUDA_HOME"
    )


def _compiler() -> list[str]:
    named = os.environ.get("CXX")
    if named:
        return shlex.split(named)
    for name in ("g++", "c++", "clang++"):
        if shutil.which(name):
            return [name]
    raise BuildError("no C++ compiler is to be found: install g++, or set CXX")


def _cache_folder() -> Path:
    named = os.environ.get("DUCTILE_CACHE")
    if named:
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "ductile-gpu"


def _is_own(status: os.stat_result) -> bool:
    """Written by this user or by root, and by no other user?"""
    return status.st_uid in (0, os.geteuid()) and not status.st_mode & 0o022


def check_trusted(path: Path) -> None:
    """Raises BuildError when another user could have put this file there, or could exchange it:
    what is loaded runs with this user's rights."""
    try:
        status = path.stat()
    except OSError as error:
        raise BuildError(f"{path} cannot be loaded: {error.strerror}") from None
    if not _is_own(status):
        raise BuildError(f"{path} is not loaded, because other users can write it")
    folder = path.resolve().parent
    if not _is_own(folder.stat()):
        raise BuildError(f"{path} is not loaded, because other users can write {folder}")
    for above in folder.parents:
        mode = above.stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            raise BuildError(f"{path} is not loaded, because every user can write {above}")


def _make_folder(folder: Path) -> bool:
    """Is this a folder to write to, of this user's own? It is made where it is missing."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        link, found = folder.lstat(), folder.stat()
    except OSError:
        return False
    is_mine = link.st_uid in (0, os.geteuid()) and _is_own(found)
    return is_mine and os.access(folder, os.W_OK)


def _writable_cache() -> Path:
    """The cache folder, or one of this user's own under the temporary folder."""
    folders = [_cache_folder(), Path(tempfile.gettempdir()) / f"ductile-gpu-{os.geteuid()}"]
    for folder in folders:
        if _make_folder(folder):
            return folder
    raise BuildError(
        f"neither {folders[0]} nor {folders[1]} is a folder that this user alone can write: set "
        "DUCTILE_CACHE to one"
    )


# ---- Compiling ---------------------------------------------------------------------------------


def _source_files() -> list[Path]:
    return sorted([*SOURCES.rglob("*.cpp"), *SOURCES.rglob("*.h"), *include_dir().glob("*.h")])


def _standard(torch: Torch) -> str:
    """What PyTorch's own headers need."""
    return "-std=c++20" if torch.minor >= 12 else "-std=c++17"


def _flags(torch: Torch) -> list[str]:
    flags = [_standard(torch), "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-DNDEBUG"]
    # Every call into PyTorch or the library is one jump less; all are bound at loading anyway.
    flags += ["-fno-plt"]
    flags += [
        f"-DDUCTILE_TORCH_MINOR={torch.minor}",
        f'-DDUCTILE_TORCH_VERSION="{torch.version}"',
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.cxx11_abi)}",
    ]
    for since in range(OLDEST[1] + 1, NEWEST[1] + 1):
        flags += [f"-DOVERRIDE_SINCE_{since}={'override' if torch.minor >= since else ''}"]
    folders = [torch.include, torch.include / "torch" / "csrc" / "api" / "include"]
    for folder in [*folders, *_cuda_includes(torch)]:
        flags += ["-isystem", str(folder)]
    return [*flags, f"-I{include_dir()}"]


def _name(torch: Torch) -> str:
    """Tells apart whatever would make another adapter."""
    digest = hashlib.sha256()
    for path in _source_files():
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    digest.update("\0".join([*_flags(torch), *_link_flags(torch)]).encode())
    abi = "cxx11" if torch.cxx11_abi else "precxx11"
    return f"torch-{torch.version}-{abi}-{digest.hexdigest()[:16]}.so"


def carried_name(torch: Torch) -> str:
    """Of an adapter for every PyTorch of this minor version that declares the same interface."""
    digest = hashlib.sha256()
    for header in INTERFACE:
        path = torch.include / header
        digest.update(header.encode() + b"\0" + (path.read_bytes() if path.exists() else b""))
    abi = "cxx11" if torch.cxx11_abi else "precxx11"
    cuda = torch.cuda.split(".")[0]
    return f"torch-2.{torch.minor}-{abi}-cu{cuda}-{digest.hexdigest()[:16]}.so"


def _link_flags(torch: Torch) -> list[str]:
    """All of these are in the process before the adapter is: no search path is recorded.

    So is the C++ library, PyTorch's: a compiler that links its own in would put two into one
    process, whose locales and exceptions do not mix.
    """
    libraries = ["-lc10", "-lc10_cuda", "-ltorch_cuda", str(library_path())]
    search = ["-Wl,--no-as-needed", f"-L{torch.root / 'lib'}"]
    return [*search, *libraries, "-nodefaultlibs", "-lgcc", "-lc"]


def _first_error(torch: Torch, text: str) -> str:
    lines = text.splitlines()[1:] or ["the compiler says nothing"]  # behind the command itself
    first = next((line for line in lines if "error" in line), lines[-1])
    if _standard(torch) in first:
        return f"it needs a compiler for C++20 (GCC 10, Clang 10 or newer); {first}"
    return first


def _run_compiler(torch: Torch, output: Path) -> str:
    """Compiles. Returns what the compiler complains about, nothing when it made the file."""
    command = [*_compiler(), *_flags(torch), str(SOURCES / "torch_adapter.cpp"), "-o", str(output)]
    command += _link_flags(torch)
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise BuildError(f"{command[0]} cannot be run: {error}") from None
    return f"{shlex.join(command)}\n{done.stderr}" if done.returncode != 0 else ""


def _compile(torch: Torch, target: Path) -> None:
    """Makes the file as a whole, or a record of the failure beside it."""
    say(f"compiling the adapter for PyTorch {torch.version}, once: this takes about half a minute")
    handle, name = tempfile.mkstemp(suffix=".so", dir=target.parent)
    os.close(handle)
    try:
        complaint = _run_compiler(torch, Path(name))
        if complaint:
            record = _record_of_failure(target)
            with replacing(record) as part:
                part.write_text(f"{_compiler_identity()}\n{complaint}", encoding="utf-8")
            raise BuildError(_describe_failure(torch, complaint, record))
        os.chmod(name, 0o755)
        os.replace(name, target)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)


# ---- Failures are remembered -------------------------------------------------------------------


def _compiler_identity() -> str:
    """Another compiler, or a newer one, is worth another try."""
    command = _compiler()
    path = shutil.which(command[0])
    changed = os.stat(path).st_mtime_ns if path else 0
    return f"{shlex.join(command)} {path} {changed}"


def _record_of_failure(target: Path) -> Path:
    return target.with_suffix(".failed")


def _describe_failure(torch: Torch, complaint: str, record: Path) -> str:
    newer = ""
    if _is_untried(torch):
        newest = ".".join(map(str, NEWEST))
        newer = f", which is newer than {newest}, the newest that this Ductile was tried with"
        news = list_unknown(torch)
        newer += f", and declares {news}" if news else ""
    return (
        f"the adapter does not compile against PyTorch {torch.version}{newer}: "
        f"{_first_error(torch, complaint)}; all of it is in {record}"
    )


def load(path: Path) -> ctypes.CDLL:
    """Raises BuildError."""
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise BuildError(f"{path} cannot be loaded: {error}") from None


def list_unknown(torch: Torch) -> str:
    """The functions of its allocator that the adapter does not have; "" where there are none."""
    try:
        return ", ".join(sorted(_surface.unknown(torch.include)))
    except OSError:  # no headers: the adapter came ready-made
        return ""
    except ValueError:
        return "what cannot be read"


def _raise_remembered(torch: Torch, target: Path) -> None:
    record = _record_of_failure(target)
    try:
        identity, complaint = record.read_text(encoding="utf-8").split("\n", 1)
    except (OSError, ValueError):
        return
    if identity == _compiler_identity():
        raise FailedBefore(
            f"{_describe_failure(torch, complaint, record)}; `python -m ductile_gpu.torch build` "
            "tries again"
        )


# ---- One compiles, the others wait -------------------------------------------------------------


def _lock(lock: IO[str]) -> None:
    end = time.monotonic() + PATIENCE
    while True:
        try:
            return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end:
                raise BuildError(
                    f"another process has held {lock.name} for {PATIENCE} seconds"
                ) from None
        time.sleep(0.05)


def build(torch: Torch, output: Optional[Path] = None, again: bool = False) -> Path:
    """Compiles, if it was not done yet, and returns the file.

    Arguments:
        output: where to; None for the cache.
        again: try even where the same compiler has failed before.
    """
    target = output or _writable_cache() / _name(torch)
    if output is None and target.exists():
        return target
    with open(target.parent / ".lock", "a", encoding="utf-8") as lock:
        _lock(lock)
        if output is None and target.exists():
            return target
        if not again:
            _raise_remembered(torch, target)
        _compile(torch, target)
        with contextlib.suppress(FileNotFoundError):
            _record_of_failure(target).unlink()
    return target


_TO_BE_COMPILED = "compiled when it is first needed"


def describe_adapter() -> str:
    """Whether PyTorch can have its adapter, for people. Compiles nothing."""
    try:
        torch = describe_torch()
        named = os.environ.get("DUCTILE_TORCH_ADAPTER")
        carried = CARRIED / carried_name(torch)
        if not named and carried.exists():
            return f"{carried}"
        target = Path(named) if named else _writable_cache() / _name(torch)
        if target.exists():
            return f"{target}"
        _raise_remembered(torch, target)
        _compiler()
    except BuildError as error:
        return f"none: {error}"
    return _TO_BE_COMPILED


def is_to_be_compiled() -> bool:
    """Is there no adapter yet, and will one be compiled when it is asked for?"""
    return describe_adapter() == _TO_BE_COMPILED


def adapter_path(torch: Torch) -> Path:
    """The adapter to load: DUCTILE_TORCH_ADAPTER if it is set, else the one that the package
    carries for this PyTorch, else one that is compiled for it."""
    named = os.environ.get("DUCTILE_TORCH_ADAPTER")
    if named:
        return Path(named)
    carried = CARRIED / carried_name(torch)
    return carried if carried.exists() else compiled_path(torch)


def compiled_path(torch: Torch) -> Path:
    """An adapter that was compiled here, now or before."""
    path = build(torch)
    check_trusted(path)
    return path


def tell_what_is_unknown(torch: Torch) -> None:
    """A warning where this PyTorch asks an allocator for more than the adapter has. One rank says
    it."""
    news = list_unknown(torch)
    if news and os.environ.get("LOCAL_RANK", "0") == "0":
        warnings.warn(
            f"PyTorch {torch.version} has allocator functions that this version of Ductile does "
            f"not know ({news}): they do what PyTorch's default is",
            RuntimeWarning,
            stacklevel=6,
        )
