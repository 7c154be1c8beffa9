"""The contract of the paged cache on MLX arrays, and attention routed to its pages."""

from __future__ import annotations

import copy
import sys
import threading

import kvik
import kvik.mlx as kmlx
import mlx.core as mx
import mlx_lm.models.base as base
import mlx_lm.models.llama as llama
import pytest
from kvik.mlx import PagedKVCache, TailOwnedKVCache, routing
from mlx_lm.models.cache import KVCache, RotatingKVCache, make_prompt_cache
from mlx_rows import joined, random_rows, same

pytestmark = pytest.mark.usefixtures("appends")


@pytest.fixture(autouse=True)
def _unrouted():
    yield
    kmlx.uninstall()
    routing._warned.clear()


def make_model(seed=0, heads=4, kv_heads=2):
    mx.random.seed(seed)
    args = llama.ModelArgs("llama", 64, 3, 64, heads, 1e-5, 50, num_key_value_heads=kv_heads)
    model = llama.Model(args)
    mx.eval(model.parameters())
    return model


def greedy(model, prompt, cache, num_tokens=12):
    tokens, logits = [], model(mx.array([prompt]), cache=cache)
    for _ in range(num_tokens):
        tokens.append(mx.argmax(logits[0, -1]).item())
        logits = model(mx.array([[tokens[-1]]]), cache=cache)
    return tokens


def test_allocates_nothing_before_the_first_write():
    cache = PagedKVCache()
    assert (cache.block_size, cache.num_blocks, cache.offset, cache.nbytes) == (16, 1024, 0, 0)
    assert cache.empty() and cache.state == (None, None) and cache.key_cache is None


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
@pytest.mark.parametrize(("batch", "key_dim", "value_dim"), [(1, 64, 64), (3, 32, 16), (1, 48, 80)])
def test_fetches_all_rows_of_every_shape_and_dtype(dtype, batch, key_dim, value_dim):
    cache, keys, values = PagedKVCache(block_size=4), [], []
    for rows in (1, 6, 2, 1):
        keys.append(random_rows(rows, dim=key_dim, batch=batch, dtype=dtype))
        values.append(random_rows(rows, dim=value_dim, batch=batch, dtype=dtype))
        fetched = cache.update_and_fetch(keys[-1], values[-1])
        assert same(fetched[0], joined(keys)) and same(fetched[1], joined(values))
    assert cache.allocated_blocks == 3 * batch


def test_what_was_fetched_stays_whatever_the_cache_does_later():
    cache, parts, held = PagedKVCache(block_size=4), [], []
    for step in range(20):
        parts.append(random_rows(1 + step % 3))
        held.append((cache.update_and_fetch(parts[-1], parts[-1]), joined(parts)))
        if step % 5 == 4:
            kept = cache.offset - cache.trim(2)
            parts = [joined(parts)[:, :, :kept]]
    fork = copy.deepcopy(cache)
    cache.state = (None, None)
    for (keys, values), wanted in held:
        assert same(keys, wanted) and same(values, wanted)
    assert same(fork.keys, joined(parts))


def test_trim_takes_any_number():
    cache, rows = PagedKVCache(), random_rows(10)
    cache.update_and_fetch(rows, rows)
    assert (cache.trim(-5), cache.trim(0), cache.offset) == (0, 0, 10)
    assert (cache.trim(3), cache.trim(100), cache.offset) == (3, 7, 0)
    assert same(cache.update_and_fetch(rows[:, :, :2], rows[:, :, :2])[0], rows[:, :, :2])


def test_other_shapes_and_dtypes_are_refused_and_nothing_changes():
    cache, rows = PagedKVCache(), random_rows(3)
    cache.update_and_fetch(rows, rows)
    for other in (
        random_rows(1, heads=3),
        random_rows(1, dim=5),
        random_rows(1, batch=2),
        rows.astype(mx.float16),
    ):
        with pytest.raises(ValueError):
            cache.update_and_fetch(other, other)
    with pytest.raises(ValueError, match="dtype"):
        PagedKVCache().update_and_fetch(
            mx.ones((1, 1, 1, 4), mx.int32), mx.ones((1, 1, 1, 4), mx.int32)
        )
    assert cache.offset == 3 and same(cache.keys, rows)


def test_a_full_cache_refuses_and_nothing_changes():
    cache, rows = PagedKVCache(block_size=4, num_blocks=4), random_rows(14)
    cache.update_and_fetch(rows, rows)
    with pytest.raises(kvik.OutOfPagesError):
        cache.update_and_fetch(rows[:, :, :3], rows[:, :, :3])
    assert (cache.offset, cache.num_blocks) == (14, 4) and same(cache.keys, rows)
    cache.update_and_fetch(rows[:, :, :2], rows[:, :, :2])
    assert cache.offset == cache.capacity == 16


