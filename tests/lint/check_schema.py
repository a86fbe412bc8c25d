#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""usage: check_schema.py [ROOT]

The published schema of the JSON snapshot names what the library writes: every statistic of ductile.h with its
text, every state and flag of a block. python/tests/test_snapshot_schema.py holds real snapshots against it.

Exit status: 0 when all is as in the sources; 1 with a line for each difference.
"""

import json
import re

import lint

SCHEMA = "pool/services/snapshot/snapshot.schema.json"


def read_statistics(header):
    """{name: what it is} of DUCTILE_STATS_MAP."""
    table = re.search(r"#define DUCTILE_STATS_MAP\(X\)(.*?)\n\n", header, re.S).group(1)
    joined = re.sub(r"\s*\\\n\s*", " ", table)
    return dict(re.findall(r'X\((\w+),\s*"([^"]*)"\)', joined))


def differences(what, ours, written):
    """Lines about what only one side has."""
    for name in sorted(set(written) - set(ours)):
        yield f"{SCHEMA}: lacks the {what} {name}"
    for name in sorted(set(ours) - set(written)):
        yield f"{SCHEMA}: has the {what} {name}, which the library does not write"


def check(root):
    schema = json.loads((root / SCHEMA).read_text())
    statistics = read_statistics((root / "pool/include/ductile.h").read_text())
    writer = (root / "pool/services/snapshot/snapshot.c").read_text()
    states = re.findall(r'case DUCTILE_BLOCK_\w+:\s*return "(\w+)";', writer)
    flags = re.findall(r'dti_json_bool\(j, "(\w+)", true\)', writer)
    if len(statistics) < 20 or len(states) < 5 or not flags:
        return [f"{SCHEMA}: the sources that it describes were not found"]
    described = schema["properties"]["statistics"]
    block = schema["$defs"]["block"]["properties"]
    faults = [
        *differences("statistic", described["properties"], statistics),
        *differences("required statistic", described["required"], statistics),
        *differences("state", block["state"]["enum"], states),
        *differences("flag", [name for name in block if "const" in block[name]], flags),
    ]
    for name, text in statistics.items():
        if described["properties"].get(name, {}).get("description", text) != text:
            faults.append(f"{SCHEMA}: {name} is not described as in ductile.h")
    return faults


if __name__ == "__main__":
    lint.run(check)
