#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""usage: check_locked.py [ROOT]

A function whose name ends in _locked needs a lock, and asserts it in its first line: DTI_ASSERT_HELD(&...).
Inline functions in headers are exempt: a hit runs them, and their callers assert.

Exit status: 0 when all do; 1 with a line for each that does not.
"""

import lint

# The lock of a list of callbacks is a plain mutex, which cannot say whether this thread holds it.
EXEMPT = {"pool/base/callback_list.c"}


def check(root):
    seen = 0
    for file, text in lint.sources(root, "vmm/**/*.c", "segments/**/*.c", "pool/**/*.c"):
        for name, head, body in lint.definitions(text):
            if name.endswith("_locked") and "inline" not in head.split():
                seen += 1
                if file not in EXEMPT and not body.lstrip().startswith("DTI_ASSERT_HELD(&"):
                    yield f"{file}: {name} does not assert its lock in its first line"
    if seen == 0:
        yield "no functions were found"


if __name__ == "__main__":
    lint.run(check)
