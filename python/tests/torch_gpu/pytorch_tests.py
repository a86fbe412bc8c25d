# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own CUDA memory tests, under PyTorch's allocator and under Ductile.

    python pytorch_tests.py PATH/TO/test_cuda.py [--allocators native,ductile] [--workers 8]

test_cuda.py is PyTorch's and not part of this tree: it comes with PyTorch's sources (test/), and
needs the package expecttest. Each test is a process of its own, several at a time. Prints for each
allocator how many passed, failed and were skipped, and which tests ended otherwise than under the
first allocator named; ends with status 1 if some did.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import ductile.torch

CLASSES = re.compile(r"TestCuda$|TestCudaMallocAsync|TestBlockState|TestMemPool|TestCudaAllocator")


def list_tests(path: Path) -> list[str]:
    """The tests by name, as the source has them: decorators may add variants to a name."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [
        f"{node.name}.{item.name}"
        for node in tree.body
        if isinstance(node, ast.ClassDef) and CLASSES.search(node.name)
        for item in node.body
        if isinstance(item, ast.FunctionDef) and item.name.startswith("test_")
    ]


def environment(allocator: str) -> dict[str, str]:
    found = dict(os.environ, PYTORCH_TEST_WITH_SLOW="0")
    found.pop("DUCTILE_TORCH", None)
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        found.pop(name, None)
        if allocator == "expandable":
            found[name] = "expandable_segments:True"
    return ductile.torch.child_environment("full", found) if allocator == "ductile" else found


def run_test(path: Path, test: str, allocator: str) -> tuple[str, str]:
    """How it ended, and the last lines of what it said."""
    name = test.split(".")[1]
    command = [sys.executable, str(path), "-k", f"{test.split('.')[0]}.{name}"]
    try:
        done = subprocess.run(
            command, env=environment(allocator), cwd=path.parent, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=150, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return "timeout", ""
    if done.returncode != 0:
        return "failed", done.stdout[-1500:]
    if re.search(r"OK \(.*skipped", done.stdout):
        return "skipped", ""
    if re.search(r"expected failures", done.stdout):
        return "xfailed", ""
    return ("absent" if re.search(r"Ran 0 tests|NO TESTS RAN", done.stdout) else "passed"), ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--allocators", default="native,ductile")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--only", default="", help="tests whose name contains this")
    parser.add_argument("--verbose", action="store_true", help="show what failed tests said")
    given = parser.parse_args()
    path = given.file.resolve()
    tests = [test for test in list_tests(path) if given.only in test]
    results: dict[str, dict[str, tuple[str, str]]] = {}
    for allocator in given.allocators.split(","):
        with ThreadPoolExecutor(given.workers) as pool:
            ended = pool.map(lambda test, a=allocator: run_test(path, test, a), tests)
            results[allocator] = dict(zip(tests, ended))
        counts: dict[str, int] = {}
        for status, _ in results[allocator].values():
            counts[status] = counts.get(status, 0) + 1
        print(allocator, " ".join(f"{n} {s}" for s, n in sorted(counts.items())), flush=True)
        if given.verbose:
            for test, (status, said) in results[allocator].items():
                if status in ("failed", "timeout"):
                    print(f"--- {allocator} {status} {test}\n{said}", flush=True)
    first, *others = results
    differing = [
        (test, results[first][test][0], other, results[other][test][0])
        for other in others
        for test in tests
        if results[first][test][0] != results[other][test][0]
    ]
    for test, was, other, ended_as in differing:
        print(f"{test}: {was} under {first}, {ended_as} under {other}")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
