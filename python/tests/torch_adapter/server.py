# SPDX-License-Identifier: Apache-2.0
"""Runs programs after a prelude, each in a fork: PyTorch is imported once. Nothing is allocated
before a fork, so the allocator is made in the child."""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback

import pytest

SKIPPED = 77
prelude = importlib.import_module(sys.argv[2] if len(sys.argv) > 2 else "prelude")


def run(program: str) -> int:
    try:
        exec(compile(program, "program", "exec"), dict(vars(prelude)))
    except pytest.skip.Exception as reason:
        print(reason)
        return SKIPPED
    except BaseException:
        traceback.print_exc(file=sys.stdout)
        return 1
    return 0


def answer(program: str) -> tuple[int, str]:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        os.dup2(writer, 1)
        sys.stdout = os.fdopen(1, "w", closefd=False)
        status = run(program)
        sys.stdout.flush()
        os._exit(status)
    os.close(writer)
    with os.fdopen(reader, encoding="utf-8", errors="replace") as pipe:
        output = pipe.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), output


for line in sys.stdin:
    print(json.dumps(answer(json.loads(line))), flush=True)
