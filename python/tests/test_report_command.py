# SPDX-License-Identifier: Apache-2.0
"""ductile-gpu report in a shell: pipes, several recordings, and processes that were killed."""

from __future__ import annotations

import json
import os
import signal
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
from recordings import (
    BASE,
    MIB,
    block,
    dump,
    entry,
    frame,
    out_of_memory,
    refusal,
    report,
    segment,
    study,
)  # fmt: skip
from running import Answer, run
from running import ductile_gpu as command
from stub_torch import Place, adapter

from ductile_gpu._tools._cli.common import Failure
from ductile_gpu._tools._cli.report import _page_path
from ductile_gpu._tools._report import _page

__all__ = ["adapter"]


def shell(line: str, folder: Path) -> Answer:
    line = line.replace("REPORT", f"{sys.executable} -m ductile_gpu report")
    return run("bash", "-o", "pipefail", "-c", line, folder=folder)


# ---- Pipes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "file", "name"),
    [
        ("cat oom.pickle | REPORT --json -", "-", "standard input"),
        ("REPORT --json - < oom.pickle", "-", "standard input"),
        ("cat oom.pickle | REPORT --json /dev/stdin", "/dev/stdin", "pipe 1"),
    ],
)
def test_a_recording_may_come_through_a_pipe(tmp_path, line, file, name):
    of_file = study(out_of_memory(tmp_path))
    answer = shell(line, tmp_path)
    assert answer.returncode == 0, answer.stderr
    found = json.loads(answer.stdout)
    assert (found["file"], found["name"]) == (file, name)
    expected = json.loads(json.dumps(_page.numbers(_page.gather([of_file])["recordings"][0])))
    expected["format"] = 1
    assert {**found, "file": "", "name": ""} == {**expected, "file": "", "name": ""}


@pytest.mark.parametrize("line", ["REPORT - < /dev/null", "REPORT - <&-", "true | REPORT -"])
def test_an_empty_pipe_is_one_line(tmp_path, line):
    answer = shell(line, tmp_path)
    assert answer.returncode == 1
    assert len(answer.stderr.splitlines()) == 1
    assert answer.stderr.startswith(("ductile-gpu: standard input: ", "ductile-gpu: -: "))


def test_the_page_is_there_though_nobody_reads_what_is_printed(tmp_path):
    out_of_memory(tmp_path)
    shell("REPORT --quick oom.pickle | true", tmp_path)
    assert (tmp_path / "report.html").read_text().startswith("<!DOCTYPE html>")


# ---- Several recordings -------------------------------------------------------------------------


def test_a_comparison_is_told_on_the_command_line_and_in_json_as_on_the_page(tmp_path):
    paths = []
    for name, size in (("before", 10), ("after", 30)):
        history = [entry("alloc", 1, size * MIB, frame("f", "/a/b.py"))]
        paths.append(dump(tmp_path / f"{name}.pickle", history))
    compare = _page.gather([study(path) for path in paths], compares=True)["compare"]
    answer = report("--compare", *paths, folder=tmp_path)
    assert answer.stdout.splitlines()[0] == compare["note"]
    answer = report("--compare", "--json", *paths, folder=tmp_path)
    *recordings, last = map(json.loads, answer.stdout.splitlines())
    assert [of["name"] for of in recordings] == ["before", "after"]
    assert last["comparison"] == json.loads(json.dumps(compare))


def test_a_recording_may_be_compared_with_itself_and_not_with_a_broken_one(tmp_path):
    path = out_of_memory(tmp_path)
    same = "Both runs have a need at the moment of 110.0 MiB."
    answer = report("--compare", path, path, folder=tmp_path)
    assert answer.stdout.splitlines()[0] == same, answer.stderr
    answer = shell("cat oom.pickle | REPORT --quick --compare - -", tmp_path)
    assert answer.stdout.splitlines()[0] == same, answer.stderr
    folder = tmp_path / "both"
    folder.mkdir()
    path.rename(folder / "a.pickle")
    (folder / "b.pickle").write_bytes(b"\x80\x04")
    answer = report("--quick", "--compare", folder, folder=tmp_path)
    assert answer.returncode == 1
    assert answer.stderr.splitlines()[-1] == ("ductile-gpu: --compare: b.pickle cannot be compared")


