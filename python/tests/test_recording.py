# SPDX-License-Identifier: Apache-2.0
"""What is streamed to disk: a snapshot like PyTorch's, with stacks, in constant memory."""

from __future__ import annotations

import ctypes
import os
import pickle
import sys
import textwrap
import threading
import time

import pytest
from running import at_once, in_child, python, replayed
from snapshots import History, Levels, read_snapshot
from stub_torch import STUB, Place, compile_stub
from support import peak_rss

from ductile_gpu._tools._report._collect import ask_bench
from ductile_gpu.torch._recording import ACTIONS, RecordingError, StackRecording, functions

LIVE = 1000  # as recording_driver.c
MIB = 1 << 20


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    """A program in C that allocates; its path."""
    output = tmp_path_factory.mktemp("driver") / "driver.so"
    return compile_stub("recording_driver.c", output, "-std=c11", "-O2", "-pthread")


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "parts"
    place.mkdir()
    return place


def another(folder):
    """A recording that is written into a new folder."""
    folder.mkdir()
    return StackRecording(folder)


@pytest.fixture
def recording(folder):
    found = StackRecording(folder)
    yield found
    found.library.ductile_recording_close((ctypes.c_uint64 * 6)())


def tell(recording, action="alloc", address=1 << 40, size=512, device=0, stream=0, pool=(0, 0)):
    """One event, by calls that let Python's lock go, as PyTorch does before it allocates.
    pool: None where PyTorch does not say it."""
    function = recording.library.ductile_recording_event
    function.argtypes = [ctypes.c_int, ctypes.c_int, *[ctypes.c_uint64] * 3, ctypes.c_void_p]
    function.restype = None
    recording.library.ductile_recording_stack()
    numbers = None if pool is None else (ctypes.c_uint64 * 2)(*pool)
    function(ACTIONS.index(action), device, address, size, stream, numbers)


def play(recording, driver, n, device=0, kind=ctypes.CDLL):
    """Lets Python's lock go, unless `kind` is PyDLL."""
    library = kind(str(driver))
    library.play.restype = ctypes.c_uint64
    return library.play(*pointers(recording), ctypes.c_uint64(n), device)


def pointers(recording):
    return [ctypes.c_void_p(function) for function in functions(recording.library)]


def named(name, called=tell):
    """A function of that name, which calls another."""
    space = {"called": called}
    exec(f"def {name}(*given):\n    called(*given)", space)
    return space[name]


def finish(recording, path, segments=()):
    counts = recording.close()
    recording.save(path, segments, {})
    return counts, read_snapshot(path)


def names(entry):
    return [frame["name"] for frame in entry["frames"]]


# ---- What is recorded --------------------------------------------------------------------------


def test_events_are_those_of_a_snapshot(recording, tmp_path):
    for action in ("alloc", "free_requested", "free_completed", "segment_map"):
        tell(recording, action, address=(1 << 63) + 5, size=3 << 31, stream=(1 << 47) + 1)
    counts, found = finish(recording, tmp_path / "run.pickle")
    assert counts.events == 4
    (entries,) = found["device_traces"]
    assert [entry["action"] for entry in entries] == [
        "alloc", "free_requested", "free_completed", "segment_map",
    ]  # fmt: skip
    for entry in entries:
        assert (entry["addr"], entry["size"]) == ((1 << 63) + 5, 3 << 31)
        assert entry["stream"] == (1 << 47) + 1
    times = [entry["time_us"] for entry in entries]
    assert times == sorted(times)


def test_entries_name_the_pool_that_they_are_of(recording, tmp_path):
    large = (1 << 63) + 9
    tell(recording, "segment_alloc", address=1 << 40, size=4096, pool=(1, 0))
    tell(recording, "alloc", address=1 << 40, pool=(1, 0))
    tell(recording, "free_requested", address=1 << 40, pool=(1, 0))
    tell(recording, "free_completed", address=1 << 40, pool=(1, 0))
    tell(recording, "segment_free", address=1 << 40, size=4096, pool=(1, 0))
    tell(recording, "alloc", address=2 << 40)
    tell(recording, "oom", pool=(0, large))
    tell(recording, "alloc", address=3 << 40, pool=None)
    (entries,) = finish(recording, tmp_path / "run.pickle")[1]["device_traces"]
    said = [entry.get("pool_id") for entry in entries]
    assert said == [(1, 0), (1, 0), None, None, (1, 0), (0, 0), (0, large), None]


