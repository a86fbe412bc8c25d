# SPDX-License-Identifier: Apache-2.0
"""The cache for transformers, on the CPU beside DynamicCache: what it gives a model is the same."""

from __future__ import annotations

import copy
import importlib
import sys

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from ductile_gpu import transformers as ours


class RowsOfTheHost:
    """An ElasticTensor without a GPU, which says when it was asked for too much."""

    def __init__(self, row_shape, max_rows, dtype):
        self._all = torch.full((max_rows, *row_shape), float("nan"), dtype=dtype)
        self.max_rows, self.rows = max_rows, 0

    def resize(self, rows):
        assert 0 <= rows <= self.max_rows
        self._all[rows:] = float("nan")  # what went is gone
        self.rows = rows

    def view(self):
        return self._all[: self.rows]

    @property
    def tensor(self):
        return self._all


@pytest.fixture(autouse=True)
def host(monkeypatch):
    made = []

    def make(row_shape, max_rows, dtype, *, unit, device):
        made.append(RowsOfTheHost(row_shape, max_rows, dtype))
        return made[-1]

    monkeypatch.setattr(ours, "elastic", make)
    monkeypatch.setattr(ours, "_refuse_other_than_cuda", lambda device: None)
    return made


def config(**given):
    return transformers.LlamaConfig(
        **{
            "vocab_size": 97,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 128,
            **given,
        }
    )


@pytest.fixture
def model():
    torch.manual_seed(3)
    return transformers.LlamaForCausalLM(config()).eval()


def prompt(batch=3, length=11):
    return torch.randint(0, 97, (batch, length), generator=torch.Generator().manual_seed(5))


def generated(model, cache, **how):
    how = {"max_new_tokens": 20, "do_sample": False, "pad_token_id": 0, **how}
    return model.generate(prompt(), past_key_values=cache, **how).tolist()


@pytest.mark.parametrize("how", [{}, {"num_beams": 3}, {"prefill_chunk_size": 4}])
def test_a_model_generates_the_same_tokens_as_with_a_dynamic_cache(model, how):
    theirs = generated(model, transformers.DynamicCache(config=model.config), **how)
    assert generated(model, ours.ElasticCache(model.config), **how) == theirs


def test_a_second_call_goes_on_where_the_first_one_ended(model):
    caches = [ours.ElasticCache(model.config), transformers.DynamicCache(config=model.config)]
    ends = []
    for cache in caches:
        first = torch.tensor(generated(model, cache, max_new_tokens=8))
        more = torch.cat([first, prompt(length=3)], 1)
        found = model.generate(
            more, past_key_values=cache, max_new_tokens=8, do_sample=False, pad_token_id=0
        )
        ends.append(found.tolist())
    assert ends[0] == ends[1]


def states(n, batch=3, seed=0):
    made = torch.Generator().manual_seed(seed)
    return torch.randn(batch, 2, n, 8, generator=made), torch.randn(batch, 2, n, 8, generator=made)


def both():
    return ours.ElasticLayer(64), transformers.cache_utils.DynamicLayer()


def assert_same(one, other):
    assert one.get_seq_length() == other.get_seq_length()
    torch.testing.assert_close(one.keys, other.keys)
    torch.testing.assert_close(one.values, other.values)


def test_tokens_before_are_neither_copied_nor_moved():
    layer = ours.ElasticLayer(64)
    first, _ = layer.update(*states(5))
    place = first.data_ptr()
    for n in range(20):
        keys, _ = layer.update(*states(1, seed=n))
        assert keys.data_ptr() == place
        assert keys.shape == (3, 2, 6 + n, 8)


@pytest.mark.parametrize("crop", [-3, -9, 0])
def test_a_crop_is_dynamic_layers(crop):
    layers = both()
    for layer in layers:
        layer.update(*states(9))
        layer.crop(crop)
        layer.update(*states(2, seed=1))
    assert_same(*layers)


@pytest.mark.parametrize(("crop", "stay"), [(4, 4), (100, 9)])
def test_a_positive_crop_is_the_length_that_stays(crop, stay):
    layer = ours.ElasticLayer(64)
    keys, _ = states(9)
    layer.update(keys, keys)
    layer.crop(crop)
    assert torch.equal(layer.keys, keys[:, :, :stay])
    assert layer.get_seq_length() == stay


def test_beams_batches_and_selections_are_dynamic_layers():
    layers = both()
    for layer in layers:
        layer.update(*states(9))
        layer.reorder_cache(torch.tensor([2, 0, 2]))
        layer.batch_repeat_interleave(2)
        layer.update(*states(1, batch=6, seed=1))
        layer.batch_select_indices(torch.tensor([5, 1]))
        layer.update(*states(1, batch=2, seed=2))
    assert_same(*layers)


class OutOfMemory(Exception):
    pass


def test_where_values_find_no_memory_keys_are_as_long_as_they_are(host):
    layer = ours.ElasticLayer(64)
    layer.update(*states(5))
    keys, values = host
    resize = values.resize

    def refuse(rows):
        if rows > values.rows:
            raise OutOfMemory
        resize(rows)

    values.resize = refuse
    with pytest.raises(OutOfMemory):
        layer.update(*states(3, seed=1))
    assert (keys.rows, values.rows, layer.get_seq_length()) == (5, 5, 5)
    values.resize = resize
    assert [one.shape[2] for one in layer.update(*states(3, seed=1))] == [8, 8]
    torch.testing.assert_close(layer.values[:, :, 5:], states(3, seed=1)[1])


