# SPDX-License-Identifier: Apache-2.0
"""The scripts that prove PyTorch on a GPU (torch_gpu), as far as they run without one."""

from __future__ import annotations

import argparse
import gzip
import importlib
import json
import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import allocators
import capped_programs
import child
import compare
import contents
import costs
import distributed
import first_sleeps
import first_sleeps_zygote
import held
import pytest
import pytorch_tests
import recording_cost
import settings
import slower
import spilling
import steps
import turns
from running import python, replayed
from support import ROOT
from torch_scripts import SCRIPTS, needs, run

import ductile_gpu

FAKE_TESTS = """\
import os, time, unittest
OWN = os.environ.get("DUCTILE_TORCH")
class TestCuda(unittest.TestCase):
    def test_good(self): pass
    def test_bad(self): self.fail("no")
    def test_lost(self):
        TestCuda.left = OWN
        self.assertFalse(OWN)
    def test_better(self): self.assertTrue(OWN)
    def test_once(self):
        if OWN and not os.path.exists(os.environ["MARK"]):
            open(os.environ["MARK"], "w").close()
            self.fail("once")
    def test_crashes(self): os.abort()
    def test_hangs(self):
        if OWN: time.sleep(1000)
    def test_skipped(self): self.skipTest("not here")
    def test_lost_with_the_former(self): self.assertFalse(getattr(TestCuda, "left", None))
if __name__ == "__main__":
    unittest.main()
"""


def test_a_process_that_takes_too_long_is_killed_with_what_it_started():
    start = time.monotonic()
    status, output = allocators.run(["sh", "-c", "echo said; sleep 100 & sleep 100"], 0.5)
    assert (status, output.splitlines()[0]) == (-1, "said")
    assert "took more than" in output
    status, output = allocators.run(["sh", "-c", "sleep 100"], 60, silence=0.5)
    assert status == -1
    assert "said nothing" in output
    assert time.monotonic() - start < 20


def test_a_check_of_contents_tells_a_late_copy_from_a_lost_one():
    pytest.importorskip("numpy")
    right, before = bytes(range(1, 101)), bytes([7]) * 100
    memory = bytearray(right)
    memory[10:30] = bytes(10) + before[20:30]
    address = contents.GRANULE - 25

    def comes_late():
        memory[:] = right
        return bytes(memory)

    looks = {"same": lambda: bytes(memory), "0 that differ": comes_late}
    others = {"step 4": before, "shorter": b"7"}
    for found, look in looks.items():
        said = contents.difference(right, bytes(memory), look, address, others)
        assert said == (
            f"20 of 100 bytes differ, 10 to 29 from {address:#x} on, in 2 granules; there stands "
            f"{'00' * 10}{'07' * 6} for {right[10:26].hex()} (0x00: 10, as in step "
            f"4: 10); a second look finds {'the ' if found == 'same' else ''}{found}"
        )
    assert contents.difference(right, bytes(memory), comes_late) == ""
    assert "99 bytes are there" in contents.difference(right, right[1:], comes_late)


