# SPDX-License-Identifier: Apache-2.0
"""Ductile is on, or says that it is not: the start-up hook, `run` and `record` around a stub of
PyTorch and of its adapter."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
import textwrap
from pathlib import Path

import pytest
from recordings import WHOLE
from running import MODE
from stub_torch import STUB, Place, adapter

import ductile_gpu

__all__ = ["adapter"]

PACKAGES = sysconfig.get_paths()["purelib"]


@pytest.fixture
def place(tmp_path, adapter):
    return Place(tmp_path, adapter)


def mode_of(answer):
    assert answer.returncode == 0, answer.stderr
    return answer.stdout.strip().splitlines()[-1]


def mode_after(place, code, **environment):
    """What serves a program that asked for Ductile and has done this."""
    code = f"{textwrap.dedent(code)}\n{MODE}"
    return mode_of(place.python("-c", code, DUCTILE_TORCH="1", **environment))


# ---- What finds torch --------------------------------------------------------------------------

SEARCHES = {
    "find_spec": "import importlib.util; importlib.util.find_spec('torch')",
    "many": "import importlib.util as u\nfor _ in range(3): assert u.find_spec('torch').origin",
    "find_loader": "import pkgutil; list(pkgutil.iter_modules())",
    "missing": "import importlib.util; importlib.util.find_spec('torch.no_such_module')",
    "failed": "try:\n    import torch.no_such_module\nexcept ImportError: pass",
}
OTHERS = {
    "a torch that is loaded when it is first looked at stays so": """
        import importlib.util, os, sys
        spec = importlib.util.find_spec("torch")
        spec.loader = importlib.util.LazyLoader(spec.loader)
        sys.modules["torch"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules["torch"])
        import colorsys
        assert not os.path.exists(os.environ["STUB_LOG"])
        sys.modules["torch"].cuda
    """,
    "a finder that a program puts first stays first": """
        import sys
        class Finder:
            find_spec = staticmethod(lambda name, path=None, target=None: None)
        sys.meta_path.insert(0, Finder)
        import colorsys
        assert sys.meta_path.pop(0) is Finder
    """,
    "a torch that cannot be imported may be tried again": """
        import os, sys
        log = os.environ.pop("STUB_LOG")
        try:
            import torch
        except KeyError:
            pass
        else:
            raise AssertionError
        for name in [name for name in sys.modules if name.startswith("torch")]:
            del sys.modules[name]
        os.environ["STUB_LOG"] = log
    """,
    "the hook leaves with the first torch": """
        import importlib.util, sys
        importlib.util.find_spec("torch")
        import torch
        assert type(torch.__spec__.loader).__name__ == "SourceFileLoader"
        assert torch.__loader__ is torch.__spec__.loader
        assert not [f for f in sys.meta_path if type(f).__name__ == "TorchFinder"]
    """,
    "a folder called torch is not PyTorch": f"""
        import os, sys
        os.mkdir("torch")
        sys.path.insert(0, "")
        sys.path.remove({str(STUB)!r})
        import torch
        assert torch.__spec__.origin is None
        del sys.modules["torch"]
        sys.path.insert(0, {str(STUB)!r})
    """,
}


@pytest.mark.parametrize("code", [*SEARCHES.values(), *OTHERS.values()], ids=[*SEARCHES, *OTHERS])
def test_whatever_a_program_does_before_it_imports_torch_it_is_served(place, code):
    assert mode_after(place, code) == "full"


@pytest.mark.parametrize("search", SEARCHES)
def test_a_search_for_torch_does_not_switch_run_and_record_off(place, search):
    place.write("train.py", f"{SEARCHES[search]}\n{MODE}; torch.cuda.use()")
    assert mode_of(place.command("run", "train.py")) == "full"
    answer = place.command("record", "-o", "run.pickle", "train.py", STUB_SNAPSHOT=WHOLE)
    assert answer.returncode == 0, answer.stderr
    assert (place.folder / "run.pickle").exists()


EDITABLE = """
import sys
from importlib.machinery import PathFinder