def test_a_refusal_on_a_gpu_that_did_little_is_what_the_page_is_about(tmp_path):
    busy = [entry("alloc", BASE + i * MIB, MIB) for i in range(50)]
    quiet = [entry("alloc", BASE, 9 * MIB), refusal(30 * MIB, MIB)]
    held = segment(BASE, block(BASE, 9 * MIB), device=1)
    path = dump(tmp_path / "two.pickle", busy, quiet, segments=[held])
    found = json.loads(report("--json", path, folder=tmp_path).stdout)
    assert (found["gpu"], found["refused"]["needed_bytes"]) == (1, 39 * MIB)


# ---- Processes that were killed -----------------------------------------------------------------


@pytest.fixture
def place(tmp_path: Path, adapter: Any) -> Place:
    found = Place(tmp_path, adapter)
    (tmp_path / "runs").mkdir()
    return found


def test_a_rank_that_was_killed_is_missed(place):
    runs = place.folder / "runs"
    code = f"import os, torch; torch.cuda.use(); os.kill(os.getpid(), {int(signal.SIGKILL)})"
    place.python("-c", code, DUCTILE_RECORD=runs)
    answer = place.command("report", "--quick", runs)
    assert answer.returncode == 1
    assert "1 not finished (the process is at work, or was killed)" in answer.stderr
    dump(runs / "rank0.pickle", [entry("alloc", 1, MIB)])
    answer = place.command("report", "--quick", runs)
    assert answer.returncode == 1
    assert answer.stdout.startswith(
        "1 recording: rank0 alone is shown. "
        "Missing: 1 not finished (the process is at work, or was killed)."
    )


def test_a_file_that_is_still_written_is_one_line_or_a_page(tmp_path):
    """Whatever of it is there when it is read."""
    whole = out_of_memory(tmp_path).read_bytes()
    for length in range(0, len(whole), len(whole) // 9):
        (tmp_path / "part.pickle").write_bytes(whole[:length])
        answer = report("--quick", "part.pickle", folder=tmp_path)
        assert (answer.returncode, len(answer.stderr.splitlines())) == (1, 1), answer.stderr
    assert sorted(os.listdir(tmp_path)) == ["oom.pickle", "part.pickle"]


# ---- Names of others ---------------------------------------------------------------------------


def test_a_pipe_in_a_folder_is_not_waited_for(tmp_path):
    """Who may write into the folder could stop the command for ever."""
    (tmp_path / "run.trace").write_bytes(b"a 0 512 0\n")
    os.mkfifo(tmp_path / "x.pickle")
    answer = command("report", tmp_path, "-o", tmp_path / "page.html", seconds=60)
    assert answer.returncode == 1
    assert "x.pickle: it is no file" in answer.stdout + answer.stderr


def test_a_page_may_go_to_a_device_and_through_a_link_out_of_a_folder_that_is_closed(
    tmp_path, monkeypatch
):
    closed, open_one = tmp_path / "closed", tmp_path / "open"
    closed.mkdir()
    open_one.mkdir()
    (closed / "link.html").symlink_to(open_one / "page.html")
    monkeypatch.setattr("os.access", lambda path, _mode: Path(path) not in (closed, Path("/dev")))

    def place(output: Any) -> Any:
        return _page_path(Namespace(output=str(output), json=False, open=False), [])

    for output in (Path("/dev/null"), closed / "link.html"):
        assert place(output) == output
    with pytest.raises(Failure, match="cannot be written there"):
        place(closed / "page.html")


def test_names_of_files_are_no_commands_of_the_terminal(tmp_path):
    hostile = tmp_path / "\x1b[31mred\nductile-gpu: all is well.trace"
    hostile.write_bytes(b"a 0 512 0\n")
    for words in (("report", hostile, "-o", tmp_path / "a.html"), ("replay", hostile)):
        answer = command(*words, PYTHONIOENCODING="ascii:strict")
        assert answer.returncode == 0, answer.stderr
        assert "\x1b" not in answer.stdout + answer.stderr
        assert not any(
            line.startswith("ductile-gpu: all is well") for line in answer.stdout.splitlines()
        )
        assert r"\x1b[31mred\nductile-gpu: all" in answer.stdout
    absent = command("report", tmp_path / "\x1b[31mabsent.trace")
    assert absent.returncode == 1
    assert "\x1b" not in absent.stderr
