# SPDX-License-Identifier: Apache-2.0
"""The commands, as a user runs them: results on standard output, one line for each error."""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from recordings import WHOLE
from running import ductile_gpu as command
from running import python, run
from stub_torch import Place

import ductile_gpu
from ductile_gpu.__main__ import COMMANDS, make_parser
from ductile_gpu._tools._cli.common import Failure, read_settings
from ductile_gpu._tools._sizes import in_bytes


@pytest.fixture
def place(tmp_path):
    found = Place(tmp_path)
    found.environment["STUB_SNAPSHOT"] = str(WHOLE)
    return found


TRAINING = """
    import sys
    import torch
    print("arguments", sys.argv[1:], __name__)
    torch.cuda.init()
"""


def read_trace(path: Path) -> list[str]:
    with gzip.open(path, "rt") as file:
        return file.read().splitlines()


# ---- Help and misuse ---------------------------------------------------------------------------


@pytest.mark.parametrize("words", [(), *((name,) for name in COMMANDS)])
def test_every_command_explains_itself(place, words):
    answer = place.command(*words, "--help")
    assert answer.returncode == 0
    assert answer.stdout.startswith("usage: ductile-gpu")
    assert answer.stderr == ""


def test_help_is_made_of_sentences():
    parser = make_parser()
    commands = parser.get_default("commands")
    texts = [module.SUMMARY for module in COMMANDS.values()]
    for of in (parser, *commands.values()):
        texts += [action.help for action in of._actions if action.choices is None]
    shown = [text for text in texts if text != argparse.SUPPRESS]
    assert len(shown) > 50
    assert [text for text in shown if not re.fullmatch(r"[A-Z\W].*\.", text or "", re.S)] == []


def test_the_version_is_the_librarys(place):
    for word in ("--version", "-V"):
        assert place.command(word).stdout.split() == ["ductile-gpu", ductile_gpu.__version__]


def test_no_command_shows_what_there_is(place):
    answer = place.command()
    assert answer.returncode == 0
    assert all(name in answer.stdout for name in COMMANDS)


def test_what_may_take_seconds_is_announced_on_a_terminal_alone(place):
    shown, terminal = os.openpty()
    process = place.start("doctor", stdout=subprocess.DEVNULL, stderr=terminal)
    process.wait()
    os.close(terminal)
    assert os.read(shown, 4096).startswith(f"ductile-gpu: asking {sys.executable}".encode())
    os.close(shown)
    assert "asking" not in place.command("doctor").stderr


COMPLETE = """\
eval "$({program} completion)"
COMP_WORDS=({words}) COMP_CWORD={at}
_ductile_gpu
echo "${{COMPREPLY[*]}}"
"""


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        (("re",), "record replay report"),
        (("--v",), "--version"),
        (("run", "--s"), "--set --summary --spill"),
        (("report", "a.pickle", "--comp"), "--compare"),
        (("report", "a.p"), ""),  # the shell has the names of files
        (("run", "train.py", "--s"), ""),
    ],
)
def test_a_shell_completes_commands_and_options(words, completed):
    program = f"{sys.executable} -m ductile_gpu"
    quoted = " ".join(("ductile-gpu", *words))
    script = COMPLETE.format(program=program, words=quoted, at=len(words))
    answer = run("bash", "-c", script)
    assert (answer.stdout.strip(), answer.stderr) == (completed, "")


@pytest.mark.skipif(shutil.which("zsh") is None, reason="no zsh")
def test_zsh_reads_what_bash_does():
    program = f"{sys.executable} -m ductile_gpu"
    script = COMPLETE.format(program=program, words="ductile-gpu run --s", at=2)
    before = "autoload -U compinit; compinit -D -u\n"
    script = script.replace("COMP_WORDS=", "setopt KSH_ARRAYS; COMP_WORDS=", 1)
    answer = run("zsh", "-f", "-c", before + script)
    assert answer.stderr == ""
    assert {"--set", "--summary"} <= set(answer.stdout.split())