class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            return PathFinder.find_spec(name, path or [{stub!r}])

sys.meta_path.insert(0, Finder)
"""


def test_an_editable_pytorch_is_found(place):
    """Whose finder has put itself before Ductile's."""
    place.write("site/sitecustomize.py", EDITABLE.format(stub=str(STUB)))
    place.write("train.py", MODE + "; torch.cuda.use()")
    environment = {"PYTHONPATH": str(place.folder / "site"), "STUB_SNAPSHOT": str(WHOLE)}
    assert mode_after(place, "", **environment) == "full"
    assert mode_of(place.command("run", "train.py", **environment)) == "full"
    assert place.command("record", "-o", "a.pickle", "train.py", **environment).returncode == 0


def test_finders_of_editable_installations_come_behind(place):
    """They are put first while .pth files are read, before or after Ductile's."""
    code = f"""
        import ductile_gpu_start, site
        ductile_gpu_start.watch()
        {textwrap.indent(EDITABLE.format(stub=str(STUB)), "        ").strip()}
        others = sys.meta_path[2:]
        site.execsitecustomize()
        assert sys.meta_path[1:] == [Finder, *others]
        import torch, sys
        print("ductile_gpu.torch" in sys.modules)
    """
    path = os.pathsep.join([str(STUB), PACKAGES])
    answer = place.python("-S", "-c", textwrap.dedent(code), DUCTILE_TORCH="1", PYTHONPATH=path)
    assert mode_of(answer) == "True"


