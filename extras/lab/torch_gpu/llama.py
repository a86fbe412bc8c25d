# SPDX-License-Identifier: Apache-2.0
"""A Llama in training on every GPU of the machine, under each allocator: what is held for what is
in use, how long a step takes, whether losses agree.

    python llama.py                                     # every case, each way in turn
    python llama.py --cases fsdp2,long --output rows.jsonl
    python llama.py --ways native,ductile+sizes:64M --cases fsdp2 --rounds 8

16 layers of width 2,048, recomputed in the backward pass; batch and length change at every step. A
case is one way to divide the training; for each way to allocate it has processes of its own, one
on each GPU, and a time limit.

  fsdp2, ddp            fully_shard of each layer; DistributedDataParallel
  fsdp1                 FullyShardedDataParallel of each layer, in turns of two steps at most
  fsdp1-unlimited       the same with limit_all_gathers=False
  fsdp1-t5              the same with a T5 of 8 and 8 layers, as wide
  moe                   fully_shard, and experts on every rank behind an uneven all-to-all
  compiled              fully_shard, with each layer under torch.compile
  compiled-step         DDP, with the whole step under torch.compile, the optimizer included; 8
                        layers, because 16 compile for minutes
  ...-hook              the same with TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK=1
  capped                fsdp2 with 2 % more memory than Ductile has in use
  pairs                 fsdp2, two processes of Ductile on each GPU at the same time
  long                  fsdp2 on Ductile, 300 steps: does it ever hang?
  tp                    tensor parallelism: heads and MLPs divided among the ranks
  uneven                fsdp2, where each rank has another batch and length at each step
  refused               DDP under a cap of 24 GiB, where one rank after another gets a batch that
                        cannot fit: it catches what PyTorch raises, and all leave the step out
  asleep                fsdp2 on Ductile; between turns all ranks sleep and wake at the same time:
                        seconds, bytes, what stays in use on each GPU
  exact-...             deterministic algorithms: losses have to be native's to the bit

Ways are native, expandable, and ductile, with options as in ductile+reuse:wait. They
take turns of a few steps, so that all see the same machine, and go through all shapes twice: the
first time libraries load what a shape needs. The ratio of the same turns' times of the second time
is given with its 95 % interval. The last three measure no time, and run beside each other.
Memory is that of the rank which uses least of what it holds; active is what is used and what was
freed while work on it was under way.

Under FSDP, of all all-gathers of the second time and of all ranks, the median and the
99th percentile: gap_us from where FSDP allocates a unit's whole parameters until the all-gather is
enqueued; alloc_us of that in the allocation; wait_us before it in the rate limiter (fsdp1 alone
has one); ahead_ms from there until the GPU's computation has come so far; ahead_units how many of
the step's all-gathers before it are still ahead of the computation.

Ends with status 1 when a way fails, or Ductile misses what it is held to: native's losses (to the
bit, or within 1 % where attention is not deterministic), expandable's share of memory in use, in
fsdp2 0.92 of it with ductile+sizes:2M and 0.97 with +reuse:wait beside that, no
step that takes longer than native's by more than the noise, no retry. Rows are written as cases
end: a run that is ended keeps those it has.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import math
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Callable, NamedTuple, TextIO

import allocators
import child
import gaps
import turns

MIB = 1 << 20
WAYS = ("native", "expandable", "ductile", "ductile+reuse:wait")
KINDS = ("fsdp2", "ddp", "moe", "compiled", "compiled-step")
TIGHT = "ductile+sizes:2M"
# Of memory held, what fsdp2 has to have in use.
FLOORS = {TIGHT: 0.92, f"{TIGHT}+reuse:wait": 0.97}
CAP = 1.02
REFUSED_CAP = 24 << 30
SLEEPS = 3  # of a turn
SLEPT = ("sleep_s", "wake_s", "bytes", "left")
Shape = list[int]
Row = dict[str, Any]


def draw(steps: int, batches: tuple[int, int], longest: int) -> list[Shape]:
    """Batch and length of each step, the same for every way and rank."""
    choose = random.Random(7)
    return [
        [choose.randint(*batches), choose.randrange(128, longest + 1, 64)] for _ in range(steps)
    ]


# ---- The processes of one way ------------------------------------------------------------------


def environment(way: str, hook: bool) -> dict[str, str]:
    where = allocators.training_environment(way.removeprefix("capped "))
    where.update(CUBLAS_WORKSPACE_CONFIG=":4096:8", OMP_NUM_THREADS="4")
    where.update(TORCHINDUCTOR_COMPILE_THREADS="4")  # many processes compile at the same time
    where["TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK"] = str(int(hook))
    return where


class Group:
    """The ranks of one training under one allocator. One that fails stays as it is, with `error`:
    what it has answered until then counts."""

    def __init__(self, way: str, plan: dict[str, Any], hook: bool) -> None:
        self.way, self.error = way, ""
        self.answers: list[list[dict[str, Any]]] = []
        self.sleeps: list[list[dict[str, Any]]] = []  # as answers
        self.folder = tempfile.TemporaryDirectory(prefix="llama-")
        plan = {**plan, "store": str(Path(self.folder.name) / "store")}
        script = str(Path(__file__).with_name("llama_rank.py"))
        where = environment(way, hook)
        self.ranks = [
            turns.Worker(f"{way}, rank {rank}", [script, json.dumps({**plan, "rank": rank})], where)
            for rank in range(plan["ranks"])
        ]

    def ask(self, **told: Any) -> None:
        try:
            for rank in self.ranks if not self.error else ():
                rank.send(json.dumps(told))
        except turns.Failed as failed:
            self.error = str(failed)

    def hear(self, deadline: float) -> list[dict[str, Any]]:
        """The answers of all ranks; nothing from a group that has failed."""
        try:
            return [rank.hear(deadline) for rank in self.ranks] if not self.error else []
        except turns.Failed as failed:
            self.error = str(failed)
            return []

    def take(self, shapes: Sequence[Shape], deadline: float) -> None:
        self.ask(do="take", shapes=shapes)
        self.keep(self.hear(deadline))

    def keep(self, answers: list[dict[str, Any]]) -> None:
        if answers:
            self.answers.append(answers)

    def close(self) -> None:
        for rank in self.ranks:
            rank.close()
        self.folder.cleanup()


def begin(groups: Iterable[Group], deadline: float, cap: int = 0) -> None:
    """Makes the models, all at the same time."""
    for group in groups:
        group.ask(do="begin", cap=cap)
    for group in groups:
        group.hear(deadline)


# ---- How the ways of a case are played ---------------------------------------------------------


class Game(NamedTuple):
    """What a case's ways are to do."""

    groups: list[Group]
    shapes: list[Shape]
    steps: int  # of a turn
    deadline: float

    def turns(self) -> list[list[Shape]]:
        return [self.shapes[at : at + self.steps] for at in range(0, len(self.shapes), self.steps)]


