# SPDX-License-Identifier: Apache-2.0
"""A trainer and a generator take turns on one GPU and are killed at random moments:
turns_gpu.py [--turns N] [--kills N] [--pairs N] [--cap MIB] [--seconds N] [--virtual]

Each side is a process; together they need more than 1.6 times the memory that both may hold, which
Ductile's margin of free device memory enforces. What is tried, each with one line of result:

    alone    the programs by themselves, always awake: losses, and tokens of each step's weights
    turns    N turns each (200): all losses and tokens are those, no request is refused, asleep a
             side holds nothing, and what the device has free does not drift
    kills    each side is killed N times (50) at a random moment, several pairs beside each other;
             the other goes on before a new one is begun in the dead one's place, which goes on from
             the state on the host; all losses and tokens are those of the programs alone
    residue  at the end the device has free what it had at the beginning

With PyTorch and a GPU, otherwise (or with --virtual) with bytes, each process on a virtual GPU of
its own. PyTorch is imported once; sides are forks of this process, which never uses CUDA. 200 turns
take a minute on an H200, a kill two seconds for each pair; every ten seconds a line says how far it
is. What fails is a result, too: the rest is tried all the same. Exit status: 0 when all is as it
should be, 1 otherwise.
"""

from __future__ import annotations

import argparse
import mmap
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any, Callable, ClassVar

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "python" / "examples"))

from turns_two_processes import NAMES, TRAINER, Turns, wake

import ductile_gpu

MIB = 1 << 20
EPISODE = 50  # steps; then the training begins again
SAID = (*NAMES, "deaths")  # files, and who has seen the other end
DONE = 6  # words of `Turns` that it leaves to us: turns of each side
SLACK = 128 * MIB  # for each process: what its context grows by
MOST_RESIDUE = 16 * MIB  # of the driver's own, when no process is left
SECONDS = 60  # that a process may take to begin, or to make a turn
EVERY = 10  # seconds between lines that say how far it is


def index_of(step: int) -> int:
    return (step - 1) % EPISODE + 1


# ---- With PyTorch ------------------------------------------------------------------------------

WORDS, LENGTH, TOKENS = 2048, 128, 16


class Side:
    """Of a generator: it has no state but the weights, and what it says is for the test alone."""

    def restore(self, step: int) -> None:
        """To what it was after the step."""

    def share(self, step: int) -> None:
        """Leaves the step's result to the other side."""


class OnGpu(Side):
    """Parameters, and memory of 0.8 of the cap that each turn uses and looks at."""

    shared_bytes = 0  # of one step; set once the model is known

    def __init__(self, shared: Any, cap: int, margin: int) -> None:
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
        import torch
        from transformer import Transformer

        import ductile_gpu.torch as memory

        memory.enable(limit_bytes=cap)
        memory.set_margin(margin)
        self.torch, self.memory = torch, memory
        torch.use_deterministic_algorithms(True, warn_only=True)
        for kind in ("flash", "mem_efficient", "cudnn"):
            getattr(torch.backends.cuda, f"enable_{kind}_sdp")(False)
        torch.manual_seed(1)
        self.model = Transformer(WORDS, layers=4, width=128, heads=4)
        self.initial = self.flat([p.detach() for p in self.model.parameters()])
        self.model.cuda()
        self.parameters = list(self.model.parameters())
        self.shared = torch.frombuffer(shared, dtype=torch.float32).view(2, 3, -1)
        self.rest_items = int(cap * 0.8) // 4

    def flat(self, tensors: list[Any]) -> Any:
        return self.torch.cat([t.flatten() for t in tensors])

    def spread(self, flat: Any, tensors: list[Any]) -> None:
        for part, tensor in zip(flat.cuda().split([t.numel() for t in tensors]), tensors):
            tensor.detach().copy_(part.view_as(tensor))

    def rest_is(self, rest: Any) -> str:
        low, high = rest.aminmax()
        return f"{int(low)} {int(high)}"

    def set_others(self, held: int) -> None:
        """The device knows itself."""

    def held(self) -> int:
        return sum(tag.held_bytes for tag in self.memory.tags().values())

    def free_on_device(self) -> int:
        return int(self.torch.cuda.mem_get_info()[0])

    def sleep(self) -> None:
        self.memory.sleep_all()

    def wake(self) -> None:
        self.memory.wake_all()


