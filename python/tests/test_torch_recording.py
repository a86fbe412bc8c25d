# SPDX-License-Identifier: Apache-2.0
"""The recording behind PyTorch's own interfaces for trackers and history, on a virtual GPU."""

from __future__ import annotations

import json
import textwrap

import pytest

pytest.importorskip("torch")

# The driver's calls let Python's lock go, as those of PyTorch do.
RECORD = """
    import json, tempfile, torch
    from pathlib import Path
    from snapshots import read_snapshot
    from ductile_gpu.torch._recording import StackRecording, functions
    folder = Path(tempfile.mkdtemp())
    recording = StackRecording(folder)
    tracker = _install.Tracker()
    tracker.start(*functions(recording.library))

    def forward():
        return alloc(5 * MIB)

    def finish():
        counts = recording.close()
        recording.save(folder / "run.pickle", [], {})
        (entries,) = read_snapshot(folder / "run.pickle")["device_traces"]
        return entries

    def names(entry):
        return [frame["name"] for frame in entry["frames"]]
"""


@pytest.fixture
def record(play):
    """Runs a program while it is recorded; what it printed."""
    return lambda program: json.loads(
        play(textwrap.dedent(RECORD) + textwrap.dedent(program).strip("\n"))
    )


def test_pytorchs_trackers_feed_the_recording(record):
    address, entries = record("""
        address = forward()
        free(address)
        print(json.dumps([address, finish()]))
    """)
    of_block = [entry for entry in entries if entry["action"] in ("alloc", "free_requested")]
    assert [entry["action"] for entry in of_block] == ["alloc", "free_requested"]
    assert {entry["addr"] for entry in of_block} == {address}
    assert {entry["size"] for entry in of_block} == {5 << 20}
    assert "forward" in [frame["name"] for frame in of_block[0]["frames"]]
    mapped = [entry for entry in entries if entry["action"] == "segment_map"]
    assert sum(entry["size"] for entry in mapped) >= 5 << 20
    assert all("forward" in [frame["name"] for frame in entry["frames"]] for entry in mapped)


def test_a_refused_request_has_its_stack(record):
    found = record("""
        def too_much():
            alloc(1 << 45)
        try:
            too_much()
        except RuntimeError:
            pass
        print(json.dumps([names(entry) for entry in finish() if entry["action"] == "oom"]))
    """)
    assert len(found) == 1
    assert "too_much" in found[0]


def test_a_snapshot_can_be_taken_meanwhile(record):
    blocks = record("""
        address = forward()
        print(json.dumps(snapshot()["segments"][0]["blocks"][0]["state"]))
    """)
    assert blocks == "active_allocated"


def test_when_it_has_ended_history_is_off(record):
    before, after = record("""
        enabled = torch._C._cuda_isHistoryEnabled
        found = [enabled()]
        tracker.stop()
        print(json.dumps([*found, enabled()]))
    """)
    assert before
    assert not after


# As torch.cuda.memory._record_memory_history does, without CUDA's initialisation.
HISTORY = """
        original = torch._C._cuda_record_memory_history
        def history(enabled):
            record(enabled is not None)
        torch._C._cuda_record_memory_history = history
        tracker._follow_history()
        switch = torch._C._cuda_record_memory_history
"""


def test_a_script_that_records_history_has_it_until_it_ends_that(record):
    traced, bare, again, lent = record(
        HISTORY
        + """
        switch("all")
        def own():
            return alloc(5 * MIB)
        own(); own()
        traced = sum(e["action"] == "alloc" for e in snapshot()["device_traces"][0])
        switch(None)
        forward()
        switch("all")
        tracker.stop()
        kept = torch._C._cuda_isHistoryEnabled()
        entries = [e for e in finish() if e["action"] == "alloc"]
        print(json.dumps([[traced, kept], names(entries[0]), names(entries[-1]), tracker.was_lent]))
    """
    )
    assert traced == [2, True]
    assert bare == ["(no Python on this thread: backward, or another library)"]
    assert "forward" in again
    assert lent
