#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""usage: check_words.py [ROOT]

Words that a reader would have to learn here alone. The field has terms for what they meant; docs/dev/glossary.md
lists them. Reads the names and comments of all sources, scripts and tests, and all pages.

Exit status: 0 when none is found; 1 with a line for each.
"""

import pathlib
import re

import lint

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
    r"rivals?": "contender",
}

# What sleeps and wakes has these two words, and no others, but where others name it.
SLEEP_AND_WAKE = {
    r"paus(?:e[ds]?|ing)": "sleep, put to sleep, asleep",
    r"resum(?:e[ds]?|ing)": "wake, woken",
}
NAMES_OF_OTHERS = re.compile(r"__builtin_ia32_pause|signal\.pause\(|torch_memory_saver pauses")

# They speak of torch_memory_saver, vLLM and SGLang, of what was recorded, and of what these words once were here.
SPEAK_OF_OTHERS = (
    "extras/plugins/",
    "extras/lab/torch_gpu/savers.py",
    "extras/lab/tests/test_torch_scripts.py",
    "tests/lint/derivations.py",
    "docs/changelog.md",
)

# The same in C of the tests: a page has a canvas, and a training stages.
RETIRED_IN_TESTS = {
    r"painters?|painted|canvas(?:es)?": "pattern, block",
    r"galler(?:y|ies)": "live blocks",
    r"scribbles?|unspoilt": "overwrite; a pattern that holds",
    r"hogs?|breath(?:s|es?|ed|ing)?": "balloon",
    r"furnish(?:es|ed)?": "attach, or make",
    r"stages?": "program, or shared state",
    r"actors?|crowds?": "thread; many threads",
    r"rigs?": "fixture",
    r"labs?": "session",
    r"dawdles?": "keep busy",
}

# Turns of phrase that have to be read twice. Each begins with a word.
PHRASES = {
    r"(?:[Nn]obody|[Ss]omebody|[Aa]nybody|[Ww]hoever)\b": "which caller, thread or process",
    r"Who (?:has|is|was|had|waited|begins?|asks?|holds?)\b[^?\n]*?(?:\.|,)": "name the subject: a caller, a thread",
    r"who (?:has|had) (?:begun|waited|asked)\b": "name the subject: a caller, a thread",
    r"in vain\b": "without success",
    r"anew\b": "again",
    r"for good\b": "permanently",
    r"opens? the lock\b|takes? the lock\b": "unlock, lock",
    r"named done\b": "ductile_stream_done was called for it",
    r"as ever\b": "as always",
    r"be had\b": "be allocated, or used",
    r"heal(?:s|ed|ing)\b": "compact, compaction",
    r"at any rate\b|so to speak\b": "nothing",
    r"(?:Returns|Threads|Cost|On error|Arguments): +(?:as above|the same)\b": "repeat the contract",
    r"(?<!\")[Aa]s above\b": "repeat the contract",
    r"(?:he|his|him)\b": "it: a thread, or a caller",
}


def any_of(words):
    """All at once, so that a text is read through once for each table."""
    return re.compile(r"(?<![a-z])(?:" + "|".join(words) + r")(?![a-z])")


ANY_WORD = any_of(RETIRED)
ANY_WORD_OF_TESTS = any_of(RETIRED_IN_TESTS)
ANY_WORD_OF_SLEEP = any_of(SLEEP_AND_WAKE)
ANY_PHRASE = re.compile(r"\b(?:" + "|".join(PHRASES) + ")")

# Made while building, output of old commands, or what these words are looked for in.
NOT_OURS = {"build", "node_modules", "results", "__pycache__", "check_words.py", "test_planted.py"}

READ = {".c", ".h", ".cpp", ".hpp", ".py", ".js", ".css", ".html", ".md", ".cmake", ".txt"}


def is_read(path):
    """Scripts have no ending, but a first line."""
    return path.is_file() and (path.suffix in READ or (not path.suffix and path.read_bytes()[:2] == b"#!"))


def sources_of(folder):
    for path in sorted(folder.rglob("*")):
        if not NOT_OURS.intersection(path.relative_to(folder).parts) and is_read(path):
            yield path


def files_of(root):
    for top in ("vmm", "segments", "pool", "bench", "tests", "python", "extras"):
        yield from sources_of(root / top)
    yield from sorted((root / "docs").rglob("*.md"))
    yield root / "README.md"


def instead_of(words, table):
    return next(say for old, say in table.items() if re.fullmatch(old, words))


def found_in(text, name):
    """The number of the line, the words, and what to say."""
    tables = [(ANY_WORD, RETIRED, text.lower()), (ANY_PHRASE, PHRASES, text)]
    if name.startswith("tests/") and name.endswith((".c", ".h")):
        tables.append((ANY_WORD_OF_TESTS, RETIRED_IN_TESTS, text.lower()))
    if not name.startswith(SPEAK_OF_OTHERS):
        tables.append((ANY_WORD_OF_SLEEP, SLEEP_AND_WAKE, NAMES_OF_OTHERS.sub("", text).lower()))
    for pattern, table, read in tables:
        for match in pattern.finditer(read):
            yield read.count("\n", 0, match.start()) + 1, match.group(), instead_of(match.group(), table)


def check(root):
    for file in filter(pathlib.Path.exists, files_of(root)):
        name = str(file.relative_to(root))
        for number, words, say in found_in(file.read_text(), name):
            yield f'{name}:{number}: "{words}": say {say}'


if __name__ == "__main__":
    lint.run(check)