def take_turns(game: Game) -> None:
    for turn, shapes in enumerate(game.turns()):
        for group in turns.rotated(game.groups, turn):
            group.take(shapes, game.deadline)


def play_in_turns(game: Game) -> None:
    begin(game.groups, game.deadline)
    take_turns(game)


def play_together(game: Game) -> None:
    """All ways at the same time."""
    begin(game.groups, game.deadline)
    for shapes in game.turns():
        for group in game.groups:
            group.ask(do="take", shapes=shapes)
        for group in game.groups:
            group.keep(group.hear(game.deadline))


def play_capped(game: Game) -> None:
    """The first way shows what is in use; then it takes turns with the others, which are capped."""
    free, *capped = game.groups
    begin([free], game.deadline)
    for shapes in game.turns():
        free.take(shapes, game.deadline)
    if free.error:
        for group in capped:
            group.error = f"not begun, because {free.way} without a cap has failed"
        return
    used = max(answer["used"] for answer in free.answers[-1])
    free.answers.clear()
    begin(capped, game.deadline, int(CAP * used))
    take_turns(game)


def play_under_cap(game: Game) -> None:
    begin(game.groups, game.deadline, REFUSED_CAP)
    take_turns(game)


def play_asleep(game: Game) -> None:
    """Each turn is the first after a sleep but the first one."""
    begin(game.groups, game.deadline)
    for shapes in game.turns():
        for group in game.groups:
            group.take(shapes, game.deadline)
            group.ask(do="asleep", rounds=SLEEPS)
            group.sleeps.append(group.hear(game.deadline))


