# SPDX-License-Identifier: Apache-2.0
"""The peers of `extras/lab/run compare`: what each is, how it is started, why one is missing.

Peers in C are contenders of ductile-bench: a process for each trace and turn. Peers under PyTorch
and RMM are processes that stay, take turns on the device, and hold nothing between them.
"""

import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[3] / "bench"))
from contender_titles import BESIDE
from rows import Failed, parse_row

# What the programs beside this do not count: their rows say 0.
NOT_COUNTED = ("creates", "releases", "maps", "unmaps", "event_waits", "pressure_returned_bytes",
               "address_span_bytes")  # fmt: skip
WAITS, RETURNS = "pressure_waits", "pressure_returns"


@dataclass(frozen=True)
class Peer:
    """One allocator."""

    name: str
    title: str
    group: str = ""  # peers in C that one process replays, one after another
    contender: str = ""
    settings: tuple = ()
    program: str = ""
    arguments: tuple = ()
    conf: str = ""
    not_drawn: str = ""  # over time, where the peer of that name is there
    unknown: tuple = ()  # besides what none of these programs counts

    @property
    def in_c(self):
        return bool(self.contender)


TORCH = "build/torch/torch_replay"
RMM = "build/rmm/rmm_replay"

# In the order of every table.
PEERS = [
    Peer("ductile", "Ductile in C", "plain", "ductile"),
    Peer("ductile-tight", BESIDE["ductile-tight"], "tight", "ductile", ("sizes=2M",)),
    Peer("torch-ductile", BESIDE["torch-ductile"], program=TORCH,
         arguments=("--adapter", "build/torch/ductile_torch.so")),
    Peer("torch-expandable", BESIDE["torch-expandable"], program=TORCH,
         conf="expandable_segments:True", unknown=(WAITS,)),
    Peer("torch-native", BESIDE["torch-native"], program=TORCH, unknown=(WAITS,)),
    Peer("torch-async", BESIDE["torch-async"], program=TORCH, conf="backend:cudaMallocAsync",
         unknown=(WAITS,)),
    Peer("rmm-pool", BESIDE["rmm-pool"], program=RMM, arguments=("--resource", "pool"),
         unknown=(WAITS, RETURNS)),
    Peer("rmm-arena", BESIDE["rmm-arena"], program=RMM, arguments=("--resource", "arena"),
         # half of the device at once: all others would look flat
         unknown=(WAITS, RETURNS), not_drawn="rmm-arena"),
    Peer("cumemallocasync", "cudaMallocAsync in C", "plain", "cumemallocasync"),
    Peer("expandable", "model of expandable segments in C", "plain", "expandable",
         not_drawn="torch-expandable"),
    Peer("classic", "model of native in C", "plain", "classic", not_drawn="torch-native"),
]  # fmt: skip
BY_NAME = {peer.name: peer for peer in PEERS}
ON_VIRTUAL = ("ductile", "ductile-tight", "expandable", "classic")


def known_of(peer, row):
    """A row of a program beside this without what is not known of the peer."""
    return {key: known_of(peer, value) if isinstance(value, dict) else value
            for key, value in row.items() if key not in (*NOT_COUNTED, *peer.unknown)}  # fmt: skip


def environment(conf=""):
    """This process's environment without what would change an allocator, and with `conf`."""
    found = dict(os.environ)
    for name in ("DUCTILE_CONF", "DUCTILE_TORCH", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        found.pop(name, None)
    if conf:
        found["PYTORCH_CUDA_ALLOC_CONF"] = found["PYTORCH_ALLOC_CONF"] = conf
    found.setdefault("CUDA_VISIBLE_DEVICES", "0")
    return found


def last_line(text):
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"


# ---- Peers in C --------------------------------------------------------------------------------


def run_bench(bench, arguments, seconds, cwd):
    """The JSON rows of one ductile-bench. What it printed before it failed or was ended counts."""
    with tempfile.TemporaryFile("w+") as said:
        command = [bench, "replay", "--json", *arguments]
        process = subprocess.Popen(command, cwd=cwd, env=environment(),
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=said,
                                   text=True)  # fmt: skip
        reason = ""
        try:
            output, _ = process.communicate(timeout=max(1, seconds))
        except subprocess.TimeoutExpired:
            process.kill()
            output, _ = process.communicate()
            reason = f"took more than {seconds:.0f} s"
        said.seek(0)
        errors = said.read()
    if not reason and process.returncode != 0:
        reason = f"status {process.returncode}: {last_line(errors)}"
    return [row for row in map(parse_row, output.splitlines()) if row], reason


# ---- Peers that stay ---------------------------------------------------------------------------


class Worker:
    """A process of torch_replay or rmm_replay. Loads the traces at once; `ask` and `hear` are one
    command each. One that fails is started again for the next command."""

    def __init__(self, peer, traces, options, root):
        self.peer, self.root = peer, root
        # paths seen from the root, which says no more of a machine than a clone has
        self.command = [os.path.join(".", peer.program), *peer.arguments, *options, *traces]
        self.process = None
        self.start()

    def start(self):
        self.said = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        self.lines = queue.Queue()
        try:
            self.process = subprocess.Popen(
                self.command, cwd=self.root, env=environment(self.peer.conf), text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.said,
            )  # fmt: skip
        except OSError as error:
            self.said.close()
            raise Failed(f"cannot be started: {error.strerror}") from None
        self.listener = threading.Thread(
            target=self._listen, args=(self.process, self.lines), daemon=True
        )
        self.listener.start()

    @staticmethod
    def _listen(process, lines):
        for line in process.stdout:
            lines.put(line)
        lines.put(None)

    def _fail(self, reason):
        self.said.seek(0)
        errors = self.said.read()
        self.stop()
        raise Failed(f"{reason}: {last_line(errors)}" if errors.strip() else reason)

    def ask(self, command):
        if self.process is None:
            self.start()
            self.hear(60)  # "ready"
        try:
            self.process.stdin.write(command + "\n")
            self.process.stdin.flush()
        except OSError:
            self._fail("has ended")

    def hear(self, seconds):
        """The next row."""
        end = time.monotonic() + seconds
        while True:
            try:
                line = self.lines.get(timeout=max(0.01, end - time.monotonic()))
            except queue.Empty:
                self._fail(f"did not answer within {seconds:.0f} s")
            if line is None:
                self.process.wait()
                self._fail(f"ended with status {self.process.returncode}")
            row = parse_row(line)
            if row and "failed" in row:
                raise Failed(row["failed"])
            if row:
                return row

    def stop(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.listener.join()
            for pipe in (self.process.stdin, self.process.stdout, self.said):
                with suppress(OSError):  # what was still to be written finds no reader
                    pipe.close()
            self.process = None
