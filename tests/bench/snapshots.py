#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""usage: snapshots.py DUCTILE_BENCH

What ductile-bench makes of the snapshots in snapshots.txt, which says what its words mean."""

import ast
import json
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path

CASES = Path(__file__).with_name("snapshots.txt")
BLOCK = {"address": (0, 16), "size": (1, 10), "requested_size": (2, 10)}


class Snapshot:
    """As PyTorch writes it. The words of snapshots.txt are its methods."""

    def __init__(self):
        self.content = {"device_traces": [[]], "segments": [], "external_annotations": []}
        self.now = {}

    def add(self, word, *rest):
        if word in ("gpu", "segment", "block", "time", "oom", "entry", "free", "repeat"):
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

    def segment(self, device, address):
        self.content["segments"].append(
            {"device": int(device), "address": int(address, 16), "stream": 0, "blocks": []})

    def block(self, *words):
        said = {key: int(words[i], base) for key, (i, base) in BLOCK.items() if words[i] != "-"}
        self.content["segments"][-1]["blocks"].append({**said, "state": words[3]})


def read_cases(lines):
    """(name, snapshot, [(what becomes of it, options, the rest of the line)])"""
    cases = []
    for line in lines:
        word, _, rest = line.strip().partition(" ")
        if word == "snapshot":
            cases.append((rest, Snapshot(), []))
        elif word in ("gives", "refuses", "view"):
            options = rest.split()[:2] if rest.startswith("--") else []
            cases[-1][2].append((word, options, rest.split(" ", len(options))[-1]))
        elif not word.startswith("#") and word:
            for operation in line.split(";"):
                cases[-1][1].add(*operation.split())
    return cases


def figure(view, name):
    for part in name.split("."):
        view = view[int(part)] if part.isdigit() else view[part]
    return view


def judge(program, file, what, options, rest):
    """What is wrong, or None."""
    given = ["view", "--quick", "--contender", "ductile"] if what == "view" else ["convert"]
    words = [program, *given, *options, file, *(["-"] if what != "view" else [])]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600, check=False)
    if what == "refuses":
        return None if done.returncode == 1 and rest in done.stderr else f"{done.returncode}: {done.stderr!r}"
    if done.returncode != 0 or done.stderr:
        return f"{done.returncode}: {done.stderr!r}"
    if what == "gives":
        lines = done.stdout.splitlines()[1:]
        return None if lines == rest.split("; ") else f"gives {'; '.join(lines)}"
    view = json.loads(done.stdout.splitlines()[0])
    for claim in rest.split("; "):
        name, _, value = claim.partition(" = ")
        if figure(view, name) != ast.literal_eval(value):
            return f"{name} is {figure(view, name)}"
    return None


def main(arguments):
    if len(arguments) != 1:
        sys.exit(__doc__)
    failures = 0
    with tempfile.NamedTemporaryFile(suffix=".pickle") as file:
        for name, snapshot, claims in read_cases(CASES.read_text(encoding="utf-8").splitlines()):
            Path(file.name).write_bytes(pickle.dumps(snapshot.content, protocol=4))
            for claim in claims:
                why = judge(arguments[0], file.name, *claim)
                failures += why is not None
                print(f"FAIL {name}: {' '.join([claim[0], *claim[1], claim[2]])}: {why}\n" if why else "", end="")
    print("FAILED" if failures else "passed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
