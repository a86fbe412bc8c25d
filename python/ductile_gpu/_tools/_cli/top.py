# SPDX-License-Identifier: Apache-2.0
"""top: what the allocators of running processes hold, by stream and pool, again and again."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import socket
import time
from pathlib import Path
from typing import Any, Optional

from ductile_gpu._process._live import (
    own_sockets,
    peer_uid,
    pid_of,
    remove_if_left,
    socket_folder,
    why_unusable,
)
from ductile_gpu._tools._cli.common import (
    MISUSED,
    Failure,
    for_output,
    print_json,
    show,
    standard_output,
)
from ductile_gpu._tools._others import what_uses
from ductile_gpu._tools._sizes import in_bytes
from ductile_gpu_words import shown

SUMMARY = "Show what running processes hold, by stream and pool."
DESCRIPTION = """\
Shows what each allocator of a process holds, by stream and pool, and renews it. The process must
have asked to be watched, and be of the same user:

  ductile-gpu run --live train.py        # or DUCTILE_LIVE=1, or ductile_gpu.listen()
  ductile-gpu top                        # all of them
  ductile-gpu top 4711

Where the output is no terminal, it is printed once."""
CLEAR = "\033[H\033[J"
ANSWER_SECONDS = 5.0
MOST_ROWS = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("pid", metavar="PID", type=int, nargs="?", help="A process. Default: all.")
    parser.add_argument(
        "--interval", metavar="SECONDS", type=float, default=1.0, help="How often. Default: 1."
    )
    parser.add_argument("--once", action="store_true", help="Print it once.")
    parser.add_argument(
        "--json", action="store_true", help="Print it once, as one line of JSON for each process."
    )


# ---- Asking ------------------------------------------------------------------------------------


def _ask(path: Path) -> Optional[dict[str, Any]]:
    """What a process says; None where it no longer listens."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(ANSWER_SECONDS)
        try:
            connection.connect(str(path))
            if peer_uid(connection) != os.geteuid():
                return None
            pieces = list(iter(lambda: connection.recv(1 << 16), b""))
        except socket.timeout:
            return {
                "pid": int(pid_of(path)),
                "error": "it does not answer: is it stopped, or busy?",
            }
        except OSError:
            remove_if_left(path)
            return None
    try:
        return dict(json.loads(b"".join(pieces)))
    except ValueError:
        return None


def _find(pid: Optional[int]) -> list[dict[str, Any]]:
    sockets = [path for path in own_sockets() if pid is None or pid_of(path) == str(pid)]
    return [found for found in map(_ask, sockets) if found is not None]


# ---- Showing -----------------------------------------------------------------------------------


def _name_stream(handle: int) -> str:
    return {0: "default", 1: "legacy", 2: "per thread"}.get(handle, f"{handle:#x}")


def _name_pool(pool: list[int]) -> str:
    return "-" if pool == [0, 0] else f"{pool[0]}, {pool[1]}"


def _row(group: dict[str, Any]) -> str:
    size, count = group["bytes"], group["blocks"]
    cells = [in_bytes(size.get(state, 0)) for state in ("live", "pending", "free")]
    cells.append(in_bytes(group["largest_free_bytes"]))
    numbers = "".join(f"{cell:>12}" for cell in cells)
    name = f"{_name_stream(group['stream']):<16} {_name_pool(group['pool']):<10}"
    return f"  {name}{numbers}{count.get('live', 0):>9,}{count.get('free', 0):>8,}"


def _held_by(group: dict[str, Any]) -> int:
    return sum(group["bytes"].get(state, 0) for state in ("live", "pending", "free"))


def _table(groups: list[dict[str, Any]]) -> list[str]:
    heads = "".join(f"{head:>12}" for head in ("live", "pending", "free", "largest"))
    lines = [f"  {'stream':<16} {'pool':<10}{heads}{'blocks':>9}{'holes':>8}"]
    ordered = sorted(groups, key=_held_by, reverse=True)
    lines += map(_row, ordered[:MOST_ROWS])
    if len(ordered) > MOST_ROWS:
        rest = sum(map(_held_by, ordered[MOST_ROWS:]))
        lines.append(f"  and {len(ordered) - MOST_ROWS} more, which hold {in_bytes(rest)}")
    return lines


def _rate(now: dict[str, Any], before: Optional[dict[str, Any]], seconds: float) -> str:
    if before is None or seconds <= 0:
        return ""
    return f" ({(now['allocs'] - before['allocs']) / seconds:,.0f} a second)"


def _pressure(now: dict[str, Any]) -> list[str]:
    waits, returns = now.get("pressure_waits", 0), now.get("pressure_returns", 0)
    if not (waits or returns):
        return []
    gone = in_bytes(now["pressure_returned_total_bytes"])
    return [
        f"  short of memory: the host waited {waits:,} times, "
        f"{gone} went back to the driver in {returns:,}"
    ]


