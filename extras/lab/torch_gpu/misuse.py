# SPDX-License-Identifier: Apache-2.0
"""Planted mistakes in PyTorch programs, and the option of Ductile that finds them.

Each mistake is made in a process of its own, with the option that finds it and without; a program
without mistakes runs under both too, and says what a step costs. Each case has a process of
its own, with a time limit. Prints one line per case; ends with status 1 if one failed.
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from typing import Any, Callable

import allocators
import cases

_parser = cases.parser(__doc__, seconds=150, workers=2)
_parser.add_argument("--plant", help="one program, in this process")
GIVEN = _parser.parse_args()

MIB = 1 << 20
BYTES = 3 * MIB

# ---- The programs ------------------------------------------------------------------------------


class Raw:
    """Device memory by its address: what a kernel with a wrong pointer or length has."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size,), "typestr": "|u1", "data": (address, False), "version": 3,
        }  # fmt: skip


def memory(address: int, size: int) -> Any:
    import torch

    return torch.as_tensor(Raw(address, size), device="cuda")


def outcome(run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What the program says, its warnings, and the error that ended the context, if one did."""
    import torch

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            found = run()
            torch.cuda.synchronize()
        except RuntimeError as error:
            return {"error": str(error)}
    found["told"] = [str(w.message) for w in told if "ductile" in str(w.message)]
    return found


def neighbours() -> list[Any]:
    """Tensors of zeros by address; without a guard two of them lie side by side."""
    import torch

    made = [torch.zeros(BYTES, dtype=torch.uint8, device="cuda") for _ in range(8)]
    made.sort(key=lambda tensor: int(tensor.data_ptr()))
    return made


def first_with_neighbour(tensors: list[Any]) -> int:
    pairs = zip(tensors, tensors[1:])
    return next((i for i, (x, y) in enumerate(pairs) if y.data_ptr() - x.data_ptr() == BYTES), -1)


def overflow_write() -> dict[str, Any]:
    """A kernel writes 4096 bytes behind its tensor."""
    import torch

    tensors = neighbours()
    at = first_with_neighbour(tensors)
    memory(tensors[max(at, 0)].data_ptr(), BYTES + 4096).fill_(7)
    torch.cuda.synchronize()
    return {"at": at, "overwritten": int((tensors[at + 1] != 0).sum())}


def overflow_read() -> dict[str, Any]:
    """A kernel reads 4096 bytes behind its tensor."""
    tensors = neighbours()
    at = first_with_neighbour(tensors)
    return {"at": at, "total": int(memory(tensors[max(at, 0)].data_ptr(), BYTES + 4096).sum())}


def late_write_after_unmapping() -> dict[str, Any]:
    """A kernel writes to a tensor that was dropped, once its memory has gone back."""
    import torch

    kept = torch.zeros(5 * BYTES, dtype=torch.uint8, device="cuda")
    x = torch.zeros(BYTES, dtype=torch.uint8, device="cuda")
    stale = memory(x.data_ptr(), BYTES)
    del x
    torch.cuda.empty_cache()
    stale.fill_(0x41)
    torch.cuda.synchronize()
    return {"kept": int(kept[0])}


def training() -> dict[str, Any]:
    """Steps of varying length with a side stream, and a graph with memory of its own."""
    import torch

    torch.manual_seed(1)
    torch.use_deterministic_algorithms(True, warn_only=True)
    net = torch.nn.Sequential(
        torch.nn.Linear(256, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 256)
    ).cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    side = torch.cuda.Stream()
    losses = []
    began = time.monotonic()
    for step in range(40):
        x = torch.randn(64 + 32 * (step % 7), 256, device="cuda")
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            halved = x * 0.5
        x.record_stream(side)
        halved.record_stream(torch.cuda.current_stream())
        losses.append(float(loss))
        del x, loss, halved
    took = (time.monotonic() - began) / 40
    given = torch.ones(1000, 1000, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = (given * 2 + 1).sum()
    for _ in range(3):
        graph.replay()
        torch.empty(BYTES, dtype=torch.uint8, device="cuda")
    return {"losses": losses, "graph": float(result), "step_ms": round(1000 * took, 3)}


PLANTS = {
    plant.__name__: plant
    for plant in (overflow_write, overflow_read, late_write_after_unmapping, training)
}


def plant(name: str) -> int:
    """Runs one program. What it found is the last line."""
    import ductile_gpu.torch

    ductile_gpu.torch.enable("full")
    print(json.dumps(outcome(PLANTS[name])), flush=True)
    os._exit(0)  # a context that has ended is not torn down


# ---- The cases ---------------------------------------------------------------------------------


def found(name: str, options: str = "") -> dict[str, Any]:
    where = dict(os.environ, DUCTILE_CONF=options)
    command = [sys.executable, "-X", "faulthandler", __file__, "--plant", name]
    status, said = allocators.run(command, GIVEN.seconds, where)
    assert status == 0, f"{name} with {options!r} ended with {status}:\n{said}"
    print(f"{name} {options}: {said.splitlines()[-1]}")
    answer: dict[str, Any] = json.loads(said.splitlines()[-1])
    return answer


def survived(name: str, options: str = "") -> dict[str, Any]:
    answer = found(name, options)
    assert "error" not in answer, answer["error"]
    return answer


def is_illegal_access(answer: dict[str, Any]) -> bool:
    return "illegal memory access" in answer.get("error", "").lower()


def a_write_behind_a_tensor_faults_under_a_guard() -> None:
    assert is_illegal_access(found("overflow_write", "find:overruns"))


def a_read_behind_a_tensor_faults_under_a_guard() -> None:
    assert is_illegal_access(found("overflow_read", "find:overruns"))


def a_write_to_unmapped_memory_faults_under_a_guard() -> None:
    assert is_illegal_access(found("late_write_after_unmapping", "find:overruns"))


def without_a_guard_the_neighbour_is_overwritten() -> None:
    answer = survived("overflow_write")
    assert answer["at"] >= 0, "no two tensors lie side by side"
    assert answer["overwritten"] == 4096


def without_a_guard_a_read_behind_goes_unnoticed() -> None:
    assert survived("overflow_read")["at"] >= 0


def a_program_without_mistakes_computes_the_same() -> None:
    plain = survived("training")
    guarded = survived("training", "find:overruns")
    for answer in (plain, guarded):
        assert not answer["told"]
        assert answer["losses"] == plain["losses"]
        assert answer["graph"] == plain["graph"] == 3e6
    print("ms a step, one turn each:", *(f"{a['step_ms']:.3f}" for a in (plain, guarded)))


CASES = [
    a_write_behind_a_tensor_faults_under_a_guard,
    a_read_behind_a_tensor_faults_under_a_guard,
    a_write_to_unmapped_memory_faults_under_a_guard,
    without_a_guard_the_neighbour_is_overwritten,
    without_a_guard_a_read_behind_goes_unnoticed,
    a_program_without_mistakes_computes_the_same,
]

if __name__ == "__main__":
    sys.exit(plant(GIVEN.plant) if GIVEN.plant else cases.main(__file__, CASES, GIVEN))
