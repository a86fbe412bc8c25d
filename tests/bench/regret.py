#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""usage: regret.py DUCTILE_BENCH

`bench/run regret`: the figures of the repository's runs stay where they are, and what is refused.
"""

import json
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "bench"))
import regret  # noqa: E402
from running import call  # noqa: E402

BENCH = "ductile-bench"
QUIET = ["--lags", "0", "--seeds", ""]
TRACES = [str(path) for path in sorted((ROOT / "bench/traces").glob("*.trace.gz"))]
ONE = str(ROOT / "bench/traces/resnet50_var_batch_res.trace.gz")


def run(*words):
    """Exit status, standard output and standard error."""
    return call(regret.main, ["--bench", BENCH, *words])


def rows_of(kind, *words, traces=TRACES):
    """Of these runs: a list of figures, and one of the rows of each contender."""
    given = regret.parse(["--bench", BENCH, *words, *QUIET, *traces])
    rows = list(regret.run_all(given)[kind].values())
    return [regret.figures(row) for row in rows], rows


class Figures(unittest.TestCase):
    """Bounds of the recorded runs, a little above what they are."""

    def test_the_default_holds_no_more_and_takes_no_longer(self):
        for passes, least, most in ((1, 0.984, 1.02), (5, 0.982, 1.75)):
            figures, _ = rows_of(regret.Kind(passes), "--passes", str(passes))
            self.assertEqual(len(figures), len(TRACES))
            self.assertGreater(regret.mean(f.efficiency for f in figures), least)
            self.assertEqual([f.over for f in figures], [0] * len(figures))
            time = sum(f.all_ms for f in figures) / sum(f.rival_all_ms for f in figures)
            self.assertLess(time, most)

    def test_tight_runs_of_one_stream_come_to_rest(self):
        _, once = rows_of(regret.Kind(1), "--passes", "1")
        alone = [trace for trace, row in zip(TRACES, once) if row["ductile"]["streams"] == 1]
        self.assertTrue(alone)
        words = ("--passes", "8", "--set", "sizes=tight")
        for figure, row in zip(*rows_of(regret.Kind(8), *words, traces=alone)):
            self.assertLess(figure.last_ms, 2, row["ductile"]["trace"])


class Table(unittest.TestCase):
    def test_it_has_a_line_for_each_kind_and_each_input(self):
        status, out, err = run("--passes", "1,2", "--lags", "10", "--seeds", "1", ONE)
        self.assertEqual((status, err), (0, ""))
        for line in ("1 pass", "2 passes", "2 passes, lag 10", "2 passes, varied by seed 1", "resnet50_var_batch_res"):
            self.assertIn(f"| {line} |", out)

    def test_output_has_every_row(self):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "rows.jsonl"
            run("--passes", "1", *QUIET, "--output", str(file), ONE)
            rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        self.assertEqual([row["contender"] for row in rows], ["ductile", "expandable"])

    def test_an_output_that_cannot_be_written_is_refused_before_it_runs(self):
        for output in ("/nowhere/rows.jsonl", "/"):
            status, out, err = run("--output", output, ONE)
            self.assertEqual((status, out), (2, ""))
            self.assertIn("--output", err)

    def test_a_file_that_is_no_trace_is_named(self):
        status, out, err = run("--passes", "1", *QUIET, __file__)
        self.assertEqual((status, out), (1, ""))
        self.assertIn("regret.py", err)

    def test_numbers_that_make_no_sense_are_refused(self):
        for words in (("--passes", "0"), ("--seeds", "x"), ("--lags", "-1"), ("--jobs", "0")):
            status, _, err = run(*words, ONE)
            self.assertEqual(status, 2)
            self.assertIn(words[0], err)


if __name__ == "__main__":
    BENCH = sys.argv.pop(1)
    unittest.main()
