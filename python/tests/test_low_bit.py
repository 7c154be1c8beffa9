"""Low-bit storage of the paged cache: formats, routes, codes in and out."""

from __future__ import annotations

import copy
import subprocess
import sys
import warnings

import kvik
import ml_dtypes
import numpy as np
import pytest
from golden import bell, load
from rows import make_rows, same

CONFIGS = {
    "q8:q8": {"kv_quant_config": "q8"},
    "q6:q6": {"kv_quant_config": {"mode": "6bit"}},
    "q4:q4": {"kv_quant_config": {"mode": "INT4"}},
    "tqk_q8_0:tqv_q3_0": {"turboquant_config": {"k_quant": "q8_0", "v_quant": "q3_0"}},
    "tqk_q4_0:tqv_q2_0": {"turboquant_config": {"k_quant": "uint4", "v_quant": "q2_0"}},
    "tq8:tcq4": {"kv_format": "turboquant_k8v4"},
    "tcq3:tq2": {"kv_format": "tcq3:tq2"},
}
each_config = pytest.mark.parametrize("format", CONFIGS)
DIMS = {"head_dim_k": 64, "head_dim_v": 32}


def make(format, **options):
    return kvik.PagedKVCache(**CONFIGS[format], **options)


def filled(format, num_rows=37, seed=1, **options):
    cache = make(format, **options)
    rows = make_rows(num_rows, seed, batch=2, **DIMS)
    cache.update_without_fetch(*rows, phase="prefill")
    return cache, rows


def encoded(rows, format):
    return [kvik.encode(half, name) for half, name in zip(rows, format.split(":"), strict=True)]


def decoded(rows, format):
    names, dims = format.split(":"), (64, 32)
    return [
        kvik.decode(c, n, d) for c, n, d in zip(encoded(rows, format), names, dims, strict=True)
    ]


def holds_codes(cache, rows, format):
    codes = cache.export_codes()
    want = encoded(rows, format)
    return (
        codes["format"] == format
        and same(codes["keys"], want[0])
        and same(codes["values"], want[1])
        and all(
            same(got, half) for got, half in zip(cache.state, decoded(rows, format), strict=True)
        )
    )


def queries(q_len=3):
    return bell(77, (2, 4, q_len, 64))


@each_config
def test_the_codes_of_each_row_are_stored(format):
    cache, rows = filled(format)
    assert holds_codes(cache, rows, format)
    assert cache.paged_stats()["format"] == format
    assert same(cache.keys, decoded(rows, format)[0])
    again = make(format)
    for t in range(37):
        again.update_without_fetch(*(half[:, :, t : t + 1] for half in rows))
    assert holds_codes(again, rows, format)


@each_config
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_a_state_has_the_dtype_of_the_rows(format, dtype):
    cache = make(format)
    rows = make_rows(20, dtype=dtype, **DIMS)
    keys, values = cache.update_and_fetch(*rows)
    assert keys.dtype == dtype and values.dtype == dtype
    wide = [half.astype(np.float32) for half in rows]
    assert same(keys, decoded(wide, format)[0].astype(dtype))
    assert same(values, decoded(wide, format)[1].astype(dtype))


@each_config
@pytest.mark.parametrize("route", ["packed", "mirror"])
def test_attention_is_that_of_the_decoded_rows(format, route):
    cache, rows = filled(format, attention_impl=route)
    plain = kvik.PagedKVCache()
    plain.update_without_fetch(*decoded(rows, format))
    visible = np.tri(3, 37, 34, dtype=bool) & (np.arange(37) % 3 != 1)
    for options in ({}, {"mask": "full"}, {"sliding_window": 9}, {"mask": visible}):
        out = cache.paged_attention(queries(), 0.125, **options)
        want = plain.paged_attention(queries(), 0.125, **options)
        if route == "mirror":
            assert same(out, want), "a mirror in f32 holds the same rows"
        else:
            # Queries and weights are rounded to 1 / 16383 of the largest of their row.
            np.testing.assert_allclose(out, want, atol=4e-4)
    assert cache.paged_stats()["route"] == route


@each_config
def test_rows_are_trimmed_rewritten_and_forked_inside_a_block(format):
    cache, rows = filled(format)
    other = copy.deepcopy(cache)
    more = make_rows(3, 9, batch=2, **DIMS)
    assert other.trim(10) == 10
    other.update_without_fetch(*more)
    cut = [np.concatenate([a[:, :, :27], b], axis=2) for a, b in zip(rows, more, strict=True)]
    assert holds_codes(other, cut, format)
    assert holds_codes(cache, rows, format)


