# SPDX-License-Identifier: Apache-2.0
"""Put first in PYTHONPATH by ductile_gpu.torch.child_environment; hands on to the one behind it."""

import importlib.machinery
import importlib.util
import os
import sys

import ductile_gpu_start

HERE = os.path.dirname(os.path.abspath(__file__))


def hand_on() -> None:
    """Runs the sitecustomize that this one hides."""
    behind = [folder for folder in sys.path if os.path.abspath(folder or ".") != HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", behind)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


ductile_gpu_start.watch()
hand_on()
