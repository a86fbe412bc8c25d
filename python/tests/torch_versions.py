# SPDX-License-Identifier: Apache-2.0
"""Checks PyTorch's adapter against the versions of PyTorch on the package index.

Of each version only the headers are fetched, out of the middle of its wheel, and kept. What pip is
configured to ask is asked. Run by python/tests/torch_versions.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import urllib.request
import zipfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from ductile_gpu.torch import _build, _surface

PYTHONS = ("3.11", "3.12")  # some version of PyTorch has no wheel for the one, but for the other
PLATFORMS = ("manylinux1_x86_64", "manylinux2014_x86_64", "manylinux_2_28_x86_64")
GLIBC = (2, 28)
BLOCK = 4 << 20
TESTS = Path(__file__).parent
ROOT = TESTS.parents[1]


class Remote(io.RawIOBase):
    """A file on a web server, read in large pieces."""

    def __init__(self, url: str) -> None:
        self._url = url
        request = urllib.request.Request(url, method="HEAD")
        with urllib.request.urlopen(request, timeout=60) as answer:
            self._size = int(answer.headers["Content-Length"])
        self._at = 0
        self._blocks: dict[int, bytes] = {}

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = base + offset
        return self._at

    def _block(self, number: int) -> bytes:
        if number not in self._blocks:
            first = number * BLOCK
            last = min(first + BLOCK, self._size) - 1
            request = urllib.request.Request(self._url, headers={"Range": f"bytes={first}-{last}"})
            with urllib.request.urlopen(request, timeout=120) as answer:
                assert answer.status == 206, f"{self._url}: the server gives no pieces"
                self._blocks[number] = answer.read()
        return self._blocks[number]

    def readinto(self, buffer: Any) -> int:
        piece = self._block(self._at // BLOCK) if self._at < self._size else b""
        begin = self._at % BLOCK
        taken = piece[begin : begin + len(buffer)]
        buffer[: len(taken)] = taken
        self._at += len(taken)
        return len(taken)


# ---- The package index, asked through pip ------------------------------------------------------


def pip(*words: str) -> str:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def listed(*words: str) -> list[str]:
    """The versions of PyTorch, the newest first."""
    found = re.search(r"Available versions: (.*)", pip("index", "versions", *words, "torch"))
    assert found is not None, "pip lists no versions of torch"
    return found.group(1).split(", ")


def available() -> dict[int, str]:
    """The newest version of each minor of PyTorch 2, by its number."""
    newest: dict[int, str] = {}
    for version in listed():
        minor = _build.count_minor(version)
        if minor >= _build.OLDEST[1]:
            newest.setdefault(minor, version)
    return dict(sorted(newest.items()))


def nightly(index: str, newest: str) -> str:
    """The newest version of all, releases and others; pip asks `index` too from here on.

    Raises:
        LookupError: there is none that is newer than the newest release.
    """
    if index:
        os.environ["PIP_EXTRA_INDEX_URL"] = index
    try:
        found = listed("--pre")[0]
    except (subprocess.CalledProcessError, AssertionError):
        raise LookupError("the package index cannot be asked") from None
    if _build.count_minor(found) <= _build.count_minor(newest):
        raise LookupError(f"the package index has none that is newer than {newest}")
    return found


def find_wheel(requirement: str) -> str:
    """Where the wheel is."""
    failure = None
    for python in PYTHONS:
        words = ["install", "--dry-run", "--ignore-installed", "--no-deps", "--quiet"]
        words += ["--target", "unused", "--only-binary=:all:", "--python-version", python]
        words += [word for platform in PLATFORMS for word in ("--platform", platform)]
        try:
            report = json.loads(pip(*words, "--report", "-", requirement))
            return str(report["install"][0]["download_info"]["url"])
        except subprocess.CalledProcessError as error:
            failure = error
    assert failure is not None
    raise RuntimeError(f"{requirement}: {failure.stderr.strip().splitlines()[-1]}")


def extract(url: str, wanted: Iterable[str], to: Path) -> None:
    """Takes the files whose names begin so out of a wheel."""
    with zipfile.ZipFile(io.BufferedReader(Remote(url), 1 << 16)) as wheel:
        names = [name for name in wheel.namelist() if name.startswith(tuple(wanted))]
        for name in sorted(names, key=lambda name: wheel.getinfo(name).header_offset):
            wheel.extract(name, to)


def fetch(version: str, cache: Path) -> Path:
    """A folder that looks like site-packages, with PyTorch's and CUDA's headers in it."""
    folder = cache / version
    if folder.exists():
        return folder
    partial = cache / f"{version}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    extract(find_wheel(f"torch=={version}"), ("torch/include/", "torch/version.py"), partial)
    cuda = read_cuda(partial)
    name = "nvidia-cuda-runtime" + ("" if int(cuda.split(".")[0]) >= 13 else "-cu12")
    extract(find_wheel(f"{name}=={cuda}.*"), ("nvidia/",), partial)
    partial.rename(folder)
    return folder


def read_cuda(folder: Path) -> str:
    text = (folder / "torch" / "version.py").read_text(encoding="utf-8")
    found = re.search(r"cuda(?:: \S+)? = '([0-9.]+)'", text)
    assert found is not None, f"{folder}: PyTorch does not say its CUDA"
    return found.group(1)


# ---- Checks ------------------------------------------------------------------------------------


class Finding(NamedTuple):
    version: str
    cuda: str
    standard: str
    complaints: list[str]


def check(version: str, cache: Path) -> Finding:
    """Compiles the adapter against the headers, without making code."""
    folder = fetch(version, cache)
    minor = _build.count_minor(version)
    torch = _build.Torch(version, minor, read_cuda(folder), folder / "torch", True)
    flags = [flag for flag in _build._flags(torch) if flag != "-shared"]
    source = str(_build.SOURCES / "torch_adapter.cpp")
    command = [*_build._compiler(), *flags, "-Wall", "-Wextra", "-fsyntax-only", source]
    said = subprocess.run(command, capture_output=True, text=True, check=False).stderr
    complaints = [line for line in said.splitlines() if "error: " in line or "warning: " in line]
    news = sorted(_surface.unknown(torch.include))
    complaints += [f"{name} is not accounted for" for name in news]
    return Finding(version, torch.cuda, _build._standard(torch), complaints)


def describe(findings: Iterable[Finding]) -> Iterator[str]:
    compiler = subprocess.run([*_build._compiler(), "--version"], capture_output=True, text=True)
    yield f"compiler: {compiler.stdout.splitlines()[0]}"
    yield f"{'PyTorch':<10} {'CUDA':<6} {'standard':<12} adapter"
    for found in findings:
        verdict = "compiles, every virtual function accounted for"
        if found.complaints:
            verdict = f"FAILS: {'; '.join(found.complaints[:3])}"
        yield f"{found.version:<10} {found.cuda:<6} {found.standard:<12} {verdict}"


# ---- Adapters to carry -------------------------------------------------------------------------


def make_stubs(folder: Path) -> None:
    """Empty libraries by whose names the adapter finds PyTorch's when it is loaded."""
    folder.mkdir(exist_ok=True)
    for name in ("c10", "c10_cuda", "torch_cuda"):
        library = f"lib{name}.so"
        command = [*_build._compiler(), "-shared", "-nostdlib", f"-Wl,-soname,{library}"]
        subprocess.run([*command, "-xc", os.devnull, "-o", str(folder / library)], check=True)