def test_what_is_no_text_is_not_written_to_a_terminal(tmp_path):
    (tmp_path / "noise.pickle").write_bytes(
        b"\xff\xfe\x1b\xc2\x9b31m\xed\xa0\x80\xe2\x82\xc3\xbc \x00\n"
    )
    for name in ("report", "replay"):
        answer = command(name, tmp_path / "noise.pickle")
        assert answer.returncode == 1
        assert answer.stderr.rstrip("\n").isprintable(), answer.stderr
        assert "neither a trace nor a PyTorch snapshot: '?????31m?????\xfc' is" in answer.stderr


@pytest.mark.parametrize(
    ("words", "status", "line"),
    [
        (("record", "missing.py"), 2, "missing.py: no such file"),
        (("run", "missing.py"), 2, "missing.py: no such file"),
        (("replay", "missing.gz"), 1, "missing.gz: No such file"),
        (("record", "-o", "run.txt", "train.py"), 2, "must end in one of"),
        (("record", "-o", "nowhere/run.trace.gz", "train.py"), 1, "no such folder"),
        (("record", "-o", "no/where/", "train.py"), 1, "no such folder"),
        (("record", "--stacks", "-o", "run.trace.gz", "train.py"), 2, "which has no stacks"),
        (("record", "--stacks", "--gpu", "1", "train.py"), 2, "which has no stacks"),
        (("record", "--stacks", "--max-events", "5", "train.py"), 2, "the disk alone is the limit"),
        (("record", "-o", "run.pickle", "--gpu", "1", "train.py"), 2, "only a trace is of one"),
        (("record", "-o", "runs/", "--gpu", "1", "train.py"), 2, "only a trace is of one"),
        (("record", "--max-events", "0", "train.py"), 2, "at least 1"),
        (("record", "--gpu=-1", "train.py"), 2, "is the number of a GPU"),
        (("run", "--set", "zero", "train.py"), 2, "'zero' is not key:value, or key=value"),
        (("report", "--set", "sizes:aut", WHOLE), 2, "did you mean auto?"),
        (("run", "--set", "limit_byte=4G", "train.py"), 2, "did you mean limit_bytes?"),
        (("replay", "--set", "limit_byte=1", WHOLE), 2, "'limit_byte': did you mean limit_"),
        (("replay", "--capacity", "8X", WHOLE), 2, "--capacity is a number of bytes"),
        (("run", "--set", "foo=1", "train.py"), 2, "'foo'; there are address_budget_bytes, "),
        (("report", "--json", "-o", "-", WHOLE), 2, "and --json writes there, too"),
        (("report", "--open", "-o", "-", WHOLE), 2, "standard output, and --open shows"),
        (("rnu", "train.py"), 2, "'rnu' is no command: did you mean run?"),
        (
            ("frobnicate",),
            2,
            "'frobnicate' is no command: there are demo, record, replay, report, ",
        ),
    ],
)
def test_an_error_is_one_line(place, words, status, line):
    place.write("train.py", "raise SystemExit(99)")
    answer = place.command(*words)
    assert answer.returncode == status
    assert line in answer.stderr
    assert len(answer.stderr.splitlines()) == 1
    assert answer.stderr.startswith("ductile-gpu: ")


@pytest.mark.parametrize("words", [("replay", WHOLE), ("info",), ("--help",), ()])
def test_a_full_disk_is_one_line(place, words):
    with open("/dev/full", "wb") as full:
        process = place.start(*words, stdout=full, stderr=subprocess.PIPE)
        _, said = process.communicate()
    assert process.returncode == 1
    assert said == ("ductile-gpu: standard output cannot be written: No space left on device\n")


def closed(place, stream, *words):
    """The command, of which the shell has closed a stream."""
    program = (sys.executable, "-m", "ductile_gpu", *words)
    return place.execute("sh", "-c", f'exec "$@" {stream}', "sh", *program)