def test_a_replay_keeps_the_recorded_pools_apart(recording, tmp_path):
    """4 GiB of a graph are free when others want as much, and serve 6 once the graph is gone."""
    gib = 1 << 30
    for action in ("segment_alloc", "alloc", "free_requested", "free_completed"):
        tell(recording, action, address=1 << 40, size=4 * gib, pool=(1, 0))
    for action in ("alloc", "free_requested", "free_completed"):
        tell(recording, action, address=2 << 40, size=4 * gib)
    tell(recording, "segment_free", address=1 << 40, size=4 * gib, pool=(1, 0))
    tell(recording, "alloc", address=3 << 40, size=6 * gib)
    finish(recording, tmp_path / "run.pickle")
    lines = ask_bench("replay", "--json", "--device", "virtual", "--min-capacity",
                      "--contender", "ductile,classic", str(tmp_path / "run.pickle"))  # fmt: skip
    assert [line["min_capacity_bytes"] for line in lines] == [8 * gib, 8 * gib]
    converted = tmp_path / "run.trace"
    ask_bench("convert", str(tmp_path / "run.pickle"), str(converted))
    assert converted.read_text().splitlines() == [
        "# version 5", f"a 0 {4 * gib} 0 1:0", "f 0", f"a 1 {4 * gib} 0", "f 1", "p 1:0",
        f"a 2 {6 * gib} 0",
    ]  # fmt: skip


def test_times_are_those_of_the_clock(recording, tmp_path):
    before = time.time_ns() // 1000
    tell(recording)
    _, found = finish(recording, tmp_path / "run.pickle")
    assert before <= found["device_traces"][0][0]["time_us"] <= time.time_ns() // 1000


def test_a_refusal_names_what_the_device_had(recording, tmp_path):
    tell(recording, "oom", address=12345, size=1 << 40)
    (entry,) = finish(recording, tmp_path / "run.pickle")[1]["device_traces"][0]
    assert entry["device_free"] == 12345
    assert "addr" not in entry
    assert names(entry)


def test_each_device_has_its_own_trace(recording, tmp_path):
    tell(recording, device=2, size=7)
    tell(recording, device=0, size=5)
    _, found = finish(recording, tmp_path / "run.pickle")
    assert [[entry["size"] for entry in trace] for trace in found["device_traces"]] == [
        [5], [], [7],
    ]  # fmt: skip


def test_what_pytorch_may_add_is_left_out(recording, tmp_path):
    function = recording.library.ductile_recording_event
    for action, device in ((99, 0), (-1, 0), (0, 64), (0, -1)):
        function(action, device, 1, 1, 0, None)
    counts, _ = finish(recording, tmp_path / "run.pickle")
    assert counts.events == 0


def test_any_unpickler_and_any_packing_reads_it(recording, driver, tmp_path):
    play(recording, driver, 3000)
    recording.annotate("START", "Optimizer.step#SGD.step", 0)
    recording.close()
    segments = [{"device": 0, "total_size": 5, "blocks": []}]
    for name in ("run.pickle", "run.pickle.gz"):
        recording.save(tmp_path / name, segments, {"backend": "native"}, [{"free": 2, "total": 9}])
    plain = pickle.loads((tmp_path / "run.pickle").read_bytes())
    assert plain == read_snapshot(tmp_path / "run.pickle.gz")
    assert plain["segments"] == segments
    assert plain["allocator_settings"] == {"backend": "native"}
    assert plain["device_memory"] == [{"free": 2, "total": 9}]
    assert plain["external_annotations"][0]["name"] == "Optimizer.step#SGD.step"
    assert len(plain["device_traces"][0]) == 3 * 3000 - 2 * LIVE