def test_an_allocator_is_asked_for_by_the_environment(monkeypatch):
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:20")
    monkeypatch.setenv("DUCTILE_TORCH", "1")
    found = {name: allocators.environment(name) for name in allocators.NAMES}
    assert not {"PYTORCH_CUDA_ALLOC_CONF", "DUCTILE_TORCH"} & found["native"].keys()
    assert found["expandable"]["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"
    assert "DUCTILE_TORCH" not in found["expandable"]
    assert found["ductile"]["DUCTILE_TORCH"] == "full"
    assert "PYTORCH_CUDA_ALLOC_CONF" not in found["ductile"]


@pytest.mark.parametrize("module", ["child", "llama_rank"])
def test_a_process_on_pytorchs_allocator_has_nothing_of_ductile(module):
    if module == "llama_rank":
        needs("torch", "transformers")
    code = f"import {module}, sys; sys.exit('ductile_gpu' in sys.modules)"
    assert python("-c", code, folder=SCRIPTS, without=("DUCTILE_TORCH",)).returncode == 0


def test_what_ductile_counts_beside_retries_is_of_all_its_allocators(monkeypatch):
    monkeypatch.setitem(sys.modules, "ductile_gpu", None)
    assert child.pressure() == {"pressure_waits": 0, "pressure_returns": 0}
    stats = SimpleNamespace(pressure_waits=2, pressure_returns=3)
    one = SimpleNamespace(stats=lambda: stats)
    module = SimpleNamespace(allocators=lambda: [one, one])
    monkeypatch.setitem(sys.modules, "ductile_gpu", module)
    assert child.pressure() == {"pressure_waits": 4, "pressure_returns": 6}


ANSWER = "import child, os, time; print('{}', file=child.open_channel(), flush=True)"


@pytest.mark.parametrize(
    ("code", "failure"),
    [
        (f"{ANSWER}; print('no answer')", None),
        (f"{ANSWER}; os.abort()", "has ended with status -6"),
        (f"{ANSWER}; time.sleep(60)", "did not end in time"),
        ("import time; time.sleep(60)", "did not answer in time"),
        ("1 / 0", "has ended with status 1"),
    ],
)
def test_an_answer_counts_only_when_its_process_ends_well(code, failure, capfd):
    worker = turns.Worker("x", ["-c", code], {**os.environ, "PYTHONPATH": str(SCRIPTS)})
    # What is to be late has to begin in time, on a busy machine too.
    seconds = 10 if "sleep" in code else 60
    answer = {"failed": f"the process on x {failure}"} if failure else {}
    assert turns.only_answer(worker, time.monotonic() + seconds) == answer
    assert worker.process.poll() is not None
    assert ("ZeroDivisionError" in capfd.readouterr().err) == ("1 / 0" in code)


def test_results_of_pytorchs_own_tests_are_read():
    output = """\
test_a (__main__.TestCuda.test_a) ... ok
test_b (__main__.TestCuda.test_b)
What it is about. ... /somewhere/x.py:1: UserWarning: ok?
  noise
FAIL
test_c (__main__.TestMemPool.test_c) ... skipped 'not here'
test_d (__main__.TestCuda.test_d) ... expected failure
test_e (__main__.TestCuda.test_e) ... Segmentation"""
    assert pytorch_tests.read_results(output) == {
        "TestCuda.test_a": "passed",
        "TestCuda.test_b": "failed",
        "TestMemPool.test_c": "skipped",
        "TestCuda.test_d": "xfailed",
        "TestCuda.test_e": "crashed",
    }


def test_lost_tests_of_pytorch_are_told_from_those_that_fail_anyway(tmp_path):
    tests = tmp_path / "test_cuda.py"
    tests.write_text(FAKE_TESTS)
    status, rows = run(
        "pytorch_tests.py", str(tests), "--workers", "3", "--silence", "10",
        MARK=str(tmp_path / "mark"),
    )  # fmt: skip
    verdicts = {row["test"]: row["verdict"] for row in rows if "test" in row}
    assert status == 1
    assert verdicts == {
        "TestCuda.test_bad": "neither",
        "TestCuda.test_better": "other",
        "TestCuda.test_crashes": "neither",
        "TestCuda.test_hangs": "LOST",
        "TestCuda.test_lost": "LOST",
        "TestCuda.test_lost_with_the_former": "again",
        "TestCuda.test_once": "again",
    }
    assert rows[0]["passed"] == 5
    errors = {row["test"]: row["error"] for row in rows if "test" in row}
    assert errors["TestCuda.test_bad"] == "AssertionError: no"
    assert errors["TestCuda.test_once"] == "AssertionError: once"


def test_a_known_difference_is_one_only_with_the_failure_that_is_known(tmp_path, monkeypatch):
    tests = tmp_path / "tests.py"
    tests.write_text(FAKE_TESTS, encoding="utf-8")
    given = argparse.Namespace(silence=60.0)
    end = time.monotonic() + 60

    def judge(pattern: str, end: float) -> str:
        known = {"TestCuda.test_lost": ("reason", pattern)}
        monkeypatch.setattr(pytorch_tests, "DIFFERENCES", known)
        return pytorch_tests.judge(tests, "TestCuda.test_lost", given, end)["verdict"]

    assert judge("is not false", end) == "differs"
    assert judge("something else", end) == "LOST"
    assert judge("is not false", time.monotonic() - 1) == "LOST"


@pytest.mark.parametrize(
    ("changed", "missed"),
    [
        ({}, []),
        ({"losses_equal_to_native": False}, ["losses differ from native's"]),
        ({"overhead": 0.05}, ["holds 5.00 % more than is used"]),
        ({"time_of_native": 1.02}, []),
        ({"time_of_native": 1.04}, ["a step takes longer than native's"]),
    ],
)
def test_ductile_is_held_to_losses_memory_and_time(changed, missed):
    row = {"losses_equal_to_native": True, "overhead": 0.01, "time_of_native": 1.0}
    assert compare.judge({**row, "time_of_native_noise": 0.03, **changed}) == missed


def test_time_is_compared_round_by_round():
    mean, noise = turns.paired([1.0, 2.0, 4.0], [1.0, 2.0, 4.0])
    assert (mean, noise) == (1.0, 0.0)
    mean, noise = turns.paired([1.1, 2.0, 3.6], [1.0, 2.0, 4.0])
    assert mean == pytest.approx(1.0)
    assert noise == pytest.approx(4.30 * 0.1 / 3**0.5)


@pytest.mark.parametrize(
    ("case", "own", "said"),
    [
        ("ddp-off", {"digest": "a", "backend": "ductile"}, "equal"),
        ("ddp-off", {"digest": "b", "backend": "ductile"}, "DIFFERS"),
        ("ddp-off", {"digest": "a", "backend": "native"}, "FAILED: not on Ductile"),
        ("ddp-off", {"error": "hung"}, "FAILED"),
        ("ddp-off", None, "native fails"),
        ("ddp-whole", None, "native refuses"),
    ],
)
def test_ranks_on_ductile_are_held_to_natives_losses(case, own, said):
    assert distributed.verdict({"case": case, "digest": "a"}, own) == said


@pytest.mark.slow
def test_ranks_train_and_agree():
    needs("torch")
    words = ["--seconds", "500"]  # a machine that is busy with other things
    status, rows = run("distributed.py", "--cpu-check", "--steps", "2", *words)
    assert [(row["case"], row["allocator"], row["verdict"]) for row in rows] == [
        (case, allocator, "equal")
        for case in ("ddp-off", "fsdp2-off")
        for allocator in ("native", "ductile")
    ], rows
    assert status == 0


@pytest.mark.parametrize(
    ("library", "rows", "is_wrong"),
    [("tms", 3, False), ("tms", 2, True), ("tms", 0, True), ("whole", 3, True)],
)
def test_only_the_other_saver_may_fail_behind_its_last_row(
    monkeypatch, capsys, library, rows, is_wrong
):
    monkeypatch.setattr(sys, "argv", ["savers.py"])
    import savers

    way, found = savers.Way(library, 1, 8, "keep", cycles=3), savers.Found()
    row = {"what": "cycle", "pause": 1, "resume": 1, "freed": 1 << 30, "differs": ""}
    for cycle in range(rows):
        found.take(way, {**row, "cycle": cycle})
    found.take_end(way, 0)
    assert not found.wrong
    found.take_end(way, -6)
    assert bool(found.wrong) == is_wrong
    assert ("ended with status -6" in capsys.readouterr().out) != is_wrong


@pytest.mark.parametrize("modes", ["stacks", "none,stack"])
def test_modes_of_recording_that_cannot_be_compared_are_refused(modes):
    assert run("recording_cost.py", "--modes", modes) == (2, [])


# Instead of a training: a step takes as long as the mode is told to, and `record` says its events.
STEPS = """
import json, sys, time
for line in sys.stdin:
    time.sleep({seconds})
    print(json.dumps({{"wall": {seconds} * 1e9, "cpu": 7}}), flush=True)
print("ductile-gpu: 1,300 events, 1 stack", file=sys.stderr)
"""


def cost_of(monkeypatch: pytest.MonkeyPatch, seconds: dict[str, float], *words: str) -> int:
    def start(mode: str, _given: object, _folder: str) -> turns.Worker:
        command = ["-c", STEPS.format(seconds=seconds[mode])]
        return turns.Worker(mode, command, allocators.environment("native"))

    monkeypatch.setattr(recording_cost, "start", start)
    monkeypatch.setattr(sys, "argv", ["recording_cost.py", "--json", *words])
    return recording_cost.main()


@pytest.mark.parametrize(("stacks", "status"), [(0.02, 0), (0.03, 1)])
def test_the_cost_of_recording_is_a_ratio_with_an_interval(monkeypatch, capsys, stacks, status):
    seconds = {"none": 0.02, "stacks": stacks}
    assert cost_of(monkeypatch, seconds, "--turns", "7", "--steps", "60") == status
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["mode"] for row in rows] == ["none", "stacks"]
    for found in ("ratio", "low", "high"):
        assert rows[1]["wall"][found] == pytest.approx(stacks / 0.02)
        assert rows[1]["cpu"][found] == 1
    assert rows[1]["rounds"] == 7
    assert rows[1]["events_per_step"] == round(1300 / (7 * 60 + 20))


