# SPDX-License-Identifier: Apache-2.0
"""Memory of the host behind PyTorch's tensors: where there shall be none, and what becomes of what
lives long."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Optional

from ductile_gpu._binding._sleep import Promoted
from ductile_gpu._process import _share
from ductile_gpu.torch import _install

if TYPE_CHECKING:
    from ductile_gpu._binding._abi import Options

__all__ = ["no_spill", "promote"]


@contextlib.contextmanager
def no_spill() -> Iterator[None]:
    """Inside, no request gets memory of the host (the option `spill_bytes`).

    For what probes for out-of-memory: a search for the largest batch, an autotuner; also as a
    decorator, `@no_spill()`. It holds for all threads, since backward passes run on others. Without
    the adapter (mode "plain") only on the GPUs that are in use by then. Allocators that the program
    has made itself have their own.
    """
    with contextlib.ExitStack() as scopes:
        scopes.enter_context(_install.no_spill())
        for allocator in _share.by_device().values():
            scopes.enter_context(allocator.no_spill())
        yield


def promote() -> Promoted:
    """Moves spilled memory of tensors to the GPUs in use, as far as they have room by now.

    Tensors keep their addresses and contents. Between two steps: it waits for all work of the GPU,
    and no thread may use or make tensors on it meanwhile. At once where nothing has spilled.
    Allocators that the program has made itself have their own.

    Returns:
        Bytes moved, and left in the host's memory for lack of room.

    Raises:
        As `Allocator.promote`. What fails on a later GPU leaves the earlier ones promoted.
    """
    done = [allocator.promote() for allocator in _share.by_device().values()]
    return Promoted(sum(d.bytes for d in done), sum(d.left_bytes for d in done))


# ---- What lives long ---------------------------------------------------------------------------

_GIB = 1 << 30
_handle: Optional[Any] = None  # of the hook, once there is one
_warned_at = 0  # bytes


def watch(options: Options) -> None:
    """From now on each optimizer's step is followed by a look at what is spilled and in use, if
    these options, and those of the environment, let memory spill."""
    global _handle
    if _handle is None and _share.effective(options)["spill_bytes"] != "0":
        optimizer = sys.modules.get("torch.optim.optimizer")
        register = getattr(optimizer, "register_optimizer_step_post_hook", None)
        _handle = register(_look) if register is not None else None


def _look(_optimizer: Any, _arguments: Any, _named: Any) -> None:
    """Activations are gone by now: what is left lives from step to step."""
    global _warned_at
    live = sum(one.stats().spilled_live_bytes for one in _share.by_device().values())
    if live == 0 or live < 2 * _warned_at:
        return
    _warned_at = live
    warnings.warn(
        f"{live / _GIB:.2f} GiB of tensors lie in the host's memory after an optimizer's step, and "
        "stay there until they are freed: ductile_gpu.torch.promote() between two steps moves them "
        "to the GPU once it has room",
        RuntimeWarning,
        stacklevel=3,
    )
