# SPDX-License-Identifier: Apache-2.0
"""RMM's own tests on Ductile (libraries/rmm_tests.py), as far as that goes without RMM."""

from __future__ import annotations

import rmm_tests


def test_results_of_rmms_own_tests_are_read():
    def run(outcomes, **end):
        lines = [{"test": name, "outcome": outcome} for name, outcome in outcomes]
        return rmm_tests.Run([*lines, end] if end else lines, "what pytest said")

    plain = run([("a", "passed"), ("b", "skipped")])
    same = run([("a", "passed"), ("b", "skipped")], allocs=3, live_blocks=0)
    assert rmm_tests.find_fault({"cuda": plain, "ductile": same}) == []
    torn_down = run([("a", "passed"), ("a", "failed")], allocs=3, live_blocks=1)
    assert rmm_tests.find_fault({"cuda": plain, "ductile": torn_down}) == [
        "a: passed, then failed",
        "b: skipped, then not run",
        "no test passed on ductile:\nwhat pytest said",
    ]
    unused = run([("a", "passed"), ("b", "skipped")])
    assert "Ductile served no allocation" in rmm_tests.find_fault({"ductile": unused})
