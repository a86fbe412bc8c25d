# SPDX-License-Identifier: Apache-2.0
"""Put into PYTHONPATH by ductile_gpu.torch.child_environment; hands on to the one behind it.

Every Python that is started so reads this, of whatever version. It changes those alone that are of
the installation that asked for it.
"""

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGES = os.path.join(HERE, "..", "..", "..")


class Package:
    """Finds Ductile where no other path does, without a folder more in sys.path."""

    @staticmethod
    def find_spec(name, _path=None, _target=None):  # type: ignore[no-untyped-def]
        from importlib.machinery import PathFinder

        if not name.startswith("ductile_gpu") or "." in name:
            return None
        return PathFinder.find_spec(name, [PACKAGES])


def call(path):  # type: ignore[no-untyped-def]
    """Calls what a .start file names, `module:function`."""
    with open(path) as file:
        module, _, function = file.read().strip().partition(":")
    getattr(__import__(module), function)()


def start():  # type: ignore[no-untyped-def]
    """Does what is done at each start where the package is installed. One that fails costs the
    others nothing, and the program neither, as with .pth files."""
    for name in sorted(os.listdir(PACKAGES)):
        if name.startswith("ductile_gpu") and name.endswith(".start"):
            try:
                call(os.path.join(PACKAGES, name))  # type: ignore[no-untyped-call]
            except Exception as error:
                sys.stderr.write(f"ductile-gpu: {name}: {type(error).__name__}: {error}\n")


sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder or ".") != HERE]
if os.environ.get("DUCTILE_TORCH_PREFIX") == sys.prefix:
    sys.meta_path.append(Package)
    start()  # type: ignore[no-untyped-call]
# Where there is none behind this, the failure is what site.py expects of a search without success.
del sys.modules["sitecustomize"]
__import__("sitecustomize")
