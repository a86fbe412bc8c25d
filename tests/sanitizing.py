# SPDX-License-Identifier: Apache-2.0
"""Runs programs that use a GPU under compute-sanitizer's memcheck and initcheck: several at a time, each within the
time that is left, and a line for each."""

import os
import re
import shutil
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor, as_completed

TOOLS = ("memcheck", "initcheck")
SKIPPED = 77
CANNOT = ("Device not supported", "Unable to find injection library", "Failed to initialize")
USUAL = {"seconds": 440, "jobs": 6,
         "sanitizer": shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"}
KERNEL = re.compile(r"at (?:0x[0-9a-f]+ in )?(?:void )?([\w:]+)[<(+]")


class Run:
    """One program under one tool. What is derived from this says which."""

    with_children = False  # does it do its work there?
    folder = None  # where it runs

    def __init__(self, name, tool):
        self.name, self.tool = name, tool
        self.said, self.status, self.seconds = "", 0, 0.0

    def words(self, options):
        """Its command line."""
        raise NotImplementedError

    def title(self):
        return self.name

    def command(self, options):
        children = "all" if self.with_children else "application-only"
        tool = [options["sanitizer"], "--tool", self.tool, "--print-limit", "20", "--target-processes", children]
        if self.tool == "memcheck":  # a call that is refused is no mistake
            tool += ["--report-api-errors", "no"]
        return [*tool, *self.words(options)]

    def go(self, options):
        begin = time.monotonic()
        left = options["end"] - begin
        if left < 1:
            self.status, self.said = -1, "not begun: the time is over"
            return self
        process = subprocess.Popen(self.command(options), cwd=self.folder, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True)
        try:
            self.said, _ = process.communicate(timeout=left)
            self.status = process.returncode
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # with its children: one of balloon takes most of the device
            self.said = process.communicate()[0] + "\nkilled: the time is over"
            self.status = -1
        self.seconds = time.monotonic() - begin
        return self

    def is_refused(self):
        return any(words in self.said for words in CANNOT)

    def findings(self):
        """How many; None: the tool said no number."""
        found = re.findall(r"ERROR SUMMARY: (\d+) error", self.said)
        return sum(map(int, found)) if found else None

    def kernels(self):
        return set(KERNEL.findall(self.said))

    def verdict(self):
        found = self.findings()
        if self.status == -1:
            return "NOT FINISHED"
        if found is None:
            return "NO SUMMARY"
        if found:
            return f"{found} FINDINGS"
        return "clean" if self.status == 0 else f"clean, but ended with {self.status}"

    def counts(self):
        """Is it not as it should be?"""
        return self.findings() != 0 or self.status != 0

    def explanation(self):
        """Why what it found does not count; nothing where it does."""
        return ""

    def print(self):
        print(f"{self.tool:9} {self.title():28} {self.verdict():24} {self.seconds:5.0f} s", flush=True)

    def print_report(self):
        lines = [line for line in self.said.splitlines() if line.strip("= ")]
        print(*(f"    {line[:160]}" for line in lines[:24] + ["..."] * (len(lines) > 36) + lines[24:][-12:]),
              sep="\n", flush=True)


def report(run):
    """Prints it; 1 when it counts."""
    run.print()
    if run.verdict() == "clean":
        return 0
    run.print_report()
    if not run.counts():
        return 0
    why = run.explanation()
    if why:
        print(f"    {why}", flush=True)
    return 0 if why else 1


def go_all(runs, options):
    """The exit status of a program that runs these. options: sanitizer, jobs, seconds."""
    if not shutil.which(options["sanitizer"]):
        print(f"there is no compute-sanitizer at {options['sanitizer']}")
        return SKIPPED
    options["end"] = time.monotonic() + options["seconds"]
    failed = 0
    with ThreadPoolExecutor(options["jobs"]) as pool:
        for done in as_completed([pool.submit(run.go, options) for run in runs]):
            if done.result().is_refused():
                pool.shutdown(cancel_futures=True)
                print(done.result().said.strip()[:400])
                print("refused: compute-sanitizer cannot watch this device", flush=True)
                return SKIPPED
            failed += report(done.result())
    print(f"{len(runs)} runs, {failed} not clean", flush=True)
    return 1 if failed else 0
