# SPDX-License-Identifier: Apache-2.0
"""Recordings with one step for each of several batches, from the bench's synthetic transformer."""

from __future__ import annotations

from pathlib import Path

from running import bench


def vary(batch: int, steps: int, *more: str) -> str:
    """What a synthetic transformer's training loop answers, or writes, for one batch."""
    words = ["--batch", f"{batch}:{batch}", "--seq", "512:512", "--steps", str(steps), *more]
    return bench("generate", "vary", "--device", "virtual", *words)


def transformer(folder: Path, batches: tuple[int, ...]) -> Path:
    """One step with each batch, each of which begins and ends with nothing."""
    lines: list[str] = []
    for number, batch in enumerate(batches):
        file = folder / f"{batch}.trace"
        vary(batch, 2, "--write-trace", str(file))
        live: dict[str, None] = {}
        for kind, *words in (
            line.split() for line in file.read_text().splitlines() if line.strip()
        ):
            if kind in ("a", "f"):
                block = f"{number}{words[0]:0>9}"
                if kind == "a":
                    live[block] = None
                else:
                    del live[block]
                lines.append(" ".join([kind, block, *words[1:]]))
        lines += [*(f"f {block}" for block in live), "s"]
    path = folder / "transformer.trace"
    path.write_text("\n".join(lines) + "\n")
    return path


MIB = 1 << 20


class _Program:
    """Writes what a program allocates and frees."""

    def __init__(self) -> None:
        self.lines = ["# version 2"]
        self.n = 0

    def make(self, size: int) -> int:
        self.n += 1
        self.lines.append(f"a {self.n} {size} 0")
        return self.n

    def end(self, block: int) -> None:
        self.lines.append(f"f {block}")

    def use_workspace(self, size: int) -> None:
        self.end(self.make(size))


def _step(program: _Program, size: int, square: bool, gradients: list[int]) -> list[int]:
    """Forward and backward of eight layers; returns the gradients."""
    for block in gradients:
        program.end(block)
    kept = []
    for _ in range(8):
        kept.append(program.make(size * 13 * MIB + 512))
        scores = program.make(size * (size * MIB // 8 if square else 7 * MIB))
        program.use_workspace(5 * MIB if size < 10 else 17 * MIB)  # another algorithm
        kept.append(program.make(size * 3 * MIB))
        program.end(scores)
    made = []
    for at in range(8):
        passing = program.make(size * 13 * MIB + 512)
        made.append(program.make(24 * MIB))
        program.end(kept.pop())
        program.end(kept.pop())
        program.end(passing)
        if at % 3 == 0:
            program.use_workspace(2 * MIB)
    return made


def training_run(path: Path, sizes: list[int], square: bool = False) -> Path:
    """A training with a step of each size: weights and the optimizer's states stay, which the first
    step makes. square: something grows with the square of the size, as attention does."""
    program = _Program()
    for _ in range(8):
        program.make(24 * MIB)
    gradients: list[int] = []
    for number, size in enumerate(sizes):
        gradients = _step(program, size, square, gradients)
        for _ in range(16 if number == 0 else 0):
            program.make(24 * MIB)
        program.lines.append("s")
    path.write_text("\n".join(program.lines) + "\n")
    return path
