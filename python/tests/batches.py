# SPDX-License-Identifier: Apache-2.0
"""Recordings with one step for each of several batches, from the bench's synthetic transformer."""

from __future__ import annotations

import subprocess
from pathlib import Path

import ductile_gpu


def vary(batch: int, steps: int, *more: str) -> str:
    """What a synthetic transformer's training loop answers, or writes, for one batch."""
    command = [str(ductile_gpu.bench_path()), "varybatch", "--device", "virtual"]
    command += ["--batch", f"{batch}:{batch}", "--seq", "512:512", "--steps", str(steps), *more]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def transformer(folder: Path, batches: tuple[int, ...]) -> Path:
    """One step with each batch, each of which begins and ends with nothing."""
    lines: list[str] = []
    for number, batch in enumerate(batches):
        file = folder / f"{batch}.trace"
        vary(batch, 2, "--contender", "classic", "--write-trace", str(file))
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
