# SPDX-License-Identifier: Apache-2.0
"""usage: jax_turns.py [ROUNDS]

The training of jax_train.py under each of JAX's allocators and under Ductile, in a process each,
which take turns of 20 steps, so that all of them see the same machine. Prints one JSON object: the
times of each one's steps, turn by turn, and what they are of those of `cuda_async`, with the
interval of 95 %.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time

import measure  # knows where the next one is
import turns

STEPS, LIMIT_S = "20", 85
TRAIN = [str(measure.HERE / "jax_train.py"), STEPS, "turns"]
WAYS = {
    "async": ([], measure.own("cuda_async")),
    "all": (measure.ALL[1:], {}),
    # so that there is room for the others
    "bfc": ([], {**measure.own("bfc", "true"), "XLA_PYTHON_CLIENT_MEM_FRACTION": ".25"}),
    "bfc-grow": ([], measure.own("bfc")),
    "platform": ([], measure.own("platform")),
}


def play(workers: dict[str, turns.Worker], rounds: int) -> dict[str, list[float]]:
    """Milliseconds of a step, of each turn. Ends the program where losses differ."""
    end = time.monotonic() + LIMIT_S
    found: dict[str, list[float]] = {way: [] for way in workers}
    heard = {way: worker.hear(end)["losses"] for way, worker in workers.items()}
    for turn in range(rounds):
        assert len(set(map(tuple, heard.values()))) == 1, f"turn {turn}: losses differ"
        for way in turns.rotated(list(workers), turn):
            workers[way].send("on")
            answer = workers[way].hear(end)
            heard[way] = answer["losses"]
            found[way].append(round(answer["step_ms"], 3))
    return found


def main() -> None:
    """Prints the object."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    workers = {
        way: turns.Worker(way, [*start, *TRAIN], {**os.environ, **environment})
        for way, (start, environment) in WAYS.items()
    }
    try:
        found = play(workers, rounds)
    finally:
        for worker in workers.values():
            worker.close()
    rows = {
        way: {"step_ms": statistics.median(times), "turns_ms": times}
        | dict(zip(("of_async", "noise"), turns.paired(times, found["async"])))
        for way, times in found.items()
    }
    print(json.dumps({"turns": rows}))


if __name__ == "__main__":
    main()