class Trainer(OnGpu):
    def __init__(self, shared: Any, cap: int, margin: int) -> None:
        super().__init__(shared, cap, margin)
        self.optimizer = self.torch.optim.AdamW(self.parameters, lr=1e-3, foreach=False)
        self.history = self.torch.zeros(self.rest_items, dtype=self.torch.int32, device="cuda")

    def restore(self, step: int) -> None:
        """As after this step, from the host; 0: from the beginning."""
        index = index_of(step) if step else 0
        zeros = self.torch.zeros_like(self.initial)
        kept = self.shared[step % 2] if step else self.torch.stack([self.initial, zeros, zeros])
        self.spread(kept[0], self.parameters)
        for p in self.parameters:
            self.optimizer.state[p] = {
                "step": self.torch.tensor(float(index)),
                "exp_avg": self.torch.zeros_like(p),
                "exp_avg_sq": self.torch.zeros_like(p),
            }
        for row, name in ((1, "exp_avg"), (2, "exp_avg_sq")):
            self.spread(kept[row], [self.optimizer.state[p][name] for p in self.parameters])
        self.history.fill_(index * (index + 1) // 2)

    def turn(self, step: int) -> str:
        index = index_of(step)
        if index == 1:
            self.restore(0)
        chosen = self.torch.Generator().manual_seed(index)
        ids = self.torch.randint(0, WORDS, (8, LENGTH), generator=chosen).cuda()
        loss = self.model(ids).mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.history.add_(index)
        return f"{index} {float(loss.detach()).hex()} {self.rest_is(self.history)}"

    def share(self, step: int) -> None:
        states = [self.optimizer.state[p] for p in self.parameters]
        rows = [self.parameters, [s["exp_avg"] for s in states], [s["exp_avg_sq"] for s in states]]
        for row, tensors in enumerate(rows):
            self.shared[step % 2, row].copy_(self.flat([t.detach() for t in tensors]))


class Generator(OnGpu):
    def __init__(self, shared: Any, cap: int, margin: int) -> None:
        super().__init__(shared, cap, margin)
        self.loaded = 0
        with self.memory.pool("cache", contents="drop"):
            self.cache = self.torch.zeros(self.rest_items, dtype=self.torch.int32, device="cuda")

    def turn(self, step: int) -> str:
        if step != self.loaded:  # otherwise those that slept
            self.spread(self.shared[step % 2, 0], self.parameters)
            self.loaded = step
        index = index_of(step)
        self.cache.fill_(index)
        chosen = self.torch.Generator().manual_seed(index)
        ids = self.torch.randint(0, WORDS, (4, TOKENS), generator=chosen).cuda()
        with self.torch.no_grad():
            for _ in range(TOKENS):
                ids = self.torch.cat([ids, self.next_token(ids)], dim=1)
        said = ids[:, TOKENS:].flatten().tolist()
        return f"{index} {','.join(map(str, said))} {self.rest_is(self.cache)}"

    def next_token(self, ids: Any) -> Any:
        places = self.torch.arange(ids.shape[1], device="cuda")
        return self.model.next_word(ids, places, lambda _, attention, x: attention(x))


# ---- With bytes --------------------------------------------------------------------------------


class OnVirtualGpu(Side):
    """A byte for each tensor. Each process has its own device, and is told what the other holds."""

    shared_bytes = 4

    def __init__(self, shared: Any, cap: int, margin: int) -> None:
        self.shared, self.state = shared, 0
        self.gpu = ductile_gpu.VirtualGPU(cap)
        self.allocator = ductile_gpu.Allocator(virtual=self.gpu, sizes="2M")
        sizes = {"weights": cap // 5, "rest": cap * 6 // 10}
        self.sizes = {tag: size // (2 * MIB) * 2 * MIB for tag, size in sizes.items()}
        self.blocks: dict[str, int] = {}
        for first, (tag, size) in enumerate(self.sizes.items(), 1):
            with self.allocator.pool((1, first)):
                self.blocks[tag] = self.allocator.alloc(size)
            self.allocator.set_tag((1, first), tag, self.contents[tag])
            self.write(tag, 0)

    contents: ClassVar[dict[str, Any]] = {"weights": "keep", "rest": "keep"}

    def write(self, tag: str, value: int) -> None:
        self.gpu.fill(self.blocks[tag], value, self.sizes[tag])

    def read(self, tag: str) -> int:
        """The first and last byte, which are alike."""
        ends = (self.blocks[tag], self.blocks[tag] + self.sizes[tag] - 1)
        first, last = (self.gpu.read_back(end, 1)[0] for end in ends)
        return first if first == last else -1

    def set_others(self, held: int) -> None:
        self.gpu.set_external(held)

    def held(self) -> int:
        return self.allocator.stats().reserved_bytes

    def free_on_device(self) -> int:
        return 0

    def sleep(self) -> None:
        self.allocator.sleep()
        self.allocator.trim()

    def wake(self) -> None:
        self.allocator.wake()


class VirtualTrainer(OnVirtualGpu):
    def restore(self, step: int) -> None:
        index = index_of(step) if step else 0
        self.write("weights", self.shared[4 * (step % 2)] if step else 0)
        self.write("rest", index)

    def turn(self, step: int) -> str:
        index = index_of(step)
        if index == 1:
            self.restore(0)
        self.write("weights", (self.read("weights") * 5 + index) % 251)
        self.write("rest", self.read("rest") + 1)
        return f"{index} {self.read('weights')} {self.read('rest')}"

    def share(self, step: int) -> None:
        self.shared[4 * (step % 2)] = self.read("weights")


class VirtualGenerator(OnVirtualGpu):
    contents: ClassVar[dict[str, Any]] = {"weights": "keep", "rest": "drop"}
    loaded = 0

    def turn(self, step: int) -> str:
        if step != self.loaded:
            self.write("weights", self.shared[4 * (step % 2)])
            self.loaded = step
        self.write("rest", index_of(step))
        return f"{index_of(step)} {self.read('weights') * 3 + 1} {self.read('rest')}"


# ---- A side ------------------------------------------------------------------------------------


class Place:
    """A pair's folder: whose turn it is, weights, and what both have said."""

    def __init__(self, folder: Path, kinds: tuple[Any, Any], cap: int, margin: int) -> None:
        self.folder, self.kinds, self.cap, self.margin = folder, kinds, cap, margin
        folder.mkdir(exist_ok=True)

    def shared(self, name: str = "weights", steps: int = 2) -> memoryview:
        size = steps * self.kinds[TRAINER].shared_bytes
        with (self.folder / name).open("a+b") as file:
            file.truncate(size)
            return memoryview(mmap.mmap(file.fileno(), size))

    def words(self) -> memoryview:
        """Those of `Turns`."""
        with (self.folder / "words").open("a+b") as file:
            file.truncate(64)
            return memoryview(mmap.mmap(file.fileno(), 64)).cast("q")

    def say(self, which: int, line: str) -> None:
        """A line, by one write: whole, or not there."""
        where = os.open(self.folder / SAID[which], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.write(where, line.encode() + b"\n")
        os.close(where)

    def said(self, which: int) -> list[list[str]]:
        path = self.folder / SAID[which]
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def live(place: Place, mine: int, n_turns: int) -> None:
    """One side, until it has taken so many turns; what it makes first is part of a turn."""
    turns = Turns(place.folder, mine, lambda line: place.say(2, line))
    turns.take()
    side = place.kinds[mine](place.shared(), place.cap, place.margin)
    side.set_others(turns.words[turns.HELD + turns.other])
    begun = int(turns.words[turns.WEIGHTS])
    side.restore(begun)
    side.sleep()
    turns.give(side.held())
    for done in range(1, n_turns + 1):
        take_one(place, turns, side)
        turns.words[DONE + mine] = done


def take_one(place: Place, turns: Turns, side: Any) -> None:
    turns.take()
    side.set_others(turns.words[turns.HELD + turns.other])
    refused = wake(side)
    step = int(turns.words[turns.WEIGHTS]) + (turns.mine == TRAINER)
    line = side.turn(step) if step else "0"
    side.share(step)
    most = side.held()
    side.sleep()
    place.say(turns.mine, f"{line} | {refused} {most} {side.held()} {side.free_on_device()}")
    if turns.mine == TRAINER:
        turns.words[turns.WEIGHTS] = step
    turns.give(side.held())


def live_alone(place: Place, mine: int) -> None:
    """An episode awake. The trainer leaves the weights of each step to the generator."""
    shared, log = place.shared(), place.shared("log", EPISODE + 1)
    size = len(shared) // 2
    side = place.kinds[mine](shared, place.cap, 0)
    side.restore(0)
    for step in range(1, EPISODE + 1):
        now = shared[(step % 2) * size :][:size]
        kept = log[step * size :][:size]
        if mine != TRAINER:
            now[:] = kept
        place.say(mine, side.turn(step))
        side.share(step)
        if mine == TRAINER:
            kept[:] = now
    side.sleep()
    place.say(mine, f"asleep {free_on_device()}")


# ---- The device, as others see it --------------------------------------------------------------


def free_on_device() -> int:
    """Bytes that no process uses, without a context of one's own; 0 where no driver says so."""
    ask = ["nvidia-smi", "--query-gpu=memory.free", "--format=csv,noheader,nounits", "--id=0"]
    try:
        return int(subprocess.run(ask, capture_output=True, text=True, check=True).stdout) * MIB
    except (OSError, subprocess.CalledProcessError, ValueError):
        return 0


# ---- The parent --------------------------------------------------------------------------------


def begin(work: Callable[..., None], *given: Any) -> int:
    """A fork of this process, which has imported all and used nothing."""
    sys.stdout.flush()
    process = os.fork()
    if process:
        return process
    status = 1
    try:
        work(*given)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(status)


def end(process: int) -> None:
    status = os.waitpid(process, 0)[1]
    assert status == 0, f"a side ended with {os.waitstatus_to_exitcode(status)}"


def has_ended(process: int) -> bool:
    """Leaves the process to `end`."""
    found = os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    return found is not None


class Failed(Exception):
    pass


class Progress:
    """Says how far it is, so that a run that is ended has said something."""

    def __init__(self) -> None:
        self.begun = self.said = time.monotonic()

    @property
    def took(self) -> float:
        return time.monotonic() - self.begun

    def tell(self, how_far: Callable[[], str]) -> None:
        if time.monotonic() - self.said >= EVERY:
            self.said = time.monotonic()
            print(f"  {self.took:4.0f} s: {how_far()}", flush=True)


def check_lines(place: Place, alone: Place, mine: int) -> list[list[int]]:
    """What was said is what was said alone; returns what stands behind the bars."""
    expected = {line[0]: line[1:] for line in alone.said(mine)}
    figures = []
    for line in place.said(mine):
        bar = line.index("|")
        figures.append([int(word) for word in line[bar + 1 :]])
        if line[0] != "0" and line[1:bar] != expected[line[0]]:
            raise Failed(f"{NAMES[mine]}, step {line[0]}: {line[1:bar]}, alone {expected[line[0]]}")
    return figures


def try_alone(place: Place, free_at_first: int) -> tuple[str, int]:
    """Also: what a process needs on the device beside its memory."""
    contexts = 0
    for mine in range(2):
        end(begin(live_alone, place, mine))
        asleep = int(place.said(mine)[-1][1])
        contexts += max(free_at_first - asleep, 0) + SLACK
    first, last = (place.said(TRAINER)[i][1] for i in (0, EPISODE - 1))
    values = [float.fromhex(word) if "x" in word else float(word) for word in (first, last)]
    about = f"{EPISODE} steps, loss {values[0]:.4f} to {values[1]:.4f}"
    return f"{about}; both contexts {contexts >> 20} MiB", contexts


def try_turns(place: Place, alone: Place, n_turns: int) -> str:
    progress = Progress()
    sides = [begin(live, place, mine, n_turns) for mine in range(2)]
    words = place.words()
    for side in sides:
        while not has_ended(side):
            progress.tell(lambda: f"turns {words[DONE]} and {words[DONE + 1]} of {n_turns}")
            time.sleep(0.05)
        end(side)
    seconds = progress.took
    figures = [check_lines(place, alone, mine) for mine in range(2)]
    for mine in range(2):
        assert len(figures[mine]) == n_turns, (NAMES[mine], len(figures[mine]))
    refused = sum(row[0] for rows in figures for row in rows)
    most = [max(row[1] for row in rows) for rows in figures]
    asleep = max(row[2] for rows in figures for row in rows)
    free = [row[3] for row in figures[TRAINER][min(3, n_turns - 1) :]]
    drift = max(free) - min(free)
    times = sum(most) / place.cap
    said = f"{n_turns} each in {seconds:.1f} s, together {times:.2f} times the cap of "
    said += f"{place.cap >> 20} MiB, {refused} refused, asleep {asleep} bytes, drift {drift}"
    if refused or asleep or max(most) > place.cap or times < 1.6 or drift > 2 * MIB:
        raise Failed(said)
    return said


class Pair:
    """Two sides, one of which is killed, again and again."""

    def __init__(self, place: Place, n_kills: int, seed: int) -> None:
        self.place, self.n_kills, self.random = place, 2 * n_kills, random.Random(seed)
        self.left = self.n_kills
        self.sides = [begin(live, place, mine, 10**9) for mine in range(2)]
        self.words = place.words()
        self.step = self._wait_for_both
        self.until = time.monotonic() + SECONDS
        self.in_turn = 0

    def done(self, side: int) -> int:
        return int(self.words[DONE + side])

    @property
    def victim(self) -> int:
        return self.left % 2

    def poll(self) -> None:
        if time.monotonic() > self.until:
            done = [self.done(side) for side in range(2)]
            raise Failed(
                f"a side hangs: {self.step.__name__}, turns {done}, {self.left} kills left"
            )
        for mine, process in enumerate(self.sides):
            if process and os.waitpid(process, os.WNOHANG)[0]:
                self.sides[mine] = 0
                raise Failed(f"the {NAMES[mine]} has ended by itself")
        if self.step():
            self.until = time.monotonic() + SECONDS

    def _wait_for_both(self) -> bool:
        if not all(self.done(side) for side in range(2)):
            return False
        self.kill_at = time.monotonic() + self.random.uniform(0, 0.25)
        self.step = self._kill
        return True

    def _kill(self) -> bool:
        if time.monotonic() < self.kill_at:
            return False
        self.in_turn += self.words[Turns.WHOSE] == self.victim
        os.kill(self.sides[self.victim], signal.SIGKILL)
        os.waitpid(self.sides[self.victim], 0)
        self.sides[self.victim] = 0
        self.words[DONE + self.victim] = 0
        self.before = self.done(1 - self.victim)
        self.step = self._wait_for_other
        return True

    def _wait_for_other(self) -> bool:
        """Two turns: one of them was begun after the death."""
        if self.done(1 - self.victim) < self.before + 2:
            return False
        self.sides[self.victim] = begin(live, self.place, self.victim, 10**9)
        self.left -= 1
        self.step = self._wait_for_both
        return True

    def end(self) -> None:
        for process in filter(None, self.sides):
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)


def killed(pairs: list[Pair]) -> int:
    return sum(pair.n_kills - pair.left for pair in pairs)


def try_kills(places: list[Place], alone: Place, n_kills: int, seconds: float) -> str:
    progress = Progress()
    share = [n_kills // len(places) + (i < n_kills % len(places)) for i in range(len(places))]
    pairs = [Pair(place, n, seed) for seed, (place, n) in enumerate(zip(places, share))]
    try:
        while any(p.left or p.step != p._kill for p in pairs):
            for pair in pairs:
                if pair.left or pair.step != pair._kill:
                    pair.poll()
            if progress.took > seconds:
                break
            progress.tell(lambda: f"{killed(pairs)} of {2 * n_kills} killed")
            time.sleep(0.002)
    finally:
        for pair in pairs:
            pair.end()
    rows = [check_lines(pair.place, alone, mine) for pair in pairs for mine in range(2)]
    n_killed = killed(pairs)
    said = f"{n_killed} of {2 * n_kills} in {progress.took:.1f} s, "
    said += f"{sum(p.in_turn for p in pairs)} of them in "
    deaths = sum(len(place.said(2)) for place in places)
    said += f"the dead one's turn; {deaths} deaths were said, {sum(map(len, rows))} turns as alone"
    if n_killed < 2 * n_kills or deaths < n_killed:
        raise Failed(said)
    return said


def left_on_device(free_at_first: int) -> int:
    """Bytes, once the driver has had time to take all back."""
    until = time.monotonic() + 10
    while free_on_device() < free_at_first and time.monotonic() < until:
        time.sleep(0.2)
    return max(free_at_first - free_on_device(), 0)


def kinds_of(is_virtual: bool) -> tuple[Any, Any]:
    if is_virtual:
        return VirtualTrainer, VirtualGenerator
    import torch
    from transformer import Transformer

    with torch.device("meta"):  # no work: its threads would not be there in the forks
        model = Transformer(WORDS, layers=4, width=128, heads=4)
    OnGpu.shared_bytes = 3 * 4 * sum(p.numel() for p in model.parameters())
    return Trainer, Generator


def read_arguments() -> argparse.Namespace:
    words = argparse.ArgumentParser(description="A trainer and a generator take turns on one GPU.")
    words.add_argument("--turns", type=int, default=200, help="of each side")
    words.add_argument("--kills", type=int, default=50, help="of each side")
    words.add_argument("--pairs", type=int, default=4, help="beside each other, while killed")
    words.add_argument("--cap", type=int, default=0, help="MiB that a pair may hold (2048)")
    words.add_argument("--seconds", type=float, default=600, help="for all kills")
    words.add_argument("--virtual", action="store_true", help="without PyTorch and a GPU")
    given = words.parse_args()
    given.virtual = given.virtual or not os.path.exists("/dev/nvidiactl")
    given.cap = (given.cap or (40 if given.virtual else 2048)) * MIB
    return given


class Parts:
    """Runs one after the other, and prints what each has found."""

    def __init__(self) -> None:
        self.failed = 0

    def run(self, name: str, part: Callable[[], str]) -> None:
        try:
            said = part()
        except (Failed, AssertionError) as error:
            self.failed += 1
            said = f"FAILED: {error}"
        print(f"{name}: {said}", flush=True)


def residue(free_at_first: int) -> str:
    left = left_on_device(free_at_first)
    said = f"{left >> 20} MiB"
    if left > MOST_RESIDUE:
        raise Failed(said)
    return said


def run(given: argparse.Namespace, folder: Path) -> int:
    """How many parts failed. Without what the programs say alone there is nothing to compare."""
    kinds = kinds_of(given.virtual)
    free_at_first = 0 if given.virtual else free_on_device()
    alone = Place(folder / "alone", kinds, given.cap, 0)
    said, contexts = try_alone(alone, free_at_first)
    print(f"alone: {said}", flush=True)

    def places(n: int, name: str) -> list[Place]:
        margin = 0 if given.virtual else free_at_first - n * (contexts + given.cap)
        return [Place(folder / f"{name}{i}", kinds, given.cap, margin) for i in range(n)]

    parts = Parts()
    if given.turns:
        parts.run("turns", lambda: try_turns(*places(1, "turns"), alone, given.turns))
    if given.kills:
        found = places(min(given.pairs, given.kills), "pair")
        parts.run("kills", lambda: try_kills(found, alone, given.kills, given.seconds))
    parts.run("residue", lambda: residue(free_at_first))
    return parts.failed


def main() -> int:
    given = read_arguments()
    with tempfile.TemporaryDirectory() as folder:
        failed = run(given, Path(folder))
    print(f"{failed} parts failed" if failed else "all as it should be", flush=True)
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