@pytest.mark.parametrize("words", [("replay", WHOLE), ("info",), ("info", "--json"), ("--help",)])
def test_a_closed_standard_output_is_one_line(place, words):
    answer = closed(place, ">&-", *words)
    assert answer.returncode == 1
    assert answer.stderr == (
        "ductile-gpu: standard output cannot be written: Bad file descriptor\n"
    )


@pytest.mark.parametrize(
    ("words", "status", "output"),
    [
        (("report", "--quick", "-o", "page.html", WHOLE), 0, "torch_"),
        (("replay", "nowhere.trace"), 1, ""),
        (("run", "ends.py"), 1, ""),
        (("run", "fails.py"), 1, ""),
    ],
)
def test_what_is_for_a_closed_standard_error_goes_nowhere(place, words, status, output):
    place.write("ends.py", "raise SystemExit('bye')")
    place.write("fails.py", "1 / 0")
    answer = closed(place, "2>&-", *words)
    assert answer.returncode == status
    assert "ductile-gpu:" not in answer.stdout
    assert answer.stdout[:6] == output


# ---- record ------------------------------------------------------------------------------------


def test_recording_runs_the_script_unchanged_and_writes_a_trace(place):
    place.write("train.py", TRAINING)
    answer = place.command(
        "record", "-o", "run.trace.gz", "train.py", "--epochs", "1", "-o", "mine"
    )
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout == "arguments ['--epochs', '1', '-o', 'mine'] __main__\n"
    assert "next: ductile-gpu report run.trace.gz" in answer.stderr
    assert place.said() == [
        "imported",
        "recording enabled=all context=None max_entries=None",
        "dumped",
    ]
    lines = read_trace(place.folder / "run.trace.gz")
    assert sum(line.startswith("a ") for line in lines) > 1000
    assert not list(place.folder.glob(".ductile-*"))


def test_what_was_recorded_can_be_replayed(place):
    place.write("train.py", TRAINING)
    assert place.command("record", "train.py").returncode == 0
    results = []
    for file in ("train.pickle", str(WHOLE)):
        answer = place.command("replay", "--json", file)
        assert answer.returncode == 0, answer.stderr
        results.append([json.loads(line) for line in answer.stdout.splitlines()])
    kept = ("contender", "live_peak_bytes", "reserved_peak_bytes")
    trace, snapshot = ([{k: r[k] for k in kept} for r in result] for result in results)
    assert trace == snapshot


def test_without_stacks_a_pickle_is_pytorchs_own_snapshot(place):
    place.write("train.py", TRAINING)
    for name, read in (("run.pickle", bytes), ("run.pickle.gz", gzip.decompress)):
        answer = place.command("record", "--no-stacks", "-o", name, "train.py")
        assert answer.returncode == 0, answer.stderr
        assert "no stacks" not in answer.stderr
        found = read((place.folder / name).read_bytes())
        assert found == gzip.decompress(WHOLE.read_bytes())


def test_where_stacks_cannot_be_had_it_is_said_and_the_run_is_recorded_without(place):
    """The stub of PyTorch has nothing that an adapter could be compiled against."""
    place.write("train.py", TRAINING)
    answer = place.command("record", "train.py")
    assert answer.returncode == 0, answer.stderr
    assert answer.stderr.count("this recording has no stacks: ") == 1
    assert (place.folder / "train.pickle").read_bytes() == gzip.decompress(WHOLE.read_bytes())
    answer = place.command("record", "--stacks", "train.py")
    assert answer.returncode == 1
    assert "nothing was recorded" in answer.stderr


def test_the_number_of_events_can_be_limited(place):
    place.write("train.py", TRAINING)
    assert place.command("record", "--max-events", 1000, "train.py").returncode == 0
    assert place.said()[1].endswith("max_entries=1000")


