#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""usage: compare.py DUCTILE_BENCH

`bench/run compare` without a GPU: the virtual one, peers that stay and fail in every way, tables of
what they left, and what is refused. Peers under PyTorch and RMM are stand-ins that speak their
protocol.
"""

import contextlib
import io
import os
import stat
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "bench"))
import compare  # noqa: E402
import compare_peers  # noqa: E402
import compare_table  # noqa: E402

BENCH = "ductile-bench"
TRACE = "a 1 1000000 0\na 2 3000000 0\nf 1\na 3 500000 0\nf 2\nf 3\n"

# Answers as torch_replay does; what it does instead stands in the environment.
STAND_IN = """#!{python}
import json, os, sys, time
ill = os.environ["PYTORCH_ALLOC_CONF"] if "PYTORCH_ALLOC_CONF" in os.environ else ""
if ill == "dies at once":
    sys.exit("no such device")
print(json.dumps({{"ready": 1}}), flush=True)
for line in sys.stdin:
    verb, at, *more = line.split()
    if ill == "dies": sys.exit("killed by a bug")
    if ill == "hangs": time.sleep(1000)
    if ill == "fails":
        print('{{"trace":"half a row\\n\\n' + json.dumps({{"failed": "CUDA error"}}), flush=True)
        continue
    one = {{"ops": 6, "stream_syncs": 1, "driver_time_us": 5.0, "wall_us": 9.0}}
    calls = {{"calls": 6, "median": 40, "p99": 90, "worst": 700}}
    row = {{"trace": "small", "contender": "x", "streams": 1, "completed": True}}
    if verb == "timeline":
        open(more[0], "a").write("small,torch-native,1,10,20,10,20\\n")
    if verb == "measure":
        row.update(passes=2, efficiency=0.5, reserved_peak_bytes=8000000, ns_per_op=30.0)
        row.update(first_pass=one, last_pass=one, all_passes=one)
        row.update(cold_call_ns=calls, warm_call_ns=calls)
    if verb == "capacity":
        row.update(min_capacity_bytes=4000000, min_capacity_efficiency=0.9)
    print(json.dumps(row), flush=True)
"""


def quietly(action, *arguments):
    """The action's result, and what it printed."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        result = action(*arguments)
    return result, said.getvalue()


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.place = Path(self.folder.name)
        self.trace = self.place / "small.trace"
        self.trace.write_text(TRACE, encoding="utf-8")
        compare.BEGAN = compare.time.monotonic()

    def tearDown(self):
        self.folder.cleanup()

    def words(self, *more):
        return ["--bench", BENCH, "--output", str(self.place / "out"), "--python", sys.executable,
                "--turns", "2", "--passes", "2", *more, str(self.trace)]  # fmt: skip

    def rows(self):
        return compare_table.read(self.place / "out" / "compare.jsonl")[0]


class OfTurns(unittest.TestCase):
    def test_times_stand_with_the_least_and_the_most(self):
        turns = [
            {"peer": "ductile", "trace": trace, "turn": turn, "completed": True, "ns_per_op": 20 + turn,
             "efficiency": 1.0, "streams": 2, "all_passes": {"wall_us": ms * 1000}}
            for trace, of_turns in {"a": (5, 1, 3), "b": (5, 9, 7)}.items()
            for turn, ms in enumerate(of_turns)
        ]  # fmt: skip
        said = compare_table.tables(turns, {"driver": "virtual"})
        self.assertIn("| 3.0 (1.0-5.0) |", said)
        self.assertIn("| 21.0 (20.0-22.0) |", said)
        self.assertIn("| 10 (10-10) | 2 of 2 |", said)
        alone = compare_table.tables(turns[:1], {"driver": "virtual"})
        self.assertIn("| 5.0 |", alone)
        self.assertNotIn("(", alone.split("efficiency: live")[0])


