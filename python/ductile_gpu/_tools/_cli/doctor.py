# SPDX-License-Identifier: Apache-2.0
"""doctor: says before a run whether Ductile will serve a program, and what stands in the way."""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Optional

import ductile_gpu_start
from ductile_gpu._process import _live
from ductile_gpu._process._children import child_environment, hook_is_installed
from ductile_gpu._tools._cli.common import MISUSED, Failure, print_json, progress, show
from ductile_gpu._tools._cli.program import Program, resolve

SUMMARY = "Say before a run whether Ductile will serve a program."
DESCRIPTION = """\
Says whether Ductile will serve PROGRAM and the Pythons that it starts, once it is asked for by
`ductile-gpu run` or DUCTILE_TORCH=1: one line for each check, with what to do about it. Nothing of
PROGRAM is run; its interpreter is found, and asked. Without PROGRAM: this Python.

  ductile-gpu doctor
  ductile-gpu doctor train.py
  ductile-gpu doctor torchrun --nproc-per-node 8 train.py

The exit status is 0 if it will be served, and 1 if not: also where there is no GPU."""
PROBE = Path(__file__).with_name("doctor_probe.py")
PATIENCE = 120
_CONTEXT_EVENTS = (12, 5)
_DROPS = "starts it without this environment. "
# What keeps DUCTILE_TORCH from a program, by who starts it.
LAUNCHERS = {
    "sudo": f"{_DROPS}Write sudo DUCTILE_TORCH=1 before the program.",
    "docker": f"{_DROPS}Give it -e DUCTILE_TORCH=1, and ask the doctor of the container.",
    "podman": f"{_DROPS}Give it -e DUCTILE_TORCH=1, and ask the doctor of the container.",
    "ssh": f"{_DROPS}Ask the doctor of the other machine.",
    "mpirun": "takes it to other machines only with -x DUCTILE_TORCH (Open MPI).",
    "mpiexec": "takes it to other machines only with -genv DUCTILE_TORCH 1 (MPICH).",
    "srun": "passes it on unless --export says otherwise.",
}


class Check(NamedTuple):
    """One thing that was looked at."""

    name: str
    state: str
    """ok, note (it is served, but) or FAIL"""
    text: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("--json", action="store_true", help="Print one JSON object.")
    parser.add_argument(
        "program",
        metavar="PROGRAM",
        nargs="?",
        help="The program as you would start it, with its arguments. Default: this Python.",
    )
    parser.add_argument(
        "arguments", metavar="ARGUMENT", nargs=argparse.REMAINDER, help="Its own arguments."
    )


# ---- Asking an interpreter ---------------------------------------------------------------------


def _ask(program: Program) -> dict[str, Any]:
    """Runs the probe in the program's interpreter; `problem` where it cannot be."""
    assert program.python is not None
    script = os.path.dirname(os.path.realpath(program.script)) if program.script else ""
    code = f"{PROBE.read_text(encoding='utf-8')}\nsys.path[:1] = [{script!r}]\nmain()"
    if any("I" in flag or "P" in flag for flag in program.flags):
        code = code.replace(f"sys.path[:1] = [{script!r}]", "")
    command = [program.python, *program.flags, "-c", code]
    try:
        done = subprocess.run(
            command,
            env=child_environment(),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PATIENCE,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"problem": str(error).partition("\n")[0][:200]}
    lines = done.stdout.splitlines()
    if done.returncode != 0 or not lines:
        said = done.stderr.strip().splitlines()[-1:] or [f"status {done.returncode}"]
        return {"problem": said[0]}
    found: dict[str, Any] = json.loads(lines[-1])
    return found


# ---- Checks ------------------------------------------------------------------------------------


def _check_request() -> Check:
    mode = ductile_gpu_start.wanted_mode()
    value = os.environ.get(ductile_gpu_start.VARIABLE)
    if mode is not None:
        try:
            ductile_gpu_start.check_mode(mode)
        except ValueError as error:
            return Check("request", "FAIL", f"{error}.")
        return Check("request", "ok", f"DUCTILE_TORCH is {value}.")
    if value is not None:
        return Check("request", "FAIL", f"DUCTILE_TORCH={value} switches it off. Set it to 1.")
    text = "DUCTILE_TORCH is not set. Set it to 1, or use ductile-gpu run."
    return Check("request", "note", text)


