# SPDX-License-Identifier: Apache-2.0
"""Programs of others that run on Ductile (grpo.py, serving.py, elastic_serving.py, vllm_sleep.py,
launched.py, rmm_cpp_tests.py), as far as they run without a GPU."""

from __future__ import annotations

from typing import Any

import pytest
from torch_scripts import needs, run

MIB = 1 << 20
PAGED = "transformers.generation.continuous_batching.cache_manager"  # 5.17 has it


def grpo_row(way: str, **changed: Any) -> dict[str, Any]:
    half = {"peak": 900 * MIB, "held": 900 * MIB, "grown": 100 * MIB}
    row = {"form": "two", "way": way, "backend": way if way == "ductile" else "native", "left": 0}
    row.update(rewards=["0x1p-1", "0x1p-2"], phases={"train": half, "asleep": {**half, "grown": 0}})
    row.update(changed)
    return row


def asleep_grown(n_bytes: int) -> dict[str, Any]:
    return {"asleep": {"peak": 0, "held": 0, "grown": n_bytes}}


@pytest.mark.parametrize(
    ("way", "changed", "missed"),
    [
        ("ductile", {}, []),
        ("ductile", {"rewards": ["0x1p-1", "0x1p-3"]}, ["rewards differ from native's"]),
        ("expandable", {"rewards": ["0x1p-3", "0x1p-2"]}, ["rewards differ from native's"]),
        ("ductile", {"backend": "native"}, ["is not on Ductile"]),
        ("ductile", {"left": 17 * MIB}, ["not all sleeps"]),
        ("expandable", {"left": 17 * MIB}, []),
        ("ductile", {"phases": asleep_grown(17 * MIB)}, ["grows asleep"]),
        ("ductile", {"phases": asleep_grown(16 * MIB)}, []),
        ("ductile", {"error": "has ended"}, ["has ended"]),
    ],
)
def test_a_way_of_grpo_is_held_to_rewards_and_to_what_stays_asleep(
    way: str, changed: dict[str, Any], missed: list[str]
) -> None:
    import grpo

    assert grpo.missed(grpo_row(way, **changed), grpo_row("native")) == missed


def test_fewer_turns_of_native_are_those_that_are_compared() -> None:
    import grpo

    native = grpo_row("native", rewards=["0x1p-1"])
    assert grpo.missed(grpo_row("ductile"), native) == []


def burst(**changed: Any) -> dict[str, Any]:
    return {"answered": 2, "asked": 2, "said": ["a", "b"], **changed}


@pytest.mark.parametrize(
    ("changed", "missed"),
    [
        ({}, []),
        ({"bursts": [burst(), burst(answered=1)]}, ["1 of 2 answered"]),
        ({"backend": "native"}, ["is not on Ductile"]),
        ({"rest": {"on_device": 17 * MIB}}, ["not all sleeps"]),
        ({"error": "has ended"}, ["has ended"]),
    ],
)
def test_a_server_is_held_to_its_answers_and_its_sleep(
    changed: dict[str, Any], missed: list[str]
) -> None:
    import serving

    row = {"way": "ductile", "backend": "ductile", "bursts": [burst(), burst()]}
    assert serving.missed({**row, "rest": {"on_device": 0}, **changed}) == missed


def test_answers_are_compared_one_by_one() -> None:
    import serving

    native = {"bursts": [burst(), burst()]}
    mine = {"bursts": [burst(said=["a", "c"]), burst()]}
    assert serving.same_answers(mine, native) == ["1/2", "2/2"]
    assert serving.same_answers(mine, None) == []


