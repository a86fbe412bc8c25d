# SPDX-License-Identifier: Apache-2.0
"""librmm's own C++ tests on librmm's resources and on Ductile's.

    python rmm_cpp_tests.py build SOURCES WHEELS LIBRARY FOLDER    a compiler and CUDA's headers
    python rmm_cpp_tests.py run FOLDER [--json]                    a GPU

`build` compiles the tests of RMM's cpp/tests (SOURCES, unchanged; they are not part of this tree)
against the headers of unpacked wheels (WHEELS/librmm, WHEELS/rapids_logger) and gtest, and links
each twice: as it is, and with rmm_cpp/on_ductile.cpp and a libductile.a (LIBRARY), whose functions
take the place of rmm::mr::cuda_memory_resource's. Every test's upstream, and the current resource
where a test begins, is Ductile's then, by ductile_rmm.hpp. A test of other sources than the headers
may not compile: it is named. FOLDER can be carried to a machine with a GPU.

`run` runs both of each, and prints how many passed, and what ended otherwise on Ductile. KNOWN may:
an alignment of 512, which librmm refuses, is served. Exit status: 0 if no other test did, and one
passed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
SECONDS = 60
# Not of the device's own memory, or of a resource that asks CUDA by itself; the last two are those
# of two GPUs and of error messages.
OTHERS = (
    "managed", "pinned", "host", "system", "hwdecompress", "cuda_async", "logger", "process_is",
    "multidevice", "error_macros",
)  # fmt: skip
# Each wants a refusal of an alignment that Ductile has.
KNOWN = (
    "DeviceScalarAlignmentTest.LargeAlignment",
    "DeviceUVectorAlignmentTest.LargeAlignment",
    "DeviceBufferAlignmentTest.ExplicitAlignmentTooLarge",
    "DeviceBufferAlignmentTest.CopyFromSourceAlignmentTooLarge",
)
ENDED = r"^\[ +(OK|FAILED|SKIPPED) +\] (\S+?)(?:, where .*)? \(\d+ ms\)$"
Row = dict[str, Any]


# ---- Building ----------------------------------------------------------------------------------


class Builder:
    def __init__(self, given: argparse.Namespace) -> None:
        self.sources, self.wheels, self.folder = given.sources, given.wheels, given.folder
        self.library = given.library
        self.cuda = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))
        headers = self.wheels / "librmm" / "include"
        logger = self.wheels / "rapids_logger"
        folders = (headers, headers / "rapids", logger / "include", self.sources,
                   self.sources.parent, ROOT / "pool" / "include")  # fmt: skip
        self.flags = ["-std=c++20", "-O1", "-w", *(f"-I{folder}" for folder in folders)]
        self.flags += ["-DRMM_LOG_ACTIVE_LEVEL=RAPIDS_LOGGER_LOG_LEVEL_INFO"]
        self.libraries = [
            self.wheels / "librmm" / "lib64" / "librmm.so",
            logger / "lib64" / "librapids_logger.so",
            "-lgmock_main", "-lgmock", "-lgtest", f"-L{self.cuda / 'lib64'}", "-lcudart",
            "-lpthread", "-Wl,-rpath,$ORIGIN",
        ]  # fmt: skip

    def compile(self, source: Path, output: Path) -> str:
        """What went wrong, in a line; nothing where nothing did."""
        if source.suffix == ".cu":
            command = ["nvcc", "-arch=sm_90", *self.flags]
        else:
            command = ["g++", *self.flags, "-isystem", str(self.cuda / "include")]
        done = subprocess.run(
            [*command, "-c", str(source), "-o", str(output)], capture_output=True, text=True
        )
        errors = [line for line in done.stderr.splitlines() if "error" in line]
        return "" if done.returncode == 0 else (errors or ["it does not compile"])[0]

    def link(self, output: Path, *objects: Path | str) -> None:
        words = ["g++", "-s", "-rdynamic", *objects, *self.libraries, "-ldl", "-lz", "-o", output]
        subprocess.run([str(word) for word in words], check=True)

    def build_one(self, source: Path) -> None:
        made = self.folder / "objects" / f"{source.stem}.o"
        wrong = self.compile(source, made)
        if wrong:
            print(f"{source.stem}: {wrong}", flush=True)
            return
        self.link(self.folder / source.stem, made)
        ours = self.folder / "objects" / "on_ductile.o"
        self.link(self.folder / f"{source.stem}.ductile", made, ours, self.library)

    def build(self) -> None:
        (self.folder / "objects").mkdir(parents=True, exist_ok=True)
        wrong = self.compile(
            HERE / "rmm_cpp" / "on_ductile.cpp", self.folder / "objects/on_ductile.o"
        )
        if wrong:
            raise SystemExit(wrong)
        for library in self.libraries[:2]:
            shutil.copy(library, self.folder)
        found = [*self.sources.rglob("*_tests.cpp"), *self.sources.rglob("*_tests.cu")]
        wanted = [one for one in found if not any(word in one.stem for word in OTHERS)]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(self.build_one, sorted(wanted)))
        version = (self.wheels / "librmm" / "VERSION").read_text().strip()
        (self.folder / "version").write_text(version)
        shutil.rmtree(self.folder / "objects")


# ---- Running -----------------------------------------------------------------------------------


def run_one(program: Path) -> Row:
    """How each of its tests ended, and how many requests Ductile served."""
    try:
        done = subprocess.run([program], capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return {"status": -1, "tests": {}, "served": 0, "said": f"ended after {SECONDS} s"}
    ends = re.findall(
        r"^\[ +(OK|FAILED|SKIPPED) +\] (\S+?)(?:, where .*)? \(\d+ ms\)$", done.stdout, re.M
    )
    served = re.search(r"served by Ductile: (\d+)", done.stderr)
    return {
        "status": done.returncode,
        "tests": {name: end for end, name in ends},
        "served": int(served[1]) if served else 0,
        "said": done.stdout[-4000:] if done.returncode else "",
    }


def compare(name: str, native: Row, ductile: Row) -> Row:
    both = {one: (end, ductile["tests"].get(one, "lost")) for one, end in native["tests"].items()}
    return {
        "program": name,
        "native": [end for end, _ in both.values()].count("OK"),
        "ductile": [end for _, end in both.values()].count("OK"),
        "skipped": [end for end, _ in both.values()].count("SKIPPED"),
        "differ": {one: ends for one, ends in both.items() if ends[0] != ends[1]},
        "status": [native["status"], ductile["status"]],
        "served": ductile["served"],
        "said": ductile["said"],
    }


def is_lost(row: Row) -> bool:
    """Did one of the two end without a test that failed?"""
    return row["status"][0] != row["status"][1] and not row["differ"]


def text_of(row: Row) -> str:
    said = (
        f"{row['program']:34} {row['native']:4} passed on librmm's, {row['ductile']:4} on Ductile's"
    )
    said += f", {row['skipped']} skipped, {row['served']} requests served by Ductile"
    return said + "".join(f"\n    {one}: {a}, then {b}" for one, (a, b) in row["differ"].items())


def run_all(given: argparse.Namespace) -> int:
    programs = sorted(one for one in given.folder.glob("*_tests") if given.only in one.name)
    programs = [one for one in programs if not given.without or given.without not in one.name]
    pairs = [(one, one.with_name(f"{one.name}.ductile")) for one in programs]
    print(f"# librmm {(given.folder / 'version').read_text()}", flush=True)
    rows = []
    with ThreadPoolExecutor(given.beside) as pool:
        for row in pool.map(lambda pair: compare(pair[0].name, *map(run_one, pair)), pairs):
            rows.append(row)
            print(json.dumps(row) if given.json else text_of(row), flush=True)
    differ = [row for row in rows if set(row["differ"]) - set(KNOWN) or is_lost(row)]
    passed = sum(row["ductile"] for row in rows)
    if not given.json:
        print(f"{passed} passed on Ductile's, {sum(row['native'] for row in rows)} on librmm's; "
              f"{len(differ)} of {len(rows)} programs differ")  # fmt: skip
    return int(bool(differ) or passed == 0)


def main() -> int:
    words = argparse.ArgumentParser(description="librmm's own C++ tests on Ductile.")
    verbs = words.add_subparsers(dest="verb", required=True)
    build = verbs.add_parser("build")
    for name in ("sources", "wheels", "library", "folder"):
        build.add_argument(name, type=lambda text: Path(text).resolve())
    run = verbs.add_parser("run")
    run.add_argument("folder", type=lambda text: Path(text).resolve())
    run.add_argument("--json", action="store_true", help="one JSON object a line")
    run.add_argument("--beside", type=int, default=1, help="programs at work beside each other")
    run.add_argument("--only", default="", metavar="WORD", help="programs with it in their name")
    run.add_argument("--without", metavar="WORD", help="not those; arena asks for half of the GPU")
    given = words.parse_args()
    if given.verb == "build":
        Builder(given).build()
        return 0
    return run_all(given)


if __name__ == "__main__":
    sys.exit(main())
