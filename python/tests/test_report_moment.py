# SPDX-License-Identifier: Apache-2.0
"""What a report says is of one moment, of the GPU that matters, and ends in one of four words; what
it is held to is counted here, by the shortest way."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from recordings import (
    BASE,
    FREED,
    MIB,
    block,
    dump,
    entry,
    frame,
    out_of_memory,
    refusal,
    report,
    segment,
    study,
    training,
    write_trace,
)  # fmt: skip

from ductile_gpu._tools._report import _summary, _verdict, _words

GIB = 1 << 30
KEEP, TEMPORARY = frame("keep", "keep.py"), frame("temporary", "temporary.py")
CAPTURE, STEP = frame("capture"), frame("step", line=40)


def told(path: Path, *words: object, status: int = 0) -> dict[str, Any]:
    answer = report("--json", *words, path, folder=path.parent)
    assert answer.returncode == status, answer.stderr
    return dict(json.loads(answer.stdout))


# ---- Recordings ---------------------------------------------------------------------------------


def holes(folder: Path, left: int = 100 * MIB, asked: int = GIB, **facts: Any) -> Path:
    """Eight segments of 1 GiB, each of 256 MiB that stay and 768 that go; then 1 GiB is refused."""
    history, segments = [], []
    for i in range(8):
        at = BASE + i * GIB
        history += [
            entry("segment_alloc", at, GIB),
            entry("alloc", at, GIB // 4, KEEP),
            entry("alloc", at + GIB // 4, GIB - GIB // 4, TEMPORARY),
        ]
        parts = (block(at, GIB // 4), block(at + GIB // 4, GIB - GIB // 4, "inactive"))
        segments.append(segment(at, *parts))
    for i in range(8):
        at = BASE + i * GIB + GIB // 4
        history += [entry(action, at, GIB - GIB // 4) for action in FREED]
    history.append(refusal(asked, left, frame("attention")))
    return dump(folder / "holes.pickle", history, segments=segments, **facts)


def graph(folder: Path, *last: dict[str, Any], pool: tuple[int, int] = (1, 0)) -> Path:
    """A captured graph's pool of 8 x 512 MiB, of which seven are free; then 8 x 512 MiB beside."""
    size, history, segments = 512 * MIB, [], []
    for i in range(16):
        at = BASE + i * size
        history += [entry("segment_alloc", at, size), entry("alloc", at, size, STEP)]
        state = "inactive" if 1 <= i < 8 else "active_allocated"
        own = {"segment_pool_id": pool} if i < 8 else {}
        segments.append(segment(at, block(at, size, state), **own))
        if i == 7:
            frees = [(action, BASE + k * size) for k in range(1, 8) for action in FREED]
            history += [entry(action, at, size) for action, at in frees]
    return dump(folder / "graph.pickle", [*history, *last], segments=segments)