def test_recording_does_not_initialise_cuda_for_the_script(place):
    place.write("train.py", "import torch; assert not torch.cuda.is_initialized()")
    answer = place.command("record", "train.py")
    assert answer.returncode == 1
    assert "did not use a GPU" in answer.stderr
    assert place.said() == ["imported"]


def test_settings_that_the_script_makes_before_its_import_count(place):
    place.write(
        "train.py",
        """
        import os
        os.environ["STUB_NO_CUDA"] = "1"
        import torch
        """,
    )
    answer = place.command("record", "train.py")
    assert answer.returncode == 1
    assert "built without CUDA" in answer.stderr


def test_a_script_without_pytorch_has_nothing_to_record(place):
    place.write("train.py", "print('done')")
    answer = place.command("record", "train.py")
    assert (answer.returncode, answer.stdout) == (1, "done\n")
    assert "did not import torch" in answer.stderr
    assert not list(place.folder.glob("*.trace*"))


def test_a_failing_script_is_recorded_too_and_keeps_its_traceback(place):
    place.write("train.py", TRAINING + "    raise RuntimeError('CUDA out of memory')\n")
    answer = place.command("record", "train.py")
    assert answer.returncode == 1
    assert (place.folder / "train.pickle").exists()
    assert "RuntimeError: CUDA out of memory" in answer.stderr
    assert re.search(r'File ".*train.py", line 6, in <module>', answer.stderr)
    assert "_cli" not in answer.stderr
    assert "runpy" not in answer.stderr


@pytest.mark.parametrize(("code", "status"), [("3", 3), ("'no data'", 1), ("", 0)])
def test_the_scripts_exit_status_is_kept(place, code, status):
    place.write("train.py", TRAINING + f"    sys.exit({code})\n")
    answer = place.command("record", "train.py")
    assert answer.returncode == status
    assert (place.folder / "train.pickle").exists()


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 128 + signal.SIGTERM)]
)
def test_an_interrupted_script_is_recorded_too(place, number, status):
    place.write(
        "train.py", TRAINING + "    open('ready', 'w').close()\n    import time; time.sleep(600)\n"
    )
    process = place.start(
        "record",
        "train.py",
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        # A job in a script's background ignores SIGINT, and so do its children.
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),
    )
    until = time.monotonic() + 300
    while not (place.folder / "ready").exists() and time.monotonic() < until:
        time.sleep(0.02)
    process.send_signal(number)
    _, said = process.communicate(timeout=300)
    assert process.returncode == status, said
    assert (place.folder / "train.pickle").exists()


def test_each_rank_writes_a_file_of_its_own(place):
    place.write("train.py", TRAINING)
    answer = place.command("record", "-o", "run.trace.gz", "train.py", RANK="3", WORLD_SIZE="8")
    assert answer.returncode == 0, answer.stderr
    assert (place.folder / "run.rank3.trace.gz").exists()


def test_a_module_can_be_recorded(place):
    place.write("training_module.py", TRAINING)
    answer = place.command("record", "-m", "training_module", "--fast")
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout == "arguments ['--fast'] __main__\n"
    assert (place.folder / "training_module.pickle").exists()


def test_a_snapshot_that_cannot_be_read_is_kept(place):
    place.write("train.py", TRAINING)
    broken = place.folder / "broken.gz"
    broken.write_bytes(gzip.compress(b"\x80\x04no snapshot"))
    answer = place.command("record", "-o", "train.trace.gz", "train.py", STUB_SNAPSHOT=str(broken))
    assert answer.returncode == 1
    assert "kept as train.pickle" in answer.stderr
    assert (place.folder / "train.pickle").read_bytes() == b"\x80\x04no snapshot"
    (place.folder / "train.pickle").write_text("another run")
    answer = place.command("record", "-o", "train.trace.gz", "train.py", STUB_SNAPSHOT=str(broken))
    assert "kept as train-2.pickle" in answer.stderr
    assert (place.folder / "train.pickle").read_text() == "another run"


