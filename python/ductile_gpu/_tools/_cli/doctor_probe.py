# SPDX-License-Identifier: Apache-2.0
"""What the doctor asks an interpreter, run by that interpreter: it may be of another installation.

Nothing but the standard library is taken for granted, and no more is imported than PyTorch. Prints
one JSON object as the last line.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Those that may capture streams by themselves, by the module that shows that they are there.
CAPTURING = ("cupy", "numba", "warp", "tensorrt", "torch_tensorrt")


def has_module(name: str) -> bool:
    """Is it installed? It is not imported."""
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def watched() -> bool:
    """Has the hook run at the start of this interpreter?"""
    return any(type(finder).__name__ == "TorchFinder" for finder in sys.meta_path)


def stop_watching() -> None:
    """Nothing is to be enabled here: that might compile."""
    sys.meta_path[:] = [f for f in sys.meta_path if type(f).__name__ != "TorchFinder"]


def describe_torch() -> dict[str, Any]:
    if not has_module("torch"):
        return {"torch": None}
    try:
        import torch
    except Exception as error:
        return {"torch": None, "torch_problem": one_line(error)}
    return {
        "torch": torch.__version__,
        "torch_cuda": torch.version.cuda,
        "cuda_is_initialized": torch.cuda.is_initialized(),
    }


def describe_driver() -> dict[str, Any]:
    from ductile_gpu._binding import _cuda

    try:
        driver, devices = _cuda.driver_version(), _cuda.devices()
    except _cuda.CudaError as error:
        return {"driver": None, "driver_problem": one_line(error)}
    return {"driver": driver, "gpus": [(gpu.name, gpu.has_vmm) for gpu in devices]}


def describe_options() -> dict[str, Any]:
    """What an allocator would have here; or what is wrong with DUCTILE_CONF."""
    import ductile_gpu

    try:
        with ductile_gpu.VirtualGPU() as gpu, gpu.allocator() as allocator:
            return {"options": allocator.options}
    except ductile_gpu.InvalidArgument as error:
        return {"options_problem": one_line(error)}


def describe_ductile(has_torch: bool) -> dict[str, Any]:
    if not has_module("ductile_gpu"):
        return {"ductile": None}
    try:
        import ductile_gpu
        from ductile_gpu.torch import _build, _conf
    except Exception as error:
        return {"ductile": None, "ductile_problem": one_line(error)}
    found: dict[str, Any] = {"ductile": ductile_gpu.__version__}
    found.update(describe_driver())
    found.update(describe_options())
    if has_torch:
        try:
            _build.describe_torch()
            found["adapter"] = _build.describe_adapter()
        except Exception as error:
            found["torch_problem"] = one_line(error)
    refused = [s for s in _conf.describe(_conf.environment()) if s.treatment.name == "REFUSED"]
    found["refused_settings"] = [f"{s.key}:{s.value}" for s in refused]
    return found


def describe() -> dict[str, Any]:
    found: dict[str, Any] = {
        "executable": sys.executable,
        "prefix": sys.prefix,
        "version": list(sys.version_info[:3]),
        "watched": watched(),
        "capturing": [name for name in CAPTURING if has_module(name)],
    }
    stop_watching()
    found.update(describe_torch())
    found.update(describe_ductile(found["torch"] is not None))
    return found


def main() -> None:
    """What libraries print on import goes elsewhere."""
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        found = describe()
    print(json.dumps(found))
