# SPDX-License-Identifier: Apache-2.0
"""ductile-gpu report: what it says equals what replay says, and every sum is the live peak."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from batches import training_run, transformer, vary
from largest_size import largest
from recordings import (
    BASE,
    MIB,
    RECORDINGS,
    SNAPSHOTS,
    TRACES,
    WHOLE,
    block,
    dump,
    entry,
    frame,
    names,
    recording_of,
    refusal,
    replay,
    report,
    said,
    segment,
    study,
    training,
    write_trace,
)  # fmt: skip
from stub_torch import Place

import ductile_gpu
from ductile_gpu._process import _share
from ductile_gpu._tools._report import (
    _forecast,
    _live,
    _openings,
    _page,
    _scaling,
    _spilled,
    _who,
    _words,
)
from ductile_gpu._tools._report._collect import NAMES, Choices, Recording, RecordingError, ask_bench

# ---- Figures -----------------------------------------------------------------------------------


@pytest.mark.parametrize("path", RECORDINGS, ids=names(RECORDINGS))
def test_every_grouping_sums_to_the_live_peak_to_the_byte(path):
    recording = recording_of(path)
    for by, rows in _who.views(recording).items():
        assert sum(row["bytes"] for row in rows) == recording.live_peak, by


@pytest.mark.parametrize("path", RECORDINGS, ids=names(RECORDINGS))
def test_peaks_and_smallest_devices_are_those_of_replay(path):
    recording = recording_of(path)
    for name, result in replay(path).items():
        run = recording.runs[name]
        assert recording.live_peak == result["live_peak_bytes"]
        assert run["reserved_peak_bytes"] == result["reserved_peak_bytes"]
        assert run["min_capacity_bytes"] == result["min_capacity_bytes"]


@pytest.mark.parametrize("path", RECORDINGS, ids=names(RECORDINGS))
def test_what_is_held_is_live_pending_free_and_cached(path):
    for run in recording_of(path).runs.values():
        fields = run["point_fields"]
        for values in run["points"]:
            point = dict(zip(fields, values))
            parts = sum(point[name] for name in ("live", "pending", "free", "cached"))
            assert parts == point["held"]
            assert min(values) >= 0


@pytest.mark.parametrize("path", TRACES, ids=names(TRACES))
def test_one_granule_less_than_the_smallest_device_fails(path):
    recording = recording_of(path)
    granule = recording.facts["granule_bytes"]
    for run in recording.runs.values():
        stops = {stop["capacity_bytes"]: stop["completed"] for stop in run["stops"]}
        needed = run["min_capacity_bytes"]
        if needed - granule >= recording.live_peak:
            assert stops[needed - granule] is False


def test_an_option_for_several_streams_is_tried_where_there_are_several(tmp_path):
    of_one = study(dump(tmp_path / "one.pickle.gz", [entry("alloc", 1, MIB)]))
    for recording, are_tried in ((of_one, False), (recording_of(TRACES[-1]), True)):
        assert (len(recording.facts["streams"]) > 1) == are_tried
        tried = {variant["setting"] for variant in recording.variants}
        assert ("reuse=wait" in tried) == are_tried


def test_another_option_of_ductile_gives_what_replay_gives_for_it():
    recording = recording_of(TRACES[0])
    variant = next(v for v in recording.variants if v["setting"] == "sizes=2M")
    ours = replay(TRACES[0], "--set", variant["setting"])["ductile"]
    assert variant["held_peak_bytes"] == ours["reserved_peak_bytes"]
    assert variant["min_capacity_bytes"] == ours["min_capacity_bytes"]


# ---- Stacks ------------------------------------------------------------------------------------


def made(folder: Path, history: list[Any], **more: Any) -> Recording:
    return study(dump(folder / "run.pickle.gz", history, **more), quick=True)


def test_memory_is_told_apart_by_the_stack_that_allocated_it(tmp_path):
    history = [
        entry("alloc", 4096, 30 * MIB, frame("at::empty", "??", 0), frame("forward", "model.py")),
        entry("alloc", 8192, 20 * MIB, frame("step", "/x/torch/optim/adam.py")),
        entry("alloc", 9000, 5 * MIB, frame("forward", "model.py")),
    ]
    old = block(BASE, 2 * MIB, "active_allocated", frame("_apply", "/x/torch/nn/modules/module.py"))
    recording = made(tmp_path, history, segments=[segment(BASE, old)])
    rows = {row["key"]: row["bytes"] for row in _who.group(recording, "stack")}
    assert rows == {
        "forward model.py:7": 35 * MIB,
        "step /x/torch/optim/adam.py:7": 20 * MIB,
        "_apply /x/torch/nn/modules/module.py:7": 2 * MIB,
    }
    categories = {row["key"]: row["bytes"] for row in _who.group(recording, "category")}
    assert categories == {
        "forward pass (activations)": 35 * MIB,
        "optimizer": 20 * MIB,
        "weights": 2 * MIB,
    }


def test_what_the_recorded_program_was_refused_comes_first(tmp_path):
    refused, later = refusal(64 * MIB, 3 * MIB), refusal(8 * MIB, 3 * MIB)
    history = [entry("alloc", 1, 2 * MIB), refused, entry("alloc", 2, MIB), later]
    text = said(made(tmp_path, history))
    assert text.startswith("run: Out of memory: 64.0 MiB refused with 2.0 MiB live.")
    assert "free           3.0 MiB on the device" in text
    assert "asked          at event 2; the largest of 2 refusals" in text
    assert "needed         66.0 MiB = 2.0 MiB live + 64.0 MiB asked" in text


def test_a_comparison_names_what_grew_and_sums_to_the_difference(tmp_path):
    before = [entry("alloc", 1, 10 * MIB, frame("a")), entry("alloc", 2, 5 * MIB, frame("b"))]
    after = [
        entry("alloc", 1, 30 * MIB, frame("a", line=9)),  # its line moved
        entry("alloc", 2, 1 * MIB, frame("c")),
    ]
    recordings = [made(tmp_path, history) for history in (before, after)]
    by, rows = _who.compare(*recordings)
    assert by == "stack"
    changes = {row["key"].split(" ")[0]: row["change"] for row in rows}
    assert changes == {"a": 20 * MIB, "b": -5 * MIB, "c": 1 * MIB}
    assert sum(changes.values()) == recordings[1].live_peak - recordings[0].live_peak


def test_what_grows_in_every_step_is_told(tmp_path):
    lines = []
    for step in range(12):
        lines += [f"a {100 + step} {3 * MIB} 0"]  # never freed
        lines += [f"a {1000 + step} {900 * MIB} 0", f"f {1000 + step}", "s"]
    recording = study(write_trace(tmp_path / "leak.trace", lines), quick=True)
    growth = {row["key"]: row["growth"] for row in _who.group(recording, "size")}
    assert growth == {"512 MiB to 1 GiB": 0, "2 MiB to 4 MiB": 3 * MIB}


# ---- What stands in the way ---------------------------------------------------------------------


def comb(folder: Path) -> Path:
    """Two blocks of 9 MiB in each segment of 20; every second goes, and 12 MiB find no hole."""
    history = [
        entry("alloc", 1 + i, 9 * MIB, frame("keep" if i % 2 else "pass", "model.py"))
        for i in range(6)
    ]
    for i in (0, 2, 4):
        history += [entry("free_requested", 1 + i, 9 * MIB), entry("free_completed", 1 + i, 1)]
    history.append(entry("alloc", 100, 12 * MIB, frame("late", "model.py")))
    return dump(folder / "comb.pickle.gz", history)


def test_the_blocks_in_the_way_of_a_request_are_named(tmp_path):
    recording = study(comb(tmp_path), capacity="60M")
    found = _openings.openings(recording, "classic")
    assert (found["request"], found["largest_hole"]) == (12 * MIB, 9 * MIB)
    least = found["least"]
    assert (least["blocks"], least["live_bytes"], least["moves"]) == (1, 9 * MIB, True)
    assert least["bytes"] >= 18 * MIB
    assert [row["key"] for row in least["who"]] == ["keep model.py:7"]
    text = said(recording)
    assert "With native on 60.0 MiB, 12.0 MiB are refused at event 10" in text
    assert "the largest hole that may serve it has 9.0 MiB. Without 1 block (9.0 MiB: " in text
    assert "`keep model.py:7`) it has 20.0 MiB" in text
    assert "other holes have room for them" in text


def test_without_a_refusal_the_peak_is_looked_at(tmp_path):
    recording = study(comb(tmp_path), quick=True)
    for name in recording.runs:
        found = _openings.openings(recording, name)
        assert found["request"] is None
        assert found["event"] == recording.facts["peak_event"]
        assert "At the live peak" in _words.openings(recording, name, found)


@pytest.mark.parametrize("path", RECORDINGS, ids=names(RECORDINGS))
def test_blocks_in_the_way_sum_to_what_they_hold_and_open_ever_larger_holes(path):
    recording = recording_of(path)
    for name in recording.runs:
        found = _openings.openings(recording, name)
        rows = found["widest"] + ([found["least"]] if found["least"] else [])
        for row in rows:
            assert sum(who["bytes"] for who in row["who"]) == row["live_bytes"] <= row["bytes"]
            assert sum(who["blocks"] for who in row["who"]) == row["blocks"] <= 64
        sizes = [found["largest_hole"], *(row["bytes"] for row in found["widest"])]
        assert sizes == sorted(set(sizes))
        if found["least"]:
            assert found["least"]["bytes"] >= found["request"]


# ---- The forecast ------------------------------------------------------------------------------


def test_the_forecast_of_a_run_that_grows_evenly_is_exact(tmp_path):
    recording = study(training(tmp_path, [2, 4, 6]))
    found = _forecast.forecast(recording, [2, 4, 6], "batch")
    for name in recording.runs:
        # 1000 MiB and 100 for each, in handles of 2 MiB and segments of 2 and 20
        for capacity, most in ((4096, 30), (8192, 71)):
            assert most - 1 <= largest(found["needs"][name], capacity * MIB) <= most, name


def test_the_forecast_of_a_transformer_is_what_larger_batches_need(tmp_path):
    """Small batches need most in the optimizer, large ones in the backward pass."""
    recording = study(transformer(tmp_path, (2, 4, 6)))
    found = _forecast.forecast(recording, [2, 4, 6], "batch")["needs"]
    for batch in (11, 18):
        words = ("--json", "--min-capacity", "--contender", "ductile,expandable,classic")
        results = map(json.loads, vary(batch, 4, *words).splitlines())
        needed = {result["contender"]: result["min_capacity_bytes"] for result in results}
        for name in ("ductile", "expandable"):
            assert abs(largest(found[name], needed[name]) - batch) <= 1, (name, batch)
        for name, needs in found.items():
            worst, best = (largest(needs, needed[name], c) for c in ("worst", "best"))
            assert worst <= batch <= best, (name, batch)


def trains(size: int, square: bool, gib: int, folder: Path) -> dict[str, bool]:
    """Whether a training of that size alone completes in so much memory, by allocator."""
    path = training_run(folder / "alone.trace", [size] * 4, square)
    words = ("--device", "virtual", "--json", "--capacity", f"{gib}G")
    words += ("--contender", ",".join(NAMES))
    return {line["contender"]: line["completed"] for line in ask_bench("replay", *words, str(path))}


@pytest.mark.parametrize(("square", "gib"), [(False, 6), (False, 20), (True, 12)])
def test_the_forecast_is_near_to_what_trains(tmp_path, gib, square):
    """Under native a cap binds on what is held; workspaces change with the size; attention grows
    with the square of a length. Native rounds to segments: it is known less well."""
    recorded = [4, 8, 12, 16] if square else [3, 4, 6, 9]
    path = training_run(tmp_path / "run.trace", recorded, square)
    found = _forecast.forecast(study(path), recorded, "batch")["needs"]
    for name, needs in found.items():
        size, apart = largest(needs, gib << 30), 2 if name == "classic" else 1
        near = range(size - apart, size + apart + 2)
        fitting = [n for n in near if trains(n, square, gib, tmp_path)[name]]
        assert fitting, (name, size)
        assert max(fitting) <= size + apart, (name, size, fitting)


def test_of_steps_of_different_work_nothing_is_forecast(tmp_path):
    """Another number of allocations in each step."""
    lines = [f"a 1 {1000 * MIB} 0", "s"]
    for step, batch in enumerate((2, 4, 6)):
        first, n = 1000 * (step + 1), 300 + step
        lines += [f"a {first} {batch * 100 * MIB} 0"]
        lines += [f"a {first + 1 + more} 512 0" for more in range(n)]
        lines += [f"f {first + 1 + more}" for more in range(n)] + [f"f {first}", "s"]
    recording = study(write_trace(tmp_path / "run.trace", lines))
    found = _forecast.try_forecast(recording, [2, 4, 6], "batch", Choices())
    assert found["needs"] is None
    assert found["note"] == "--batch: the steps do not do the same work: nothing follows"


def test_of_sizes_that_memory_does_not_grow_with_nothing_is_forecast(tmp_path):
    recording = study(training(tmp_path, [4, 4, 4]), quick=True)
    with pytest.raises(_forecast.NoForecast, match="memory does not grow with these sizes"):
        _forecast.forecast(recording, [2, 4, 6], "batch")


def test_a_run_too_long_to_be_replayed_so_often_is_forecast_only_when_asked(tmp_path, monkeypatch):
    recording = study(training_run(tmp_path / "run.trace", [3, 4, 6, 9]), quick=True)
    sizes = [3, 4, 6, 9]
    found = _forecast.forecast(recording, sizes, "batch")
    n_events = recording.facts["replay_events"]
    monkeypatch.setattr(_forecast, "MOST_EVENTS", n_events)
    assert _forecast.forecast(recording, sizes, "batch") == found
    monkeypatch.setattr(_forecast, "MOST_EVENTS", n_events - 1)
    refused = _forecast.try_forecast(recording, sizes, "batch", Choices())
    assert refused["needs"] is None
    assert f"run has {n_events:,} events, and more than {n_events - 1:,} " in refused["note"]
    assert refused["note"].endswith(": record fewer steps, or wait for it with --full")
    assert _forecast.forecast(recording, sizes, "batch", Choices(full=True)) == found
    monkeypatch.setattr(_scaling, "MOST_PAIRS", 10)
    with pytest.raises(_forecast.NoForecast, match="the first of these steps is too long to be"):
        _forecast.forecast(recording, sizes, "batch", Choices(full=True))


@pytest.mark.parametrize(
    "kept", [[f"a 900 {4096 * MIB} 0 1:0", "f 900"], [f"k {4096 * MIB} 0 1:0"]]
)
def test_the_forecast_counts_what_a_pool_keeps(tmp_path, kept):
    """A graph's pool keeps 4 GiB that no step can use, although nothing in it is live."""
    lines = training(tmp_path, [2, 4, 6]).read_text().splitlines()
    path = tmp_path / "pool.trace"
    path.write_text("\n".join(["# version 5", *kept, *lines]) + "\n")
    plain = _forecast.forecast(study(tmp_path / "training.trace"), [4, 6], "batch")["needs"]
    found = _forecast.forecast(study(path), [4, 6], "batch")["needs"]
    for name in NAMES:
        more = [a[1] - b[1] for a, b in zip(found[name]["expected"], plain[name]["expected"])]
        assert min(more) >= 4096 * MIB - 20 * MIB, name


