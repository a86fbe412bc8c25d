# SPDX-License-Identifier: Apache-2.0
"""What Ductile knows of a tensor's memory."""

from __future__ import annotations

from typing import Any, NamedTuple

from ductile_gpu._binding._errors import PointerError
from ductile_gpu._process import _share
from ductile_gpu.torch import _install, _plain


class TensorBlock(NamedTuple):
    """The block that holds a tensor's storage, and its neighbourhood.

    Freeing a tensor makes a hole of `free_before + size + free_after` bytes: who must evict tensors
    can free those that open the largest ones.
    """

    address: int
    size: int
    requested_size: int
    stream: int
    device: int
    segment: int
    segment_size: int
    free_before: int
    free_after: int

    @property
    def hole(self) -> int:
        """How many bytes in one piece there would be without this block."""
        return self.free_before + self.size + self.free_after


def block_of(tensor: Any) -> TensorBlock:
    """The block of a CUDA tensor's storage. Raises ValueError for memory that is not Ductile's.

    No driver call; constant time. True until the next allocation or free nearby.
    """
    if not tensor.is_cuda:
        raise ValueError("the tensor is not on a CUDA device")
    if not (_install.is_installed() or _plain.is_installed()):
        raise ValueError("Ductile is not PyTorch's allocator: see ductile_gpu.torch.enable")
    device = tensor.device.index
    try:
        block = _share.shared(device).query(tensor.untyped_storage().data_ptr())
    except PointerError as error:
        raise ValueError(f"the tensor's memory is not Ductile's: {error}") from None
    return TensorBlock(
        address=block.address,
        size=block.size,
        requested_size=block.requested_size,
        stream=block.stream,
        device=device,
        segment=block.segment,
        segment_size=block.segment_bytes,
        free_before=block.free_before_bytes,
        free_after=block.free_after_bytes,
    )