# ---- Cases -------------------------------------------------------------------------------------


class Case(NamedTuple):
    name: str
    kind: str
    play: Callable[[Game], None]
    seconds: float
    hook: bool = False
    exact: bool = False
    ways: tuple[str, ...] = ()  # instead of those that were asked for
    is_uneven: bool = False
    turn: int = sys.maxsize  # steps of it, at most

    @property
    def is_timed(self) -> bool:
        return self.play is not play_together


def all_cases() -> dict[str, Case]:
    compiling = {"compiled": 120, "compiled-step": 300}
    made = []
    for kind, hook in itertools.product(KINDS, (False, True)):
        seconds = (60 if hook else 120) + compiling.get(kind, 0)
        made.append(Case(kind + "-hook" * hook, kind, play_in_turns, seconds, hook=hook))
    capped = ("ductile", "capped ductile", "capped expandable")
    for kind in ("fsdp1", "fsdp1-unlimited", "fsdp1-t5"):
        made.append(Case(kind, kind, play_in_turns, 60, turn=2))
    made.append(Case("capped", "fsdp2", play_capped, 120, ways=capped))
    made.append(Case("pairs", "fsdp2", play_together, 120, ways=("ductile", "ductile")))
    made.append(Case("tp", "tp", play_in_turns, 120))
    made.append(Case("uneven", "fsdp2", play_in_turns, 120, is_uneven=True))
    made.append(Case("refused", "refused", play_under_cap, 120))
    made.append(Case("asleep", "fsdp2", play_asleep, 120, ways=("ductile",)))
    made.append(Case("exact-tp", "tp", play_together, 90, exact=True))
    made.append(Case("long", "fsdp2", play_together, 450, ways=("ductile",)))
    for kind in (*KINDS, "fsdp1-t5"):
        seconds = 90 + compiling.get(kind, 0)
        made.append(Case(f"exact-{kind}", kind, play_together, seconds, exact=True))
    return {case.name: case for case in made}


CASES = all_cases()


def turn_of(case: Case, given: argparse.Namespace) -> int:
    return int(min(given.steps, case.turn))


def steps_of(case: Case, given: argparse.Namespace) -> int:
    if case.name == "long":
        return int(given.long)
    if case.exact:
        return int(given.exact)
    rounds = min(given.rounds, given.hook_rounds) if case.hook else given.rounds
    return int(rounds * turn_of(case, given))


def draw_shapes(case: Case, given: argparse.Namespace) -> list[Shape]:
    batch, longest = (2, 1024) if case.exact else (6, 2048)
    if given.cpu_check:
        batch, longest = 2, 192
    # For a batch of 1 all would be compiled once more.
    batches = (2, max(batch, 3)) if case.kind.startswith("compiled") else (1, batch)
    return draw(steps_of(case, given), batches, longest)


def shapes_of(case: Case, given: argparse.Namespace) -> list[Shape]:
    return draw_shapes(case, given) * (2 if case.is_timed else 1)


class Match:
    """A case whose processes have been started, to import what they need."""

    def __init__(self, case: Case, given: argparse.Namespace) -> None:
        self.case, self.given = case, given
        self.seconds = given.seconds or case.seconds
        plan = {
            "kind": case.kind, "exact": case.exact, "ranks": given.ranks,
            "device": "cpu" if given.cpu_check else "cuda", "layers": given.layers,
            "seconds": given.limit, "shapes": draw_shapes(case, given), "is_uneven": case.is_uneven,
        }  # fmt: skip
        ways = case.ways or given.ways
        self.groups = [Group(way, plan, case.hook) for way in ways]

    def play(self, end: float) -> list[Row]:
        began = time.monotonic()
        deadline = min(began + self.seconds, end)
        shapes, turn = shapes_of(self.case, self.given), turn_of(self.case, self.given)
        game = Game(self.groups, shapes, turn, deadline)
        try:
            self.case.play(game)
        finally:
            self.close()
        took = round(time.monotonic() - began, 1)
        return [{**row, "case_seconds": took} for row in rows_of(self.case, self.groups)]

    def close(self) -> None:
        for group in self.groups:
            group.close()