def _spilled(now: dict[str, Any]) -> list[str]:
    if not now.get("spills", 0):
        return []
    total = in_bytes(now["spilled_bytes"] + now["reserved_bytes"])
    return [
        f"  {in_bytes(now['spilled_bytes'])} of {total} from the host (peak "
        f"{in_bytes(now['spilled_peak_bytes'])}), {in_bytes(now['spill_locked_bytes'])} "
        f"page-locked; {now['spills']:,} requests got {in_bytes(now['spilled_total_bytes'])}"
    ]


def _outside(found: Optional[dict[str, Any]]) -> list[str]:
    """Who else uses the GPU, the largest first."""
    said = what_uses(found)
    return [f"  outside of it: {said}"] if said else []


def _allocator(
    found: dict[str, Any], before: Optional[dict[str, Any]], seconds: float
) -> list[str]:
    now, limits = found["statistics"], found["limits"]
    parts = ("allocated", "live"), ("pending", "pending"), ("free", "free"), ("cached", "cached")
    held = ", ".join(f"{in_bytes(now[f'{field}_bytes'])} {name}" for field, name in parts)
    peak = in_bytes(now["reserved_peak_bytes"])
    own = "" if found["own"] is None else f"  allocator {found['own']} of the program's own"
    return [
        f"GPU {found['device']}  {found['hw_id']}{own}",
        f"  held {in_bytes(now['reserved_bytes'])} of {in_bytes(limits['limit_bytes'])}: {held}; "
        f"peak {peak}",
        f"  {now['allocs']:,} allocations{_rate(now, before, seconds)}, "
        f"{now['out_of_memory']:,} refused, {now['recycled_handles']:,} handles moved, "
        f"{now['stream_syncs']:,} host waits",
        *_pressure(now),
        *_spilled(now),
        *_outside(found.get("outside")),
        *_table(found["groups"]),
    ]


def _key(allocator: dict[str, Any]) -> tuple[int, Optional[int]]:
    return allocator["device"], allocator["own"]


def _process(found: dict[str, Any], before: Optional[dict[str, Any]]) -> list[str]:
    lines = [f"process {found['pid']}  {found.get('command', '')}"]
    if "error" in found:
        return [*lines, f"  {found['error']}"]
    if not found["allocators"]:
        lines.append("  nothing was allocated yet")
    earlier = {_key(one): one for one in (before or {}).get("allocators", [])}
    for one in found["allocators"]:
        then = earlier.get(_key(one))
        seconds = found["time"] - before["time"] if before is not None and then is not None else 0.0
        lines += _allocator(one, then["statistics"] if then is not None else None, seconds)
    return lines


def render(found: list[dict[str, Any]], before: dict[int, dict[str, Any]]) -> list[str]:
    """The lines of one picture of all processes; rates are against an earlier one."""
    lines: list[str] = []
    for process in found:
        lines += [*_process(process, before.get(process["pid"])), ""]
    return lines[:-1]


def _draw(lines: list[str]) -> None:
    """As much as the terminal has room for."""
    columns, rows = shutil.get_terminal_size()
    visible = [shown(line)[:columns] for line in lines[: rows - 1]]
    standard_output().write(CLEAR + for_output(visible))
    standard_output().flush()


def _explain_absence(pid: Optional[int]) -> str:
    problem = why_unusable(socket_folder())
    if problem is not None:
        return f"no process of this user can be watched: {problem}"
    how = "start it with `ductile-gpu run --live` or DUCTILE_LIVE=1, or call ductile_gpu.listen()"
    who = "no process of this user" if pid is None else f"process {pid} of this user"
    return f"{who} can be watched: {how}" if pid is None else f"{who} cannot be watched: {how}"


def _watch(options: argparse.Namespace, found: list[dict[str, Any]]) -> None:
    before: dict[int, dict[str, Any]] = {}
    while found:
        _draw(render(found, before))
        before = {process["pid"]: process for process in found}
        time.sleep(options.interval)
        found = _find(options.pid)


def main(options: argparse.Namespace) -> int:
    """Until the processes have ended, or it is interrupted."""
    if not 0.1 <= options.interval <= 3600:
        raise Failure("--interval is from 0.1 to 3600 seconds", MISUSED)
    found = _find(options.pid)
    if not found:
        raise Failure(_explain_absence(options.pid))
    if options.json:
        for of in found:
            print_json(of)
    elif options.once or not standard_output().isatty():
        show(*render(found, {}))
    else:
        with contextlib.suppress(KeyboardInterrupt):
            _watch(options, found)
    return 0
