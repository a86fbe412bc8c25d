# SPDX-License-Identifier: Apache-2.0
"""DUCTILE_RECORD and `record -o FOLDER/`: every process of a job that uses a GPU through PyTorch
writes a recording of its own. Around a stub of PyTorch."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess

import pytest
from recordings import WHOLE
from stub_torch import Place, adapter

__all__ = ["adapter"]

HOST = socket.gethostname()
USE = "import torch; torch.cuda.use()"
LAUNCH = """
    import os, subprocess, sys
    code = "import torch; torch.cuda.use()"
    ranks = [
        subprocess.Popen([sys.executable, "-c", code],
                         env={**os.environ, "RANK": str(n), "WORLD_SIZE": sys.argv[1]})
        for n in range(int(sys.argv[1]))
    ]
    sys.exit(max(rank.wait() for rank in ranks))
"""


@pytest.fixture
def place(tmp_path, adapter):
    found = Place(tmp_path, adapter)
    found.environment["STUB_SNAPSHOT"] = str(WHOLE)
    found.environment["DUCTILE_RECORD_STACKS"] = "0"
    (tmp_path / "runs").mkdir()
    return found


def recorded(place):
    """The names of the recordings; nothing else may be left."""
    return sorted(path.name for path in (place.folder / "runs").iterdir())


def log(place):
    return "\n".join(place.said())


# ---- Who is recorded ---------------------------------------------------------------------------


RANK = """
import json, os, pickle, torch
import ductile_gpu
from ductile_gpu.torch._recording import ACTIONS

MIB = 1 << 20
rank = int(os.environ["RANK"])
gpu = ductile_gpu.Allocator(driver="virtual")
history, live = [], {}

def note(action, address, size):
    history.append(dict(action=action, addr=address, size=size, stream=0, time_us=len(history),
                        frames=[dict(name="work", filename="/p/rank.py", line=rank)]))

def allocate(size):
    address = int(gpu.alloc(size))
    live[address] = size
    note("alloc", address, size)
    return address

def free(address):
    gpu.free(address)
    for action in ("free_requested", "free_completed"):
        note(action, address, live[address])
    del live[address]

def write(path):
    with open(path, "wb") as file:
        pickle.dump({"device_traces": [history], "segments": []}, file)

torch.cuda.memory._dump_snapshot = write
torch.cuda.use()
weights = [allocate(MIB * (2 + rank)) for _ in range(16)]
most = 0
for step in range(5):
    passing = [allocate(MIB * (1 + step + layer)) for layer in range(8)]
    most = max(most, gpu.stats().allocated_bytes)
    for address in reversed(passing):
        free(address)
with open(f"rank{rank}.json", "w") as file:
    json.dump(most, file)
