#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What ductile-bench does with files that are wrong, and with snapshots that Python and PyTorch
themselves wrote, and its help. Each bad line of a trace and each instruction of a pickle has its case
in recordings.txt, each bad word of a command line in misuse.txt.

Wrong ones: a status that is not 0, nothing on standard output, exactly one line on standard error,
and no file that was not there before. Good ones: the figures that a model of ten lines gives.

usage: bad_input.py DUCTILE_BENCH
"""

import gzip
import json
import os
import pickle
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from running import Runs

GOOD = b"a 1 4096 0\na 2 8192 0\nf 1\n"
COMMANDS, MODELS = ("replay", "generate", "view", "convert"), ("vary", "fsdp", "offload", "oneshot", "churn")
REPLAY = ["replay", "--device", "virtual", "--contender", "classic", "--json"]


class FileRuns(Runs):
    def refuses_file(self, what, content, *needles):
        name = self.write("input.trace", content)
        self.refuses(what, [*REPLAY, "--timeline", "out.csv", name], 1, name, *needles)

    def replays(self, what, name, *more):
        said = self.says(what, [*REPLAY, *more, name])
        return json.loads(said) if said else {}


def check_text(runs):
    packed = gzip.compress(GOOD)
    runs.refuses_file("truncated gzip", packed[:-9], "cut off")
    runs.refuses_file("gzip cut inside its header", packed[:5], "cut off")
    runs.refuses_file("damaged gzip", packed[:12] + b"\xff\xff\xff" + packed[15:], "gzip")
    runs.refuses_file("bytes behind gzip", packed + b"a 3 1 0\n", "end of the gzip data")
    runs.refuses_file("gzip of gzip", gzip.compress(packed), "input.trace:1:")
    runs.refuses_file("empty gzip", gzip.compress(b""), "empty")
    runs.refuses_file("a double free", GOOD + b"f 1\n", "input.trace:4:", "twice")
    runs.refuses_file("an empty file", b"", "empty")
    runs.refuses_file("lines without end", gzip.compress(bytes([10]) * (1 << 27)), "64 MiB")
    runs.refuses_file("blanks without end", gzip.compress((b"s" + b" " * 99999 + b"\n") * 2000),
                      "64 MiB")
    runs.refuses_file("steps without end", gzip.compress(b"a 1 512 0\n" + b"s\n" * (1 << 21)),
                      "of steps without events")
    runs.refuses_file("no event", b"# nothing\ns\n", "no event")
    runs.refuses_file("binary", bytes(range(256)) * 16, "input.trace:1:")
    runs.refuses_file("one long line", b"a" * 100000, "input.trace:1:")
    runs.refuses_file("control characters", b"a \x1b[31m\x07 1 0\n", "input.trace:1:")


class Shell:
    def __reduce__(self):
        return os.system, ("touch was_here",)


def hostile_pickles():
    yield "a call of the shell", pickle.dumps(Shell())
    yield "a call inside a snapshot", pickle.dumps({"device_traces": [[Shell()]], "segments": []})
    yield "a call by the oldest protocol", b"\x80\x02cos\nsystem\n(S'touch was_here'\ntR."


def check_pickles(runs):
    for what, content in hostile_pickles():
        runs.refuses_file(what, content)
    good = pickle.dumps(make_snapshot(random.Random(1), 1)[0])
    runs.refuses_file("a cut pickle", good[:len(good) // 2], "of the pickle")
    runs.refuses_file("bytes behind a pickle", good + b"x", "more bytes")
    runs.refuses_file("a list", pickle.dumps([1, 2]), "not a PyTorch snapshot")
    runs.refuses_file("no history", pickle.dumps({"device_traces": [[]], "segments": []}),
                      "_record_memory_history")
    runs.refuses_file("text for a number", pickle.dumps({"device_traces": [[
        {"action": "alloc", "addr": "x", "size": 1, "stream": 0}]]}), "entry 0")
    name = runs.write("good.pickle", good)
    runs.refuses("a GPU that is not there", [*REPLAY, "--gpu", "7", name], 1, "GPU 7")


def check_files(runs):
    (runs.folder / "folder").mkdir()
    runs.refuses("a folder", [*REPLAY, "folder"], 1, "folder: is a directory")
    good = runs.write("good.trace", GOOD)
    bad = runs.write("bad.trace", GOOD + b"f 9\n")
    runs.refuses("a good trace before a bad one", [*REPLAY, "--timeline", "out.csv", good, bad], 1,
                 "bad.trace:4:")
    runs.refuses("a conversion to a folder", ["convert", good, "folder"], 1, "folder: ")
    runs.refuses("a GPU of a text trace", ["convert", "--gpu", "1", good, "out.trace"], 1, "--gpu")


def check_standard_input(runs):
    done = runs.run([*REPLAY, "-"], input=gzip.compress(GOOD))
    if done.returncode != 0 or json.loads(done.stdout)["events"] != 3:
        runs.complain("standard input", f"status {done.returncode}: {done.stderr!r}")
    done = runs.run([*REPLAY, "-"], input=b"")
    if done.returncode != 1 or b"ductile-bench: -: the file is empty" not in done.stderr:
        runs.complain("nothing on standard input", f"status {done.returncode}: {done.stderr!r}")


def check_help(runs):
    for what, arguments, begin in (("no command", [], b"usage: "), ("help", ["-h"], b"usage: "),
                                   ("the version", ["-V"], b"ductile-bench ")):
        done = runs.run(arguments)
        if done.returncode != 0 or done.stderr or not done.stdout.startswith(begin):
            runs.complain(what, f"status {done.returncode}: {done.stdout!r} {done.stderr!r}")
    for command in (*COMMANDS, *(f"generate {model}" for model in MODELS)):
        words = command.split()
        lists, own = runs.says("lists", words[:-1] or ["--help"]), runs.says(command, [*words, "--help"])
        if f"\n  {words[-1]} " not in lists or not own.startswith(f"usage: ductile-bench {command} "):
            runs.complain("no help", command)
    done = subprocess.run(["folder/other-name", "juggle"], executable=runs.program,
                          capture_output=True, check=False)
    if not done.stderr.startswith(b"other-name: "):
        runs.complain("the name it was called by", f"{done.stderr!r}")


def check_closed_output(runs):
    """The reader is gone: nothing is said, for there is no reader to say it to. A full disk is another
    matter."""
    reading, writing = os.pipe()
    os.close(reading)
    with open("/dev/full", "wb") as full:
        for what, output, said in (("a closed pipe", writing, b""),
                                   ("a full disk", full, b"standard output cannot be written")):
            done = subprocess.run([runs.program, "--help"], stdout=output, stderr=subprocess.PIPE,
                                  timeout=60, check=False, restore_signals=False)
            if done.returncode != 1 or said not in done.stderr or bool(said) != bool(done.stderr):
                runs.complain(what, f"status {done.returncode}: {done.stderr!r}")
    os.close(writing)


# ---- Snapshots that Python wrote ---------------------------------------------------------------

def entry(action, addr, size, stream):
    return {"action": action, "addr": addr, "size": size, "stream": stream, "time_us": 17,
            "compile_context": "N/A", "user_metadata": "", "frames": [
                {"name": "forward", "filename": "model.py", "line": 12}]}


def make_snapshot(dice, n_streams):
    """A snapshot of two GPUs, the second with a real history, and its live peak and operations."""
    streams = [0] + [0x7f0000000000 + 16 * i for i in range(1, n_streams)]
    base = 0x7f5a00000000
    old = {base + 4096 * i: dice.randint(1, 4096) for i in range(8)}
    live = dict(old)
    history, pending = [], []
    total = peak = sum(live.values())
    operations = len(old)
    for step in range(400):
        if pending and dice.random() < 0.3:
            address, size = pending.pop(0)
            history.append(entry("free_completed", address, size, 0))
            total -= size
        elif live and dice.random() < 0.5:
            address = dice.choice(sorted(live))
            size = live.pop(address)
            operations += 1
            history.append(entry("free_requested", address, size, 0))
            if n_streams > 1 and dice.random() < 0.4:
                history.append(entry("snapshot", 0, 0, 0))
                pending.append((address, size))
            else:
                history.append(entry("free_completed", address, size, 0))
                total -= size
        else:
            address, size = base + 4096 * (100 + step), dice.randint(1, 4096)
            live[address] = size
            total += size
            operations += 1
            history.append(entry("alloc", address, size, dice.choice(streams)))
        peak = max(peak, total)
    for address, size in pending:
        history.append(entry("free_completed", address, size, 0))
    held = {**live, **{address: old[address] for address in old if address in live}}
    blocks = [{"address": address, "size": 4096, "requested_size": size,
               "state": "active_allocated", "frames": []} for address, size in held.items()]
    segment = {"device": 1, "address": base, "total_size": 1 << 30, "stream": 0,
               "segment_type": "large", "segment_pool_id": (0, 0), "is_expandable": False,
               "blocks": blocks}
    return {"segments": [segment], "device_traces": [[entry("alloc", 512, 512, 0)], history],
            "allocator_settings": {"expandable_segments": False, "threshold": 0.5, "x": None,
                                   "big": 1 << 80, "bytes": b"\0"},
            "external_annotations": []}, peak, operations


def check_converted(runs, what, name, result):
    """A converted snapshot replays as the snapshot itself does."""
    new = "new.trace.gz" if len(what) % 2 else "new.trace"
    done = runs.run(["convert", name, new])
    if done.returncode != 0 or done.stdout or done.stderr:
        runs.complain(what, f"convert: {done.returncode}: {done.stderr!r}")
        return
    content = (runs.folder / new).read_bytes()
    if (content[:2] == b"\x1f\x8b") != new.endswith(".gz"):
        runs.complain(what, f"{new} starts with {content[:2]!r}")
    converted = runs.replays(f"{what}, converted", new)
    for key in ("live_peak_bytes", "reserved_peak_bytes", "completed", "streams"):
        if converted.get(key) != result.get(key):
            runs.complain(what, f"converted: {key}: {converted.get(key)}, not {result.get(key)}")
    (runs.folder / new).unlink()


def check_snapshots(runs):
    for seed in range(8):
        snapshot, peak, operations = make_snapshot(random.Random(seed), 1 + seed % 3)
        for protocol in range(2, 6):
            what = f"snapshot {seed} by protocol {protocol}"
            if protocol == 2:  # knows no bytes: Python writes a call instead
                del snapshot["allocator_settings"]["bytes"]
            content = pickle.dumps(snapshot, protocol=protocol)
            name = runs.write("run.pickle", gzip.compress(content) if seed % 2 else content)
            result = runs.replays(what, name)
            got = (result.get("live_peak_bytes"), result.get("last_pass", {}).get("ops"),
                   result.get("gpu"), result.get("completed"))
            if got != (peak, operations, 1, True):
                runs.complain(what, f"{got}, not {(peak, operations, 1, True)}")
            check_converted(runs, what, name, result)
            if protocol == 2:
                snapshot["allocator_settings"]["bytes"] = b"\0"


def check_recorded(runs):
    """One training loop on an H200, recorded by PyTorch 2.11, once wholly and once with a history
    that keeps the last 3000 entries. PyTorch's own counters said of it: 499168664 bytes requested
    at most, 880803840 reserved; of the last 3000 entries of the whole, 489136832 requested."""
    data = Path(__file__).parent / "data"
    for name, peak in {"torch_whole": 499168664, "torch_ring": 489136832}.items():
        result = runs.replays(name, str((data / f"{name}.pickle.gz").resolve()))
        if (result.get("live_peak_bytes"), result.get("trace")) != (peak, name):
            runs.complain(name, f"{result}, not {peak}")
        if name == "torch_whole" and result.get("reserved_peak_bytes") != 880803840:
            runs.complain(name, f"classic reserved {result.get('reserved_peak_bytes')}")


def check_good_text(runs):
    for what, content in {
            "text": GOOD,
            "gzip": gzip.compress(GOOD),
            "two gzip members": gzip.compress(GOOD[:11]) + gzip.compress(GOOD[11:]),
            "line ends of another world": GOOD.replace(b"\n", b"\r\n"),
            "no line end at the end": GOOD[:-1],
    }.items():
        result = runs.replays(what, runs.write("good.trace", content))
        got = (result.get("live_peak_bytes"), result.get("events"), result.get("trace"))
        if got != (12288, 3, "good"):
            runs.complain(what, got)


def check_overlapping_segments(runs):
    """One segment that spans a hundred thousand others, named as often: the work stays in proportion."""
    many = 100_000
    history = [entry("segment_map", 4096 * i, 4096, 0) for i in range(1, many)]
    segment = {"device": 0, "address": 4096, "total_size": 4096 * many, "stream": 0,
               "segment_pool_id": (1, 0), "blocks": []}
    snapshot = {"segments": many * [segment], "device_traces": [[*history, entry("alloc", 4096, 512, 0)]]}
    result = runs.replays("overlapping segments", runs.write("run.pickle", pickle.dumps(snapshot)))
    if result.get("live_peak_bytes") != 512:
        runs.complain("overlapping segments", f"{result}")


def main(arguments):
    if len(arguments) != 1:
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        runs = FileRuns(arguments[0], folder)
        for check in (check_text, check_pickles, check_files, check_standard_input,
                      check_help, check_closed_output, check_good_text,
                      check_snapshots, check_overlapping_segments, check_recorded):
            check(runs)
    print("FAILED" if runs.failures else "passed")
    return 1 if runs.failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