@pytest.mark.parametrize(
    ("changed", "missed"),
    [
        ({}, []),
        ({"losses": [["0x1p-2"]]}, ["losses differ from native's"]),
        ({"backends": ["ductile", "native"]}, ["is on ['ductile', 'native']"]),
        ({"status": 1, "said": "RuntimeError: no"}, ["status 1: RuntimeError: no"]),
        ({"kind": "MULTI_GPU"}, ["is MULTI_GPU, not FSDP"]),
    ],
)
def test_a_launched_program_is_held_to_natives_losses_in_every_rank(
    changed: dict[str, Any], missed: list[str]
) -> None:
    import launched

    row = {"program": "accelerate fsdp2", "way": "ductile", "kind": "FSDP", "status": 0}
    row.update(losses=[["0x1p-1"]], backends=["ductile"])
    assert launched.missed({**row, **changed}, {"losses": [["0x1p-1"]]}) == missed


def test_what_a_rank_said_is_told_and_not_what_its_launcher_did() -> None:
    import launched

    said = "[rank1]: ValueError: it is odd\nsubprocess.CalledProcessError: Command '...' returned 1"
    assert launched.last_error(said) == "ValueError: it is odd"


def test_each_of_librmms_tests_is_held_to_how_it_ended_on_librmms_resource() -> None:
    import rmm_cpp_tests

    native = {"status": 0, "served": 0, "said": "", "tests": {"a": "OK", "b": "OK", "c": "SKIPPED"}}
    ductile = {**native, "status": -6, "served": 7, "tests": {"a": "FAILED", "c": "SKIPPED"}}
    row = rmm_cpp_tests.compare("pool_tests", native, ductile)
    assert (row["native"], row["ductile"], row["skipped"], row["served"]) == (2, 0, 1, 7)
    assert row["differ"] == {"a": ("OK", "FAILED"), "b": ("OK", "lost")}
    same = rmm_cpp_tests.compare("pool_tests", native, native)
    assert (same["differ"], rmm_cpp_tests.is_lost(same)) == ({}, False)
    ended = rmm_cpp_tests.compare("pool_tests", native, {**native, "status": -6})
    assert rmm_cpp_tests.is_lost(ended)


def engine_row(level: int, **changed: Any) -> dict[str, Any]:
    row = {"way": "plug-in", "level": level, "allocator": "SleepAllocator", "said": ["a", "b"]}
    row.update(same=[32, 32], cycles=[{"asleep": n * 16 * MIB} for n in (0, 2, 3, 4)])
    return {**row, **changed}


@pytest.mark.parametrize(
    ("level", "changed", "missed"),
    [
        (0, {}, []),
        (0, {"said": ["a", "c"]}, ["answers are not cumem's"]),
        (0, {"allocator": "CuMemAllocator"}, ["is on CuMemAllocator"]),
        (1, {}, []),
        (2, {"same": [32, 31]}, ["31 of 32 answers are those of before"]),
        (1, {"cycles": [{"asleep": n * 17 * MIB} for n in range(4)]}, ["grows asleep"]),
        (1, {"error": "has ended", "same": []}, ["has ended"]),
    ],
)
def test_an_engine_is_held_to_its_answers_its_allocator_and_what_stays_asleep(
    level: int, changed: dict[str, Any], missed: list[str]
) -> None:
    import vllm_sleep

    cumem = engine_row(0, way="cumem", allocator="CuMemAllocator")
    assert vllm_sleep.missed(cumem, []) == []
    assert vllm_sleep.missed(engine_row(level, **changed), [cumem]) == missed


def test_answers_of_an_engine_in_a_process_of_its_own_are_not_compared() -> None:
    import vllm_sleep

    other = engine_row(0, said=["c"])
    assert vllm_sleep.missed(other, [engine_row(0, way="cumem")], are_compared=False) == []
    assert vllm_sleep.missed(engine_row(2, same=[9]), [], are_compared=False) == []


def test_training_and_generation_hand_over_on_the_cpu() -> None:
    needs("torch", "transformers", "trl", "datasets")
    status, rows = run("grpo.py", "--cpu-check", "--turns", "2", "--ways", "native")
    assert (status, [row["form"] for row in rows]) == (0, ["plain", "two"])
    assert [row["turns"] for row in rows] == [2, 2]