# What this machine's C library has and that of an older distribution has not: the headers of the
# C++ library use them where they see them.
OLDER = {
    "older.h": "#include <cstddef>\n#undef _GLIBCXX_USE_PTHREAD_COND_CLOCKWAIT\n",
    "sys/single_threaded.h": "static constexpr char __libc_single_threaded = 0;\n",
}


def compile_for_older(folder: Path) -> None:
    """From here on the compiler makes what runs with glibc 2.28."""
    for name, text in OLDER.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    flags = ("-isystem", str(folder), "-include", str(folder / "older.h"))
    os.environ["CXX"] = shlex.join([*_build._compiler(), *flags])


def check_needs(adapter: Path) -> None:
    """Of the C library no more than what a wheel for all may need."""
    command = ["objdump", "-p", str(adapter)]
    needs = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    newest = max(tuple(map(int, found)) for found in re.findall(r"GLIBC_(\d+)\.(\d+)", needs))
    assert newest <= GLIBC, f"{adapter.name} needs glibc {newest[0]}.{newest[1]}"


def make_adapter(version: str, cache: Path, to: Path) -> Path:
    """Compiles and links for all of a minor version."""
    folder = fetch(version, cache)
    minor = _build.count_minor(version)
    root = folder / "torch"
    # PyTorch's own wheels have C++11's strings since 2.7
    torch = _build.Torch(f"2.{minor}", minor, read_cuda(folder), root, minor >= 7)
    output = to / _build.carried_name(torch)
    complaint = _build._run_compiler(torch, output)
    assert not complaint, f"PyTorch {version}: {complaint}"
    subprocess.run(["strip", "--strip-unneeded", str(output)], check=True)
    check_needs(output)
    return output