# ---- What came of it ---------------------------------------------------------------------------


def memory_of(answers: Sequence[dict[str, Any]]) -> Row:
    """Of the rank that uses least of what it holds; what is counted is of all."""
    worst = min(answers, key=lambda answer: answer["used"] / max(answer["held"], 1))
    return {
        "backend": worst["backend"],
        **{f"{name}_mib": round(worst[name] / MIB, 1) for name in ("used", "active", "held")},
        "efficiency": round(worst["used"] / max(worst["held"], 1), 4),
        **{name: sum(answer[name] for answer in answers) for name in child.COUNTS},
    }


def row_of(case: Case, group: Group) -> Row:
    row: Row = {"case": case.name, "way": group.way, "ranks": len(group.ranks)}
    if group.answers:
        row.update(memory_of(group.answers[-1]))
        losses = [[x for turn in group.answers for x in turn[r]["losses"]]
                  for r in range(len(group.ranks))]  # fmt: skip
        row["steps"] = len(losses[0])
        row["last_loss"] = float.fromhex(losses[0][-1])
        row["left_out"] = sum(math.isnan(float.fromhex(loss)) for loss in losses[0])
        row["digest"] = hashlib.sha256(json.dumps(losses).encode()).hexdigest()[:16]
        row["first_turn_ms"] = round(1e3 * sum(group.answers[0][0]["times"]), 1)
    row.update(sleeps_of(group))
    if group.error:
        row["error"] = group.error
    return row


def sleeps_of(group: Group) -> Row:
    """Of each rank all its sleeps, which began when those of the other ranks did."""
    heard = [turn for turn in group.sleeps if turn]  # nothing from a group that has failed
    ranks = range(len(heard[0]) if heard else 0)
    return {
        name: [[x for turn in heard for x in turn[rank][name]] for rank in ranks]
        for name in (SLEPT if heard else ())
    }


