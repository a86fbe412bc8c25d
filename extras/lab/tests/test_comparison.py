# SPDX-License-Identifier: Apache-2.0
"""`extras/lab/run compare` without a GPU: the virtual one, peers that stay and fail in every way,
tables of what they left, and what is refused. Peers under PyTorch and RMM are stand-ins that speak
their protocol."""

from __future__ import annotations

import contextlib
import io
import os
import re
import stat
import sys

import compare_peers
import compare_table
import comparison
import pytest
from support import ROOT

import ductile_gpu

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


class Case:
    @pytest.fixture(autouse=True)
    def _trace(self, tmp_path, monkeypatch):
        self.place = tmp_path
        self.trace = self.place / "small.trace"
        self.trace.write_text(TRACE, encoding="utf-8")
        monkeypatch.setattr(comparison, "BEGAN", comparison.time.monotonic())

    def words(self, *more):
        return ["--bench", str(ductile_gpu.bench_path()), "--output", str(self.place / "out"),
                "--python", sys.executable, "--turns", "2", "--passes", "2",
                *more, str(self.trace)]  # fmt: skip

    def rows(self):
        return compare_table.read(self.place / "out" / "compare.jsonl")[0]


class TestOfTurns:
    def test_times_stand_with_the_least_and_the_most(self):
        turns = [
            {"peer": "ductile", "trace": trace, "turn": turn, "completed": True,
             "ns_per_op": 20 + turn, "efficiency": 1.0, "streams": 2,
             "all_passes": {"wall_us": ms * 1000}}
            for trace, of_turns in {"a": (5, 1, 3), "b": (5, 9, 7)}.items()
            for turn, ms in enumerate(of_turns)
        ]  # fmt: skip
        said = compare_table.tables(turns, {"driver": "virtual"})
        assert "| 3.0 (1.0-5.0) |" in said
        assert "| 21.0 (20.0-22.0) |" in said
        assert "| 10 (10-10) | 2 of 2 |" in said
        alone = compare_table.tables(turns[:1], {"driver": "virtual"})
        assert "| 5.0 |" in alone
        assert "(" not in alone.split("efficiency: live")[0]


class TestOnTheVirtualGpu(Case):
    def test_every_peer_gives_figures_or_is_named(self):
        status, said = quietly(comparison.main, self.words("--device", "virtual"))
        assert status == 0, said
        rows = self.rows()
        turns = {(row["peer"], row["turn"]) for row in rows if "turn" in row}
        assert turns == {(name, turn) for name in compare_peers.ON_VIRTUAL for turn in (0, 1)}
        found = compare_table.gather(rows)["small"]
        for name in compare_peers.ON_VIRTUAL:
            assert compare_table.capacity(found[name]) > 0.1, name
            assert compare_table.middle(found[name], "warm_call_ns", "worst") > 0, name
            assert compare_table.middle(found[name], "pressure_returns") == 0, name
        absent = set(compare_peers.BY_NAME) - set(compare_peers.ON_VIRTUAL)
        assert set(compare_table.missing(rows)) == absent
        for name in absent:
            assert f"({name}): it needs a GPU" in said

    def test_rows_say_where_they_come_from_and_nothing_of_this_machines_folders(self):
        quietly(comparison.main, self.words("--device", "virtual", "--quick", "--only", "ductile"))
        text = (self.place / "out" / "compare.jsonl").read_text(encoding="utf-8")
        row = self.rows()[0]
        for key in ("machine", "gpu", "driver", "versions", "commit", "command"):
            assert key in row
        assert "compare --turns 2 --passes 2 --device virtual --quick" in row["command"]
        assert f'"{self.place}' not in text
        assert f" {self.place}" not in text

    def test_a_folder_is_where_the_caller_stands(self):
        before = os.getcwd()
        os.chdir(self.place)
        try:
            words = self.words("--device", "virtual", "--quick", "--only", "ductile")
            words[words.index("--output") + 1] = "here"
            status, said = quietly(comparison.main, words)
        finally:
            os.chdir(before)
        assert status == 0, said
        lines = (self.place / "here" / "timeline.csv").read_text(encoding="utf-8").splitlines()
        assert len(lines) > 1

    def test_a_bench_that_fails_is_a_failure_with_its_reason(self):
        bad = self.place / "bad.trace"
        bad.write_text("f 1\n", encoding="utf-8")
        words = self.words("--device", "virtual", "--only", "ductile,expandable")[:-1]
        status, said = quietly(comparison.main, [*words, str(bad)])
        assert status == 1
        assert re.search(r"FAILED: Ductile in C, bad: status 1: .*bad\.trace:1", said)
        assert "FAILED: model of expandable segments in C" in said

    def test_a_peer_that_had_no_turn_is_no_success(self):
        words = self.words("--device", "virtual", "--only", "ductile", "--limit", "1")
        status, said = quietly(comparison.main, words)
        assert status == 1
        assert "the time was up before ductile, small had a turn" in said


