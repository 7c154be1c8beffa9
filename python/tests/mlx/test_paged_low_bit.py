"""Low-bit storage through kvik.mlx: the codes of kvik's caches, in models of mlx-lm."""

from __future__ import annotations

import argparse
import copy

import kvik
import kvik.mlx as kmlx
import mlx.core as mx
import mlx_lm.models.llama as llama
import numpy as np
import pytest
from kvik.mlx import PagedKVCache
from mlx_lm.models.cache import make_prompt_cache
from mlx_rows import joined, random_rows, same

pytestmark = pytest.mark.usefixtures("appends")

CONFIGS = {
    "q8": ({"kv_quant_config": "q8"}, "q8:q8"),
    "q6": ({"kv_quant_config": {"mode": "q6"}}, "q6:q6"),
    "q4": ({"kv_quant_config": "q4"}, "q4:q4"),
    "bf16 mirror": ({"kv_quant_config": {"dtype": "bf16"}}, "q8:q8"),
    "turboquant": (
        {"turboquant_config": {"k_quant": "q8_0", "v_quant": "q3_0"}},
        "tqk_q8_0:tqv_q3_0",
    ),
    "turboquant int2": (
        {"turboquant_config": {"k_quant": "int2", "v_quant": "q2_0"}},
        "tqk_int2:tqv_q2_0",
    ),
    "any two": ({"kv_format": "tq8:tcq4"}, "tq8:tcq4"),
}
each_config = pytest.mark.parametrize(("options", "stored"), CONFIGS.values(), ids=CONFIGS)


@pytest.fixture(autouse=True)
def _unrouted():
    yield
    kmlx.uninstall()


def make_model(num_layers=3):
    """Heads and head dim of SmolLM2-135M."""
    mx.random.seed(3)
    args = llama.ModelArgs("llama", 576, num_layers, 128, 9, 1e-5, 97, num_key_value_heads=3)
    model = llama.Model(args)
    mx.eval(model.parameters())
    return model


def numpy_of(array):
    return np.array(array.astype(mx.float32))


class Spy:
    """Keeps what a cache was given and gave, in the place of its methods."""

    def __init__(self, cache):
        self.rows, self.calls = [], []
        update, attend = cache.update_without_fetch, cache.attend

        def update_and_keep(keys, values):
            self.rows.append((keys, values))
            update(keys, values)

        def attend_and_keep(queries, scale=None, mask=None, sinks=None, sliding_window=None):
            out = attend(queries, scale, mask, sinks, sliding_window)
            self.calls.append((len(self.rows), queries, scale, mask, out))
            return out

        cache.update_without_fetch, cache.attend = update_and_keep, attend_and_keep


@each_config
def test_a_model_stores_and_attends_as_kviks_own_cache_on_the_same_rows(options, stored):
    model = make_model()
    cache = make_prompt_cache(model)
    report = kmlx.install(cache, **options)
    assert report["entries"] == 3 and report["skipped"] == 0
    spies = [Spy(entry) for entry in cache]
    prompt = mx.array([[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4, 6]])
    logits = [model(prompt, cache=cache)]
    for token in (2, 6, 4):
        logits.append(model(mx.array([[token]]), cache=cache))
    mx.eval(logits)
    for entry, spy in zip(cache, spies, strict=True):
        own = kvik.PagedKVCache(**options)
        assert len(spy.calls) == len(spy.rows) == 4
        for at, queries, scale, mask, out in spy.calls:
            keys, values = map(numpy_of, spy.rows[at - 1])
            own.update_without_fetch(keys, values, phase="prefill" if at == 1 else "ar_decode")
            want = own.paged_attention(
                np.ascontiguousarray(numpy_of(queries)), scale, mask="causal" if mask else "full"
            )
            assert np.array_equal(numpy_of(out), want)
        codes, wanted = entry.export_codes(), own.export_codes()
        assert codes["format"] == wanted["format"] == stored
        assert np.array_equal(codes["keys"], wanted["keys"])
        assert np.array_equal(codes["values"], wanted["values"])
        # 24 tokens of 3 heads of 64 numbers, K and V: 32 bits each before.
        assert codes["keys"].nbytes + codes["values"].nbytes < 2 * 24 * 3 * 64 * 4 / 3
        stats = entry.paged_stats()
        assert stats["format"] == stored and stats["bytes"] == own.paged_stats()["bytes"]
        assert stats["route"] == "packed" and stats["paged_attention_calls"] == 4
        assert stats["dense_fallback_calls"] == 0
        assert stats["turboquant_attention_calls"] == 4 * ("turboquant_config" in options)
        assert stats["kv_quant_attention_calls"] == 4 * ("kv_quant_config" in options)