@each_config
@pytest.mark.parametrize("layout", ["rows", "tiles"])
@pytest.mark.parametrize("num_rows", [1, 16, 37])
def test_codes_go_out_and_in_exactly(format, layout, num_rows):
    cache, rows = filled(format, num_rows)
    codes = cache.export_codes(layout)
    assert codes["layout"] == layout and codes["num_rows"] == num_rows
    assert codes["keys"].dtype == np.uint8 and not codes["keys"].flags.writeable
    units = (num_rows,) if layout == "rows" else (-(-num_rows // 16),)
    expected = (2, 2, *units) if layout == "rows" else (2, *units, 2)
    assert codes["keys"].shape[:3] == codes["values"].shape[:3] == expected
    other = make(format, block_size=5)
    other.import_codes({**codes, "keys": codes["keys"].copy()})
    del codes
    assert holds_codes(other, rows, format)
    assert same(other.paged_attention(queries(1)), cache.paged_attention(queries(1)))


def test_codes_that_do_not_fit_are_refused_and_change_nothing():
    cache, rows = filled("q8:q8", 5)
    good = cache.export_codes()
    nan = good["keys"].copy()
    nan[1, 1, 4, -4:] = np.frombuffer(np.float32(np.nan).tobytes(), np.uint8)
    for change, text in (
        ({"format": "q4:q4"}, "the codes are q4:q4, and the cache stores q8:q8"),
        ({"num_rows": 6}, "bytes"),
        ({"layout": "lines"}, "rows, tiles"),
        ({"keys": good["keys"][:, :1]}, "rank 4|first three"),
        ({"keys": nan}, "not finite"),
        ({"values": np.zeros(3, np.float32)}, "values of codes has dtype float32; use uint8"),
        ({"values": np.zeros(3, np.uint8)}, "values of codes has 1 dimensions"),
        ({"dtype_k": "int8"}, "no dtype"),
    ):
        with pytest.raises(ValueError, match=text):
            cache.import_codes({**good, **change})
        assert holds_codes(cache, rows, "q8:q8")
    with pytest.raises(ValueError, match='need "keys"'):
        cache.import_codes({k: v for k, v in good.items() if k != "keys"})
    assert make("q8:q8").export_codes() is None


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@each_config
def test_a_number_that_is_not_finite_is_refused_and_nothing_is_written(format, bad):
    cache, rows = filled(format, 21)
    more = make_rows(4, 5, batch=2, **DIMS)
    for half in more:
        good = half[1, 1, 3, 7]
        half[1, 1, 3, 7] = bad
        with pytest.raises(ValueError, match="infinity, NaN"):
            cache.update_without_fetch(*more)
        assert holds_codes(cache, rows, format)
        half[1, 1, 3, 7] = good
    cache.update_without_fetch(*more)
    assert cache.offset == 25


@pytest.mark.parametrize(
    ("options", "dims", "text"),
    [
        ({"kv_quant_config": "q6"}, (10, 8), "keys.*q6.*head_dim is 10; q8"),
        ({"kv_quant_config": "q4"}, (8, 9), "values.*q4.*head_dim is 9; q8"),
        ({"turboquant_config": {}}, (48, 32), "tqk_q8_0.*multiples of 32.*48"),
        ({"kv_format": "tcq4"}, (32, 20), "tcq4.*20; q8"),
    ],
)
def test_a_head_dim_is_refused_with_what_would_work(options, dims, text):
    cache = kvik.PagedKVCache(**options)
    rows = make_rows(2, head_dim_k=dims[0], head_dim_v=dims[1])
    with pytest.raises(ValueError, match=text):
        cache.update_without_fetch(*rows)
    assert cache.empty() and cache.nbytes == 0


def test_configs_are_read_by_the_parsers_of_the_library():
    assert (
        kvik.PagedKVCache(kv_quant_config={"dtype": "bf16"}).paged_stats()["kv_quant_mode"] == "q8"
    )
    for off in ("off", "none", "0", None):
        assert not kvik.PagedKVCache(kv_quant_config=off).kv_quant
    assert not kvik.PagedKVCache(kv_quant_config=None, turboquant_config=None).turboquant
    both = kvik.PagedKVCache(turboquant_config={}, kv_quant_config="q4")
    stats = both.paged_stats()
    assert both.turboquant and not both.kv_quant and stats["mode"] == "vllm_metal_paged"
    assert (stats["turboquant_k_quant"], stats["turboquant_v_quant"]) == ("q8_0", "q3_0")
    assert (stats["kv_quant"], stats["kv_quant_mode"]) == (False, None)
    for options, match in (
        ({"turboquant_config": {"k_quant": "q3_0"}}, "q8_0"),
        ({"turboquant_config": {"keys": "q8_0"}}, 'no key "keys"'),
        ({"kv_quant_config": {"mode": "q5"}}, "q8"),
        ({"kv_quant_config": {"dtype": "int3"}}, "no dtype"),
        ({"kv_quant_config": {"bits": 8}}, 'no key "bits"'),
        ({"kv_format": "q9"}, "q9"),
        ({"kv_format": "tq4", "kv_quant_config": "q4"}, "format is set beside"),
    ):
        with pytest.raises(ValueError, match=match):
            kvik.PagedKVCache(**options)
    with pytest.raises(TypeError, match="must be a dict"):
        kvik.PagedKVCache(turboquant_config=8)


def test_the_mirror_decodes_each_row_once():
    cache, _ = filled("q8:q8", 100, attention_impl="mirror")
    codes_bytes = cache.nbytes
    cache.paged_attention(queries())
    cache.update_without_fetch(*make_rows(5, 9, batch=2, **DIMS), phase="decode_verify")
    for _ in range(2):
        cache.paged_attention(queries())
    stats = cache.paged_stats()
    assert stats["kv_quant_dequant_tokens"] == 105
    assert (stats["kv_quant_dequant_calls"], stats["kv_quant_dequant_memo_hits"]) == (3, 1)
    assert stats["kv_quant_dequant_memo_rebuilds"] == 1
    assert (stats["kv_quant_attention_calls"], stats["kv_quant_kernel_calls"]) == (3, 0)
    assert (stats["kv_quant_route"], stats["kv_quant_route_offset"]) == ("mirror", 100)
    assert cache.nbytes == codes_bytes + stats["mirror_bytes"] and stats["mirror_bytes"] > 0


def test_the_dtype_of_the_config_is_that_of_the_mirror():
    rows = make_rows(37, batch=2, **DIMS)
    cache = kvik.PagedKVCache(
        kv_quant_config={"mode": "q8", "dtype": "bf16"}, attention_impl="mirror"
    )
    cache.update_without_fetch(*rows)
    plain = kvik.PagedKVCache()
    plain.update_without_fetch(*(h.astype(ml_dtypes.bfloat16) for h in decoded(rows, "q8:q8")))
    assert same(cache.paged_attention(queries()), plain.paged_attention(queries()))
    assert cache.keys.dtype == np.float32


def test_a_request_never_leaves_its_route():
    cache = kvik.PagedKVCache(kv_quant_config={"mode": "q8", "dtype": "bf16"})
    cache.update_without_fetch(*make_rows(37, batch=2, **DIMS), phase="prefill")
    packed = cache.paged_attention(queries())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", kvik.FallbackWarning)
        assert same(cache.paged_attention(queries(), impl_override="mirror"), packed)
    bailout = cache.paged_attention_last_bailout
    assert (bailout["reason"], bailout["impl"]) == ("route_latched", "mirror")
    stats = cache.paged_stats()
    assert stats["paged_attention_bailouts_by_phase_reason"] == {"unknown:route_latched": 1}
    assert (stats["kv_quant_route"], stats["kv_quant_kernel_calls"]) == ("packed", 2)
    cache.update_without_fetch(*make_rows(1, 2, batch=2, **DIMS), phase="prefill")
    cache.trim(1)
    mirror = cache.paged_attention(queries(), impl_override="sdpa_gather")
    assert not same(mirror, packed)
    np.testing.assert_allclose(mirror, packed, atol=0.05)


def test_each_fallback_is_warned_of_once_in_a_process(tmp_path):
    code = (
        "import warnings, numpy as np, kvik\n"
        "r = np.ones((1, 1, 9, 32), np.float32)\n"
        "with warnings.catch_warnings(record=True) as caught:\n"
        "    warnings.simplefilter('always')\n"
        "    for size in (2, 3):\n"
        "        c = kvik.PagedKVCache(kv_quant_config='q4', max_q_len=size)\n"
        "        c.update_without_fetch(r, r)\n"
        "        for _ in range(2):\n"
        "            c.attend(r)\n"
        "            c.paged_attention(r[:, :, :1], impl_override='mirror')\n"
        "        assert c.paged_stats()['dense_fallback_calls'] == 2\n"
        "print(*(w.category.__name__ for w in caught))\n"
        "print(*(str(w.message) for w in caught), sep='\\n')\n"
    )
    run = [sys.executable, "-c", code]
    result = subprocess.run(run, capture_output=True, text=True, cwd=tmp_path)
    lines = result.stdout.splitlines()
    assert lines[0] == "FallbackWarning FallbackWarning", result.stderr
    assert "q_len 9 exceeds max_q_len 2: attention runs by the request's route, packed" in lines[1]
    assert "was served by packed, because the two round differently" in lines[2]


def test_a_live_cache_is_encoded_anew_or_refused():
    rows = make_rows(20, batch=2, **DIMS)
    cache = kvik.PagedKVCache()
    cache.update_without_fetch(*rows)
    cache.reconfigure(kv_quant_config="q4")
    assert holds_codes(cache, rows, "q4:q4")
    cache.reconfigure(turboquant_config={}, kv_quant_config="off")
    assert holds_codes(cache, decoded(rows, "q4:q4"), "tqk_q8_0:tqv_q3_0")
    before = cache.state
    cache.reconfigure(turboquant_config=False)
    assert not cache.turboquant and same(cache.state[0], before[0])
    narrow = kvik.PagedKVCache()
    narrow.update_without_fetch(*make_rows(3))
    with pytest.raises(ValueError, match="head_dim is 8"):
        narrow.reconfigure(turboquant_config={})
    assert not narrow.turboquant and narrow.offset == 3


def test_installing_reports_the_storage_and_reads_it_from_the_environment(monkeypatch):
    rows = make_rows(9, **DIMS)
    entries = [kvik.PagedKVCache() for _ in range(2)]
    for entry in entries:
        entry.update_without_fetch(*rows)
    report = kvik.install_vllm_metal_paged_attention_kv_cache(entries, kv_quant_config="q6")
    assert (report["mode"], report["kv_quant_mode"]) == ("vllm_metal_paged_kv_q6", "q6")
    assert report["kv_quant"] is True and report["turboquant"] is False
    assert all(holds_codes(entry, rows, "q6:q6") for entry in entries)
    monkeypatch.setenv("MTPLX_VLLM_METAL_PAGED_TURBOQUANT", "1")
    monkeypatch.setenv("MTPLX_VLLM_METAL_PAGED_TURBOQUANT_K_QUANT", "q5_0")
    report = kvik.install_vllm_metal_paged_attention_kv_cache(entries)
    assert report["mode"] == "vllm_metal_paged_turboquant"
    assert (report["turboquant_k_quant"], report["turboquant_v_quant"]) == ("q5_0", "q3_0")
    assert entries[0].turboquant and entries[0].offset == 9
    assert kvik.PagedKVCache().turboquant is False, "constructors take it as an argument only"
    monkeypatch.delenv("MTPLX_VLLM_METAL_PAGED_TURBOQUANT")
    monkeypatch.setenv("MTPLX_PAGED_KV_QUANT", "q8")
    monkeypatch.setenv("MTPLX_KV_QUANT_2PASS_KERNEL", "off")
    fresh = [kvik.PagedKVCache()]
    report = kvik.install_vllm_metal_paged_attention_kv_cache(fresh)
    assert (report["mode"], report["attention_impl"]) == ("vllm_metal_paged_kv_q8", "mirror")
    report = kvik.install_vllm_metal_paged_attention_kv_cache(fresh, attention_impl="packed")
    assert report["attention_impl"] == "vllm_metal"


def test_layers_may_differ_in_format():
    rows = make_rows(9, batch=2, **DIMS)
    layers = {format: make(format) for format in CONFIGS}
    for t in range(9):
        for cache in layers.values():
            cache.update_without_fetch(*(half[:, :, t : t + 1] for half in rows))
    for format, cache in layers.items():
        assert holds_codes(cache, rows, format)


def test_rows_have_the_bytes_of_the_contract():
    section = load("cache_contract/contract.json")["bytes_per_token_per_kv_head"]
    cases = 0
    for name, options in (
        ("kv_quant", lambda c: {"kv_quant_config": c["mode"]}),
        (
            "turboquant",
            lambda c: {"turboquant_config": {"k_quant": c["k"], "v_quant": f"q{c['v']}_0"}},
        ),
        ("tq_row", lambda c: {"kv_format": c["mode"]}),
    ):
        for case in section[name]:
            cache = kvik.PagedKVCache(**options(case))
            dim = case["D"]
            cache.update_without_fetch(*make_rows(3, head_dim_k=dim, head_dim_v=dim))
            codes = cache.export_codes()
            got = codes["keys"].shape[3] + codes["values"].shape[3]
            assert got == case.get("bytes_k_plus_v", 2 * case.get("bytes_per_row", 0)), case
            cases += 1
    assert cases == 130