"""


def test_eight_ranks_that_allocate_on_the_virtual_gpu_are_told_apart_to_the_byte(place):
    place.write("rank.py", RANK)
    place.write("launch.py", LAUNCH.replace('"-c", code', '"rank.py"'))
    answer = place.command("record", "-o", "ranks/", "launch.py", "8")
    assert answer.returncode == 0, answer.stderr
    assert "8 recordings in ranks" in answer.stderr
    assert "next: ductile-gpu report ranks" in answer.stderr
    answer = place.command("report", "--quick", "--json", "ranks")
    assert answer.returncode == 0, answer.stderr
    found = [json.loads(line) for line in answer.stdout.splitlines()]
    told = [json.loads((place.folder / f"rank{rank}.json").read_text()) for rank in range(8)]
    assert [row["live_peak_bytes"] for row in found] == told
    assert len(set(told)) == 8
    said = place.command("report", "--quick", "ranks").stdout
    assert said.startswith("8 recordings: rank7 needs most: ")
    assert "more than rank0" in said.splitlines()[0]
    assert (place.folder / "report.html").exists()


def test_ranks_stand_in_their_order(place):
    runs = place.folder / "runs"
    for rank in ("10", "9", "1"):
        place.python("-c", USE, DUCTILE_RECORD=runs, RANK=rank, WORLD_SIZE="16")
    assert [name.partition("-")[0] for name in recorded(place)] == ["rank01", "rank09", "rank10"]


def test_a_process_without_a_rank_is_named_by_its_host_and_number(place):
    answer = place.python("-c", f"import os; {USE}; print(os.getpid())", DUCTILE_RECORD="runs")
    assert (answer.returncode, answer.stderr) == (0, "")
    assert recorded(place) == [f"{HOST}-{answer.stdout.strip()}.pickle"]
    assert "recording enabled=all context=None max_entries=None" in log(place)


def test_nothing_is_loaded_for_who_uses_no_gpu(place):
    code = "import torch, sys; print([m for m in sys.modules if m.startswith('ductile_gpu.')])"
    assert place.python("-c", code, DUCTILE_RECORD="runs").stdout == "[]\n"


def test_a_rank_that_is_no_number_names_no_file(place):
    place.python("-c", USE, DUCTILE_RECORD="runs", RANK="../../x")
    (name,) = recorded(place)
    assert name.startswith(f"{HOST}-")


@pytest.mark.parametrize("way", ["spawn", "forkserver", "fork"])
@pytest.mark.parametrize("parent_uses", [True, False])
def test_children_of_multiprocessing_are_recorded(place, way, parent_uses):
    place.write(
        "parent.py",
        f"""
        import multiprocessing, os, sys, torch
        def work():
            torch.cuda.use()
        if __name__ == "__main__":
            context = multiprocessing.get_context({way!r})
            workers = [context.Process(target=work) for n in range(3)]
            for worker in workers: worker.start()
            for worker in workers: worker.join()
            if {parent_uses}: torch.cuda.use()
        """,
    )
    answer = place.python("parent.py", DUCTILE_RECORD="runs")
    assert (answer.returncode, answer.stderr) == (0, "")
    assert len(recorded(place)) == 3 + parent_uses


def test_a_name_that_is_taken_is_not_taken_again(place):
    code = f"import os; {USE}; open(f'runs/{HOST}-{{os.getpid()}}.pickle', 'x').close()"
    assert place.python("-c", code, DUCTILE_RECORD="runs").returncode == 0
    first, second = recorded(place)
    assert second == first.replace(".pickle", "-2.pickle") or first.endswith("-2.pickle")
    sizes = sorted((place.folder / "runs" / name).stat().st_size for name in (first, second))
    assert sizes[0] == 0 < sizes[1]


def test_ductile_itself_can_be_recorded(place):
    answer = place.python("-c", USE, DUCTILE_RECORD="runs", DUCTILE_TORCH="1")
    assert "serves PyTorch" in answer.stderr
    assert len(recorded(place)) == 1


# ---- How a process ends ------------------------------------------------------------------------

# What a program does, its status, and how many recordings there are.
WAYS = {
    "uses no GPU": ("import torch", 0, 0),
    "has no PyTorch": ("print()", 0, 0),
    "an exception": (f"{USE}\nraise ValueError('mine')", 1, 1),
    "a status": (f"{USE}; import sys; sys.exit(7)", 7, 1),
    "SIGTERM": (f"{USE}; import os, time; os.kill(os.getpid(), 15); time.sleep(60)", -15, 1),
    # Where the tests run in the background, their children would ignore it.
    "SIGINT": (
        f"{USE}; import os, signal, time; signal.signal(2, signal.default_int_handler); "
        "os.kill(os.getpid(), 2); time.sleep(60)",
        -2,
        1,
    ),
    "a signal during the writing waits for its end": (
        f"{USE}; import os; m = torch.cuda.memory; dump = m._dump_snapshot\n"
        "m._dump_snapshot = lambda path: (os.kill(os.getpid(), 15), dump(path))",
        -15,
        1,
    ),
    "a program's own handler stays": (
        "import signal, os, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(5)); "
        f"{USE}; os.kill(os.getpid(), 15)",
        5,
        1,
    ),
    "a child that only forked leaves the recording to its parent": (
        f"import os, sys; {USE}; pid = os.fork(); pid and os.waitpid(pid, 0)",
        0,
        1,
    ),
    "a program that goes elsewhere is recorded with its children": (
        f"import os, subprocess, sys; os.mkdir('elsewhere'); os.chdir('elsewhere'); {USE}; "
        f"subprocess.run([sys.executable, '-c', {USE!r}])",
        0,
        2,
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_however_a_program_ends_it_is_recorded_and_its_status_is_its_own(place, way):
    code, status, n = WAYS[way]
    answer = place.python("-c", code, DUCTILE_RECORD="runs")
    assert answer.returncode == status, answer.stderr
    assert len(recorded(place)) == n
    assert all(path.stat().st_size > 0 for path in (place.folder / "runs").iterdir())
    if status in (0, 1):
        shutil.rmtree(place.folder / "elsewhere", ignore_errors=True)
        assert place.python("-c", code).stderr == answer.stderr


@pytest.mark.parametrize("way", ["spawn", "fork"])
def test_a_worker_that_is_terminated_is_recorded(place, way):
    place.write(
        "parent.py",
        f"""
        import multiprocessing, time, torch
        def work(ready):
            torch.cuda.use()
            ready.set()
            time.sleep(60)
        if __name__ == "__main__":
            context = multiprocessing.get_context({way!r})
            ready = context.Event()
            worker = context.Process(target=work, args=(ready,))
            worker.start()
            ready.wait()
            worker.terminate()
            worker.join()
            print(worker.exitcode)
        """,
    )
    answer = place.python("parent.py", DUCTILE_RECORD="runs")
    assert (answer.stdout, answer.stderr) == ("-15\n", "")
    assert len(recorded(place)) == 1


def test_a_forked_child_without_a_gpu_has_the_usual_end_at_sigterm(place):
    code = (
        f"import os, signal, sys; {USE}; pid = os.fork()\n"
        "if pid == 0: print(signal.getsignal(15) is signal.SIG_DFL, flush=True); os._exit(0)\n"
        "os.waitpid(pid, 0)"
    )
    assert place.python("-c", code, DUCTILE_RECORD="runs").stdout == "True\n"


# ---- What cannot be recorded -------------------------------------------------------------------


@pytest.mark.parametrize("folder", ["absent", "file", "/proc"])
def test_a_folder_that_cannot_be_written_is_one_line_and_the_program_runs(place, folder):
    (place.folder / "file").touch()
    place.write("launch.py", f"import torch\ntorch.cuda.use()\n{CHILD}")
    answer = place.python("launch.py", DUCTILE_RECORD=folder)
    assert (answer.returncode, answer.stdout) == (0, "ran\nran\n")
    (line,) = answer.stderr.splitlines()
    assert line.startswith("ductile-gpu: WARNING: nothing is recorded: DUCTILE_RECORD=")
    assert folder in line


CHILD = """
import subprocess, sys
print("ran", flush=True)
subprocess.run([sys.executable, "-c", "import torch; torch.cuda.use(); print('ran')"], check=True)
"""


def test_what_cannot_be_written_at_the_end_is_one_line(place):
    code = f"import shutil; {USE}; shutil.rmtree('runs')"
    answer = place.python("-c", code, DUCTILE_RECORD="runs")
    assert answer.returncode == 0
    (line,) = answer.stderr.splitlines()
    assert line.startswith("ductile-gpu: WARNING: this process was not recorded: ")


def test_a_pytorch_that_cannot_record_goes_on(place):
    code = (
        "import torch; m = torch.cuda.memory; m._record_memory_history = None; "
        "torch.cuda.use(); print('ran')"
    )
    answer = place.python("-c", code, DUCTILE_RECORD="runs")
    assert (answer.returncode, answer.stdout) == (0, "ran\n")
    (line,) = answer.stderr.splitlines()
    assert line.startswith("ductile-gpu: WARNING: this process is not recorded: ")
    assert recorded(place) == []


def test_a_process_that_cannot_have_stacks_is_recorded_without_unless_they_are_insisted_on(place):
    """The stub's adapter does not track."""
    for wanted, said in (("", "this recording has no stacks: "), ("1", "is not recorded: ")):
        answer = place.python("-c", USE, DUCTILE_RECORD="runs", DUCTILE_RECORD_STACKS=wanted)
        assert (answer.returncode, len(recorded(place))) == (0, 1), answer.stderr
        assert said in answer.stderr