def test_a_forecast_is_made_of_a_file_with_any_name(tmp_path):
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/run\xff.trace"))
    training(tmp_path, [2, 4, 6]).rename(path)
    recording = study(path, quick=True)
    assert "block by block" in _forecast.forecast(recording, [2, 4, 6], "batch")["note"]


def test_a_block_is_a_polynomial_of_the_size_or_stays_at_its_largest():
    cases = {
        "constant": ([7, 7, 7], 7),
        "line": ([1000, 2000, 3000], 10_000),
        "parabola": ([1 << 20, 4 << 20, 9 << 20], 100 << 20),
        "falling": ([9 << 20, 4 << 20, 1 << 20], 9 << 20),
        "a jump": ([1 << 20, 1 << 20, 9 << 20], 9 << 20),
    }
    for name, (sizes, at_ten) in cases.items():
        assert _scaling.value(_scaling.fit([1, 2, 3], sizes), 10) == at_ten, name


@pytest.mark.parametrize(
    ("batches", "line"),
    [("4", "at least two"), ("4,4", "two that differ"), ("1,2,3,4,5,6", "names 6 steps"),
     ("6,4,2", "order of the steps"), ("1,2,100000001", None)],
)  # fmt: skip
def test_where_sizes_tell_nothing_the_page_says_why(tmp_path, batches, line):
    path = training(tmp_path, [2, 4, 6])
    answer = report("--quick", "--json", "-o", "r.html", "--batch", batches, path, folder=tmp_path)
    assert answer.returncode == 0
    assert (tmp_path / "r.html").exists()
    forecast = json.loads(answer.stdout)["forecast"]
    if line is not None:
        assert forecast["needs"] is None
        assert line in forecast["note"]
        assert line in answer.stderr


