# SPDX-License-Identifier: Apache-2.0
"""Enables Ductile in programs that do not ask for it, as soon as they import torch; records them.

DUCTILE_TORCH in the environment is the request: 1, or a mode of ductile_gpu.torch.enable.
DUCTILE_RECORD names a folder in which each process that uses a GPU leaves a recording. Children
inherit both, whether they are forked, spawned, or started by torchrun.

What runs this at the start of every interpreter is ductile_gpu.pth beside it, from Python 3.15 on
ductile_gpu.start, or the sitecustomize that ductile_gpu.torch.child_environment puts behind all
else in PYTHONPATH. It stands beside the package, not in it, so that the package is imported only
where it is asked for; and neither torch nor libductile is touched before the program imports torch.
"""

from __future__ import annotations

import os
import sys

from ductile_gpu_words import OFF, one_line, say

TYPE_CHECKING = False  # typing's, which takes longer to import than this
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any, Optional

VARIABLE = "DUCTILE_TORCH"
RECORD = "DUCTILE_RECORD"
_ON = frozenset(("1", "on", "yes", "true"))
MODES = ("auto", "full", "plain")
_by_default = ""


def wanted_mode() -> Optional[str]:
    """The mode that the environment asks for, right or wrong; None for none."""
    value = os.environ.get(VARIABLE, _by_default).strip().lower()
    if value in OFF:
        return None
    return "auto" if value in _ON else value


def check_mode(mode: str) -> None:
    """Raises ValueError for what is no mode."""
    if mode not in MODES:
        known = ", ".join(MODES)
        raise ValueError(f"{VARIABLE}={mode}: it is 1 (the same as auto), {known}, or 0")


def enable_now(torch: ModuleType) -> None:
    """Enables Ductile if this PyTorch can use a GPU. Whatever fails leaves PyTorch as it is.

    Only who demands a mode that there is not, or `full` where that is not there, is stopped: by
    SystemExit, since a program may well go on after another exception of `import torch`.
    """
    mode = wanted_mode()
    if mode is None:
        return

    def failed(error: Exception) -> None:
        reason = one_line(error)
        if mode not in ("auto", "plain"):
            say(f"stopped, because {VARIABLE}={mode} cannot be met: {reason}")
            raise SystemExit(1) from None
        say(f"WARNING: Ductile is off, PyTorch keeps its own allocator: {reason}")

    try:
        check_mode(mode)
        if torch.version.cuda is None:
            return
        import ductile_gpu.torch._start

        ductile_gpu.torch._start.begin(mode, failed)
    except Exception as error:
        failed(error)


# ---- Recording ---------------------------------------------------------------------------------


def record_folder() -> Optional[str]:
    """Where the environment wants recordings, as an absolute path; None: nowhere."""
    value = os.environ.get(RECORD, "").strip()
    return None if value.lower() in OFF else os.path.abspath(value)


def why_not_recorded(folder: str) -> Optional[str]:
    """Why nothing can be written there; None: it can."""
    import tempfile

    try:
        with tempfile.TemporaryFile(dir=folder):
            return None
    except OSError as error:
        return error.strerror or type(error).__name__


def record_now(torch: ModuleType) -> None:
    """Records this process from its first use of CUDA on. A failure does not concern the program,
    and one that uses no GPU loads no more than this."""
    folder = record_folder()
    if folder is None or torch.version.cuda is None:
        return
    problem = why_not_recorded(folder)
    if problem is None:
        torch.cuda._lazy_call(lambda: _record_from_here(folder, torch))
        return
    del os.environ[RECORD]  # children would say the same
    if os.environ.get("LOCAL_RANK", "0") == "0":
        say(f"WARNING: nothing is recorded: {RECORD}={folder}: {problem}")


def _record_from_here(folder: str, torch: ModuleType) -> None:
    try:
        from ductile_gpu._tools import _record_folder

        _record_folder.begin(folder, torch)
    except Exception as error:
        say(f"WARNING: this process is not recorded: {one_line(error)}")


# ---- When torch is imported --------------------------------------------------------------------


class _AndThen:
    """A loader that tells once the module is complete."""

    def __init__(self, loader: Any, finder: TorchFinder) -> None:
        self._loader = loader
        self._finder = finder

    def create_module(self, spec: ModuleSpec) -> Optional[ModuleType]:
        module: Optional[ModuleType] = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._finder.is_loading = True
        try:
            self._loader.exec_module(module)
        finally:
            self._finder.is_loading = False
        self._finder.leave(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class TorchFinder:
    """Lets the others find torch, and stands in for its loader until torch was loaded.

    A search is not an import: find_spec("torch"), with which many packages look whether there is a
    PyTorch, changes nothing.
    """

    def __init__(self) -> None:
        self.then: list[Callable[[ModuleType], None]] = []
        self.is_loading = False

    def find_spec(
        self,
        fullname: str,
        path: Optional[Sequence[str]],
        target: Optional[ModuleType] = None,
    ) -> Optional[ModuleSpec]:
        if fullname == "sitecustomize":
            self._step_forward()
        self._look_back()
        if fullname != "torch":
            return None
        for finder in list(sys.meta_path):
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec: Optional[ModuleSpec] = find(fullname, path, target) if find else None
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):  # which a folder without code has not
                    spec.loader = _AndThen(spec.loader, self)  # type: ignore[assignment]
                return spec
        return None

    def _step_forward(self) -> None:
        """All .pth files have been read. Those of editable installations may have put finders
        before this one, and one of them may find torch. Finders behind this one keep their places,
        so that a search that is going on misses none."""
        if sys.meta_path[0] is not self and self._step_out():
            sys.meta_path.insert(0, self)

    def _look_back(self) -> None:
        """Has another finder, which came later, found torch, and is it complete?"""
        torch = sys.modules.get("torch")
        if self.is_loading or type(torch) is not type(sys):  # or loaded when it is first looked at
            return
        spec = torch.__spec__
        if spec is not None and spec.origin and not getattr(spec, "_initializing", False):
            self.leave(torch)

    def _step_out(self) -> bool:
        """Was it on the list? Another thread may have taken it off."""
        try:
            sys.meta_path.remove(self)
        except ValueError:
            return False
        return True

    def leave(self, module: ModuleType) -> None:
        """Tells those who wait, once."""
        self._step_out()
        waiting, self.then = self.then, []
        for then in waiting:
            then(module)


def when_torch_is_imported(then: Callable[[ModuleType], None], *, first: bool = False) -> None:
    """Calls `then(torch)` right after the program has imported it; at once if it is imported.

    Where it is `first`, before all that wait already.
    """
    torch = sys.modules.get("torch")
    if torch is not None:
        return then(torch)
    found = [finder for finder in sys.meta_path if isinstance(finder, TorchFinder)]
    finder = found[0] if found else TorchFinder()
    if not found:
        sys.meta_path.insert(0, finder)
    if then not in finder.then:
        finder.then.insert(0 if first else len(finder.then), then)


# ---- The start of an interpreter ---------------------------------------------------------------


def watch(by_default: str = "") -> None:
    """Does what the environment asks for as torch comes. Doing it again adds what is new.

    Args:
        by_default: the mode where DUCTILE_TORCH says nothing; "": none.
    """
    global _by_default
    _by_default = by_default or _by_default
    if wanted_mode() is not None:
        when_torch_is_imported(enable_now, first=True)
    folder = record_folder()
    if folder is not None:
        os.environ[RECORD] = folder
        when_torch_is_imported(record_now)
