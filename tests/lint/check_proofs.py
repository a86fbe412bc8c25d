#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""usage: check_proofs.py [ROOT]

Whether docs/proofs.md names every function of segments and pool that makes a proof that the GPU is done, or asks
for one: each row of its tables begins with the maker and its caller. A caller that is not in a table has not been
thought about; a row without a caller speaks of code that is gone.

Exit status: 0 when both agree; 1 with a line for each that is in one alone.
"""

import pathlib
import re
import sys

PAGE = pathlib.Path("docs/proofs.md")
MAKERS = (
    "dseg_sync", "dseg_stream_idle_by_marker", "dseg_idle_if_joined", "dseg_sync_device", "dseg_idle_by_marker",
    "dpool_proof_to_leave", "dpool_proof_to_unmap", "dpool_proof_to_return", "dpool_is_proven_locked",
    "dpool_proven_part_locked", "dpool_marked_age_locked", "dpool_wait_for_context_mark", "dpool_wait_for_all_work",
    "dpool_quiesce_free", "dpool_quiesce_pool", "dpool_quiesce_all",
)
CALL = re.compile(r"\b(%s)\s*\(" % "|".join(MAKERS))
HEAD = re.compile(r"^(?!static_assert|_Static_assert|typedef)[A-Za-z_][\w \t*]*?\b(\w+)\((?![^;]*\);$)")
ROW = re.compile(r"^\| `(\w+)` \| `(\w+)`,? ([\w/.]+) \|")


def without_comments(text):
    """The text with its comments blanked, so that lines keep their numbers."""
    return re.sub(r"/\*.*?\*/", lambda found: re.sub(r"[^\n]", " ", found.group()), text, flags=re.S)


def definitions(text):
    """(name of the function, its lines) of each definition: they begin in the first column and end with a brace there."""
    name, lines = None, []
    for line in without_comments(text).splitlines():
        head = HEAD.match(line) if name is None else None
        if head:
            name, lines = head.group(1), [line]
        elif name is not None:
            lines.append(line)
            if line.startswith("}"):
                yield name, lines
                name = None
            elif line.rstrip().endswith(";") and not any("{" in seen for seen in lines):
                name = None  # a declaration


def callers(root):
    """(maker, caller, file) of every call."""
    found = set()
    for file in sorted([*root.glob("segments/*.[ch]"), *root.glob("pool/**/*.[ch]")]):
        for name, lines in definitions(file.read_text()):
            body = "\n".join(lines).split("{", 1)
            for maker in CALL.findall(body[1] if len(body) > 1 else ""):
                found.add((maker, name, str(file.relative_to(root))))
    return found


def rows(root):
    return {found.groups() for line in (root / PAGE).read_text().splitlines() if (found := ROW.match(line))}


def main():
    root = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parents[2]
    made, told = callers(root), rows(root)
    for maker, caller, file in sorted(made - told):
        print(f"{file}: {caller} calls {maker}: say in {PAGE} what memory that may take, and how it knows")
    for maker, caller, file in sorted(told - made):
        print(f"{PAGE}: {caller} in {file} does not call {maker}")
    return 1 if made != told or not made else 0


if __name__ == "__main__":
    sys.exit(main())
