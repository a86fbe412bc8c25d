#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""usage: check_calls.py [ROOT]

Who makes which call of the driver. Reads the sources as text.

1. Each row of DVMM_CALLS is called by the library: its wrapper, or its entry, by a source of pool, segments or vmm
   that is neither the wrappers nor a backend.
2. Each row of DVMM_BENCH_CALLS is called by a program of the bench or of the tests, and is no row of the library's.
3. Each function of the driver that a library's device needs (vmm/cuda/abi.h) is called by the CUDA backend.

Exit status: 0 when all holds; 1 with a line for each fault.
"""

import re

import lint

LIBRARY = "vmm/driver/driver.h"
BENCH = "vmm/driver/bench_calls.h"
ABI = "vmm/cuda/abi.h"
# The wrappers, and what answers them.
SERVES = ("vmm/driver/driver.h", "vmm/driver/calls.c", "vmm/cuda/", "vmm/virtual/")


def rows(text, table):
    """The names of a list X(name, ...): the first word of each row."""
    lists = re.findall(rf"#define {table}\(X\)((?:.*\\\n)*.*\n)", text)
    return [name for rows in lists for name in re.findall(r"\bX\((\w+),", rows)]


def calls(root, patterns, skipped=()):
    """What stands before an opening bracket in all sources: a name, or "->" and a name."""
    found = set()
    for file, text in lint.sources(root, *patterns):
        if not file.startswith(skipped):
            found.update(re.findall(r"(?:->)?\w+(?=\()", lint.without_comments(text)))
    return found


def check_table(names, made, spellings, file, who):
    for name in names:
        if not made & {spelling.format(name) for spelling in spellings}:
            yield f"{file}: {who} {name}"


def check(root):
    library = rows((root / LIBRARY).read_text(encoding="utf-8"), "DVMM_CALLS")
    bench = rows((root / BENCH).read_text(encoding="utf-8"), "DVMM_BENCH_CALLS")
    needed = rows((root / ABI).read_text(encoding="utf-8"), "CU_REQUIRED_FUNCTIONS")
    if not library or not bench or not needed:
        yield "the lists of calls were not found"
    layers = ("pool/**/*.[ch]", "segments/**/*.[ch]", "vmm/**/*.[ch]")
    yield from check_table(library, calls(root, layers, SERVES), ("dvmm_{}", "dvmm_{}_of", "->{}"), LIBRARY,
                           "no source of pool, segments or vmm calls")
    programs = ("bench/*/*.c", "tests/**/*.[ch]")
    yield from check_table(bench, calls(root, programs, ("bench/driver/",)), ("bench_{}",), BENCH,
                           "no program of the bench or the tests calls")
    for name in set(library) & set(bench):
        yield f"{BENCH}: {name} is a call of the library"
    yield from check_table(needed, calls(root, ("vmm/cuda/*.[ch]",)), ("->{}",), ABI, "no source of vmm/cuda calls")


if __name__ == "__main__":
    lint.run(check)