def test_a_replay_finds_the_same_peak(recording, driver, tmp_path):
    play(recording, driver, 5000)
    path = tmp_path / "run.pickle"
    _, found = finish(recording, path)
    history = History(found, 0)
    assert history.start == Levels(0, 0, 0)
    peak = max(levels.live + levels.pending for levels in history.levels())
    assert replayed("--contender", "ductile", path)["ductile"]["live_peak_bytes"] == peak > 0


# ---- Stacks ------------------------------------------------------------------------------------


def inner(recording):
    tell(recording)


def outer(recording):
    inner(recording)
    inner(recording)


def test_an_allocation_has_its_stack_innermost_first(recording, tmp_path):
    outer(recording)
    _, found = finish(recording, tmp_path / "run.pickle")
    first, second = found["device_traces"][0]
    assert names(first)[:4] == [
        "tell", "inner", "outer", "test_an_allocation_has_its_stack_innermost_first",
    ]  # fmt: skip
    assert all(frame["filename"] == __file__ for frame in first["frames"][:4])
    line = outer.__code__.co_firstlineno
    assert [entry["frames"][2]["line"] for entry in (first, second)] == [line + 1, line + 2]


def test_the_same_stack_is_kept_once(recording, tmp_path):
    for _ in range(50):
        inner(recording)
    counts, found = finish(recording, tmp_path / "run.pickle")
    assert counts.stacks == 1
    stacks = [entry["frames"] for entry in found["device_traces"][0]]
    assert all(stack is stacks[0] for stack in stacks)


def test_a_stack_deeper_than_is_kept_has_its_inner_end(recording, tmp_path):
    def deeper(n):
        return inner(recording) if n == 0 else deeper(n - 1)

    deeper(200)
    _, found = finish(recording, tmp_path / "run.pickle")
    assert len(found["device_traces"][0][0]["frames"]) == 64
    assert names(found["device_traces"][0][0])[:3] == ["tell", "inner", "deeper"]


def test_frames_that_c_code_and_generators_stand_between_are_in_it(recording, tmp_path):
    def steps():
        yield inner(recording)

    def by_key(first):
        sorted([1], key=lambda _: first())

    def one():
        by_key(lambda: next(steps()))

    def two():
        by_key(lambda: next(steps()))

    for _ in range(3):
        one()
        two()
    counts, found = finish(recording, tmp_path / "run.pickle")
    stacks = [names(entry) for entry in found["device_traces"][0]]
    between = ["tell", "inner", "steps", "<lambda>", "<lambda>", "by_key"]
    assert [stack[:7] for stack in stacks] == [[*between, "one"], [*between, "two"]] * 3
    lines = [entry["frames"][3]["line"] for entry in found["device_traces"][0]]
    assert lines[1] - lines[0] == 3
    assert counts.stacks == 2


def test_code_that_is_gone_does_not_lend_its_place_to_other_code(recording, tmp_path):
    """Code objects of known stacks stay: else another function could get one's address."""
    for number in range(300):
        named(f"made_{number}")(recording)
    _, found = finish(recording, tmp_path / "run.pickle")
    called = [names(entry)[1] for entry in found["device_traces"][0]]
    assert called == [f"made_{number}" for number in range(300)]


def test_a_thread_without_python_has_no_stack_and_waits_for_no_lock(recording, driver, tmp_path):
    library = ctypes.PyDLL(str(driver))  # this thread holds Python's lock until that one has ended
    library.play_apart(*pointers(recording), ctypes.c_uint64(10), 0)
    counts, found = finish(recording, tmp_path / "run.pickle")
    assert (counts.allocs, counts.bare) == (10, 10)
    for entry in found["device_traces"][0]:
        assert names(entry) == ["(no Python on this thread: backward, or another library)"]


def test_an_exception_under_way_stays_as_it_is(recording):
    class Teller:
        def __del__(self):
            tell(recording)

    def fail():
        kept = Teller()  # told when the exception unwinds this frame
        raise KeyError(str(bool(kept)))

    with pytest.raises(KeyError):
        fail()
    assert recording.close().events == 1


def test_long_names_keep_their_end_and_stay_texts(recording, tmp_path):
    named("ä" * 500 + "end")(recording)
    _, found = finish(recording, tmp_path / "run.pickle")
    kept = names(found["device_traces"][0][0])[1]
    assert kept.endswith("ääend")
    assert len(kept.encode()) <= 400