@pytest.mark.parametrize(
    ("batches", "line"),
    [*((text, f"takes numbers such as 4,8,12 or 4x512,8x512, not '{text}'")
       for text in ("a,b", "0,1", "", "4,", "-4x-512,-8x-512")),
     ("1,9999999999", "sizes are 1 to 1,000,000,000")],
)  # fmt: skip
def test_what_are_no_sizes_is_misuse(tmp_path, batches, line):
    path = training(tmp_path, [2, 4, 6])
    answer = report("--quick", f"--batch={batches}", path, folder=tmp_path)
    assert answer.returncode == 2
    (said,) = answer.stderr.splitlines()
    assert line in said
    assert not (tmp_path / "report.html").exists()


def test_nothing_is_said_of_sizes_far_beyond_the_recorded_ones(tmp_path):
    recording = study(training(tmp_path, [2, 4, 6]))
    found = _forecast.forecast(recording, [2, 4, 6], "batch")
    assert largest(found["needs"]["ductile"], 1 << 40) == 16 * 6


def test_an_earlier_step_that_needs_more_is_told_and_widens_what_is_likely(tmp_path):
    usual = study(training(tmp_path, [4, 2, 4, 6]), quick=True)
    other = study(training(tmp_path, [40, 2, 4, 6]), quick=True)
    made = [_forecast.forecast(recording, [2, 4, 6], "batch") for recording in (usual, other)]
    least = [largest(found["needs"]["ductile"], 8 << 30, "worst") for found in made]
    assert least[1] < least[0] - 20
    assert "An earlier step" not in made[0]["note"]
    assert "An earlier step has 3.32 GiB more live than any of these" in made[1]["note"]