def test_a_dynamic_cache_grows_up_to_the_context_window():
    cache, rows = (
        PagedKVCache(block_size=4, num_blocks=1, dynamic=True, context_window=24),
        random_rows(10),
    )
    cache.update_and_fetch(rows, rows)
    cache.update_and_fetch(rows, rows)
    assert cache.offset == 20 and cache.paged_stats()["grow_events"] > 0
    with pytest.raises(kvik.OutOfPagesError):
        cache.update_and_fetch(rows, rows)
    assert cache.offset == 20 and same(cache.keys, joined([rows, rows]))


def test_state_and_meta_state_restore():
    cache, rows = PagedKVCache(block_size=4, num_blocks=8), random_rows(10)
    cache.update_and_fetch(rows, rows)
    restored = PagedKVCache.from_state(cache.state, cache.meta_state)
    assert tuple(restored.meta_state) == tuple(cache.meta_state) == ("4", "8", "10")
    assert same(restored.values, rows)
    restored.state = (rows[:, :, :3], rows[:, :, :3])
    assert restored.offset == 3
    with pytest.raises(ValueError):
        restored.meta_state = ("4", "8", "100")
    assert restored.offset == 3
    stock = KVCache()
    stock.update_and_fetch(rows, rows)
    assert same(PagedKVCache.from_state(stock.state).keys, rows)
    assert same(PagedKVCache.from_cache(stock).keys, rows)


def test_deep_copies_share_pages_and_go_on_apart():
    cache, rows, a, b = PagedKVCache(block_size=4), random_rows(10), random_rows(2), random_rows(2)
    cache.update_and_fetch(rows, rows)
    other = copy.deepcopy(cache)
    assert same(other.update_and_fetch(b, b)[0], joined([rows, b]))
    assert same(cache.update_and_fetch(a, a)[0], joined([rows, a]))
    assert same(other.keys, joined([rows, b]))


def test_keys_and_values_can_be_set():
    cache, rows, other = PagedKVCache(), random_rows(4), random_rows(4)
    cache.update_and_fetch(rows, rows)
    cache.keys = other
    assert same(cache.keys, other) and same(cache.values, rows)
    longer = random_rows(7)
    cache.keys, cache.values = longer, longer
    assert cache.offset == 7 and same(cache.values, longer)
    cache.keys = None
    assert cache.empty()


