#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""usage: recordings.py DUCTILE_BENCH

What ductile-bench makes of the traces and snapshots in recordings.txt, of the models in models.txt and of the command
lines in misuse.txt. Each says what its words mean."""

import ast
import gzip
import json
import operator
import pickle
import re
import sys
import tempfile
from collections import Counter
from pathlib import Path

from running import Runs

CASES = [Path(__file__).with_name(f"{name}.txt") for name in ("recordings", "models", "misuse")]
TRACES = Path(__file__).resolve().parents[2] / "bench/traces"
FILE = "case.trace"
SIGNS = {"=": operator.eq, "<": operator.lt, ">": operator.gt}
# For misuse.txt.
FILES = {"cut.trace": b"a 1 512 0\na 2 512\n", "good.trace": b"a 1 512 0\n", "empty.trace": b"# nothing\n"}
OPTIONS = re.compile(r"(?:--[a-z]+(?: |=)\S+ )*")
FREE, FIRST_LIVE = 1, 3  # cells of a map
LAYOUT = ("live_bytes", "pending_bytes", "free_bytes", "held_bytes", "holes", "largest_hole")
BLOCK = {"address": (0, 16), "size": (1, 10), "requested_size": (2, 10)}


WORDS = "gpu kept segment block time called pool_id owner oom entry free repeat again".split()


class Snapshot:
    """As PyTorch writes it. The words of recordings.txt are its methods."""

    def __init__(self):
        self.content = {"device_traces": [[]], "segments": [], "external_annotations": []}
        self.segments = self.content["segments"]
        self.now, self.segment_pool = {}, {}

    def add(self, word, *rest):
        if word in WORDS:
            getattr(self, word)(*rest)
        elif word in ("START", "END"):
            note = {"stage": word, "name": rest[0], "device": int(rest[1:] == ("@1",)), **self.now}
            self.content["external_annotations"].append(note)
        else:
            address, size, stream = (*rest, "0")[:3]
            self.put({"action": word, "addr": int(address, 16), "size": int(size), "stream": int(stream, 16)})

    def put(self, entry):
        self.content["device_traces"][-1].append({**entry, **self.now})

    def time(self, value):
        self.now["time_us"] = int(value)

    def called(self, name):
        self.now["frames"] = [{"name": name, "filename": "m.py", "line": 3}]

    def pool_id(self, first, second):
        self.now["pool_id"] = (int(first), int(second))

    def owner(self, first, second):
        self.segment_pool = {"segment_pool_id": (int(first), int(second))}

    def gpu(self):
        self.content["device_traces"].append([])

    def free(self, *rest):
        self.add("free_requested", *rest)
        self.add("free_completed", *rest)

    def oom(self, size, free):
        self.put({"action": "oom", "size": int(size), "device_free": int(free)})

    def repeat(self, n):
        """The history once more for each of so many GPUs: the file names it in two bytes."""
        self.content["device_traces"] = int(n) * self.content["device_traces"]

    def again(self, index):
        """An entry that the file names once more."""
        history = self.content["device_traces"][-1]
        history.append(history[int(index)])

    def entry(self, *words):
        self.put(ast.literal_eval(" ".join(words)))

    def kept(self, device, number):
        """What the recorder kept of a refusal: the segments that follow."""
        self.segments = []
        refusal = {"device": int(device), "number": int(number), "segments": self.segments}
        self.content.setdefault("refusals", []).append(refusal)

    def segment(self, device, address):
        where = {"device": int(device), "address": int(address, 16), "stream": 0}
        self.segments.append({**where, **self.segment_pool, "blocks": []})

    def block(self, *words):
        said = {key: int(words[i], base) for key, (i, base) in BLOCK.items() if words[i] != "-"}
        segment = self.segments[-1]
        segment["blocks"].append({**said, "state": words[3]})
        segment["total_size"] = sum(block.get("size", 0) for block in segment["blocks"])


def in_bytes(word):
    """"3M" and "1M+512" are numbers."""
    if not re.fullmatch(r"\d+[KMGT](\+\d+)?", word):
        return word
    units = {"K": 10, "M": 20, "G": 30, "T": 40}
    return str(sum(int(part[:-1]) << units[part[-1]] if part[-1] in units else int(part) for part in word.split("+")))


class Text:
    """A trace, a line of it for each operation."""

    def __init__(self):
        self.lines = []

    def add(self, *words):
        self.lines.append(" ".join(in_bytes(word) for word in words))


class Bytes:
    """Of a file."""

    def __init__(self, content):
        self.bytes = content


def bytes_of(text):
    """As Python would write them."""
    return ast.literal_eval(f'b"{text}"')


class Model:
    """The trace that `generate` writes."""

    def __init__(self, words):
        self.words = words.split()


def history_with_size(text):
    """A snapshot of one entry, whose size is what these instructions of a pickle leave."""
    there = 0x1234567
    history = Snapshot()
    history.add("alloc", "1000", str(there))
    return content_of(None, history).replace(b"J" + there.to_bytes(4, "little"), bytes_of(text))


def content_of(runs, recording):
    if isinstance(recording, Snapshot):
        return pickle.dumps(recording.content, protocol=4)
    if isinstance(recording, Model):  # churn is no trace
        return written(runs, recording.words) if recording.words[0] != "churn" else b""
    return recording.bytes if isinstance(recording, Bytes) else "\n".join([*recording.lines, ""]).encode()


def written(runs, words):
    runs.says(" ".join(words), ["generate", *words, "--write-trace", "written"])
    content = (runs.folder / "written").read_bytes()
    (runs.folder / "written").unlink()
    return content


def read_short(word, rest):
    """A case of one line."""
    expected, _, text = rest.partition(" | ")
    if word == "bad":
        case = Text()
        case.lines = text.split("; ")
    else:
        case = Bytes(history_with_size(text) if word == "size" else bytes_of(text))
    return f"{word} {text}", case, [("gives" if expected.startswith("a ") else "refuses", [], expected)]


def read_cases(lines):
    """(name, what is recorded, [(what becomes of it, options, the rest of the line)])"""
    cases = []
    for line in lines:
        word, _, rest = line.strip().partition(" ")
        if word in ("snapshot", "trace"):
            cases.append((rest, Snapshot() if word == "snapshot" else Text(), []))
        elif word == "recorded":
            cases.append((rest, Bytes((TRACES / f"{rest}.trace.gz").read_bytes()), []))
        elif word == "model":
            cases.append((f"model {rest}", Model(rest), []))
        elif word in ("bad", "pickle", "size"):
            cases.append(read_short(word, rest))
        elif word == "misuse":
            cases.append((rest, None, [(word, [], rest)]))
        elif word in JUDGES:
            options = OPTIONS.match(f"{rest} ").group().split(" ")[:-1]
            cases[-1][2].append((word, options, " ".join(rest.split(" ")[len(options):])))
        elif word and (word != "#" or isinstance(cases[-1][1] if cases else None, Text) and rest.startswith("version")):
            for operation in line.split(";"):
                cases[-1][1].add(*operation.split())
    return cases


# ---- Figures -----------------------------------------------------------------------------------

def is_meant(row, which):
    """"refused": whether it is; "stack=2"."""
    key, _, value = which.partition("=")
    return not which or (row[key] == int(value) if value else bool(row[key]))


def figure(view, name):
    """"recorded.holes", "refusals.0.event"; "layout recorded", what was held there in parts; "sum holders.bytes", "sum
    holders.bytes refused" of those that are, "sum holders.bytes stack=2" of those that have it; "sums holders.moments",
    of each moment; "n points", how many; "shown map.stacks", the numbers in its columns. None: not said."""
    word, _, rest = name.partition(" ")
    if word == "n":
        return len(figure(view, rest))
    if word == "shown":
        return sorted({number for column in figure(view, rest) for number in column[1::2]})
    if word in ("sum", "sums"):
        path, _, which = rest.partition(" ")
        rows, key = path.split(".")
        found = [row[key] for row in view[rows] if key in row and is_meant(row, which)]
        return sum(found) if word == "sum" else [sum(column) for column in zip(*found)]
    if word == "layout":
        of = figure(view, rest)
        return of and [of[key] for key in LAYOUT]
    for part in name.split("."):
        view = view[int(part)] if part.isdigit() else view.get(part)
    return view


class Walk:
    """What the lines of a trace say, one after the other. The words of models.txt are its members."""

    def __init__(self, lines):
        self.blocks, self.live, self.n = {}, Counter(), Counter()
        self.most_on_sides = self.live_at_ends = 0
        self.turns = []  # of side streams that allocate
        for line in lines:
            kind, *numbers = line.split()
            getattr(self, kind, self.count)(kind, *map(int, numbers))
        self.live_bytes, self.live_on_sides = sum(self.live.values()), self.on_sides()
        self.live_blocks = self.of("a") - self.of("f")

    def on_sides(self):
        return sum(live for stream, live in self.live.items() if stream != 0)

    def count(self, kind, *numbers):
        self.n[kind] += 1
        self.n[f"{kind} by {'sides' if numbers and numbers[-1] else 0}"] += 1

    def a(self, kind, block, size, stream):
        self.count(kind, stream)
        self.blocks[block] = size, stream
        self.live[stream] += size
        self.most_on_sides = max(self.most_on_sides, self.on_sides())
        if stream != 0 and self.turns[-1:] != [stream]:
            self.turns.append(stream)

    def f(self, kind, block):
        size, stream = self.blocks[block]
        self.count(kind, stream)
        self.live[stream] -= size

    def e(self, kind, stream):
        self.count(kind, stream)
        self.live_at_ends += self.live[stream]

    d = e

    def of(self, name):
        """"live_bytes"; "u", how many there are; "u by 0", those of stream 0; "u by sides", those of all others."""
        return getattr(self, name) if name in vars(self) else self.n[name]


def lines_of(content):
    return [line for line in content.decode().splitlines() if not line.startswith("#")]


# ---- Judging -----------------------------------------------------------------------------------

def expect(runs, name, claims, value_of):
    """Each of "NAME = VALUE; NAME < VALUE; NAME > VALUE"."""
    for claim in claims.split("; "):
        of, sign, value = re.fullmatch(r"(.*) ([=<>]) (.*)", claim).groups()
        got, wanted = value_of(of), ast.literal_eval(in_bytes(value))
        if not SIGNS[sign](got, wanted):
            runs.complain(name, f"{of} is {got}, not {sign} {wanted}")


def judge_misuse(runs, name, case, options, rest):
    expected, *lines = rest.split(" | ")
    status, _, complaint = expected.partition(" ")
    for words in lines:
        runs.refuses(words, words.split(), int(status), f"ductile-bench: {complaint}")


def judge_refuses(runs, name, case, options, rest):
    parts = rest.split(" ", 1) if rest.startswith(":") else [rest]  # ":3: REASON", of line 3
    runs.refuses(name, ["convert", *options, FILE, "-"], 1, *parts)


def judge_gives(runs, name, case, options, rest):
    said = (runs.says(name, ["convert", *options, FILE, "-"]) or "").splitlines()
    said = said if rest.startswith("# version") else said[1:]
    if said != rest.split("; "):
        runs.complain(name, f"gives {'; '.join(said)}")


def judge_view(runs, name, case, options, rest, words=("view", "--quick", "--contender", "ductile"), row=0):
    said = runs.says(name, [*words, *options, FILE])
    if said is not None:
        rows = [json.loads(line) for line in said.splitlines()]
        expect(runs, name, rest, lambda of: figure({**rows[row], "rows": rows}, of))


def judge_run(runs, name, case, options, rest):
    judge_view(runs, name, case, options, rest, ("view", "--quick"), 1)


def judge_adds_up(runs, name, case, options, rest):
    """At every moment, what is held is live, pending, free or cached, and the map shows live and free in proportion."""
    run = json.loads(runs.says(name, ["view", "--quick", *options, FILE]).splitlines()[1])
    row_bytes, columns = run["map"]["row_bytes"], run["map"]["columns"]
    points = [dict(zip(run["point_fields"], point)) for point in run["points"]]
    for point, column in zip(points, columns, strict=True):
        shown = Counter()
        for n, cell in zip(column[::2], column[1::2]):
            shown["live" if cell >= FIRST_LIVE else "free" if cell == FREE else "other"] += n * row_bytes
        sound = point["held"] == sum(point[of] for of in ("live", "pending", "free", "cached"))
        sound = sound and point["live"] >= point["asked"]
        if not sound or any(abs(shown[of] - point[of]) > 4 * row_bytes for of in ("live", "free")):
            runs.complain(name, f"{point}, and the map has {shown}")


def judge_replay(runs, name, case, options, rest):
    judge_view(runs, name, case, options, rest, ("replay", "--json", "--device", "virtual"))


def judge_has(runs, name, case, options, rest):
    walk = Walk(lines_of((runs.folder / FILE).read_bytes()))
    expect(runs, name, rest, walk.of)


def judge_cut(runs, name, case, options, rest):
    """Whatever is missing at the end."""
    content = (runs.folder / FILE).read_bytes()
    for n in range(len(content)):
        runs.write(FILE, content[:n])
        runs.refuses(f"{name}: {n} bytes of it", ["convert", FILE, "-"], 1)


def judge_seeds(runs, name, case, options, rest):
    """Of one seed always the same, also by the command that the trace begins with; of another something else."""
    first, other = written(runs, case.words), written(runs, [*case.words, "--seed", "2"])
    told = first.decode().splitlines()[0].split()[3:]  # "# ductile-bench generate ..."
    if written(runs, told) != first or lines_of(first) == lines_of(other):
        runs.complain(name, "the seed does not decide")


def judge_in_tree(runs, name, case, options, rest):
    """bench/traces/synthetic has it."""
    kept = gzip.decompress((TRACES / "synthetic" / f"{rest}.trace.gz").read_bytes())
    if lines_of(kept) != lines_of(written(runs, case.words)):
        runs.complain(name, "it writes another one")


def rows_of(runs, name, words):
    said = runs.says(name, [*words, "--json", "--device", "virtual"]) or ""
    return [json.loads(line) for line in said.splitlines()]


def judge_replays(runs, name, case, options, rest):
    """Its trace comes to the same peaks as the model itself."""
    peaks = [[(row["live_peak_bytes"], row["reserved_peak_bytes"]) for row in rows_of(runs, name, [*words, *options])]
             for words in (["generate", *case.words], ["replay", FILE])]
    if peaks[0] != peaks[1] or not peaks[0]:
        runs.complain(name, f"{peaks[0]}, and its trace {peaks[1]}")


def judge_runs(runs, name, case, options, rest):
    """Of every run, of a model or of the replays of a trace, and of how many: "4: completed = True"."""
    n, _, claims = rest.partition(": ")
    words = ["generate", *case.words] if isinstance(case, Model) else ["replay", FILE]
    rows = rows_of(runs, name, [*words, *options])
    if len(rows) != int(n):
        runs.complain(name, f"{len(rows)} runs, not {n}")
    for row in rows:
        expect(runs, f"{name}: {row['contender']}", claims, row.get)


def judge_timeline(runs, name, case, options, rest):
    runs.says(name, ["generate", *case.words, *options, "--json", "--device", "virtual", "--timeline", "timeline.csv"])
    if not any(line.startswith(rest) for line in (runs.folder / "timeline.csv").read_text().splitlines()):
        runs.complain(name, "no such row")


def judge_like(runs, name, case, options, rest):
    """But for the numbers of side streams."""
    shapes = []
    for words in (case.words, [*case.words, *options]):
        lines = lines_of(written(runs, words))
        shapes.append([re.sub(r"(a \d+ \d+|u \d+) [1-9]\d*", r"\1 side", line) for line in lines])
    if shapes[0] != shapes[1]:
        runs.complain(name, "they differ")


def judge_steps(runs, name, case, options, rest):
    """They are found where they are marked, but for a border at the end."""
    content, ends = (runs.folder / FILE).read_bytes(), []
    for lines in (content, content.replace(b"\ns\n", b"\n")):
        runs.write(FILE, lines)
        said = runs.says(name, ["view", "--quick", "--contender", "ductile", FILE])
        ends.append(json.loads(said.splitlines()[0])["step_ends"])
    if ends[0][:-1] != ends[1]:
        runs.complain(name, f"{ends[1]}, not {ends[0][:-1]}")


JUDGES = {name.removeprefix("judge_"): judge for name, judge in list(globals().items()) if name.startswith("judge_")}


def main(arguments):
    if len(arguments) != 1:
        sys.exit(__doc__)
    lines = [line for file in CASES for line in file.read_text("utf-8").replace("\\\n", " ").splitlines()]
    with tempfile.TemporaryDirectory() as folder:
        runs = Runs(arguments[0], folder)
        for name, content in FILES.items():
            runs.write(name, content)
        for name, case, claims in read_cases(lines):
            for what, options, rest in claims:
                if case is not None:
                    runs.write(FILE, content_of(runs, case))
                JUDGES[what](runs, f"{name}: {' '.join([what, *options, rest])}", case, options, rest)
    print("FAILED" if runs.failures else "passed")
    return 1 if runs.failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