def test_a_selection_that_finds_no_memory_leaves_the_layer_as_it_was(host, monkeypatch):
    layer = ours.ElasticLayer(64)
    layer.update(*states(5))

    def refuse(*given, **more):
        raise OutOfMemory

    monkeypatch.setattr(ours, "elastic", refuse)
    with pytest.raises(OutOfMemory):
        layer.batch_select_indices(torch.tensor([0, 1]))
    torch.testing.assert_close(layer.keys, states(5)[0])
    torch.testing.assert_close(layer.values, states(5)[1])


def test_a_reset_leaves_nothing(host):
    layer = ours.ElasticLayer(64)
    layer.update(*states(9))
    layer.reset()
    assert [rows.rows for rows in host] == [0, 0]
    assert layer.update(*states(2, seed=1))[0].shape == (3, 2, 2, 8)


@pytest.mark.parametrize("batch", [1, 5])
def test_other_sequences_follow_a_reset(batch):
    layer = ours.ElasticLayer(64)
    layer.update(*states(9))
    layer.reset()
    keys, values = states(4, batch=batch, seed=1)
    assert torch.equal(layer.update(keys, values)[0], keys)
    assert torch.equal(layer.values, values)


@pytest.mark.parametrize("batch", [1, 5])
def test_tokens_of_other_sequences_are_refused_as_dynamic_layers_are(batch):
    for layer in both():
        layer.update(*states(5))
        with pytest.raises((RuntimeError, ValueError), match=r"Sizes|sequences"):
            layer.update(*states(1, batch=batch, seed=1))
        assert layer.get_seq_length() == 5


def test_a_copy_has_ranges_of_its_own_and_the_same_tokens(host):
    layer = ours.ElasticLayer(64)
    layer.update(*states(5))
    copied = copy.deepcopy(layer)
    assert [rows.rows for rows in host] == [5, 5, 5, 5]
    assert_same(copied, layer)
    copied.update(*states(2, seed=1))
    layer.update(*states(3, seed=2))
    assert (copied.get_seq_length(), layer.get_seq_length()) == (7, 8)
    torch.testing.assert_close(copied.keys[:, :, 5:], states(2, seed=1)[0])
    torch.testing.assert_close(layer.keys[:, :, 5:], states(3, seed=2)[0])


def test_a_prompt_is_continued_several_times_from_copies_of_its_cache(model):
    with torch.no_grad():
        caches = [ours.ElasticCache(model.config), transformers.DynamicCache(config=model.config)]
        for cache in caches:
            model(prompt(), past_key_values=cache)
    for last in (3, 4):
        more = torch.cat([prompt(), torch.full((3, 1), last)], 1)
        ends = [
            model.generate(
                more,
                past_key_values=copy.deepcopy(cache),
                max_new_tokens=8,
                do_sample=False,
                pad_token_id=0,
            ).tolist()
            for cache in caches
        ]
        assert ends[0] == ends[1]


def test_what_was_begun_in_inference_mode_goes_on_outside():
    layers = both()
    for layer in layers:
        with torch.inference_mode():
            layer.update(*states(5))
        layer.update(*states(1, seed=1))
    assert_same(*layers)


def test_more_tokens_than_addresses_are_refused_with_the_remedy():
    layer = ours.ElasticLayer(8)
    layer.update(*states(7))
    with pytest.raises(ValueError, match=r"9 tokens are more than the 8 .* max_length"):
        layer.update(*states(2))
    assert layer.get_seq_length() == 7


def test_layers_with_a_window_are_dynamic_caches_own():
    cache = ours.ElasticCache(
        transformers.MistralConfig(num_hidden_layers=2, sliding_window=16, head_dim=8)
    )
    assert cache.is_sliding == [True, True]


def test_other_layers_and_offloading_are_refused_with_a_sentence():
    with pytest.raises(ValueError, match=r"no layers of linear_attention.*DynamicCache"):
        ours.ElasticCache(
            config(layer_types=["full_attention", "linear_attention", "full_attention"])
        )
    with pytest.raises(ValueError, match="stays on its GPU"):
        ours.ElasticLayer(8).offload()


def test_memory_of_the_host_is_refused(monkeypatch):
    monkeypatch.undo()
    with pytest.raises(ValueError, match="for CUDA, not for cpu"):
        ours.ElasticLayer(8).update(*states(1))


def test_the_paged_cache_refuses_a_transformers_that_it_is_not_for(monkeypatch):
    theirs = "transformers.generation.continuous_batching.cache_manager"  # gone since 5.18
    monkeypatch.setitem(sys.modules, theirs, None)
    monkeypatch.delitem(sys.modules, "ductile_gpu.transformers_paged", raising=False)
    with pytest.raises(ImportError, match=rf"transformers 5\.17.*{transformers.__version__}"):
        importlib.import_module("ductile_gpu.transformers_paged")
