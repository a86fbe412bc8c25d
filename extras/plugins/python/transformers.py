# SPDX-License-Identifier: Apache-2.0
"""A cache for transformers that grows in place.

    from ductile_gpu.transformers import ElasticCache

    cache = ElasticCache(model.config)
    model.generate(**inputs, past_key_values=cache)

Keys and values of each layer lie in an elastic range, token behind token, and the model gets
permuted views of them: a token that is appended copies nothing of those before it, and memory is
behind the tokens that there are, not behind the longest sequence that there could be. What a crop
or the end of the cache gives back serves other tensors.
"""

from __future__ import annotations

from typing import Any, Optional, Union

import torch
from transformers.cache_utils import (
    Cache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    get_layer_types_and_kwargs,
)

from ductile_gpu.torch import ElasticTensor, elastic

__all__ = ["ElasticCache", "ElasticLayer"]

_SLIDING = ("sliding_attention", "chunked_attention")
_PIECE_BYTES = 64 << 20  # of rows that are put in another order at once


class _Rows:
    """Keys or values: a row is a token of all sequences."""

    def __init__(self, like: torch.Tensor, max_length: int, unit: Union[int, str, None]) -> None:
        batch, heads, _, size = like.shape
        self._made_with = (max_length, unit)
        # What inference mode makes can be written in it alone, and the cache may outlive it.
        with torch.inference_mode(False):
            self._rows: ElasticTensor = elastic(
                (batch, heads, size), max_length, like.dtype, unit=unit, device=like.device.index
            )
            # As a model has them: sequences, heads, tokens, sizes. Made once: a token costs few
            # calls.
            self._all = self._rows.tensor.permute(1, 2, 0, 3)

    def __len__(self) -> int:
        return self._rows.rows

    def fits(self, states: torch.Tensor) -> bool:
        """Are they of as many sequences, heads and sizes? One sequence would become all of them."""
        mine, theirs = self._all.shape, states.shape
        return (mine[0], mine[1], mine[3]) == (theirs[0], theirs[1], theirs[3])

    def put(self, states: torch.Tensor) -> torch.Tensor:
        """Into the last rows."""
        more = states.shape[-2]
        self._all.narrow(2, self._rows.rows - more, more).copy_(states)
        return self.states()

    def resize(self, length: int) -> torch.Tensor:
        self._rows.resize(length)
        return self.states()

    def states(self) -> torch.Tensor:
        return self._all.narrow(2, 0, self._rows.rows)

    def reorder(self, order: torch.Tensor) -> None:
        """In place, a piece at a time: no second copy of them all."""
        rows = self._rows.view()
        row_bytes = rows[:1].numel() * rows.element_size()
        for piece in rows.split(max(1, _PIECE_BYTES // max(row_bytes, 1))):
            piece.copy_(piece.index_select(1, order.to(piece.device)))

    def of_others(self, order: torch.Tensor) -> _Rows:
        """The same for these sequences, in a range of their own: there are more, or fewer."""
        states = self.states()
        made = _Rows(states[order[:1]].expand(len(order), -1, -1, -1), *self._made_with)
        made._rows.resize(len(self))
        rows, wanted = self._rows.view(), made._rows.view()
        n = max(1, _PIECE_BYTES // max(wanted[:1].numel() * wanted.element_size(), 1))
        for old, new in zip(rows.split(n), wanted.split(n)):
            new.copy_(old.index_select(1, order.to(old.device)))
        return made


def _refuse_other_than_cuda(device: torch.device) -> None:
    if device.type != "cuda":
        raise ValueError(f"ElasticCache is for CUDA, not for {device}: use DynamicCache")


class ElasticLayer(DynamicLayer):  # type: ignore[misc]
    """One layer of full attention. Beside what `DynamicLayer` does: nothing is copied at a token.

    `keys` and `values` are views of the range: who keeps one over a `crop` must not read what was
    cropped.
    """

    def __init__(self, max_length: int, unit: Union[int, str, None] = None) -> None:
        super().__init__()
        self._max_length, self._unit = max_length, unit
        self._both: tuple[_Rows, ...] = ()

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        _refuse_other_than_cuda(key_states.device)
        self.dtype, self.device = key_states.dtype, key_states.device
        given = (key_states, value_states)
        self._both = tuple(_Rows(states, self._max_length, self._unit) for states in given)
        self._show()
        self.is_initialized = True

    def _show(self) -> None:
        self.keys, self.values = (rows.states() for rows in self._both)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        before, more = self.get_seq_length(), key_states.shape[-2]
        if before == 0 and not self._is_for(key_states, value_states):
            self.lazy_initialization(key_states, value_states)
        self._refuse_other_sequences(key_states, value_states)
        if before + more > self._max_length:
            raise ValueError(
                f"{before + more} tokens are more than the {self._max_length} that the cache was "
                "made for: ElasticCache(config, max_length=...) reserves addresses, not memory"
            )
        self._resize_both(before + more)
        keys, values = self._both
        self.keys, self.values = keys.put(key_states), values.put(value_states)
        return self.keys, self.values

    def _is_for(self, *given: torch.Tensor) -> bool:
        """As they are made: also of that type, on that device."""
        keys = given[0]
        if not self.is_initialized or (self.dtype, self.device) != (keys.dtype, keys.device):
            return False
        return all(rows.fits(states) for rows, states in zip(self._both, given))

    def _refuse_other_sequences(self, *given: torch.Tensor) -> None:
        for rows, states in zip(self._both, given):
            if not rows.fits(states):
                raise ValueError(
                    f"states of shape {tuple(states.shape)} are of other sequences than the cache "
                    f"has, {tuple(rows.states().shape)}: reset() it, or use another"
                )

    def __deepcopy__(self, memo: dict[int, Any]) -> ElasticLayer:
        """For a prompt that is continued several times: in ranges of its own. Tensors would copy
        all that there could be, with or without memory."""
        made = type(self)(self._max_length, self._unit)
        memo[id(self)] = made
        if self.get_seq_length() > 0:
            made.dtype, made.device = self.dtype, self.device
            order = torch.arange(self.keys.shape[0], device=self.device)
            made._both = tuple(rows.of_others(order) for rows in self._both)
            made._show()
            made.is_initialized = True
        return made

    def _resize_both(self, length: int) -> None:
        """Or neither: where the second finds no memory, the first gives it back."""
        before = self.get_seq_length()
        try:
            for rows in self._both:
                rows.resize(length)
        except BaseException:
            for rows in self._both:
                rows.resize(min(len(rows), before))
            raise

    def get_seq_length(self) -> int:
        return len(self._both[0]) if self._both else 0

    def get_max_length(self) -> int:
        return -1

    def crop(self, tokens_to_remove: int) -> None:
        """As DynamicLayer: a negative number of tokens to remove; a positive one, which newer
        versions of that refuse, is the length that stays. Their memory goes back."""
        length = self.get_seq_length()
        stays = min(tokens_to_remove, length) if tokens_to_remove > 0 else length + tokens_to_remove
        if self._both and stays < length:
            self.keys, self.values = (rows.resize(max(stays, 0)) for rows in self._both)

    def reset(self) -> None:
        """No token is left, and no memory."""
        self.crop(-self.get_seq_length())

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        if self.get_seq_length() == 0:
            return
        if len(beam_idx) != self.keys.shape[0]:
            return self.batch_select_indices(beam_idx)
        for rows in self._both:
            rows.reorder(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        if self.get_seq_length() > 0:
            all_of_them = torch.arange(self.keys.shape[0], device=self.device)
            self.batch_select_indices(all_of_them.repeat_interleave(repeats))

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        if self.get_seq_length() > 0:
            order = torch.arange(self.keys.shape[0], device=self.device)[indices]
            self.keys = self.values = None  # so that one layer at most is there twice
            try:
                self._both = tuple(rows.of_others(order) for rows in self._both)
            finally:
                self._show()

    def offload(self) -> None:
        raise ValueError("an ElasticCache stays on its GPU: DynamicCache(offloading=True) does not")

    prefetch = offload


def _layer(kind: str, given: dict[str, Any], max_length: int, unit: Any) -> Any:
    if kind == "full_attention":
        return ElasticLayer(max_length, unit)
    if kind in _SLIDING:
        return DynamicSlidingWindowLayer(sliding_window=given["sliding_window"])
    raise ValueError(
        f"ElasticCache has no layers of {kind}, but of full attention: use DynamicCache"
    )


class ElasticCache(Cache):  # type: ignore[misc]
    """Keys and values that grow in place, for `generate(past_key_values=...)` and `forward`.

    Beside DynamicCache, which copies all of them at each token and needs twice the memory at that
    moment, and StaticCache, which holds the longest sequence from the beginning. Batches, beams,
    crops, several calls of `generate` and copies (`copy.deepcopy`, for a prompt that is continued
    in several ways) go. Layers with a sliding window are DynamicCache's own:
    they hold no more than the window, and are copied as there. Other kinds of layers, and
    offloading, are refused. Compiled models see a cache that is not compileable, as DynamicCache.
    Tokens are written in place, so that a backward pass goes through one call of the model alone.

    Args:
        config: the model's.
        max_length: tokens that there can ever be, prompt and all; None: max_position_embeddings.
            It costs addresses, and no memory.
        unit: bytes that are committed at once for the keys, or the values, of a layer; None: as
            `ductile_gpu.torch.elastic`.

    Raises:
        ValueError: a layer of another kind.
        In `update`: what `Elastic.commit` raises; this layer and those behind it are as they were.
    """

    def __init__(
        self,
        config: Any,
        max_length: Optional[int] = None,
        unit: Union[int, str, None] = None,
    ) -> None:
        text = config.get_text_config(decoder=True)
        kinds, given = get_layer_types_and_kwargs(text)
        most = text.max_position_embeddings if max_length is None else max_length
        # what newer versions say of each layer, older ones say once of all
        of_each = given if isinstance(given, list) else [given] * len(kinds)
        super().__init__(
            layers=[_layer(kind, said, most, unit) for kind, said in zip(kinds, of_each)]
        )
