# SPDX-License-Identifier: Apache-2.0
"""Rows of ductile-bench, one JSON object a line: running it for them, reading, writing, tables."""

import argparse
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MIB = 1 << 20


class Failed(Exception):
    """What gives no row, and why."""


def parse_row(line):
    """A row, or None of a line that is none."""
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


def read_rows(text):
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def rows_of(command, are_wanted=True):
    """Of a ductile-bench that runs in the tree."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    rows = read_rows(done.stdout)
    if done.returncode != 0 or (are_wanted and not rows):
        raise Failed(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
    return rows


def write_rows(path, rows):
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def bundled_traces():
    """The recorded runs, seen from the root, which says no more of a machine than a clone has."""
    return sorted(str(path.relative_to(ROOT)) for path in (ROOT / "bench/traces").glob("*.trace.gz"))


def table(head, lines):
    rows = ["| " + " | ".join(cells) + " |" for cells in [head, *lines]]
    return "\n".join([rows[0], "|---" * len(head) + "|", *rows[1:]])


def show_progress(words):
    """One line that is written over and over, for a terminal alone."""
    if sys.stderr.isatty():
        print(f"\r\033[K{words}", end="", file=sys.stderr, flush=True)


def make_each(jobs, make, items, kind):
    """What is made of each item, in order, several at a time. When one fails, no other begins."""
    found = []
    with ThreadPoolExecutor(jobs) as pool:
        try:
            for made in pool.map(make, items):
                found.append(made)
                show_progress(f"{len(found)} of {len(items)} {kind}")
        finally:
            show_progress("")
            pool.shutdown(cancel_futures=True)
    return found


# ---- The command line of a study -------------------------------------------------------------------


def parser_of(program, doc, **more):
    """Of a command such as "bench/run sweep", whose description follows the first paragraph."""
    return argparse.ArgumentParser(
        prog=program, description=doc.split("\n\n", 1)[1],
        formatter_class=argparse.RawDescriptionHelpFormatter, **more)


def parse_study(parser, words, what):
    """With the options that every study has: what: is run `--jobs` at a time."""
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help=f"{what} at a time (2)")
    parser.add_argument("--output", type=Path, metavar="FILE", help="every row, one JSON object a line")
    parser.add_argument("--bench", help=argparse.SUPPRESS)
    given = parser.parse_args(words)
    if given.bench is None:
        parser.error(f"run it as {parser.prog}, which builds what it measures")
    path = given.output
    if path and (path.is_dir() or not path.parent.is_dir()):
        parser.error(f"--output: no file can be written as {path}")
    given.bench = str(Path(given.bench).resolve())
    return given