def test_two_threads_use_two_caches():
    shared, failed = random_rows(8), []
    base_cache = PagedKVCache(block_size=4)
    base_cache.update_and_fetch(shared, shared)

    def work(cache, seed):
        parts = [shared]
        for step in range(30):
            parts.append(random_rows(1 + step % 2, seed=seed * 1000 + step))
            if not same(cache.update_and_fetch(parts[-1], parts[-1])[0], joined(parts)):
                failed.append((seed, step))

    threads = [
        threading.Thread(target=work, args=(c, i))
        for i, c in enumerate([base_cache, base_cache.fork()])
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


MASKS = {
    "none": lambda q, k: None,
    "causal": lambda q, k: "causal",
    "bool": lambda q, k: mx.random.uniform(shape=(q, k)) > 0.3,
    "bool of heads": lambda q, k: mx.random.uniform(shape=(1, 4, q, k)) > 0.3,
    "one row": lambda q, k: mx.arange(k) % 3 != 1,
    "added": lambda q, k: mx.where(mx.random.uniform(shape=(q, k)) > 0.3, 0.0, -mx.inf),
    "lowest added": lambda q, k: mx.where(mx.arange(k) % 2 == 0, 0.0, mx.finfo(mx.float32).min)[
        None
    ],
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("q_len", [1, 5])
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_routed_attention_is_that_of_mlx(mask, q_len, dtype):
    mx.random.seed(3)
    kmlx.route()
    cache = PagedKVCache(block_size=4)
    rows = random_rows(20, dim=32, dtype=dtype)
    cache.update_and_fetch(rows[:, :, : 20 - q_len], rows[:, :, : 20 - q_len])
    keys, values = cache.update_and_fetch(rows[:, :, 20 - q_len :], rows[:, :, 20 - q_len :])
    queries, given = random_rows(q_len, heads=4, dim=32, dtype=dtype), MASKS[mask](q_len, 20)
    if isinstance(given, mx.array) and given.dtype == mx.float32:
        given = given.astype(dtype) if mask == "added" else given
    out = base.scaled_dot_product_attention(
        queries, keys, values, cache=cache, scale=0.2, mask=given
    )
    plain = [a.astype(mx.float32) for a in (queries, rows, rows)]
    wanted = mx.fast.scaled_dot_product_attention(*plain, scale=0.2, mask=given)
    assert out.dtype == dtype and mx.allclose(
        out, wanted, atol=1e-5 if dtype == mx.float32 else 2e-2
    )
    stats = cache.paged_stats()
    assert stats["paged_attention_calls"] == 1 and stats["active_array_calls"] == (
        0 if kept_later() else 2
    )


def kept_later():
    from kvik.mlx import snapshots

    return snapshots.append_extension() is not None


def test_sinks_reach_the_kernel():
    kmlx.route()
    cache, rows = PagedKVCache(), random_rows(6, dim=32)
    keys, values = cache.update_and_fetch(rows, rows)
    queries, sinks = random_rows(6, heads=4, dim=32), mx.array([0.5, -1.0, 2.0, 0.0])
    args = {"scale": 0.2, "mask": "causal", "sinks": sinks}
    out = base.scaled_dot_product_attention(queries, keys, values, cache=cache, **args)
    assert mx.allclose(
        out, mx.fast.scaled_dot_product_attention(queries, rows, rows, **args), atol=1e-5
    )
    assert cache.paged_stats()["paged_attention_calls"] == 1


def test_a_mask_that_adds_other_numbers_is_served_counted_and_told_once():
    kmlx.route()
    cache, rows = PagedKVCache(), random_rows(6, dim=32)
    keys, values = cache.update_and_fetch(rows, rows)
    queries, mask = random_rows(6, heads=4, dim=32), mx.random.normal((6, 6))
    with pytest.warns(kvik.FallbackWarning, match="unsupported_mask"):
        out = base.scaled_dot_product_attention(
            queries, keys, values, cache=cache, scale=0.2, mask=mask
        )
    assert mx.allclose(
        out,
        mx.fast.scaled_dot_product_attention(queries, rows, rows, scale=0.2, mask=mask),
        atol=1e-5,
    )
    stats = cache.paged_stats()
    assert stats["paged_attention_bailouts_by_phase_reason"] == {"prefill:unsupported_mask": 1}
    assert (stats["dense_fallback_calls"], stats["prefill_dense_fallback_calls"]) == (1, 1)


def test_keys_that_a_model_changed_are_attended_as_they_are():
    kmlx.route()
    cache, rows = PagedKVCache(), random_rows(6, dim=32)
    keys, values = cache.update_and_fetch(rows, rows)
    queries = random_rows(6, heads=4, dim=32)
    with pytest.warns(kvik.FallbackWarning, match="other keys or values"):
        out = base.scaled_dot_product_attention(
            queries, keys * 2, values, cache=cache, scale=0.2, mask="causal"
        )
    wanted = mx.fast.scaled_dot_product_attention(queries, rows * 2, rows, scale=0.2, mask="causal")
    assert mx.allclose(out, wanted, atol=1e-5)


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (8, 2), (4, 1)])
def test_a_model_gives_the_tokens_of_the_stock_cache(heads, kv_heads):
    model, prompt = make_model(heads=heads, kv_heads=kv_heads), [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]
    stock = make_prompt_cache(model)
    wanted = greedy(model, prompt, stock)
    cache = make_prompt_cache(model)
    report = kmlx.install(cache, block_size=4)
    assert (report["enabled"], report["entries"], report["skipped"], report["block_size"]) == (
        True,
        3,
        0,
        4,
    )
    assert report["mode"] == "vllm_metal_paged" and report["external_ops_required"] is False
    assert greedy(model, prompt, cache) == wanted
    for ours, theirs in zip(cache, stock, strict=True):
        stats = ours.paged_stats()
        assert stats["paged_attention_calls"] == 13 and stats["dense_fallback_calls"] == 0
        assert mx.allclose(ours.keys, theirs.keys[..., : theirs.offset, :], atol=1e-4)


def test_a_batch_of_equal_lengths_is_served_from_pages():
    model, tokens = make_model(), mx.array([[3, 1, 4], [1, 5, 9]])
    wanted = model(tokens, cache=make_prompt_cache(model))
    cache = make_prompt_cache(model)
    kmlx.install(cache)
    assert mx.allclose(model(tokens, cache=cache), wanted, atol=1e-4)