def test_the_interval_of_a_median_is_that_of_throws_of_a_coin():
    """Of 6 values the outermost, with 97 %; of 20 the 6th from each end, as tables have it."""
    assert recording_cost.median_of_rounds(list(range(6))) == (2.5, 0, 5)
    assert recording_cost.median_of_rounds(list(range(1, 21))) == (10.5, 6, 15)


def test_the_cost_of_recording_is_told_within_its_limit(monkeypatch, capsys):
    begin = time.monotonic()
    assert cost_of(monkeypatch, {"none": 0.1, "stacks": 0.1}, "--turns", "999", "--limit", "6") == 0
    assert 1 < json.loads(capsys.readouterr().out.splitlines()[0])["rounds"] < 30
    stuck = {"none": 0.1, "stacks": 99}
    assert cost_of(monkeypatch, stuck, "--limit", "3") == 1
    assert "did not answer in time" in capsys.readouterr().err
    assert time.monotonic() - begin < 30


# ---- steps.py ----------------------------------------------------------------------------------


def first_run(allocator: str, times: list[float], **changed: Any) -> dict[str, Any]:
    row = {"part": "first", "model": "moe", "allocator": allocator, "repeat": 0, "setup_ms": 5.0}
    memory = {"used": 900, "held": 1000, "retries": 0, "refusals": 0}
    backend = "ductile" if allocator == "ductile" else "native"
    return {**row, **memory, "backend": backend, "times_ms": times, **changed}


def test_a_load_is_a_cap_and_more_than_all_is_so_much_above_what_is_used():
    assert steps.cap_of(60, 600) == 1000
    assert steps.cap_of(98, 980) == 1000
    assert steps.cap_of(100.5, 1000) == 1005
    assert steps.cap_of(100.5, 10**9 + 1) == 1005000002