def test_a_trace_lands_where_the_command_was_started(place):
    (place.folder / "elsewhere").mkdir()
    place.write("train.py", "import os; os.chdir('elsewhere')\n" + textwrap.dedent(TRAINING))
    answer = place.command("record", "-o", "train.trace.gz", "train.py")
    assert answer.returncode == 0, answer.stderr
    assert "next: ductile-gpu report train.trace.gz" in answer.stderr
    assert (place.folder / "train.trace.gz").exists()
    assert not list((place.folder / "elsewhere").iterdir())


# ---- replay ------------------------------------------------------------------------------------


def test_a_replay_says_what_each_allocator_needs(place):
    answer = place.command("replay", WHOLE)
    assert answer.returncode == 0, answer.stderr
    rows = {line.strip().split("  ")[0]: line for line in answer.stdout.splitlines()}
    assert {"native", "expandable segments", "Ductile"} <= set(rows)
    assert "840.0 MiB" in rows["native"]
    assert re.search(r"Ductile holds .* less than native", answer.stdout)


def test_what_is_no_trace_is_called_so(place):
    page = place.folder / "README.md"
    page.write_text("# A page\n\nIt says something.\n")
    answer = place.command("replay", page)
    assert answer.returncode == 1
    assert "README.md:3: neither a trace nor a PyTorch snapshot" in answer.stderr


