# SPDX-License-Identifier: Apache-2.0
"""torch_memory_saver's names and meaning, without PyTorch and without a GPU (fake_torch)."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import fake_torch
import pytest
import running

import ductile_gpu
import ductile_gpu.torch as memory
from ductile_gpu import memory_saver
from ductile_gpu.memory_saver import _saver

MIB = 1 << 20
torch = fake_torch.torch
NAMES = [
    "tms_set_interesting_region",
    "tms_get_interesting_region",
    "tms_set_current_tag",
    "tms_get_current_tag",
    "tms_set_enable_cpu_backup",
    "tms_get_enable_cpu_backup",
    "tms_set_cpu_backup_backend",
    "tms_get_cpu_backup_backend",
    "tms_set_enable_disk_backup",
    "tms_get_enable_disk_backup",
    "tms_set_disk_backup_dir",
    "tms_pause",
    "tms_resume",
    "set_memory_margin_bytes",
    "tms_set_retain_cpu_backup",
    "tms_get_retain_cpu_backup",
    "tms_get_cpu_backup_pointer",
]


@pytest.fixture
def saver(torch):
    made = memory_saver.TorchMemorySaver()
    made.hook_mode = "torch"
    yield made
    if made._impl is not None:
        made._impl._mem_pools.clear()


def backup(saver, tensor):
    """The first byte of what is kept of it; None: nothing is."""
    address = saver._impl.find_backup(tensor.data_ptr(), 1)
    return (ctypes.c_uint8 * 1).from_address(address) if address else None


def held(tag):
    return memory.tags()[tag].held_bytes


def test_a_region_sleeps_and_wakes_at_its_address(saver, torch):
    other = torch.tensor(MIB)
    with saver.region():
        tensor = torch.tensor(32 * MIB)
    address = tensor.data_ptr()
    assert held("default") == 32 * MIB
    saver.pause()
    assert held("default") == 0
    saver.resume()
    assert held("default") == 32 * MIB
    assert tensor.data_ptr() == address
    del other


def test_contents_are_kept_where_the_region_says_so(saver, torch):
    with saver.region(enable_cpu_backup=True):
        kept = torch.tensor(4 * MIB)
    with saver.region():
        lost = torch.tensor(4 * MIB)
    saver.pause()
    assert backup(saver, kept) is not None
    assert backup(saver, lost) is None
    saver.resume()
    assert backup(saver, kept) is None


def test_host_copies_can_be_retained_over_a_resume(saver, torch):
    assert saver.retain_cpu_backup is False
    with saver.region(enable_cpu_backup=True):
        tensor = torch.tensor(4 * MIB)
    saver.pause()
    backup(saver, tensor)[0] = 9
    saver.retain_cpu_backup = True
    saver.resume()
    assert backup(saver, tensor)[0] == 9
    saver.retain_cpu_backup = False
    assert backup(saver, tensor)[0] == 9
    saver.pause()
    saver.resume()
    assert backup(saver, tensor) is None


@pytest.mark.parametrize("is_paused", [False, True])
def test_host_memory_goes_with_the_last_of_its_region(saver, torch, is_paused):
    """As torch_memory_saver's cpu_backup example lets go of it, with its key."""
    with saver.region(tag="gone", enable_cpu_backup=True):
        tensor = torch.tensor(4 * MIB)
    saver.retain_cpu_backup = True
    saver.pause("gone")
    if not is_paused:
        saver.resume("gone")
    assert memory.tags()["gone"].kept_bytes == 4 * MIB
    pool = saver._impl._mem_pools.pop(("gone", True, False, "pinned", 0))
    with saver._impl._with_region_config(
        tag="gone", enable_cpu_backup=True, cpu_backup_backend="pinned"
    ):
        del tensor
        del pool
        torch.cuda.empty_cache()
    saver.retain_cpu_backup = False
    assert "gone" not in memory.tags()
    assert memory.release_host() == 0


@pytest.mark.parametrize("where", ["region", "graph", "environment"])
def test_host_memory_goes_back_after_a_resume_with_the_backend_mmap(
    saver, torch, where, monkeypatch
):
    """As torch_memory_saver's cpu_backup example looks at the memory of its process."""
    if where == "environment":  # the memory of the process, which is in no region
        monkeypatch.setenv("TMS_INIT_ENABLE_CPU_BACKUP", "1")
        monkeypatch.setenv("TMS_INIT_CPU_BACKUP_BACKEND", "mmap")
    how = {} if where == "environment" else {"cpu_backup_backend": "mmap"}
    if where == "graph":
        asleep = fake_torch.Graph()
        with saver.cuda_graph(asleep, tag="default", enable_cpu_backup=True, **how):
            asleep.output = torch.tensor(32 * MIB)
    else:
        with saver.region(enable_cpu_backup=True, **how):
            asleep = torch.tensor(32 * MIB)
    before = memory.reserve_host(0)
    saver.pause()
    assert memory.reserve_host(0) >= before + 32 * MIB
    saver.resume()
    assert memory.reserve_host(0) == before
    del asleep