def _check_recording() -> Iterator[Check]:
    folder = ductile_gpu_start.record_folder()
    if folder is None:
        return
    problem = ductile_gpu_start.why_not_recorded(folder)
    name = f"{ductile_gpu_start.RECORD}={folder}"
    if problem is None:
        text = f"Each process that uses a GPU through PyTorch writes a recording there ({name})."
        yield Check("record", "ok", text)
    else:
        yield Check("record", "note", f"Nothing is recorded ({name}: {problem}). Make the folder.")


def _check_launchers(program: Program) -> Iterator[Check]:
    for name in program.launchers:
        if name in LAUNCHERS:
            state = "FAIL" if LAUNCHERS[name].startswith(_DROPS) else "note"
            yield Check("launcher", state, f"{name} {LAUNCHERS[name]}")


def _check_hook(found: dict[str, Any], program: Program) -> Check:
    python = found["executable"]
    if found["ductile"] is None:
        problem = found.get("ductile_problem")
        if problem:
            return Check("hook", "FAIL", f"Ductile cannot be imported in {python}: {problem}.")
        return Check("hook", "FAIL", f"{python} has no Ductile. Install ductile-gpu with its pip.")
    if not found["watched"]:
        bare = any("S" in flag for flag in program.flags if not flag.startswith("--"))
        remedy = "Start it without -S" if bare else "Install ductile-gpu with its pip"
        return Check("hook", "FAIL", f"{python} starts without ductile_gpu.pth. {remedy}.")
    if found["prefix"] == sys.prefix and not hook_is_installed():
        text = "It works under ductile-gpu run. DUCTILE_TORCH=1 alone needs an installation by pip."
        return Check("hook", "note", text)
    return Check("hook", "ok", f"{python} looks for Ductile {found['ductile']} at each start.")


def _check_torch(found: dict[str, Any]) -> Check:
    version, problem = found["torch"], found.get("torch_problem")
    if version is None:
        why = f"PyTorch cannot be imported ({problem})" if problem else "There is no PyTorch"
        return Check("pytorch", "FAIL", f"{why}. Install it in {found['executable']}.")
    if found["torch_cuda"] is None:
        text = f"PyTorch {version} is built without CUDA. Install a build with it."
        return Check("pytorch", "FAIL", text)
    if problem:
        return Check("pytorch", "FAIL", f"{problem}. Install one that is served.")
    if found["cuda_is_initialized"]:
        text = f"The import of PyTorch {version} initialises CUDA with PyTorch's own allocator"
        if (found.get("adapter") or "none: ").startswith("none: "):
            return Check("pytorch", "FAIL", f"{text}. Look for what is imported with it.")
        return Check("pytorch", "note", f"{text}, which keeps what it has served.")
    return Check("pytorch", "ok", f"PyTorch {version} is there, for CUDA {found['torch_cuda']}.")


def _check_adapter(found: dict[str, Any]) -> Optional[Check]:
    text = found.get("adapter")
    if text is None:
        return None
    if not text.startswith("none: "):
        return Check("adapter", "ok", f"It is {text}.")
    wants_full = ductile_gpu_start.wanted_mode() == "full"
    reason = text.removeprefix("none: ")
    if wants_full:
        return Check("adapter", "FAIL", f"DUCTILE_TORCH=full cannot be met: {reason}.")
    text = f"PyTorch is served in plain mode, which has less (docs/pytorch.md): {reason}."
    return Check("adapter", "note", text)


def _check_driver(found: dict[str, Any]) -> Check:
    if found["driver"] is None:
        problem = found["driver_problem"]
        text = f"The driver cannot be used ({problem}). Run it where there is a GPU and its driver."
        return Check("driver", "FAIL", text)
    version, gpus = tuple(found["driver"]), found["gpus"]
    name = f"The driver is for CUDA {version[0]}.{version[1]}"
    if not gpus:
        text = f"{name}, and shows no GPU. Look at CUDA_VISIBLE_DEVICES."
        return Check("driver", "FAIL", text)
    without = [gpu for gpu, has_vmm in gpus if not has_vmm]
    if without:
        lacks = f"{without[0]} has no virtual memory management"
        text = f"{lacks}. Leave it out, with CUDA_VISIBLE_DEVICES."
        return Check("driver", "FAIL", text)
    if version < _CONTEXT_EVENTS:
        text = f"{name}; from 12.5 on free memory passes between streams sooner. Update it."
        return Check("driver", "note", text)
    return Check("driver", "ok", f"{name}, and shows {len(gpus)} x {gpus[0][0]}.")