def test_a_reader_that_has_seen_enough_is_no_error(place):
    reading, writing = os.pipe()
    os.close(reading)
    process = place.start("replay", WHOLE, stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    assert process.communicate()[1] == ""
    assert process.returncode == 1


def test_a_replay_reads_standard_input(place):
    with open(WHOLE, "rb") as file:
        process = place.start("replay", "-", stdin=file, stdout=subprocess.PIPE)
    assert "Ductile holds" in process.communicate()[0]
    assert process.returncode == 0


def test_a_replay_finds_the_smallest_gpu(place):
    answer = place.command("replay", "--min-capacity", WHOLE)
    assert answer.returncode == 0, answer.stderr
    assert "smallest GPU" in answer.stdout


def test_a_run_that_does_not_fit_says_so(place):
    answer = place.command("replay", "--capacity", "400M", WHOLE)
    assert answer.returncode == 0, answer.stderr
    assert len(re.findall(r"out of memory at event \d+ of \d", answer.stdout)) == 3
    assert "The run itself needs" in answer.stdout


def test_the_demonstration_is_completed_by_ductile_alone(place):
    answer = place.command("demo", "-o", "report.html")
    assert answer.returncode == 0, answer.stderr
    assert len(re.findall(r"out of memory at event [\d,]+ of 12,424", answer.stdout)) == 2
    assert re.search(r"^  Ductile +5\.02 GiB", answer.stdout, re.M)
    assert "Out of memory on 5.57 GiB with expandable segments and native" in answer.stdout
    assert (place.folder / "report.html").stat().st_size > 100_000
    assert place.command("demo", "--open").returncode == 2


def test_replay_and_report_count_events_alike(place):
    """From 1, as the events of the trace are counted; the rows for programs count from 0."""
    (place.folder / "two.trace").write_text(f"a 1 512 0\na 2 {2 << 30} 0\n")
    answer = place.command("replay", "--capacity", "1G", "two.trace")
    assert answer.stdout.count("out of memory at event 2 of 2") == 3, answer.stderr
    rows = place.command("replay", "--json", "--capacity", "1G", "two.trace").stdout.splitlines()
    assert [json.loads(row)["stopped_at_event"] for row in rows] == [1, 1, 1]
    (found,) = place.command(
        "report", "--json", "--capacity", "1G", "two.trace"
    ).stdout.splitlines()
    stops = [run["stopped"]["event"] for run in json.loads(found)["allocators"].values()]
    assert stops == [2, 2, 2]


def test_options_reach_the_replay(place):
    answer = place.command("replay", "--json", "--set", "reuse=never", WHOLE)
    ours = [json.loads(line) for line in answer.stdout.splitlines()]
    assert any("reuse" in str(result.get("settings")) for result in ours)
    answer = place.command("replay", "--set", "nonsense=1", WHOLE)
    assert answer.returncode == 2
    assert "nonsense" in answer.stderr


@pytest.mark.parametrize("library", ["rmm", "cupy", "numba"])
def test_a_library_that_is_missing_is_named_with_its_wheel(library):
    code = f"import sys; sys.modules['{library}'] = None\nimport ductile_gpu.{library}"
    said = f"ModuleNotFoundError: {library} is not installed; its wheel is"
    assert said in python("-c", code).stderr


# ---- info --------------------------------------------------------------------------------------


def test_info_works_without_a_gpu(place):
    answer = place.command("info", DUCTILE_CONF="reuse:never")
    assert answer.returncode == 0, answer.stderr
    assert f"ductile-gpu {ductile_gpu.__version__}" in answer.stdout
    assert re.search(r"reuse +never", answer.stdout)
    found = json.loads(place.command("info", "--json").stdout)
    assert found["version"] == ductile_gpu.__version__
    assert Path(found["bench"]).exists()


def test_info_names_the_wrong_key_of_the_environment(place):
    answer = place.command("info", DUCTILE_CONF="nonsense:1")
    assert answer.returncode == 1
    assert answer.stderr == "ductile-gpu: DUCTILE_CONF: unknown option 'nonsense'\n"


@pytest.mark.parametrize("command", ["report", "replay"])
def test_what_replays_names_the_wrong_key_of_the_environment(place, command):
    answer = place.command(command, WHOLE, DUCTILE_CONF="nonsense:1")
    assert (answer.returncode, answer.stdout) == (2, "")
    assert answer.stderr == "ductile-gpu: DUCTILE_CONF: unknown option 'nonsense'\n"


def test_a_colon_sets_as_an_equals_sign_does(place):
    said = [
        place.command("replay", "--json", "--set", f"sizes{sign}2M", WHOLE).stdout for sign in "=:"
    ]
    held = [
        [json.loads(line)["reserved_peak_bytes"] for line in text.splitlines()] for text in said
    ]
    assert held[0] == held[1] != []


def test_the_bench_is_a_command_of_its_own():
    program = Path(sys.executable).parent / "ductile-bench"
    for word in ("--version", "-V"):
        answer = run(program, word)
        assert answer.stdout.split() == ["ductile-bench", ductile_gpu.__version__]
    assert run(program).stdout.startswith("usage: ductile-bench ")


# ---- Small parts -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (1536, "1.5 KiB"),
        (5 << 20, "5.0 MiB"),
        (3 << 29, "1.50 GiB"),
        (139 << 30, "139.0 GiB"),
    ],
)
def test_sizes_are_written_for_people(size, text):
    assert in_bytes(size) == text


def test_settings_are_key_and_value():
    found = {"sizes": "2M", "zero": "on", "limit_bytes": "80%"}
    assert read_settings(["sizes=2M", "zero: on,limit_bytes:80%"]) == found
    for wrong in ("=1", "sizes", "sizes=2M=4M", "a:1"):
        with pytest.raises(Failure):
            read_settings([wrong])


@pytest.mark.gpu
def test_a_real_training_is_recorded(tmp_path):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("PyTorch has no GPU")
    program = """
        import torch
        model = torch.nn.Linear(1024, 1024).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        for size in (8, 512, 64, 2048):
            model(torch.randn(size, 1024, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    """
    (tmp_path / "train.py").write_text(textwrap.dedent(program))
    answer = command("record", "-o", "run.trace.gz", "train.py", folder=tmp_path)
    assert answer.returncode == 0, answer.stderr
    lines = read_trace(tmp_path / "run.trace.gz")
    assert sum(line.startswith("a ") for line in lines) >= 40
    assert any(re.match(r"a \S+ 8388608 ", line) for line in lines), "2048 x 1024 floats"