def test_what_is_done_twice_is_an_error_and_changes_nothing(saver, torch):
    with saver.region(tag="weights"):
        tensor = torch.tensor(MIB)
    with pytest.raises(ductile_gpu.Awake):
        saver.resume("weights")
    saver.pause("weights")
    with pytest.raises(ductile_gpu.Asleep, match="weights"):
        saver.pause("weights")
    with pytest.raises(ductile_gpu.Asleep):
        saver.pause()
    saver.resume("weights")
    del tensor


def test_a_tag_that_nothing_has_is_no_error(saver, torch):
    """SGLang pauses "cuda_graph" whether it has captured or not."""
    saver.pause("cuda_graph")
    saver.resume("cuda_graph")
    with saver.region(tag="kv_cache"):
        pass
    saver.pause("kv_cache")
    saver.pause("kv_cache")
    saver.resume("kv_cache")


def test_regions_nest_and_the_outer_one_is_restored(saver, torch):
    cdll = started(saver)
    with saver.region(tag="outer", enable_cpu_backup=True):
        with saver.region(tag="inner", enable_cpu_backup=True, cpu_backup_backend="mmap"):
            inner = torch.tensor(2 * MIB)
            assert cdll.tms_get_current_tag() == b"inner"
            assert cdll.tms_get_cpu_backup_backend() == b"mmap"
        assert cdll.tms_get_current_tag() == b"outer"
        assert cdll.tms_get_enable_cpu_backup()
        assert cdll.tms_get_cpu_backup_backend() == b"pinned"
        outer = torch.tensor(4 * MIB)
    assert not cdll.tms_get_interesting_region()
    assert cdll.tms_get_current_tag() == b"default"
    assert (held("outer"), held("inner")) == (4 * MIB, 2 * MIB)
    del inner, outer


def test_disable_is_memory_that_does_not_sleep(saver, torch):
    with pytest.raises(RuntimeError, match="in a region"), saver.disable():
        pass
    with saver.region(tag="weights"):
        weights = torch.tensor(MIB)
        with saver.disable():
            assert not started(saver).tms_get_interesting_region()
            aside = torch.tensor(2 * MIB)
        assert started(saver).tms_get_interesting_region()
    assert torch.native_bytes == 2 * MIB
    del weights, aside


def test_a_graph_sleeps_in_torch_mode_too(saver, torch):
    graph = fake_torch.Graph()
    with saver.cuda_graph(graph, tag="graph", enable_cpu_backup=True):
        graph.output = torch.tensor(16 * MIB)
    assert held("graph") == 16 * MIB
    saver.pause("graph")
    assert held("graph") == 0
    saver.resume("graph")
    assert held("graph") == 16 * MIB


def test_graphs_that_name_one_pool_share_one(saver, torch):
    handle = torch.cuda.graph_pool_handle()
    graphs = [fake_torch.Graph(), fake_torch.Graph()]
    for graph in graphs:
        with saver.cuda_graph(graph, pool=handle, tag="cuda_graph"):
            graph.output = torch.tensor(4 * MIB)
    assert memory.tags()["cuda_graph"].pools == 1
    assert graphs[0].pool_id == graphs[1].pool_id
    third = fake_torch.Graph()
    with saver.cuda_graph(third, pool=graphs[0].pool_id, tag="cuda_graph"):
        third.output = torch.tensor(4 * MIB)
    assert memory.tags()["cuda_graph"].pools == 1


def test_a_margin_stays_free_on_the_device(saver, torch):
    saver.memory_margin_bytes = 1 << 50
    with saver.region(tag="cache"), pytest.raises(torch.OutOfMemoryError):
        torch.tensor(MIB)
    saver.memory_margin_bytes = 0
    with saver.region(tag="cache"):
        assert torch.tensor(MIB) is not None


@pytest.mark.parametrize("wrong", ["much", -1, None])
def test_a_margin_that_is_none_changes_nothing(saver, torch, wrong):
    with pytest.raises((TypeError, ValueError), match=str(wrong)):
        saver.memory_margin_bytes = wrong
    with saver.region(tag="cache"):
        assert torch.tensor(MIB) is not None