def test_percentiles_lie_between_steps():
    assert turns.percentile([3.0, 1.0, 2.0], 50) == 2.0
    assert turns.percentile([1.0, 2.0], 99) == pytest.approx(1.99)
    assert turns.percentile([7.0], 99) == 7.0


def test_first_steps_are_apart_from_the_others():
    found = steps.figures(first_run("native", [30.0, 1, 1, 1, 1, 2, 4]))
    assert found["to_first"] == 35
    assert found["first_five"] == 34
    assert (found["mean"], found["worst"]) == (3, 4)
    assert "mean" not in steps.figures(first_run("native", [1.0] * 5))
    assert "first_five" not in steps.figures(first_run("native", [1.0] * 4))


@pytest.mark.parametrize(
    ("own", "missed"),
    [
        ([10.0] * 5 + [4.0] * 4, []),
        ([10.4] * 5 + [4.0] * 4, []),
        ([10.6] * 5 + [4.0] * 4, ["moe: first five steps take 1.060 of expandable's"]),
        ([10.0] * 5 + [4.1] * 4, []),
        ([10.0] * 5 + [4.0] * 3 + [6.0], ["mean step", "p99 step", "worst step"]),
    ],
)
def test_ductiles_steps_are_held_to_expandables_and_to_the_noise(own, missed):
    others = [first_run("expandable", [10.0] * 5 + [ms] * 4) for ms in (3.9, 4.0, 4.1)]
    found = steps.judge([*others, first_run("ductile", own)])
    assert len(found) == len(missed), found
    assert all(part in text for part, text in zip(missed, found)), found


def test_one_run_alone_has_no_noise_to_be_held_to():
    rows = [first_run("expandable", [1.0] * 8), first_run("ductile", [1.0] * 7 + [9.0])]
    assert steps.judge(rows) == []
    assert steps.noise(rows[:1], "mean") is None


def test_times_stand_with_the_least_and_the_most_of_their_turns():
    rows = [first_run("native", [10.0] * 5 + [ms] * 4) for ms in (3.0, 5.0, 4.0)]
    assert "mean 4.0 (3.0-5.0)" in steps.text_of(rows)
    assert "(" not in steps.text_of(rows[:1])


def test_a_refusal_near_the_limit_is_ductiles_miss_and_no_other_allocators():
    near = {"part": "near", "percent": 100.5, "cap": 2**30, "refusals": 3}
    own, other = (first_run(name, [1.0] * 9, **near) for name in ("ductile", "expandable"))
    assert steps.judge([other]) == []
    assert steps.judge([own]) == ["moe, near 100.5 %: 3 steps were refused"]
    own.update(pressure_waits=2, pressure_returns=1)
    said = steps.describe(own)
    assert said.startswith("moe      ductile    near 100.5 %")
    assert "0 retries, 2 pressure_waits, 1 pressure_returns, 3 refusals" in said
    assert steps.judge([first_run("ductile", [1.0], backend="native")]) == [
        "moe, first: is not on Ductile"
    ]


def test_what_failed_is_shown_and_the_rest_kept():
    bad = {"part": "first", "model": "moe", "allocator": "native", "repeat": 0, "error": "hung"}
    said = steps.text_of([bad, first_run("expandable", [1.0] * 8)])
    assert "FAILED: moe, native, first: hung" in said
    assert "moe      expandable 1 turns" in said


def test_when_the_time_is_up_no_run_begins():
    given = steps.parse(["--limit", "0", "--cpu-check"])
    runner = steps.Runner(given)
    assert list(steps.play_first(runner, range(1))) == []
    assert list(steps.play_near(runner, {"moe": 1000})) == []
    runner.close()


@pytest.mark.slow
def test_programs_run_under_each_allocator_and_each_cap():
    needs("torch")
    words = ["--cpu-check", "--models", "graph", "--steps", "6", "--repeats", "2"]
    words += ["--seconds", "500", "--limit", "800"]  # a machine that is busy with other things
    _, rows = run("steps.py", *words)
    assert not [row for row in rows if "error" in row]
    first = [row for row in rows if row["part"] == "first"]
    assert len(first) == 2 * 3
    assert len([row for row in rows if row["part"] == "near"]) == 4 * 3
    assert all(len(row["times_ms"]) == 6 and row["machine"] for row in rows)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2", "lora", "resnet", "moe", "graph", "generate"])
def test_a_plain_program_takes_steps_of_every_size(name):
    needs("torch")
    import plain_models

    program = plain_models.make(name, "cpu", tiny=True)
    for n in range(3):
        program.step(n)
    program.drop()
    assert all(weight.grad is None for weight in program.model.parameters())


# ---- first_sleeps.py ---------------------------------------------------------------------------

ZYGOTE = """\
import first_sleeps_zygote, os, time
def say(text): raise AssertionError(text)
CASES = {
    "well": lambda: print("this is not kept"),
    "differs": lambda: say("3 of 8 bytes differ"),
    "alike": lambda: say("the steps are all alike"),
    "errs": lambda: 1 / 0,
    "crashes": os.abort,
    "hangs": lambda: time.sleep(1000),
}
ALIAS = {"a_graph_in_a_tag_draws_on": os.environ["TARGET"]}
first_sleeps_zygote.serve(lambda told: CASES[ALIAS.get(told["case"], "well")]())
"""


