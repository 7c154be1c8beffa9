"""Arrays in and out: dtypes, strides, DLPack, memory that is shared and that is kept."""

from __future__ import annotations

import gc
import resource
import sys

import kvik
import ml_dtypes
import numpy as np
import pytest
from golden import BF16
from rows import address, append, bits, holds, make_rows, same


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_rows_come_back_bit_for_bit(make_cache, dtype):
    cache = make_cache()
    rows = make_rows(7, dtype=dtype)
    keys, values = cache.update_and_fetch(*rows)
    assert same(keys, rows[0]) and same(values, rows[1])
    assert keys.dtype == dtype


def test_bf16_of_numpy_comes_out_as_numpy_and_other_bf16_as_an_array_of_its_own(make_cache):
    keys, values = make_rows(3, dtype=BF16)
    cache = make_cache()
    assert cache.update_and_fetch(keys, values)[0].dtype == BF16
    own = [kvik.BFloat16Array(bits(a)) for a in (keys, values)]
    cache = make_cache()
    got = cache.update_and_fetch(*own)[0]
    assert isinstance(got, kvik.BFloat16Array)
    assert same(got, keys)
    assert isinstance(cache.fork().state[0], kvik.BFloat16Array)


def test_bfloat16_array_reads_as_numpy():
    values = np.array([[1.0, -2.5, 3.140625], [np.inf, np.nan, 0.0]], np.float32)
    array = kvik.BFloat16Array.from_float32(values)
    np.testing.assert_array_equal(array.numpy(), values)
    np.testing.assert_array_equal(np.asarray(array), values)
    assert np.asarray(array, dtype=np.float64).dtype == np.float64
    assert array.ml_dtypes().dtype == BF16
    assert address(array.ml_dtypes()) == address(array)
    assert (array.shape, array.ndim, array.size, array.nbytes) == ((2, 3), 2, 6, 12)
    assert array.dtype == "bfloat16"
    assert array[1].shape == (3,) and len(array) == 2
    with pytest.raises(ValueError, match="bfloat16"):
        np.asarray(array, copy=False)


def test_bfloat16_array_rounds_as_ml_dtypes_does():
    random = np.random.default_rng(5)
    words = random.integers(0, 2**32, 20000, dtype=np.uint64).astype(np.uint32)
    values = words.view(np.float32)
    got = kvik.BFloat16Array.from_float32(values)
    with np.errstate(invalid="ignore"):
        want = values.astype(BF16)
    finite = ~np.isnan(values)
    np.testing.assert_array_equal(got.bits[finite], want.view(np.uint16)[finite])
    assert np.isnan(got.numpy()[~finite]).all()


def test_doubles_and_ints_are_rounded_to_bfloat16_once():
    half_way = 1 + 2.0**-8  # between 1 and the next bfloat16; the tie goes to 1
    doubles = np.array([half_way + 2.0**-40, half_way, half_way - 2.0**-40, -half_way - 2.0**-40])
    up = 1 + 2.0**-7
    assert kvik.BFloat16Array.from_float32(doubles).numpy().tolist() == [up, 1, 1, -up]
    ints = np.array([2**40 + 2**32, 2**40 + 2**32 + 1, -(2**40) - 2**32 - 1])
    assert kvik.BFloat16Array.from_float32(ints).numpy().tolist() == [
        2**40,
        2**40 + 2**33,
        -(2**40) - 2**33,
    ]
    edge = kvik.BFloat16Array.from_float32(np.array([1e300, -np.inf, 0.0, 1e-300])).numpy()
    assert edge.tolist() == [np.inf, -np.inf, 0, 0]


@pytest.mark.parametrize(
    "values",
    [
        np.ones(2, complex),
        np.ones(2, np.longdouble),
        "ab",
        None,
        np.ma.masked_less(np.zeros(2), 1),
        np.zeros(2, "M8[s]"),
    ],
    ids=str,
)
def test_what_is_no_real_number_is_no_bfloat16(values):
    with pytest.raises(ValueError, match="values"):
        kvik.BFloat16Array.from_float32(values)


def test_dlpack_of_bf16_goes_both_ways_without_a_copy():
    array = kvik.BFloat16Array(np.arange(12, dtype=np.uint16).reshape(3, 4).copy())
    back = kvik._core._bfloat16_bits(array)
    assert address(back) == address(array)
    np.testing.assert_array_equal(back, array.bits)
    assert array.__dlpack_device__() == (1, 0)