WAYS = {
    "file": ["program.py"],
    "module": ["-m", "program"],
    "isolated": ["-I", "program.py"],
    "code": ["-c", "import program"],
    "spawn": ["parent.py", "spawn"],
    "forkserver": ["parent.py", "forkserver"],
    "fork": ["parent.py", "fork"],
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_start_a_program_is_served(place, way):
    place.write("program.py", f"import sys; sys.path.append({str(STUB)!r})\n{MODE}")
    place.write(
        "parent.py",
        """
        import multiprocessing, sys
        def work():
            import program
        if __name__ == "__main__":
            process = multiprocessing.get_context(sys.argv[1]).Process(target=work)
            process.start()
            process.join()
        """,
    )
    assert mode_of(place.python(*WAYS[way], DUCTILE_TORCH="1")) == "full"


@pytest.mark.parametrize(("said", "mode"), [({}, "full"), ({"DUCTILE_TORCH": "0"}, "off")])
def test_what_starts_with_an_interpreter_may_ask_where_the_environment_says_nothing(
    place, said, mode
):
    code = f"import ductile_gpu_start; ductile_gpu_start.watch('auto')\n{MODE}"
    assert mode_of(place.python("-c", code, **said)) == mode


def test_what_is_to_come_first_does(place):
    code = """
        import ductile_gpu_start
        ductile_gpu_start.when_torch_is_imported(lambda torch: print("later"))
        ductile_gpu_start.when_torch_is_imported(lambda torch: print(torch.__name__), first=True)
        import torch
    """
    answer = place.python("-c", textwrap.dedent(code))
    assert answer.stdout == "torch\nlater\n", answer.stderr


# ---- What cannot be met ------------------------------------------------------------------------

TRY = f"try:\n    import torch\nexcept Exception:\n    print('caught')\n{MODE}"


@pytest.mark.parametrize("mode", ["plian", "2", "fulll"])
def test_a_wrong_mode_stops_the_import_of_torch_and_names_the_right_ones(place, mode):
    answer = place.python("-c", TRY, DUCTILE_TORCH=mode)
    assert (answer.returncode, answer.stdout) == (1, "")
    assert answer.stderr.splitlines() == [
        f"ductile-gpu: stopped, because DUCTILE_TORCH={mode} cannot be met: DUCTILE_TORCH={mode}: "
        "it is 1 (the same as auto), auto, full, plain, or 0"
    ]
    assert place.python("-c", "print('no torch')", DUCTILE_TORCH=mode).returncode == 0
    place.write("train.py", MODE)
    assert place.command("run", "train.py", DUCTILE_TORCH=mode).returncode == 2


BROKEN = {
    "backend": {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"},
    "adapter": {"STUB_REFUSES": "1"},
    "library": {"DUCTILE_LIBRARY": "/no/such/library.so"},
}


@pytest.mark.parametrize("broken", BROKEN)
def test_what_fails_is_a_warning_and_pytorch_is_as_it_was(place, broken):
    answer = place.python("-c", "import torch; print(torch.__version__)", DUCTILE_TORCH="1",
                          **BROKEN[broken])  # fmt: skip
    assert (answer.returncode, answer.stdout) == (0, "2.15.0\n")
    (line,) = answer.stderr.splitlines()
    assert line.startswith(
        "ductile-gpu: WARNING: Ductile is off, PyTorch keeps its own allocator: "
    )


@pytest.mark.parametrize("broken", BROKEN)
def test_full_stops_the_program_where_it_cannot_be_had(place, broken):
    answer = place.python("-c", TRY, DUCTILE_TORCH="full", **BROKEN[broken])
    assert (answer.returncode, answer.stdout) == (1, "")
    assert answer.stderr.startswith(
        "ductile-gpu: stopped, because DUCTILE_TORCH=full cannot be met"
    )


def test_full_is_met_where_there_is_no_cuda_to_be_served(place):
    answer = place.python("-c", "import torch", DUCTILE_TORCH="full", STUB_NO_CUDA="1")
    assert (answer.returncode, answer.stderr) == (0, "")


# ---- NCCL ---

RANKS = {"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0"}


def settings_of(place):
    return [line for line in place.said() if line.startswith("settings ")]


def test_the_documented_way_to_start_ranks_warns_of_nothing(place):
    """PyTorch 2.15's NCCL backend registers all memory, unless segments are said to expand."""
    answer = place.python("-W", "error", "-c", "import torch", DUCTILE_TORCH="1", **RANKS)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert settings_of(place) == ["settings expandable_segments:True"]


@pytest.mark.parametrize(
    ("given", "on", "off"),
    [
        ("", "expandable_segments:True", "expandable_segments:False"),
        ("pinned_use_background_threads:True,expandable_segments:False",
         "pinned_use_background_threads:True,expandable_segments:True",
         "pinned_use_background_threads:True,expandable_segments:False"),
        ("roundup_power2_divisions:[256:1,>:8]",
         "roundup_power2_divisions:[256:1,>:8],expandable_segments:True",
         "roundup_power2_divisions:[256:1,>:8],expandable_segments:False"),
    ],
)  # fmt: skip
def test_pytorch_hears_that_segments_expand_as_long_as_they_do(place, given, on, off):
    code = "from ductile_gpu.torch import disable, enable; enable(); disable(); enable()"
    answer = place.python("-c", code, PYTORCH_ALLOC_CONF=given)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert settings_of(place) == [f"settings {text}" for text in (on, off, on)]


def test_what_the_program_sets_later_is_said_with_it(place):
    code = """
        import torch
        from ductile_gpu.torch import disable, enable
        enable()
        torch._C._accelerator_setAllocatorSettings("max_split_size_mb:128")
        disable()
    """
    answer = place.python("-c", textwrap.dedent(code))
    assert answer.returncode == 0, answer.stderr
    assert settings_of(place)[1:] == [
        "settings max_split_size_mb:128,expandable_segments:True",
        "settings max_split_size_mb:128,expandable_segments:False",
    ]


@pytest.mark.parametrize("text", ["garbage", "max_split_size_mb", "a:1,,b:2", "a:[1,2", ":1"])
def test_a_malformed_setting_reaches_pytorchs_own_parser(place, text):
    code = f"""
        import torch
        from ductile_gpu.torch import enable
        enable()
        torch._C._accelerator_setAllocatorSettings({text!r})
    """
    answer = place.python("-c", textwrap.dedent(code))
    assert answer.returncode == 0, answer.stderr
    assert settings_of(place)[1:] == [f"settings {text}"]


def test_nccls_older_backend_needs_no_word(place):
    answer = place.python("-c", "import torch", DUCTILE_TORCH="1", TORCH_DIST_USE_NCCL2="0")
    assert (answer.returncode, settings_of(place)) == (0, [])


HOOK = {"TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK": "1"}


@pytest.mark.parametrize("rank", ["0", "1"])
def test_one_rank_tells_that_nccls_hook_is_turned_off(place, rank):
    answer = place.python(
        "-c", "import torch", DUCTILE_TORCH="1", **{**RANKS, "RANK": rank}, **HOOK
    )
    assert answer.stderr.count("is turned off: Ductile's memory moves") == (rank == "0")


# ---- One line ----------------------------------------------------------------------------------

USE = "import torch; torch.cuda.use(); torch.cuda.use()"


def test_what_is_active_is_said_once_when_the_gpu_is_first_used(place):
    answer = place.python("-c", USE, DUCTILE_TORCH="1", DUCTILE_CONF="zero:on,limit_bytes:4G")
    assert answer.stderr.splitlines() == [
        f"ductile-gpu: Ductile {ductile_gpu.__version__} serves PyTorch 2.15.0 "
        "(full; zero:on,limit_bytes:4G)"
    ]
    assert place.python("-c", "import torch", DUCTILE_TORCH="1").stderr == ""


@pytest.mark.parametrize(
    ("environment", "lines"),
    [
        ({"DUCTILE_TORCH_QUIET": "1"}, 0),
        ({"DUCTILE_TORCH_QUIET": "0"}, 1),
        ({"DUCTILE_TORCH_QUIET": "off"}, 1),
        ({"RANK": "0", "LOCAL_RANK": "0"}, 1),
        ({"RANK": "8", "LOCAL_RANK": "0"}, 0),
        ({"SLURM_PROCID": "3"}, 0),
        ({"OMPI_COMM_WORLD_RANK": "1"}, 0),
        ({"LOCAL_RANK": "1"}, 0),
    ],
)
def test_one_rank_speaks_for_all(place, environment, lines):
    answer = place.python("-c", USE, DUCTILE_TORCH="1", **environment)
    assert (answer.returncode, len(answer.stderr.splitlines())) == (0, lines), answer.stderr


def test_of_many_workers_one_speaks(place):
    place.write(
        "pool.py",
        """
        import multiprocessing
        def work(n):
            import torch
            torch.cuda.use()
        if __name__ == "__main__":
            context = multiprocessing.get_context("spawn")
            workers = [context.Process(target=work, args=(n,)) for n in range(3)]
            for worker in workers: worker.start()
            for worker in workers: worker.join()
        """,
    )
    answer = place.python("pool.py", DUCTILE_TORCH="1")
    assert answer.stderr.count("serves PyTorch") == 1, answer.stderr


def test_a_program_that_speaks_speaks_for_its_children(place):
    code = f"{USE}; import subprocess, sys; subprocess.run([sys.executable, '-c', {USE!r}])"
    answer = place.python("-c", code, DUCTILE_TORCH="1")
    assert answer.stderr.count("serves PyTorch") == 1, answer.stderr


def test_the_library_says_nothing_of_itself(place):
    answer = place.python("-c", f"import ductile_gpu.torch; ductile_gpu.torch.enable(); {USE}")
    assert (answer.returncode, answer.stderr) == (0, "")


# ---- run's status ------------------------------------------------------------------------------

CHILD = """
    import os, subprocess, sys
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "backend:cudaMallocAsync"
    sys.exit(subprocess.run([sys.executable, "-c", sys.argv[1]]).returncode)
"""


def test_run_fails_where_another_allocator_served_a_child(place):
    place.write("parent.py", CHILD)
    answer = place.command("run", "parent.py", "import torch; torch.cuda.use()")
    assert answer.returncode == 1
    assert "another allocator served process" in answer.stderr
    assert "backend:cudaMallocAsync" in answer.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("import torch", 0),
        ("import torch; torch.cuda.init()", 0),
        ("import torch, os; torch.cuda.use(); os.kill(os.getpid(), 9)", 247),
        ("import torch, os; torch.cuda.use(); os._exit(0)", 1),
        ("import torch, sys; torch.cuda.use(); sys.exit(7)", 7),
        ("import torch, os, sys; torch.cuda.init(); os.fork() and os.wait(); torch.cuda.use()", 1),
    ],
)
def test_memory_counts_and_not_its_absence_and_the_programs_own_status_wins(place, code, status):
    place.write("parent.py", CHILD)
    answer = place.command("run", "parent.py", code)
    assert answer.returncode == status, answer.stderr


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"STUB_DISPLACED": "1"}, "Ductile is off: another allocator has taken its place"),
        ({"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}, "has every tensor from cudaMalloc"),
    ],
)
def test_run_fails_where_ductile_is_passed_by(place, environment, said):
    place.write("train.py", f"import os; os.environ.update({environment!r}); {USE}")
    answer = place.command("run", "train.py")
    assert answer.returncode == 1
    assert said in answer.stderr