def test_installing_keeps_rows_and_uninstalling_gives_them_back():
    model, prompt = make_model(), [3, 1, 4, 1, 5]
    plain = make_prompt_cache(model)
    first = greedy(model, prompt, plain, 4)
    again = greedy(model, first, plain, 4)
    cache = make_prompt_cache(model)
    assert greedy(model, prompt, cache, 4) == first
    kmlx.install(cache)
    assert all(type(entry) is PagedKVCache and entry.offset == 9 for entry in cache)
    assert greedy(model, first, cache, 4) == again
    kmlx.uninstall(cache)
    assert all(type(entry) is KVCache and entry.offset == 17 for entry in cache)
    assert (
        not kmlx.is_routed()
        and llama.scaled_dot_product_attention is base.scaled_dot_product_attention
    )


def test_routing_reaches_every_loaded_module_and_later_ones_and_is_undone():
    original = base.scaled_dot_product_attention
    kmlx.route()
    assert (
        base.scaled_dot_product_attention is llama.scaled_dot_product_attention is routing._routed
    )
    sys.modules.pop("mlx_lm.models.olmo2", None)
    import mlx_lm.models.olmo2 as later

    assert later.scaled_dot_product_attention is routing._routed
    kmlx.route()
    kmlx.uninstall()
    for module in (base, llama, later):
        assert module.scaled_dot_product_attention is original


def test_other_caches_keep_mlx_lms_attention():
    model, prompt = make_model(), [3, 1, 4, 1, 5]
    wanted = model(mx.array([prompt]), cache=make_prompt_cache(model))
    kmlx.route()
    for make in (KVCache, TailOwnedKVCache):
        assert same(model(mx.array([prompt]), cache=[make() for _ in model.layers]), wanted)


def test_a_paged_cache_without_routing_is_correct_too():
    model, prompt = make_model(), [3, 1, 4, 1, 5]
    wanted = greedy(model, prompt, make_prompt_cache(model))
    cache = [PagedKVCache() for _ in model.layers]
    assert greedy(model, prompt, cache) == wanted
    assert cache[0].paged_stats()["paged_attention_calls"] == 0


def test_installers_skip_what_holds_no_rows_in_order():
    entries = [None, RotatingKVCache(max_size=8), KVCache(), TailOwnedKVCache(), object()]
    report = kmlx.install_vllm_metal_paged_attention_kv_cache(entries, block_size=4, num_blocks=8)
    assert (report["entries"], report["skipped"]) == (1, 4)
    assert [type(e).__name__ for e in entries[1:4]] == [
        "RotatingKVCache",
        "PagedKVCache",
        "TailOwnedKVCache",
    ]
    report = kmlx.install_tail_owned_attention_kv_cache(entries, mode="eval-only", step=8)
    assert report == {"enabled": True, "mode": "eval_only", "entries": 2, "skipped": 3, "step": 8}
    report = kmlx.install_block_owned_attention_kv_cache(entries, block_size=4)
    assert (report["entries"], report["skipped"]) == (0, 5)
    blocks = [KVCache(), kmlx.BlockOwnedKVCache(block_size=8)]
    assert kmlx.install_block_owned_attention_kv_cache(blocks, block_size=4)["entries"] == 2
    assert [entry.block_size for entry in blocks] == [4, 4]


def test_a_failed_install_changes_no_entry():
    rows = random_rows(30)
    entries = [KVCache(), KVCache()]
    entries[1].update_and_fetch(rows, rows)
    with pytest.raises(kvik.OutOfPagesError):
        kmlx.install(entries, block_size=4, num_blocks=2)
    assert [type(e) for e in entries] == [KVCache, KVCache] and not kmlx.is_routed()


def test_statistics_sum_over_the_layers():
    entries, rows = [TailOwnedKVCache(), KVCache(), PagedKVCache()], random_rows(3)
    for entry in entries:
        entry.update_and_fetch(rows, rows)
    total = kmlx.tail_owned_attention_kv_stats(entries)
    assert total["updates"] == 2 and total["time_s"] > 0
    assert kmlx.tail_owned_attention_kv_stats([KVCache()]) is None


def test_phases_name_the_counters():
    kmlx.route()
    cache, rows = PagedKVCache(max_q_len=1), random_rows(4, dim=32)
    keys, values = cache.update_and_fetch(rows, rows)
    with kmlx.phase("decode_verify"), pytest.warns(kvik.FallbackWarning, match="q_len_gt_max"):
        base.scaled_dot_product_attention(rows, keys, values, cache=cache, scale=0.2, mask="causal")
    stats = cache.paged_stats()
    assert stats["paged_attention_bailouts_by_phase_reason"] == {"decode_verify:q_len_gt_max": 1}
    assert stats["decode_dense_fallback_calls"] == 1
