"""The examples that users of the caches know, with the import changed and nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from kvik import PagedKVCache, TailOwnedKVCache, VllmMetalPagedKVCache


def zeros(num_rows: int) -> np.ndarray:
    return np.zeros((1, 2, num_rows, 64), np.float32)


def test_construct_with_defaults():
    cache = TailOwnedKVCache()
    assert (cache.step, cache.mode, cache.offset) == (256, "contiguous_eval", 0)
    assert cache.empty() and cache.state == (None, None) and cache.nbytes == 0
    same = TailOwnedKVCache(keys=None, values=None, step=256, offset=0, mode="contiguous_eval")
    assert same.meta_state == cache.meta_state


def test_one_update_is_counted():
    cache = TailOwnedKVCache()
    keys, values = cache.update_and_fetch(zeros(1), zeros(1))
    assert keys.shape == values.shape == (1, 2, 1, 64)
    stats = cache.tail_owner_stats()
    assert list(stats)[:5] == ["mode", "updates", "arrays", "bytes", "time_s"]
    assert stats["mode"] == "contiguous_eval"
    assert (stats["updates"], stats["arrays"]) == (1, 2)
    assert stats["bytes"] == 2 * 2 * 64 * 4
    assert stats["time_s"] > 0
    assert cache.nbytes == 256 * stats["bytes"] and not cache.empty()


def test_from_cache_keeps_rows_and_offset():
    source = TailOwnedKVCache()
    source.update_and_fetch(zeros(3), zeros(3))
    cache = TailOwnedKVCache.from_cache(source)
    assert cache.offset == 3 and cache.state[0].shape == (1, 2, 3, 64)


def test_make_mask_of_ten_queries_and_keys():
    mask = TailOwnedKVCache().make_mask(query_len=10, key_len=10, dtype=bool)
    np.testing.assert_array_equal(mask, np.tri(10, dtype=bool))


def test_meta_state_restores_after_state():
    cache = TailOwnedKVCache()
    cache.update_and_fetch(zeros(128), zeros(128))
    assert cache.meta_state == ("256", "128", "contiguous_eval")
    restored = TailOwnedKVCache()
    restored.state = cache.state
    restored.meta_state = cache.meta_state
    assert restored.meta_state == cache.meta_state and restored.offset == 128


class ToyModel:
    """One layer: embeds, writes keys and values to the cache, attends."""

    def __init__(self) -> None:
        random = np.random.default_rng(0)
        self.embed = random.standard_normal((32, 64), np.float32)
        self.project = [random.standard_normal((64, 64), np.float32) / 8 for _ in range(3)]

    def __call__(self, input_ids, attention_mask=None, cache=None):
        hidden = self.embed[np.asarray(input_ids)]
        batch, q_len, _ = hidden.shape
        q, k, v = (
            (hidden @ w).reshape(batch, q_len, 2, 32).transpose(0, 2, 1, 3) for w in self.project
        )
        cache.update_without_fetch(k, v)
        out = cache.paged_attention(q, 32**-0.5, mask=attention_mask)
        return out.transpose(0, 2, 1, 3).reshape(batch, q_len, 64) + hidden


@pytest.mark.parametrize("turboquant_config", [None, {"k_quant": "q8_0", "v_quant": "q3_0"}])
@pytest.mark.parametrize("kv_quant_config", [None, {"dtype": "bf16"}])
def test_a_model_calls_the_paged_cache(turboquant_config, kv_quant_config):
    configs = {"turboquant_config": turboquant_config, "kv_quant_config": kv_quant_config}
    paged_cache = VllmMetalPagedKVCache(block_size=16, num_blocks=1024, **configs)
    assert isinstance(paged_cache, PagedKVCache)
    model = ToyModel()
    input_ids = [[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2]]
    mask = paged_cache.make_mask(len(input_ids[0]))
    outputs = model(input_ids, attention_mask=mask, cache=paged_cache)
    one = VllmMetalPagedKVCache(**configs)
    steps = [model([[t]], attention_mask=one.make_mask(1), cache=one) for t in input_ids[0]]
    # Rows that differ in the last bit, as those of other matrix shapes do, may round to other integers
    # in the kernels of packed rows.
    packed = any(config is not None for config in (turboquant_config, kv_quant_config))
    np.testing.assert_allclose(outputs, np.concatenate(steps, axis=1), atol=1e-4 if packed else 1e-5)
    stats = paged_cache.paged_stats()
    assert stats["allocated_blocks"] == 2 and stats["paged_attention_calls"] == 1
    assert one.paged_stats()["paged_attention_calls"] == 17
