# SPDX-License-Identifier: Apache-2.0
"""What the lints share: how they are called and tell what they found, and the functions of a source."""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
HEAD = re.compile(r"^(?!static_assert|_Static_assert|typedef)[A-Za-z_][\w \t*]*?\b(\w+)\((?![^;]*\);$)")


def run(check):
    """Prints a line for each finding of check(root). Exit status: 1 when there are any."""
    root = pathlib.Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else ROOT
    found = list(check(root))
    print(*found, sep="\n", end="\n" if found else "")
    sys.exit(1 if found else 0)


def sources(root, *patterns):
    """(path from the root, text) of each file."""
    for file in sorted(path for pattern in patterns for path in root.glob(pattern)):
        yield str(file.relative_to(root)), file.read_text(encoding="utf-8")


def without_comments(text):
    """The text with its comments blanked, so that lines keep their numbers."""
    return re.sub(r"/\*.*?\*/", lambda found: re.sub(r"[^\n]", " ", found.group()), text, flags=re.S)


def definitions(text):
    """(name, head, body) of each function: they begin in the first column and end with a brace there."""
    name, lines = None, []
    for line in re.sub(r"__attribute__\(\(\w+\)\) ?", "", without_comments(text)).splitlines():
        head = HEAD.match(line) if name is None else None
        if head:
            name, lines = head.group(1), [line]
        elif name is not None:
            lines.append(line)
            if line.startswith("}"):
                head, _, body = "\n".join(lines).partition("{")
                yield name, head, body
                name = None
            elif line.rstrip().endswith(";") and not any("{" in seen for seen in lines):
                name = None  # a declaration
