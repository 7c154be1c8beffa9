"""Outputs over inputs, empty calls, and views that other libraries could write."""

from __future__ import annotations

import copy
import ctypes
import pickle
from typing import Any

import kvik
import numpy as np
import pytest
from golden import BF16, bell
from rows import address, bits, holds, make_rows, same

LENGTHS = [1, 16, 128, 257, 513, 700]


def some(*shape: int, seed: int = 1) -> np.ndarray:
    return bell(seed, shape)


# Ways to lay out and an input over each other: what makes both from one memory of 5 heads and
# num_rows + 1 rows.
LAYOUTS = {
    "the same": lambda m: (m[:, :4, 1:], m[:, :4, 1:]),
    "a row on": lambda m: (m[:, :4, :-1], m[:, :4, 1:]),
    "a row back": lambda m: (m[:, :4, 1:], m[:, :4, :-1]),
    "a head on": lambda m: (m[:, :4, 1:], m[:, 1:, 1:]),
    "a head back": lambda m: (m[:, 1:, 1:], m[:, :4, 1:]),
    "an input backwards": lambda m: (m[:, :4, :0:-1], m[:, :4, 1:]),
    "token-major": lambda m: (
        m.reshape(1, m.shape[2], 5, -1).transpose(0, 2, 1, 3)[:, :4, 1:],
        m.reshape(1, m.shape[2], 5, -1).transpose(0, 2, 1, 3)[:, 1:, 1:],
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["queries", "keys", "values"])
@pytest.mark.parametrize("mask", [None, "causal", "array"])
def test_attend_writes_over_its_inputs_as_if_they_were_apart(layout, name, mask):
    for length in LENGTHS:
        names = ("queries", "keys", "values")
        arrays = {n: some(1, 4, length, 32, seed=i) for i, n in enumerate(names)}
        how = np.tri(length, dtype=bool) if mask == "array" else mask
        given, out = LAYOUTS[layout](some(1, 5, length + 1, 32, seed=9))
        arrays[name] = given
        want = kvik.attend(**{n: a.copy() for n, a in arrays.items()}, mask=how)
        assert kvik.attend(**arrays, mask=how, out=out) is out
        assert same(out, want), length


@pytest.mark.parametrize("dtype", [np.float16, BF16])
def test_an_out_of_another_dtype_over_the_keys(dtype):
    q, k, v = (some(1, 4, 128, 32, seed=i) for i in range(3))
    want = np.zeros((1, 4, 128, 32), dtype)
    kvik.attend(q, k, v, out=want)
    memory = k.copy()
    out = memory.view(dtype)[..., :32]
    assert same(kvik.attend(q, memory, v, out=out), want)


@pytest.mark.parametrize("method", ["paged_attention", "attend"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("low_bit", [False, True])
def test_a_paged_cache_writes_over_the_queries_as_if_they_were_apart(method, layout, low_bit):
    cache = kvik.PagedKVCache(**({"kv_quant_config": "q8"} if low_bit else {}))
    cache.update_without_fetch(*make_rows(300, head_dim_k=32, head_dim_v=32))
    queries, out = LAYOUTS[layout](some(1, 5, 201, 32))
    want = cache.paged_attention(queries.copy())
    assert same(getattr(cache, method)(queries, out=out), want)


@pytest.mark.parametrize("at", [0, 64, 4096])
def test_an_out_over_the_mask(at):
    q, k, v = (some(1, 4, 64, 16, seed=i) for i in range(3))
    memory = np.zeros(4096 + 8192, np.float32)
    mask = memory[4096:8192].reshape(64, 64)
    mask[np.triu_indices(64, 1)] = -np.inf
    want = kvik.attend(q, k, v, mask="causal")
    out = memory[at : at + 4096].reshape(1, 4, 64, 16)
    cache = kvik.PagedKVCache(keys=k, values=v)
    kept = memory.copy()
    assert same(kvik.attend(q, k, v, mask=mask, out=out), want)
    memory[:] = kept
    assert same(cache.paged_attention(q, mask=mask, out=out), want)


# Rows of a cache's own memory, given back to it.


def test_a_cache_takes_views_of_its_own_memory(make_cache):
    cache, rows = make_cache(), make_rows(9)
    cache.update_and_fetch(*rows)
    k, v = cache.state
    cache.update_and_fetch(k, v)
    assert holds(cache, [rows, rows])
    cache.trim(9)  # the rows to come lie where those given lie
    cache.trim(5)
    cache.update_and_fetch(k[:, :, 2:8], v[:, :, 2:8])
    assert holds(cache, [tuple(a[:, :, :4] for a in rows), tuple(a[:, :, 2:8] for a in rows)])
    cache.state = tuple(a[:, :, 3:] for a in cache.state)
    assert cache.offset == 7
    before = tuple(bits(a).copy() for a in cache.state)
    cache.keys = cache.keys[:, :, ::-1]
    cache.values = cache.values[:, :, ::-1]
    for array, was in zip(cache.state, before, strict=True):
        assert same(array, was[:, :, ::-1])
    fork = cache.fork()
    cache.state = fork.state
    assert holds(cache, [fork.state]) and same(k, rows[0]) and same(v, rows[1])


def test_pages_and_codes_of_a_cache_go_back_into_it():
    cache, rows = kvik.PagedKVCache(block_size=4, num_blocks=8), make_rows(9)
    cache.update_without_fetch(*rows)
    cache.import_pages(cache.key_cache, cache.value_cache, cache.block_table()[:2], 7)
    assert holds(cache, [tuple(a[:, :, :7] for a in rows)])
    small = kvik.PagedKVCache(kv_quant_config="q8")
    small.update_without_fetch(*rows)
    before = small.keys
    small.import_codes(small.export_codes())
    assert same(small.keys, before)


# Nothing to compute


@pytest.mark.parametrize("mask", [None, "causal", "array"])
@pytest.mark.parametrize("with_out", [False, True])
@pytest.mark.parametrize(
    ("batch", "q_len", "kv_len", "dk", "dv"),
    [
        (1, 0, 10, 16, 16),
        (3, 0, 10, 16, 16),
        (0, 4, 10, 16, 16),
        (0, 0, 0, 16, 16),
        (1, 4, 10, 16, 0),
        (1, 4, 0, 16, 16),
        (1, 0, 0, 16, 16),
        (2, 0, 10, 0, 16),
    ],
)
def test_attend_over_nothing_gives_nothing_or_zeros(batch, q_len, kv_len, dk, dv, mask, with_out):
    q = np.ones((batch, 8, q_len, dk), np.float32)
    k, v = np.ones((batch, 2, kv_len, dk), np.float32), np.ones((batch, 2, kv_len, dv), np.float32)
    out = np.full((batch, 8, q_len, dv), 7, np.float32) if with_out else None
    how = np.ones((q_len, kv_len), bool) if mask == "array" else mask
    got = kvik.attend(q, k, v, mask=how, out=out)
    assert got.shape == (batch, 8, q_len, dv) and got.dtype == np.float32 and not got.any()
    assert out is None or got is out
    with pytest.raises(ValueError, match="heads"):
        kvik.attend(q[:, :7], k, v, mask=how)
    with pytest.raises(ValueError, match="mask"):
        kvik.attend(q, k, v, mask=np.ones((q_len, kv_len + 1), bool))
    with pytest.raises(ValueError, match="sinks"):
        kvik.attend(q, k, v, sinks=np.zeros(7, np.float32))


@pytest.mark.parametrize("method", ["paged_attention", "attend"])
@pytest.mark.parametrize("options", [{}, {"kv_quant_config": "q8"}, {"attention_impl": "gather"}])
def test_a_paged_cache_attends_to_nothing(method, options):
    cache = kvik.PagedKVCache(**options)
    cache.update_without_fetch(*make_rows(10, batch=2))
    attend = getattr(cache, method)
    none = np.ones((2, 4, 0, 8), np.float32)
    assert attend(none).shape == (2, 4, 0, 8)
    assert attend(none, mask=np.ones((0, 10), bool)).shape == (2, 4, 0, 8)
    out = np.ones((2, 4, 0, 8), np.float16)
    assert attend(none, out=out) is out
    for wrong in (none[:1], none[:, :3], none[..., :7]):
        with pytest.raises(ValueError, match="batch rows|heads|head dims"):
            attend(wrong)
    with pytest.raises(ValueError, match="mask"):
        attend(none, mask=np.ones((0, 9), bool))
    cache.trim(10)
    assert attend(none).shape == (2, 4, 0, 8)
    assert cache.paged_stats()["paged_attention_bailouts_by_phase_reason"] == {}


def test_values_without_width_in_a_paged_cache():
    cache = kvik.PagedKVCache()
    cache.update_without_fetch(*make_rows(10, head_dim_v=0))
    assert cache.paged_attention(np.ones((1, 4, 3, 8), np.float32)).shape == (1, 4, 3, 0)


@pytest.mark.parametrize("name", [f.name for f in kvik.formats()])
@pytest.mark.parametrize("shape", [(0, 64), (3, 0, 64), (0, 0, 64)])
def test_no_rows_are_encoded_and_decoded(name, shape):
    codes = kvik.encode(np.zeros(shape, np.float32), name)
    assert codes.shape[:-1] == shape[:-1] and codes.dtype == np.uint8
    assert kvik.decode(codes, name, 64).shape == shape


def test_rows_without_width_are_encoded_and_decoded():
    codes = kvik.encode(np.zeros((3, 0), np.float32), "f32")
    assert codes.shape == (3, 0) and kvik.decode(codes, "f32", 0).shape == (3, 0)


def test_no_rows_change_no_cache(make_cache):
    cache = make_cache()
    cache.update_and_fetch(*make_rows(0))
    cache.update_and_fetch(*make_rows(3))
    cache.update_and_fetch(*make_rows(0))
    assert holds(cache, [make_rows(3)])


# Views


class Managed(ctypes.Structure):
    """The start of DLManagedTensorVersioned; of DLManagedTensor from `tensor` on."""

    _fields_ = [
        ("version", ctypes.c_uint32 * 2),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("data", ctypes.c_void_p),
    ]


def capsule_data(capsule: Any, versioned: bool) -> int:
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    if versioned:
        return Managed.from_address(get(capsule, b"dltensor_versioned")).data
    return ctypes.c_void_p.from_address(get(capsule, b"dltensor")).value


def overwrite(array: Any, **options: Any) -> None:
    """As a library that takes DLPack and does not look at its flag for read-only memory."""
    capsule = array.__dlpack__(**options)
    ctypes.memset(capsule_data(capsule, "max_version" in options), 0, array.nbytes)


def every_view(cache: Any) -> list[Any]:
    views = [*cache.state, cache.keys, cache.values, *cache.update_and_fetch(*make_empty(cache))]
    if hasattr(cache, "active_block_slices"):
        views += [a for _, k, v in cache.active_block_slices() for a in (k, v)]
    if hasattr(cache, "export_pages"):
        views += [cache.key_cache, cache.value_cache]
    return views + [views[0][:, 1:], views[1].transpose(0, 2, 1, 3), views[0].reshape(-1)]


def make_empty(cache: Any) -> tuple[Any, Any]:
    empty = make_rows(0, dtype=np.float32)
    if isinstance(cache.keys, kvik.BFloat16Array):
        return tuple(kvik.BFloat16Array(np.zeros(a.shape, np.uint16)) for a in empty)
    return tuple(a.astype(cache.keys.dtype) for a in empty)


OPTIONS = [{}, {"max_version": (1, 0)}, {"max_version": (1, 0), "copy": None}, {"copy": True}]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("dtype", [np.float32, np.float16, "own bf16"])
def test_whoever_writes_what_dlpack_gives_writes_no_cache(make_cache, options, dtype):
    cache, rows = make_cache(), make_rows(9, dtype=BF16 if dtype == "own bf16" else dtype)
    given = [kvik.BFloat16Array(bits(a)) for a in rows] if dtype == "own bf16" else rows
    cache.update_and_fetch(*given)
    for view in every_view(cache):
        if isinstance(cache, kvik.PagedKVCache) and isinstance(view, np.ndarray):
            if "max_version" in options:
                overwrite(view, **options)  # copies of the cache: the flag says read-only
        else:
            overwrite(view, **options)
        assert holds(cache, [rows])


def test_memory_itself_is_given_where_it_is_asked_for(make_owned):
    cache, rows = make_owned(), make_rows(9)
    cache.update_and_fetch(*rows)
    view = cache.keys
    same_memory = np.from_dlpack(view, copy=False)
    assert address(same_memory) == address(view) and not same_memory.flags.writeable
    assert address(np.from_dlpack(view)) != address(view)
    with pytest.raises(BufferError):
        view.__dlpack__(copy=False)  # a capsule that cannot say read-only


@pytest.mark.parametrize(
    "of",
    [
        lambda view: view,
        lambda view: view[:, :, 1:3],
        np.asarray,
        lambda view: view.view(np.ndarray),
        lambda view: view.view(np.uint32),
        lambda view: np.frombuffer(memoryview(view.reshape(-1)), np.float32),
        lambda view: np.lib.stride_tricks.as_strided(view, view.shape),
    ],
)
def test_no_view_becomes_writable(make_owned, of):
    cache, rows = make_owned(), make_rows(9, heads=1)
    cache.update_and_fetch(*rows)
    array = of(cache.keys)
    assert not array.flags.writeable
    with pytest.raises(ValueError, match="WRITEABLE"):
        array.setflags(write=True)
    with pytest.raises(ValueError, match="read-only"):
        array[...] = 0
    with pytest.raises(ValueError, match="read-only"):
        np.add(1, 1, out=array)
    assert holds(cache, [rows])


def test_what_numpy_makes_of_a_view_is_an_ordinary_array(make_owned):
    cache, rows = make_owned(), make_rows(9)
    cache.update_and_fetch(*rows)
    view = cache.keys
    assert type(view) is kvik.CacheView and isinstance(view, np.ndarray)
    assert type(view + 1) is np.ndarray and (view + 1).flags.writeable
    assert type(np.asarray(view)) is np.ndarray and address(np.asarray(view)) == address(view)
    assert isinstance(view.sum(), np.floating) and isinstance(view[0, 0, 0, 0], np.float32)
    own = view.copy()
    own[...] = 5
    assert address(np.from_dlpack(own)) == address(own)  # nobody else has it
    assert same(pickle.loads(pickle.dumps(view)), rows[0])
    assert same(copy.deepcopy(view), rows[0]) and holds(cache, [rows])
    q = some(1, 4, 3, 8)
    assert same(kvik.attend(q, *cache.state), kvik.attend(q, *rows))