def _check_settings(found: dict[str, Any]) -> Check:
    for setting in found["refused_settings"]:
        names = f"The setting {setting} names another allocator"
        text = f"{names}. Take it out of PYTORCH_CUDA_ALLOC_CONF."
        return Check("settings", "FAIL", text)
    if "PYTORCH_NO_CUDA_MEMORY_CACHING" in os.environ:
        text = "With PYTORCH_NO_CUDA_MEMORY_CACHING every tensor is from cudaMalloc. Unset it."
        return Check("settings", "FAIL", text)
    if "options_problem" in found:
        return Check("settings", "FAIL", f"{found['options_problem']}.")
    value = os.environ.get("DUCTILE_CONF") or "not set"
    return Check("settings", "ok", f"DUCTILE_CONF is {value}.")


def _check_live() -> Optional[Check]:
    """Can `ductile-gpu top` look into what this user runs?"""
    problem = _live.why_unusable(_live.socket_folder())
    return None if problem is None else Check("live", "note", f"Nothing can be watched: {problem}.")


def _check_captures(found: dict[str, Any]) -> Optional[Check]:
    names = ", ".join(found["capturing"])
    if not names or re.search(r"captures\s*[:=]", os.environ.get("DUCTILE_CONF", "")):
        return None
    text = f"If it captures graphs with {names}, set DUCTILE_CONF=captures:unannounced."
    return Check("captures", "note", text)


def _faults_of_script(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if name == "change_current_allocator":
                yield node.lineno, "gives PyTorch another allocator. Take the call out."
        elif isinstance(node, ast.Constant) and "backend:cudaMallocAsync" in str(node.value):
            yield node.lineno, "names another allocator, cudaMallocAsync. Take it out."


def _check_script(script: Optional[str]) -> Iterator[Check]:
    """What its text shows; what it imports is not looked at."""
    if script is None:
        return
    try:
        tree = ast.parse(Path(script).read_bytes(), script)
    except (OSError, SyntaxError, ValueError) as error:
        yield Check("script", "FAIL", f"{script} cannot be read as Python: {error}.")
        return
    for line, fault in _faults_of_script(tree):
        yield Check("script", "FAIL", f"{script}:{line} {fault}")


def _inspect(program: Program) -> Iterator[Check]:
    yield _check_request()
    yield from _check_recording()
    yield from _check_launchers(program)
    if program.python is None:
        text = "None of these words names a Python program. Name the one that it starts."
        yield Check("program", "FAIL", text)
        return
    progress(f"asking {program.python}")
    found = _ask(program)
    if "problem" in found:
        yield Check("program", "FAIL", f"{program.python} cannot be asked: {found['problem']}.")
        return
    version = ".".join(map(str, found["version"]))
    yield Check("program", "ok", f"It runs in {found['executable']}, Python {version}.")
    yield from _check_script(program.script)
    yield _check_hook(found, program)
    yield _check_torch(found)
    if found["ductile"] is not None:
        parts = (_check_adapter(found), _check_driver(found), _check_settings(found))
        notes = (_check_captures(found), _check_live())
        yield from (check for check in (*parts, *notes) if check is not None)


def _print(checks: list[Check], served: bool, named: str) -> None:
    for check in checks:
        show(f"{check.state:<4}  {check.name:<8}  {check.text}")
    if served:
        show(f"Ductile will serve {named}, and the Pythons of this installation that it starts.")
    else:
        show(f"Ductile will not serve {named}.")


def main(options: argparse.Namespace) -> int:
    """Returns 0 if the program will be served, 1 if not."""
    words = [options.program, *options.arguments] if options.program else [sys.executable]
    program = resolve(words)
    if program is None:
        raise Failure(f"{words[0]}: no such program; it comes after the options", MISUSED)
    checks = list(_inspect(program))
    served = all(check.state != "FAIL" for check in checks)
    if options.json:
        rows = [check._asdict() for check in checks]
        print_json({"served": served, "command": words, "checks": rows}, indent=2)
    else:
        _print(checks, served, shlex.join(words))
    return 0 if served else 1