@pytest.fixture
def zygote(tmp_path, monkeypatch):
    """In the place of the one with PyTorch; the case that failed becomes the given one."""

    def begin(target: str, code: str = ZYGOTE) -> None:
        script = tmp_path / "zygote.py"
        script.write_text(code)
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(SCRIPTS), *sys.path]))
        monkeypatch.setenv("TARGET", target)
        monkeypatch.setattr(first_sleeps, "ZYGOTE", str(script))
        monkeypatch.setattr(steps, "where_from", lambda script: {"machine": "here"})

    return begin


def first_sleep_rows(capfd, *words: str) -> tuple[int, list[dict[str, Any]]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["first_sleeps.py", "--json", "--limit", "100", *words])
        status = first_sleeps.main()
    return status, [json.loads(line) for line in capfd.readouterr().out.splitlines()]


@pytest.mark.parametrize(("lanes", "targets"), [(1, 1), (2, 1), (5, 3), (6, 3), (12, 6)])
def test_half_the_lanes_do_what_failed_and_the_others_in_turn_what_ran_beside(lanes, targets):
    count = first_sleeps.Count(lanes, wanted=99, deadline=time.monotonic() + 60)
    rounds = [[count.next_case(lane) for lane in range(lanes)] for _ in range(5)]
    for cases in rounds:
        assert cases[:targets] == [first_sleeps.TARGET] * targets
    beside = [case for cases in rounds for case in cases[targets:]]
    others = len(first_sleeps.BESIDE)
    assert {beside.count(case) for case in first_sleeps.BESIDE} == {len(beside) // others}
    assert (count.counts["target"], count.counts["beside"]) == (5 * targets, len(beside))


def test_a_form_ends_with_what_was_wanted_or_with_its_time():
    count = first_sleeps.Count(2, wanted=1, deadline=time.monotonic() + 60)
    assert [count.next_case(lane) for lane in (0, 0, 1)] == [first_sleeps.TARGET, None, None]
    assert first_sleeps.Count(2, wanted=1, deadline=time.monotonic()).next_case(0) is None
    names = list(first_sleeps.FORMS)
    assert first_sleeps.shares(names[-1:]) == [1.0]
    assert first_sleeps.shares(["loaded", "grown", "ahead"]) == [1 / 3, 1 / 2, 1.0]
    assert first_sleeps.shares(names, wanted=5)[0] == 1 / len(names)


@pytest.mark.parametrize(
    ("case", "status", "kind", "said"),
    [
        ("differs", 1, "differs", "3 of 8 bytes differ"),
        ("alike", 1, "errors", "the steps are all alike"),
        ("errs", 3, "errors", "ZeroDivisionError"),
        ("crashes", -6, "errors", "Fatal Python error: Aborted"),
        ("hangs", -99, "errors", "killed: it took more than 2 s"),
    ],
)
def test_a_process_that_did_not_end_well_is_counted_and_its_row_says_what_it_said(
    zygote, monkeypatch, capfd, case, status, kind, said
):
    if case == "hangs":  # the others have to end in time, on a busy machine too
        monkeypatch.setattr(first_sleeps, "SECONDS", 2.0)
    zygote(case)
    ended, (row,) = first_sleep_rows(capfd, "--forms", "idle", "--wanted", "2")
    assert (ended, row["processes"], row["machine"]) == (1, 2, "here")
    assert {name: row[name] for name in ("differs", "errors")} == {
        "differs": 2 * (kind == "differs"), "errors": 2 * (kind == "errors")
    }  # fmt: skip
    for failure in row["failures"]:
        assert (failure["case"], failure["status"]) == (first_sleeps.TARGET, status)
        assert said in failure["said"]


def test_processes_that_end_well_leave_their_number_and_their_time(zygote, capfd):
    zygote("well")
    words = ["--forms", "failed,idle", "--lanes", "3", "--wanted", "4"]
    status, rows = first_sleep_rows(capfd, *words)
    assert status == 0
    assert [(row["form"], row["lanes"], row["target"]) for row in rows] == [
        ("failed", 3, 4), ("idle", 1, 4)
    ]  # fmt: skip
    for row in rows:
        assert row["processes"] == row["target"] + row["beside"]
        assert 0 < row["median_s"] <= row["most_s"] < row["s"]
        assert row["differs"] == row["errors"] == row["alone"] == 0
        assert row["failures"] == []
    n_processes = sum(row["processes"] for row in rows)
    assert first_sleeps.total(rows).startswith(f"processes {n_processes}, target 8, differs 0, ")


@pytest.mark.parametrize("code", ["1 / 0", "print('{}', flush=True); input(); 1 / 0"])
def test_a_lane_that_ends_is_an_error_and_not_waited_for(zygote, capfd, code):
    zygote("well", code)
    status, (row,) = first_sleep_rows(capfd, "--forms", "failed", "--lanes", "2")
    assert (status, row["errors"]) == (1, 2)
    assert all("has ended with status 1" in failure["said"] for failure in row["failures"])


@pytest.mark.parametrize(
    ("said", "status", "kind"),
    [("all right", 0, None), ("5 words differed", 1, "differs"), ("no driver", 77, "errors")],
)
def test_the_program_beside_is_counted_apart(zygote, capfd, tmp_path, said, status, kind):
    program = tmp_path / "gpu-first_sleep"
    program.write_text(f"#!/bin/sh\necho {said}\nexit {status}\n")
    program.chmod(0o755)
    zygote("well")
    words = ["--forms", "failed", "--lanes", "1", "--wanted", "60", "--alone", str(program)]
    ended, (row,) = first_sleep_rows(capfd, *words)
    assert ended == (kind is not None)
    assert row["alone"] > 0
    for name in ("differs", "errors"):
        assert row[name] == 0
        assert row[f"alone_{name}"] == (row["alone"] if name == kind else 0)
    for failure in row["failures"]:
        assert failure["case"].startswith("gpu-first_sleep --cycles 1")
        assert said in failure["said"]
        break


def test_what_stands_in_small_blocks_is_shown_beside_a_difference(monkeypatch, capsys):
    def copy(words: Any, address: Any, size: Any) -> int:
        words[0], words[3] = 7, size.value
        return 0

    driver = SimpleNamespace(cuMemcpyDtoH_v2=copy)
    monkeypatch.setattr(first_sleeps_zygote.ctypes, "CDLL", lambda name: driver)
    with ductile_gpu.Allocator(driver="virtual") as own:
        small, _large = own.alloc(512), own.alloc(1 << 20)
        first_sleeps_zygote.print_small_blocks()
    assert capsys.readouterr().out == f"block {small:#x} of 512 bytes: [7, 0, 0, 32], code 0\n"


# ---- settings.py -------------------------------------------------------------------------------


def completed(program: str, tmp_path: Path) -> dict[str, bool]:
    """A program of capped_programs.py under its cap, on a virtual GPU."""
    trace = tmp_path / f"{program}.trace"
    trace.write_text(capped_programs.trace(program))
    cap = f"{capped_programs.PROGRAMS[program].cap}M"
    found = replayed("--contender", "ductile,expandable", "--capacity", cap, trace)
    return {name: run["completed"] for name, run in found.items()}


@pytest.mark.parametrize(
    ("program", "is_completed"),
    [(name, name in ("walk", "streams"))
     for name in ("requests", "shapes", "random", "batches", "outputs", "walk", "streams")],
)  # fmt: skip
def test_what_dies_under_expandable_segments_dies_under_their_model(
    program, is_completed, tmp_path
):
    assert completed(program, tmp_path) == {"ductile": True, "expandable": is_completed}


def test_the_kept_trace_is_what_its_program_writes():
    kept = ROOT / "bench" / "traces" / "synthetic" / "requests.trace.gz"
    assert gzip.decompress(kept.read_bytes()).decode() == capped_programs.trace("requests")


def test_every_cap_has_room_for_what_its_program_uses():
    for name, program in capped_programs.PROGRAMS.items():
        assert program.cap == 0 or program.cap << 20 >= capped_programs.live_peak(name), name


def test_speed_is_a_ratio_to_natives_turns_and_the_first_one_warms_up():
    def answers(*turns_ms: float) -> list[dict[str, Any]]:
        some = {"refusals": 0, "units": 10, "held": 3, "used": 2}
        return [{"refusals": 0}, *({**some, "ms": ms} for ms in turns_ms)]

    native, other = answers(900, 10, 20), answers(100, 5, 10)
    row = settings.speed_row("ductile", other, native)
    assert (row["of_native"], row["of_native_noise"]) == (2.0, 0.0)
    assert row["turns_ms"] == [5, 10]
    assert row["warm_up_ms"] == 100
    assert row["per_second"] == 1500
    assert settings.speed_row("ductile", [{"error": "ended"}], native) == {"error": "ended"}


def test_ductile_may_refuse_no_program_that_fits():
    def row(way: str, refused: bool) -> dict[str, Any]:
        return {"part": "dies", "program": "shapes", "way": way, "cap": 2 << 30, "needs": 1 << 30,
                "refused": refused, "retries": 3, "backend": "cpu"}  # fmt: skip

    rows = [row("native", True), row("expandable", True), row("ductile", False)]
    assert settings.describe(rows[0]).endswith("refused, needs 1.00 of 2.00 GiB")
    assert settings.describe(rows[2]).endswith("ends; 3 retries, needs 1.00 of 2.00 GiB")
    assert settings.judge(rows) == []
    assert settings.judge([row("ductile", True)]) == ["shapes, dies: Ductile refuses"]


def test_near_its_limit_ductile_is_held_to_what_expandable_segments_refuse():
    def rows(expandable: int, ductile: int) -> list[dict[str, Any]]:
        some = {"part": "near", "program": "lora", "backend": "cpu"}
        pairs = (("expandable", expandable), ("ductile", ductile))
        return [{**some, "way": way, "refusals": refusals} for way, refusals in pairs]

    assert settings.judge(rows(2, 1)) == []
    assert settings.judge(rows(0, 1)) == [
        "lora, near: Ductile refuses more than expandable segments"
    ]


@pytest.mark.slow
def test_programs_of_each_kind_take_turns_under_each_setting():
    needs("torch")
    words = ["--cpu-check", "--rounds", "2", "--steps", "2", "--seconds", "500", "--limit", "800"]
    status, rows = run("settings.py", *words, "--programs", "streams,serving,growing,pool")
    assert status == 0, rows
    speed = [(row["program"], row["way"]) for row in rows if row["part"] == "speed"]
    assert ("streams", "ductile+record_stream:wait") in speed
    assert len(speed) == 4 + 4 + 3
    assert all(row["machine"] and "error" not in row for row in rows)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["images", "notebook", "small", "libraries", "lora", "training"])