def test_run_is_content_with_a_child_that_ductile_serves(place):
    place.write(
        "parent.py", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {USE!r}])"
    )
    answer = place.command("run", "parent.py")
    assert answer.returncode == 0
    assert answer.stderr.count("\n") == 1, answer.stderr
    assert "serves PyTorch" in answer.stderr


@pytest.mark.parametrize("code", ["print('ran')", "import torch; print('ran')"])
def test_run_without_gpu_memory_is_no_failure(place, code):
    place.write("train.py", code)
    answer = place.command("run", "train.py", STUB_NO_CUDA="1")
    assert (answer.returncode, answer.stdout) == (0, "ran\n")
    assert "no process of this run used GPU memory through PyTorch" in answer.stderr


def test_run_stops_a_script_that_it_cannot_serve(place):
    place.write("train.py", "import torch; print('ran')")
    answer = place.command("run", "train.py", STUB_REFUSES="1")
    assert (answer.returncode, answer.stdout) == (1, "")
    assert "PyTorch was not switched to Ductile: the stub refuses" in answer.stderr


def test_options_of_run_reach_the_script_and_its_children(place):
    place.write("train.py", f"import sys; print('before'); {USE}; print('after', sys.argv[1:])")
    answer = place.command("run", "--set", "zero:on", "train.py", "-x", DUCTILE_CONF="check=1")
    assert answer.stdout.splitlines() == ["before", "after ['-x']"]
    assert "(full; zero:on,check=1)" in answer.stderr