class OnTheVirtualGpu(Case):
    def test_every_peer_gives_figures_or_is_named(self):
        status, said = quietly(compare.main, self.words("--device", "virtual"))
        self.assertEqual(status, 0, said)
        rows = self.rows()
        turns = {(row["peer"], row["turn"]) for row in rows if "turn" in row}
        self.assertEqual(
            turns, {(name, turn) for name in compare_peers.ON_VIRTUAL for turn in (0, 1)}
        )
        found = compare_table.gather(rows)["small"]
        for name in compare_peers.ON_VIRTUAL:
            self.assertGreater(compare_table.capacity(found[name]), 0.1, name)
            self.assertGreater(compare_table.middle(found[name], "warm_call_ns", "worst"), 0, name)
            self.assertEqual(compare_table.middle(found[name], "pressure_returns"), 0, name)
        absent = set(compare_peers.BY_NAME) - set(compare_peers.ON_VIRTUAL)
        self.assertEqual(set(compare_table.missing(rows)), absent)
        for name in absent:
            self.assertIn(f"({name}): it needs a GPU", said)

    def test_rows_say_where_they_come_from_and_nothing_of_this_machines_folders(self):
        quietly(compare.main, self.words("--device", "virtual", "--quick", "--only", "ductile"))
        text = (self.place / "out" / "compare.jsonl").read_text(encoding="utf-8")
        row = self.rows()[0]
        for key in ("machine", "gpu", "driver", "versions", "commit", "command"):
            self.assertIn(key, row)
        self.assertIn("compare --turns 2 --passes 2 --device virtual --quick", row["command"])
        self.assertNotIn(f'"{self.place}', text)
        self.assertNotIn(f" {self.place}", text)

    def test_a_folder_is_where_the_caller_stands(self):
        before = os.getcwd()
        os.chdir(self.place)
        try:
            words = self.words("--device", "virtual", "--quick", "--only", "ductile")
            words[words.index("--output") + 1] = "here"
            status, said = quietly(compare.main, words)
        finally:
            os.chdir(before)
        self.assertEqual(status, 0, said)
        lines = (self.place / "here" / "timeline.csv").read_text(encoding="utf-8").splitlines()
        self.assertGreater(len(lines), 1)

    def test_a_bench_that_fails_is_a_failure_with_its_reason(self):
        bad = self.place / "bad.trace"
        bad.write_text("f 1\n", encoding="utf-8")
        words = self.words("--device", "virtual", "--only", "ductile,expandable")[:-1]
        status, said = quietly(compare.main, [*words, str(bad)])
        self.assertEqual(status, 1)
        self.assertRegex(said, r"FAILED: Ductile in C, bad: status 1: .*bad\.trace:1")
        self.assertIn("FAILED: model of expandable segments in C", said)

    def test_a_peer_that_had_no_turn_is_no_success(self):
        words = self.words("--device", "virtual", "--only", "ductile", "--limit", "1")
        status, said = quietly(compare.main, words)
        self.assertEqual(status, 1)
        self.assertIn("the time was up before ductile, small had a turn", said)


class PeersThatStay(Case):
    def setUp(self):
        super().setUp()
        self.stand_in = self.place / "stand_in"
        self.stand_in.write_text(STAND_IN.format(python=sys.executable), encoding="utf-8")
        self.stand_in.chmod(self.stand_in.stat().st_mode | stat.S_IXUSR)
        self.known = compare_peers.PEERS[:], dict(compare_peers.BY_NAME)

    def tearDown(self):
        compare_peers.PEERS[:] = self.known[0]
        compare_peers.BY_NAME.clear()
        compare_peers.BY_NAME.update(self.known[1])
        super().tearDown()

    def play(self, *ills):
        """A comparison of a sound peer and one with each of these ills."""
        program = os.path.relpath(self.stand_in, ROOT)
        for name, conf in (("sound", ""), *((ill, ill) for ill in ills)):
            compare_peers.PEERS.append(compare_peers.Peer(name, name, program=program, conf=conf))
            compare_peers.BY_NAME[name] = compare_peers.PEERS[-1]
        given = compare.parse(
            self.words("--device", "virtual", "--only", ",".join(["sound", *ills]))
        )
        given.device, given.device_bytes = "cuda", 2**37
        comparison = compare.Comparison(given, [])
        comparison.build = lambda what: ""
        try:
            status, said = quietly(comparison.run)
        finally:
            for worker in comparison.workers.values():
                worker.stop()
        return status, said, comparison

    def test_a_peer_that_stays_gives_figures_a_timeline_and_a_smallest_capacity(self):
        status, said, _ = self.play()
        self.assertEqual(status, 0, said)
        found = compare_table.gather(self.rows())["small"]["sound"]
        self.assertEqual(len(found["turns"]), 2)
        self.assertEqual(compare_table.capacity(found), 0.9)
        self.assertEqual(compare_table.warm_call(found), 1500)
        lines = (self.place / "out" / "timeline.csv").read_text(encoding="utf-8").splitlines()
        self.assertEqual(lines[1:], ["small,torch-native,1,10,20,10,20"])

    def test_what_fails_costs_no_other_its_figures(self):
        status, said, comparison = self.play("dies at once", "dies", "fails")
        self.assertEqual(status, 1)
        found = compare_table.gather(self.rows())["small"]
        self.assertEqual(len(found["sound"]["turns"]), 2)
        self.assertEqual(comparison.missing["dies at once"], "ended with status 1: no such device")
        self.assertIn("ended with status 1: killed by a bug", found["dies"]["failed"])
        self.assertIn("CUDA error", found["fails"]["failed"])
        self.assertIn("FAILED: dies, small: ended with status 1: killed by a bug", said)

    def test_a_peer_that_hangs_is_ended_and_started_again(self):
        program = os.path.relpath(self.stand_in, ROOT)
        worker = compare_peers.Worker(
            compare_peers.Peer("hangs", "", program=program, conf="hangs"),
            [], [], ROOT)  # fmt: skip
        self.assertEqual(worker.hear(20), {"ready": 1})
        for _ in range(2):
            worker.ask("measure 0")
            with self.assertRaisesRegex(compare_peers.Failed, "did not answer"):
                worker.hear(0.3)
            self.assertIsNone(worker.process)

    def test_searches_beside_each_other_hold_no_more_than_a_share_of_the_device(self):
        _, _, comparison = self.play("other", "third")
        comparison.given.device_bytes = int(17000000 / compare.SHARE_OF_DEVICE)
        # the process is there no more, the batches are
        batches = comparison.batches(str(self.trace))
        self.assertEqual(
            [[peer.name for peer in batch] for batch in batches], [["sound", "other"], ["third"]]
        )