def test_a_backend_needs_a_backup(saver, torch):
    with pytest.raises(ValueError, match="requires enable_cpu_backup"):
        saver.region(cpu_backup_backend="mmap").__enter__()
    with pytest.raises(ValueError, match="'mmap' or 'pinned'"):
        saver.region(enable_cpu_backup=True, cpu_backup_backend="shm").__enter__()


def test_files_are_refused_in_clear_words(saver, torch, tmp_path, monkeypatch):
    for call in (
        lambda: saver.region(enable_disk_backup=True).__enter__(),
        lambda: saver.set_disk_backup_dir(str(tmp_path)),
    ):
        with pytest.raises(NotImplementedError, match="writes no files: use enable_cpu_backup"):
            call()
    monkeypatch.setenv("TMS_INIT_ENABLE_DISK_BACKUP", "1")
    with pytest.raises(NotImplementedError, match="TMS_INIT_ENABLE_DISK_BACKUP"):
        memory_saver.TorchMemorySaver().pause()


def test_what_can_only_be_set_is_only_set(saver, torch):
    with pytest.raises(AttributeError):
        _ = saver.hook_mode
    with pytest.raises(NotImplementedError):
        _ = saver.memory_margin_bytes
    assert saver.enabled is True
    with pytest.raises(ValueError, match="'preload' or 'torch'"):
        saver.hook_mode = "other"
    saver.pause()
    with pytest.raises(RuntimeError, match="before the first use"):
        saver.hook_mode = "torch"


def test_a_region_that_is_not_entered_begins_nothing(torch):
    made = memory_saver.TorchMemorySaver()
    made.region()
    made.hook_mode = "torch"  # which after the first use is refused


def test_preload_after_cuda_is_used_falls_back_and_says_so(torch):
    made = memory_saver.TorchMemorySaver()
    with pytest.warns(RuntimeWarning, match=r"CUDA is already in use.*beside PyTorch's own"):
        made.hook_mode = "preload"


# ---- The C names -------------------------------------------------------------------------------


def started(saver):
    saver._ensure_initialized()
    return saver._impl._binary_wrapper.cdll


def test_every_c_name_is_there_with_its_types(saver, torch):
    cdll = started(saver)
    for name in NAMES:
        assert getattr(cdll, name).argtypes is not None, name
    plain = ctypes.CDLL(
        str(memory_saver.utils.get_binary_path_from_package("torch_memory_saver_hook_mode_torch"))
    )
    for name in NAMES:
        assert hasattr(plain, name), name


def test_c_names_pause_and_resume_and_return_a_cuda_error(saver, torch, caplog):
    with saver.region(tag="weights", enable_cpu_backup=True):
        tensor = torch.tensor(MIB)
    cdll = started(saver)
    assert cdll.tms_pause(b"weights") == 0
    assert cdll.tms_pause(b"weights") != 0
    assert "sleeps" in caplog.text
    where = cdll.tms_get_cpu_backup_pointer(
        ctypes.cast(tensor.data_ptr(), ctypes.POINTER(ctypes.c_uint8)), 16
    )
    where[0] = 42
    assert backup(saver, tensor)[0] == 42
    assert cdll.tms_resume(None) == 0
    assert not cdll.tms_get_cpu_backup_pointer(
        ctypes.cast(tensor.data_ptr(), ctypes.POINTER(ctypes.c_uint8)), 16
    )
    assert cdll.tms_pause(b"") == 0
    assert cdll.tms_resume(b"") == 0


def test_a_region_by_c_names_is_one(saver, torch):
    cdll = started(saver)
    cdll.tms_set_current_tag(b"by_name")
    assert torch.tensor(MIB) is not None
    cdll.tms_set_interesting_region(True)
    inside = torch.tensor(2 * MIB)
    cdll.tms_set_current_tag(b"other")
    other = torch.tensor(4 * MIB)
    cdll.tms_set_interesting_region(False)
    outside = torch.tensor(8 * MIB)
    cdll.tms_set_current_tag(b"default")
    assert (held("by_name"), held("other")) == (2 * MIB, 4 * MIB)
    assert torch.native_bytes == 8 * MIB
    del inside, other, outside


