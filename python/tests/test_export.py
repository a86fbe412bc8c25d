# SPDX-License-Identifier: Apache-2.0
"""The Chrome trace of a recorded run: complete, on the profiler's clock, small; and bad files."""

from __future__ import annotations

import copy
import gzip
import json
import os
import pickle
import sys

import pytest
from recordings import SNAPSHOTS, WHOLE, names
from running import ductile_gpu as command
from running import replayed, run
from snapshots import History, first_time_us, read_snapshot


def export(*words):
    return command("export", *words)


def load(path):
    data = path.read_bytes()
    return json.loads(gzip.decompress(data) if path.name.endswith(".gz") else data)


def exported(path, folder, *words):
    answer = export(path, "-o", folder / "out.json", *words)
    assert answer.returncode == 0, answer.stderr
    return load(folder / "out.json")


def of_kind(trace, phase):
    return [event for event in trace["traceEvents"] if event["ph"] == phase]


@pytest.fixture(scope="module")
def snapshot():
    return read_snapshot(WHOLE)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return exported(WHOLE, tmp_path_factory.mktemp("export"))


# ---- What it holds -----------------------------------------------------------------------------

GPU_0 = 1_900_000_000  # far from process ids, and from the numbers that the profiler gives devices


def test_the_peak_is_the_one_that_a_replay_finds(whole):
    """A replay counts blocks until their last use on another stream has ended."""
    values = [event["args"] for event in of_kind(whole, "C")]
    peak = max(value["live"] + value["pending"] for value in values)
    assert peak == replayed("--contender", "ductile", WHOLE)["ductile"]["live_peak_bytes"]


def test_the_last_counter_is_what_the_snapshot_found(whole, snapshot):
    last = of_kind(whole, "C")[-1]["args"]
    assert sum(last.values()) == sum(found["total_size"] for found in snapshot["segments"])
    assert all(value >= 0 for event in of_kind(whole, "C") for value in event["args"].values())


def moments_of(found, gpu):
    """When, and what is live, pending and free."""
    begin = first_time_us(found)
    for entry, (held, live, pending) in zip(
        found["device_traces"][gpu], History(found, gpu).levels()
    ):
        yield entry["time_us"] - begin, live, pending, held - live - pending


@pytest.mark.parametrize("most", [100, 1_000, 1_000_000])
@pytest.mark.parametrize("path", SNAPSHOTS, ids=names(SNAPSHOTS))
def test_counters_are_moments_of_the_recording_and_few_of_them_keep_the_extremes(
    path, most, tmp_path
):
    found = read_snapshot(path)
    if any("time_us" not in trace[0] for trace in found["device_traces"] if trace):
        pytest.skip("an early PyTorch wrote it")
    trace = exported(path, tmp_path, "--max-events", most)
    for gpu in (gpu for gpu, entries in enumerate(found["device_traces"]) if entries):
        every = list(moments_of(found, gpu))
        told = [event for event in of_kind(trace, "C") if event["pid"] == GPU_0 + gpu]
        seen = [(event["ts"], *event["args"].values()) for event in told]
        rest = iter(every)
        assert all(moment in rest for moment in seen), "in their order"
        assert len(seen) == len(every) or len(seen) <= most * 3 // 4 < len(every)
        assert (seen[0], seen[-1]) == (every[0], every[-1])
        for level in (lambda moment: moment[1], lambda moment: sum(moment[1:])):
            assert max(map(level, seen)) == max(map(level, every))
        assert min(moment[1] for moment in seen) == min(moment[1] for moment in every)


def entry(action, size, time_us, frames=1, **more):
    frame = {"name": "forward", "filename": "net.py", "line": 7}
    made = {"action": action, "addr": 0, "size": size, "stream": 0, "time_us": time_us}
    return {**made, "frames": [frame] * frames, **more}


def mark(stage, name, time_us, gpu):
    return {"stage": stage, "name": name, "time_us": time_us, "device": gpu}


def written(folder, traces, marks=()):
    snapshot = {"segments": [], "device_traces": traces, "external_annotations": list(marks)}
    path = folder / "made.pickle"
    path.write_bytes(pickle.dumps(snapshot))
    return path


