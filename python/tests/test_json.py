# SPDX-License-Identifier: Apache-2.0
"""What the commands print with --json is what the published schema says, and has its format."""

from __future__ import annotations

import copy
import json
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from recordings import SNAPSHOTS, VIT, WHOLE, out_of_memory, report, training
from running import Answer, bench, ductile_gpu
from support import ROOT

jsonschema = pytest.importorskip("jsonschema")
PUBLISHED = json.loads((ROOT / "python" / "ductile_gpu" / "commands.schema.json").read_text())


def closed(part: Any) -> Any:
    """The schema, which a key fails that it does not name."""
    for inner in part.values() if isinstance(part, dict) else part:
        if isinstance(inner, (dict, list)):
            closed(inner)
    if isinstance(part, dict) and isinstance(part.get("properties"), dict):
        part["additionalProperties"] = False
    return part


def faults(kind: str, found: dict[str, Any], published: dict[str, Any] = PUBLISHED) -> list[str]:
    strict = closed(copy.deepcopy(published["$defs"]))
    reader = jsonschema.Draft202012Validator({"$defs": strict, "$ref": f"#/$defs/{kind}"})
    return [f"{list(error.path)}: {error.message[:200]}" for error in reader.iter_errors(found)]


def lines(answer: Answer) -> list[dict[str, Any]]:
    return objects(answer.stdout)


def objects(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_the_schema_is_one():
    jsonschema.Draft202012Validator.check_schema(PUBLISHED)


@pytest.mark.parametrize("path", [*SNAPSHOTS[:3], VIT], ids=lambda path: path.name[:20])
def test_what_report_prints_of_a_recording_is_as_published(tmp_path, path):
    (found,) = lines(report("--quick", "--json", path, folder=tmp_path))
    assert faults("report", found) == []
    assert found["format"] == 1


def test_what_report_prints_of_a_refusal_a_search_and_two_runs_is_as_published(tmp_path):
    path = out_of_memory(tmp_path)
    *both, last = lines(report("--json", "--compare", path, path, folder=tmp_path))
    assert [faults("report", found) for found in both] == [[], []]
    assert faults("comparison", last) == []


def test_what_report_prints_of_a_forecast_and_a_capacity_is_as_published(tmp_path):
    path = training(tmp_path, [2, 4, 6])
    for words in (("--batch", "2,4,6"), ("--capacity", "1500M", "--quick")):
        (found,) = lines(report("--json", *words, path, folder=tmp_path))
        assert faults("report", found) == []


def test_what_doctor_and_info_print_is_as_published(tmp_path):
    program = tmp_path / "program.py"
    program.write_text("print()\n")
    for words in (("doctor", "--json", program), ("info", "--json")):
        answer = ductile_gpu(*words, folder=tmp_path)
        assert faults(words[0], json.loads(answer.stdout)) == [], answer.stderr


def assert_published(kind: str, found: list[dict[str, Any]]) -> None:
    assert found
    for row in found:
        assert faults(kind, row) == []
        assert next(iter(row)) == "format"


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--min-capacity", "--calls", "--repeat", 2],
        ["--tight", 5, "--old-driver", "--vary", 3],
        ["--capacity", "16M"],
        ["--contender", "ductile,cumemallocasync", "--schedule", "random:3"],
    ],
    ids=["plain", "searched and timed", "tight", "out of memory", "absent"],
)
def test_what_a_replay_prints_is_as_published(words):
    path = WHOLE if "--min-capacity" in words else SNAPSHOTS[0]
    found = objects(bench("replay", "--json", "--device", "virtual", *words, path))
    assert_published("replay", found)


def test_a_replay_of_the_package_prints_the_same(tmp_path):
    assert_published("replay", lines(ductile_gpu("replay", "--json", WHOLE, folder=tmp_path)))


@pytest.mark.parametrize("more", [[], ["--watch"], ["--capacity", "4M"]])
def test_what_churn_prints_is_as_published(more):
    words = ("generate", "churn", "--json", "--device", "virtual", "--ops", 2000, "--live", 1000)
    assert_published("churn", objects(bench(*words, *more)))


@pytest.mark.parametrize("more", [[], ["--capacity", "1G"], ["--contender", "cumemallocasync"]])
def test_what_sharded_steps_print_is_as_published(more):
    words = ("generate", "fsdp", "--json", "--device", "virtual", "--layers", 2, "--steps", 2)
    assert_published("fsdp", objects(bench(*words, "--runs", 1, *more)))


@pytest.mark.parametrize("more", [[], ["--quick", "--capacity", "60M"]])
def test_what_a_view_prints_is_as_published(tmp_path, more):
    path = out_of_memory(tmp_path)
    found = objects(bench("view", *more, path, WHOLE))
    assert {row["kind"] for row in found} == {"recording", "run"}
    for row in found:
        assert_published(f"view_{row['kind']}", [row])


SEEN = """
    import sys, ductile_gpu
    allocator = ductile_gpu.Allocator(driver="virtual")
    kept = [allocator.alloc(10 << 20), allocator.alloc(3 << 20)]
    allocator.free(kept.pop())
    ductile_gpu.listen()
    print("ready", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def watched(tmp_path, monkeypatch):
    """The number of a process that holds 10 MiB, and may be looked into."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SEEN)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    yield process
    process.send_signal(signal.SIGCONT)
    process.communicate(timeout=60)


def test_what_top_prints_is_as_published(watched):
    (found,) = lines(ductile_gpu("top", "--json"))
    assert_published("top", [found])
    assert [len(of["groups"]) for of in found["allocators"]] == [1]


def test_what_top_prints_of_a_process_that_is_stopped_is_as_published(watched):
    watched.send_signal(signal.SIGSTOP)
    (found,) = lines(ductile_gpu("top", "--json"))
    assert_published("top", [found])
    assert found["pid"] == watched.pid
    assert "it does not answer" in found["error"]


def test_a_page_goes_into_a_folder_that_is_named(tmp_path):
    (tmp_path / "out").mkdir()
    path = out_of_memory(tmp_path)
    for folder in ("out", "out/"):
        answer = report("--quick", "-o", folder, path, folder=tmp_path)
        assert answer.returncode == 0, answer.stderr
        page = tmp_path / "out" / "report.html"
        assert page.is_file()
        page.unlink()
    answer = report("--quick", "-o", "nowhere/", path, folder=tmp_path)
    assert answer.returncode == 1
    assert "nowhere: no such folder" in answer.stderr


def test_names_that_the_output_cannot_encode_are_told_all_the_same(tmp_path):
    path = out_of_memory(tmp_path).rename(tmp_path / "läuft über.pickle")
    how: dict[str, Any] = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    answer = report("--quick", path.name, folder=tmp_path, **how, PYTHONIOENCODING="ascii:strict")
    assert answer.returncode == 0, answer.stderr
    assert "l\\xe4uft \\xfcber: Out of memory" in answer.stdout
    assert Path(tmp_path / "report.html").is_file()