def test_a_program_says_what_it_has_done(name):
    needs("torch")
    import settings_models

    program = settings_models.make(name, "cpu", tiny=True)
    assert all(program.step(n) > 0 for n in range(3))
    program.drop()


# ---- slower.py ---------------------------------------------------------------------------------


def test_the_gpu_is_busy_where_any_of_its_work_overlaps_and_long_gaps_are_told_apart():
    us = 1000
    work = ((0, 10), (5, 20), (21, 30), (90, 100))
    found = costs.gpu_figures([(begin * us, end * us) for begin, end in work])
    assert found == {
        "kernels": 4, "kernel_ns": 44 * us, "busy_ns": 39 * us, "span_ns": 100 * us,
        "long_gap_ns": 60 * us,
    }  # fmt: skip
    assert costs.gpu_figures([])["span_ns"] == 0


def test_a_rows_command_names_no_path_of_the_machine(monkeypatch):
    needs("torch")
    words = ["slower.py", "--before", "/somewhere/package", "--output", "/somewhere/rows", "--vary"]
    monkeypatch.setattr(sys, "argv", words)
    assert steps.where_from("slower.py")["command"] == "slower.py --before package --vary"


EIGHT_STEPS = argparse.Namespace(steps=8, warm=1)


def turns_of_a_way(step_ms: list[float], spent: dict[str, float], kernel_ms: float) -> list[Any]:
    some = {"backend": "x", "used": 2, "held": 3, "active": 2, "spent": spent}
    watched = {**some, "pair_ns": 500.0, "profiled": {"kernel_ms": kernel_ms, "busy_ms": 4.0,
               "span_ms": 5.0, "long_gap_ms": 0.5, "memory_call_ms": 0.25}}  # fmt: skip
    return [
        {},
        {**some, "ms": 999.0, "spent": {"driver_ns": 7e6}},
        *({**some, "ms": 8 * ms} for ms in step_ms),
        watched,
    ]


