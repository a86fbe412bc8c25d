#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""usage: ranks.py DUCTILE_BENCH

`bench/run ranks`: each rank has data and a lag of its own, the table is of its rows, and what is refused.
"""

import json
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "bench"))
import ranks  # noqa: E402
from running import call  # noqa: E402

BENCH = "ductile-bench"


def run(*words):
    """Exit status, standard output and standard error."""
    return call(ranks.main, ["--bench", BENCH, *words])


class Ranks(unittest.TestCase):
    def test_each_rank_is_a_row_of_its_own(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "rows.jsonl"
            status, said, _ = run("--ranks", "3", "--passes", "1", "--output", str(path))
            rows = [json.loads(text) for text in path.read_text().splitlines()]
        self.assertEqual(status, 0)
        self.assertEqual(len(rows), 2 * 3 * 3)
        for run_name in ("recorded", "generated"):
            own = [row for row in rows if row["run"] == run_name and row["way"] == "default"]
            self.assertEqual([(row["rank"], row["lag"]) for row in own], [(0, 0), (1, 10), (2, 30)])
            self.assertEqual(len({row["live_peak_bytes"] for row in own}), 3)
            largest = max(row["reserved_peak_bytes"] for row in own) >> 20
            self.assertIn(f"-{largest:,} |", said)

    def test_what_cannot_be_meant_is_refused(self):
        for words in (("--ranks", "0"), ("--passes", "x"), ("trace",)):
            self.assertEqual(run(*words)[0], 2, words)


if __name__ == "__main__":
    BENCH = sys.argv.pop(1)
    unittest.main()
