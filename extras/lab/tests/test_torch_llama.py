# SPDX-License-Identifier: Apache-2.0
"""The Llama that trains on every GPU (torch_gpu/llama.py), as far as it runs without one."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
from torch_scripts import needs, run


class Answered:
    """What a group of two ranks is after so many turns, each of one step."""

    def __init__(self, way: str, backend: str = "native", **changed: Any) -> None:
        self.way, self.error, self.ranks = way, changed.pop("error", ""), [0, 1]
        self.sleeps: list[list[dict[str, Any]]] = changed.pop("sleeps", [])
        turn = {"backend": backend, "used": 900, "active": 950, "held": 1000}
        turn.update(retries=0, pressure_waits=0, pressure_returns=0)
        turn.update(losses=[(10.0).hex()], times=[1.0])
        turn.update(changed)
        self.answers = [[turn, {**turn, "held": turn["held"] - 10}] for _ in range(3)]


def missed_beside_native(case: str, way: str, **changed: Any) -> list[str]:
    import llama

    groups = [Answered("native"), Answered("expandable", used=850), Answered(way, **changed)]
    found: list[str] = llama.rows_of(llama.CASES[case], groups)[-1]["missed"]
    return found


@pytest.mark.parametrize(
    ("case", "changed", "missed"),
    [
        ("fsdp2", {}, []),
        ("fsdp2", {"backend": "native"}, ["is not on Ductile"]),
        ("fsdp2", {"losses": [(10.2).hex()]}, ["the last loss is further than 1 % from native's"]),
        ("fsdp2", {"losses": [(10.01).hex()]}, []),
        ("exact-fsdp2", {"losses": [(10.01).hex()]}, ["losses differ from native's"]),
        ("fsdp2", {"used": 840}, ["uses less of what it holds than expandable segments"]),
        ("exact-fsdp2", {"used": 840}, []),
        ("fsdp2", {"times": [1.1]}, ["a step takes longer than the first way's"]),
        ("exact-fsdp2", {"times": [1.1]}, []),
        ("fsdp2", {"retries": 3}, ["6 retries"]),
        ("fsdp2", {"error": "hung"}, ["failed"]),
        ("refused", {"losses": ["0x1p3", "0x1p3", "nan", "0x1.4p3"], "times": [1.0] * 4}, []),
        ("refused", {"losses": ["nan", "0x1.4p3"]}, ["3 of 6 steps were left out, and not 1"]),
        ("refused", {"losses": ["0x1.4p3"] * 4}, ["0 of 12 steps were left out, and not 3"]),
        ("fsdp2", {"losses": ["nan", "0x1.4p3"]}, ["3 of 6 steps were left out, and not 0"]),
    ],
)
def test_a_way_to_train_is_held_to_losses_memory_and_time(
    case: str, changed: dict[str, Any], missed: list[str]
) -> None:
    assert missed_beside_native(case, "ductile", **{"backend": "ductile", **changed}) == missed


@pytest.mark.parametrize(
    ("case", "options", "share", "missed"),
    [
        ("fsdp2", "+sizes:2M", 920, []),
        ("fsdp2", "+sizes:2M", 919, ["uses less than 0.92 of what it holds"]),
        ("fsdp2", "+sizes:2M+reuse:wait", 970, []),
        ("fsdp2", "+sizes:2M+reuse:wait", 969,
         ["uses less than 0.97 of what it holds"]),
        ("ddp", "+sizes:2M", 910, []),
    ],
)  # fmt: skip
def test_sharded_training_with_tight_sizes_is_held_to_more(
    case: str, options: str, share: int, missed: list[str]
) -> None:
    found = missed_beside_native(
        case, f"ductile{options}", backend="ductile", used=share, held=1000
    )
    assert found == missed


def test_pytorchs_own_ways_to_train_are_only_held_to_end() -> None:
    import llama

    groups = [Answered("native"), Answered("expandable", used=1, retries=9, times=[9.0])]
    assert [row["missed"] for row in llama.rows_of(llama.CASES["fsdp2"], groups)] == [[], []]


def test_a_training_that_failed_keeps_what_it_has_answered() -> None:
    import llama

    (row,) = llama.rows_of(llama.CASES["fsdp2"], [Answered("ductile", "ductile", error="hung")])
    assert (row["steps"], row["held_mib"], row["error"]) == (3, round(1000 / 2**20, 1), "hung")
    assert "hung" in llama.text_of({**row, "case_seconds": 1})
    group = Answered("ductile", error="did not begin")
    group.answers.clear()
    (row,) = llama.rows_of(llama.CASES["fsdp2"], [group])
    assert llama.text_of(row).endswith("FAILED: did not begin")


def test_without_what_is_in_use_there_is_no_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    import llama
    import turns

    def silent(name: str, _command: list[str], where: dict[str, str]) -> turns.Worker:
        return worker(name, ["-c", "import time; time.sleep(600)"], where)

    worker = turns.Worker
    monkeypatch.setattr(turns, "Worker", silent)
    given = llama.parse(["--cases", "capped", "--ranks", "1", "--cpu-check"])
    rows = llama.Match(llama.CASES["capped"], given).play(time.monotonic())
    assert [row["way"] for row in rows] == ["ductile", "capped ductile", "capped expandable"]
    assert "did not answer in time" in rows[0]["error"]
    assert all("not begun" in llama.text_of(row) for row in rows[1:])


def test_the_memory_reported_is_of_the_rank_that_wastes_most() -> None:
    import llama

    (row,) = llama.rows_of(llama.CASES["fsdp2"], [Answered("ductile", used=2**29, held=2**30)])
    assert (row["used_mib"], row["held_mib"], row["efficiency"]) == (512.0, 1024.0, 0.5)


def test_a_way_to_train_names_an_allocator_and_its_options() -> None:
    import llama

    found = llama.environment("ductile+reuse:wait+zero:on", hook=True)
    assert found["DUCTILE_CONF"] == "reuse:wait,zero:on"
    assert found["TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK"] == "1"
    capped = llama.environment("capped expandable", hook=False)
    assert capped["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"
    assert capped["TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK"] == "0"


def test_every_way_sees_the_same_steps_and_shorter_cases_their_beginning() -> None:
    import llama

    given = llama.parse(["--rounds", "3", "--hook-rounds", "1", "--steps", "2", "--long", "9"])
    steps = {name: llama.shapes_of(case, given) for name, case in llama.CASES.items()}
    assert len(steps["pairs"]) == 6
    assert steps["fsdp2"] == steps["pairs"] * 2  # the second time each shape is known
    assert steps["fsdp2-hook"] == steps["pairs"][:2] * 2
    assert steps["long"][:6] == steps["pairs"]
    assert len(steps["long"]) == 9


def test_cases_for_which_no_time_is_left_are_not_begun() -> None:
    import llama

    given = llama.parse(["--limit", "0"])
    assert list(llama.play_all(list(llama.CASES.values()), given)) == []


@pytest.mark.slow
def test_a_llama_trains_in_turns_and_agrees() -> None:
    needs("torch", "transformers")
    words = ["--rounds", "1", "--steps", "1", "--long", "2", "--exact", "2", "--cpu-check"]
    words += ["--seconds", "500"]  # a machine that is busy with other things
    cases = ["fsdp2", "moe", "capped", "pairs", "long", "exact-ddp"]
    status, rows = run("llama.py", "--ways", "native,ductile", "--cases", ",".join(cases), *words)
    assert [row["case"] for row in rows] == sorted((row["case"] for row in rows), key=cases.index)
    assert len(rows) == 2 + 2 + 3 + 2 + 1 + 2
    assert all("error" not in row and row["active_mib"] >= row["used_mib"] for row in rows), rows
    assert {row["steps"] for row in rows if row["case"] == "pairs"} == {1}  # it is not timed
    assert {row["steps"] for row in rows if row["case"] != "pairs"} == {2}
    exact = {row["digest"] for row in rows if row["case"] == "exact-ddp"}
    assert len(exact) == 1
    assert status == 0


def test_the_slowest_rank_says_how_long_a_sleep_of_all_takes() -> None:
    import llama

    def slept(*seconds: float) -> dict[str, Any]:
        n = len(seconds)
        return {"sleep_s": [*seconds], "wake_s": [0.5] * n, "bytes": [2e9] * n, "left": [2**30] * n}

    group = Answered(
        "ductile", "ductile", sleeps=[[slept(0.1, 0.2), slept(1, 4)], [slept(9), slept(8)]]
    )
    (row,) = llama.rows_of(llama.CASES["asleep"], [group])
    assert row["sleep_s"] == [[0.1, 0.2, 9], [1, 4, 8]]
    said = llama.text_of(row)
    assert "asleep in 4.000 s, 1.0 GB/s of all ranks; awake in 0.500 s, 8.0 GB/s; 1024 MiB" in said


@pytest.mark.slow
def test_a_llama_is_divided_in_its_layers_and_its_ranks_may_differ() -> None:
    needs("torch", "transformers")
    words = ["--rounds", "1", "--steps", "4", "--cpu-check", "--seconds", "500"]
    cases = ["tp", "uneven", "refused"]
    status, rows = run("llama.py", "--ways", "native", "--cases", ",".join(cases), *words)
    assert [(row["case"], row["steps"], row["left_out"]) for row in rows] == [
        ("tp", 8, 0), ("uneven", 8, 0), ("refused", 8, 2),
    ]  # fmt: skip
    assert status == 0


@pytest.mark.slow
def test_a_training_that_cannot_begin_says_why() -> None:
    needs("torch", "transformers")
    status, (row,) = run(
        "llama.py", "--cpu-check", "--cases", "moe", "--ways", "native", "--ranks", "3"
    )
    assert status == 1
    assert row["missed"] == ["failed"]
    assert "4 experts are for 2, 4 or 8 ranks" in row["error"]


# ---- gaps.py -----------------------------------------------------------------------------------


class Computation:
    """A clock of the GPU that is told when it comes to each place."""

    def __init__(self, *places: int) -> None:
        self.places = list(places)

    def mark(self) -> int:
        return self.places.pop(0)

    def between(self, start: int, end: int) -> int:
        return end - start


def test_a_gap_is_from_a_units_allocation_until_its_all_gather_is_enqueued() -> None:
    import gaps

    watch = gaps.Watch(Computation(0, 10**12))
    watch.begin_step()
    watch.note_limiter(90, 100)
    watch.note_alloc(200, 203)  # of the shard in bfloat16
    watch.note_alloc(4100, 4150)
    watch.note_unit(4000, 4200)
    watch.note_gather(4200, 5000)
    watch.end_step()
    (one,) = watch.take()
    assert (one.gap, one.alloc, one.wait) == (1000, 50, 3900)
    assert one.reached == 10**12
    assert not watch.take()


def test_no_wait_is_that_of_another_all_gather() -> None:
    import gaps

    watch = gaps.Watch(Computation(0, 0, 0))
    watch.begin_step()
    watch.note_limiter(90, 100)
    for start in (200, 300):
        watch.note_unit_alloc(start, start + 10)
        watch.note_gather(start + 10, start + 20)
    watch.end_step()
    assert [one.wait for one in watch.take()] == [100, 0]


def test_the_host_is_ahead_by_the_time_and_the_units_that_the_computation_lacks() -> None:
    import gaps

    def gathers(step: int, *places: tuple[int, int]) -> list[gaps.Gather]:
        return [gaps.Gather(step, 1000, 500, 0, *place) for place in places]

    # The third is enqueued when the computation has come to the first; the last at an end.
    taken = gathers(0, (100, 200), (200, 5000), (300, 6000), (9000, 9000)) + gathers(1, (50, 60))
    found = gaps.figures(taken)
    assert found["ahead_units"] == [0, 0, 1, 0, 0]
    assert found["ahead_ms"] == pytest.approx([1e-4, 4.8e-3, 5.7e-3, 0, 1e-5])
    assert (found["gap_us"][0], found["alloc_us"][0]) == (1, 0.5)
    assert gaps.figures([]) == {}


def test_functions_that_are_watched_do_what_they_did() -> None:
    import gaps

    calls: list[tuple[int, int]] = []
    unit = SimpleNamespace(gather=lambda x, *, y: (x, y))
    gaps.follow(unit, "gather", lambda start, end: calls.append((start, end)))
    assert unit.gather(1, y=2) == (1, 2)
    ((start, end),) = calls
    assert start <= end


def test_gaps_are_of_all_ranks_and_of_the_turns_whose_shapes_are_known() -> None:
    import llama

    group = Answered("native")  # three turns, of which the last two count
    for n, turn in enumerate(group.answers):
        for rank, answer in enumerate(turn):
            us = 1000 * (100 * n + 10 * rank)
            turn[rank] = {**answer, "gathers": [[0, us, us, 0, 5, 5]]}
    (row,) = llama.rows_of(llama.CASES["fsdp1"], [group])
    assert row["gap_us"] == [155, pytest.approx(209.7)]
    assert "gap_us 155.0, 209.7; alloc_us" in llama.text_of(row)
    (row,) = llama.rows_of(llama.CASES["ddp"], [Answered("native")])
    assert "gap_us" not in row


@pytest.mark.slow
def test_sharded_trainings_tell_what_the_host_does_before_each_all_gather() -> None:
    needs("torch", "transformers")
    cases = ["fsdp1", "fsdp1-unlimited", "fsdp2", "fsdp1-t5"]
    words = ("--rounds", "1", "--steps", "1", "--layers", "3", "--cpu-check", "--seconds", "500")
    status, rows = run("llama.py", "--ways", "native", "--cases", ",".join(cases), *words)
    assert status == 0, rows
    assert [row["case"] for row in rows] == cases
    assert len({row["digest"] for row in rows[:3]}) == 1  # of one model
    assert all(0 < row["alloc_us"][0] < row["gap_us"][0] for row in rows)
    assert [row["wait_us"][0] > 0 for row in rows] == [True, False, False, True]
