"""What the paged cache has beyond the others: blocks, growth, pages, attention, statistics."""

from __future__ import annotations

import math
import subprocess
import sys
import warnings

import kvik
import ml_dtypes
import numpy as np
import pytest
from golden import bell
from rows import holds, make_rows, same

INF = math.inf


def attention(q, k, v, scale, visible):
    """Softmax attention in float64; visible [q_len, T] or broadcastable to [B, H, q_len, T]."""
    q, k, v = (np.asarray(a, np.float64) for a in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    scores = np.where(visible, scale * (q @ k.transpose(0, 1, 3, 2)), -INF)
    top = scores.max(axis=-1, keepdims=True)
    weights = np.exp(scores - np.where(np.isfinite(top), top, 0))
    total = weights.sum(axis=-1, keepdims=True)
    return weights @ v / np.where(total == 0, 1, total)


def causal(q_len, kv_len, window=None):
    t, p = np.arange(kv_len), np.arange(kv_len - q_len, kv_len)[:, None]
    return (t <= p) & (t > p - (window or kv_len + 1))


def filled(num_rows=70, batch=2, heads=2, head_dim_k=32, head_dim_v=16, **options):
    cache = kvik.PagedKVCache(**{"num_blocks": 8, **options})
    rows = make_rows(
        num_rows, batch=batch, heads=heads, head_dim_k=head_dim_k, head_dim_v=head_dim_v
    )
    cache.update_without_fetch(*rows, phase="prefill")
    return cache, rows


def queries(q_len, batch=2, heads=6, head_dim=32):
    return bell(77, (batch, heads, q_len, head_dim))


def test_nothing_is_allocated_before_the_first_write():
    cache = kvik.PagedKVCache()
    assert (cache.block_size, cache.num_blocks, cache.capacity) == (16, 1024, 16384)
    assert cache.key_cache is None and cache.value_cache is None
    assert cache.export_pages() == (None, None)
    assert cache.nbytes == 0 and cache.allocated_blocks == 0 and cache.empty()
    assert kvik.VllmMetalPagedKVCache is kvik.PagedKVCache


def test_a_full_cache_that_may_not_grow_refuses_and_changes_nothing():
    cache = kvik.PagedKVCache(block_size=4, num_blocks=2)
    rows = make_rows(7)
    cache.update_without_fetch(*rows)
    with pytest.raises(kvik.OutOfPagesError, match="capacity exceeded.*9.*8") as error:
        cache.update_without_fetch(*make_rows(2, seed=2))
    assert isinstance(error.value, RuntimeError)
    assert holds(cache, [rows])
    cache.update_without_fetch(*make_rows(1, seed=2))
    assert cache.offset == 8


def test_growth_goes_up_to_the_context_window_and_no_further():
    cache = kvik.PagedKVCache(block_size=4, num_blocks=1, dynamic=True, context_window=10)
    for seed in range(10):
        cache.update_without_fetch(*make_rows(1, seed=seed))
    assert cache.num_blocks == 3 and cache.paged_stats()["grow_events"] == 2
    with pytest.raises(kvik.OutOfPagesError, match="need 11 tokens, the context window has 10"):
        cache.update_without_fetch(*make_rows(1))
    assert holds(cache, [make_rows(1, seed=seed) for seed in range(10)])


def test_a_live_cache_takes_new_options():
    cache = kvik.PagedKVCache(block_size=4, num_blocks=1)
    rows = make_rows(4)
    cache.update_without_fetch(*rows)
    cache.reconfigure(dynamic=True)
    cache.update_without_fetch(*make_rows(4, seed=2))
    assert holds(cache, [rows, make_rows(4, seed=2)])
    with pytest.raises(ValueError, match="block"):
        cache.reconfigure(block_size=8)
    with pytest.raises(TypeError, match='no option "blocksize"'):
        cache.reconfigure(blocksize=8)


def test_meta_state_beyond_the_capacity_is_refused():
    cache, _ = filled(block_size=16, num_blocks=5)
    with pytest.raises(ValueError, match="exceeds page capacity"):
        cache.meta_state = ("16", "4096", "100")
    cache.meta_state = ("16", "4096", "50")
    assert cache.meta_state == ("16", "5", "50")


@pytest.mark.parametrize("block_size", [1, 3, 16])
def test_pages_go_out_and_in(block_size):
    cache, rows = filled(num_rows=20, batch=1, block_size=block_size, num_blocks=20)
    keys, values = cache.export_pages()
    assert keys.shape == (20, block_size, 2, 32) and values.shape == (20, block_size, 2, 16)
    flat = keys.reshape(-1, 2, 32).transpose(1, 0, 2)[:, :20]
    assert same(flat[None], rows[0])
    assert same(cache.key_cache, keys) and same(cache.value_cache, values)
    other = kvik.PagedKVCache(block_size=block_size, num_blocks=20)
    order = np.random.default_rng(1).permutation(20)
    place = np.argsort(order).astype(int).tolist()[: -(-20 // block_size)]
    other.import_pages(keys[order], values[order], place, 20)
    assert holds(other, [rows])
    with pytest.raises(ValueError):
        other.import_pages(keys, values, [99] * len(place), 20)
    assert holds(other, [rows])


def test_forks_share_pages():
    cache, rows = filled(num_rows=40, batch=1)
    other = cache.fork()
    assert cache.paged_stats()["shared_blocks"] == 3
    assert other.block_table() == cache.block_table() == [0, 1, 2]
    other.update_without_fetch(*make_rows(1, seed=2, heads=2, head_dim_k=32, head_dim_v=16))
    assert other.paged_stats()["copy_on_write_copies"] == 1
    assert other.block_table()[:2] == [0, 1] and other.block_table()[2] != 2
    with pytest.raises(IndexError):
        cache.block_table(1)


@pytest.mark.parametrize("mask", [None, "causal"])
@pytest.mark.parametrize("q_len", [1, 5, 70])
def test_attention_is_that_of_the_formula(mask, q_len):
    cache, (k, v) = filled()
    q = queries(q_len)
    out = cache.paged_attention(q, 0.25, mask=mask, phase="prefill")
    assert out.dtype == np.float32 and out.flags.writeable
    np.testing.assert_allclose(out, attention(q, k, v, 0.25, causal(q_len, 70)), atol=4e-6)


def test_the_scale_is_one_over_the_root_of_the_head_dim_unless_given():
    cache, _ = filled()
    q = queries(3)
    assert same(cache.paged_attention(q), cache.paged_attention(q, 1 / math.sqrt(32)))


def test_a_full_mask_hides_nothing():
    cache, (k, v) = filled()
    q = queries(4)
    np.testing.assert_allclose(
        cache.paged_attention(q, 0.25, mask="full"), attention(q, k, v, 0.25, True), atol=4e-6
    )


def test_a_window_counts_from_each_query():
    cache, (k, v) = filled()
    q = queries(6)
    out = cache.paged_attention(q, 0.25, 9)
    np.testing.assert_allclose(out, attention(q, k, v, 0.25, causal(6, 70, 9)), atol=4e-6)
    assert same(cache.paged_attention(q, 0.25, sliding_window=-1), cache.paged_attention(q, 0.25))


@pytest.mark.parametrize(
    "shape", [(5, 70), (1, 1, 5, 70), (2, 6, 5, 70), (6, 5, 70), (2, 1, 1, 70)]
)
@pytest.mark.parametrize("dtype", [np.bool_, np.float32, np.float16, ml_dtypes.bfloat16])
def test_mask_arrays(shape, dtype):
    cache, (k, v) = filled()
    q = queries(5)
    visible = np.random.default_rng(3).random(shape) < 0.6
    visible[..., 0] = True
    mask = visible if dtype == np.bool_ else np.where(visible, 0, -INF).astype(dtype)
    out = cache.paged_attention(q, 0.25, mask=mask)
    np.testing.assert_allclose(out, attention(q, k, v, 0.25, visible), atol=4e-6)


def test_sinks_and_softcap():
    cache, (k, v) = filled(head_dim_v=16)
    q = queries(3)
    sinks = np.linspace(-2, 3, 6).astype(np.float32)
    out = cache.paged_attention(q, 0.25, mask="full", sinks=sinks, softcap=5.0)
    s = 0.25 * np.asarray(q, np.float64) @ np.repeat(k, 3, axis=1).transpose(0, 1, 3, 2)
    e = np.exp(5 * np.tanh(s / 5))
    want = e @ np.repeat(v, 3, axis=1) / (e.sum(-1, keepdims=True) + np.exp(sinks)[:, None, None])
    np.testing.assert_allclose(out, want, atol=4e-6)
    with pytest.raises(ValueError, match="sink"):
        cache.paged_attention(q, sinks=sinks[:4])


def test_attention_of_bf16_comes_back_as_bf16_or_in_the_dtype_of_out():
    bf16 = ml_dtypes.bfloat16
    cache = kvik.PagedKVCache()
    k, v = make_rows(9, dtype=bf16)
    cache.update_without_fetch(k, v)
    q = bell(5, (1, 4, 2, 8)).astype(bf16)
    out = np.empty((1, 4, 2, 8), np.float32)
    assert cache.paged_attention(q, out=out) is out
    got = cache.paged_attention(q)
    assert got.dtype == bf16 and same(got, out.astype(bf16))
    own = cache.paged_attention(kvik.BFloat16Array(q.view(np.uint16)))
    assert isinstance(own, kvik.BFloat16Array) and same(own, got)
    rounded = np.zeros((1, 4, 2, 8), bf16)
    cache.paged_attention(q, out=rounded)
    assert same(rounded, got)


def test_both_routes_give_the_same_bits():
    cache, _ = filled()
    q = queries(5)
    paged = cache.paged_attention(q, impl_override="vllm_metal")
    cache.state = cache.state
    assert same(cache.paged_attention(q, impl_override="sdpa_gather"), paged)
    with pytest.raises(ValueError, match="attention implementation"):
        cache.paged_attention(q, impl_override="nonsense")


def test_what_paged_attention_declines_is_none_and_counted():
    cache = kvik.PagedKVCache(max_q_len=4)
    q = bell(1, (1, 4, 5, 8))
    assert cache.paged_attention_last_bailout is None
    assert cache.paged_attention(q, phase="ar_decode") is None
    assert cache.paged_attention_last_bailout["reason"] == "empty_cache"
    cache.update_without_fetch(*make_rows(9))
    assert cache.paged_attention(q, phase="prefill") is None
    bailout = cache.paged_attention_last_bailout
    assert (bailout["phase"], bailout["reason"]) == ("prefill", "q_len_gt_max")
    assert (bailout["q_len"], bailout["max_q_len"], bailout["offset"]) == (5, 4, 9)
    adds = np.full((5, 9), 0.5, np.float32)
    assert cache.paged_attention(q, mask=adds) is None
    counts = cache.paged_stats()["paged_attention_bailouts_by_phase_reason"]
    assert counts == {
        "ar_decode:empty_cache": 1,
        "prefill:q_len_gt_max": 1,
        "unknown:unsupported_mask": 1,
    }


def test_attend_serves_a_mask_that_adds_numbers_counted_and_warned_of():
    cache, (k, v) = filled()
    q = queries(5)
    bias = bell(3, (6, 5, 70))
    bias[:, ~causal(5, 70)] = -INF
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", kvik.FallbackWarning)
        out = cache.attend(q, 0.25, mask=bias, phase="prefill")
    scores = 0.25 * np.asarray(q, np.float64) @ np.repeat(k, 3, axis=1).transpose(0, 1, 3, 2)
    weights = np.exp(scores + bias)
    want = weights @ np.repeat(v, 3, axis=1) / weights.sum(-1, keepdims=True)
    np.testing.assert_allclose(out, want, atol=1e-6)
    assert cache.paged_stats()["prefill_dense_fallback_calls"] == 1
    strict, _ = filled(forbid_dense_fallback=True)
    with pytest.raises(kvik.UnsupportedError, match="forbidden"):
        strict.attend(q, mask=bias)


def test_attend_falls_back_counted_and_warned_of_or_not_at_all():
    cache, (k, v) = filled(max_q_len=4)
    q = queries(5)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        out = cache.attend(q, 0.25, phase="prefill")
        cache.attend(q, 0.25, phase="prefill")
        other, _ = filled(max_q_len=3)
        other.attend(q, 0.25)
    np.testing.assert_allclose(out, attention(q, k, v, 0.25, causal(5, 70)), atol=4e-6)
    texts = [str(w.message) for w in caught if w.category is kvik.FallbackWarning]
    assert len(texts) <= 1, "once per process and kind"
    assert cache.paged_stats()["prefill_dense_fallback_calls"] == 2
    strict, _ = filled(max_q_len=4, forbid_dense_fallback=True)
    with pytest.raises(kvik.UnsupportedError, match="forbidden"):
        strict.attend(q)


def test_a_fallback_warning_can_be_made_an_error(tmp_path):
    code = (
        "import warnings, numpy as np, kvik\n"
        "warnings.simplefilter('error', kvik.FallbackWarning)\n"
        "c = kvik.PagedKVCache(max_q_len=1)\n"
        "r = np.zeros((1, 1, 3, 8), np.float32)\n"
        "c.update_without_fetch(r, r)\n"
        "c.attend(r)\n"
    )
    run = [sys.executable, "-c", code]
    result = subprocess.run(run, capture_output=True, text=True, cwd=tmp_path)
    assert result.returncode == 1
    assert "FallbackWarning: q_len 3 exceeds max_q_len 1" in result.stderr


def test_active_arrays_can_be_forbidden():
    cache, _ = filled(forbid_active_arrays=True, partition_threshold=60)
    with pytest.raises(kvik.UnsupportedError, match="materialize active K/V arrays"):
        cache.state  # noqa: B018


def test_statistics_count_what_happened():
    cache, _ = filled(num_rows=33, batch=1)
    cache.paged_attention(queries(1, batch=1), phase="ar_decode")
    stats = cache.paged_stats()
    assert stats["mode"] == "vllm_metal_paged"
    assert (stats["updates"], stats["paged_attention_calls"], stats["offset"]) == (1, 1, 33)
    assert (stats["allocated_blocks"], stats["num_blocks"], stats["block_size"]) == (3, 8, 16)
    assert stats["route"] == "paged" and stats["kv_quant_mode"] is None
    assert stats["bytes"] == cache.nbytes
    assert stats["instruction_set"] == kvik.cpu_info()["backend"]


def test_options_of_the_wrong_type_are_named():
    with pytest.raises(TypeError, match="block_size must be an int, not str"):
        kvik.PagedKVCache(block_size="16")
    with pytest.raises(TypeError, match='no option "blocks"'):
        kvik.PagedKVCache(blocks=3)