# ---- Cost and failures -------------------------------------------------------------------------

BEGIN = """
    import ctypes, resource, signal, sys
    from pathlib import Path
    from ductile_gpu.torch._recording import RecordingError, StackRecording, functions
    recording = StackRecording(Path(sys.argv[1]))
    library = ctypes.CDLL(sys.argv[2])
    told = [ctypes.c_void_p(function) for function in functions(recording.library)]
    def play(n):
        library.play(*told, ctypes.c_uint64(n), 0)
    def held():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
"""
LONG_RUN = """
    play(10_000)
    before = held()
    play(700_000)
    print(held() - before)
    print(recording.close().events)
"""
FULL_DISK = """
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3 << 20, 3 << 20))
    play(200_000)
    try:
        recording.close()
    except RecordingError as error:
        print(error)
"""


def run_apart(program, folder, driver):
    answer = python("-c", textwrap.dedent(BEGIN + program), folder, driver)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


def test_memory_does_not_grow_with_the_run(folder, driver):
    grown_kib, events = map(int, run_apart(LONG_RUN, folder, driver).split())
    assert events > 2_000_000
    assert sum(path.stat().st_size for path in folder.iterdir()) > 50 * MIB
    assert grown_kib < 2048


def test_a_disk_that_is_full_is_said_at_the_end(folder, driver):
    assert "File too large, after " in run_apart(FULL_DISK, folder, driver)


def test_a_second_recording_is_refused_and_the_first_goes_on(recording, tmp_path):
    with pytest.raises(RecordingError, match="busy"):
        StackRecording(tmp_path)
    tell(recording)
    assert recording.close().events == 1


def test_one_can_follow_another(folder, tmp_path):
    for number in range(3):
        found = another(tmp_path / str(number))
        tell(found)
        assert found.close().events == 1


def test_a_folder_that_is_not_there_is_said(tmp_path):
    with pytest.raises(RecordingError, match="No such file"):
        StackRecording(tmp_path / "absent")


def test_nothing_is_written_when_no_recording_is_under_way(recording, folder):
    recording.close()
    size = sum(path.stat().st_size for path in folder.iterdir())
    tell(recording)
    assert sum(path.stat().st_size for path in folder.iterdir()) == size


def test_a_forked_child_writes_nothing(recording):
    tell(recording)
    in_child(lambda: [tell(recording) for _ in range(100_000)])
    assert recording.close().events == 1


