# SPDX-License-Identifier: Apache-2.0
"""Looking into a running process: who may, what is shown, and what it costs when no viewer does."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import pty
import resource
import select
import socket
import stat
import subprocess
import sys
import textwrap
import threading
import time

import pytest
from running import ductile_gpu as command
from running import in_child, python

import ductile_gpu
from ductile_gpu._process import _live
from ductile_gpu._tools._cli.top import render

MIB = 1 << 20


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A runtime folder of our own, so that no other process is seen."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv(_live.VARIABLE, raising=False)
    yield tmp_path
    _live.stop()


def top(*words):
    return command("top", *words)


def seen(pid):
    """What it tells of a process."""
    return json.loads(top(pid, "--json").stdout)


PROGRAM = """
    import sys, time
    import ductile_gpu
    from ductile_gpu._process import _share
    gpu = ductile_gpu.VirtualGPU("1G")
    allocator = gpu.allocator()
    kept = [allocator.alloc(10 << 20), allocator.alloc(3 << 20, gpu.stream())]
    allocator.free(allocator.alloc(4 << 20))
    _share.adopt(0, allocator)
    LISTEN
    print("ready", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def program(place):
    """Starts a process that holds 13 MiB; ends it."""
    started = []

    def start(listen="ductile_gpu.listen()", **environment):
        text = textwrap.dedent(PROGRAM).replace("LISTEN", listen)
        process = subprocess.Popen(
            [sys.executable, "-c", text],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )
        started.append(process)
        assert process.stdout.readline() == "ready\n"
        return process

    yield start
    for process in started:
        process.communicate(timeout=60)


def wait_until_gone(path):
    deadline = time.monotonic() + 30
    while path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_an_allocator_of_ones_own_is_seen(place, program):
    text = "own = ductile_gpu.Allocator(driver='virtual'); kept.append(own.alloc(5 << 20))"
    process = program(listen=text, DUCTILE_LIVE="1")
    everybodys, own = seen(process.pid)["allocators"]
    assert (everybodys["own"], everybodys["statistics"]["allocated_bytes"]) == (None, 13 << 20)
    assert own["statistics"]["allocated_bytes"] == 5 << 20
    shown = top(process.pid).stdout
    assert f"allocator {own['own']} of the program's own" in shown
    assert "nothing was allocated" not in shown


def test_allocators_may_be_closed_while_they_are_looked_at(gpu):
    done = threading.Event()

    def come_and_go():
        while not done.is_set():
            with gpu.allocator() as allocator:
                allocator.alloc(1 << 20)

    threads = [threading.Thread(target=come_and_go) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(100):
            assert all(found["own"] for found in _live.describe()["allocators"])
            ductile_gpu.metrics()
    finally:
        done.set()
        for thread in threads:
            thread.join()


# ---- Who may -----------------------------------------------------------------------------------


def test_nothing_listens_unless_asked(place, program):
    program(listen="pass")
    assert list(place.iterdir()) == []
    answer = top()
    assert answer.returncode == 1
    assert "no process of this user can be watched" in answer.stderr


def test_only_the_user_can_reach_the_socket(place):
    path = ductile_gpu.listen()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert path.parent.stat().st_uid == os.geteuid()


def test_a_process_without_threads_leaves_no_socket(place, monkeypatch):
    def refuse(_thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(OSError, match="new thread"):
        ductile_gpu.listen()
    assert list(place.glob("*/*")) == []


def test_another_user_gets_no_answer(place, monkeypatch):
    path = ductile_gpu.listen()
    monkeypatch.setattr(_live, "peer_uid", lambda connection: os.geteuid() + 1)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(10)
        connection.connect(str(path))
        assert connection.recv(1) == b""


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o701])
def test_a_folder_that_others_can_enter_is_refused(place, mode):
    folder = place / f"ductile-{os.geteuid()}"
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(PermissionError, match="not this user's alone"):
        ductile_gpu.listen()
    assert list(folder.iterdir()) == []


def test_a_process_that_cannot_be_watched_says_so_and_top_says_why(place):
    """Another user, say, has made the folder first."""
    folder = place / f"ductile-{os.geteuid()}"
    folder.mkdir()
    folder.chmod(0o755)
    said = f"{folder} is not this user's alone: remove it, or let XDG_RUNTIME_DIR name a folder"
    program = "import ductile_gpu as d; [d.Allocator(driver='virtual').close() for _ in range(2)]"
    done = python("-c", program, DUCTILE_LIVE="1")
    assert done.returncode == 0
    assert (
        done.stderr.count(
            f"WARNING: DUCTILE_LIVE: `ductile-gpu top` cannot look into this process: {said}"
        )
        == 1
    )
    assert python("-c", program, DUCTILE_LIVE="1", RANK="1").stderr == ""
    assert f"no process of this user can be watched: {said}" in top().stderr
    assert f"Nothing can be watched: {said}" in command("doctor").stdout


def test_texts_of_others_are_no_commands_of_the_terminal(place, program):
    """Of a command line with escapes, line ends and bytes that are no text, in a strict locale."""
    change = r"sys.argv = ['-c', '\x1b[31mred\nprocess 1', '\udcff', '\u202eabc', 'caf\xe9']"
    process = program(listen=f"{change}; ductile_gpu.listen()")
    done = command("top", process.pid, "--once", PYTHONIOENCODING="ascii:strict")
    assert (done.returncode, done.stderr) == (0, "")
    line = done.stdout.splitlines()[0]
    assert line == (rf"process {process.pid}  -c \x1b[31mred\nprocess 1 \udcff \u202eabc caf\xe9")


def test_a_link_in_place_of_the_folder_is_refused(place):
    elsewhere = place / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    (place / f"ductile-{os.geteuid()}").symlink_to(elsewhere)
    with pytest.raises(PermissionError):
        ductile_gpu.listen()


def test_sockets_in_a_folder_that_others_can_enter_are_not_asked(place, program):
    process = program()
    folder = place / f"ductile-{os.geteuid()}"
    folder.chmod(0o755)
    assert top(process.pid).returncode == 1
    folder.chmod(0o700)
    assert top(process.pid).returncode == 0


def test_the_environment_is_enough(place, program):
    process = program(listen="_share._let_be_watched()", DUCTILE_LIVE="1")
    assert top(process.pid).returncode == 0


def test_a_socket_that_cannot_be_made_does_not_end_the_program(place, monkeypatch, capsys):
    monkeypatch.setenv(_live.VARIABLE, "1")
    (place / f"ductile-{os.geteuid()}").touch()
    monkeypatch.setattr(_live, "_has_told", False)
    _live.listen_if_asked()
    assert "DUCTILE_LIVE" in capsys.readouterr().err


def test_a_runtime_folder_that_is_not_there_is_passed_over(place, monkeypatch):
    """Slurm, su and containers name one without making it."""
    fallback = place / "fallback"
    fallback.mkdir()
    folders = [place / name / f"ductile-{os.geteuid()}" for name in ("absent", "fallback")]
    monkeypatch.setattr(_live, "socket_folders", lambda: folders)
    assert ductile_gpu.listen().parent == folders[1]
    assert stat.S_IMODE(folders[1].stat().st_mode) == 0o700


def test_a_runtime_folder_that_is_not_there_does_not_hide_a_process(place, program):
    process = program(XDG_RUNTIME_DIR=str(place / "absent"))
    assert top(process.pid).returncode == 0


# ---- What is shown -----------------------------------------------------------------------------


def test_a_process_is_shown_by_stream(program):
    process = program()
    answer = top(process.pid)
    assert answer.returncode == 0, answer.stderr
    assert f"process {process.pid}" in answer.stdout
    assert "held 18.0 MiB of 1.00 GiB: 13.0 MiB live, 0 bytes pending" in answer.stdout
    rows = [line.split() for line in answer.stdout.splitlines() if "MiB" in line]
    assert any(row[:4] == ["default", "-", "10.0", "MiB"] for row in rows)


def test_the_groups_add_up_to_the_statistics(program):
    found = seen(program().pid)
    (allocator,) = found["allocators"]
    for state, field in (("live", "allocated_bytes"), ("free", "free_bytes")):
        total = sum(group["bytes"].get(state, 0) for group in allocator["groups"])
        assert total == allocator["statistics"][field]
    assert {group["stream"] for group in allocator["groups"]} > {0}


def test_all_processes_are_shown(program):
    first, second = program(), program()
    lines = top("--json").stdout.splitlines()
    assert {json.loads(line)["pid"] for line in lines} == {first.pid, second.pid}


def test_rates_are_against_the_picture_before(program):
    before = seen(program().pid)
    now = copy.deepcopy(before)
    now["time"] += 2
    now["allocators"][0]["statistics"]["allocs"] += 100
    text = "\n".join(render([now], {before["pid"]: before}))
    assert "(50 a second)" in text
    assert "a second" not in "\n".join(render([now], {}))


def test_what_a_lack_of_memory_cost_is_shown_where_there_was_one(program):
    now = seen(program().pid)
    assert "short of memory" not in "\n".join(render([now], {}))
    cost = {"waits": 2, "returns": 3, "returned_total_bytes": 4 * MIB}
    statistics = now["allocators"][0]["statistics"]
    statistics.update({f"pressure_{name}": value for name, value in cost.items()})
    text = "\n".join(render([now], {}))
    assert "short of memory: the host waited 2 times, 4.0 MiB went back to the driver in 3" in text


def test_what_lies_in_the_host_is_shown_once_something_has_spilled(program):
    now = seen(program().pid)
    assert "from the host" not in "\n".join(render([now], {}))
    listen = "own = ductile_gpu.Allocator(driver='virtual', spill_bytes='1G', limit_bytes='64M')"
    spilling = seen(program(f"{listen}; kept.append(own.alloc(100 << 20))", DUCTILE_LIVE="1").pid)
    text = "\n".join(render([spilling], {}))
    statistics = spilling["allocators"][1]["statistics"]
    host = statistics["spilled_bytes"] / MIB
    assert host > 36
    assert f"{host:.1f} MiB of 100.0 MiB from the host (peak {host:.1f} MiB), " in text
    assert f"{host:.1f} MiB page-locked; 1 requests got {host:.1f} MiB" in text


def test_a_terminal_is_drawn_again_and_again(program):
    process = program()
    parent, child = pty.openpty()
    watcher = subprocess.Popen(
        [sys.executable, "-m", "ductile_gpu", "top", "--interval", "0.1"], stdout=child
    )
    os.close(child)
    seen = b""
    deadline = time.monotonic() + 30
    while seen.count(b"\033[H") < 3 and time.monotonic() < deadline:
        if select.select([parent], [], [], 1)[0]:
            seen += os.read(parent, 65536)
    assert seen.count(b"\033[H") >= 3
    process.communicate(timeout=60)
    assert watcher.wait(timeout=30) == 0, "it ends with the process that it shows"
    os.close(parent)


def test_an_allocator_that_cannot_be_described_is_said(place, gpu, monkeypatch):
    monkeypatch.setattr(_live, "describe", lambda: 1 / 0)
    ductile_gpu.listen()
    answer = top(os.getpid())
    assert answer.returncode == 0
    assert "ZeroDivisionError" in answer.stdout


def test_an_interval_that_cannot_be_meant_is_refused():
    assert top("--interval", "0").returncode == 2
    assert top("process").returncode == 2


# ---- The process's life ------------------------------------------------------------------------


def test_the_socket_goes_with_the_process(place, program):
    process = program()
    (path,) = place.glob("*/*.sock")
    process.communicate(timeout=60)
    wait_until_gone(path)


def test_what_a_killed_process_left_is_cleaned_up(place, program):
    process = program()
    (path,) = place.glob("*/*.sock")
    process.kill()
    process.wait()
    assert path.exists()
    assert top().returncode == 1
    assert not path.exists()


def test_processes_of_one_number_are_both_watched(place, program, monkeypatch):
    """Two containers may share the folder, and both number their first process 1."""
    first = program()
    monkeypatch.setattr(os, "getpid", lambda: first.pid)
    ductile_gpu.listen()
    answers = [json.loads(line) for line in top("--json", first.pid).stdout.splitlines()]
    assert len(answers) == 2
    _live.stop()
    assert len(list(place.glob("*/*.sock"))) == 1
    assert top(first.pid).returncode == 0


def test_what_an_earlier_process_of_that_number_left_is_cleaned_up(place, program, monkeypatch):
    process = program()
    (left,) = place.glob("*/*.sock")
    process.kill()
    process.wait()
    monkeypatch.setattr(os, "getpid", lambda: process.pid)
    assert ductile_gpu.listen() != left
    assert not left.exists()


def test_a_forked_child_waits_for_no_lock_of_its_parent(place):
    with _live._lock:
        in_child(lambda: (_live.stop(), ductile_gpu.listen().unlink()))


def test_a_forked_child_leaves_the_socket_to_its_parent(place):
    path = ductile_gpu.listen()
    in_child(lambda: _live._listener is None)
    assert path.exists()
    assert top(os.getpid()).returncode == 0


def test_a_peer_that_says_and_takes_nothing_is_not_waited_for_long(place, monkeypatch):
    monkeypatch.setattr(_live, "_SEND_SECONDS", 0.2)
    monkeypatch.setattr(_live, "describe", lambda of: {"pid": os.getpid(), "error": "x" * 10**7})
    path = ductile_gpu.listen()
    with socket.socket(socket.AF_UNIX) as silent:
        silent.connect(str(path))
        assert top(os.getpid()).returncode == 0


def test_a_process_without_descriptors_can_be_watched_again_later(place):
    path = ductile_gpu.listen()
    taken = []
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket(socket.AF_UNIX) as peer:
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, limits[1]))
        try:
            with contextlib.suppress(OSError):
                while True:
                    taken.append(os.dup(0))
            peer.connect(str(path))
            time.sleep(3 * _live._LEAST_INTERVAL)
        finally:
            for descriptor in taken:
                os.close(descriptor)
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert top(os.getpid()).returncode == 0


def test_listening_twice_is_one_socket(place, shared):
    assert ductile_gpu.listen() == ductile_gpu.listen()
    found = seen(os.getpid())
    assert [one["device"] for one in found["allocators"]] == [0]


def test_it_can_be_ended_and_begun_again(place):
    path = ductile_gpu.listen()
    _live.stop()
    assert not path.exists()
    assert ductile_gpu.listen().exists()
    assert top(os.getpid()).returncode == 0