def leak(folder: Path, n_steps: int) -> Path:
    """Every step keeps 40 MiB of one line; steps are marked by the optimizer."""
    history, marks = [entry("alloc", BASE, 1000 * MIB, frame("load"))], []
    for step in range(n_steps):
        history.append(entry("alloc", BASE + (step + 1) * GIB, 40 * MIB, frame("leaks", line=11)))
        for action in ("alloc", *FREED):
            history.append(entry(action, BASE + GIB // 2, 200 * MIB, frame("forward", line=15)))
        mark = {"name": "Optimizer.step#Adam.step", "device": 0}
        time = 10 * len(history)
        marks += [{**mark, "stage": "START", "time_us": time + 2}]
        marks += [{**mark, "stage": "END", "time_us": time + 4}]
    for at, of in enumerate(history):
        of["time_us"] = 10 * (at + 1)
    return dump(folder / "leak.pickle", history, external_annotations=marks)


# ---- One moment ---------------------------------------------------------------------------------


def test_the_holders_are_those_at_the_refusal_and_not_what_was_freed_before(tmp_path):
    found = told(holes(tmp_path))
    assert found["holders"] == [{"name": "keep keep.py:7", "bytes": 2 * GIB, "blocks": 8}]
    assert (found["moment"]["kind"], found["moment"]["live_bytes"]) == ("refusal", 2 * GIB)
    rows = {row["name"]: row["bytes"] for row in found["who"]["stack"] if row["bytes"]}
    assert rows == {"keep keep.py:7": 2 * GIB, "attention code/train.py:7": GIB}
    lines = Counter(label for label, _ in found["lines"])
    assert dict(map(tuple, found["lines"]))["held by"] == "2.00 GiB (100 %) keep keep.py:7"
    assert lines["moment"] == lines["held by"] == 1


def test_what_stands_in_the_way_is_of_the_refused_request_where_it_was_recorded(tmp_path):
    found = told(holes(tmp_path))
    way = found["openings"]["recorded"]
    assert (way["request"], way["largest_hole"]) == (GIB, GIB - GIB // 4)
    assert (way["least"]["blocks"], way["least"]["live_bytes"]) == (1, GIB // 4)
    assert way["place"] == {name: found["refused"][name] for name in ("event", "step")}
    assert [row["name"] for row in way["least"]["who"]] == ["keep keep.py:7"]
    text = dict(map(tuple, found["lines"]))["in the way"]
    assert text.startswith("1.00 GiB were refused at event 25, where the largest hole that may ")


def test_no_model_is_looked_at_in_another_moment_than_the_refusal(tmp_path):
    """Replays that are refused something else say nothing of it."""
    found = told(holes(tmp_path))
    for name in found["allocators"]:
        assert found["openings"][name]["place"]["event"] in (24, 25), name


def test_where_nothing_was_refused_all_is_of_the_live_peak(tmp_path):
    found = told(leak(tmp_path, 9))
    assert found["moment"]["kind"] == "peak"
    assert found["moment"]["bytes"] == found["live_peak_bytes"] == 1560 * MIB
    assert sum(row["bytes"] for row in found["who"]["stack"]) == 1560 * MIB


# ---- The verdict --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("left", "total", "verdict", "start"),
    [
        (100 * MIB, 0, "fragmented", "Out of memory, and fragmented: 6.00 GiB free in 8 holes of "
         "at most 768.0 MiB, 100.0 MiB on the device; 1.00 GiB asked."),
        (2 * GIB, 0, "fragmented", "Out of memory, and fragmented: 6.00 GiB free in 8 holes"),
    ],
)  # fmt: skip
def test_memory_that_is_free_and_serves_nothing_is_fragmented(
    tmp_path, left, total, verdict, start
):
    found = told(holes(tmp_path, left))
    assert found["verdict"] == verdict
    assert found["headline"].startswith(start)


def test_what_is_needed_and_not_there_is_full(tmp_path):
    found = told(out_of_memory(tmp_path))
    assert found["verdict"] == "full"
    assert found["headline"] == (
        "Out of memory, and full: 110.0 MiB needed, 108.0 MiB there. No allocator helps: 2.0 MiB "
        "have to go; `also project/model.py:4` holds 30.0 MiB."
    )


@pytest.mark.parametrize(
    ("others", "verdict"), [(4 * GIB, "crowded"), (GIB // 2, "full"), (GIB + MIB, "full")]
)
def test_what_others_hold_is_to_blame_as_far_as_it_is_more_than_a_process_needs_itself(
    tmp_path, others, verdict
):
    """8 MiB were left, 2 are missing: or 32, with a context and libraries of 1 GiB."""
    total = 100 * MIB + 8 * MIB + others
    devices = [{"total": total, "free": 8 * MIB}]
    path = out_of_memory(tmp_path, asked=80 * MIB, device_memory=devices)
    found = told(path)
    assert found["verdict"] == verdict
    assert found["refused"]["others_bytes"] == others
    if verdict == "crowded":
        assert found["headline"] == (
            "Out of memory, and crowded: others hold 4.00 GiB of the device; 140.0 MiB needed, "
            "108.0 MiB left."
        )


def test_a_run_that_was_refused_nothing_is_fine_and_says_what_was_held(tmp_path):
    found = told(graph(tmp_path))
    assert found["verdict"] == "fine"
    assert found["headline"].startswith("Fine: 8.00 GiB held for 4.50 GiB live at the peak; ")


def test_a_limit_of_the_process_is_told_as_such(tmp_path):
    found = told(out_of_memory(tmp_path, left=900 * MIB))
    assert found["verdict"] == "full"
    assert "a limit of the process refused 50.0 MiB with 900.0 MiB free" in found["headline"]


def test_of_a_gpu_that_is_asked_for_the_replays_give_the_verdict(tmp_path):
    path = training(tmp_path, [2, 4, 6])
    assert told(path, "--capacity", "1500M", "--quick")["verdict"] == "full"
    assert told(path, "--capacity", "80G", "--quick")["verdict"] == "fine"
    assert set(_verdict.WORDS) == {"full", "fragmented", "crowded", "fine"}


def test_a_gpu_that_is_asked_for_is_what_is_said_and_more_is_searched(tmp_path):
    path = training(tmp_path, [2, 4, 6])
    found = told(path, "--capacity", "1500M")
    assert (found["device_bytes"], found["device_is_recorded"]) == (1500 * MIB, False)
    for name, run in told(path)["allocators"].items():
        capped = found["allocators"][name]
        assert not capped["completed"]
        assert capped["min_capacity_bytes"] == run["min_capacity_bytes"] > 1500 * MIB


# ---- Pools --------------------------------------------------------------------------------------


def test_what_a_pool_holds_free_is_needed_and_the_pool_is_named(tmp_path):
    found = told(graph(tmp_path, refusal(512 * MIB, 200 * MIB, STEP)))
    assert found["verdict"] == "full"
    assert found["refused"]["needed_bytes"] == 17 * 512 * MIB
    (pool,) = found["pools"]
    assert (pool["id"], pool["kind"]) == ([1, 0], "graph")
    assert (pool["held_bytes"], pool["free_bytes"]) == (8 * 512 * MIB, 7 * 512 * MIB)
    assert "8.50 GiB needed, of it 3.50 GiB free in pools of their own" in found["headline"]
    assert found["headline"].endswith("312.0 MiB are missing, which pools keep free.")
    assert found["openings"]["recorded"]["largest_hole"] == 0


def line(found: dict[str, Any], label: str) -> str:
    return "; ".join(text for name, text in found["lines"] if name == label)


def test_free_memory_that_lies_in_pools_is_told_apart_in_each_line(tmp_path):
    found = told(graph(tmp_path, refusal(512 * MIB, 200 * MIB, STEP)), "--quick")
    assert line(found, "free") == (
        "3.50 GiB in 7 holes (largest 512.0 MiB), of it 3.50 GiB in pools + 200.0 MiB on the device"
    )
    found = told(graph(tmp_path), "--quick")
    assert line(found, "recorded").endswith(
        "3.50 GiB free in 7 holes (largest 512.0 MiB), of it 3.50 GiB in pools"
    )


def test_blocks_whose_pool_is_not_known_are_told(tmp_path):
    """Their segment went back to the driver before the snapshot was written."""
    assert "is not known" not in line(told(graph(tmp_path), "--quick"), "pools")
    gone = [entry(action, BASE, 9 * MIB) for action in ("segment_alloc", "alloc", *FREED)]
    own = segment(2 * BASE, block(2 * BASE, 8 * MIB), segment_pool_id=(1, 0))
    held = [entry("segment_alloc", 2 * BASE, 8 * MIB), entry("alloc", 2 * BASE, 8 * MIB)]
    gone.append(entry("segment_free", BASE, 9 * MIB))
    found = told(dump(tmp_path / "gone.pickle", [*gone, *held], segments=[own]), "--quick")
    assert found["blocks_of_unknown_pool"] == 1
    assert line(found, "pools").endswith(
        "of 1 block the pool is not known: the segment went back before the end; a replay knows "
        "none for it"
    )


def test_what_is_held_without_a_cap_is_told_from_what_is_needed(tmp_path):
    found = told(graph(tmp_path))
    assert line(found, "without a cap").startswith("held: Ductile and native 8.00 GiB")
    assert "less does" not in line(found, "without a cap")
    more = told(holes(tmp_path))
    assert line(more, "without a cap").endswith("native 9.00 GiB; where memory is short, less does")
    capped = told(graph(tmp_path), "--capacity", "9G", "--quick")
    assert line(capped, "on 9.00 GiB").startswith("held: Ductile and native 8.00 GiB")
    assert line(capped, "without a cap") == ""


def test_a_pool_of_a_user_is_told_from_one_of_a_graph(tmp_path):
    (pool,) = told(graph(tmp_path, pool=(0, 3)), "--quick")["pools"]
    assert (pool["kind"], pool["name"]) == ("user", "a user's pool 3")


def test_no_model_says_that_less_suffices_than_pools_and_work_need_together(tmp_path):
    """The pool keeps 4 GiB, and the work needs 4 more."""
    summary = _summary.summary(study(graph(tmp_path)))
    assert all(need >= 8 * GIB for need in _words._needs(summary).values())


# ---- GPUs ---------------------------------------------------------------------------------------


def test_of_two_gpus_the_fullest_is_shown_and_the_other_named(tmp_path):
    """The other one is busier."""
    full = [entry("segment_alloc", BASE, 60 * GIB), entry("alloc", BASE, 60 * GIB)]
    busy = [entry("segment_alloc", BASE, 2 * MIB)]
    busy += [entry(action, BASE, 512) for _ in range(32) for action in ("alloc", *FREED)]
    held = [segment(BASE, block(BASE, 60 * GIB))]
    held += [segment(BASE, block(BASE, 2 * MIB, "inactive"), device=1)]
    path = dump(tmp_path / "two.pickle", full, busy, segments=held)
    found = told(path, "--quick")
    assert (found["gpu"], found["live_peak_bytes"]) == (0, 60 * GIB)
    assert [(of["gpu"], of["events"], of["held_peak_bytes"]) for of in found["gpus"]] == [
        (0, 1, 60 * GIB), (1, 96, 2 * MIB),
    ]  # fmt: skip
    line = dict(map(tuple, found["lines"]))["GPU"]
    assert line == "0 of 2 is shown (--gpu N); GPU 1 held 2.0 MiB at most (96 events)"
    assert told(path, "--gpu", 1, "--quick")["gpu"] == 1


def test_a_gpu_that_is_not_there_is_refused_with_those_that_are(tmp_path):
    path = dump(tmp_path / "two.pickle", [entry("alloc", 1, MIB)], [], [entry("alloc", 1, 3 * MIB)])
    for gpu, start in ((1, "GPU 1 of 3 has no event and holds nothing"), (7, "no GPU 7 in the")):
        answer = report("--quick", "--gpu", gpu, path, folder=tmp_path)
        assert answer.returncode == 1
        assert start in answer.stderr
        assert "GPU 0 (1.0 MiB held, 1 event), GPU 2 (3.0 MiB held, 1 event)" in answer.stderr


def test_a_snapshot_in_which_nothing_was_held_says_so(tmp_path):
    path = dump(tmp_path / "nothing.pickle", [], [], [], [])
    answer = report(path, folder=tmp_path)
    assert answer.returncode == 1
    assert "PyTorch held nothing on any of 4 GPUs when the snapshot was written" in answer.stderr


# ---- Exact figures ------------------------------------------------------------------------------


def test_what_was_live_before_the_recording_is_counted_and_not_drawn(tmp_path):
    """The first event is so large that it is the fullest moment of its part."""
    held = [segment(BASE, *(block(BASE + i * MIB, MIB) for i in range(4)))]
    at = BASE + GIB
    history = [entry("segment_alloc", at, 10 * GIB), entry("alloc", at, 10 * GIB)]
    small = BASE + 20 * GIB
    history += [entry(action, small, 512) for _ in range(4000) for action in ("alloc", *FREED)]
    held += [segment(at, block(at, 10 * GIB)), segment(small, block(small, 2 * MIB, "inactive"))]
    found = told(dump(tmp_path / "before.pickle", history, segments=held), "--quick")
    assert found["recorded"]["before_bytes"] == 4 * MIB
    assert found["recorded"]["apart"] is None


@pytest.mark.parametrize("n_steps", [3, 5, 9])
def test_what_grows_in_each_step_is_told(tmp_path, n_steps):
    found = told(leak(tmp_path, n_steps), "--quick")
    assert found["steps"] == n_steps
    grown = {"name": "leaks code/train.py:11", "growth": 40 * MIB, "end": n_steps * 40 * MIB}
    assert found["grown"] == [grown]
    line = dict(map(tuple, found["lines"]))["grows"]
    assert line.startswith("40.0 MiB a step `leaks code/train.py:11`, ")
    assert "But `leaks code/train.py:11` grows 40.0 MiB a step." in found["headline"]


def test_of_two_steps_nothing_is_said_but_that_they_are_too_few(tmp_path):
    found = told(leak(tmp_path, 2), "--quick")
    assert (found["grown"], found["tells_growth"]) == ([], False)
    assert dict(map(tuple, found["lines"]))["grows"] == "2 steps are too few to tell"


def test_what_is_there_from_the_first_step_on_does_not_grow(tmp_path):
    lines = ["a 1 1000000 0", "a 2 500000 0", "s", "a 3 700000 0", "f 3", "s", "a 4 700000 0", "s"]
    recording = study(write_trace(tmp_path / "run.trace", lines), quick=True)
    assert recording.n_steps == 3
    assert _summary.grown(recording) == []


def test_a_file_that_is_gzipped_says_the_same(tmp_path):
    path = holes(tmp_path)
    packed = tmp_path / "packed.pickle.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    drop = ("file", "name")
    plain, other = told(path, "--quick"), told(packed, "--quick")
    assert [plain.pop(of) != other.pop(of) for of in drop] == [True, True]
    assert plain == other
