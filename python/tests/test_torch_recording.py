# SPDX-License-Identifier: Apache-2.0
"""The recording behind PyTorch's own interface for trackers, on a virtual GPU."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch")

RECORD = """
    import json, tempfile
    from pathlib import Path
    import prelude
    from snapshots import read_snapshot
    from ductile_gpu.torch._recording import StackRecording, event_function
    folder = Path(tempfile.mkdtemp())
    recording = StackRecording(folder)
    _install.load_tracker()(event_function(recording.library))
    prelude.driver = ctypes.PyDLL(sys.argv[1])      # keeps Python's lock, as torch.empty does

    def forward():
        return alloc(5 * MIB)

    address = forward()
    free(address)
    counts = recording.close()
    recording.save(folder / "run.pickle", [], {})
    (entries,) = read_snapshot(folder / "run.pickle")["device_traces"]
    print(json.dumps([address, entries]))
"""


def test_pytorchs_trackers_feed_the_recording(play):
    address, entries = json.loads(play(RECORD))
    of_block = [entry for entry in entries if entry["action"] in ("alloc", "free_requested")]
    assert [entry["action"] for entry in of_block] == ["alloc", "free_requested"]
    assert {entry["addr"] for entry in of_block} == {address}
    assert {entry["size"] for entry in of_block} == {5 << 20}
    assert "forward" in [frame["name"] for frame in of_block[0]["frames"]]
    mapped = [entry for entry in entries if entry["action"] == "segment_map"]
    assert sum(entry["size"] for entry in mapped) >= 5 << 20
