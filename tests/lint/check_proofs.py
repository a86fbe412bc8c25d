#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""usage: check_proofs.py [ROOT]

Whether docs/dev/proofs.md names every function of segments and pool that makes a proof that the GPU is done, or asks
for one: each row of its tables begins with the maker and its caller. A caller that is not in a table has not been
thought about; a row without a caller speaks of code that is gone.

Exit status: 0 when both agree; 1 with a line for each that is in one alone.
"""

import re

import lint

PAGE = "docs/dev/proofs.md"
MAKERS = (
    "dseg_sync", "dseg_stream_idle_by_marker", "dseg_idle_if_joined", "dseg_sync_device", "dseg_idle_by_marker",
    "dpool_proof_to_leave", "dpool_proof_to_unmap", "dpool_proof_to_return", "dpool_proof_to_go",
    "dpool_is_proven_locked", "dpool_proven_part_locked", "dpool_find_leaving_locked", "dpool_marked_age_locked",
    "dpool_wait_for_context_mark", "dpool_wait_for_all_work", "dpool_quiesce_free", "dpool_quiesce_pool", "dpool_quiesce_all",
)
CALL = re.compile(r"\b(%s)\s*\(" % "|".join(MAKERS))
ROW = re.compile(r"^\| `(\w+)` \| `(\w+)`,? ([\w/.]+) \|")


def callers(root):
    """(maker, caller, file) of every call."""
    return {(maker, name, file) for file, text in lint.sources(root, "segments/*.[ch]", "pool/**/*.[ch]")
            for name, _, body in lint.definitions(text) for maker in CALL.findall(body)}


def check(root):
    made = callers(root)
    told = {found.groups() for line in (root / PAGE).read_text().splitlines() if (found := ROW.match(line))}
    for maker, caller, file in sorted(made - told):
        yield f"{file}: {caller} calls {maker}: say in {PAGE} what memory that may take, and how it knows"
    for maker, caller, file in sorted(told - made):
        yield f"{PAGE}: {caller} in {file} does not call {maker}"
    if not made:
        yield "no proofs were found"


if __name__ == "__main__":
    lint.run(check)