def test_run_leaves_nothing_behind(place):
    place.write("train.py", USE)
    place.command("run", "train.py", TMPDIR=str(place.folder))
    assert not list(place.folder.glob("ductile-*"))


# ---- Options -----------------------------------------------------------------------------------

CALLS = {
    "the same again": ("enable(limit_bytes='1G'); enable(limit_bytes='1G')", "full"),
    "the same in other words": ("enable(limit_bytes='1G'); enable(limit_bytes=1 << 30)", "full"),
    "none again": ("enable(limit_bytes='1G'); enable()", "full"),
    "a cap afterwards": ("enable(); use(); enable(limit_bytes='1G')", "or call set_limit()"),
    "another cap": ("enable(limit_bytes='1G'); use(); enable(limit_bytes='2G')", "Busy"),
    "what is so anyway": ("enable(); use(); enable(captures='announced')", "full"),
    "another default": ("enable(); use(); enable(captures='unannounced')", "Busy"),
    "another mode": ("enable('full'); enable('plain')", "Busy"),
    "any mode": ("enable('full'); enable('auto')", "full"),
    "mistyped": ("enable(no_such_option=1)", "InvalidArgument"),
    "mistyped again": ("enable(); enable(no_such_option=1)", "InvalidArgument"),
    "shared": ("enable(); use(); share('torch', limit_bytes='1G')", "Busy"),
    "shared first": ("share('torch', limit_bytes='1G'); enable(limit_bytes='1G')", "full"),
}