def test_what_an_allocator_costs_is_its_host_time_beyond_natives_of_natives_step():
    found = {
        "native": turns_of_a_way([10, 10], {"allocs": 8000}, 4.0),
        "ductile": turns_of_a_way([10, 11], {"allocs": 8000, "driver_ns": 8e6}, 5.0),
    }
    native, ductile = slower.rows_of("lora", found, EIGHT_STEPS)
    # 1,000 allocations a step at 500 ns each; the profiler saw 0.25 ms of native's driver calls.
    assert (native["step_ms"], native["costs_percent"]) == (10.0, 0.0)
    assert ductile["costs_percent"] == pytest.approx(100 * (1.0 - 0.25) / 10)
    assert (ductile["first_ms"], ductile["last_ms"]) == (10.0, 11.0)
    assert (ductile["kernels_of_native"], ductile["of_native"]) == (1.25, 1.05)


def test_a_way_that_failed_has_its_reason_in_its_row():
    found = {"native": turns_of_a_way([10], {"allocs": 8}, 4.0), "ductile": [{"error": "ended"}]}
    rows = list(slower.rows_of("lora", found, EIGHT_STEPS))
    assert rows[1] == {"program": "lora", "way": "ductile", "error": "ended"}
    assert slower.describe(rows[1]).endswith("FAILED: ended")


