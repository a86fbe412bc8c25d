# SPDX-License-Identifier: Apache-2.0
"""Three steps of each program of plain_models.py, tiny, on Ductile, under compute-sanitizer's
memcheck and initcheck (tests/sanitize has the programs in C, and says what these tools see).

What initcheck finds is looked for on PyTorch's own allocator, too: what that has in the same
kernels does not count. Ends with 1 when a run found something else, or did not end well; with 77
where the tool cannot watch the device.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parents[2] / "tests"))

import sanitizing

TRAININGS = ("gpt2", "lora", "resnet", "moe", "graph", "generate")
TRAIN = """
import sys
if sys.argv[2] == "ductile":
    import ductile_gpu.torch
    ductile_gpu.torch.enable("full")
import torch, plain_models
program = plain_models.make(sys.argv[1], "cuda", True)
for n in range(3):
    program.step(n)
torch.cuda.synchronize()
assert torch.cuda.get_allocator_backend() == sys.argv[2], torch.cuda.get_allocator_backend()
"""


class Training(sanitizing.Run):
    """One program on one allocator, under one tool."""

    folder = HERE

    def __init__(self, name: str, tool: str, allocator: str = "ductile") -> None:
        super().__init__(name, tool)
        self.allocator = allocator
        self.native: Training | None = None

    def words(self, options: dict[str, Any]) -> list[str]:
        return [sys.executable, "-c", TRAIN, self.name, self.allocator]

    def title(self) -> str:
        return f"{self.name} on {self.allocator}"

    def go(self, options: dict[str, Any]) -> Training:
        super().go(options)
        if self.allocator == "ductile" and self.findings():
            self.native = Training(self.name, self.tool, "native").go(options)
        return self

    def explanation(self) -> str:
        if self.native is None:
            return ""
        self.native.print()
        if not self.native.findings() or not self.kernels() <= self.native.kernels():
            return ""
        return "PyTorch's own allocator has these findings, too"


def chosen(known: tuple[str, ...], text: str) -> list[str]:
    found = text.split(",")
    unknown = sorted({*found} - {*known})
    if unknown:
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}")
    return found


def main() -> int:
    usual = sanitizing.USUAL
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--seconds", type=int, default=usual["seconds"], help="no run goes on after so many (440)"
    )
    parser.add_argument("--jobs", type=int, default=usual["jobs"], help="runs at a time (6)")
    for option, known in (("--only", TRAININGS), ("--tools", sanitizing.TOOLS)):
        parser.add_argument(
            option, type=lambda text, known=known: chosen(known, text), default=known,
            metavar="NAME,...", help=f"of {', '.join(known)}",
        )  # fmt: skip
    parser.add_argument("--sanitizer", default=usual["sanitizer"], metavar="PATH")
    given = parser.parse_args()
    runs = [Training(name, tool) for tool in given.tools for name in given.only]
    return int(sanitizing.go_all(runs, vars(given)))


if __name__ == "__main__":
    sys.exit(main())
