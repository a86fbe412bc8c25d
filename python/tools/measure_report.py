#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How long reports of long recordings take, and how much memory.

    python/tools/measure_report.py [--events N] [--most-seconds S] [--most-mib M]

Makes a trace and a snapshot with stacks, each of N events (10 million), repeats the real traces of
bench/traces that often, and reports on all of them. Memory is the most that all processes together
hold, pages that they share counted in each. Needs the installed package (python/tests/run
--install-only) and a C compiler; takes some minutes and 3 GB of disk. Ends with status 1 when a
report takes more than it may. Processor seconds are told beside the others, which a busy machine
makes longer.
"""

from __future__ import annotations

import argparse
import gzip
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "python" / "tests"))

from support import peak_rss  # noqa: E402
from test_recording import StackRecording, play, write_trace  # noqa: E402


def record(folder: Path, n_events: int) -> Path:
    """What record --stacks writes."""
    driver, parts, path = folder / "driver.so", folder / "parts", folder / "run.pickle"
    source = ROOT / "python" / "tests" / "recording_driver.c"
    flags = ["-std=c11", "-O2", "-fPIC", "-shared", "-pthread"]
    subprocess.run(["cc", *flags, "-o", driver, source], check=True)
    parts.mkdir()
    recording = StackRecording(parts)
    play(recording, driver, n_events // 3)
    recording.close()
    recording.save(path, [], {})
    return path


def _renamed(line: str, more: int) -> str:
    """An event of the same run once more: its blocks are others."""
    kind, *words = line.split()
    return " ".join([kind, str(int(words[0]) + more), *words[1:]]) if kind in "aufc" else line


def repeat(trace: Path, folder: Path, n_events: int) -> Path:
    """A trace again and again, until it has so many events; what lives at its end is freed."""
    with gzip.open(trace, "rt") as file:
        lines = [line.strip() for line in file if line.strip()]
    head = [line for line in lines if line.startswith("# version")]
    events = [line for line in lines if not line.startswith("#")]
    numbers = {kind: [int(e.split()[1]) for e in events if e[0] == kind] for kind in "af"}
    left, apart = set(numbers["a"]) - set(numbers["f"]), max(numbers["a"]) + 1
    events += [f"f {number}" for number in sorted(left)]
    path = folder / trace.name.removesuffix(".gz")
    with open(path, "w") as file:
        file.writelines(f"{line}\n" for line in head)
        for k in range(max(1, round(n_events / len(events)))):
            file.writelines(f"{_renamed(line, k * apart)}\n" for line in events)
    return path


def measure(path: Path, options: argparse.Namespace) -> bool:
    """Prints a line. Did it take what it may, at most?"""
    begin, used_before = time.monotonic(), os.times()
    command = [sys.executable, "-m", "ductile_gpu", "report", "-o", "report.html", str(path)]
    mib = peak_rss(command, path.parent) / 2**20
    seconds, used = time.monotonic() - begin, os.times()
    busy = sum(used[2:4]) - sum(used_before[2:4])  # of children
    passed = seconds <= options.most_seconds and mib <= options.most_mib
    verdict = "pass" if passed else "FAIL"
    took = f"{seconds:.1f} s ({busy:.1f} s of a processor), {mib:.0f} MiB"
    print(f"{path.name}: {options.events:,} events, {took}: {verdict}", flush=True)
    return passed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--events", type=int, default=10_000_000, metavar="N")
    parser.add_argument("--most-seconds", type=float, default=60, metavar="S")
    parser.add_argument("--most-mib", type=float, default=500, metavar="M")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        passed = [
            measure(write_trace(folder, options.events), options),
            measure(record(folder, options.events), options),
        ]
        for trace in sorted((ROOT / "bench" / "traces").glob("*.trace.gz")):
            path = repeat(trace, folder, options.events)
            passed.append(measure(path, options))
            path.unlink()
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