@pytest.mark.parametrize("word", ["0", "off", "No", "false"])
def test_stacks_can_be_off_by_any_word_for_it(place, word):
    answer = place.python("-c", USE, DUCTILE_RECORD="runs", DUCTILE_RECORD_STACKS=word)
    assert (answer.returncode, answer.stderr, len(recorded(place))) == (0, "", 1)


def test_a_build_without_cuda_is_left_alone(place):
    answer = place.python("-c", "import torch", DUCTILE_RECORD="runs", STUB_NO_CUDA="1")
    assert (answer.returncode, answer.stderr) == (0, "")


@pytest.mark.parametrize("value", ["", "0", "off"])
def test_it_can_be_off(place, value):
    assert place.python("-c", USE, DUCTILE_RECORD=value).stderr == ""
    assert "recording" not in log(place)


# ---- The command -------------------------------------------------------------------------------


def test_the_command_records_itself_and_its_options_reach_all(place):
    place.write("train.py", f"{USE}\nimport subprocess, sys\n"
                f"subprocess.run([sys.executable, '-c', {USE!r}])")  # fmt: skip
    answer = place.command("record", "--max-events", 77, "-o", "runs", "train.py")
    assert answer.returncode == 0, answer.stderr
    assert len(recorded(place)) == 2
    assert log(place).count("max_entries=77") == 2
    assert "2 recordings in runs" in answer.stderr


