# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own CUDA memory tests, under PyTorch's allocator and under Ductile.

    python pytorch_tests.py PATH/TO/test_cuda.py [--workers 8]

test_cuda.py is PyTorch's and not part of this tree: it comes with PyTorch's sources (test/), and
needs the package expecttest. Several processes share the tests; one that crashes or hangs is
replaced. Prints for each allocator how many passed, failed and were skipped, and which tests ended
otherwise under Ductile, or passed under neither, with the error. What passed under PyTorch's and
did not under Ductile is tried again, in a process of its own and alone on the GPU:

  again    passes under Ductile, too, or fails under PyTorch's
  differs  does not, for a reason in DIFFERENCES, and says what that expects
  LOST     does not

TestBlockStateAbsorption counts what is left in pools, by earlier tests too: its tests share a
process of their own, and are tried again together.

Under Ductile the tests are told that segments expand, as they do. Ends with status 1 if one is
lost, or none passed.
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
PAIR = ("native", "ductile")
# What passes under native and cannot under Ductile: why, and what such a failure says.
DIFFERENCES = {
    "TestCuda.test_graph_memory_stats_and_use_result_after_destroy_graph": (
        "wants native's two pools with their segments of 2 and 20 MiB to the byte: Ductile has one "
        "pool and holds less (features.py: a_graphs_memory_is_counted)",
        r"delta of (?:segment|reserved_bytes|active)\.(?:small|large)_pool\.current",
    ),
}
SAID = re.compile(r"^(?:FAIL|ERROR): \w+ \(__main__\.([\w.]+)\)$", re.MULTILINE)
ERROR = re.compile(r"^[\w.]*(?:Error|Exception|Failure)\b.*", re.MULTILINE)
CLASSES = re.compile(r"TestCuda$|TestCudaMallocAsync|TestBlockState|TestMemPool|TestCudaAllocator")


# Classes whose tests see what those before them left behind: they stay together.
TOGETHER = re.compile(r"TestBlockStateAbsorption\.")


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


def read_errors(said: str) -> dict[str, str]:
    """The first line of the error that a failed test ended with."""
    starts = list(SAID.finditer(said))
    ends = [start.start() for start in starts[1:]] + [len(said)]
    found = {}
    for start, end in zip(starts, ends):
        errors = ERROR.findall(said, start.end(), end)
        found[start.group(1)] = errors[-1][:200] if errors else ""
    return found


