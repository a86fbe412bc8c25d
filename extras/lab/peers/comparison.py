#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""usage: extras/lab/run compare [OPTION]... [TRACE]...

Every allocator that Ductile is measured beside, on the same traces in one run, in turns: Ductile in
C and under PyTorch, PyTorch's native allocator, expandable segments and cudaMallocAsync, RMM's pool
and arena, cudaMallocAsync and the models of PyTorch's allocators in C. In each turn each peer
replays each trace from an empty cache; the order changes from turn to turn. Then memory over time,
and the smallest capacity of each.

A peer that is missing, or fails, is named with the reason and costs no other its figures. Without a
GPU the peers that the virtual GPU can run take their turns there.

Writes to FOLDER: compare.jsonl, a row for each peer, trace and turn; compare.txt, the tables, which
are also printed; timeline.csv, memory over time; and a picture of it, where a Python has
matplotlib.
Needs a GPU, and a python3 (or $PYTHON) with torch, and librmm for RMM, for those peers.
Exit status: 0 when every peer that is present gave its figures, 1 otherwise, 2 misused.
"""

import argparse
import datetime
import json
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import compare_peers as peers
import compare_table
from rows import ROOT, bundled_traces, parse_row

CAPACITY_SECONDS = 110  # of the limit, kept for the smallest capacities
SHARE_OF_DEVICE = 0.6  # that searches beside each other may hold: none is to feel another
PLACES = ("--output", "--bench", "--python", "--plot-python")
TIMELINE = "trace,contender,event,live_bytes,reserved_bytes,live_peak_bytes,reserved_peak_bytes\n"


def say(text):
    print(f"{time.monotonic() - BEGAN:6.0f} s  {text}", file=sys.stderr, flush=True)


BEGAN = time.monotonic()


def output_of(*command):
    """Standard output of a command; nothing when it cannot be run."""
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


# ---- Where results come from -------------------------------------------------------------------


def processor():
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return "unknown processor"


def versions(python):
    """Of what the peers are made of; only what is installed."""
    program = (
        "import json\nfrom importlib import metadata\nfound = {}\n"
        "for d in metadata.distributions():\n"
        "    name = (d.metadata['Name'] or '').lower()\n"
        "    if name == 'torch' or name.startswith(('librmm', 'rmm-cu')): found[name] = d.version\n"
        "print(json.dumps(found))"
    )
    found = parse_row(output_of(python, "-c", program)) or {}
    return {
        "python": output_of(python, "-c", "import platform; print(platform.python_version())"),
        **found,
    }


def provenance(given, words):
    gpu = output_of(
        "nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"
    )
    commit = os.environ.get("DUCTILE_COMMIT") or output_of(
        "git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"
    )
    name, driver, *_ = [*(gpu.splitlines() or [""])[0].split(", "), "", ""]
    return {
        "machine": f"{processor()}, {os.cpu_count()} cores",
        "gpu": name if given.device == "cuda" else "the virtual GPU",
        "driver": driver if given.device == "cuda" else "virtual",
        "versions": versions(given.python),
        "commit": commit or "unknown",
        "command": " ".join(["extras/lab/run compare", *without_places(words)]),
        "began": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
    }


def without_places(words):
    """A command line without where this machine keeps things."""
    kept, skip = [], False
    for word in words:
        if skip:
            skip = False
        elif word in PLACES:
            skip = True
        elif not word.startswith(tuple(f"{place}=" for place in PLACES)):
            kept.append(os.path.relpath(word, ROOT) if os.path.isabs(word) else word)
    return kept


# ---- One comparison ----------------------------------------------------------------------------


class Comparison:
    """The peers, their rows, and the time that is left."""

    def __init__(self, given, words):
        self.given = given
        self.end = BEGAN + given.limit
        self.out = given.output
        self.out.mkdir(parents=True, exist_ok=True)
        self.where = provenance(given, words)
        self.rows, self.missing, self.workers = [], {}, {}
        self.file = (self.out / "compare.jsonl").open("w", encoding="utf-8")
        for text in compare_table.described(self.where):
            print(f"# {text}", file=self.file)

    def left(self):
        return self.end - time.monotonic()

    def add(self, row):
        """Keeps a row at once: a run that is ended loses none that it had."""
        for key in ("file", "command", "version", "driver", "commit", "device"):
            row.pop(key, None)
        self.rows.append(row)
        print(json.dumps({**row, **self.where}), file=self.file, flush=True)

    def fail(self, peer, trace, turn, reason):
        say(f"{peer.name}, {trace}: FAILED: {reason}")
        self.add({"peer": peer.name, "trace": trace, "turn": turn, "failed": reason})

    def miss(self, name, reason):
        say(f"{name} is missing: {reason}")
        self.missing[name] = reason
        self.add({"peer": name, "missing": reason})

    # ---- Getting ready

    def build(self, what):
        """Builds a program beside this. Why not, in a line, or nothing."""
        command = [str(ROOT / "extras/lab/peers/run"), "--build", what]
        where = {**os.environ, "PYTHON": self.given.python}
        try:
            done = subprocess.run(
                command, env=where, capture_output=True, text=True, timeout=240, check=False
            )
        except OSError as error:
            return f"it cannot be built: {error.strerror}"
        except subprocess.TimeoutExpired:
            return "it did not build within 240 s"
        return why_not(done.stderr) if done.returncode != 0 else ""

    def prepare(self):
        wanted = [peer for peer in peers.PEERS if peer.name in self.given.only]
        if self.given.device == "virtual":
            for peer in wanted:
                if peer.name not in peers.ON_VIRTUAL:
                    self.miss(peer.name, "it needs a GPU")
            self.present = [peer for peer in wanted if peer.name not in self.missing]
            return
        self.build_programs(wanted)
        self.start_workers([p for p in wanted if not p.in_c and p.name not in self.missing])
        self.present = [peer for peer in wanted if peer.name not in self.missing]

    def build_programs(self, wanted):
        programs = {"torch": peers.TORCH, "rmm": peers.RMM}
        needed = [what for what, path in programs.items() if any(p.program == path for p in wanted)]
        if not needed:
            return
        say(f"building what drives {' and '.join(needed)}")
        with ThreadPoolExecutor(len(needed)) as pool:
            reasons = dict(zip(needed, pool.map(self.build, needed)))
        for peer in wanted:
            reason = next((reasons[w] for w in needed if programs[w] == peer.program), "")
            if reason:
                self.miss(peer.name, reason)

    def start_workers(self, wanted):
        given = self.given
        options = ["--repeat", str(given.passes), "--seconds", str(given.seconds)]
        traces = [str(trace) for trace in given.traces]
        say(f"starting {', '.join(peer.name for peer in wanted)}")
        for peer in wanted:
            try:
                self.workers[peer.name] = peers.Worker(peer, traces, options, ROOT)
            except peers.Failed as error:
                self.miss(peer.name, str(error))
        for name, worker in list(self.workers.items()):
            try:
                worker.hear(60)
            except peers.Failed as error:
                self.miss(name, str(error))
                del self.workers[name]

    # ---- Turns

    def groups(self, of=None):
        """Peers in C by the process that replays them; the others by themselves."""
        found = {}
        for peer in self.present if of is None else of:
            found.setdefault(peer.group or peer.name, []).append(peer)
        return list(found.values())

    def bench_arguments(self, group, trace, *more):
        settings = [word for text in group[0].settings for word in ("--set", text)]
        names = ",".join(peer.contender for peer in group)
        return [*more, "--device", self.given.device, "--contender", names, *settings, str(trace)]

    def measure_in_c(self, group, trace, turn):
        at = turn % len(group)
        group = group[at:] + group[:at]
        more = ["--calls", "--repeat", str(self.given.passes)]
        rows, reason = peers.run_bench(
            self.given.bench, self.bench_arguments(group, trace, *more), min(120, self.left()), ROOT
        )
        answered = {row.get("contender"): row for row in rows}
        for peer in group:
            row = answered.get(peer.contender)
            if row is None:
                self.fail(peer, name_of(trace), turn, reason or "it gave no row")
            elif row.get("absent"):
                if peer.name not in self.missing:
                    self.miss(peer.name, row.get("reason", "absent"))
            else:
                self.add({"peer": peer.name, "turn": turn, **row})
        self.present = [peer for peer in self.present if peer.name not in self.missing]

    def measure_in_worker(self, peer, index, turn):
        worker = self.workers[peer.name]
        try:
            worker.ask(f"measure {index}")
            row = worker.hear(min(120, max(5, self.left())))
        except peers.Failed as error:
            self.fail(peer, name_of(self.given.traces[index]), turn, str(error))
            return
        self.add({"peer": peer.name, "turn": turn, **peers.known_of(peer, row)})

    def take_turn(self, turn):
        for index, trace in enumerate(self.given.traces):
            groups = self.groups()
            at = (turn + index) % len(groups)
            for group in groups[at:] + groups[:at]:
                if self.left() < 5:
                    say("the time is up")
                    return
                if group[0].in_c:
                    self.measure_in_c(group, trace, turn)
                else:
                    self.measure_in_worker(group[0], index, turn)
            say(f"turn {turn + 1}: {name_of(trace)}")

    def take_turns(self):
        longest = 0.0
        kept = 0 if self.given.no_capacity else min(CAPACITY_SECONDS, self.given.limit / 4)
        for turn in range(self.given.turns):
            if turn > 0 and self.left() - kept < 1.1 * longest:
                say(f"no turn {turn + 1}: the time is up")
                break
            began = time.monotonic()
            self.take_turn(turn)
            longest = max(longest, time.monotonic() - began)

    # ---- Memory over time

    def draw_over_time(self):
        """Gathers timeline.csv. One pass of each peer."""
        whole = self.out / "timeline.csv"
        part = self.out / "part.csv"
        with whole.open("w", encoding="utf-8") as out:
            out.write(TIMELINE)
            names = {peer.name for peer in self.present}
            for group in self.groups([p for p in self.present if p.not_drawn not in names]):
                if self.left() < 5:
                    say("no more memory over time: the time is up")
                    break
                samples = self.samples_in_c if group[0].in_c else self.samples_in_worker
                for peer in samples(group, part):
                    out.writelines(renamed(part, peer))
        part.unlink(missing_ok=True)

    def samples_in_c(self, group, part):
        """Yields a peer of the group whenever the file has samples."""
        traces = [str(trace) for trace in self.given.traces]
        arguments = self.bench_arguments(group, traces[0], "--timeline", str(part)) + traces[1:]
        _, reason = peers.run_bench(self.given.bench, arguments, min(120, self.left()), ROOT)
        if reason:
            say(f"{group[0].name}, memory over time: FAILED: {reason}")
        else:
            yield group[0]

    def samples_in_worker(self, group, part):
        (peer,) = group
        for index in range(len(self.given.traces)):
            try:
                self.workers[peer.name].ask(f"timeline {index} {part}")
                self.workers[peer.name].hear(min(60, max(5, self.left())))
                yield peer
            except peers.Failed as error:
                say(f"{peer.name}, memory over time: FAILED: {error}")

    # ---- Smallest capacities

    def find_capacities(self):
        say("smallest capacities")
        with ThreadPoolExecutor(max(1, (os.cpu_count() or 2) // 4)) as pool:
            jobs = [
                (group, trace)
                for group in self.groups()
                if group[0].in_c
                for trace in self.given.traces
            ]
            for found in pool.map(lambda job: self.find_in_c(*job), jobs):
                for row in found:
                    self.add(row)
        for index, trace in enumerate(self.given.traces):
            for batch in self.batches(trace):
                self.find_in_workers(batch, index)
            if self.workers:
                say(f"smallest capacities: {name_of(trace)}")

    def find_in_c(self, group, trace):
        """On the virtual GPU, which holds the same bytes; the driver's pool cannot be capped."""
        group = [peer for peer in group if peer.name in peers.ON_VIRTUAL]
        if not group:
            return []
        arguments = self.bench_arguments(group, trace, "--min-capacity")
        arguments[arguments.index("--device") + 1] = "virtual"
        rows, reason = peers.run_bench(self.given.bench, arguments, min(120, self.left()), ROOT)
        found = {row.get("contender"): capacity_of(row) for row in rows}
        lost = {"failed": reason or "it gave no row"}
        return [capacity_row(p, name_of(trace), found.get(p.contender) or lost) for p in group]

    def batches(self, trace):
        """Peers that search at the same time, so that together they hold less than a share of the
        device. What each holds is known from its turns."""
        held = {}
        for row in self.rows:
            if row.get("trace") == name_of(trace) and "reserved_peak_bytes" in row:
                held[row["peer"]] = max(held.get(row["peer"], 0), row["reserved_peak_bytes"])
        room = SHARE_OF_DEVICE * self.given.device_bytes
        found, used = [[]], 0
        for peer in self.present:
            if peer.name not in self.workers or peer.name not in held:
                continue
            if found[-1] and used + held[peer.name] > room:
                found.append([])
                used = 0
            found[-1].append(peer)
            used += held[peer.name]
        return [batch for batch in found if batch]

    def find_in_workers(self, batch, index):
        trace = name_of(self.given.traces[index])
        asked = []
        for peer in batch:
            if self.left() < 3:
                self.add(capacity_row(peer, trace, {"skipped": "the time was up"}))
                continue
            try:
                self.workers[peer.name].ask(f"capacity {index}")
                asked.append(peer)
            except peers.Failed as error:
                self.fail(peer, trace, -1, str(error))
        for peer in asked:
            seconds = min(self.given.capacity_seconds, max(1, self.left()))
            try:
                row = self.workers[peer.name].hear(seconds)
                self.add(capacity_row(peer, trace, capacity_of(row)))
            except peers.Failed as error:
                self.add(capacity_row(peer, trace, {"skipped": str(error)}))
                say(f"{peer.name}, {trace}: no smallest capacity: {error}")

    # ---- All of it

    def run(self):
        self.prepare()
        if not self.present:
            say("no peer is present")
            return 1
        self.take_turns()
        self.draw_over_time()
        if not self.given.no_capacity:
            self.find_capacities()
        self.file.close()
        text = compare_table.tables(self.rows, self.where)
        (self.out / "compare.txt").write_text(text, encoding="utf-8")
        print(text, flush=True)
        lost = self.without_figures()
        if lost:
            say(f"the time was up before {'; '.join(lost)} had a turn")
        say(f"done; results are in {self.out.name}")
        return 1 if lost or any("failed" in row for row in self.rows) else 0

    def without_figures(self):
        """Peers and traces that no turn has come to."""
        had = {(row["peer"], row["trace"]) for row in self.rows if "turn" in row}
        cells = [(p.name, name_of(trace)) for trace in self.given.traces for p in self.present]
        return [", ".join(cell) for cell in cells if cell not in had]