def test_a_run_that_ran_out_behind_its_steps_is_forecast(tmp_path):
    path = training(tmp_path, [2, 4, 6])
    path.write_text(f"# version 4\n{path.read_text()}r 99 {2000 * MIB} 0 {1100 * MIB} {MIB}\n")
    recording = study(path)
    assert recording.live_peak == 3000 * MIB + 1024
    found = _forecast.forecast(recording, [2, 4, 6], "batch")
    assert "block by block" in found["note"]
    for needs in found["needs"].values():
        assert 29 <= largest(needs, 4096 * MIB) <= 30
        assert largest(needs, 2900 * MIB) == 0, "what was refused has to be served too"


# ---- The command -------------------------------------------------------------------------------


def test_the_command_writes_one_file_that_fetches_nothing(tmp_path):
    answer = report("-o", "r.html", SNAPSHOTS[0], folder=tmp_path)
    assert answer.returncode == 0, answer.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["r.html"]
    text = (tmp_path / "r.html").read_text()
    assert not re.search(r"(src|href)\s*=\s*[\"'](?!#)", text)
    assert "default-src 'none'" in text
    assert "@" not in re.sub(r"@media|@keyframes", "", text.partition("<body>")[0])


def test_the_verdict_on_standard_output_is_the_pages(tmp_path):
    path = TRACES[-1]
    answer = report("-o", "r.html", "--quick", path, folder=tmp_path)
    recording = study(path, quick=True)
    assert answer.stdout == said(recording) + "\n"


