# SPDX-License-Identifier: Apache-2.0
"""Put into PYTHONPATH by ductile_gpu.torch.child_environment; hands on to the one behind it.

Every Python that is started so reads this, of whatever version. It changes those alone that are of
the installation that asked for it.
"""

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


class Package:
    """Finds Ductile where no other path does, without a folder more in sys.path."""

    @staticmethod
    def find_spec(name, _path=None, _target=None):  # type: ignore[no-untyped-def]
        from importlib.machinery import PathFinder

        if name not in ("ductile_gpu", "ductile_gpu_start", "ductile_gpu_words"):
            return None
        return PathFinder.find_spec(name, [os.path.join(HERE, "..", "..", "..")])


sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder or ".") != HERE]
if os.environ.get("DUCTILE_TORCH_PREFIX") == sys.prefix:
    sys.meta_path.append(Package)
    __import__("ductile_gpu_start").watch()
# Where there is none behind this, the failure is what site.py expects of a search without success.
del sys.modules["sitecustomize"]
__import__("sitecustomize")