def why_not(said):
    """A build's own last words, and a compiler's or linker's first error."""
    errors = [line for line in said.splitlines() if "error" in line.lower()]
    return "; ".join([peers.last_line(said), *errors[:1]]).replace(f"{ROOT}/", "")


def name_of(trace):
    name = Path(trace).name
    for ending in (".gz", ".trace", ".pickle"):
        name = name[: -len(ending)] if name.endswith(ending) else name
    return name


def capacity_of(row):
    """What a row says of the smallest capacity; nothing where no run completed."""
    return {key: row[key] for key in row if key.startswith("min_capacity")}


def capacity_row(peer, trace, found):
    return {"peer": peer.name, "trace": trace, "kind": "capacity", **found}


def renamed(part, peer):
    """The lines of a timeline, with the peer's own name where settings tell it from another."""
    for line in part.read_text(encoding="utf-8").splitlines(keepends=True):
        if line.startswith("#") or line == TIMELINE:
            continue
        fields = line.split(",")
        if peer.settings:
            fields[1] = peer.name
        yield ",".join(fields)


def draw(out, python):
    words = [ROOT / "bench/plot.py", out / "timeline.csv", out / "timeline.svg"]
    done = subprocess.run([python, *map(str, words)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        say(f"no picture: {peers.last_line(done.stderr)}")


# ---- The command -------------------------------------------------------------------------------


def device_bytes():
    text = output_of("nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits")
    try:
        return int(text.splitlines()[0]) * 2**20
    except (IndexError, ValueError):
        return 0


def parse(words):
    parser = argparse.ArgumentParser(
        prog="extras/lab/run compare", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage=argparse.SUPPRESS,
    )  # fmt: skip
    add = parser.add_argument
    add("--quick", action="store_true", help="1 turn of 2 passes, no smallest capacities")
    add("--turns", type=int, help="of each peer on each trace, while there is time (3)")
    add("--passes", type=int, help="of each trace in a turn, the first one cold (5)")
    add("--seconds", type=float, default=4, help="PyTorch and RMM: no third pass begins later (4)")
    add("--limit", type=float, help="seconds for everything but the picture (430; quick: 150)")
    add("--capacity-seconds", type=float, default=45, help="for one smallest capacity (45)")
    add("--no-capacity", action="store_true", help="no smallest capacities")
    add("--only", help="these peers, separated by commas")
    add("--device", choices=("auto", "cuda", "virtual"), default="auto")
    add("--output", type=Path, default=ROOT / "bench/out", metavar="FOLDER", help="(bench/out)")
    add("--bench", help=argparse.SUPPRESS)
    add("--python", default=os.environ.get("PYTHON", "python3"), help=argparse.SUPPRESS)
    add("--plot-python", default="", help=argparse.SUPPRESS)
    add("traces", nargs="*", metavar="TRACE", help="(those of bench/traces)")
    given = parser.parse_args(words)
    return complete(parser, given)


def complete(parser, given):
    """Fills in what was not said; ends the program, with one line, where it cannot be done."""
    given.turns = given.turns or (1 if given.quick else 3)
    given.passes = given.passes or (2 if given.quick else 5)
    given.limit = given.limit or (150 if given.quick else 430)
    given.no_capacity = given.no_capacity or given.quick
    given.only = given.only.split(",") if given.only else [peer.name for peer in peers.PEERS]
    unknown = [name for name in given.only if name not in peers.BY_NAME]
    if unknown:
        parser.error(f"no peer is called {unknown[0]}: there are {', '.join(peers.BY_NAME)}")
    given.device_bytes = 0 if given.device == "virtual" else device_bytes()
    if given.device == "cuda" and not given.device_bytes:
        parser.error("--device cuda: nvidia-smi finds no GPU")
    given.device = "cuda" if given.device_bytes else "virtual"
    given.output = given.output.resolve()  # processes run in the tree
    given.traces = [os.path.relpath(trace, ROOT) for trace in given.traces] or bundled_traces()
    lost = [trace for trace in given.traces if not (ROOT / trace).is_file()]
    if lost:
        parser.error(f"there is no trace {lost[0]}")
    given.bench = (
        given.bench
        or shutil.which("ductile-bench")
        or str(ROOT / "build/release/bench/ductile-bench")
    )
    return given


def main(words):
    given = parse(words)
    comparison = Comparison(given, words)
    try:
        status = comparison.run()
    finally:
        for worker in comparison.workers.values():
            worker.stop()
    draw(comparison.out, given.plot_python or given.python)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
