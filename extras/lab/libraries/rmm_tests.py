# SPDX-License-Identifier: Apache-2.0
"""RMM's own tests of its memory resources, on RMM's CudaMemoryResource and on Ductile's resource.

    python rmm_tests.py FOLDER [--resources cuda,ductile] [PYTEST ARGUMENT...]

FOLDER holds files of RMM's python/rmm/rmm/tests, of the installed version and unchanged: they are
not part of this tree, and RMM's wheels do not bring them. conftest.py and test_helpers.py have to
be among them.

Under Ductile, every rmm.mr.CudaMemoryResource() that a test makes is Ductile's resource, and so is
the current one when a test begins: what RMM's adaptors, pools, callbacks and buffers are tested on
is a resource of another library. DUCTILE_CONF=driver:virtual does without a GPU what needs none.

Prints for each resource how many passed, failed and were skipped, and which tests ended otherwise
than under the first resource named; ends with status 1 if some did, if none passed, or if Ductile
served no allocation. What was not freed is told only: one of RMM's tests frees nothing.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

RESOURCE = "DUCTILE_RMM_TESTS_RESOURCE"
RESULTS = "DUCTILE_RMM_TESTS_RESULTS"
DEADLINE_S = 400


# ---- Inside the tests' process: a plugin of pytest ---------------------------------------------


def _is_on_ductile() -> bool:
    return os.environ.get(RESOURCE) == "ductile"


def _note(**entry: Any) -> None:
    """A line of the results, written at once: the next test may end the process."""
    path = os.environ.get(RESULTS)
    if path is not None:
        with open(path, "a", encoding="utf-8") as results:
            results.write(json.dumps(entry) + "\n")


def pytest_configure() -> None:
    if not _is_on_ductile():
        return
    import rmm.mr

    import ductile_gpu.rmm

    def make() -> Any:
        return ductile_gpu.rmm.resource(0)

    make.__name__ = "CudaMemoryResource"  # tests are named after their parameters
    rmm.mr.CudaMemoryResource = make


@pytest.fixture(autouse=True)
def _ductile_is_the_current_resource() -> None:
    if _is_on_ductile():
        import rmm.mr

        rmm.mr.set_current_device_resource(rmm.mr.CudaMemoryResource())


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or report.outcome != "passed":
        _note(test=report.nodeid, outcome=report.outcome)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        _note(test=report.nodeid, outcome="not collected")


def pytest_sessionfinish() -> None:
    if _is_on_ductile():
        import ductile_gpu

        gc.collect()
        stats = ductile_gpu.shared(0).stats()
        _note(allocs=stats.allocs, live_blocks=stats.live_blocks)


# ---- The program -------------------------------------------------------------------------------


class Run:
    """What one resource did."""

    def __init__(self, lines: list[dict[str, Any]], output: str) -> None:
        self.output = output
        self.outcomes: dict[str, str] = {}
        self.allocs = self.live_blocks = 0
        for line in lines:
            if "test" not in line:
                self.allocs, self.live_blocks = line["allocs"], line["live_blocks"]
            elif self.outcomes.get(line["test"]) != "failed":
                self.outcomes[line["test"]] = line["outcome"]


def run_tests(folder: Path, resource: str, arguments: list[str]) -> Run:
    with tempfile.TemporaryDirectory() as place:
        results = Path(place) / "results"
        results.touch()
        environment = dict(os.environ)
        environment[RESOURCE] = resource
        environment[RESULTS] = str(results)
        own = str(Path(__file__).resolve().parent)
        paths = [own, environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "rmm_tests"]
        command += ["-p", "no:cacheprovider", "--continue-on-collection-errors"]
        command += ["--rootdir", str(folder), *arguments, str(folder)]
        try:
            done = subprocess.run(
                command, env=environment, cwd=place, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, text=True, timeout=DEADLINE_S, check=False,
            )  # fmt: skip
            output = done.stdout
        except subprocess.TimeoutExpired as late:
            output = f"{late.stdout!r}\nnot done after {DEADLINE_S} s"
        lines = results.read_text(encoding="utf-8").splitlines()
        return Run([json.loads(line) for line in lines], output)


def compare(first: Run, other: Run) -> list[str]:
    """The tests that ended otherwise, one sentence each."""
    names = sorted(first.outcomes.keys() | other.outcomes.keys())
    found = [
        (name, first.outcomes.get(name, "not run"), other.outcomes.get(name, "not run"))
        for name in names
    ]
    return [f"{name}: {was}, then {now}" for name, was, now in found if was != now]


def find_fault(runs: dict[str, Run]) -> list[str]:
    """What is wrong, one sentence each."""
    first, *others = runs.values()
    found = [line for other in others for line in compare(first, other)]
    for name, run in runs.items():
        if "passed" not in run.outcomes.values():
            found.append(f"no test passed on {name}:\n{run.output[-2000:]}")
        if name == "ductile" and run.allocs == 0:
            found.append("Ductile served no allocation")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--resources", default="cuda,ductile")
    parser.add_argument("--verbose", action="store_true", help="show what pytest said")
    given, arguments = parser.parse_known_args()
    folder = given.folder.resolve()
    runs = {}
    for resource in given.resources.split(","):
        run = runs[resource] = run_tests(folder, resource, arguments)
        counts = Counter(run.outcomes.values())
        said = ", ".join(f"{n} {outcome}" for outcome, n in sorted(counts.items()))
        served = f"Ductile served {run.allocs}, {run.live_blocks} left"
        print(f"{resource}: {said or 'nothing ran'}; {served}", flush=True)
        if given.verbose:
            print(run.output, flush=True)
    faults = find_fault(runs)
    for fault in faults:
        print(fault)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