@pytest.mark.parametrize(
    "change",
    [
        lambda a: np.ascontiguousarray(a.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3),
        lambda a: np.repeat(a, 2, axis=2)[:, :, ::2],
        lambda a: np.repeat(a, 2, axis=3)[..., ::2],
        lambda a: np.ascontiguousarray(a[:, :, ::-1])[:, :, ::-1],
        np.asfortranarray,
    ],
    ids=["token-major", "every second row", "every second element", "backwards", "column-major"],
)
def test_rows_of_any_strides_are_taken(make_cache, change):
    rows = make_rows(6)
    cache = make_cache()
    append(cache, *(change(a) for a in rows))
    assert holds(cache, [rows])


def test_read_only_rows_are_taken(make_cache):
    rows = make_rows(2)
    for array in rows:
        array.flags.writeable = False
    cache = make_cache()
    append(cache, *rows)
    assert holds(cache, [rows])


def test_views_are_read_only_and_of_the_memory_of_the_cache(make_owned):
    cache = make_owned()
    first, _ = cache.update_and_fetch(*make_rows(3))
    assert not first.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        first[0, 0, 0, 0] = 1
    second, _ = cache.update_and_fetch(*make_rows(400, seed=2))
    assert address(first) == address(second) == address(cache.state[0])
    assert address(cache.fork().state[0]) == address(first)


def test_a_view_keeps_its_memory_after_the_cache_is_gone(make_cache):
    cache = make_cache()
    rows = make_rows(40)
    keys, values = cache.update_and_fetch(*rows)
    part = values[:, 1:, 5:9]
    del cache, values
    gc.collect()
    others = [kvik.TailOwnedKVCache() for _ in range(8)]
    for other in others:
        other.update_and_fetch(*make_rows(200, seed=9))
    assert same(keys, rows[0])
    assert same(part, rows[1][:, 1:, 5:9])


def test_a_view_taken_long_ago_keeps_its_content_for_ever(make_owned):
    cache = make_owned()
    rows = make_rows(10)
    old, _ = cache.update_and_fetch(*rows)
    for seed in range(2, 40):
        cache.trim(3)
        cache.update_and_fetch(*make_rows(5, seed=seed))
    cache.state = None
    cache.update_and_fetch(*make_rows(10, seed=50))
    assert same(old, rows[0])


def test_attention_reads_and_writes_arrays_where_they_lie():
    num_keys, head_dim = 1 << 20, 64
    # Pages of zeros that nobody wrote take no memory; a copy would.
    keys = np.zeros((1, 1, num_keys, head_dim), np.float32)
    queries = np.ones((1, 1, 1, head_dim), np.float32)
    out = np.full((1, 1, 1, head_dim), 7, np.float32)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    got = kvik.attend(queries, keys, keys, out=out)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert got is out
    assert not out.any()
    assert grown < keys.nbytes / 4, f"{grown} bytes more for keys of {keys.nbytes}"


def test_out_must_fit():
    q, (k, v) = make_rows(1)[0], make_rows(4)
    read_only = np.zeros((1, 2, 1, 8), np.float32)
    read_only.flags.writeable = False
    with pytest.raises(ValueError, match="out is read-only"):
        kvik.attend(q, k, v, out=read_only)
    with pytest.raises(ValueError, match="out"):
        kvik.attend(q, k, v, out=np.zeros((1, 2, 3, 8), np.float32))
    with pytest.raises(ValueError, match="last stride of out"):
        kvik.attend(q, k, v, out=np.zeros((1, 2, 1, 16), np.float32)[..., ::2])


@pytest.mark.parametrize(
    ("keys", "error", "match"),
    [
        ([[1.0]], TypeError, "keys must be an array"),
        (None, TypeError, "keys must be an array"),
        (np.zeros((1, 2, 3, 8), np.float64), ValueError, "keys has dtype float64"),
        (np.zeros((1, 2, 3, 8), np.int32), ValueError, "keys has dtype int32"),
        (np.zeros((2, 3, 8), np.float32), ValueError, "keys has 3 dimensions; it needs 4"),
        (np.zeros((1, 2, 4, 8), np.float32), ValueError, "differ in dimension 2"),
    ],
    ids=["list", "None", "f64", "int", "rank", "rows"],
)
def test_what_is_no_array_of_rows_is_refused_by_name(make_cache, keys, error, match):
    cache = make_cache()
    with pytest.raises(error, match=match):
        append(cache, keys, make_rows(3)[1])
    assert cache.offset == 0 and cache.empty()


def test_references_are_given_back(make_cache):
    keys, values = make_rows(4)
    counts = [sys.getrefcount(a) for a in (keys, values)]
    cache = make_cache()
    for _ in range(20):
        cache.update_and_fetch(keys, values)
        cache.trim(4)
    gc.collect()
    assert [sys.getrefcount(a) for a in (keys, values)] == counts