def test_the_command_returns_the_scripts_status_and_records_it_when_terminated(place):
    place.write("train.py", f"{USE}\nprint('ready', flush=True)\nimport time; time.sleep(60)")
    process = place.start("record", "-o", "runs/", "train.py", stdout=subprocess.PIPE)
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 128 + signal.SIGTERM
    process.stdout.close()
    assert len(recorded(place)) == 1


def test_the_command_says_when_nothing_was_recorded(place):
    place.write("train.py", "import torch")
    answer = place.command("record", "-o", "runs/", "train.py")
    assert answer.returncode == 1
    assert "nothing was recorded: no process" in answer.stderr


def test_children_are_recorded_where_ductile_is_not_installed(place):
    """But lies in PYTHONPATH: the hook goes with the environment."""
    code = (
        "import os; from ductile_gpu._process import _children; "
        "_children.hook_is_installed = lambda: False; "
        "e = {}; _children.record(e, 'runs'); print('site' in e['PYTHONPATH'], sorted(e))"
    )
    answer = place.python("-c", code)
    names = ["DUCTILE_RECORD", "DUCTILE_TORCH_PREFIX", "PYTHONPATH"]
    assert answer.stdout == f"True {names}\n", answer.stderr


def test_doctor_names_the_folder(place):
    for folder, state, said in (
        ("runs", "ok", "writes a recording"),
        ("absent", "note", "No such file"),
    ):
        answer = place.command("doctor", "--json", DUCTILE_RECORD=folder, DUCTILE_TORCH="1")
        (row,) = (r for r in json.loads(answer.stdout)["checks"] if r["name"] == "record")
        assert (row["state"], said in row["text"]) == (state, True), row
        assert os.path.join(str(place.folder), folder) in row["text"]
    answer = place.command("doctor", "--json", DUCTILE_TORCH="1")
    assert "record" not in {row["name"] for row in json.loads(answer.stdout)["checks"]}
