# SPDX-License-Identifier: Apache-2.0
"""info: what is installed, which GPUs there are, and which options are in effect."""

from __future__ import annotations

import argparse
import os
import platform
from importlib import metadata
from typing import Any, Optional

from ductile_gpu._binding import _abi, _cuda, _native
from ductile_gpu._binding._core import Allocator
from ductile_gpu._binding._errors import Error
from ductile_gpu._tools._cli.common import Failure, print_json, progress, show
from ductile_gpu._tools._cli.doctor_probe import describe_options
from ductile_gpu._tools._sizes import in_bytes
from ductile_gpu.torch import _build, _conf

SUMMARY = "Show versions, GPUs and the options in effect."
DESCRIPTION = """\
Shows the versions of Ductile and of the libraries it has adapters for, the GPUs and whether Ductile
works on them, and the options in effect after DUCTILE_CONF. Initialises CUDA."""
LIBRARIES = {
    "torch": ("torch",),
    "cupy": ("cupy-cuda13x", "cupy-cuda12x", "cupy-cuda11x", "cupy"),
    "numba": ("numba-cuda", "numba"),
    "rmm": ("rmm-cu13", "rmm-cu12", "rmm"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("--json", action="store_true", help="Print one JSON object.")


def _installed(candidates: tuple[str, ...]) -> str:
    for name in candidates:
        try:
            return f"{metadata.version(name)} ({name})"
        except metadata.PackageNotFoundError:
            continue
    return "not installed"


def _describe_adapter() -> Optional[str]:
    """PyTorch's adapter, whether it is there or can be; None without PyTorch."""
    if _installed(LIBRARIES["torch"]) == "not installed":
        return None
    progress("importing PyTorch")
    try:
        found, unknown = _build.describe_adapter(), _build.list_unknown(_build.describe_torch())
    except (ImportError, _build.BuildError) as error:
        return f"none: {error}"
    return f"{found}; it does not know of {unknown}" if unknown else found


def _describe_settings() -> list[str]:
    """What becomes of PyTorch's settings under Ductile."""
    found = _conf.describe(_conf.environment())
    return [f"{s.key}:{s.value}: {s.treatment.value}. {s.reason}".rstrip() for s in found]


def _probe(ordinal: int) -> str:
    """Makes an allocator and uses it once: that tells more than any attribute."""
    try:
        with Allocator(ordinal) as allocator:
            allocator.free(allocator.alloc(1 << 20))
        return "works"
    except Error as error:
        return str(error).partition("\n")[0]


def _describe_gpus() -> tuple[list[dict[str, Any]], str]:
    try:
        version = _cuda.driver_version()
        found = _cuda.devices()
    except _cuda.CudaError as error:
        return [], str(error)
    gpus = [
        {
            "ordinal": gpu.ordinal,
            "name": gpu.name,
            "total_bytes": gpu.total_bytes,
            "capability": ".".join(map(str, gpu.capability)),
            "virtual_memory_management": gpu.has_vmm,
            "ductile": _probe(gpu.ordinal),
        }
        for gpu in found
    ]
    return gpus, f"supports CUDA {version[0]}.{version[1]}"


def _options() -> dict[str, str]:
    found = describe_options()
    if "options_problem" in found:
        raise Failure(found["options_problem"])
    return {key: text for key, text in found["options"].items() if key not in ("driver", "device")}


def collect() -> dict[str, Any]:
    """Everything that is shown."""
    gpus, driver = _describe_gpus()
    return {
        "version": _abi.VERSION,
        "library": str(_native.library_path()),
        "bench": str(_native.bench_path()),
        "python": platform.python_version(),
        "libraries": {name: _installed(names) for name, names in LIBRARIES.items()},
        "torch_adapter": _describe_adapter(),
        "torch_settings": _describe_settings(),
        "driver": driver,
        "gpus": gpus,
        "DUCTILE_CONF": os.environ.get("DUCTILE_CONF"),
        "options": _options(),
    }


def _print(found: dict[str, Any]) -> None:
    show(f"ductile-gpu {found['version']}, Python {found['python']}")
    show(f"library    {found['library']}")
    show(f"bench      {found['bench']}")
    show(f"driver     {found['driver']}")
    for gpu in found["gpus"]:
        what = f"{gpu['name']}, {in_bytes(gpu['total_bytes'])}, sm {gpu['capability']}"
        show(f"GPU {gpu['ordinal']}      {what}: {gpu['ductile']}")
    for name, version in found["libraries"].items():
        show(f"{name:<10} {version}")
        if name == "torch" and found["torch_adapter"] is not None:
            show(f"  adapter  {found['torch_adapter']}")
            for setting in found["torch_settings"]:
                show(f"  setting  {setting}")
    conf = found["DUCTILE_CONF"]
    show(f"options    DUCTILE_CONF is {'not set' if conf is None else conf}; in effect:")
    for key, value in found["options"].items():
        show(f"  {key:<28} {value}")


def main(options: argparse.Namespace) -> int:
    """Prints what was found; no GPU is not an error."""
    found = collect()
    if options.json:
        print_json(found, indent=2)
    else:
        _print(found)
    return 0