class TestPeersThatStay(Case):
    @pytest.fixture(autouse=True)
    def _stand_in(self, _trace):
        self.stand_in = self.place / "stand_in"
        self.stand_in.write_text(STAND_IN.format(python=sys.executable), encoding="utf-8")
        self.stand_in.chmod(self.stand_in.stat().st_mode | stat.S_IXUSR)
        peers, by_name = compare_peers.PEERS[:], dict(compare_peers.BY_NAME)
        yield
        compare_peers.PEERS[:] = peers
        compare_peers.BY_NAME.clear()
        compare_peers.BY_NAME.update(by_name)

    def play(self, *ills):
        """A comparison of a sound peer and one with each of these ills."""
        program = os.path.relpath(self.stand_in, ROOT)
        for name, conf in (("sound", ""), *((ill, ill) for ill in ills)):
            compare_peers.PEERS.append(compare_peers.Peer(name, name, program=program, conf=conf))
            compare_peers.BY_NAME[name] = compare_peers.PEERS[-1]
        given = comparison.parse(
            self.words("--device", "virtual", "--only", ",".join(["sound", *ills]))
        )
        given.device, given.device_bytes = "cuda", 2**37
        played = comparison.Comparison(given, [])
        played.build = lambda what: ""
        try:
            status, said = quietly(played.run)
        finally:
            for worker in played.workers.values():
                worker.stop()
        return status, said, played

    def test_a_peer_that_stays_gives_figures_a_timeline_and_a_smallest_capacity(self):
        status, said, _ = self.play()
        assert status == 0, said
        found = compare_table.gather(self.rows())["small"]["sound"]
        assert len(found["turns"]) == 2
        assert compare_table.capacity(found) == 0.9
        assert compare_table.warm_call(found) == 1500
        lines = (self.place / "out" / "timeline.csv").read_text(encoding="utf-8").splitlines()
        assert lines[1:] == ["small,torch-native,1,10,20,10,20"]

    def test_what_fails_costs_no_other_its_figures(self):
        status, said, played = self.play("dies at once", "dies", "fails")
        assert status == 1
        found = compare_table.gather(self.rows())["small"]
        assert len(found["sound"]["turns"]) == 2
        assert played.missing["dies at once"] == "ended with status 1: no such device"
        assert "ended with status 1: killed by a bug" in found["dies"]["failed"]
        assert "CUDA error" in found["fails"]["failed"]
        assert "FAILED: dies, small: ended with status 1: killed by a bug" in said

    def test_a_peer_that_hangs_is_ended_and_started_again(self):
        program = os.path.relpath(self.stand_in, ROOT)
        worker = compare_peers.Worker(
            compare_peers.Peer("hangs", "", program=program, conf="hangs"),
            [], [], ROOT)  # fmt: skip
        assert worker.hear(20) == {"ready": 1}
        for _ in range(2):
            worker.ask("measure 0")
            with pytest.raises(compare_peers.Failed, match="did not answer"):
                worker.hear(0.3)
            assert worker.process is None

    def test_searches_beside_each_other_hold_no_more_than_a_share_of_the_device(self):
        _, _, played = self.play("other", "third")
        played.given.device_bytes = int(17000000 / comparison.SHARE_OF_DEVICE)
        # the process is there no more, the batches are
        batches = played.batches(str(self.trace))
        assert [[peer.name for peer in batch] for batch in batches] == [
            ["sound", "other"],
            ["third"],
        ]


class TestWhatIsRefused(Case):
    def refused(self, *words):
        with pytest.raises(SystemExit) as ended:
            quietly(comparison.parse, self.words(*words))
        return ended.value.code

    def test_unknown_peers_and_lost_traces(self):
        assert self.refused("--only", "jemalloc") == 2
        assert self.refused("no_such.trace") == 2

    def test_a_file_without_rows_is_no_table(self):
        for text in ("", "{\n", '{"trace": "x"}\n'):
            self.trace.write_text(text, encoding="utf-8")
            with pytest.raises(SystemExit):
                compare_table.read(self.trace)


class TestWhatCannotBeBuilt:
    def test_the_reason_has_the_first_error_and_no_folder_of_this_machine(self):
        said = f"{ROOT}/bench/x.cpp:3:1: error: no such type\nerror: 2\nrun: x does not build\n"
        assert (
            comparison.why_not(said)
            == "run: x does not build; bench/x.cpp:3:1: error: no such type"
        )


class TestClaims:
    def held(self, ductile, other):
        """Which claims hold of one turn of each: (ms of all passes, ns of a call, passes)."""
        cells = {}
        for name, (wall, ns, passes) in (("ductile", ductile), ("torch-expandable", other)):
            row = {
                "completed": True,
                "all_passes": {"wall_us": wall},
                "ns_per_op": ns,
                "streams": 1,
                "passes": passes,
            }
            cells[name] = {"turns": [row], "capacity": None, "failed": []}
        return [held for _, held, _ in compare_table.held_to({"t": cells}, True)]

    def test_ductile_is_held_to_the_time_of_expandable_segments_and_to_its_own(self):
        assert self.held((9, 24, 5), (10, 300, 5)) == [True, True]
        assert self.held((11, 26, 5), (10, 300, 5)) == [False, False]

    def test_passes_of_unequal_number_are_not_compared(self):
        assert self.held((9, 24, 5), (10, 300, 3)) == [True]

    def test_medians_are_of_the_turns_that_completed(self):
        rows = [{"peer": "ductile", "trace": "t", "completed": done, "ns_per_op": ns}
                for done, ns in ((True, 10), (True, 30), (False, 1), (True, 20))]  # fmt: skip
        cell = compare_table.gather(rows)["t"]["ductile"]
        assert compare_table.middle(cell, "ns_per_op") == 20
        assert len(cell["failed"]) == 1

    def test_retries_stand_beside_what_ductile_counts(self):
        """Of PyTorch's own allocators it is not known how often they waited."""
        own = {"pressure_waits": 4, "pressure_returns": 1}
        for counted, shown in ((own, "4, 1"), ({"pressure_returns": 18}, "-, 18"), ({}, "-, -")):
            row = {"peer": "x", "trace": "t", "completed": True, **counted}
            cell = compare_table.gather([row])["t"]["x"]
            found = dict(zip(compare_table.HEAD, compare_table.line("x", cell)))
            assert found["waits, returns for lack of memory"] == shown
