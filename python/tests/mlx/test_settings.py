"""What a saved prompt cache keeps, and what mlx-lm replaces by caches of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings

import kvik
import kvik.mlx as kmlx
import mlx.core as mx
import mlx_lm.models.cache as mlx_lm_cache
import numpy as np
import pytest
from kvik.mlx import BlockOwnedKVCache, PagedKVCache, TailOwnedKVCache
from mlx_rows import random_rows, same

pytestmark = pytest.mark.usefixtures("appends")

LOW_BIT = {
    "q8": {"kv_quant_config": "q8"},
    "q4 by the mirror": {
        "kv_quant_config": {"mode": "q4", "dtype": "bf16"},
        "attention_impl": "mirror",
    },
    "turboquant": {"turboquant_config": {"k_quant": "q4_0", "v_quant": "q3_0"}},
    "any two": {"kv_format": "tq8:tcq4"},
    "a trellis with a window": {"kv_format": "tcq3:tcq2", "sliding_window": 20},
}
PLAIN = {
    "a window": {"sliding_window": 7},
    "more blocks": {"block_size": 8, "num_blocks": 3000},
    "a limit": {"max_q_len": 4, "partitioned": True, "partition_threshold": 30},
    "growth": {"dynamic": True, "num_blocks": 2, "context_window": 4096},
}
SAVES = [mlx_lm_cache.save_prompt_cache, kmlx.save_prompt_cache, kmlx.save_older_prompt_cache]


def attend(cache, num_queries=3, seed=8):
    queries = random_rows(num_queries, heads=6, dim=64, seed=seed)
    return np.array(cache.attend(queries, mask="causal"))


def reloaded(tmp_path, cache, save):
    path = str(tmp_path / "prompt.safetensors")
    save(path, [cache], {"a": "b"})
    load = mlx_lm_cache.load_prompt_cache if save is SAVES[0] else kmlx.load_prompt_cache
    (loaded,), metadata = load(path, return_metadata=True)
    assert type(loaded) is type(cache) and metadata == {"a": "b"}
    return loaded


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
@pytest.mark.parametrize("save", SAVES)
@pytest.mark.parametrize("options", [*LOW_BIT.values(), *PLAIN.values()], ids=[*LOW_BIT, *PLAIN])
def test_a_loaded_cache_goes_on_with_the_same_bits(tmp_path, options, save, dtype):
    cache, rows = PagedKVCache(**options), random_rows(45, dim=64, dtype=dtype)
    cache.update_and_fetch(rows, rows)
    cache.trim(4)
    loaded = reloaded(tmp_path, cache, save)
    assert loaded._core._keywords == cache._core._keywords
    assert (loaded.offset, loaded.keys.dtype) == (41, dtype) and same(loaded.keys, cache.keys)
    formats = [c.paged_stats()["format"] for c in (loaded, cache)]
    assert formats[0] == formats[1] and formats[0] != "f32:f32" or options in PLAIN.values()
    codes, wanted = loaded.export_codes(), cache.export_codes()
    assert all(np.array_equal(codes[half], wanted[half]) for half in ("keys", "values"))
    more = random_rows(3, dim=64, seed=3, dtype=dtype)
    for each in (cache, loaded):
        each.update_and_fetch(more, more)
    assert np.array_equal(attend(loaded), attend(cache))
    for each in (cache, loaded):
        each.trim(6)
        each.update_and_fetch(more, more)
    assert loaded.offset == 41 and np.array_equal(attend(loaded), attend(cache))


@pytest.mark.parametrize("save", SAVES)
@pytest.mark.parametrize("options", [*LOW_BIT.values(), *PLAIN.values()], ids=[*LOW_BIT, *PLAIN])
def test_a_cache_without_rows_keeps_its_settings_too(tmp_path, options, save):
    cache, rows = PagedKVCache(**options), random_rows(3, dim=64)
    for _ in range(2):
        loaded = reloaded(tmp_path, cache, save)
        assert loaded._core._keywords == cache._core._keywords and loaded.offset == 0
        loaded.update_and_fetch(rows, rows)
        cache.update_and_fetch(rows, rows)
        assert np.array_equal(attend(loaded), attend(cache))
        cache.trim(3)


@pytest.mark.parametrize("save", SAVES)
@pytest.mark.parametrize(
    "make",
    [
        lambda: TailOwnedKVCache(step=8, mode="eval_only", max_rows=4096),
        lambda: BlockOwnedKVCache(block_size=4, mode="metal_copy_leaf"),
        TailOwnedKVCache,
        BlockOwnedKVCache,
        PagedKVCache,
    ],
)
def test_owned_and_default_caches_come_back_as_they_were(tmp_path, make, save):
    cache, rows = make(), random_rows(10)
    cache.update_and_fetch(rows, rows)
    cache.trim(3)
    loaded = reloaded(tmp_path, cache, save)
    assert loaded.meta_state == cache.meta_state and loaded.offset == 7
    assert same(loaded.values, rows[:, :, :7])
    is_default = make in (TailOwnedKVCache, BlockOwnedKVCache, PagedKVCache)
    assert len(cache.state) == (2 if is_default else 3)
    loaded.update_and_fetch(rows, rows)
    assert loaded.offset == 17 and loaded.capacity % loaded.step == 0


def test_more_rows_than_a_default_cache_holds_are_loaded(tmp_path):
    cache, rows = PagedKVCache(num_blocks=1030), random_rows(16 * 1025, heads=1, dim=8)
    cache.update_and_fetch(rows, rows)
    assert reloaded(tmp_path, cache, SAVES[0]).offset == 16 * 1025


def test_the_settings_of_a_file_win_over_the_environment(tmp_path, monkeypatch):
    cache, rows = PagedKVCache(block_size=8), random_rows(30, dim=64)
    cache.update_and_fetch(rows, rows)
    before = attend(cache)
    monkeypatch.setenv("KVIK_PAGED_SLIDING_WINDOW", "3")
    assert np.array_equal(attend(reloaded(tmp_path, cache, SAVES[0])), before)


def test_a_state_set_on_a_live_cache_brings_its_settings():
    small, rows = PagedKVCache(kv_quant_config="q4"), random_rows(20, dim=64)
    small.update_and_fetch(rows, rows)
    cache = PagedKVCache()
    held = cache.update_and_fetch(rows, rows)
    cache.state = small.state
    assert cache.paged_stats()["format"] == "q4:q4" and same(held[0], rows)
    assert np.array_equal(attend(cache), attend(small))
    cache.state = (rows, rows)  # rows without settings: in the cache's own
    assert cache.paged_stats()["format"] == "q4:q4" and cache.offset == 20


def pack(content):
    return mx.array(np.frombuffer(json.dumps(content).encode(), np.uint8))


@pytest.mark.parametrize("cls", [TailOwnedKVCache, BlockOwnedKVCache, PagedKVCache])
@pytest.mark.parametrize(
    ("settings", "match"),
    [
        (mx.array([1, 2, 3], mx.uint8), "no settings"),
        (pack([1]), "no settings"),
        (pack({"kvik": 2, "keywords": {}}), "version 2"),
        (pack({"kvik": 1, "keywords": 5}), "no settings"),
        (pack({"kvik": 1, "keywords": {"nonsense": 5}}), "nonsense|none of a"),
        (pack({"kvik": 1, "keywords": {}, "codes": {"format": "q8"}}), "codes|none of a"),
        (pack({"kvik": 1, "keywords": {"block_size": 0, "step": 0}}), "block_size|none of a"),
    ],
)
def test_settings_that_are_none_are_refused_and_change_nothing(cls, settings, match):
    cache, rows = cls(), random_rows(4)
    cache.update_and_fetch(rows, rows)
    with pytest.raises((ValueError, TypeError), match=match):
        cache.state = (rows, rows, settings)
    assert cache.offset == 4 and same(cache.keys, rows)


@pytest.mark.parametrize("cls", [TailOwnedKVCache, BlockOwnedKVCache, PagedKVCache])
@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda c: c.trim(2.5), TypeError, "n must be an int, not float"),
        (lambda c: c.trim("2"), TypeError, "n must be an int"),
        (lambda c: c.trim(True), TypeError, "n must be an int, not bool"),
        (lambda c: setattr(c, "offset", 1.5), TypeError, "offset must be an int"),
        (lambda c: setattr(c, "offset", -1), ValueError, "offset of -1"),
        (lambda c: setattr(c, "state", 5), ValueError, "a state is"),
        (lambda c: setattr(c, "state", (c.keys, None)), ValueError, "keys and values"),
        (lambda c: setattr(c, "state", (c.keys, 5)), TypeError, "values of a state"),
        (lambda c: setattr(c, "state", (c.keys, c.values, 2.5)), TypeError, "offset"),
        (lambda c: setattr(c, "meta_state", ("a", "1", "x")), ValueError, ""),
        (lambda c: c.update_and_fetch([1], [1]), TypeError, "keys are an mx.array"),
        (lambda c: type(c).from_cache(5), TypeError, "keys, values and offset"),
    ],
)
def test_what_is_wrong_is_refused_by_name_and_changes_nothing(cls, call, error, match):
    cache, rows = cls(), random_rows(4)
    cache.update_and_fetch(rows, rows)
    with pytest.raises(error, match=match or None):
        call(cache)
    assert cache.offset == 4 and same(cache.keys, rows)


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"queries": 5}, TypeError, "queries"),
        ({"scale": "x"}, TypeError, "scale"),
        ({"scale": float("nan")}, ValueError, "scale"),
        ({"mask": 5}, TypeError, "mask"),
        ({"mask": "diagonal"}, ValueError, "diagonal"),
        ({"sinks": 5}, TypeError, "sinks"),
        ({"sliding_window": 2.5}, TypeError, "sliding_window"),
    ],
)
def test_attention_refuses_what_is_wrong_by_name(change, error, match):
    cache, rows = PagedKVCache(), random_rows(4, dim=64)
    cache.update_and_fetch(rows, rows)
    with pytest.raises(error, match=match):
        cache.attend(**{"queries": random_rows(1, heads=4, dim=64), **change})
    with pytest.raises(ValueError, match="ar_decode"), kmlx.phase("decoding"):
        pass


def test_no_queries_give_an_empty_array():
    cache, rows = PagedKVCache(), random_rows(4, dim=64)
    cache.update_and_fetch(rows, rows)
    assert cache.attend(random_rows(4, heads=4, dim=64)[:, :, :0]).shape == (1, 4, 0, 64)


@pytest.mark.parametrize(
    ("installer", "arguments"),
    [
        (kmlx.install, {}),
        (kmlx.install_tail_owned_attention_kv_cache, {}),
        (kmlx.install_block_owned_attention_kv_cache, {}),
    ],
)
def test_installers_take_lists_only(installer, arguments):
    with pytest.raises(TypeError, match="cache must be a list, not tuple"):
        installer((mlx_lm_cache.KVCache(),), **arguments)


def test_codes_and_pages_that_are_imported_are_there():
    cache, rows = PagedKVCache(kv_quant_config="q8"), random_rows(9, dim=64)
    cache.update_and_fetch(rows, rows)
    again = PagedKVCache(kv_quant_config="q8")
    again.import_codes(cache.export_codes())
    assert same(again.keys, cache.keys) and again.offset == 9
    held = again.keys_and_values()
    codes = cache.export_codes()
    again.import_codes({**codes, "keys": np.zeros_like(codes["keys"])})
    assert same(held[0], cache.keys)


@pytest.mark.parametrize("options", LOW_BIT.values(), ids=LOW_BIT)
def test_from_cache_of_one_format_keeps_the_codes(options):
    cache, rows = PagedKVCache(**options), random_rows(30, dim=64)
    cache.update_and_fetch(rows, rows)
    other = PagedKVCache.from_cache(cache, **options)
    codes, wanted = other.export_codes(), cache.export_codes()
    assert all(np.array_equal(codes[half], wanted[half]) for half in ("keys", "values"))
    assert same(other.keys, cache.keys) and np.array_equal(attend(other), attend(cache))


# mlx-lm's own caches in the place of ours


def counts():
    return {**{"merge": 0, "to_quantized": 0}, **kmlx.handover_counts()}


@pytest.mark.parametrize("cls", [TailOwnedKVCache, BlockOwnedKVCache, PagedKVCache])
def test_merging_and_quantising_are_counted(cls):
    rows, caches, before = random_rows(5, dim=64), [cls(), cls()], counts()
    for cache in caches:
        cache.update_and_fetch(rows, rows)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", kvik.FallbackWarning)
        batch = cls.merge(caches)
        quantized = caches[0].to_quantized(32, 8)
    assert type(batch) is mlx_lm_cache.BatchKVCache and quantized.offset == 5
    stats = "paged_stats" if cls is PagedKVCache else "tail_owner_stats"
    assert getattr(caches[0], stats)()["handed_over"] == {"merge": 1, "to_quantized": 1}
    assert getattr(caches[1], stats)()["handed_over"] == {"merge": 1}
    now = counts()
    assert (now["merge"] - before["merge"], now["to_quantized"] - before["to_quantized"]) == (2, 1)


SCRIPT = """
import warnings
import mlx.core as mx
import kvik, kvik.mlx as kmlx
from mlx_lm.generate import BatchGenerator, generate_step
from mlx_lm.models.llama import Model, ModelArgs

model = Model(ModelArgs("llama", 128, 2, 128, 4, 1e-5, 100, num_key_value_heads=2))
model.make_cache = lambda: [kmlx.PagedKVCache(kv_quant_config="q8") for _ in model.layers]
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(2):
        quantize = {"kv_bits": 8, "kv_group_size": 32, "quantized_kv_start": 0}
        list(generate_step(mx.array([1, 2, 3]), model, max_tokens=3, **quantize))
        batch = BatchGenerator(model, max_tokens=3)
        batch.insert([[1, 2, 3], [4, 5]])
        for _ in range(8):
            batch.next()
        batch.close()
texts = [str(w.message) for w in caught if w.category is kvik.FallbackWarning]
print(sum("kv_bits" in t for t in texts), sum("BatchKVCache" in t for t in texts))
print(all("q8:q8" in t or "low-bit" in t for t in texts if "decoded" in t))
print(kmlx.handover_counts())
"""


def test_batches_and_kv_bits_of_mlx_lm_are_told_once_in_a_process():
    run = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "1 1" and lines[1] == "True", done.stdout
    assert "'merge': 8" in lines[2] and "'to_quantized': 4" in lines[2], done.stdout
