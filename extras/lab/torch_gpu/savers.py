# SPDX-License-Identifier: Apache-2.0
"""How fast memory falls asleep and wakes, beside torch_memory_saver and the link's own speed.

Tensors of a tag leave the device and return: with contents of 1, 10 and 40 GiB, in the first cycle,
in the first where host memory was made ahead, and in later ones (the median, and the slowest);
without contents 10 GiB in 100 and in 2,000 tensors; at last many small tensors with gaps between
them, which cannot be copied as one. Each way of doing it has a process of its own:

    whole     ductile_gpu.memory_saver in hook mode "preload": Ductile is PyTorch's allocator
    beside    the same in hook mode "torch": pools beside PyTorch's own
    tms       torch_memory_saver in hook mode "torch", as it is installed

The link is copies between page-locked memory and the device, in the same run. A line is printed as
each figure is found, so that a run which is ended keeps what it has; then what was wanted, held or
not. Contents are looked at after each resume. Ends with status 1 if contents differ, a process
failed, or something wanted is not so. torch_memory_saver's processes end with an assertion of their
own at their exit, where tensors of its regions are freed: behind all of its rows that is told, and
fails nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib import metadata
from typing import Any, NamedTuple

import child
import contents

GIB = 1 << 30
LEAST_SHARE = 0.9  # of the link, from the second cycle on, and in the first that is made ahead
LEAST_TIMES_FIRST = 2.0  # the speed of torch_memory_saver, in a first cycle that is not
# The time of torch_memory_saver, without contents. On an H200 the first cycle of 100 tensors
# took 1.8 to 2.3 of it: what is wanted is not so there.
MOST_TIMES_EMPTY = 1.5


class Way(NamedTuple):
    """One process."""

    library: str
    gib: float
    tensors: int
    contents: str  # keep or drop
    ahead: bool = False
    cycles: int = 6
    gaps: bool = False

    @property
    def name(self) -> str:
        words = f"{self.library} {self.gib:g} GiB {self.contents} in {self.tensors}"
        return words + (" with gaps" if self.gaps else "") + (", ahead" if self.ahead else "")


def ways() -> list[Way]:
    """What tells most comes first; what takes long comes last."""
    found = [
        Way("whole", 1, 8, "keep"),
        Way("whole", 1, 8, "keep", ahead=True),
        Way("tms", 1, 8, "keep", cycles=3),
        Way("whole", 10, 100, "keep"),
        Way("whole", 10, 100, "keep", ahead=True),
        Way("beside", 10, 100, "keep"),
        Way("tms", 10, 100, "keep", cycles=3),
    ]
    for tensors in (100, 2000):
        found += [Way(one, 10, tensors, "drop") for one in ("whole", "beside", "tms")]
    return [
        *found,
        Way("whole", 40, 400, "keep", ahead=True, cycles=4),
        Way("whole", 40, 400, "keep", cycles=4),
        Way("whole", 1, 4096, "keep", ahead=True, gaps=True),
        Way("tms", 40, 400, "keep", cycles=2),
    ]


# ---- In a process of its own -------------------------------------------------------------------


def answer(**found: Any) -> None:
    os.write(ANSWERS, json.dumps(found).encode() + b"\n")


def measure_link(n_bytes: int = 4 * GIB) -> None:
    import torch

    host = torch.empty(n_bytes, dtype=torch.uint8, pin_memory=True)
    device = torch.empty(n_bytes, dtype=torch.uint8, device="cuda")
    for name, target, source in (("out", host, device), ("in", device, host)):
        times = []
        for _ in range(5):
            start = child.synchronized("cuda")
            target.copy_(source, non_blocking=True)
            times.append(child.synchronized("cuda") - start)
        answer(what=name, speed=n_bytes / min(times[1:]) / 1e9)


def the_saver(library: str) -> Any:
    if library == "tms":
        from torch_memory_saver import torch_memory_saver as saver
    else:
        from ductile_gpu.memory_saver import torch_memory_saver as saver
    saver.hook_mode = "preload" if library == "whole" else "torch"
    return saver


def make(saver: Any, way: Way) -> list[Any]:
    import torch

    each = int(way.gib * GIB) // way.tensors
    made = []
    with saver.region(tag="slept", enable_cpu_backup=way.contents == "keep"):
        for i in range(way.tensors * (2 if way.gaps else 1)):
            made.append(torch.full((each,), i % 251, dtype=torch.uint8, device="cuda"))
    if way.gaps:
        del made[1::2]
    return made


def timed(action: Any) -> float:
    start = child.synchronized("cuda")
    action("slept")
    return child.synchronized("cuda") - start


def what_differs(made: list[Any], way: Way) -> str:
    """Of the first tensor that a kernel does not find as it was made; "" where there is none."""
    step = 2 if way.gaps else 1
    for i, one in enumerate(made):
        value = i * step % 251
        if not bool((one == value).all()):
            said = contents.of_tensor(bytes([value]) * one.nbytes, one)
            return f"tensor {i}: {said or 'after a kernel, a copy finds it right'}"
    return ""


def measure(way: Way) -> None:
    import torch

    saver = the_saver(way.library)
    made = make(saver, way)
    if way.ahead:
        import ductile_gpu.torch as memory

        start = time.perf_counter()
        memory.reserve_host(int(way.gib * GIB) + (64 << 20))
        answer(what="made ahead", seconds=time.perf_counter() - start)
    for cycle in range(way.cycles):
        before = torch.cuda.mem_get_info()[0]
        pause = timed(saver.pause)
        freed = torch.cuda.mem_get_info()[0] - before
        resume = timed(saver.resume)
        differs = what_differs(made, way) if way.contents == "keep" else ""
        times = {"pause": pause, "resume": resume}
        answer(what="cycle", cycle=cycle, **times, freed=freed, differs=differs)


# ---- What the parent makes of it ---------------------------------------------------------------


class Found:
    """What has been measured."""

    def __init__(self) -> None:
        self.link: dict[str, float] = {}
        self.cycles: dict[Way, list[dict[str, Any]]] = {}
        self.wrong: list[str] = []

    def speed(self, way: Way, what: str, seconds: float) -> str:
        n_bytes = way.gib * GIB
        if way.contents == "drop":
            return f"{seconds * 1e3:9.1f} ms"
        link = self.link.get("out" if what == "pause" else "in", 0)
        said = f"{seconds * 1e3:9.1f} ms {n_bytes / seconds / 1e9:6.2f} GB/s"
        return said + (f" {n_bytes / seconds / 1e9 / link:6.1%} of the link" if link else "")

    def take(self, way: Way, said: dict[str, Any]) -> None:
        if said["what"] == "made ahead":
            print(f"{way.name}: host memory made in {said['seconds']:.2f} s", flush=True)
            return
        self.cycles.setdefault(way, []).append(said)
        if said["differs"]:
            self.wrong.append(f"{way.name}: contents of cycle {said['cycle']}: {said['differs']}")
        if said["freed"] < 0.95 * way.gib * GIB:
            self.wrong.append(f"{way.name}: a pause gave back {said['freed'] >> 20} MiB")
        if said["cycle"] == 0:
            for what in ("pause", "resume"):
                print(f"{way.name}: first {what:6} {self.speed(way, what, said[what])}", flush=True)

    def take_end(self, way: Way, status: int) -> None:
        is_whole = len(self.cycles.get(way, [])) == way.cycles
        if status != 0 and way.library == "tms" and is_whole:
            print(f"{way.name}: ended with status {status} behind its last row", flush=True)
        elif status != 0:
            self.wrong.append(f"{way.name}: the process failed")

    def times(self, way: Way, what: str, when: str) -> list[float]:
        rows = self.cycles.get(way, [])
        return [float(row[what]) for row in (rows[:1] if when == "first" else rows[1:])]

    def tell_later(self, way: Way) -> None:
        for what in ("pause", "resume"):
            times = self.times(way, what, "later")
            if times:
                middle = self.speed(way, what, statistics.median(times))
                worst = self.speed(way, what, max(times))
                print(f"{way.name}: later {what:6} {middle}, slowest {worst}", flush=True)


def run_child(word: str, found: Any) -> int:
    """The exit status. Each answer is taken as it comes; what the process prints goes to standard
    error."""
    read, write = os.pipe()
    command = [sys.executable, __file__, "--child", word, "--answers", str(write)]
    with subprocess.Popen(command, pass_fds=[write], stdout=sys.stderr) as process:
        os.close(write)
        with os.fdopen(read) as lines:
            for line in lines:
                found(json.loads(line))
    return process.returncode


def wanted(found: Found) -> Iterator[tuple[str, bool]]:
    ways = [way for way in found.cycles if way.library != "tms" and not way.gaps]
    for way, what, when in itertools.product(ways, ("pause", "resume"), ("first", "later")):
        times = found.times(way, what, when)
        if times:
            ours = statistics.median(times)
            yield from against_link(found, way, what, when, ours)
            yield from against_other(found, way, what, when, ours)


def against_link(
    found: Found, way: Way, what: str, when: str, ours: float
) -> Iterator[tuple[str, bool]]:
    link = found.link.get("out" if what == "pause" else "in", 0) * 1e9
    if link and way.contents == "keep" and (when == "later" or way.ahead):
        share = way.gib * GIB / ours / link
        yield f"{way.name}: {when} {what} at {share:.1%} of the link", share >= LEAST_SHARE


def against_other(
    found: Found, way: Way, what: str, when: str, ours: float
) -> Iterator[tuple[str, bool]]:
    others = [other for other in found.cycles if other[:4] == ("tms", *way[1:4])]
    times = found.times(others[0], what, when) if others and not way.ahead else []
    if not times:
        return
    theirs = statistics.median(times)
    if way.contents == "drop":
        said = f"{when} {what} in {ours / theirs:.2f} of torch_memory_saver's time"
        yield f"{way.name}: {said}", ours / theirs <= MOST_TIMES_EMPTY
    elif when == "first":
        said = f"first {what} at {theirs / ours:.1f} times torch_memory_saver's speed"
        yield f"{way.name}: {said}", theirs / ours >= LEAST_TIMES_FIRST


def main() -> int:
    found = Found()

    def take_link(said: dict[str, Any]) -> None:
        found.link[said["what"]] = said["speed"]
        print(f"link {said['what']}: {said['speed']:.2f} GB/s", flush=True)

    with contextlib.suppress(metadata.PackageNotFoundError):
        print(f"torch_memory_saver {metadata.version('torch_memory_saver')}", flush=True)
    until = time.monotonic() + GIVEN.seconds
    if run_child("link", take_link) != 0:
        found.wrong.append("the link was not measured")
    for i, way in enumerate(ways()):
        if not re.search(GIVEN.only, way.name):
            continue
        if time.monotonic() > until:
            found.wrong.append(f"{way.name}: not begun, the time is up")
            continue
        status = run_child(str(i), lambda said, way=way: found.take(way, said))
        found.tell_later(way)
        found.take_end(way, status)
    held = list(wanted(found))
    for claim, is_so in held:
        print(f"{'ok    ' if is_so else 'FAILED'}  {claim}", flush=True)
    for line in found.wrong:
        print(f"FAILED  {line}", flush=True)
    failed = len(found.wrong) + sum(not is_so for _, is_so in held)
    print(f"{len(held)} claims looked at, {failed} failed")
    return min(failed, 1)


_words = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
_words.add_argument("--seconds", type=float, default=300, help="no process begins after")
_words.add_argument("--only", default="", help="ways whose names match: 'gaps|drop'")
_words.add_argument("--child", help="link, or the number of a way: in this process")
_words.add_argument("--answers", type=int, default=1, help="where a child answers")
GIVEN = _words.parse_args()
ANSWERS = GIVEN.answers

if __name__ == "__main__":
    if GIVEN.child == "link":
        measure_link()
    elif GIVEN.child:
        measure(ways()[int(GIVEN.child)])
    else:
        sys.exit(main())