def warm(group: Group) -> list[list[dict[str, Any]]]:
    """In the first half of the turns each shape is new."""
    return group.answers[len(group.answers) // 2 :]


def step_times(group: Group) -> list[float]:
    """Mean step of each turn in ms."""
    return [1e3 * statistics.fmean(turn[0]["times"]) for turn in warm(group)]


def gaps_of(group: Group) -> Row:
    """Of each figure of its all-gathers the median and the 99th percentile."""
    found: dict[str, list[float]] = {}
    for rank in itertools.chain(*warm(group)):
        for name, values in gaps.figures(rank.get("gathers", ())).items():
            found.setdefault(name, []).extend(values)
    return {
        name: [round(turns.percentile(values, percent), 3) for percent in (50, 99)]
        for name, values in found.items()
    }


def add_times(rows: list[Row], groups: list[Group]) -> None:
    """Times beside those of the first way: native, or what is not capped."""
    base = step_times(groups[0])
    for row, group in zip(rows, groups):
        own = step_times(group)
        if own and base:
            row["step_ms"] = round(statistics.fmean(own), 1)
            ratio, noise = turns.paired(own, base)
            row["of_first"] = round(ratio, 4)
            row["of_first_noise"] = round(noise, 4) if math.isfinite(noise) else None


def rows_of(case: Case, groups: list[Group]) -> list[Row]:
    rows = [row_of(case, group) for group in groups]
    if case.is_timed:
        add_times(rows, groups)
        for row, group in zip(rows, groups):
            row.update(gaps_of(group))
    for row in rows:
        row["missed"] = missed_by(case, row, rows)
    return rows


def missed_by(case: Case, row: Row, rows: list[Row]) -> list[str]:
    """What a way is held to and misses. PyTorch's own ways are only held to end."""
    if "error" in row or "backend" not in row:
        return ["failed"]
    if "ductile" not in row["way"]:
        return []
    found = [] if row["backend"] in ("ductile", "cpu") else ["is not on Ductile"]
    if row["retries"] and case.kind != "refused":
        found.append(f"{row['retries']} retries")
    by_way = {other["way"]: other for other in rows if "error" not in other}
    return [*found, *missed_losses(case, row, by_way), *missed_memory(case, row, by_way),
            *missed_time(row), *missed_steps(case, row)]  # fmt: skip


def missed_steps(case: Case, row: Row) -> Iterator[str]:
    """Of `refused` one step in four, and no other."""
    wanted = row["steps"] // 4 if case.kind == "refused" else 0
    if row["left_out"] != wanted:
        yield f"{row['left_out']} of {row['steps']} steps were left out, and not {wanted}"


def missed_losses(case: Case, row: Row, by_way: dict[str, Row]) -> Iterator[str]:
    native = by_way.get("native")
    if native is None or native["steps"] != row["steps"]:
        return
    if case.exact and row["digest"] != native["digest"]:
        yield "losses differ from native's"
    elif abs(row["last_loss"] - native["last_loss"]) > 0.01 * native["last_loss"]:
        yield "the last loss is further than 1 % from native's"


def missed_memory(case: Case, row: Row, by_way: dict[str, Row]) -> Iterator[str]:
    other = by_way.get("expandable")
    if case.is_timed and other and row["efficiency"] < other["efficiency"]:
        yield "uses less of what it holds than expandable segments"
    floor = FLOORS.get(row["way"], 0) if case.name == "fsdp2" else 0
    if row["efficiency"] < floor and row["backend"] != "cpu":
        yield f"uses less than {floor} of what it holds"


def missed_time(row: Row) -> Iterator[str]:
    if row.get("of_first_noise") is not None and row["of_first"] - row["of_first_noise"] > 1:
        yield "a step takes longer than the first way's"


def text_of(row: Row) -> str:
    if "backend" not in row:
        return f"    {row['way']:33}FAILED: {row['error']}"
    parts = [
        f"    {row['way']:33}used {row['used_mib']:9.1f} MiB  active {row['active_mib']:9.1f}  "
        f"held {row['held_mib']:9.1f} {row['efficiency']:.4f}  {row['retries']} retries  "
        f"{row['pressure_waits']} waits, {row['pressure_returns']} returns  "
        f"loss {row['last_loss']:.4f} after {row['steps']} steps  {row['digest']}"
    ]
    if "step_ms" in row:
        noise = row["of_first_noise"]
        parts.append(f"{row['step_ms']:7.1f} ms a step, {row['of_first']:.3f} "
                     f"+-{'?' if noise is None else f'{noise:.3f}'} of the first way's; "
                     f"first turn {row['first_turn_ms']:.0f} ms")  # fmt: skip
    if "sleep_s" in row:
        parts.append(f"\n        {said_of_sleeps(row)}")
    if "gap_us" in row:
        figures = (f"{name} {row[name][0]:.1f}, {row[name][1]:.1f}" for name in gaps.FIGURES)
        parts.append(f"\n        median and 99th percentile: {'; '.join(figures)}")
    if "error" in row:
        parts.append(f"\n        FAILED: {row['error']}")
    elif row["missed"]:
        parts.append(f"\n        MISSED: {'; '.join(row['missed'])}")
    return "  ".join(parts)


def said_of_sleeps(row: Row) -> str:
    """The slowest rank's medians, and what all of them move in a second."""
    slow = [max(map(statistics.median, row[name])) for name in ("sleep_s", "wake_s")]
    whole = sum(map(statistics.median, row["bytes"])) / 1e9
    left = max(max(rank) for rank in row["left"]) / MIB
    return (
        f"asleep in {slow[0]:.3f} s, {whole / slow[0]:.1f} GB/s of all ranks; awake in "
        f"{slow[1]:.3f} s, {whole / slow[1]:.1f} GB/s; {left:.0f} MiB of a GPU in use meanwhile"
    )


def write(rows: list[Row], given: argparse.Namespace, output: TextIO | None) -> bool:
    """Prints a case's rows. Did every way hold?"""
    if given.json:
        for row in rows:
            print(json.dumps(row), flush=True)
    else:
        seconds = rows[0]["case_seconds"]
        print(f"{rows[0]['case']}, {seconds:.0f} s", *map(text_of, rows), sep="\n", flush=True)
    for row in rows if output else ():
        print(json.dumps(row), file=output, flush=True)
    return not any(row["missed"] for row in rows)


# ---- The command -------------------------------------------------------------------------------


def play_timed(cases: list[Case], given: argparse.Namespace, end: float) -> Iterator[list[Row]]:
    """One after another. The next one's processes import meanwhile; they use no GPU yet."""
    waiting: Match | None = None
    for case, after in zip(cases, [*cases[1:], None]):
        if time.monotonic() >= end:
            break
        match = waiting or Match(case, given)
        waiting = Match(after, given) if after else None
        yield match.play(end)
    if waiting:
        waiting.close()


def play_beside(cases: list[Case], given: argparse.Namespace, end: float) -> Iterator[list[Row]]:
    """Several at the same time."""

    def play(case: Case) -> list[Row]:
        return Match(case, given).play(end) if time.monotonic() < end else []

    with ThreadPoolExecutor(given.beside) as pool:
        yield from filter(None, pool.map(play, cases))


def play_all(cases: list[Case], given: argparse.Namespace) -> Iterator[list[Row]]:
    end = time.monotonic() + given.limit
    yield from play_timed([case for case in cases if case.is_timed], given, end)
    yield from play_beside([case for case in cases if not case.is_timed], given, end)


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", default=",".join(CASES), help="which, separated by commas")
    parser.add_argument("--ways", default=",".join(WAYS), help="which, separated by commas")
    parser.add_argument("--ranks", type=int, help="processes, one on each GPU (default: all GPUs)")
    parser.add_argument("--rounds", type=int, default=4, help="turns that count, after as many")
    parser.add_argument("--hook-rounds", type=int, default=2, help="the same with NCCL's hook")
    parser.add_argument("--steps", type=int, default=4, help="steps of a turn")
    parser.add_argument("--layers", type=int, help="of the model (default: 16)")
    parser.add_argument("--long", type=int, default=300, help="steps of `long`")
    parser.add_argument("--exact", type=int, default=8, help="steps of exact cases")
    parser.add_argument("--beside", type=int, default=2, help="untimed cases beside each other")
    parser.add_argument("--seconds", type=float, help="limit for each case (default: its own)")
    parser.add_argument("--limit", type=float, default=3600, help="seconds for all together")
    parser.add_argument("--output", type=Path, help="also write rows to this file, as JSON lines")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument(
        "--cpu-check", action="store_true", help="tiny models on the CPU, to try out this script"
    )
    given = parser.parse_args(words)
    turns.split_lists(given, cases=CASES)
    given.ways = given.ways.split(",")
    for way in given.ways:
        if way.split("+")[0] not in allocators.NAMES:
            raise SystemExit(f"--ways: there is no {way}: there are {', '.join(WAYS)}")
    return given


def count_gpus(on_cpu: bool) -> int:
    import torch

    return 2 if on_cpu else torch.cuda.device_count()


def main() -> int:
    given = parse()
    if given.ranks is None:
        given.ranks = count_gpus(given.cpu_check)
    cases = [CASES[name] for name in given.cases]
    output = given.output.open("a", encoding="utf-8") if given.output else None
    good, n_played = True, 0
    for rows in play_all(cases, given):
        good = write(rows, given, output) and good
        n_played += 1
    if n_played < len(cases):
        print(f"{len(cases) - n_played} cases were not begun: the time is up", file=sys.stderr)
    return 0 if good and n_played == len(cases) else 1


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status)  # no thread of a case that hung is waited for
