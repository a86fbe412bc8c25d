#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""usage: check_options.py [ROOT]

An option is a field of ductile_options, a row of keys[] in pool/base/options.c, a key that the test
each_key_sets_its_field sets and looks at, and a row of docs/tuning.md. Callbacks and objects have no text.

Exit status: 0 when all four have the same options; 1 with a line for each that is missing.
"""

import re

import lint

HEADER, TABLE = "pool/include/ductile.h", "pool/base/options.c"
TEST, NAME = "tests/api/test_options_text.c", "each_key_sets_its_field"
PAGE = "docs/tuning.md"
WITHOUT_TEXT = re.compile(r"\*|_fn\b|\bstruct_size\b")


def read_fields(header):
    """Those of ductile_options that a text can set."""
    for body in re.findall(r"struct ductile_options \{(.*?)\} ductile_options;", lint.without_comments(header), re.S):
        for line in body.split(";")[:-1]:
            if not WITHOUT_TEXT.search(line):
                yield line.split()[-1]


def read_rows(page):
    section = re.search(r"\n## Options\n(.*?)(?=\n## |\Z)", page, re.S)
    return re.findall(r"^\| `(\w+)`", section.group(1), re.M) if section else []


def check(root):
    read = {name: (root / name).read_text() for name in (HEADER, TABLE, TEST, PAGE)}
    keys = dict(re.findall(r'\{"(\w+)", &\w+, FIELD\((\w+)\)', read[TABLE]))
    found = re.search(rf"^Test\(\w+, {NAME}\) \{{(.*?)^\}}", read[TEST], re.M | re.S)
    test = found.group(1) if found else ""
    fields, rows = list(read_fields(read[HEADER])), read_rows(read[PAGE])
    if min(len(keys), len(fields), len(rows)) < 15 or not test:
        return [f"{TABLE}: the options, {TEST}: the test {NAME}, or {PAGE}: the table was not found"]
    faults = [f"{HEADER}: {field} has no row in keys[] of {TABLE}" for field in fields if field not in keys.values()]
    for key, field in keys.items():
        if not re.search(rf'[",]{key}:', test) or not re.search(rf"\.{field}\b", test):
            faults.append(f"{TEST}: {NAME} does not set {key} and look at {field}")
        if key not in rows:
            faults.append(f"{PAGE}: does not explain the option {key}")
    return faults + [f"{PAGE}: explains {row}, which is no option" for row in rows if row not in keys]


if __name__ == "__main__":
    lint.run(check)
