#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""usage: check_pages.py [ROOT]

Whether pages can be read in any window: no line beyond 120 characters, rows of tables and headings aside; and whether
the README is still short.

Exit status: 0 when they can; 1 with a line for each place.
"""

import pathlib
import sys

MOST, README_MOST = 120, 110


def pages_of(root):
    yield root / "README.md"
    for top in ("docs", "bench", "python", "vmm"):
        for path in sorted((root / top).rglob("*.md")):
            if not {"build", "dist"} & set(path.relative_to(root).parts):
                yield path


def found_in(path, root):
    lines = path.read_text(encoding="utf-8").splitlines()
    if path == root / "README.md" and len(lines) > README_MOST:
        yield f"{path.name}: {len(lines)} lines; {README_MOST} are the most"
    for number, line in enumerate(lines, 1):
        if len(line) > MOST and not line.lstrip().startswith(("|", "#")):
            yield f"{path.relative_to(root)}:{number}: {len(line)} characters; {MOST} are the most"


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parents[2]).resolve()
    found = [line for path in pages_of(root) for line in found_in(path, root)]
    print(*found, sep="\n", end="\n" if found else "")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
