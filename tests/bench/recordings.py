#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""usage: recordings.py DUCTILE_BENCH

What ductile-bench makes of the traces and snapshots in recordings.txt, which says what its words mean."""

import ast
import json
import pickle
import re
import subprocess
import sys
import tempfile
from pathlib import Path

CASES = Path(__file__).with_name("recordings.txt")
COMMANDS = {
    "view": ["view", "--quick", "--contender", "ductile"],
    "replay": ["replay", "--json", "--device", "virtual"],
}
OPTIONS = re.compile(r"(?:--[a-z]+ \S+ )*")
LAYOUT = ("live_bytes", "pending_bytes", "free_bytes", "held_bytes", "holes", "largest_hole")
BLOCK = {"address": (0, 16), "size": (1, 10), "requested_size": (2, 10)}


class Snapshot:
    """As PyTorch writes it. The words of recordings.txt are its methods."""

    def __init__(self):
        self.content = {"device_traces": [[]], "segments": [], "external_annotations": []}
        self.segments = self.content["segments"]
        self.now = {}

    def add(self, word, *rest):
        if word in ("gpu", "kept", "segment", "block", "time", "oom", "entry", "free", "repeat"):
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
        self.now = {"time_us": int(value)}

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

    def entry(self, *words):
        self.put(ast.literal_eval(" ".join(words)))

    def kept(self, device, number):
        """What the recorder kept of a refusal: the segments that follow."""
        self.segments = []
        refusal = {"device": int(device), "number": int(number), "segments": self.segments}
        self.content.setdefault("refusals", []).append(refusal)

    def segment(self, device, address):
        self.segments.append({"device": int(device), "address": int(address, 16), "stream": 0, "blocks": []})

    def block(self, *words):
        said = {key: int(words[i], base) for key, (i, base) in BLOCK.items() if words[i] != "-"}
        segment = self.segments[-1]
        segment["blocks"].append({**said, "state": words[3]})
        segment["total_size"] = sum(block.get("size", 0) for block in segment["blocks"])


def in_bytes(word):
    """"3M" and "1M+512" are numbers."""
    if not re.fullmatch(r"\d+[KM](\+\d+)?", word):
        return word
    return str(sum(int(part[:-1]) << {"K": 10, "M": 20}[part[-1]] if part[-1] in "KM" else int(part)
                   for part in word.split("+")))


class Text:
    """A trace, a line of it for each operation."""

    def __init__(self):
        self.lines = []

    def add(self, *words):
        self.lines.append(" ".join(in_bytes(word) for word in words))


def content_of(recording):
    if isinstance(recording, Snapshot):
        return pickle.dumps(recording.content, protocol=4)
    return "\n".join([*recording.lines, ""]).encode()


def read_cases(lines):
    """(name, snapshot or text, [(what becomes of it, options, the rest of the line)])"""
    cases = []
    for line in lines:
        word, _, rest = line.strip().partition(" ")
        if word in ("snapshot", "trace"):
            cases.append((rest, Snapshot() if word == "snapshot" else Text(), []))
        elif word == "bad":
            reason, _, text = rest.partition(" | ")
            cases.append((f"bad line {text}", Text(), [("refuses", [], reason)]))
            cases[-1][1].lines = text.split("; ")
        elif word in ("gives", "refuses", "view", "replay"):
            options = OPTIONS.match(rest).group().split()
            cases[-1][2].append((word, options, rest.split(" ", len(options))[-1]))
        elif word and (word != "#" or isinstance(cases[-1][1] if cases else None, Text) and rest.startswith("version")):
            for operation in line.split(";"):
                cases[-1][1].add(*operation.split())
    return cases


def figure(view, name):
    """"recorded.holes", "refusals.0.event", "sum holders.bytes"; "sum holders.bytes refused" of those that are;
    "layout recorded", what was held there in parts. None: not said."""
    word, _, rest = name.partition(" ")
    if word == "sum":
        path, _, which = rest.partition(" ")
        rows, key = path.split(".")
        return sum(row[key] for row in view[rows] if not which or row[which])
    if word == "layout":
        of = figure(view, rest)
        return of and [of[key] for key in LAYOUT]
    for part in name.split("."):
        view = view[int(part)] if part.isdigit() else view.get(part)
    return view


def judge(program, file, what, options, rest):
    """What is wrong, or None."""
    words = [program, *COMMANDS.get(what, ["convert"]), *options, file, *([] if what in COMMANDS else ["-"])]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600, check=False)
    if what == "refuses":
        parts = rest.split(" ", 1) if rest.startswith(":") else [rest]  # ":3: REASON", of line 3
        is_told = done.returncode == 1 and all(part in done.stderr for part in parts)
        return None if is_told else f"{done.returncode}: {done.stderr!r}"
    if done.returncode != 0 or done.stderr:
        return f"{done.returncode}: {done.stderr!r}"
    if what == "gives":
        lines = done.stdout.splitlines()
        lines = lines if rest.startswith("# version") else lines[1:]
        return None if lines == rest.split("; ") else f"gives {'; '.join(lines)}"
    view = json.loads(done.stdout.splitlines()[0])
    for claim in rest.split("; "):
        name, _, value = claim.partition(" = ")
        if figure(view, name) != ast.literal_eval(in_bytes(value)):
            return f"{name} is {figure(view, name)}"
    return None


def main(arguments):
    if len(arguments) != 1:
        sys.exit(__doc__)
    failures = 0
    with tempfile.NamedTemporaryFile() as file:
        for name, recording, claims in read_cases(CASES.read_text(encoding="utf-8").splitlines()):
            Path(file.name).write_bytes(content_of(recording))
            for claim in claims:
                why = judge(arguments[0], file.name, *claim)
                failures += why is not None
                print(f"FAIL {name}: {' '.join([claim[0], *claim[1], claim[2]])}: {why}\n" if why else "", end="")
    print("FAILED" if failures else "passed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