def environment(allocator: str) -> dict[str, str]:
    found = dict(allocators.environment(allocator), PYTORCH_TEST_WITH_SLOW="0")
    if allocator == "ductile":
        found["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    return found


def run_group(
    path: Path, tests: list[str], allocator: str, end: float, silence: float
) -> tuple[dict[str, str], str]:
    """Runs tests in one process, and what is left in another one when one of them crashes."""
    results: dict[str, str] = {}
    said = ""
    where = environment(allocator)
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


def group(tests: list[str], workers: int) -> list[list[str]]:
    """Which tests share a process."""
    together = [test for test in tests if TOGETHER.match(test)]
    others = [test for test in tests if not TOGETHER.match(test)]
    groups = [others[i::workers] for i in range(workers)]
    return [tests for tests in [together, *groups] if tests]


def run_all(
    path: Path, tests: list[str], allocator: str, given: argparse.Namespace
) -> tuple[dict[str, str], str]:
    groups = group(tests, given.workers)
    results: dict[str, str] = {}
    said = ""
    end = time.monotonic() + given.seconds

    def run_one(group: list[str]) -> tuple[dict[str, str], str]:
        return run_group(path, group, allocator, end, given.silence)

    with ThreadPoolExecutor(len(groups)) as pool:
        for found, text in pool.map(run_one, groups):
            results.update(found)
            said += text
    return results, said


def differing(first: dict[str, str], other: dict[str, str]) -> dict[str, tuple[str, str]]:
    """The tests that ended in two ways, with both of them."""
    names = sorted(first.keys() | other.keys())
    both = {name: (first.get(name, "not run"), other.get(name, "not run")) for name in names}
    return {name: ends for name, ends in both.items() if ends[0] != ends[1]}


def passed_under_neither(first: dict[str, str], other: dict[str, str]) -> list[str]:
    fine = {"passed", "skipped", "xfailed"}
    return [
        name
        for name, end in sorted(first.items())
        if end not in fine and other.get(name, end) not in fine
    ]


def run_alone(path: Path, test: str, allocator: str, seconds: float) -> tuple[str, str]:
    """How a test ends that has its process to itself, or to its class, and what was said."""
    name = test.split(".")[0] if TOGETHER.match(test) else test
    command = [sys.executable, str(path), "-v", name]
    _, output = allocators.run(command, seconds, environment(allocator), path.parent)
    return read_results(output).get(test, "not run"), "".join(BLOCK.findall(output)) or output[
        -4000:
    ]


def judge(path: Path, test: str, given: argparse.Namespace, end: float) -> dict[str, str]:
    """Is a test lost that passed under native only? What was said, and why."""
    left = min(given.silence, end - time.monotonic())
    if left <= 0:
        return {"verdict": "LOST", "why": "no time was left to try it alone"}
    now, said = run_alone(path, test, "ductile", left)
    if now == "passed":
        return {"verdict": "again", "why": "passed alone on the GPU"}
    was, _ = run_alone(path, test, "native", left)
    if was in ("failed", "crashed"):
        return {"verdict": "again", "why": f"alone on the GPU {was} under native, too"}
    why, pattern = DIFFERENCES.get(test, ("", ""))
    if why and now == "failed" and re.search(pattern, said):
        return {"verdict": "differs", "why": why}
    return {"verdict": "LOST", "why": f"alone on the GPU {now}", "said": said}


def show(row: dict[str, str], given: argparse.Namespace) -> None:
    if given.json:
        print(json.dumps(row), flush=True)
        return
    why = f"; {row['why']}" if row.get("why") else ""
    ends = ", ".join(f"{row[name]} under {name}" for name in PAIR)
    print(f"{row['verdict']:8}{row['test']}: {ends}{why}", flush=True)
    if row.get("error"):
        print(f"        {row['error']}", flush=True)
    if row.get("said"):
        print(row["said"], flush=True)


def compare(
    path: Path,
    results: dict[str, dict[str, str]],
    errors: dict[str, dict[str, str]],
    given: argparse.Namespace,
) -> Counter[str]:
    """Prints what ended otherwise under Ductile, and counts the verdicts."""
    verdicts: Counter[str] = Counter()
    end = time.monotonic() + given.seconds
    native, ductile = (results[name] for name in PAIR)
    rows = [
        {"test": test, "native": was, "ductile": now, "verdict": "other"}
        for test, (was, now) in differing(native, ductile).items()
    ]
    for test in passed_under_neither(native, ductile):
        ends = {"native": native[test], "ductile": ductile.get(test, "not run")}
        rows.append({"test": test, **ends, "verdict": "neither"})
    for row in rows:
        test = row["test"]
        row["error"] = errors["native"].get(test, "")
        if row["verdict"] == "other":
            row["error"] = errors["ductile"].get(test, "") or row["error"]
            if row["native"] == "passed":
                row.update(judge(path, test, given, end))
        verdicts[row["verdict"]] += 1
        show(row, given)
    return verdicts


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--workers", type=int, default=8, help="processes beside each other")
    parser.add_argument("--seconds", type=float, default=240, help="limit for each allocator")
    parser.add_argument("--silence", type=float, default=100, help="limit for one test")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    return parser.parse_args()


def main() -> int:
    given = parse()
    path = given.file.resolve()
    tests = list_tests(path)
    results: dict[str, dict[str, str]] = {}
    errors: dict[str, dict[str, str]] = {}
    for allocator in PAIR:
        start = time.monotonic()
        results[allocator], said = run_all(path, tests, allocator, given)
        errors[allocator] = read_errors(said)
        counts = Counter(results[allocator].values())
        took = round(time.monotonic() - start, 1)
        if given.json:
            row = {"allocator": allocator, "seconds": took, **counts, "said": said}
            print(json.dumps(row), flush=True)
        else:
            text = ", ".join(f"{n} {s}" for s, n in sorted(counts.items())) or "nothing ran"
            print(f"{allocator:10}{text}; {took} s", flush=True)
            if not counts:
                print(said, flush=True)
    verdicts = compare(path, results, errors, given)
    n_passed = Counter(results["native"].values())["passed"]
    if not given.json:
        lost, differ = verdicts["LOST"], verdicts["differs"]
        print(f"{n_passed} passed under native: {lost} of them lost, {differ} differ", flush=True)
    return 1 if verdicts["LOST"] or not n_passed else 0


if __name__ == "__main__":
    sys.exit(main())