# ---- Tests -------------------------------------------------------------------------------------


def make_environment(version: str, place: Path, lender: Path | None) -> Path:
    """A virtual environment with this PyTorch. CUDA's libraries are large, and only have to be
    loadable: one environment lends them to the others."""
    folder = place / version
    python = folder / "bin" / "python"
    if not (folder / "complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        install = [str(python), "-m", "pip", "install", "--quiet", "numpy", "pytest", "setuptools"]
        if lender is None:
            subprocess.run([*install, f"torch=={version}"], check=True)
        else:
            subprocess.run([*install, "--no-deps", f"torch=={version}"], check=True)
            subprocess.run([*install, "typing_extensions", "filelock", "sympy"], check=True)
            subprocess.run([*install, "networkx", "jinja2", "fsspec"], check=True)
            (site,), (other,) = (f.glob("lib/*/site-packages") for f in (folder, lender))
            (site / "nvidia").symlink_to(other / "nvidia")
        # It looks for PyTorch before it imports it; nothing it needs is PyTorch's.
        subprocess.run([*install, "transformers"], check=True)
        (folder / "complete").touch()
    return folder


def run_tests(versions: list[str], place: Path, wheel: Path) -> bool:
    lender: Path | None = None
    passed = True
    for version in reversed(versions):
        folder = make_environment(version, place, lender)
        lender = lender or folder
        python = str(folder / "bin" / "python")
        install = [python, "-m", "pip", "install", "--quiet", "--force-reinstall", "--no-deps"]
        subprocess.run([*install, str(wheel)], check=True)
        config = TESTS.parent / "pyproject.toml"
        command = [python, "-m", "pytest", "-q", "-c", str(config), "--rootdir", str(TESTS.parent)]
        for folder in (TESTS, *ROOT.glob("extras/*/tests")):
            command += sorted(map(str, folder.glob("test_torch*.py")))
        print(f"== the adapter's tests on PyTorch {version}", flush=True)
        passed = subprocess.run(command, check=False).returncode == 0 and passed
    return passed


def try_nightly(given: argparse.Namespace, newest: str) -> bool:
    """Its headers, and the tests where tests are asked for. That there is none is no failure."""
    try:
        version = nightly(given.nightly, newest)
    except LookupError as reason:
        print(f"no nightly PyTorch was tried: {reason}", flush=True)
        return True
    found = check(version, given.place / "headers")
    print("\n".join(list(describe([found]))[2:]), flush=True)
    passed = not found.complaints
    if given.tests:
        passed = run_tests([version], given.place, given.wheel) and passed
    return passed


def main() -> int:
    parser = argparse.ArgumentParser(prog="python/tests/torch_versions", description=__doc__)
    parser.add_argument("--newest", type=int, metavar="N", help="only the newest N minor versions")
    parser.add_argument(
        "--tests",
        metavar="MINOR,...",
        help="also run the adapter's tests without a GPU on these, such as 2.11,newest (5 GB)",
    )
    parser.add_argument(
        "--nightly",
        nargs="?",
        const="",
        metavar="INDEX",
        help="also a version that is newer than all releases, from this package index beside pip's",
    )
    parser.add_argument(
        "--carry", type=Path, metavar="FOLDER", help="also make the adapters, for a wheel to carry"
    )
    parser.add_argument("--place", type=Path, required=True, help=argparse.SUPPRESS)
    parser.add_argument("--wheel", type=Path, required=True, help=argparse.SUPPRESS)
    given = parser.parse_args()
    found = available()
    wanted = list(found.values())[-given.newest if given.newest else 0 :]
    cache = given.place / "headers"
    cache.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        findings = list(pool.map(lambda version: check(version, cache), wanted))
    print("\n".join(describe(findings)), flush=True)
    passed = not any(finding.complaints for finding in findings)
    if given.nightly is not None:
        passed = try_nightly(given, found[max(found)]) and passed
    if given.carry and passed:
        given.carry.mkdir(parents=True, exist_ok=True)
        for version in wanted:
            make_stubs(cache / version / "torch" / "lib")
        compile_for_older(given.place / "older")
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            made = list(pool.map(lambda version: make_adapter(version, cache, given.carry), wanted))
        for adapter in made:
            print(f"{adapter.stat().st_size:>9,} bytes  {adapter.name}")
    if given.tests:
        newest = max(found)
        minors = [newest if m == "newest" else int(m.split(".")[1]) for m in given.tests.split(",")]
        versions = [found[minor] for minor in sorted(set(minors))]
        passed = run_tests(versions, given.place, given.wheel) and passed
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