def test_a_run_that_does_not_fit_is_explained(tmp_path):
    path = training(tmp_path, [2, 4, 6])
    recording = study(path, capacity="1500M")
    text = said(recording)
    assert text.partition(": ")[2].startswith("Out of memory on 1.46 GiB with ")
    assert re.search("native +in step 4 of 4: 600.0 MiB refused with ", text)
    stops = recording.runs["ductile"]["stops"]
    (stop,) = [stop for stop in stops if stop["capacity_bytes"] == 1500 * MIB]
    assert stop["live"] + stop["pending"] + stop["free"] + stop["cached"] == stop["held"]


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"a 1 512 0\nf 1\nf 1\n", "freed twice"),
        (gzip.compress(b"a 1 512 0\n" * 50)[:-9], "run.trace"),
        (b"\x80\x04cos\nsystem\n(S'true'\ntR.", "pickle"),
        (pickle.dumps({"device_traces": []}), "no allocation history"),
    ],
    ids=["gap", "cut-gzip", "hostile", "no-history"],
)
def test_a_bad_recording_is_one_line_and_leaves_no_file(tmp_path, content, line):
    (tmp_path / "run.trace").write_bytes(content)
    (tmp_path / "report.html").write_text("an older report")
    answer = report("run.trace", folder=tmp_path)
    assert answer.returncode == 1
    assert line in answer.stderr
    assert len(answer.stderr.splitlines()) == 1
    assert "Traceback" not in answer.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "run.trace"]
    assert (tmp_path / "report.html").read_text() == "an older report"