def test_a_region_by_c_names_that_failed_can_be_entered_again(saver, torch, caplog, monkeypatch):
    cdll = started(saver)
    with monkeypatch.context() as failing:
        failing.setattr(_saver, "_Region", lambda key: 1 // 0)
        cdll.tms_set_current_tag(b"by_name")
        cdll.tms_set_interesting_region(True)
    assert "by zero" in caplog.text
    cdll.tms_set_current_tag(b"by_name")
    inside = torch.tensor(2 * MIB)
    cdll.tms_set_interesting_region(False)
    cdll.tms_set_current_tag(b"default")
    assert held("by_name") == 2 * MIB
    del inside


def test_the_region_is_a_threads_own(saver, torch):
    cdll = started(saver)
    with saver.region(tag="weights"):
        seen = running.at_once(cdll.tms_get_interesting_region, cdll.tms_get_current_tag)
    assert seen == [False, b"default"]


# ---- The environment ---------------------------------------------------------------------------


def python(program, **environment):
    done = running.python("-c", textwrap.dedent(program), **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


ASK = """
import ctypes
from ductile_gpu.memory_saver import _names, _saver
class Nothing:
    def follow_region(self): pass
cdll = _names.BinaryWrapper(Nothing()).cdll
"""


@pytest.mark.parametrize(
    ("name", "value", "call", "answer"),
    [
        ("TMS_INIT_ENABLE", "1", "tms_get_interesting_region", "True"),
        ("TMS_INIT_ENABLE", "0", "tms_get_interesting_region", "False"),
        ("TMS_INIT_ENABLE_CPU_BACKUP", "yes", "tms_get_enable_cpu_backup", "True"),
        ("TMS_INIT_CPU_BACKUP_BACKEND", "mmap", "tms_get_cpu_backup_backend", "b'mmap'"),
        ("TMS_RETAIN_CPU_BACKUP", "true", "tms_get_retain_cpu_backup", "True"),
        ("TMS_RETAIN_CPU_BACKUP", "", "tms_get_retain_cpu_backup", "False"),
    ],
)
def test_the_environment_sets_the_default(name, value, call, answer):
    assert python(f"{ASK}\nprint(cdll.{call}())", **{name: value}) == [answer]


def test_whole_process_needs_ductile_as_the_allocator(torch, monkeypatch):
    """TMS_INIT_ENABLE does not work beside PyTorch's own allocator."""
    monkeypatch.setenv("TMS_INIT_ENABLE", "1")
    with pytest.raises(RuntimeError, match="already in use"):
        memory_saver.TorchMemorySaver().pause()


# ---- Under its name ----------------------------------------------------------------------------


def test_the_module_can_be_put_under_its_name():
    program = """
    import ductile_gpu.memory_saver as ours
    ours.install()
    ours.install()
    import torch_memory_saver
    from torch_memory_saver import torch_memory_saver as saver, configure_subprocess
    from torch_memory_saver.utils import get_binary_path_from_package, change_env
    from torch_memory_saver.testing_utils import get_device
    from torch_memory_saver.hooks.mode_preload import configure_subprocess
    assert torch_memory_saver is ours
    assert saver is ours.torch_memory_saver
    """
    python(program)


def test_what_is_imported_already_is_not_replaced(tmp_path):
    (tmp_path / "torch_memory_saver.py").write_text("")
    program = """
    import torch_memory_saver
    import ductile_gpu.memory_saver as ours
    try:
        ours.install()
    except RuntimeError as error:
        assert "is imported already" in str(error)
    else:
        raise AssertionError
    """
    python(program, PYTHONPATH=str(tmp_path))


def test_children_find_it_without_a_change(tmp_path):
    """With a torch_memory_saver installed, too."""
    (tmp_path / "torch_memory_saver.py").write_text("")
    program = """
    import subprocess, sys
    from ductile_gpu.memory_saver import configure_subprocess
    child = "import torch_memory_saver; print(torch_memory_saver.__name__)"
    with configure_subprocess():
        subprocess.run([sys.executable, "-c", child], check=True)
    subprocess.run([sys.executable, "-c", child], check=True)
    """
    assert python(program, PYTHONPATH=str(tmp_path)) == [
        "ductile_gpu.memory_saver",
        "torch_memory_saver",
    ]


def test_children_of_torch_mode_are_left_alone(monkeypatch):
    monkeypatch.setattr(memory_saver.torch_memory_saver, "_hook_mode", "torch")
    before = dict(os.environ)
    with memory_saver.configure_subprocess():
        assert dict(os.environ) == before


def test_what_is_preloaded_stays_and_comes_back(monkeypatch):
    monkeypatch.setenv("LD_PRELOAD", "/other/lib.so")
    with memory_saver.configure_subprocess():
        first, other = os.environ["LD_PRELOAD"].split(":")
        assert first.endswith("libductile_memory_saver.so")
        assert other == "/other/lib.so"
    assert os.environ["LD_PRELOAD"] == "/other/lib.so"
    monkeypatch.delenv("LD_PRELOAD")
    with memory_saver.configure_subprocess():
        assert ":" not in os.environ["LD_PRELOAD"]
    assert "LD_PRELOAD" not in os.environ


def test_the_library_that_launchers_preload_changes_nothing_by_itself():
    path = memory_saver.utils.get_binary_path_from_package("torch_memory_saver_hook_mode_preload")
    symbols = subprocess.run(
        ["nm", "-D", "--defined-only", str(path)], capture_output=True, text=True, check=True
    ).stdout
    found = {line.split()[-1].split("@")[0] for line in symbols.splitlines()}
    assert found == {*NAMES, "ductile_memory_saver_connect"}
    needed = subprocess.run(
        ["readelf", "-d", str(path)], capture_output=True, text=True, check=True
    ).stdout
    assert "cuda" not in needed
    with pytest.raises(RuntimeError, match="no library"):
        memory_saver.utils.get_binary_path_from_package("libcuda")


def test_a_child_that_preloads_it_has_ductile_as_its_allocator(tmp_path):
    """As launchers do it that set the environment of an actor by hand."""
    import ductile_gpu_memory_saver

    assert not ductile_gpu_memory_saver.is_wanted()
    path = memory_saver.utils.get_binary_path_from_package("torch_memory_saver_hook_mode_preload")
    program = """
    import sys, ductile_gpu_start
    print("ductile_gpu" in sys.modules, ductile_gpu_start.wanted_mode())
    """
    assert python(program, LD_PRELOAD=str(path)) == ["False", "auto"]
    assert python(program, LD_PRELOAD=str(path), DUCTILE_TORCH="0") == ["False", "None"]
    assert python(program, LD_PRELOAD=str(path), DUCTILE_TORCH="plain") == ["False", "plain"]
    assert python(program, DUCTILE_TORCH="") == ["False", "None"]
    assert _saver._is_set("TMS_INIT_ENABLE") is False


WAYS = {
    # as site.py before 3.15 does
    "ductile_gpu_memory_saver.pth": "exec(open(sys.argv[1]).read())",
    # as site.py from 3.15 on does
    "ductile_gpu_memory_saver.start": (
        "module, _, name = open(sys.argv[1]).read().strip().partition(':'); "
        "getattr(__import__(module), name)()"
    ),
}


@pytest.mark.parametrize("name", WAYS)
@pytest.mark.parametrize(("preloaded", "found"), [(True, ["True"]), (False, ["False"])])
def test_every_interpreter_looks_for_the_sign(name, preloaded, found):
    path = memory_saver.utils.get_binary_path_from_package("torch_memory_saver_hook_mode_preload")
    packages = path.parents[2]
    program = f"""
import sys
sys.path.append({str(packages)!r})
{WAYS[name]}
print(any(type(finder).__module__ == "ductile_gpu_memory_saver" for finder in sys.meta_path))
"""
    environment = {"LD_PRELOAD": str(path)} if preloaded else {}
    answer = running.python("-S", "-c", program, packages / name, **environment)
    assert answer.stdout.split() == found, answer.stderr


def test_what_the_hook_imports_does_not_import_the_hook():
    python("""
    import sys
    sys.modules["ductile_gpu_start"] = None  # to import it is an error
    import ductile_gpu.memory_saver
    """)


def test_children_of_a_python_without_the_hook_find_it_too(tmp_path):
    """The package lies in PYTHONPATH, where no .pth file is read."""
    packages = Path(ductile_gpu.__file__).parents[1]
    shutil.copytree(packages / "ductile_gpu", tmp_path / "ductile_gpu")
    for beside in packages.glob("ductile_gpu*.*"):
        if beside.suffix in (".py", ".start"):
            shutil.copy(beside, tmp_path)
    base = Path(sys._base_executable).resolve()
    there = running.run(base, "-c", "import site; print(*site.getsitepackages(), sep='\\n')")
    if any((Path(folder) / "ductile_gpu.pth").exists() for folder in there.stdout.splitlines()):
        pytest.skip("no other Python here")
    program = """
    import subprocess, sys
    from ductile_gpu.memory_saver import configure_subprocess
    with configure_subprocess():
        child = "import torch_memory_saver; print(torch_memory_saver.__name__)"
        subprocess.run([sys.executable, "-c", child], check=True)
    """
    answer = running.run(base, "-c", textwrap.dedent(program), PYTHONPATH=tmp_path)
    assert answer.stdout == "ductile_gpu.memory_saver\n", answer.stderr
