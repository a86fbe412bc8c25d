# SPDX-License-Identifier: Apache-2.0
"""Programs of PyTorch on Ductile and a virtual GPU: each `program` of programs/*.txt is a claim.

Lines before its code say when it applies (`since 2.11`, `has NAME` of torch._C, `gpu`) and with
what it is run, once each: `each NAMES = VALUE, VALUE`, and `environment NAME=VALUE` in a process of
its own. What stands under `before` is put before each program of the file; under `server late` CUDA
is in use and PyTorch's own allocator serves it.
"""

from __future__ import annotations

import itertools
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch")
if torch.version.cuda is None:
    pytest.skip("this PyTorch is built without CUDA", allow_module_level=True)

MINOR = int(torch.__version__.split(".")[1])
FILES = sorted((Path(__file__).parent / "programs").glob("*.txt"))
WORDS = ("since", "has", "gpu", "environment", "each")


class Program(NamedTuple):
    """One of a file, as it is written there."""

    claim: str
    told: list[tuple[str, str]]  # the lines before its code: first words, and the rest
    code: str

    @classmethod
    def parse(cls, text: str, before: str) -> Program:
        claim, *lines = text.splitlines()
        told = list(itertools.takewhile(lambda line: line.split()[0] in WORDS, lines))
        code = textwrap.dedent("\n".join(lines[len(told) :]))
        return cls(claim, [line.strip().partition(" ")[::2] for line in told], before + code)

    def values(self, word: str) -> list[str]:
        return [value for found, value in self.told if found == word]

    def marks(self) -> Iterator[Any]:
        for version in self.values("since"):
            is_older = int(version.split(".")[1]) > MINOR
            yield pytest.mark.skipif(is_older, reason=f"PyTorch {version} has it")
        for name in self.values("has"):
            yield pytest.mark.skipif(not hasattr(torch._C, name), reason=f"no {name}")
        yield from (pytest.mark.gpu for _ in self.values("gpu"))

    def variants(self) -> Iterator[tuple[str, ...]]:
        """Lines to be put before the code: one for each of the names that have several values."""
        settings: dict[str, list[str]] = {}
        for names, _, values in (line.partition(" = ") for line in self.values("each")):
            found = eval(f"[{values}]")
            settings.setdefault(names, []).extend(f"{names} = {value!r}" for value in found)
        return itertools.product(*settings.values())


def cases() -> Iterator[Any]:
    for path in FILES:
        # without comments that stand between programs
        text = re.sub(r"(?m)^(#.*)?\n", "", path.read_text("utf-8"))
        head, *texts = f"\n{text}".split("\nprogram ")
        assert re.fullmatch(r"\s*(server late)?(before\n[\s\S]*)?", head), f"{path}: {head}"
        prelude = "late_prelude" if "server late" in head else "prelude"
        before = textwrap.dedent(head.partition("before\n")[2]) + "\n"
        for program in (Program.parse(text, before) for text in texts):
            for lines in program.variants():
                for setting in program.values("environment") or [""]:
                    name = "-".join(filter(None, (path.stem, program.claim, *lines, setting)))
                    code = "\n".join([*lines, program.code])
                    marks = list(program.marks())
                    yield pytest.param(prelude, setting, code, id=name, marks=marks)


@pytest.mark.parametrize(("prelude", "setting", "code"), list(cases()))
def test_a_program_holds(servers, prelude, setting, code):
    name, _, value = setting.partition("=")
    servers(prelude, code, **({name: value} if name else {}))
