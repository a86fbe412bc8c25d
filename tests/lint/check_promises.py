#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""usage: check_promises.py [ROOT]

Does docs/dev/promises.md tell the truth about tests? Every row names at least one file in its last column, every
file is there, and contains each name that stands behind it.

Exit status: 0 when that is so; 1 with a line for each that is not.
"""

import re

import lint

LEAST_ROWS = 15


def rows(text):
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("| ").split(" | ")]
        if line.startswith("| ") and len(line.split("|")) == 5 and cells[0] != "promise":
            yield line.split("|")[1].strip(), line.split("|")[3].strip()


def is_left_out(root, file):
    """Is it of an extra, in a tree without extras?"""
    return file.startswith("extras/") and not (root / "extras").exists()


def complaints_about(root, promise, shown_by):
    words = re.findall(r"`([^`]+)`", shown_by)
    if not words or "/" not in words[0]:
        yield f"{promise!r} names no test"
    file, text = "", ""
    for word in words:
        if "/" in word:
            file = word
            path = root / file
            text = path.read_text() if path.is_file() else ""
            if not text and not is_left_out(root, file):
                yield f"{promise!r} names {file}, which is not there"
        elif not is_left_out(root, file) and not re.search(rf"\b{re.escape(word)}\b", text):
            yield f"{promise!r} names {word}, which {file} does not contain"


def check(root):
    found = list(rows((root / "docs" / "dev" / "promises.md").read_text()))
    for promise, shown_by in found:
        yield from complaints_about(root, promise, shown_by)
    if len(found) < LEAST_ROWS:
        yield f"only {len(found)} promises were found"


if __name__ == "__main__":
    lint.run(check)
