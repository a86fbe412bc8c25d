# SPDX-License-Identifier: Apache-2.0
"""The history of PyTorch's memory and its snapshots, on a virtual GPU."""

from __future__ import annotations

from typing import Callable

import pytest

torch = pytest.importorskip("torch")
if torch.version.cuda is None:
    pytest.skip("this PyTorch is built without CUDA", allow_module_level=True)

from ductile_gpu.torch import _build

# ---- History -----------------------------------------------------------------------------------

RANDOM = """
import random
choice = random.Random({seed})
live = []
for i in range(600):
    if live and choice.random() < 0.45:
        free(live.pop(choice.randrange(len(live))))
    else:
        size = choice.choice((choice.randrange(1, 5000), choice.randrange(1, 9 * MIB)))
        live.append(alloc(size, choice.choice({streams})))
    if i == {start}:
        record(True)
    if i % 97 == 96:
        torch._C._cuda_emptyCache()
"""


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("start", [0, 300])
def test_the_history_obeys_the_viewers_rules(
    play: Callable[[str], str], seed: int, start: int
) -> None:
    out = play(
        RANDOM.format(seed=seed, start=start, streams="(0,)")
        + """
found = snapshot()
replay(found)
actions = [entry["action"] for entry in found["device_traces"][0]]
print(actions.count("alloc"), actions.count("free_completed"), actions.count("segment_map"),
      actions.count("segment_unmap"), actions[-1])
"""
    )
    allocs, frees, maps, unmaps, last = out.split()
    assert int(allocs) > 100
    assert int(frees) > 50
    assert int(maps) > 0
    assert int(unmaps) > 0
    assert last != "snapshot"


def test_a_snapshot_agrees_with_the_statistics(play: Callable[[str], str]) -> None:
    play(
        RANDOM.format(seed=5, start=0, streams="(0,)")
        + """
found, s = snapshot(), stats()
total = {"total_size": "reserved_bytes", "allocated_size": "allocated_bytes",
         "active_size": "active_bytes"}
for key, stat in total.items():
    assert sum(x[key] for x in found["segments"]) == s[stat]["large_pool"]["current"], key
blocks = [b for x in found["segments"] for b in x["blocks"]]
assert sum(b["state"] == "active_allocated" for b in blocks) == s["allocation"]["all"]["current"]
asked = sum(b["requested_size"] for b in blocks if b["state"].startswith("active"))
assert asked == s["requested_bytes"]["all"]["current"]
"""
    )


def test_the_memory_visualiser_s_own_code_reads_it(play: Callable[[str], str]) -> None:
    play(
        RANDOM.format(seed=6, start=0, streams="(0,)")
        + """
from torch.cuda import _memory_viz as viz
found = snapshot()
for segment in found["segments"]:
    segment.setdefault("frames", [])
    at = segment["address"]
    for block in segment["blocks"]:
        block.setdefault("address", at)
        block.setdefault("frames", [])
        at += block["size"]
for entry in found["device_traces"][0]:
    entry.setdefault("frames", [])
viz.segsum(found)
viz.trace(found)
assert "html" in viz.trace_plot(found)
assert "html" in viz.segment_plot(found)
"""
    )


def test_the_oldest_entries_make_room(play: Callable[[str], str]) -> None:
    play(
        """
        record(True, 10)
        for i in range(50):
            free(alloc(1000 + i))
        found = snapshot()["device_traces"][0]
        assert len(found) == 10
        assert found[-1]["action"] == "free_completed"
        assert [e["time_us"] for e in found] == sorted(e["time_us"] for e in found)
        record(False)
        assert snapshot()["device_traces"][0] == []
        """
    )


def test_a_snapshot_is_in_the_history_of_the_next_one(play: Callable[[str], str]) -> None:
    play(
        """
        record(True)
        a = alloc(3 * MIB + 1)
        assert snapshot()["device_traces"][0][-1]["action"] == "alloc"
        free(a)
        entries = [(e["action"], e["size"]) for e in snapshot()["device_traces"][0]]
        assert entries[-4:] == [("alloc", 3 * MIB + 1), ("snapshot", 3 * MIB + 512),
                                ("free_requested", 3 * MIB + 1),
                                ("free_completed", 3 * MIB + 1)], entries
        """
    )