def test_what_is_held_at_most_is_told_by_what_it_is():
    gpu = ductile_gpu.VirtualGPU()
    allocator = gpu.allocator(sizes="4M", reuse="never")
    watches = held.Watches([allocator])
    first, second, mib = gpu.stream(), gpu.stream(), 1 << 20
    kept, freed = (allocator.alloc(size * mib, first) for size in (7, 9))
    allocator.free(freed)
    allocator.alloc(8 * mib, second)  # takes nothing of the first stream's
    assert watches.at_most() == {
        "held": 24 * mib, "live": 15 * mib, "pending": 0, "movable": 8 * mib, "stranded": mib,
    }  # fmt: skip
    watches.begin_again()
    assert watches.at_most() == {}
    allocator.free(kept)
    allocator.alloc(14 * mib, second)  # the handles of before are known
    assert watches.at_most() == {
        "held": 38 * mib, "live": 22 * mib, "pending": 0, "movable": 16 * mib, "stranded": 0,
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("program", ["streams", "fsdp2"])
def test_costs_of_a_program_are_told_for_each_way(program):
    needs("torch", *(["transformers"] if program == "fsdp2" else []))
    words = ["--cpu-check", "--rounds", "2", "--steps", "2", "--seconds", "500", "--limit", "800"]
    status, rows = run("slower.py", *words, "--programs", program)
    assert status == 0, rows
    assert [row["way"] for row in rows] == list(slower.WAYS)
    assert all(row["machine"] and row["step_ms"] > 0 for row in rows)


# ---- Trainings ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_trainings_take_turns_and_agree():
    needs("torch")
    words = ["--rounds", "2", "--steps", "2", "--seconds", "500"]
    status, rows = run("compare.py", "--cpu-check", *words)
    assert status in (0, 1), rows  # time is no criterion here
    assert [(row["model"], row["allocator"]) for row in rows] == [
        (model, allocator)
        for model in ("gpt2", "resnet", "lora")
        for allocator in ("native", "expandable", "ductile")
    ]
    assert all(row["losses_equal_to_native"] and row["steps"] == 6 for row in rows)


@pytest.mark.slow
def test_the_largest_batch_is_found_and_forecast():
    """On the CPU more than five samples are refused, and as many as were forecast."""
    needs("torch")
    status, rows = run("largest_batch.py", "--cpu-check", "--steps", "2", "--seconds", "200")
    assert (status, [(row["largest"], row["exact"]) for row in rows]) == (0, [(5, True)] * 3)
    status, rows = run("forecast.py", "--cpu-check", "--model", "gpt2", "--seconds", "200")
    assert (status, [row["forecast"] - row["trains"] for row in rows]) == (0, [1] * 3)


@pytest.mark.parametrize(
    ("script", "words", "said"),
    [
        ("steps", "--models bert", "--models: there is no bert"),
        ("steps", "--parts last", "--parts: there is no last"),
        ("first_sleeps", "--forms failed,deep", "--forms: there is no deep"),
        ("settings", "--programs training,chess", "--programs: there is no chess"),
        ("llama", "--cases fsdp2,fsdp3", "--cases: there is no fsdp3"),
        ("llama", "--ways native,plastic", "--ways: there is no plastic"),
        ("compare", "--model gpt2,bert", "--model: there is no bert"),
        ("largest_batch", "--model bert", "--model: there is no bert"),
        ("forecast", "--model bert", "--model: there is no bert"),
    ],
)
def test_what_is_not_there_is_refused_by_name(monkeypatch, script, words, said):
    if script in ("largest_batch", "forecast"):
        needs("torch")
    monkeypatch.setattr(sys, "argv", [script, *words.split()])
    with pytest.raises(SystemExit, match=f"{said}: there are "):
        importlib.import_module(script).main()


# ---- spilling.py -------------------------------------------------------------------------------


def capped(way: str, **more: Any) -> dict[str, Any]:
    row = {"part": "gpt2", "way": way, "share": 0.95, "variant": "plain", "refused": ""}
    return {**row, "same_losses": True, "spills": 3, **more}


@pytest.mark.parametrize(
    ("row", "why"),
    [
        (capped("ductile+spill"), ""),
        (capped("ductile+spill", refused="CUDA out of memory"), "did not end by spilling"),
        (capped("ductile+spill", spills=0), "did not end by spilling"),
        (capped("ductile+spill", same_losses=False), "its losses differ"),
        (capped("native", refused="CUDA out of memory"), ""),
        (capped("native"), "was refused nothing under its cap"),
        (capped("native", variant="recompute"), ""),
        (capped("native", share=0), ""),
        ({"part": "spikes", "way": "ductile+spill", "error": "hung"}, "failed"),
    ],
)
def test_with_spilling_a_training_ends_as_without_a_cap_and_no_other_does(row, why):
    assert spilling.missed(row) == why


def test_what_spills_is_counted_since_a_moment(monkeypatch):
    needs("torch")
    side = importlib.import_module("spilling_side")
    with ductile_gpu.Allocator(driver="virtual", spill_bytes="1G", limit_bytes="64M") as own:
        own.free(own.alloc(100 << 20))
        before = side.spilled()
        own.alloc(100 << 20)
        found = side.since(before, side.spilled())
    assert (found["spills"], found["spilled_total_bytes"]) == (1, 68 << 20)
    assert found["spilled_peak_bytes"] == found["spill_locked_bytes"] == 68 << 20


def test_a_training_that_is_compared_is_the_same_each_time(tmp_path):
    needs("torch")
    out = tmp_path / "rows.jsonl"
    words = (str(out), "--cpu-check", "--only", "unet")
    done = python(SCRIPTS / "spilling.py", *words, seconds=1800)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["variant"] for row in rows[:2]] == ["plain", "again"]
    plain = [row for row in rows if row["variant"] in ("again", "plain") and "same_losses" in row]
    assert len(plain) == 3
    assert all(row["same_losses"] for row in plain)
    assert {row["variant"] for row in rows} == {"plain", "again", "recompute", "save_on_cpu"}
