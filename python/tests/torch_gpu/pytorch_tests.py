# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own CUDA memory tests, under PyTorch's allocator and under Ductile.

    python pytorch_tests.py PATH/TO/test_cuda.py [--allocators native,ductile] [--workers 8]

test_cuda.py is PyTorch's and not part of this tree: it comes with PyTorch's sources (test/), and
needs the package expecttest. Several processes share the tests; one that crashes or hangs is
replaced. Prints for each allocator how many passed, failed and were skipped, and which tests ended
otherwise than under the first allocator named. What passed there and did not under another is tried
again under both, alone on the GPU. Ends with status 1 if one is lost that way too, or none passed.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import allocators

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


def read_results(output: str) -> dict[str, str]:
    """What unittest says of each test; one that it began and said nothing of has crashed."""
    found: dict[str, str] = {}
    starts = list(STARTED.finditer(output))
    for at, start in enumerate(starts):
        end = starts[at + 1].start() if at + 1 < len(starts) else len(output)
        said = ENDED.search(output, start.end(), end)
        found[start.group(1)] = NAMES[said.group(1).split(" '")[0]] if said else "crashed"
    return found


def run_group(
    path: Path, tests: list[str], allocator: str, end: float, silence: float
) -> tuple[dict[str, str], str]:
    """Runs tests in one process, and what is left in another one when one of them crashes."""
    results: dict[str, str] = {}
    said = ""
    where = dict(allocators.environment(allocator), PYTORCH_TEST_WITH_SLOW="0")
    while tests and time.monotonic() < end:
        command = [sys.executable, str(path), "-v"]
        for test in tests:
            command += ["-k", test]
        left = end - time.monotonic()
        status, output = allocators.run(command, left, where, path.parent, silence)
        found = read_results(output)
        said += "".join(BLOCK.findall(output))
        results.update(found)
        seen = [test for test in tests if any(name.startswith(test) for name in found)]
        if not seen:
            said += f"status {status} before the first test:\n{output[-4000:]}\n"
        if "crashed" in found.values():
            said += f"status {status}, the end of what was said:\n{output[-4000:]}\n"
        elif status != -1:
            break
        if not seen:
            break
        tests = [test for test in tests if test not in seen]
    return results, said


def run_all(
    path: Path, tests: list[str], allocator: str, given: argparse.Namespace
) -> tuple[dict[str, str], str]:
    groups = [tests[i :: given.workers] for i in range(given.workers) if tests[i :: given.workers]]
    results: dict[str, str] = {}
    said = ""
    end = time.monotonic() + given.seconds

    def run_one(group: list[str]) -> tuple[dict[str, str], str]:
        return run_group(path, group, allocator, end, given.silence)

    with ThreadPoolExecutor(given.workers) as pool:
        for found, text in pool.map(run_one, groups):
            results.update(found)
            said += text
    return results, said


def differing(first: dict[str, str], other: dict[str, str]) -> dict[str, tuple[str, str]]:
    """The tests that ended in two ways, with both of them."""
    names = sorted(first.keys() | other.keys())
    both = {name: (first.get(name, "not run"), other.get(name, "not run")) for name in names}
    return {name: ends for name, ends in both.items() if ends[0] != ends[1]}


def is_lost(ends: tuple[str, str]) -> bool:
    return ends[0] == "passed"


def try_again(
    path: Path, lost: list[str], pair: tuple[str, str], given: argparse.Namespace
) -> tuple[dict[str, tuple[str, str]], str]:
    """What of the lost tests is lost when nothing else runs, and what was said of them."""
    alone = argparse.Namespace(**{**vars(given), "workers": 1, "seconds": given.seconds / 2})
    first, _ = run_all(path, lost, pair[0], alone)
    other, said = run_all(path, lost, pair[1], alone)
    return {name: ends for name, ends in differing(first, other).items() if is_lost(ends)}, said


def compare(path: Path, results: dict[str, dict[str, str]], given: argparse.Namespace) -> int:
    """Prints what ended otherwise than under the first allocator; how many of them are lost?"""
    first, *others = results
    n_lost = 0
    for other in others:
        found = differing(results[first], results[other])
        lost = [name for name, ends in found.items() if is_lost(ends)]
        still, said = try_again(path, lost, (first, other), given) if lost else ({}, "")
        n_lost += len(still)
        for name, (was, now) in found.items():
            verdict = "LOST" if name in still else "again" if name in lost else "other"
            if given.json:
                row = {"test": name, first: was, other: now, "verdict": verdict}
                print(json.dumps(row), flush=True)
            else:
                more = ", but not alone on the GPU" if verdict == "again" else ""
                print(f"{verdict:6}{name}: {was} under {first}, {now} under {other}{more}",
                      flush=True)  # fmt: skip
        if still and not given.json:
            print(said, flush=True)
    return n_lost


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--allocators", default="native,ductile")
    parser.add_argument("--workers", type=int, default=8, help="processes beside each other")
    parser.add_argument("--seconds", type=float, default=240, help="limit for each allocator")
    parser.add_argument("--silence", type=float, default=100, help="limit for one test")
    parser.add_argument("--only", default="", help="tests whose name contains this")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--verbose", action="store_true", help="show what failed tests said")
    return parser.parse_args()


def main() -> int:
    given = parse()
    path = given.file.resolve()
    tests = [test for test in list_tests(path) if given.only in test]
    results: dict[str, dict[str, str]] = {}
    for allocator in given.allocators.split(","):
        start = time.monotonic()
        results[allocator], said = run_all(path, tests, allocator, given)
        counts = Counter(results[allocator].values())
        took = round(time.monotonic() - start, 1)
        if given.json:
            row = {"allocator": allocator, "seconds": took, **counts, "said": said}
            print(json.dumps(row), flush=True)
        else:
            text = ", ".join(f"{n} {s}" for s, n in sorted(counts.items())) or "nothing ran"
            print(f"{allocator:10}{text}; {took} s", flush=True)
            if given.verbose or not counts:
                print(said, flush=True)
    n_lost = compare(path, results, given)
    n_passed = Counter(next(iter(results.values())).values())["passed"]
    if not given.json:
        print(f"{n_passed} passed under {next(iter(results))}, {n_lost} of them lost", flush=True)
    return 1 if n_lost or not n_passed else 0


if __name__ == "__main__":
    sys.exit(main())