@pytest.mark.parametrize("when", ["state", "alloc", "all"])
def test_the_history_has_the_stack_of_whom_memory_moved_for(
    play: Callable[[str], str], when: str
) -> None:
    """With "alloc", a free has the stack of its allocation."""
    play(
        f"""
        def allocate():
            return alloc(3 * MIB)

        def give_back(address):
            free(address)

        def empty_the_cache():
            torch._C._cuda_emptyCache()

        record_stacks("{when}")
        give_back(allocate())
        empty_the_cache()
        callers = {{"allocate", "give_back", "empty_the_cache"}}
        found = dict()
        for entry in snapshot()["device_traces"][0]:
            who = found.setdefault(entry["action"], [])
            who.append(callers.intersection(functions(entry)))
        freed = {{"give_back" if "{when}" == "all" else "allocate"}}
        wanted = dict(alloc={{"allocate"}}, segment_map={{"allocate"}}, free_requested=freed,
                      free_completed=freed,
                      segment_unmap={{"empty_the_cache"}} if "{when}" == "all" else set())
        if "{when}" == "state":
            wanted = dict.fromkeys(wanted, set())
        assert set(found) == set(wanted), found
        for action, who in wanted.items():
            assert all(one == who for one in found[action]), (action, found[action])
        """
    )


def test_every_entry_has_the_metadata_of_its_time(play: Callable[[str], str]) -> None:
    if not hasattr(torch._C, "_cuda_setMemoryMetadata"):
        pytest.skip("this PyTorch has no metadata of the user")
    play(
        """
        torch._C._cuda_setMemoryMetadata("a step")
        record(True)
        free(alloc(3 * MIB))
        torch._C._cuda_emptyCache()
        torch._C._cuda_setMemoryMetadata("")
        entries = snapshot()["device_traces"][0]
        assert {e["action"] for e in entries} >= {"alloc", "free_completed", "segment_unmap"}
        assert {e["user_metadata"] for e in entries} == {"a step"}, entries
        """
    )


def test_actions_can_be_left_out(play: Callable[[str], str]) -> None:
    if _build.describe_torch().minor < 11:
        pytest.skip("since PyTorch 2.11")
    play(
        """
        call("probe_skip", b"free_requested")
        free(alloc(1000))
        actions = {e["action"] for e in snapshot()["device_traces"][0]}
        assert "free_requested" not in actions
        assert {"alloc", "free_completed"} <= actions
        """
    )


def test_a_tracker_hears_all_without_history(play: Callable[[str], str]) -> None:
    play(
        """
        counts = (ctypes.c_int * 16)()
        call("probe_listen", counts)
        for i in range(5):
            free(alloc(1000))
        assert counts[0] == 5 and counts[1] == 5 and counts[2] == 5, list(counts)
        assert counts[5] > 0, "memory was mapped"
        """
    )


@pytest.mark.parametrize("end", ["record(False)", "record(False); record(True)"])
def test_a_tracker_hears_the_end_of_frees_that_wait_when_history_ends(
    play: Callable[[str], str], end: str
) -> None:
    play(
        f"""
        from ductile_gpu._binding._native import lib
        counts = (ctypes.c_int * 16)()
        call("probe_listen", counts)
        record(True)
        block = alloc(3 * MIB)
        library().record_stream(block, 2)
        lib.ductile_capture_begin()             # nothing is asked of a stream meanwhile
        free(block)
        assert (counts[1], counts[2]) == (1, 0), list(counts)
        {end}
        lib.ductile_capture_end()
        torch._C._cuda_emptyCache()
        assert (counts[1], counts[2]) == (1, 1), list(counts)
        """
    )


def test_a_tracker_hears_of_memory_before_it_leaves(play: Callable[[str], str]) -> None:
    play(
        """
        heard = (ctypes.c_ulonglong * 3)()
        kept = alloc(3 * MIB)
        call("probe_listen_to_memory", heard)
        outside = alloc(5 * MIB)
        mapped = heard[0]
        assert mapped in (4 * MIB, 6 * MIB), "what was mapped before is not told"
        free(outside)
        torch._C._cuda_emptyCache()
        assert heard[0] == 0, list(heard)
        assert heard[1] == mapped, "it was still held when it was said to leave"
        assert heard[2] == 0, "memory was not there when it was said to be"
        free(kept)
        """
    )
