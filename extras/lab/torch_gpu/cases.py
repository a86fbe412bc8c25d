# SPDX-License-Identifier: Apache-2.0
"""Runs cases, each in a process of its own with a time limit: one that crashes or hangs hides no
other."""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable

import allocators

Case = Callable[[], None]


def parser(about: str, seconds: float, workers: int) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=about.splitlines()[0])
    made.add_argument("--seconds", type=float, default=seconds, help="limit for each case")
    made.add_argument("--workers", type=int, default=workers, help="cases beside each other")
    made.add_argument("--only", help="one case, in this process")
    made.add_argument("--json", action="store_true", help="one JSON object a line")
    made.add_argument("--verbose", action="store_true", help="show what every case said")
    return made


def run_here(case: Case) -> int:
    try:
        case()
    except Exception:
        traceback.print_exc(file=sys.stdout)
        return 1
    return 0


def _try_one(command: Sequence[str], name: str, seconds: float) -> dict[str, Any]:
    start = time.monotonic()
    status, output = allocators.run([*command, "--only", name], seconds)
    took = round(time.monotonic() - start, 1)
    return {"case": name, "ok": status == 0, "status": status, "seconds": took, "said": output}


def run_all(script: str, cases: Sequence[Case], given: argparse.Namespace) -> int:
    """Prints a line per case, in their order, and how many passed. 1: one did not."""
    command = [sys.executable, "-X", "faulthandler", script]
    failed = 0
    with ThreadPoolExecutor(given.workers) as pool:
        names = [case.__name__ for case in cases]
        for row in pool.map(lambda name: _try_one(command, name, given.seconds), names):
            failed += not row["ok"]
            if given.json:
                print(json.dumps(row), flush=True)
                continue
            print(f"{'ok    ' if row['ok'] else 'FAILED'}  {row['case']}", flush=True)
            if not row["ok"] or given.verbose:
                print(f"status {row['status']} after {row['seconds']} s\n{row['said']}", flush=True)
    if not given.json:
        print(f"{len(cases) - failed} of {len(cases)} passed", flush=True)
    return 1 if failed else 0


def main(script: str, cases: Sequence[Case], given: argparse.Namespace) -> int:
    if not given.only:
        return run_all(script, cases, given)
    named = {case.__name__: case for case in cases}
    if given.only not in named:
        raise SystemExit(f"no case is called {given.only}: there are {', '.join(named)}")
    return run_here(named[given.only])
