# SPDX-License-Identifier: Apache-2.0
"""The Chrome trace of a recorded run: complete, on the profiler's clock, small; and bad files."""

from __future__ import annotations

import copy
import gzip
import json
import os
import pickle
import random
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT
from snapshots import History, Levels, choose, chrome_events, first_time_us, read_snapshot

import ductile_gpu

DATA = ROOT / "tests" / "bench" / "data"
WHOLE, RING = DATA / "torch_whole.pickle.gz", DATA / "torch_ring.pickle.gz"


def export(*words):
    return subprocess.run(
        [sys.executable, "-m", "ductile_gpu", "export", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=120,
    )


def load(path):
    data = path.read_bytes()
    return json.loads(gzip.decompress(data) if path.name.endswith(".gz") else data)


def of_kind(trace, phase):
    return [event for event in trace["traceEvents"] if event["ph"] == phase]


def replayed(path):
    command = [ductile_gpu.bench_path(), "replay", "--device", "virtual", "--json"]
    answer = subprocess.run(
        [*command, "--contender", "ductile", path], capture_output=True, text=True, check=True
    )
    return json.loads(answer.stdout)


@pytest.fixture(scope="module")
def snapshot():
    return read_snapshot(WHOLE)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("export") / "whole.json"
    answer = export(WHOLE, "-o", path)
    assert answer.returncode == 0, answer.stderr
    return load(path)


# ---- What it holds -----------------------------------------------------------------------------


def test_a_whole_recording_begins_with_nothing(snapshot):
    assert History(snapshot, 0).start == Levels(0, 0, 0)


def test_the_peak_is_the_one_that_a_replay_finds(whole):
    """A replay counts blocks until their last use on another stream has ended."""
    values = [event["args"] for event in of_kind(whole, "C")]
    peak = max(value["live"] + value["pending"] for value in values)
    assert peak == replayed(WHOLE)["live_peak_bytes"]


def test_blocks_from_before_the_recording_count(tmp_path):
    found = read_snapshot(RING)
    start = History(found, 0).start
    assert start.live > 0
    assert start.held >= start.live + start.pending


def test_the_last_counter_is_what_the_snapshot_found(whole, snapshot):
    last = of_kind(whole, "C")[-1]["args"]
    assert sum(last.values()) == sum(found["total_size"] for found in snapshot["segments"])
    assert all(value >= 0 for event in of_kind(whole, "C") for value in event["args"].values())


def test_memory_from_the_driver_and_annotations_are_there(whole, snapshot):
    growth = [entry for entry in snapshot["device_traces"][0] if "segment" in entry["action"]]
    assert len(of_kind(whole, "i")) == len(growth) > 0
    names = {event["name"] for event in of_kind(whole, "X")}
    assert "Optimizer.step#AdamW.step" in names
    assert "step 1" in names


def test_steps_lie_between_the_ends_of_optimizer_steps(whole):
    steps = [event for event in of_kind(whole, "X") if event["name"].startswith("step ")]
    for before, after in zip(steps, steps[1:]):
        assert before["ts"] + before["dur"] == pytest.approx(after["ts"])


def spoil(snapshot, folder, change):
    """A snapshot that differs from a good one; its path."""
    spoiled = copy.deepcopy(snapshot)
    change(spoiled)
    path = folder / "spoiled.pickle"
    path.write_bytes(pickle.dumps(spoiled))
    return path


def test_a_refusal_has_its_size_and_stack(snapshot, tmp_path):
    frames = [{"name": "forward", "filename": "net.py", "line": 7}]
    refusal = {"action": "oom", "size": 1 << 40, "addr": 0, "device_free": 5, "time_us": 1 << 50}
    path = spoil(
        snapshot, tmp_path, lambda s: s["device_traces"][0].append({**refusal, "frames": frames})
    )
    assert export(path, "-o", tmp_path / "out.json").returncode == 0
    events = load(tmp_path / "out.json")["traceEvents"]
    (found,) = (event for event in events if event["name"] == "out of memory")
    assert found["args"] == {
        "requested_bytes": 1 << 40,
        "device_free_bytes": 5,
        "stack": ["forward (net.py:7)"],
    }


# ---- Against the shortest way ------------------------------------------------------------------

MORE = os.environ.get("DUCTILE_RECORDINGS")  # a folder of others to try
SNAPSHOTS = [WHOLE, RING, *(sorted(Path(MORE).glob("*.pickle*")) if MORE else [])]


@pytest.mark.parametrize("most", [100, 1_000, 1_000_000])
@pytest.mark.parametrize("path", SNAPSHOTS, ids=lambda path: path.name.partition(".")[0])
def test_each_event_is_the_one_that_the_shortest_way_makes(path, most, tmp_path):
    found = read_snapshot(path)
    if any("time_us" not in trace[0] for trace in found["device_traces"] if trace):
        pytest.skip("an early PyTorch wrote it")
    answer = export(path, "-o", tmp_path / "out.json", "--max-events", most)
    assert answer.returncode == 0, answer.stderr
    events = load(tmp_path / "out.json")["traceEvents"]
    assert events == list(chrome_events(found, first_time_us(found) * 1000, most))


def test_many_devices_and_marks_are_those_of_the_shortest_way(tmp_path):
    dice = random.Random(1)
    traces, marks, now = [], [], 1 << 50
    for device in range(3):
        traces.append([])
        for at in range(400):
            now += dice.randrange(3)
            action = dice.choice(("alloc", "segment_map", "segment_unmap", "snapshot", "oom"))
            size = dice.randrange(1, 9) << 20
            made = {"action": action, "addr": at, "size": size, "stream": 0, "time_us": now}
            traces[-1].append({**made, "device_free": 5} if action == "oom" else made)
            name = dice.choice(("Optimizer.step#A", "zero_grad", "caf\u00e9"))
            stage = dice.choice(("START", "END"))
            marks.append({"stage": stage, "name": name, "device": device, "time_us": now})
    found = {"segments": [], "device_traces": traces, "external_annotations": marks}
    path = tmp_path / "made.pickle"
    path.write_bytes(pickle.dumps(found))
    for most in (100, 300, 5_000):
        assert export(path, "-o", tmp_path / "out.json", "--max-events", most).returncode == 0
        events = load(tmp_path / "out.json")["traceEvents"]
        assert events == list(chrome_events(found, first_time_us(found) * 1000, most))


# ---- The clock ---------------------------------------------------------------------------------


def test_without_a_profile_time_counts_from_the_first_entry(whole, snapshot):
    assert whole["baseTimeNanoseconds"] == first_time_us(snapshot) * 1000
    assert of_kind(whole, "C")[0]["ts"] == 0


def write_profile(path, base_ns, at_us):
    kernel = {"ph": "X", "name": "kernel", "pid": 0, "tid": 7, "ts": at_us, "dur": 5}
    content = {"schemaVersion": 1, "baseTimeNanoseconds": base_ns, "traceEvents": [kernel]}
    path.write_text(json.dumps(content))


def test_with_a_profile_both_stand_on_its_clock(tmp_path, snapshot):
    profile, output = tmp_path / "profile.json", tmp_path / "both.json.gz"
    first = first_time_us(snapshot)
    write_profile(profile, (first - 500) * 1000, 500)
    answer = export(WHOLE, "--profile", profile, "-o", output)
    assert answer.returncode == 0, answer.stderr
    both = load(output)
    assert both["schemaVersion"] == 1
    assert both["baseTimeNanoseconds"] == (first - 500) * 1000
    assert both["traceEvents"][0]["name"] == "kernel"
    assert of_kind(both, "C")[0]["ts"] == 500
    assert "overlap" not in answer.stderr


def test_a_profile_of_another_run_is_said(tmp_path):
    profile = tmp_path / "profile.json"
    write_profile(profile, 0, 500)
    answer = export(WHOLE, "--profile", profile, "-o", tmp_path / "both.json")
    assert answer.returncode == 0
    assert "do not overlap in time" in answer.stderr


# ---- Size --------------------------------------------------------------------------------------


def counters(path, folder, most):
    assert export(path, "-o", folder / "out.json", "--max-events", most).returncode == 0
    return [event["args"] for event in of_kind(load(folder / "out.json"), "C")]


def test_fewer_events_keep_the_peaks(tmp_path):
    every, few = (counters(WHOLE, tmp_path, most) for most in (1_000_000, 400))
    assert len(few) <= 300 < len(every)
    for values in (lambda a: a["live"], lambda a: sum(a.values())):
        assert max(map(values, few)) == max(map(values, every))


def test_moments_are_chosen_in_order_and_within_bounds():
    levels = [Levels(at % 97, at % 89, 0) for at in range(10_000)]
    chosen = choose(levels, 500)
    assert chosen == sorted(set(chosen))
    assert len(chosen) <= 500
    assert chosen[0] == 0
    assert chosen[-1] == 9_999
    assert choose(levels, 10_000) == list(range(10_000))


# ---- Bad files ---------------------------------------------------------------------------------


class Harmful:
    def __reduce__(self):
        return os.system, ("touch harmed",)


def pickled(thing):
    return pickle.dumps(thing)


BAD = {
    "harmful": (pickled({"segments": Harmful(), "device_traces": []}), "refused, nothing was run"),
    "empty": (b"", "empty"),
    "cut": (gzip.decompress(WHOLE.read_bytes())[:50_000], "pickle ends in the middle"),
    "cut_gzip": (WHOLE.read_bytes()[:2_000], "cut off"),
    "text": (b"a 1 512 0\n", "no pickle of a PyTorch snapshot"),
    "other": (pickled([1, 2]), "no snapshot of PyTorch's memory"),
    "silent": (pickled({"segments": [], "device_traces": [[]]}), "no history"),
    "early": (
        pickled({"segments": [], "device_traces": [[{"action": "alloc", "size": 1}]]}),
        "no times",
    ),
    "odd": (
        pickled({"segments": [], "device_traces": [[{"action": "alloc", "time_us": 1}]]}),
        "not as PyTorch writes it",
    ),
    "odder": (
        pickled({"segments": [7], "device_traces": [[{"action": "oom", "time_us": 1}]]}),
        "not as PyTorch writes it",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_file_that_is_no_recording_is_one_line(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    content, expected = BAD[name]
    (tmp_path / "bad.pickle").write_bytes(content)
    answer = export("bad.pickle", "-o", "out.json")
    assert answer.returncode == 1
    assert len(answer.stderr.splitlines()) == 1, answer.stderr
    assert expected in answer.stderr
    assert sorted(os.listdir(tmp_path)) == ["bad.pickle"], "nothing is left, nothing was run"


def test_what_cannot_be_meant_is_refused(tmp_path):
    assert export(WHOLE, "-o", tmp_path / "out.png").returncode == 2
    assert export(WHOLE, "-o", tmp_path / "o.json", "--max-events", 5).returncode == 2
    assert export(tmp_path / "absent.pickle").returncode == 1
    answer = export(WHOLE, "-o", tmp_path / "nowhere" / "out.json")
    assert answer.returncode == 1
    assert "No such file" in answer.stderr


DAMAGED = bytearray(gzip.compress(b'{"traceEvents": []}' * 99))
DAMAGED[12] ^= 0xFF


@pytest.mark.parametrize(
    "content",
    [
        b"", b"[1", b'{"a": 1}', b"7", b"[1, 2]", b"[" * 100_000, DAMAGED,
        b'{"traceEvents": [], "baseTimeNanoseconds": null}',
        b'{"traceEvents": [], "baseTimeNanoseconds": -5}',
        b'{"traceEvents": [], "baseTimeNanoseconds": 1e999}',
    ],
    ids=["empty", "cut", "other", "7", "numbers", "deep", "damaged", "null", "early", "never"],
)  # fmt: skip
def test_a_profile_that_is_none_is_one_line(tmp_path, content):
    profile = tmp_path / "profile.json"
    profile.write_bytes(content)
    answer = export(WHOLE, "--profile", profile, "-o", tmp_path / "out.json")
    assert answer.returncode == 1
    assert len(answer.stderr.splitlines()) == 1, answer.stderr
    assert answer.stderr.startswith(f"ductile-gpu: {profile}: ")


def test_a_profile_that_unpacks_without_end_is_one_line(tmp_path, monkeypatch, capsys):
    from ductile_gpu.__main__ import main
    from ductile_gpu._tools._formats import chrome

    profile = tmp_path / "profile.json.gz"
    profile.write_bytes(gzip.compress(b"[" + b" " * 1_000_000 + b"]"))
    monkeypatch.setattr(chrome, "MOST_PROFILE_BYTES", 999_999)
    words = [str(word) for word in (WHOLE, "--profile", profile, "-o", tmp_path / "out.json")]
    assert main(["export", *words]) == 1
    assert "more than 999,999 bytes are not read" in capsys.readouterr().err


def test_a_profile_may_come_through_a_pipe(tmp_path):
    command = f'"$0" -m ductile_gpu export {WHOLE} -o out.json --profile <(echo "[]" | gzip)'
    answer = subprocess.run(
        ["bash", "-c", command, sys.executable], cwd=tmp_path, capture_output=True, text=True
    )
    assert answer.returncode == 0, answer.stderr


@pytest.mark.parametrize("way", ["itself", "a link", "a hard link"])
def test_neither_the_profile_nor_the_recording_is_replaced(tmp_path, way):
    profile, output = tmp_path / "profile.json", tmp_path / "out.json"
    profile.write_text("[]")
    if way == "itself":
        output = profile
    elif way == "a link":
        output.symlink_to(profile)
    else:
        output.hardlink_to(profile)
    answer = export(WHOLE, "--profile", profile, "-o", output)
    assert answer.returncode == 2
    assert f"it would replace {profile}" in answer.stderr
    assert profile.read_text() == "[]"
    answer = export(profile, "-o", output)
    assert answer.returncode == 2
    assert profile.read_text() == "[]"


def test_events_of_a_profile_that_have_no_time_are_kept(tmp_path):
    profile, output = tmp_path / "profile.json", tmp_path / "out.json"
    events = [{"ph": "X"}, {"ph": "X", "ts": "soon"}, {"ph": "i", "ts": None}, {}]
    profile.write_text(json.dumps(events))
    answer = export(WHOLE, "--profile", profile, "-o", output)
    assert answer.returncode == 0, answer.stderr
    assert load(output)["traceEvents"][: len(events)] == events


def test_an_entry_that_lies_about_its_frames_has_none_of_them(snapshot, tmp_path):
    def lie(spoiled):
        for entry in spoiled["device_traces"][0]:
            entry["frames"] = [{"name": 1}, 7]

    path = spoil(snapshot, tmp_path, lie)
    assert export(path, "-o", tmp_path / "out.json").returncode == 0
    growth = of_kind(load(tmp_path / "out.json"), "i")
    assert all(event["args"]["stack"] == [" (:0)", " (:0)"] for event in growth)