def test_bursts_are_answered_on_the_cpu() -> None:
    needs("torch", "transformers")
    status, rows = run(
        "serving.py", "--cpu-check", "--requests", "8", "--ways", "native,expandable"
    )
    assert (status, rows[1]["same"]) == (0, ["4/4", "4/4"])


def test_a_server_that_is_kept_answers_the_burst_after_its_sleep() -> None:
    needs("torch", "transformers")
    import serving_side

    server = serving_side.Server("cpu", "tiny")
    server.begin(graphs=False)
    bursts = [server.burst(4, skip) for skip in (0, 4)]
    assert [(one["answered"], one["asked"]) for one in bursts] == [(4, 4), (4, 4)]


def split(share: float | None, **changed: Any) -> dict[str, Any]:
    row = {"share": share, "backend": "ductile", "asked": 3, "answered": 3, "differ": []}
    row["was_cut"] = False
    row.update(tokens=300, seconds=3, said={"0": "a", "1": "b"}, scores={"0": -9.0})
    return {**row, **changed}


@pytest.mark.parametrize(
    ("row", "missed"),
    [
        (split(None), []),
        (split(None, answered=2), ["2 of 3 answered"]),
        (split(0.5, answered=2), []),
        (split(0.5, differ=["1"]), ["1 answers differ"]),
        (split(0.5, backend="native"), ["is not on Ductile"]),
        (split(None, error="has ended"), ["has ended"]),
        (split(0.9, error="has ended"), []),
    ],
)
def test_an_elastic_cache_is_held_to_its_answers_and_a_split_to_what_it_answered(
    row: dict[str, Any], missed: list[str]
) -> None:
    import elastic_serving

    assert elastic_serving.missed(row) == missed


def test_what_both_the_elastic_cache_and_a_split_answered_is_compared() -> None:
    import elastic_serving

    elastic = split(None)
    other = split(0.5, said={"1": "c", "7": "d"}, scores={"0": -9.0001, "5": -1.0})
    assert elastic_serving.differ(other, elastic) == ["1"]
    assert elastic_serving.differ(split(0.5, scores={"0": -9.1}), elastic) == ["text 0"]


def test_the_best_split_answered_most_and_then_was_the_fastest() -> None:
    import elastic_serving

    rows = [split(None, seconds=1), split(0.3), split(0.5, seconds=2), split(0.8, error="ended")]
    rows.append(split(0.9, answered=2, seconds=1))
    rows.append(split(0.6, seconds=1, was_cut=True))
    assert elastic_serving.best(rows) is rows[2]


def test_an_elastic_cache_answers_what_a_split_does_on_the_cpu() -> None:
    needs("torch", "transformers", PAGED)
    words = ("--cpu-check", "--requests", "8", "--texts", "4", "--shares", "0.1")
    status, rows = run("elastic_serving.py", *words)
    assert (status, [row["answered"] for row in rows]) == (0, [12, 12])
    assert rows[1]["most_blocks"] <= rows[1]["blocks"] < rows[0]["blocks"]


def test_a_text_that_finds_no_memory_is_tried_again_as_blocks_become_free() -> None:
    needs("torch", "transformers", PAGED)
    from types import SimpleNamespace

    import elastic_serving_side
    import torch

    free: list[int] = []
    cache = SimpleNamespace(num_blocks=2, _block_manager=SimpleNamespace(_uninit_block_ids=free))
    stream = SimpleNamespace(compute_stream=None)
    processor = SimpleNamespace(cache=cache, inputs_and_outputs=stream)

    def never_fits(**_: Any) -> None:
        raise torch.OutOfMemoryError

    texts = elastic_serving_side.Texts(never_fits, processor, [[1, 2]], "cpu")
    texts.steps = 3
    found = []
    for _ in range(3):
        texts.between_steps(pending=True)
        texts.between_steps(pending=True)
        found.append((texts.out_of_memory, texts.refused, cache.admits))
        free.append(0)
    assert found == [(1, 0, False), (2, 0, False), (3, 1, True)]
