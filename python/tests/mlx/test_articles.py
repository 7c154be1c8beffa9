"""The examples that users of the caches know, under MLX, with the import changed and nothing
else."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn
import pytest
from kvik.mlx import PagedKVCache, TailOwnedKVCache, VllmMetalPagedKVCache

pytestmark = pytest.mark.usefixtures("appends")


def zeros(num_rows):
    return mx.zeros((1, 2, num_rows, 64))


def test_construct_with_defaults():
    cache = TailOwnedKVCache()
    same = TailOwnedKVCache(keys=None, values=None, step=256, offset=0, mode="contiguous_eval")
    assert cache.meta_state == same.meta_state == ("256", "0", "contiguous_eval")
    assert cache.empty()
    assert cache.nbytes == 0


def test_one_update_is_counted():
    cache = TailOwnedKVCache()
    keys, values = cache.update_and_fetch(zeros(1), zeros(1))
    assert keys.shape == values.shape == (1, 2, 1, 64)
    stats = cache.tail_owner_stats()
    assert list(stats)[:5] == ["mode", "updates", "arrays", "bytes", "time_s"]
    assert (stats["mode"], stats["updates"], stats["arrays"]) == ("contiguous_eval", 1, 2)
    assert stats["bytes"] == 2 * 2 * 64 * 4
    assert stats["time_s"] > 0
    assert not cache.empty() and cache.nbytes == 256 * 2 * 2 * 64 * 4


def test_from_cache():
    source = TailOwnedKVCache()
    source.update_and_fetch(zeros(3), zeros(3))
    cache = TailOwnedKVCache.from_cache(source)
    assert cache.offset == 3 and cache.state[0].shape == (1, 2, 3, 64)


def test_make_mask():
    mask = TailOwnedKVCache().make_mask(query_len=10, key_len=10, dtype=bool)
    assert mask.dtype == mx.bool_ and mx.array_equal(mask, mx.tri(10, dtype=mx.int32) == 1)


def test_meta_state_restores_after_state():
    cache = TailOwnedKVCache()
    cache.update_and_fetch(zeros(128), zeros(128))
    assert cache.meta_state == ("256", "128", "contiguous_eval")
    restored = TailOwnedKVCache()
    restored.state = cache.state
    restored.meta_state = cache.meta_state
    assert restored.meta_state == cache.meta_state and restored.offset == 128


class ToyModel(nn.Module):
    """One layer that calls the cache as a model of mlx-lm does."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(32, 64)
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(64, 64) for _ in range(3))

    def __call__(self, input_ids, attention_mask=None, cache=None):
        hidden = self.embed(input_ids)
        batch, length, _ = hidden.shape
        q, k, v = (
            project(hidden).reshape(batch, length, 2, 32).transpose(0, 2, 1, 3)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        cache.update_and_fetch(k, v)
        out = cache.paged_attention(q, scale=32**-0.5, mask=attention_mask)
        return hidden + out.transpose(0, 2, 1, 3).reshape(batch, length, 64)


def test_a_model_calls_the_paged_cache():
    paged_cache = VllmMetalPagedKVCache(block_size=16, num_blocks=1024)
    assert isinstance(paged_cache, PagedKVCache)
    model = ToyModel()
    input_ids = mx.array([[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2]])
    mask = paged_cache.make_mask(input_ids.shape[1])
    outputs = model(input_ids, attention_mask=mask, cache=paged_cache)
    one = VllmMetalPagedKVCache()
    steps = [
        model(input_ids[:, i : i + 1], one.make_mask(1), one) for i in range(input_ids.shape[1])
    ]
    assert mx.allclose(outputs, mx.concatenate(steps, axis=1), atol=1e-5)
    stats = paged_cache.paged_stats()
    assert stats["allocated_blocks"] == 2
    assert stats["paged_attention_calls"] == 1


@pytest.mark.parametrize(
    "option",
    [
        {"turboquant_config": {"k_quant": "q8_0", "v_quant": "q3_0"}},
        {"kv_quant_config": {"dtype": "bf16"}},
    ],
)
def test_the_low_bit_examples_store_what_they_say(option):
    cache = PagedKVCache(**option)
    rows = mx.random.normal((1, 2, 20, 64))
    keys, _ = cache.update_and_fetch(rows, rows)
    assert mx.allclose(keys, rows, atol=0.1)
    stats = cache.paged_stats()
    assert stats["turboquant"] == cache.turboquant == ("turboquant_config" in option)
    assert stats["kv_quant"] == cache.kv_quant == ("kv_quant_config" in option)