@pytest.mark.parametrize("call", CALLS)
def test_no_option_is_dropped_in_silence(place, call):
    calls, expected = CALLS[call]
    code = (
        "import ductile_gpu.torch; from ductile_gpu import share; from torch.cuda import use; "
        f"from ductile_gpu.torch import enable, mode; {calls}; print(mode())"
    )
    answer = place.python("-c", code, STUB_SERVES="1")
    said = answer.stdout if answer.returncode == 0 else answer.stderr
    assert expected in said, said


def test_a_cap_reaches_the_adapter_whoever_names_it(place):
    for calls in (
        "share('torch', limit_bytes='1G')",
        "enable(limit_bytes='1G')",
        "configure({'limit_bytes': '1G'}); enable()",
    ):
        code = "from ductile_gpu import share; from ductile_gpu._process._share import configure; "
        answer = place.python("-c", f"{code}from ductile_gpu.torch import enable; {calls}")
        assert answer.returncode == 0, answer.stderr
    assert place.options() == ["limit_bytes:1G"] * 3


def test_the_program_may_complete_what_the_environment_asked_for(place):
    code = "import torch; from ductile_gpu.torch import enable; enable(limit_bytes='1G'); {}"
    answer = place.python("-c", code.format("enable(limit_bytes='1G')"), DUCTILE_TORCH="1")
    assert answer.returncode == 0, answer.stderr
    assert place.options()[-1] == "limit_bytes:1G"
    code = f"{code.format('torch.cuda.use()')}; enable(limit_bytes='2G')"
    answer = place.python("-c", code, DUCTILE_TORCH="1", STUB_SERVES="1")
    assert "Busy: memory was allocated with other options already" in answer.stderr


def test_options_may_change_until_memory_is_served(place):
    code = """
        from ductile_gpu import share
        from ductile_gpu.torch import disable, enable
        enable()
        disable()
        enable(limit_bytes="1G")
        enable(limit_bytes="2G")
        share("torch", zero=True)
    """
    answer = place.python("-c", textwrap.dedent(code), STUB_SERVES="1")
    assert answer.returncode == 0, answer.stderr
    assert place.options() == ["", "limit_bytes:1G", "limit_bytes:2G", "limit_bytes:2G,zero:on"]


def test_a_program_that_enables_before_it_imports_torch_goes_on(place):
    """enable() imports torch then, and the hook enables within that import."""
    code = "from ductile_gpu.torch import enable; enable(limit_bytes='1G')"
    assert mode_after(place, code) == "full"
    assert place.options()[-1] == "limit_bytes:1G"


SAID = (
    "DUCTILE_CONF: option 'sizes' takes auto, or the largest handle, such as 16M, "
    "not 'aut': did you mean auto?"
)


def test_a_wrong_environment_ends_enable_and_names_variable_and_key(place):
    code = "from ductile_gpu.torch import enable, mode\ntry: enable()\n"
    code += "except ValueError as error: print(error, mode())"
    answer = place.python("-c", code, DUCTILE_CONF="sizes:aut")
    assert answer.stdout == f"{SAID} off\n", answer.stderr
    answer = place.python("-c", "import torch", DUCTILE_TORCH="full", DUCTILE_CONF="sizes:aut")
    assert (answer.returncode, SAID in answer.stderr) == (1, True)
    answer = place.python("-c", "import torch", DUCTILE_TORCH="1", DUCTILE_CONF="limit_byte=4G")
    assert "Ductile is off" in answer.stderr
    assert "DUCTILE_CONF: unknown option 'limit_byte': did you mean limit_bytes?" in answer.stderr


def test_run_starts_nothing_under_a_wrong_environment(place):
    place.write("train.py", "print('started')")
    answer = place.command("run", "train.py", DUCTILE_CONF="sizes:aut")
    assert (answer.returncode, answer.stdout) == (2, "")
    assert answer.stderr == f"ductile-gpu: {SAID}\n"