def test_threads_may_tell_at_once(recording, driver, tmp_path):
    library = ctypes.CDLL(str(driver))
    told = pointers(recording)
    n = ctypes.c_uint64(20_000)
    at_once(*(lambda gpu=gpu: library.play(*told, n, gpu) for gpu in (0, 1, 0, 1)))
    counts, found = finish(recording, tmp_path / "run.pickle")
    assert counts.events == 4 * (3 * 20_000 - 2 * LIVE)
    assert [len(trace) for trace in found["device_traces"]] == [counts.events // 2] * 2
    assert counts.bare == 0


def test_threads_that_tell_and_threads_that_run_python_do_not_wait_for_each_other(
    recording, driver, tmp_path
):
    """Each of them has new stacks all the time, whose texts come from Python."""
    made = [named(f"made_{number}", play) for number in range(200)]

    def run(kind):
        for function in made:
            function(recording, driver, 50, 0, kind)

    at_once(*(lambda kind=kind: run(kind) for kind in (ctypes.CDLL, ctypes.PyDLL) * 2))
    counts, found = finish(recording, tmp_path / "run.pickle")
    assert counts.bare == 0
    called = {names(entry)[1] for entry in found["device_traces"][0]}
    assert called == {f"made_{number}" for number in range(200)}


def test_a_recording_may_end_while_threads_allocate(tmp_path, driver):
    for number in range(5):
        found = another(tmp_path / str(number))
        threads = [threading.Thread(target=play, args=(found, driver, 20_000)) for _ in range(3)]
        for thread in threads:
            thread.start()
        finish(found, tmp_path / f"{number}.pickle")
        for thread in threads:
            thread.join()


def test_what_was_noted_in_one_recording_is_not_told_in_the_next(recording, tmp_path):
    recording.library.ductile_recording_stack()
    recording.close()
    following = another(tmp_path / "next")
    following.library.ductile_recording_event(0, 0, 1, 1, 0, None)
    counts, _ = finish(following, tmp_path / "run.pickle")
    assert (counts.allocs, counts.bare) == (1, 1)


def test_an_allocation_that_noted_nothing_does_not_have_the_stack_of_the_one_before(recording):
    tell(recording)
    recording.library.ductile_recording_event(0, 0, 1, 1, 0, None)
    assert recording.close().bare == 1


def test_memory_that_is_obtained_for_an_allocation_has_its_stack(recording, tmp_path):
    recording.library.ductile_recording_stack()
    for action in ("segment_alloc", "alloc"):
        recording.library.ductile_recording_event(ACTIONS.index(action), 0, 1, 1, 0, None)
    _, found = finish(recording, tmp_path / "run.pickle")
    segment, block = found["device_traces"][0]
    assert segment["frames"] is block["frames"]
    assert len(names(block)) > 1


# ---- The command -------------------------------------------------------------------------------

# In place of PyTorch's adapter: events come from the program in C, with Python's lock let go.
SITE = """
    import ctypes, os, sys
    from ductile_gpu.torch import _install
    class Tracker:
        was_lent = "LENT" in os.environ
        def __init__(self):
            if "NO_ADAPTER" in os.environ:
                raise RuntimeError("there is no C++ compiler")
        def start(self, event, note):
            library = ctypes.CDLL(os.environ["DRIVER"])
            play = library.play_apart if "APART" in os.environ else library.play
            sys.modules["__main__"].__dict__["train"] = lambda: play(
                ctypes.c_void_p(event), ctypes.c_void_p(note), ctypes.c_uint64(2000), 0)
        def stop(self):
            pass
    _install.Tracker = Tracker
"""
SCRIPT = """
    import torch
    optimizer = torch.optim.SGD()
    torch.cuda.init()
    def forward():
        import __main__
        __main__.train()
    for step in range(3):
        forward()
        optimizer.step()
"""


@pytest.fixture
def run(tmp_path, driver):
    place = Place(tmp_path)
    place.write("site/sitecustomize.py", SITE)
    place.write("train.py", SCRIPT)
    place.environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path / "site"), str(STUB)])
    place.environment["DRIVER"] = str(driver)
    return place.command


def test_a_script_is_recorded_with_stacks_and_steps(run, tmp_path):
    answer = run("record", "train.py")
    assert answer.returncode == 0, answer.stderr
    assert "ductile-gpu: 12,000 events, 1 stack\n" in answer.stderr
    assert "recorded in train.pickle" in answer.stderr
    found = read_snapshot(tmp_path / "train.pickle")
    assert len(found["device_traces"][0]) == 3 * (3 * 2000 - 2 * LIVE)
    assert "forward" in names(found["device_traces"][0][0])
    marks = [mark["stage"] for mark in found["external_annotations"]]
    assert marks == ["START", "END"] * 3
    left = {path.name for path in tmp_path.iterdir()}
    assert not any(name.startswith(".ductile") for name in left), "the parts are gone"


def test_it_is_said_when_nearly_no_allocation_has_a_stack(run):
    assert "no stack" not in run("record", "--stacks", "train.py").stderr
    answer = run("record", "--stacks", "train.py", APART="1")
    line = "ductile-gpu: 6,000 of 6,000 allocations have no stack: no Python ran on the threads"
    assert line in answer.stderr
    answer = run("record", "--stacks", "train.py", APART="1", LENT="1")
    assert "the script called _record_memory_history" in answer.stderr


