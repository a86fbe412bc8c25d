# SPDX-License-Identifier: Apache-2.0
"""PyTorch on Ductile, as far as that shows without a GPU: the adapter is compiled against the
installed PyTorch, switched on, and configured."""

from __future__ import annotations

import re
import subprocess

import pytest

torch = pytest.importorskip("torch")
if torch.version.cuda is None:
    pytest.skip("this PyTorch is built without CUDA", allow_module_level=True)

from running import MODE, python

from ductile_gpu.torch import _build, _conf, _surface

# ---- The interface -----------------------------------------------------------------------------


def test_every_virtual_function_of_the_installed_pytorch_is_accounted_for():
    include = _build.describe_torch().include
    names = _surface.declared(include)
    assert {"allocate", "raw_alloc", "snapshot", "recordHistory", "emptyCache"} <= names
    assert len(names) > 35
    assert _surface.unknown(include) == frozenset()


def test_a_new_virtual_function_is_noticed(tmp_path):
    for header in _surface.HEADERS:
        (tmp_path / header).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / header).write_text("", encoding="utf-8")
    (tmp_path / _surface.HEADERS[-1]).write_text(
        "class CUDAAllocator : public DeviceAllocator {\n"
        "  virtual void* raw_alloc(size_t nbytes) = 0;\n"
        "  // virtual void commented();\n"
        "  virtual std::vector<int> defragment(\n      int device) { return {}; }\n"
        "};\n",
        encoding="utf-8",
    )
    assert _surface.unknown(tmp_path) == {"defragment"}


def test_the_adapter_overrides_what_the_header_declares(driver):
    """Whatever is in the vtable of the base and not ours would call PyTorch's default."""
    path = _build.compiled_path(_build.describe_torch())
    symbols = subprocess.run(["nm", "-C", str(path)], capture_output=True, text=True, check=True)
    own = set(re.findall(r"ductile_torch::Allocator::(\w+)(?:\[abi:cxx11\])?\(", symbols.stdout))
    names = _surface.declared(_build.describe_torch().include) - _surface.INHERITED
    assert names <= own, names - own


def test_the_adapter_brings_no_c_plus_plus_library_of_its_own():
    """Two in one process mix neither locales nor exceptions."""
    path = _build.compiled_path(_build.describe_torch())
    symbols = subprocess.run(
        ["nm", "--defined-only", str(path)], capture_output=True, text=True, check=True
    )
    assert "ductile_torch_install" in symbols.stdout
    assert "_ZNSt6locale" not in symbols.stdout


def test_an_interface_that_does_not_fit_is_refused_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("DUCTILE_CACHE", str(tmp_path))
    found = _build.describe_torch()
    with pytest.raises(_build.BuildError, match="does not compile against PyTorch") as caught:
        _build.build(found._replace(root=tmp_path, minor=11))
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.glob("torch-*.so"))


# ---- Switching on ------------------------------------------------------------------------------


def test_options_of_ductile_are_taken_and_wrong_ones_refused(driver):
    program = """
import ductile_gpu.torch
try:
    ductile_gpu.torch.enable("full", no_such_option=1)
except ValueError as error:
    print("refused", error)
print(ductile_gpu.torch.mode())
ductile_gpu.torch.enable("full", limit_bytes="40G")
print(ductile_gpu.torch.mode())
"""
    done = python("-c", program)
    assert "refused" in done.stdout
    assert "no_such_option" in done.stdout
    assert done.stdout.split()[-2:] == ["off", "full"]


@pytest.mark.parametrize("mode", ["full", "plain"])
def test_children_inherit_it(mode):
    from ductile_gpu.torch import child_environment

    nested = (
        "import subprocess, sys; "
        f"print(subprocess.run([sys.executable, '-c', {MODE!r}], "
        "capture_output=True, text=True).stdout)"
    )
    done = python("-c", nested, **child_environment(mode))
    if mode == "plain" and "libductile_torch" in done.stderr:
        pytest.skip("this installation has no libductile_torch.so")
    assert done.stdout.strip() == mode, done.stderr


def test_without_the_request_nothing_is_changed():
    from ductile_gpu.torch import child_environment

    program = "import torch; print(torch.cuda.get_allocator_backend())"
    done = python("-c", program, **{**child_environment(), "DUCTILE_TORCH": "0"})
    assert done.stdout.strip() == "native"


# ---- Settings ----------------------------------------------------------------------------------


def test_settings_are_split_as_pytorch_splits_them():
    text = "expandable_segments:True, roundup_power2_divisions:[256:1,512:2,>:8],backend:native"
    assert _conf.parse(text) == {
        "expandable_segments": "True",
        "roundup_power2_divisions": "[256:1,512:2,>:8]",
        "backend": "native",
    }


def test_every_key_has_a_treatment():
    text = "garbage_collection_threshold:0.8,max_split_size_mb:64,pinned_num_register_threads:4"
    kinds = {s.key: s.treatment for s in _conf.describe(text)}
    assert kinds == {
        "garbage_collection_threshold": _conf.Treatment.HONOURED,
        "max_split_size_mb": _conf.Treatment.NEEDLESS,
        "pinned_num_register_threads": _conf.Treatment.HOST,
    }
