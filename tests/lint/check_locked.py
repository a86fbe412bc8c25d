#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""usage: check_locked.py [ROOT]

A function whose name ends in _locked needs a lock, and asserts it in its first line: DTI_ASSERT_HELD(&...).
Inline functions in headers are exempt: a hit runs them, and their callers assert.

Exit status: 0 when all do; 1 with a line for each that does not.
"""

import pathlib
import re
import sys

# The locks of a list of callbacks and of the library to preload are plain mutexes, which cannot say whether this thread holds them.
EXEMPT = {"pool/base/callback_list.c", "pool/preload/device.c"}

FUNCTION = re.compile(r"^(?!.*\binline\b)[A-Za-z_][^\n;{}()]*?(?:\(\(\w+\)\)[^\n;{}()]*?)?[ *]([a-z]\w*_locked)\(([^;{}]*)\)\s*\{\n([^\n]*)", re.M)


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parents[2]).resolve()
    seen = missing = 0
    for top in ("vmm", "segments", "pool"):
        for path in sorted((root / top).rglob("*.c")):
            file = str(path.relative_to(root))
            for match in FUNCTION.finditer(path.read_text()):
                seen += 1
                if file not in EXEMPT and not match.group(3).lstrip().startswith("DTI_ASSERT_HELD(&"):
                    missing += 1
                    print(f"{file}: {match.group(1)} does not assert its lock in its first line")
    if seen == 0:
        sys.exit("check_locked: no functions were found")
    sys.exit(1 if missing else 0)


if __name__ == "__main__":
    main()
