# SPDX-License-Identifier: Apache-2.0
"""Compiles the adapter against the installed PyTorch, once for each version of either.

A plain C++ compiler is enough; neither nvcc nor a CUDA toolkit is needed. The result is kept in
$DUCTILE_CACHE, else $XDG_CACHE_HOME/ductile-gpu, else ~/.cache/ductile-gpu, under a name that says
what it was made from. Many ranks may start at once: one compiles, the others wait for it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Optional

from ductile_gpu._native import include_dir, library_path
from ductile_gpu.torch import _surface

__all__ = ["BuildError", "Torch", "adapter_path", "build", "describe_torch"]

SOURCES = Path(__file__).parent / "adapter"
OLDEST = (2, 6)


class BuildError(RuntimeError):
    """The adapter cannot be made here. The message says why, in one line."""


class Torch(NamedTuple):
    """What is needed to know of the installed PyTorch. None of it initialises CUDA."""

    version: str
    minor: int
    root: Path
    cxx11_abi: bool

    @property
    def include(self) -> Path:
        return self.root / "include"


def describe_torch() -> Torch:
    """The PyTorch of this interpreter. Raises BuildError when it cannot be one for CUDA."""
    try:
        import torch
    except ImportError as error:
        raise BuildError(f"PyTorch cannot be imported: {error}") from None
    version = torch.__version__
    if torch.version.cuda is None:
        raise BuildError(f"PyTorch {version} is built without CUDA")
    major, minor = (int(part) for part in version.split(".")[:2])
    if major != 2 or (major, minor) < OLDEST:
        raise BuildError(f"PyTorch {version} is not supported: 2.6 or newer is, of PyTorch 2")
    root = Path(torch.__file__).parent
    return Torch(version, minor, root, bool(torch._C._GLIBCXX_USE_CXX11_ABI))


# ---- Where things are --------------------------------------------------------------------------


def _cuda_folders(torch: Torch) -> Iterator[Path]:
    yield from sorted((torch.root.parent / "nvidia").glob("*/include"))
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


def _writable_cache() -> Path:
    """The cache folder, or one of this user's own under the temporary folder."""
    folder = _cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    except OSError:
        pass
    folder = Path(tempfile.gettempdir()) / f"ductile-gpu-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.stat()
    if status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise BuildError(f"{folder} is not this user's alone: set DUCTILE_CACHE")
    return folder


# ---- Compiling ---------------------------------------------------------------------------------


def _source_files() -> list[Path]:
    return sorted([*SOURCES.rglob("*.cpp"), *SOURCES.rglob("*.h"), *include_dir().glob("*.h")])


def _flags(torch: Torch) -> list[str]:
    flags = ["-std=c++17", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-DNDEBUG"]
    # Every call into PyTorch or the library is one jump less; all are bound at loading anyway.
    flags += ["-fno-plt"]
    flags += [
        f"-DDUCTILE_TORCH_MINOR={torch.minor}",
        f'-DDUCTILE_TORCH_VERSION="{torch.version}"',
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.cxx11_abi)}",
    ]
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


def _link_flags(torch: Torch) -> list[str]:
    """All of these are in the process before the adapter is: no search path is recorded.

    So is the C++ library, PyTorch's: a compiler that links its own in would put two into one
    process, whose locales and exceptions do not mix.
    """
    libraries = ["-lc10", "-lc10_cuda", "-ltorch_cuda", str(library_path())]
    return [f"-L{torch.root / 'lib'}", *libraries, "-nodefaultlibs", "-lgcc", "-lc"]


def _first_error(text: str) -> str:
    lines = text.splitlines()
    return next((line for line in lines if "error" in line), lines[-1] if lines else "no output")


def _compile(torch: Torch, output: Path) -> None:
    command = [*_compiler(), *_flags(torch), str(SOURCES / "torch_adapter.cpp"), "-o", str(output)]
    command += _link_flags(torch)
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise BuildError(f"{command[0]} cannot be run: {error}") from None
    if done.returncode != 0:
        log = output.with_suffix(".log")
        log.write_text(shlex.join(command) + "\n" + done.stderr, encoding="utf-8")
        raise BuildError(
            f"the adapter does not compile against PyTorch {torch.version}: "
            f"{_first_error(done.stderr)}; all of it is in {log}"
        )


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    with open(folder / ".lock", "a", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def build(torch: Torch, output: Optional[Path] = None) -> Path:
    """Compiles, if it was not done yet, and returns the file."""
    target = output or _writable_cache() / _name(torch)
    if output is None and target.exists():
        return target
    with _alone(target.parent):
        if output is None and target.exists():
            return target
        handle, name = tempfile.mkstemp(suffix=".so", dir=target.parent)
        os.close(handle)
        try:
            _compile(torch, Path(name))
            os.chmod(name, 0o755)
            os.replace(name, target)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)
    return target


def adapter_path(torch: Torch) -> Path:
    """The adapter to load: DUCTILE_TORCH_ADAPTER if it is set, else one made for this PyTorch."""
    named = os.environ.get("DUCTILE_TORCH_ADAPTER")
    if named:
        return Path(named)
    path = build(torch)
    news = _surface.unknown(torch.include)
    if news:
        print(
            f"ductile-gpu: PyTorch {torch.version} has allocator functions that this version of "
            f"Ductile does not know ({', '.join(sorted(news))}): they do what PyTorch's default is",
            file=sys.stderr,
        )
    return path