def test_a_page_may_go_into_a_pipe(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    _page.write_page(pipe, "a page")
    assert os.read(reader, 100) == b"a page"
    os.close(reader)
    assert pipe.is_fifo()
    assert list(tmp_path.iterdir()) == [pipe]


@pytest.mark.parametrize(
    ("words", "status", "line"),
    [
        (("missing.gz",), 1, "missing.gz"),
        (("--compare", "one"), 2, "two files"),
        (("-o", "nowhere/r.html", "x"), 1, "no such folder"),
        (("-o", "x", "x"), 2, "would replace the recording"),
        (("-o", "", "x"), 1, "the report cannot be written there"),
        (("-o", "-", "--json", "x"), 2, "--json"),
        (("-o", "-", "--open", "x"), 2, "--open"),
        (("--unit", "length", "x"), 2, "--batch"),
        (("--capacity", "much", "x"), 2, "ductile-gpu: --capacity is a number of bytes"),
        (("--set", "unknown=1", "x"), 2, "ductile-gpu: --set: unknown option 'unknown'"),
        ((".",), 1, "no recording in it"),
    ],
)
def test_misuse_is_one_line(tmp_path, words, status, line):
    (tmp_path / "x").write_text("a 1 512 0\n")
    answer = report(*words, folder=tmp_path)
    assert answer.returncode == status
    assert line in answer.stderr
    assert len(answer.stderr.splitlines()) == 1


def test_text_of_a_recording_cannot_become_a_part_of_the_page(tmp_path):
    name = "</script><script>alert(1)</script>"
    history = [entry("alloc", 1, MIB, frame(name, "<img src=x onerror=alert(2)>"))]
    recording = study(dump(tmp_path / "a&b<c>@JS@.pickle.gz", history), quick=True)
    text = _page.make_page([recording])
    assert "<script>alert(" not in text
    assert "<img src" not in text
    assert "a&b<c>" not in text
    assert "a&amp;b&lt;c&gt;@JS@" in text


def test_a_name_may_hold_what_some_call_the_end_of_a_line(tmp_path):
    ends = "\x1c\x1d\x1e\x85\u2028\u2029"
    path = dump(tmp_path / f"a{ends}.pickle.gz", [entry("alloc", 1, MIB, frame(ends, "x.py"))])
    recording = study(path, quick=True)
    assert recording.live_peak == MIB
    answer = subprocess.run(
        [sys.executable, "-m", "ductile_gpu", "replay", path], capture_output=True, encoding="utf-8"
    )
    assert answer.returncode == 0, answer.stderr
    assert "1.0 MiB live" in answer.stdout


def test_a_recording_error_is_raised_for_programs(tmp_path):
    with pytest.raises(RecordingError, match="No such file"):
        study(tmp_path / "absent")


# ---- A live process ----------------------------------------------------------------------------


def test_a_process_reports_the_blocks_that_are_live(shared, gpu, tmp_path):
    stream = gpu.stream()
    kept = [shared.alloc(size * MIB, stream) for size in (3, 5, 7)]
    shared.free(kept.pop(0))
    path = ductile_gpu.report(tmp_path / "live.html")
    text = path.read_text()
    assert "12.0 MiB live at the peak" in text
    assert "live on GPU 0" in text
    for address in kept:
        shared.free(address)


def test_a_process_reports_the_blocks_of_an_allocator_of_its_own(allocator, tmp_path):
    address = allocator.alloc(12 * MIB)
    text = ductile_gpu.report(tmp_path / "live.html").read_text()
    assert "12.0 MiB live at the peak" in text
    assert "live on GPU 0, allocator " in text
    allocator.free(address)


def with_stacks(blocks: list[ductile_gpu.Block], lines: dict[int, int]) -> bytes:
    """A snapshot of PyTorch's form in which some blocks, by address, are of a line of train.py."""
    segments = []
    for of in blocks:
        line = lines.get(of.address)
        frames = [{"name": "step", "filename": "/me/train.py", "line": line}] if line else []
        row = {"size": of.size, "frames": frames}
        segments.append({"address": of.address, "blocks": [row]})
    return pickle.dumps({"segments": segments})


def test_a_process_reports_what_lies_in_the_host_and_whose_it_is(tmp_path):
    with ductile_gpu.Allocator(driver="virtual", spill_bytes="1G", limit_bytes="256M") as own:
        own.alloc(200 * MIB)
        assert "from the host" not in ductile_gpu.report(tmp_path / "none.html").read_text()
        large, small = own.alloc(100 * MIB), own.alloc(10 * MIB)
        assert [own.query(address).spilled_bytes // MIB for address in (large, small)] == [76, 10]
        snapshot = tmp_path / "snapshot.pickle"
        snapshot.write_bytes(with_stacks(own.blocks(), {small: 7, large: 41}))
        found = _spilled.spilled(own, _spilled.stacks_of(snapshot))
        head = "86.0 MiB of 310.0 MiB from the host, 2 requests"
        assert found == f"{head}, most by `step me/train.py:41`"
        assert f"{head}, now" in ductile_gpu.report(tmp_path / "live.html").read_text()


def test_a_shared_allocators_blocks_are_counted_by_library(shared, tmp_path):
    cupys = [_share.allocate(shared, size * MIB, 0, "CuPy") for size in (3, 5, 7)]
    numbas = _share.allocate(shared, 4 * MIB, 0, "Numba")
    own = shared.alloc(9 * MIB)
    dropped = cupys.pop()
    _share.forget(shared, dropped)
    shared.free(dropped)
    again = shared.alloc(7 * MIB)  # in its place: not CuPy's
    recording = _live._of_blocks(None, shared, tmp_path)
    rows = {_who.title(row, "stack"): row["bytes"] for row in _who.group(recording, "stack")}
    assert rows == {"CuPy": 8 * MIB, "Numba": 4 * MIB, _live.OTHERS: 16 * MIB}
    assert "8.0 MiB (29 %) CuPy" in said(recording)
    for address in (*cupys, numbas):
        _share.forget(shared, address)
        shared.free(address)
    for address in (own, again):
        shared.free(address)
    assert _share.owners(shared) == {}


def test_a_process_without_anything_to_report_says_what_to_do(tmp_path):
    with pytest.raises(RuntimeError, match="_record_memory_history"):
        ductile_gpu.report(tmp_path / "live.html")
    assert not list(tmp_path.iterdir())


def test_a_replay_that_fails_is_not_nothing_to_report(shared, tmp_path, monkeypatch):
    from ductile_gpu._binding import _native

    address = shared.alloc(MIB)
    broken = tmp_path / "ductile-bench"
    broken.write_text("#!/bin/sh\necho 'ductile-bench: no space left' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(_native, "bench_path", lambda: broken)
    with pytest.raises(RuntimeError, match="no space left"):
        ductile_gpu.report(tmp_path / "live.html")
    shared.free(address)


def report_of(folder: Path, snapshot: Path) -> str:
    """What a process says that reports what PyTorch, or its stub, has recorded."""
    program = "import torch, ductile_gpu; ductile_gpu.report('r.html')"
    return Place(folder).python("-c", program, STUB_SNAPSHOT=snapshot).stderr


def test_a_recording_that_cannot_be_replayed_is_not_nothing_to_report(tmp_path):
    broken = tmp_path / "broken.gz"
    broken.write_bytes(gzip.compress(b"\x80\x04no snapshot"))
    answer = report_of(tmp_path, broken)
    assert "RuntimeError: the report failed: " in answer
    assert "nothing to report" not in answer


def test_a_process_reports_what_pytorch_has_recorded(tmp_path):
    assert report_of(tmp_path, WHOLE) == ""
    headline = said(recording_of(WHOLE)).partition("\n")[0].partition(": ")[2]
    assert headline in (tmp_path / "r.html").read_text()


def test_a_process_that_records_nothing_reports_what_pytorch_holds(tmp_path):
    held = segment(BASE, block(BASE, 3 * MIB, "active_allocated", frame("kept")))
    assert report_of(tmp_path, dump(tmp_path / "held.pickle.gz", [], segments=[held])) == ""
    assert "3.0 MiB held: 3.0 MiB live" in (tmp_path / "r.html").read_text()