@each_config
def test_the_statistics_count_the_packed_bytes(options, stored):
    cache, plain, rows = PagedKVCache(**options), PagedKVCache(), random_rows(4096, dim=64)
    for entry in (cache, plain):
        entry.update_without_fetch(rows, rows)
    codes, bytes_of = cache.export_codes(), lambda entry: entry.paged_stats()["bytes"]
    packed = codes["keys"].nbytes + codes["values"].nbytes
    # Memory is backed ahead of the rows, in steps of a 32nd.
    assert packed <= bytes_of(cache) <= 1.2 * packed
    assert bytes_of(cache) == cache.nbytes < plain.nbytes / 3


@each_config
def test_trims_forks_and_states_keep_the_codes(options, stored):
    cache, rows = PagedKVCache(**options), random_rows(37, dim=64)
    cache.update_and_fetch(rows, rows)
    fork = copy.deepcopy(cache)
    more = random_rows(3, dim=64, seed=5)
    assert fork.trim(10) == 10
    fork.update_and_fetch(more, more)
    both = PagedKVCache(**options)
    cut = joined([rows[:, :, :27], more])
    both.update_and_fetch(cut, cut)
    assert np.array_equal(fork.export_codes()["keys"], both.export_codes()["keys"])
    assert same(cache.keys[:, :, :27], fork.keys[:, :, :27])
    again = PagedKVCache(**options)
    again.import_codes(cache.export_codes())
    assert again.offset == 37 and same(again.values if again._shape else cache.values, cache.values)


def test_installing_on_a_used_cache_encodes_its_rows():
    model = make_model()
    cache = make_prompt_cache(model)
    model(mx.array([[3, 1, 4, 1, 5]]), cache=cache)
    plain = [numpy_of(entry.state[0][:, :, :5]) for entry in cache]
    report = kmlx.install(cache, kv_quant_config="q8")
    assert report["kv_quant"] and report["mode"] and cache[0].offset == 5
    for entry, keys in zip(cache, plain, strict=True):
        own = kvik.PagedKVCache(kv_quant_config="q8")
        own.update_without_fetch(keys, keys)
        assert np.array_equal(entry.export_codes()["keys"], own.export_codes()["keys"])
    before = cache[0].export_codes()
    assert kmlx.install(cache, kv_quant_config="q4")["entries"] == 3
    assert cache[0].export_codes()["format"] == "q4:q4" and cache[0].offset == 5
    assert before["format"] == "q8:q8"
    kmlx.uninstall(cache)
    assert cache[0].offset == 5 and cache[0].keys.dtype == mx.float32


def test_the_mirror_route_gives_the_bits_of_kviks_own():
    options = {"kv_quant_config": {"mode": "q4", "dtype": "bf16"}, "attention_impl": "mirror"}
    cache, own = PagedKVCache(**options), kvik.PagedKVCache(**options)
    for n in (20, 1, 1):
        rows, queries = random_rows(n, dim=64), random_rows(n, heads=6, dim=64)
        cache.update_without_fetch(rows, rows)
        own.update_without_fetch(numpy_of(rows), numpy_of(rows))
        out = cache.attend(queries, mask="causal")
        assert np.array_equal(numpy_of(out), own.paged_attention(numpy_of(queries)))
    stats = cache.paged_stats()
    assert stats["kv_quant_route"] == "mirror" and stats["kv_quant_dequant_tokens"] == 22


def test_a_head_dim_that_the_format_does_not_store_is_refused_and_nothing_changes():
    cache = PagedKVCache(turboquant_config={"k_quant": "q8_0", "v_quant": "q3_0"})
    with pytest.raises(ValueError, match="head_dim|multiple"):
        cache.update_and_fetch(random_rows(1, dim=20), random_rows(1, dim=20))
    assert cache.offset == 0 and cache.empty()


@pytest.mark.parametrize("flag", ["--paged-kv-quantization", "--paged-kv-quant", "--kv-quant"])
@pytest.mark.parametrize("mode", ["off", "q8", "q6", "q4"])
def test_the_flags_choose_the_storage(flag, mode):
    parser = argparse.ArgumentParser()
    kmlx.add_paged_arguments(parser)
    cache = make_prompt_cache(make_model(1))
    report = kmlx.install(cache, **kmlx.paged_options(parser.parse_args([flag, mode])))
    rows = random_rows(3, heads=3, dim=64)
    cache[0].update_and_fetch(rows, rows)
    assert bool(report["kv_quant"]) == (mode != "off")
    assert cache[0].paged_stats()["format"] == ("f32:f32" if mode == "off" else f"{mode}:{mode}")
    with pytest.raises(SystemExit):
        parser.parse_args([flag, "q5"])


def test_without_a_flag_the_environment_decides(monkeypatch):
    parser = argparse.ArgumentParser()
    kmlx.add_paged_arguments(parser)
    options = kmlx.paged_options(parser.parse_args([]))
    monkeypatch.setenv("KVIK_PAGED_KV_QUANT", "q6")
    cache = make_prompt_cache(make_model(1))
    assert kmlx.install(cache, **options)["kv_quant"]
    cache[0].update_and_fetch(random_rows(1, dim=64), random_rows(1, dim=64))
    assert cache[0].paged_stats()["format"] == "q6:q6"
