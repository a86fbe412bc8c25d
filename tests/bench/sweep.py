#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""usage: sweep.py DUCTILE_BENCH

`bench/run sweep`: every contender at every spread, the tables and the picture of it, and what is refused.
"""

import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "bench"))
import sweep  # noqa: E402
from running import call  # noqa: E402

BENCH = "ductile-bench"
SMALL = ["--", "--layers", "2", "--hidden", "128", "--heads", "2", "--vocab", "1000", "--steps", "5",
         "--contender", "ductile,classic,cumemallocasync"]
TRY = "import matplotlib"


def run(*words):
    """Exit status, standard output and standard error."""
    return call(sweep.main, ["--bench", BENCH, *words])


def find_plot_python():
    for candidate in (sys.executable, "/usr/bin/python3"):
        if subprocess.run([candidate, "-c", TRY], capture_output=True, check=False).returncode == 0:
            return candidate
    return ""


class Sweep(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.path = Path(cls.folder.name) / "rows.jsonl"
        cls.plot_python = find_plot_python()
        words = ["--seeds", "2", "--output", str(cls.path), "--plot-python", cls.plot_python]
        cls.status, cls.said, cls.complaint = run(*words, *SMALL)
        cls.rows = [json.loads(line) for line in cls.path.read_text(encoding="utf-8").splitlines()]

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def of(self, contender, *, capped=False):
        return [row for row in self.rows if row["contender"] == contender and ("above_min_percent" in row) == capped]

    def test_each_contender_runs_at_every_spread_in_every_setting_by_every_seed(self):
        self.assertEqual((self.status, self.complaint), (0, ""))
        kinds = ("recompute", "side_streams", "spread_percent", "seed")
        for contender in ("ductile", "classic", "cumemallocasync"):
            self.assertEqual(len({tuple(row[kind] for kind in kinds) for row in self.of(contender)}), 4 * 5 * 2)

    def test_a_constant_run_is_the_same_by_every_seed_and_a_varying_one_is_not(self):
        peaks = {(row["spread_percent"], row["seed"]): row["live_peak_bytes"] for row in self.of("ductile")}
        self.assertEqual(peaks[0, 1], peaks[0, 2])
        self.assertNotEqual(peaks[100, 1], peaks[100, 2])

    def test_near_its_smallest_capacity_a_contender_holds_no_more_than_that_allows(self):
        capped = self.of("classic", capped=True)
        self.assertEqual(len(capped), 4 * 5 * 2)
        for row in capped:
            self.assertTrue(row["completed"])
            self.assertGreaterEqual(row["min_capacity_bytes"], row["live_peak_bytes"])
            self.assertLessEqual(row["reserved_peak_bytes"], row["min_capacity_bytes"] * 1.02 + (2 << 20))

    def test_the_tables_have_a_line_for_each_setting_and_contender(self):
        for words in ("held beyond used, % without a cap", "smallest capacity beyond used, %", "driver ms a step"):
            self.assertIn(words, self.said)
        for setting in ("no recomputation, one stream", "with recomputation, 3 streams"):
            self.assertIn(f"| {setting} | Ductile |", self.said)
        self.assertIn("cumemallocasync is absent: ", self.said)

    def test_the_picture_names_what_it_shows(self):
        if not self.plot_python:
            self.assertIn("no picture is drawn: ", self.said)
            self.skipTest("no Python here has matplotlib")
        picture = self.path.with_suffix(".svg").read_text(encoding="utf-8")
        for words in ("Ductile", "native", "no recomputation,", "one stream", "spread of batch and length, %"):
            self.assertIn(f"{words}</text>", picture)


class Refusals(unittest.TestCase):
    def test_what_cannot_be_meant_is_refused(self):
        for words in (["--seeds", "0"], ["--jobs", "0"], ["trace"], ["--", "--seq", "1:2"], ["--", "--batch=1:2"],
                      ["--output", "/nowhere/rows.jsonl"]):
            status, said, complaint = run("--output", "/dev/null", *words)
            self.assertEqual((status, said), (2, ""), words)
            self.assertIn("bench/run sweep: error: ", complaint)

    def test_what_the_program_refuses_ends_it_with_the_reason(self):
        with tempfile.TemporaryDirectory() as folder:
            status, said, complaint = run("--output", f"{folder}/rows.jsonl", "--", "--heads", "7")
            self.assertEqual((status, said, list(Path(folder).iterdir())), (1, "", []))
        self.assertIn("hidden must be a multiple of heads", complaint)


if __name__ == "__main__":
    BENCH = sys.argv.pop(1)
    unittest.main()
