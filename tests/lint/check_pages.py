#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""usage: check_pages.py [ROOT]

Whether pages can be read in any window: no line beyond 120 characters, rows of tables and headings aside; and whether
the README is still short.

Exit status: 0 when they can; 1 with a line for each place.
"""

import lint

MOST, README_MOST = 120, 110


def check(root):
    pages = (f"{top}/**/*.md" for top in ("docs", "bench", "python", "vmm", "extras"))
    for file, text in lint.sources(root, "README.md", *pages):
        lines = text.splitlines()
        if file == "README.md" and len(lines) > README_MOST:
            yield f"{file}: {len(lines)} lines; {README_MOST} are the most"
        for number, line in enumerate(lines, 1):
            is_long = len(line) > MOST and not line.lstrip().startswith(("|", "#"))
            if is_long and not {"build", "dist"} & set(file.split("/")):
                yield f"{file}:{number}: {len(line)} characters; {MOST} are the most"


if __name__ == "__main__":
    lint.run(check)
