# SPDX-License-Identifier: Apache-2.0
"""Runs ductile-bench, and programs of bench/ in this process, and counts what went wrong."""

import contextlib
import io
import os
import subprocess
from pathlib import Path


class Runs:
    """Runs the program in a folder of its own."""

    def __init__(self, program, folder):
        self.program = os.path.abspath(program)
        self.folder = Path(folder)
        self.failures = 0

    def complain(self, what, text):
        self.failures += 1
        print(f"FAIL {what}: {text}")

    def write(self, name, content):
        (self.folder / name).write_bytes(content)
        return name

    def run(self, arguments, **more):
        return subprocess.run([self.program, *arguments], cwd=self.folder, capture_output=True,
                              timeout=600, check=False, **more)

    def says(self, what, arguments):
        """What it prints, or None where it fails."""
        done = self.run(arguments)
        if done.returncode != 0 or done.stderr:
            self.complain(what, f"status {done.returncode}: {done.stderr!r}")
            return None
        return done.stdout.decode()

    def tree(self):
        return sorted((str(path), path.stat().st_size) for path in self.folder.rglob("*"))

    def refuses(self, what, arguments, status, *needles):
        """With that status and one line that has all of these, and leaves no file."""
        before = self.tree()
        done = self.run(arguments)
        errors = done.stderr.decode(errors="replace")
        if done.returncode != status:
            self.complain(what, f"status {done.returncode}, not {status}: {errors}")
        if done.stdout:
            self.complain(what, f"standard output: {done.stdout[:200]!r}")
        if not errors.startswith("ductile-bench: ") or errors.count("\n") != 1:
            self.complain(what, f"not one line: {errors!r}")
        for needle in needles:
            if needle not in errors:
                self.complain(what, f"no {needle!r} in {errors!r}")
        if self.tree() != before:
            self.complain(what, "a file appeared or changed")


def call(main, words):
    """Exit status, standard output and standard error of a program's main."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = main(words)
        except SystemExit as end:
            status = end.code
    return status, out.getvalue(), err.getvalue()
