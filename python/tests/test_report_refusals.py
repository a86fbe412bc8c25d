# SPDX-License-Identifier: Apache-2.0
"""A report of an out-of-memory: what was refused counts, and what was recorded stands beside it."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from recordings import (
    BASE,
    FREED,
    LATE,
    MIB,
    block,
    dump,
    entry,
    frame,
    out_of_memory,
    refusal,
    replay,
    report,
    said,
    segment,
    study,
)  # fmt: skip
from running import bench, run

import ductile_gpu
from ductile_gpu._tools._recorder import Recorder, Refusals, StackRecorder
from ductile_gpu._tools._report import _frames, _openings, _page, _summary, _who
from ductile_gpu._tools._report._collect import NAMES


def test_the_refused_request_counts_in_every_figure(tmp_path):
    path = out_of_memory(tmp_path)
    recording = study(path)
    assert recording.live_peak == 110 * MIB
    for name, result in replay(path).items():
        run = recording.runs[name]
        assert result["live_peak_bytes"] == 110 * MIB
        assert run["min_capacity_bytes"] == result["min_capacity_bytes"] >= 110 * MIB
        assert run["reserved_peak_bytes"] == result["reserved_peak_bytes"] >= 110 * MIB
        found = _openings.openings(recording, name)
        assert found["request"] == 50 * MIB
        assert found["place"]["event"] == 3
    rows = {row["name"]: row for row in _page.gather([recording])["recordings"][0]["who"]["stack"]}
    assert rows["late project/model.py:9"]["refused"]
    assert rows["late project/model.py:9"]["bytes"] == 50 * MIB
    assert not rows["kept project/model.py:3"]["refused"]


def test_a_trace_keeps_what_was_refused(tmp_path):
    path, trace = out_of_memory(tmp_path), tmp_path / "oom.trace.gz"
    bench("convert", "--", path, trace)
    of_snapshot, of_trace = study(path), study(trace)
    assert of_trace.live_peak == of_snapshot.live_peak
    for name in NAMES:
        for figure in ("min_capacity_bytes", "reserved_peak_bytes"):
            assert of_trace.runs[name][figure] == of_snapshot.runs[name][figure], (name, figure)
    found = _summary.refused(of_trace)
    assert found["device_bytes"] == _summary.refused(of_snapshot)["device_bytes"] == 108 * MIB
    assert found["needed_bytes"] == 110 * MIB


def test_the_verdict_says_what_was_refused_where_it_lay_and_what_suffices(tmp_path):
    text = said(study(out_of_memory(tmp_path)))
    headline, *lines = text.splitlines()
    assert headline.startswith(
        "oom: Out of memory, and full: 110.0 MiB needed, 108.0 MiB there. No allocator helps: "
        "2.0 MiB have to go; `also project/model.py:4` holds 30.0 MiB."
    )
    said_of = {line[:15].strip(): line[15:].strip() for line in lines}
    assert said_of["asked"] == "`late project/model.py:9`, at event 3"
    assert said_of["free"] == "40.0 MiB in 2 holes (largest 25.0 MiB) + 8.0 MiB on the device"
    assert said_of["needed"] == "110.0 MiB = 60.0 MiB live + 50.0 MiB asked"
    assert said_of["device"].startswith(
        "108.0 MiB were there for PyTorch, too little; needed: Ductile"
    )


def test_a_model_that_fits_where_the_recorded_allocator_did_not_is_not_believed(tmp_path):
    """Its blocks lay in two segments for no reason that a replay sees."""
    text = said(study(out_of_memory(tmp_path, asked=20 * MIB)))
    assert text.splitlines()[0].startswith("oom: Out of memory, and fragmented: 40.0 MiB free in 2")
    assert text.splitlines()[0].endswith(
        "Ductile would have served it; so would expandable segments."
    )
    assert "a replay of native fits too: its blocks lie elsewhere than the program's" in text


def test_the_device_to_begin_with_is_the_recordings(tmp_path):
    summary = _summary.summary(study(out_of_memory(tmp_path)))
    assert summary["device_bytes"] == 108 * MIB
    assert summary["device_is_recorded"]


def test_what_others_have_of_the_device_is_told_where_its_size_is_known(tmp_path):
    device = {"device_memory": [{"total": 160 * MIB, "free": 8 * MIB}]}
    recording = study(out_of_memory(tmp_path, **device))
    assert _summary.refused(recording)["others_bytes"] == 52 * MIB
    assert "others had 52.0 MiB" in said(recording)


def test_a_limit_of_the_process_is_not_taken_for_the_device(tmp_path):
    recording = study(out_of_memory(tmp_path, left=900 * MIB))
    assert _summary.refused(recording)["device_bytes"] is None
    text = said(recording)
    assert "+ 900.0 MiB on the device" in text
    assert "set_per_process_memory_fraction" in text


@pytest.mark.parametrize(
    ("size", "line"),
    [
        (
            200 << 30,
            "needed: Ductile, expandable segments and native 200.1 GiB",
        ),  # of a larger virtual GPU than the usual one
        (1 << 42, "needed: Ductile, expandable segments and native 4.00 TiB"),  # the largest of all
        (1 << 45, "32.00 TiB = 60.0 MiB live + 32.00 TiB asked"),  # is told, and nothing modelled
        (1 << 60, "were refused, more than any device has"),
    ],
)
def test_a_request_beyond_the_usual_device_is_replayed_where_there_can_be_one(tmp_path, size, line):
    recording = study(out_of_memory(tmp_path, refusal(size, 8 * MIB)))
    assert line in said(recording)
    assert ("needed: " in said(recording)) == (size != 1 << 45)
    assert (recording.live_peak == 110 * MIB) == (size == 1 << 60)


def test_of_many_refusals_the_one_that_needs_most_is_told(tmp_path):
    history = [entry("alloc", 1, 10 * MIB)]
    history += [refusal((200 - i) * MIB, MIB) for i in range(100)]
    history += [entry("alloc", 2, 150 * MIB), refusal(70 * MIB, MIB)]
    recording = study(dump(tmp_path / "many.pickle", history), quick=True)
    found = _summary.refused(recording)
    assert (found["request_bytes"], found["refusals"]) == (70 * MIB, 101)
    assert recording.live_peak == 230 * MIB


# ---- What was recorded --------------------------------------------------------------------------


def test_a_model_that_is_further_off_is_explained(tmp_path):
    """What was there before lay in a segment full of holes; a replay packs it again."""
    states = ["active_allocated" if i % 4 == 0 else "inactive" for i in range(16)]
    blocks = [block(BASE + i * 10 * MIB, 10 * MIB, state) for i, state in enumerate(states)]
    held = segment(BASE, *blocks)
    history = [entry("alloc", 1 << 40, MIB), entry("free_requested", 1 << 40, MIB)]
    recording = study(dump(tmp_path / "late.pickle", history, segments=[held]))
    found = _summary.recorded(recording)
    assert found["held_peak_bytes"] == 160 * MIB
    assert found["modelled_peak_bytes"] < 160 * MIB
    assert found["apart"] == "packed again"
    assert "160.0 MiB held at most" in said(recording)
    assert (
        "a replay of the same allocator (native) holds 42.0 MiB: the 40.0 MiB from before the "
        "recording lie side by side there, for what was freed between them is not recorded"
    ) in said(recording)


def test_blocks_from_before_the_recording_are_no_events(tmp_path):
    held = segment(BASE, *(block(BASE + i * MIB, MIB) for i in range(100)))
    history = [entry(action, 1 << 40, 2 * MIB) for action in ("alloc", *FREED)]
    recording = study(dump(tmp_path / "late.pickle", history, segments=[held]), quick=True)
    assert recording.n_events == 2
    assert recording.bytes_before == 100 * MIB
    assert "the live peak, at event 1: " in said(recording)
    for found in recording.runs.values():
        assert [point[0] for point in found["points"]] == [99, 100, 101]


def test_a_snapshot_without_history_makes_a_page(tmp_path):
    held = segment(BASE, block(BASE, 30 * MIB), block(BASE + 30 * MIB, 10 * MIB, "inactive"))
    path = dump(tmp_path / "held.pickle", [], segments=[held])
    answer = report(path, folder=tmp_path)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.startswith(
        "held: Fine: 40.0 MiB held: 30.0 MiB live, 10.0 MiB free in 1 hole. No history was recorded"
    )
    recording = study(path)
    assert not recording.has_history
    assert recording.recorded["map"]["columns"]
    for command in (["replay", path], ["convert", path, "x.trace"]):
        refused = run(ductile_gpu.bench_path(), *command, folder=tmp_path)
        assert refused.returncode == 1
        assert "_record_memory_history" in refused.stderr


def test_blocks_that_do_not_fill_their_segments_tell_nothing_of_holes_and_of_the_device(tmp_path):
    held = segment(BASE, block(BASE, 30 * MIB), total_size=90 * MIB)
    history = [entry("alloc", 1 << 40, 2 * MIB), refusal(50 * MIB, 8 * MIB)]
    recording = study(dump(tmp_path / "gaps.pickle", history, segments=[held]), quick=True)
    assert recording.recorded is None
    found = _summary.refused(recording)
    assert (found["held_bytes"], found["holes"], found["device_bytes"]) == (0, None, None)
    assert found["needed_bytes"] == 82 * MIB


# ---- Names --------------------------------------------------------------------------------------

UNWIND = "torch::unwind::unwind()"
NODE = "torch::autograd::generated::BmmBackward0::apply(std::vector<at::Tensor>&&)"
ENGINE = "torch::autograd::Engine::thread_main(std::shared_ptr<torch::autograd::GraphTask> const&)"
CALL = "at::_ops::bmm::call(at::Tensor const&, at::Tensor const&)"


@pytest.mark.parametrize(
    ("stack", "name"),
    [
        (f"{UNWIND}\n{CALL}\n{NODE} :0\n{ENGINE}\nclone", "BmmBackward0 (backward)"),
        (f"{UNWIND}\n{CALL}\nclone", "bmm (C++)"),
        (f"{UNWIND}\nmy_kernel(int, float) kernel.cpp:0\nclone", "my_kernel"),
        ("step /v/lib/python3.12/site-packages/torch/optim/adam.py:9\ntrain /a/b/run.py:3",
         "train b/run.py:3"),
        ("step /v/lib/python3.12/site-packages/torch/optim/adam.py:9", "step optim/adam.py:9"),
        ("forward /code/my user/net.py:7", "forward my user/net.py:7"),
        ("<module> <string>:1", "<module> <string>:1"),
        ("alone", "alone"),
    ],
)  # fmt: skip
def test_a_stack_is_called_by_the_programs_own_call_or_by_what_compiled_code_ran(stack, name):
    assert str(_frames.name_of(stack)) == name


def test_compiled_code_of_the_backward_pass_is_known_as_such():
    stack = f"{UNWIND}\n{CALL}\n{NODE}\n{ENGINE}\nclone"
    assert _who.category_of(stack, False, False) == "backward pass (gradients)"


def test_what_is_none_of_these_and_not_kept_is_a_temporary():
    stack = "softmax /code/project/ops.py:7\nmain /code/project/run.py:3"
    assert _who.category_of(stack, False, is_lasting=False) == "temporaries"
    assert _who.category_of(stack, False, is_lasting=True) == "other"


# ---- For programs -------------------------------------------------------------------------------


def test_json_has_the_numbers_of_the_verdict_and_the_page(tmp_path):
    path = out_of_memory(tmp_path)
    answer = report("--json", path, folder=tmp_path)
    assert answer.returncode == 0, answer.stderr
    assert not (tmp_path / "report.html").exists()
    found, recording = json.loads(answer.stdout), study(path)
    for name, number in _summary.summary(recording).items():
        assert found[name] == json.loads(json.dumps(number)), name
    assert f"oom: {found['headline']}" == said(recording).splitlines()[0]
    assert sum(row["bytes"] for row in found["who"]["stack"]) == found["live_peak_bytes"]


def test_the_page_may_go_to_standard_output(tmp_path):
    answer = report("--quick", "-o", "-", out_of_memory(tmp_path), folder=tmp_path)
    assert answer.returncode == 0
    assert answer.stdout.startswith("<!DOCTYPE html>")
    assert [path.name for path in tmp_path.iterdir()] == ["oom.pickle"]


def test_the_page_is_opened_where_that_is_asked_for(tmp_path):
    """In a browser of BROWSER, which writes down what it was given."""
    script = tmp_path / "browser"
    script.write_text(f'#!/bin/sh\necho "$1" > {tmp_path}/opened\n')
    script.chmod(0o755)
    words = ("--quick", "--open", out_of_memory(tmp_path))
    answer = report(*words, folder=tmp_path, BROWSER=f"{script} %s")
    assert answer.returncode == 0, answer.stderr
    assert (tmp_path / "opened").read_text().strip() == (tmp_path / "report.html").as_uri()


# ---- Ranks --------------------------------------------------------------------------------------


def test_a_folder_is_reported_side_by_side(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    for rank, size in enumerate((10, 10, 30)):
        history = [
            entry("alloc", 1, size * MIB, frame("experts", "/a/moe.py")),
            entry("alloc", 2, 5 * MIB, frame("dense", "/a/net.py")),
        ]
        dump(folder / f"run.rank{rank}.pickle", history)
    (folder / "notes.txt").write_text("no recording")
    answer = report("--quick", folder, folder=tmp_path)
    assert answer.returncode == 0, answer.stderr
    assert [line for line in answer.stdout.splitlines() if line[:1] not in (" ", "")] == [
        "3 recordings: run.rank2 needs most: 35.0 MiB at its peak, 20.0 MiB more than run.rank0: "
        "experts a/moe.py:7 20.0 MiB more.",
        *(line for line in answer.stdout.splitlines() if line.startswith("run.rank")),
    ]


def test_of_a_folder_with_a_broken_rank_the_others_are_reported_and_it_is_named(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    history = [entry("alloc", 1, 10 * MIB)]
    for rank in range(3):
        dump(folder / f"run.rank{rank}.pickle", history)
    broken = folder / "run.rank1.pickle"
    broken.write_bytes(broken.read_bytes()[:40])
    answer = report("--quick", folder, folder=tmp_path)
    assert answer.returncode == 1
    assert f"{broken}: " in answer.stderr
    assert "it is left out" in answer.stderr
    assert answer.stdout.startswith("2 recordings: All 2 need the same. Missing: ")
    (folder / "run.rank0.pickle").unlink()
    answer = report("--quick", folder, folder=tmp_path)
    assert answer.returncode == 1
    assert "run.rank2 alone is shown. Missing: run.rank1.pickle." in answer.stdout
    (folder / "run.rank2.pickle").unlink()
    answer = report("--quick", folder, folder=tmp_path)
    assert (answer.returncode, answer.stdout) == (1, "")


def test_a_snapshot_of_nothing_but_a_refusal_makes_a_page(tmp_path):
    held = segment(BASE, block(BASE, 60 * MIB))
    for segments, live in (([], "0 bytes live"), ([held], "60.0 MiB live")):
        history = [refusal(50 * MIB, 8 * MIB, LATE)]
        text = said(study(dump(tmp_path / "oom.pickle", history, segments=segments)))
        assert f" = {live} + 50.0 MiB asked" in text
        assert "`late project/model.py:9`" in text


def test_ranks_are_called_by_what_tells_them_apart_and_said_to_be_alike(tmp_path):
    def called(*named: str) -> list[str]:
        history = [entry("alloc", 1, 10 * MIB, frame("f")), refusal(MIB, 0)]
        paths = [dump(tmp_path / f"{name}.pickle", history) for name in named]
        ranks = _page.gather([study(path, quick=True) for path in paths])["ranks"]
        assert ranks["note"] == "All 2 need the same. Out of memory: all 2."
        return [row["name"] for row in ranks["rows"]]

    assert called("rank0-node-4711", "rank1-node-4712") == ["rank0", "rank1"]
    assert called("node-4711", "node-4712") == ["node-4711", "node-4712"]


class _Torch:
    """A PyTorch with two GPUs, of which one can say what it has."""

    class cuda:
        @staticmethod
        def mem_get_info(device: int) -> tuple[int, int]:
            if device != 1:
                raise RuntimeError("CUDA error")
            return 3 * MIB, 9 * MIB


def test_record_asks_the_gpus_that_were_used_what_they_have(tmp_path):
    recorder = StackRecorder(tmp_path)
    recorder.torch = _Torch
    assert recorder._devices([{"device": 1}]) == [{}, {"free": 3 * MIB, "total": 9 * MIB}]
    assert recorder._devices([{"device": 0}]) == [{}]
    assert recorder._devices([]) == []


def test_record_says_what_a_gpu_has_taken_from_the_host(tmp_path):
    recorder = StackRecorder(tmp_path)
    recorder.torch = _Torch
    with ductile_gpu.Allocator(1, driver="virtual", spill_bytes="1G", limit_bytes="256M") as own:
        kept, spilled = own.alloc(200 * MIB), own.alloc(100 * MIB)
        own.free(spilled)
        said = {"free": 3 * MIB, "total": 9 * MIB, "spills": 1, "spilled_peak": 76 * MIB}
        assert recorder._devices([{"device": 1}]) == [{}, said]
        own.free(kept)


def test_what_spilled_while_it_was_recorded_has_a_line(tmp_path):
    device = {"free": 8 * MIB, "total": 160 * MIB, "spills": 1112, "spilled_peak": 76 * MIB}
    path = out_of_memory(tmp_path, asked=80 * MIB, device_memory=[device])
    lines = said(study(path)).splitlines()
    assert [line.split(maxsplit=1) for line in lines if "from the host" in line] == [
        ["spilled", "76.0 MiB from the host at most, 1,112 requests"]
    ]


class _Refusing:
    """A PyTorch whose allocator refuses memory at this test's word."""

    def __init__(self) -> None:
        self.requested = 0
        self.segments = [{"device": 0, "address": 1}, {"device": 1, "address": 2}]
        self._C = SimpleNamespace(_cuda_attach_out_of_memory_observer=self._attach)
        memory = SimpleNamespace(_snapshot=lambda: {"segments": list(self.segments)})
        self.cuda = SimpleNamespace(memory_stats=self._stats, memory=memory)

    def _attach(self, observer: Any) -> None:
        self.refuse = observer

    def _stats(self, _device: int) -> dict[str, int]:
        return {"requested_bytes.all.current": self.requested}


