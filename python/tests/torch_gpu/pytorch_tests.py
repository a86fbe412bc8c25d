# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own CUDA memory tests, under PyTorch's allocator and under Ductile.

    python pytorch_tests.py PATH/TO/test_cuda.py [--allocators native,ductile] [--workers 8]

test_cuda.py is PyTorch's and not part of this tree: it comes with PyTorch's sources (test/), and
needs the package expecttest. Several processes share the tests; one that crashes is replaced.
Prints for each allocator how many passed, failed and were skipped, and which tests ended otherwise
than under the first allocator named; ends with status 1 if some did.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import ductile.torch

STARTED = re.compile(r"^(?:test_\w+) \(__main__\.(\w+\.test_\w+)\) ?", re.MULTILINE)
ENDED = re.compile(
    r"(?:\.\.\. |^)(ok|FAIL|ERROR|skipped '.*'|expected failure|unexpected success)$", re.MULTILINE
)
NAMES = {
    "ok": "passed", "FAIL": "failed", "ERROR": "failed", "skipped": "skipped",
    "expected failure": "xfailed", "unexpected success": "xpassed",
}  # fmt: skip
BLOCK = re.compile(r"^={70}\n(?:FAIL|ERROR): .*?(?=^={70}|^-{70}\nRan )", re.MULTILINE | re.S)
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


def read_results(output: str) -> dict[str, str]:
    """What unittest says of each test; one that it began and said nothing of has crashed."""
    found: dict[str, str] = {}
    starts = list(STARTED.finditer(output))
    for at, start in enumerate(starts):
        end = starts[at + 1].start() if at + 1 < len(starts) else len(output)
        said = ENDED.search(output, start.end(), end)
        found[start.group(1)] = NAMES[said.group(1).split(" '")[0]] if said else "crashed"
    return found


def run_group(path: Path, tests: list[str], allocator: str) -> tuple[dict[str, str], str]:
    """Runs tests in one process, and what is left in another one when one of them crashes."""
    results: dict[str, str] = {}
    said = ""
    while tests:
        command = [sys.executable, str(path), "-v"]
        for test in tests:
            command += ["-k", test]
        done = subprocess.run(
            command, env=environment(allocator), cwd=path.parent, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip
        found = read_results(done.stdout)
        said += "".join(BLOCK.findall(done.stdout))
        results.update(found)
        seen = [test for test in tests if any(name.startswith(test) for name in found)]
        if "crashed" not in found.values() or not seen:
            break
        tests = [test for test in tests if test not in seen]
    return results, said


def run_all(
    path: Path, tests: list[str], allocator: str, workers: int
) -> tuple[dict[str, str], str]:
    groups = [tests[i::workers] for i in range(workers) if tests[i::workers]]
    results: dict[str, str] = {}
    said = ""
    with ThreadPoolExecutor(workers) as pool:
        for found, text in pool.map(lambda group: run_group(path, group, allocator), groups):
            results.update(found)
            said += text
    return results, said


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
    results: dict[str, dict[str, str]] = {}
    for allocator in given.allocators.split(","):
        results[allocator], said = run_all(path, tests, allocator, given.workers)
        counts = Counter(results[allocator].values())
        print(allocator, ", ".join(f"{n} {s}" for s, n in sorted(counts.items())), flush=True)
        if given.verbose:
            print(said, flush=True)
    first, *others = results
    n_differing = 0
    for other in others:
        for test in sorted(results[first].keys() | results[other].keys()):
            was, now = results[first].get(test, "not run"), results[other].get(test, "not run")
            if was != now:
                n_differing += 1
                print(f"{test}: {was} under {first}, {now} under {other}")
    return 1 if n_differing else 0


if __name__ == "__main__":
    sys.exit(main())
