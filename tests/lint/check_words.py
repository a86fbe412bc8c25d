#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""usage: check_words.py [ROOT]

Words that a reader would have to learn here alone. The field has terms for what they meant; docs/glossary.md
lists them. Reads the names and comments of the C sources, the public headers, the pages of docs/ except the
decisions, the changelog and the Python reference, and the README.

Exit status: 0 when none is found; 1 with a line for each.
"""

import pathlib
import re
import sys

# A part of a name or a word, and what to say instead.
RETIRED = {
    r"chores?": "maintenance",
    r"luggage": "an argument",
    r"graves?": "retired id",
    r"parcels?": "export record",
    r"arrivals?": "import request",
    r"settle[sd]?|settling": "wait, commit, finish or undo, whichever it is",
    r"namers?|nameable": "stream reference",
    r"vacate[sd]?": "unmap all",
    r"shed": "drop granules",
    r"stash(?:es|ed)?": "host copy",
    r"birth": "instance id",
    r"vital": "driver state",
    r"seam_tally|tally|tallies": "call counts",
    r"misfits?": "oversized cached handles",
    r"hot_lock|hot lock": "index lock",
    r"slow_lock|slow lock": "grow lock",
}

# Turns of phrase that have to be read twice.
PHRASES = {
    r"\bWho(?:ever)? (?:has|is|was|had|waited|begins?|asks?|holds?)\b[^?]*?(?:\.|,)": "name the subject: a caller, a thread",
    r"\bwho (?:has|had) (?:begun|waited|asked)\b": "name the subject: a caller, a thread",
    r"\bin vain\b": "without success",
    r"\banew\b": "again",
    r"\bfor good\b": "permanently",
    r"\bnobody'?s business\b": "not checked",
    r"\bopens? the lock\b|\btakes? the lock\b": "unlock, lock",
    r"/\*+ (?:As|The same as) above\.? \*/": "repeat the contract",
    r"\b(?:[Nn]obody|[Ss]omebody|[Aa]nybody|[Ww]hoever)\b": "which caller, thread or process",
    r"\bnamed done\b": "ductile_stream_done was called for it",
    r"\bas ever\b": "as always",
    r"\bbe had\b": "be allocated, or used",
    r"\bheal(?:s|ed|ing)\b": "compact, compaction",
    r"\bat any rate\b|\bso to speak\b": "nothing",
    r"(?:Returns|Threads|Cost|On error|Arguments):\s+(?:as above|the same)\b": "repeat the contract",
    r"(?<!\")\b[Aa]s above\b": "repeat the contract",
    r"\b(?:he|his|him)\b": "it: a thread, or a caller",
}

WORD = re.compile(r"(?<![A-Za-z])(?:" + "|".join(f"(?:{word})" for word in RETIRED) + r")(?![A-Za-z])", re.I)


# Written once, or made from the docstrings of the Python package.
UNREAD = {"changelog.md", "python-reference.md"}


def files_of(root):
    for top in ("vmm", "segments", "pool", "bench"):
        yield from sorted((root / top).rglob("*.[ch]"))
    yield from sorted(path for path in (root / "docs").glob("*.md") if path.name not in UNREAD)
    yield root / "README.md"


def phrases_in(line):
    for phrase, say in PHRASES.items():
        yield from ((match.group(0), say) for match in re.finditer(phrase, line))


def instead_of(word):
    return next(say for old, say in RETIRED.items() if re.fullmatch(old, word, re.I))


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parents[2]).resolve()
    found = 0
    for file in files_of(root):
        if not file.exists():
            continue
        for number, line in enumerate(file.read_text().split("\n"), 1):
            hits = [(word, instead_of(word)) for word in WORD.findall(line)]
            hits += phrases_in(line)
            for word, say in hits:
                found += 1
                print(f"{file.relative_to(root)}:{number}: \"{word}\": say {say}")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