STACK = ["forward (net.py:7)"]
ROWS = [  # phase, GPU, thread, when, name, and what else
    ("C", 0, 0, 0, "memory held, bytes", {"args": {"live": 0, "pending": 0, "free": 20}}),
    ("C", 0, 0, 1, "memory held, bytes", {"args": {"live": 3, "pending": 0, "free": 17}}),
    ("C", 0, 0, 2, "memory held, bytes", {"args": {"live": 3, "pending": 0, "free": 17}}),
    ("i", 0, 1, 0, "segment_alloc", {"s": "t", "args": {"bytes": 20, "stack": STACK}}),
    ("i", 0, 0, 2, "out of memory", {
        "s": "g", "args": {"requested_bytes": 99, "device_free_bytes": 5, "stack": STACK}}),
    ("X", 0, 2, 0, "z\u00e9ro", {"dur": 2}),
    ("C", 2, 0, 3, "memory held, bytes", {"args": {"live": 0, "pending": 0, "free": 2}}),
    ("i", 2, 1, 3, "segment_map", {"s": "t", "args": {"bytes": 2, "stack": STACK * 20}}),
    ("X", 2, 2, 3, "Optimizer.step#A", {"dur": 1}),
    ("X", 2, 2, 6, "Optimizer.step#A", {"dur": 1}),
    ("X", 2, 3, 4, "step 1", {"dur": 3}),
]  # fmt: skip


def test_each_kind_of_event_of_each_gpu_is_as_perfetto_reads_it(tmp_path):
    """Of marks those with both ends; a step lies between the ends of two of the optimizer's."""
    first = [
        entry("segment_alloc", 20, 1000), entry("alloc", 3, 1001),
        entry("oom", 99, 1002, device_free=5),
    ]  # fmt: skip
    marks = [mark("START", "z\u00e9ro", 1000, 0), mark("END", "lost", 1001, 0)]
    marks.append(mark("END", "z\u00e9ro", 1002, 0))
    for time_us in (1003, 1006):
        marks.append(mark("START", "Optimizer.step#A", time_us, 2))
        marks.append(mark("END", "Optimizer.step#A", time_us + 1, 2))
    third = [entry("segment_map", 2, 1003, frames=25)]
    trace = exported(written(tmp_path, [first, [], third], marks), tmp_path)
    events = [event for event in trace["traceEvents"] if event["ph"] != "M"]
    assert events == [
        {"ph": phase, "cat": "memory", "name": name, "pid": GPU_0 + gpu, "tid": thread, "ts": ts,
         **more}
        for phase, gpu, thread, ts, name, more in ROWS
    ]  # fmt: skip
    named = [(event["name"], *event["args"].values()) for event in of_kind(trace, "M")]
    threads = ("memory from the driver", "annotations", "steps")
    assert named == [
        row
        for gpu in (0, 2)
        for row in (
            ("process_name", f"GPU {gpu}: PyTorch's memory"),
            ("process_sort_index", GPU_0 + gpu),
            *(("thread_name", name) for name in threads),
        )
    ]


def test_of_too_many_events_the_largest_growth_and_the_latest_marks_are_kept(tmp_path):
    sizes = [(at * 37 % 101 + 1) << 20 for at in range(101)]
    entries = [entry("segment_map", size, 1000 + at) for at, size in enumerate(sizes)]
    marks = [
        mark(stage, f"at {at}", 1000 + at, 0) for at in range(50) for stage in ("START", "END")
    ]
    trace = exported(written(tmp_path, [entries], marks), tmp_path, "--max-events", 100)
    least = sorted(sizes)[-12]
    kept = [event["args"]["bytes"] for event in of_kind(trace, "i")]
    assert kept == [size for size in sizes if size >= least]
    assert [event["name"] for event in of_kind(trace, "X")] == [f"at {at}" for at in range(44, 50)]


def spoil(snapshot, folder, change):
    """A snapshot that differs from a good one; its path."""
    spoiled = copy.deepcopy(snapshot)
    change(spoiled)
    path = folder / "spoiled.pickle"
    path.write_bytes(pickle.dumps(spoiled))
    return path


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
    answer = run("bash", "-c", command, sys.executable, folder=tmp_path)
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
