# SPDX-License-Identifier: Apache-2.0
"""What PyTorch and its libraries keep on a GPU is right after a sleep: generators' state, cuBLAS's
workspaces, captured and compiled graphs. And a thread that uses what sleeps is told so.

Each case but the last two does the same steps twice, once awake all the time and once with a sleep
before every step, in which other memory is made and filled; the results are equal to the bit.
Prints one line per case; ends with status 1 if one failed.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Callable

import cases
import child
import contents

GIVEN = cases.parser(__doc__, seconds=60, workers=6).parse_args()
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch
from torch.nn import functional as F

import ductile_gpu
import ductile_gpu.torch as memory

STEPS = 5
MIB = 1 << 20
Step = Callable[[int], torch.Tensor]
Sleep = Callable[[], None]
Inputs = Mapping[str, torch.Tensor]


def sleep_whole() -> None:
    """All memory of the process; what is made meanwhile shows where memory is read too early."""
    memory.sleep_all()
    other = torch.full((64 * MIB,), 0xA5, dtype=torch.uint8, device="cuda")
    assert int(other[-1]) == 0xA5
    del other
    memory.wake_all()


def sleep_tags() -> None:
    """Every tag, while memory without one is awake."""
    memory.sleep()
    assert memory.sleeping()
    torch.full((64 * MIB,), 0xA5, dtype=torch.uint8, device="cuda")
    memory.wake()


def results(step: Step, sleep: Sleep) -> Iterator[torch.Tensor]:
    torch.cuda.manual_seed(7)
    for i in range(STEPS):
        sleep()
        yield step(i)


def what_became(step: Step, awake: Sequence[bytes], inputs: dict[str, bytes], now: Inputs) -> str:
    """Of what a step read, and of all steps when they are done again without a sleep."""
    said = {name: contents.of_tensor(before, now[name]) for name, before in inputs.items()}
    lost = "".join(f"; {name}: {text}" for name, text in said.items() if text)
    again = map(contents.copy, results(step, lambda: None))
    right = sum(before == after for before, after in zip(awake, again))
    return f"{lost}; done again awake, {right} of {STEPS} steps are right"


def expect_equal(step: Step, *sleeps: Sleep, **inputs: torch.Tensor) -> None:
    """To the bit. `inputs` are what the steps read and do not write."""
    before = {name: contents.copy(tensor) for name, tensor in inputs.items()}
    awake = [contents.copy(one) for one in results(step, lambda: None)]
    assert any(one != awake[0] for one in awake), "the steps are all alike"
    others = {f"step {i}": one for i, one in enumerate(awake)}
    for sleep in sleeps:
        for i, found in enumerate(results(step, sleep)):
            said = contents.of_tensor(awake[i], found, others)
            if said:
                said += what_became(step, awake, before, inputs)
                raise AssertionError(f"step {i} differs after {sleep.__name__}: {said}")


def captured(work: Callable[[], torch.Tensor], pool: Any = None) -> Callable[[], torch.Tensor]:
    graph, out = child.captured(work, pool=pool)

    def replay() -> torch.Tensor:
        graph.replay()
        return out

    return replay


# ---- Generators --------------------------------------------------------------------------------


def dropout_draws_on() -> None:
    given = torch.ones(1000, 1000, device="cuda")
    expect_equal(lambda i: F.dropout(given * (i + 1), 0.3), sleep_whole, given=given)


def a_graphs_dropout_draws_on() -> None:
    """The graph reads seed and offset from tensors that PyTorch registers with it."""
    given = torch.ones(1000, 1000, device="cuda")
    replay = captured(lambda: F.dropout(given, 0.3))
    expect_equal(lambda i: replay(), sleep_whole, given=given)


def a_generator_of_ones_own_draws_on() -> None:
    own = torch.Generator(device="cuda")

    def step(i: int) -> torch.Tensor:
        if i == 0:
            own.manual_seed(3)
        return torch.randn(1000, device="cuda", generator=own)

    expect_equal(step, sleep_whole)


def a_graph_in_a_tag_draws_on() -> None:
    with memory.pool("inputs"):
        given = torch.ones(1000, 1000, device="cuda")
    replay = captured(lambda: F.dropout(given, 0.3), memory.graph_pool("graphs"))
    expect_equal(lambda i: replay(), sleep_whole, sleep_tags, given=given)


# ---- Workspaces --------------------------------------------------------------------------------


def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Few rows and much to add: cuBLAS divides the sum, and adds its parts in the workspace."""
    return torch.addmm(a[:, :64].float() * 0, a.float(), b.float()) + (a.half() @ b.half()).float()


