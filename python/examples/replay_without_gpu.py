# SPDX-License-Identifier: Apache-2.0
"""What a training run with changing sequence lengths needs, on any machine, in some seconds.

The run is made up: layers whose activations are kept until the backward pass, and parameters that
stay. It is written as a trace (bench/traces/README.md has the format) and replayed. Your own run
comes from `ductile-gpu record train.py`.

    python replay_without_gpu.py
"""

from __future__ import annotations

import gzip
import random
import subprocess
import sys
import tempfile
from pathlib import Path

LAYERS, HIDDEN, STEPS = 24, 2048, 60


class Trace:
    """Writes allocations and frees in the order they happen."""

    def __init__(self) -> None:
        self.lines = ["# version 1"]
        self.following = 0

    def alloc(self, size: int) -> int:
        self.following += 1
        self.lines.append(f"a {self.following} {size} 0")
        return self.following

    def free(self, block: int) -> None:
        self.lines.append(f"f {block}")


def train(trace: Trace) -> None:
    """Parameters first, then steps: forward keeps three tensors a layer, backward frees them."""
    for _ in range(LAYERS):
        for share in (4, 8):
            trace.alloc(HIDDEN * HIDDEN * share)
    for _ in range(STEPS):
        tokens = random.randrange(128, 8192)
        kept = []
        for _ in range(LAYERS):
            scratch = trace.alloc(tokens * HIDDEN * 6)
            kept += [trace.alloc(tokens * HIDDEN * width) for width in (2, 2, 8)]
            trace.free(scratch)
        while kept:
            gradient = trace.alloc(tokens * HIDDEN * 2)
            trace.free(kept.pop())
            trace.free(gradient)
        trace.lines.append("s")


def main() -> int:
    random.seed(7)
    trace = Trace()
    train(trace)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "training.trace.gz"
        path.write_bytes(gzip.compress("\n".join(trace.lines).encode() + b"\n"))
        command = [sys.executable, "-m", "ductile_gpu", "replay", str(path)]
        return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