def test_a_script_may_go_to_another_folder(run, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    there, script = "import os; os.chdir('elsewhere')\n", (tmp_path / "train.py").read_text()
    (tmp_path / "first.py").write_text(there + script)
    (tmp_path / "last.py").write_text(script + there)
    for name in ("first", "last"):
        answer = run("record", "--stacks", f"{name}.py")
        assert answer.returncode == 0, answer.stderr
        assert f"recorded in {name}.pickle" in answer.stderr
        assert read_snapshot(tmp_path / f"{name}.pickle")["device_traces"][0]
        assert not list((tmp_path / "elsewhere").iterdir())
        assert not list(tmp_path.glob(".ductile-*")), "the parts are gone"


def test_each_process_streams_stacks_of_its_own_into_a_folder(run, tmp_path):
    script = (tmp_path / "train.py").read_text()
    children = (
        "import os, subprocess, sys\nif sys.argv[1:]: subprocess.run([sys.executable, __file__])"
    )
    (tmp_path / "train.py").write_text(f"{script}\n{children}")
    answer = run("record", "--stacks", "-o", "runs/", "train.py", "parent")
    assert answer.returncode == 0, answer.stderr
    assert "2 recordings in runs" in answer.stderr
    for path in (tmp_path / "runs").iterdir():
        found = read_snapshot(path)
        assert len(found["device_traces"][0]) == 3 * (3 * 2000 - 2 * LIVE)
        assert "forward" in names(found["device_traces"][0][0])


def test_where_stacks_cannot_be_had_a_child_goes_on_without_a_recording(run, tmp_path):
    (tmp_path / "train.py").write_text("import torch; torch.cuda.init(); print('ran')")
    answer = run("record", "--stacks", "-o", "runs/", "train.py", NO_ADAPTER="1")
    assert (answer.returncode, answer.stdout) == (1, "ran\n")
    assert "this process is not recorded: there is no C++ compiler" in answer.stderr
    assert not list((tmp_path / "runs").iterdir())


def test_a_run_that_could_not_be_recorded_is_not_begun(run, tmp_path):
    answer = run("record", "--stacks", "train.py", NO_ADAPTER="1")
    assert answer.returncode == 1
    assert "nothing was recorded: there is no C++ compiler" in answer.stderr
    assert not (tmp_path / "train.pickle").exists()


# ---- Long ones ---------------------------------------------------------------------------------

FEW, MANY = 100_000, 500_000  # events


def record_many(driver, folder, n_events):
    """Blocks that live for a while, with steps; the file."""
    path = folder / f"run{n_events}.pickle"
    found = another(folder / f"parts{n_events}")
    play(found, driver, (n_events + 2 * LIVE) // 3)
    found.close()
    found.save(path, [], {})
    return path


def write_trace(folder, n_events):
    """Steps of 2,000 events."""
    path = folder / f"run{n_events}.trace"
    with open(path, "w") as file:
        file.write("# version 2\n")
        for step in range(n_events // 2000):
            ids = range(1000 * step, 1000 * step + 1000)
            file.writelines(f"a {i} {512 + i * 7919 % 2000000} 0\n" for i in ids)
            file.writelines(f"f {i}\n" for i in reversed(ids))
            file.write("s\n")
    return path


def growth_per_event(command, paths, folder):
    """Bytes of the command and all its children that each further event costs, at their peak."""
    program = [sys.executable, "-m", "ductile_gpu", *command]
    growths = []
    for _ in range(3):  # what an event costs, it costs each time; a busy machine adds to it
        few, many = (peak_rss([*program, str(path)], folder) for path in paths)
        growths.append((many - few) / (MANY - FEW))
        if growths[-1] <= MOST_BYTES_PER_EVENT:
            break
    return min(growths)


# Of a long recording, an array with 16 bytes for each event, in each of five processes, would be
# 80. What is left is bounded: windows of arrays that lie in files, which fill up in this range.
MOST_BYTES_PER_EVENT = 30


@pytest.mark.parametrize(
    ("is_trace", "command"),
    [
        (False, ("report", "--quick", "-o", "o.html")),
        (True, ("report", "--quick", "-o", "o.html")),
    ],
)
def test_a_longer_recording_takes_no_more_memory(driver, tmp_path, is_trace, command):
    paths = [
        write_trace(tmp_path, n) if is_trace else record_many(driver, tmp_path, n)
        for n in (FEW, MANY)
    ]
    grown = growth_per_event(command, paths, tmp_path)
    assert grown <= MOST_BYTES_PER_EVENT, grown