def operands() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    return torch.randn(64, 65536, device="cuda"), torch.randn(65536, 64, device="cuda")


def workspaces_made_outside_a_tag() -> None:
    a, b = operands()
    expect_equal(lambda i: product(a * (i + 1), b), sleep_whole, a=a, b=b)


def workspaces_made_in_a_tag() -> None:
    """They sleep with the tag, so they are only of use when it is awake."""
    with memory.pool("work"):
        a, b = operands()
        product(a, b)
    expect_equal(lambda i: product(a * (i + 1), b), sleep_whole, sleep_tags, a=a, b=b)


def workspaces_of_a_graph() -> None:
    a, b = operands()
    scale = torch.ones((), device="cuda")
    replay = captured(lambda: product(a * scale, b), memory.graph_pool("graphs"))

    def step(i: int) -> torch.Tensor:
        scale.fill_(i + 1)
        return replay()

    expect_equal(step, sleep_whole, sleep_tags, a=a, b=b)


# ---- Compiled ----------------------------------------------------------------------------------


def a_compiled_function_with_graphs() -> None:
    """Its graphs and their memory are PyTorch's own trees; weights have a tag."""
    with memory.pool("weights"):
        first = torch.randn(512, 512, device="cuda")
        second = torch.randn(512, 512, device="cuda")

    @torch.compile(mode="reduce-overhead")
    def layer(x: torch.Tensor) -> torch.Tensor:
        return F.dropout(F.gelu(x @ first), 0.2) @ second

    given = torch.randn(64, 512, device="cuda")

    def step(i: int) -> torch.Tensor:
        torch.compiler.cudagraph_mark_step_begin()
        return layer(given * (i + 1)).clone()

    for i in range(4):  # compiles, warms up, captures
        step(i)
    expect_equal(step, sleep_whole, sleep_tags, first=first, second=second, given=given)


# ---- What a thread gets that uses what sleeps --------------------------------------------------


def told_in_a_thread(use: Callable[[], object]) -> str:
    """What another thread is told, by the call itself or the next wait."""
    told: list[str] = []

    def work() -> None:
        try:
            use()
            torch.cuda.synchronize()
        except Exception as error:
            told.append(str(error).splitlines()[0])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return " ".join(told)


def a_kernel_on_what_sleeps_ends_the_context() -> None:
    """As on any address without memory; every later call of the process says so."""
    with memory.pool("weights"):
        weights = torch.ones(1 << 20, device="cuda")
    memory.sleep("weights")
    told = told_in_a_thread(lambda: weights.add_(1))
    print(f"the thread was told: {told}")
    assert "illegal memory access" in told.lower(), told
    try:
        memory.wake("weights")
    except ductile_gpu.Error as error:
        print(f"a wake says: {type(error).__name__}: {error}")
        return
    raise AssertionError("a wake in a context that has ended was taken for a success")


def a_copy_of_what_sleeps_is_refused_or_ends_the_context() -> None:
    """The driver looks at a copy's addresses; one that it lets pass ends like a kernel."""
    with memory.pool("weights"):
        weights = torch.ones(1 << 20, device="cuda")
    memory.sleep("weights")
    told = told_in_a_thread(weights.cpu)
    print(f"the thread was told: {told}")
    assert "illegal memory access" in told.lower() or "invalid argument" in told.lower(), told


CASES = (
    a_compiled_function_with_graphs,
    dropout_draws_on,
    a_graphs_dropout_draws_on,
    a_generator_of_ones_own_draws_on,
    a_graph_in_a_tag_draws_on,
    workspaces_made_outside_a_tag,
    workspaces_made_in_a_tag,
    workspaces_of_a_graph,
    a_kernel_on_what_sleeps_ends_the_context,
    a_copy_of_what_sleeps_is_refused_or_ends_the_context,
)

if __name__ == "__main__":
    if GIVEN.only:
        memory.enable("full")
        torch.cuda.init()
    status = cases.main(__file__, CASES, GIVEN)
    sys.stdout.flush()
    os._exit(status)  # a context that has ended has nothing to be given back