def test_record_keeps_what_was_held_at_the_refusal_that_needed_most_of_each_gpu():
    torch = _Refusing()
    refusals = Refusals(torch)
    refusals.watch()
    for device, live, asked in ((0, 50, 10), (0, 90, 20), (1, 0, 1), (0, 80, 30), (0, 100, 1)):
        torch.requested = live
        torch.segments[device] = {"device": device, "address": live}
        torch.refuse(device, asked, 0, 0)
    first, second = sorted(refusals.found(), key=lambda kept: kept["device"])
    assert first == {"device": 0, "number": 2, "segments": [{"device": 0, "address": 90}]}
    assert second == {"device": 1, "number": 1, "segments": [{"device": 1, "address": 0}]}


def test_what_record_cannot_keep_does_not_take_the_place_of_the_programs_exception():
    torch = _Refusing()
    refusals = Refusals(torch)
    refusals.watch()
    torch.cuda = None
    torch.refuse(0, 1, 0, 0)
    assert refusals.found() == []
    Refusals(SimpleNamespace()).watch()  # an early PyTorch


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_recording_without_stacks_says_what_the_device_has_too(tmp_path, protocol):
    """PyTorch writes the snapshot; what the device had is put behind it."""
    snapshot = {"device_traces": [[entry("alloc", 1, MIB)]], "segments": []}

    def write(path: str) -> None:
        Path(path).write_bytes(pickle.dumps(snapshot, protocol=protocol))

    memory = SimpleNamespace(_dump_snapshot=write)
    recorder = Recorder()
    recorder.torch = SimpleNamespace(cuda=SimpleNamespace(
        memory=memory, device_count=lambda: 2, memory_reserved=lambda device: device,
        mem_get_info=lambda _device: (3 * MIB, 9 * MIB),
    ))  # fmt: skip
    recorder.dump(tmp_path / "run.pickle")
    found = pickle.loads((tmp_path / "run.pickle").read_bytes())
    assert found == {**snapshot, "device_memory": [{}, {"free": 3 * MIB, "total": 9 * MIB}]}
    assert study(tmp_path / "run.pickle").live_peak == MIB