def test_a_refused_option_leaves_nothing_behind(place):
    code = """
        import ductile_gpu.torch
        for wrong in ({"limit_byte": "1G"}, {"limit_bytes": "1 Gig"}, {"zero": "maybe"}):
            try:
                ductile_gpu.torch.enable(**wrong)
            except ValueError as error:
                print("refused", error)
        ductile_gpu.torch.enable(limit_bytes="1G")
    """
    answer = place.python("-c", textwrap.dedent(code))
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.count("refused") == 3
    assert "did you mean limit_bytes?" in answer.stdout
    assert place.options() == ["limit_bytes:1G"]


def test_options_of_an_attempt_that_failed_are_forgotten(place):
    code = """
        import os
        import ductile_gpu.torch
        from ductile_gpu._process import _share
        os.environ["STUB_REFUSES"] = "1"
        try:
            ductile_gpu.torch.enable(limit_bytes="1G")
        except RuntimeError as error:
            print(error, _share.given(), _share._provider)
        del os.environ["STUB_REFUSES"]
        ductile_gpu.torch.enable()
    """
    answer = place.python("-c", textwrap.dedent(code))
    assert answer.stdout == "the stub refuses {} None\n", answer.stderr
    assert place.options() == ["limit_bytes:1G", ""]


def test_nothing_that_the_hook_imports_imports_the_hook(place):
    code = """
        import sys
        sys.modules["ductile_gpu_start"] = None  # to import it is an error
        import ductile_gpu.torch._start, ductile_gpu._tools._record_folder
    """
    answer = place.python("-c", textwrap.dedent(code))
    assert answer.returncode == 0, answer.stderr


# ---- Children ----------------------------------------------------------------------------------


def test_where_the_hook_is_installed_children_get_the_request_alone(place, monkeypatch):
    from ductile_gpu._process import _children

    before = {"PATH": "/bin", "PYTHONPATH": "mine"}
    assert _children.hook_is_installed()
    assert _children.child_environment("full", before) == {**before, "DUCTILE_TORCH": "full"}
    monkeypatch.setattr(_children, "hook_is_installed", lambda: False)
    changed = _children.child_environment("full", before)
    assert changed["PYTHONPATH"] == os.pathsep.join(["mine", _children.SITE])
    assert [path.name for path in Path(_children.SITE).glob("[!_]*")] == ["sitecustomize.py"]


def test_a_childs_own_packages_come_first(place):
    """Beside a package of the same name that is installed."""
    overlay = place.write("over/ductile_overlaid.py", "where = 'overlay'").parent
    child = "import ductile_overlaid, sys; print(ductile_overlaid.where, sys.path[1:])"
    place.write(
        "parent.py", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    )
    path = os.pathsep.join([str(overlay), str(STUB)])
    plain = place.python("parent.py", PYTHONPATH=path)
    answer = place.command("run", "parent.py", PYTHONPATH=path)
    assert answer.stdout == plain.stdout, "sys.path is as without Ductile"


@pytest.fixture
def carried(place):
    """The package where no .pth file is read, for a Python that has none installed."""
    base = Path(sys._base_executable).resolve()
    folder = place.folder / "carried"
    shutil.copytree(Path(PACKAGES) / "ductile_gpu", folder / "ductile_gpu")
    for beside in Path(PACKAGES).glob("ductile_gpu*.*"):
        if beside.suffix in (".py", ".start"):
            shutil.copy(beside, folder)
    place.environment["PYTHONPATH"] = os.pathsep.join([str(folder), str(STUB)])
    found = place.execute(base, "-c", "import site, ductile_gpu; print(site.getsitepackages())")
    if found.returncode != 0 or "ductile_gpu.pth" in found.stdout:
        pytest.skip("no other Python here")
    return base