class WhatIsRefused(Case):
    def refused(self, *words):
        with self.assertRaises(SystemExit) as ended:
            quietly(compare.parse, self.words(*words))
        return ended.exception.code

    def test_unknown_peers_and_lost_traces(self):
        self.assertEqual(self.refused("--only", "jemalloc"), 2)
        self.assertEqual(self.refused("no_such.trace"), 2)

    def test_a_file_without_rows_is_no_table(self):
        for text in ("", "{\n", '{"trace": "x"}\n'):
            self.trace.write_text(text, encoding="utf-8")
            with self.assertRaises(SystemExit):
                compare_table.read(self.trace)


class WhatCannotBeBuilt(unittest.TestCase):
    def test_the_reason_has_the_first_error_and_no_folder_of_this_machine(self):
        said = f"{ROOT}/bench/x.cpp:3:1: error: no such type\nerror: 2\nrun: x does not build\n"
        self.assertEqual(
            compare.why_not(said), "run: x does not build; bench/x.cpp:3:1: error: no such type"
        )


class Claims(unittest.TestCase):
    def held(self, ductile, other):
        """Which claims hold of one turn of each: (ms of all passes, ns of a call, passes)."""
        cells = {}
        for name, (wall, ns, passes) in (("ductile", ductile), ("torch-expandable", other)):
            row = {"completed": True, "all_passes": {"wall_us": wall}, "ns_per_op": ns, "streams": 1, "passes": passes}
            cells[name] = {"turns": [row], "capacity": None, "failed": []}
        return [held for _, held, _ in compare_table.held_to({"t": cells}, True)]

    def test_ductile_is_held_to_the_time_of_expandable_segments_and_to_its_own(self):
        self.assertEqual(self.held((9, 24, 5), (10, 300, 5)), [True, True])
        self.assertEqual(self.held((11, 26, 5), (10, 300, 5)), [False, False])

    def test_passes_of_unequal_number_are_not_compared(self):
        self.assertEqual(self.held((9, 24, 5), (10, 300, 3)), [True])

    def test_medians_are_of_the_turns_that_completed(self):
        rows = [{"peer": "ductile", "trace": "t", "completed": done, "ns_per_op": ns}
                for done, ns in ((True, 10), (True, 30), (False, 1), (True, 20))]  # fmt: skip
        cell = compare_table.gather(rows)["t"]["ductile"]
        self.assertEqual(compare_table.middle(cell, "ns_per_op"), 20)
        self.assertEqual(len(cell["failed"]), 1)

    def test_retries_stand_beside_what_ductile_counts(self):
        """Of PyTorch's own allocators it is not known how often they waited."""
        own = {"pressure_waits": 4, "pressure_returns": 1}
        for counted, shown in ((own, "4, 1"), ({"pressure_returns": 18}, "-, 18"), ({}, "-, -")):
            row = {"peer": "x", "trace": "t", "completed": True, **counted}
            cell = compare_table.gather([row])["t"]["x"]
            found = dict(zip(compare_table.HEAD, compare_table.line("x", cell)))
            self.assertEqual(found["waits, returns for lack of memory"], shown)


if __name__ == "__main__":
    BENCH = sys.argv.pop(1)
    unittest.main()
