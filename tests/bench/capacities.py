#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""usage: capacities.py DUCTILE_BENCH

`bench/run capacities`: each run under each allocator, what the table says of them, and what is refused.
"""

import json
import sys
import tempfile
import unittest
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "bench"))
import capacities  # noqa: E402
from running import call  # noqa: E402

BENCH = "ductile-bench"
MIB = 1 << 20

# The last request fits neither of the free blocks.
SCATTERED = """# version 2
a 1 20971520 0
a 2 31457280 0
a 3 31457280 0
f 1
f 3
a 4 52428800 0
"""


def run(*words):
    """Exit status, standard output and standard error."""
    return call(capacities.main, ["--bench", BENCH, *words])


def fake(own, other):
    """Rows of a run whose smallest capacities are these."""
    row = {"trace": "run", "live_peak_bytes": 90 * MIB}
    least = dict.fromkeys(capacities.WAYS, 100 * MIB) | {"Ductile": own, "expandable segments": other}
    return {way: row | ({"min_capacity_bytes": bytes_} if bytes_ else {}) for way, bytes_ in least.items()}


class Capacities(unittest.TestCase):
    def test_each_allocator_is_a_row_and_a_column_of_each_run(self):
        with tempfile.TemporaryDirectory() as folder:
            trace, path = Path(folder) / "scattered.trace", Path(folder) / "rows.jsonl"
            trace.write_text(SCATTERED)
            status, said, complaint = run("--output", str(path), str(trace), str(trace))
            rows = [json.loads(text) for text in path.read_text().splitlines()]
        self.assertEqual((status, complaint), (0, ""))
        self.assertEqual([row["way"] for row in rows], [*capacities.WAYS] * 2)
        own = rows[0]["min_capacity_bytes"]
        self.assertGreaterEqual(own, rows[0]["live_peak_bytes"])
        self.assertIn(f"| scattered | 80 | {own / MIB:,.0f} (", said)
        self.assertTrue(said.endswith("MiB: none\n"), said)

    def test_an_option_is_one_of_ductile_alone(self):
        with tempfile.TemporaryDirectory() as folder:
            trace, path = Path(folder) / "scattered.trace", Path(folder) / "rows.jsonl"
            trace.write_text(SCATTERED)
            self.assertEqual(run("--set", "sizes=8M", "--output", str(path), str(trace))[0], 0)
            rows = [json.loads(text) for text in path.read_text().splitlines()]
        settings = {row["way"]: row.get("settings", []) for row in rows}
        self.assertEqual((settings["Ductile"], settings["sizes=2M"]), (["sizes=8M"], ["sizes=2M"]))
        self.assertEqual(settings["native"], [])

    def test_without_traces_those_of_the_tree_and_generated_ones_are_replayed(self):
        with tempfile.TemporaryDirectory() as folder:
            traces = capacities.all_runs(SimpleNamespace(bench=BENCH), folder)
        names = {Path(trace).name.removesuffix(".trace.gz") for trace in traces}
        self.assertLessEqual({"gpt2_medium_var_batch_seq", "offload", "vary_streams"}, names)

    def test_a_run_is_named_that_needs_more_than_expandable_segments_by_more_than_is_allowed(self):
        for own, other, is_named in ((104, 100, False), (105, 100, True), (4008, 4000, False), (4009, 4000, True),
                                     (90, 100, False), (None, 100, False), (100, None, False)):
            rows = fake(own and own * MIB, other and other * MIB)
            _, last = capacities.report([rows])
            self.assertEqual(last.endswith(": run"), is_named, (own, other))

    def test_a_run_that_no_capacity_serves_has_no_figure(self):
        table, _ = capacities.report([fake(None, 100 * MIB)])
        self.assertIn("| run | 90 | none | 100 (0.9000) | 100 (0.9000) | 100 (0.9000) | - |", table)

    def test_what_cannot_be_meant_is_refused(self):
        for words in (("--jobs", "0"), ("--jobs", "x"), ("--capacity", "1G"), ("--output", "/nowhere/rows.jsonl")):
            status, said, complaint = run(*words)
            self.assertEqual((status, said), (2, ""), words)
            self.assertIn("bench/run capacities: error: ", complaint)

    def test_what_ductile_bench_refuses_ends_it_with_the_reason_and_writes_nothing(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "rows.jsonl"
            status, said, complaint = run("--output", str(path), "nowhere.trace")
            self.assertEqual((status, said, path.exists()), (1, "", False))
        self.assertIn("nowhere.trace", complaint)


if __name__ == "__main__":
    BENCH = sys.argv.pop(1)
    unittest.main()