@pytest.mark.parametrize("own", [False, True])
def test_where_no_hook_is_installed_children_are_served_too(place, carried, own):
    """Also beside a sitecustomize of the user's."""
    if own:
        place.write("own/sitecustomize.py", "print('mine')")
        place.environment["PYTHONPATH"] += os.pathsep + str(place.folder / "own")
    place.write("child.py", f"import sys; sys.path.append({str(STUB)!r})\n{MODE}")
    place.write(
        "parent.py",
        """
        import os, subprocess, sys
        del sys.path[1:3]
        subprocess.run([sys.executable, "child.py"])
        """,
    )
    answer = place.execute(carried, "-m", "ductile_gpu", "run", "parent.py")
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.split() == (["mine", "mine", "full"] if own else ["full"])
    assert answer.stderr.count("\n") <= 1


def test_where_no_hook_is_installed_each_start_file_beside_the_package_is_heard(place, carried):
    place.write("carried/ductile_gpu_planted.py", "def begin(): print('begun')")
    place.write("carried/ductile_gpu_planted.start", "ductile_gpu_planted:begin\n")
    place.write("child.py", "print('child')")
    place.write(
        "parent.py",
        """
        import os, subprocess, sys
        del sys.path[1:3]
        subprocess.run([sys.executable, "child.py"])
        """,
    )
    answer = place.execute(carried, "-m", "ductile_gpu", "run", "parent.py")
    assert answer.stdout.split() == ["begun", "child"], answer.stderr


def test_another_python_as_child_is_left_alone(place, carried):
    child = "import sys; print('ductile_gpu_start' in sys.modules, sys.path[1:])"
    place.write(
        "parent.py", f"import subprocess; subprocess.run([{sys.executable!r}, '-c', {child!r}])"
    )
    before = place.execute(carried, "parent.py", DUCTILE_TORCH="0").stdout
    code = (
        "import os, subprocess; from ductile_gpu._process import _children; "
        "environment = _children.child_environment(); environment['DUCTILE_TORCH'] = '0'; "
        f"subprocess.run([{sys.executable!r}, '-c', {child!r}], env=environment)"
    )
    answer = place.execute(carried, "-c", code)
    assert (answer.stdout, answer.stderr) == (before, "")


# ---- record ------------------------------------------------------------------------------------


def test_record_says_what_it_cannot_see(place):
    place.write(
        "parent.py",
        "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import torch'])",
    )
    answer = place.command("record", "parent.py")
    assert answer.returncode == 1
    assert "programs that it starts are not recorded" in answer.stderr
    assert "the script did not import torch" not in answer.stderr


@pytest.mark.parametrize("command", ["run", "record"])
def test_a_script_behind_a_link_finds_its_siblings(place, command):
    place.write("real/train.py", "import helper; print(helper.said)")
    place.write("real/helper.py", "said = 'sibling'")
    (place.folder / "link").mkdir()
    (place.folder / "link" / "train.py").symlink_to("../real/train.py")
    answer = place.command(command, "link/train.py")
    assert answer.stdout == place.python("link/train.py").stdout == "sibling\n", answer.stderr


@pytest.mark.parametrize("text", ["", "ductile_gpu_gone:begin\n"])
def test_a_start_file_that_fails_stops_neither_others_nor_a_sitecustomize(place, carried, text):
    place.write("own/sitecustomize.py", "print('mine')")
    place.environment["PYTHONPATH"] += os.pathsep + str(place.folder / "own")
    place.write("carried/ductile_gpu_broken.start", text)
    place.write("carried/ductile_gpu_planted.py", "def begin(): print('begun')")
    place.write("carried/ductile_gpu_planted.start", "ductile_gpu_planted:begin\n")
    place.write("child.py", "print('child')")
    place.write(
        "parent.py",
        """
        import subprocess, sys
        print("parent", flush=True)
        subprocess.run([sys.executable, "child.py"])
        """,
    )
    answer = place.execute(carried, "-m", "ductile_gpu", "run", "parent.py")
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.split("parent")[1].split() == ["begun", "mine", "child"]
    assert "ductile_gpu_broken.start: " in answer.stderr
