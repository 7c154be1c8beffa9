"""The paged cache as nodes of MLX's graph: what is lazy, in which order it runs, and what an error
leaves."""

from __future__ import annotations

import copy
import gc
import subprocess
import sys
import weakref

import kvik
import kvik.mlx as kmlx
import mlx.core as mx
import numpy as np
import pytest
from kvik.mlx import PagedKVCache, extension, paged, snapshots
from mlx_rows import joined, random_rows, same

pytestmark = pytest.mark.usefixtures("with_extension")


def rows_written(cache):
    """Rows that have reached the pages."""
    return cache._raw.offset


def step(cache, rows, queries, mask=None):
    cache.update_without_fetch(rows, rows)
    return cache.attend(queries, mask=mask)


def failing_rows(num_rows):
    """Rows whose evaluation MLX's CPU back end refuses."""
    rows = mx.zeros((2, num_rows, 4), mx.float16)
    rows = mx.gather_mm(rows, mx.zeros((2, 4, 4), mx.float16), rhs_indices=mx.array([0, 1]))
    return rows[None].astype(mx.float32)


def test_nothing_is_evaluated_before_somebody_wants_it():
    cache, rows = PagedKVCache(), random_rows(5)
    out = step(cache, rows * 2, random_rows(5, heads=4) + 1, "causal")
    assert cache.offset == cache.size() == 5 and rows_written(cache) == 0
    mx.eval(out)
    assert cache.offset == rows_written(cache) == 5


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
@pytest.mark.parametrize("mask", [None, "causal"])
@pytest.mark.parametrize("batch", [1, 2])
def test_the_bits_are_those_of_the_eager_path(monkeypatch, dtype, mask, batch):
    lazy, eager, outs = PagedKVCache(block_size=4), PagedKVCache(block_size=4), []
    parts = [
        (
            random_rows(n, batch=batch, dtype=dtype),
            random_rows(n, heads=4, batch=batch, dtype=dtype),
        )
        for n in (7, 1, 1, 3, 1)
    ]
    for rows, queries in parts:
        outs.append(step(lazy, rows, queries, mask))
    assert rows_written(lazy) == 0
    mx.eval(outs)
    monkeypatch.setattr(paged, "append_extension", lambda: None)
    for (rows, queries), out in zip(parts, outs, strict=True):
        assert same(out, step(eager, rows, queries, mask))
    assert lazy.paged_stats()["paged_attention_calls"] == len(parts)


def test_steps_of_one_graph_run_in_order_whatever_is_evaluated_first():
    cache, parts, outs = PagedKVCache(block_size=4), [], []
    for _ in range(30):
        parts.append(random_rows(1))
        outs.append(step(cache, parts[-1], random_rows(1, heads=4, seed=1)))
    mx.eval(outs[-1])
    assert rows_written(cache) == 30
    for i in (17, 3, 25):
        other = PagedKVCache(block_size=4)
        alone = joined(parts[: i + 1])
        assert same(outs[i], step(other, alone, random_rows(1, heads=4, seed=1)))
    assert same(cache.keys, joined(parts))


def test_steps_run_ahead_of_each_other():
    cache, parts, outs = PagedKVCache(block_size=4), [], []
    for _ in range(40):
        parts.append(random_rows(1))
        outs.append(step(cache, parts[-1], random_rows(1, heads=4, seed=1)))
        mx.async_eval(outs[-1])
    assert cache.offset == 40 and same(cache.values, joined(parts))
    other = PagedKVCache()
    assert same(outs[20], step(other, joined(parts[:21]), random_rows(1, heads=4, seed=1)))


@pytest.mark.parametrize(
    "read",
    [
        lambda cache: cache.state,
        lambda cache: cache.keys,
        lambda cache: cache.fork(),
        copy.deepcopy,
        lambda cache: cache.paged_stats(),
        lambda cache: cache.block_table(),
        lambda cache: cache.export_codes(),
        lambda cache: cache.nbytes,
        lambda cache: cache.trim(1),
    ],
)
def test_what_needs_the_rows_evaluates_first_what_is_pending(read):
    cache, rows = PagedKVCache(), random_rows(9)
    cache.update_without_fetch(rows + 0, rows)
    result = read(cache)
    if isinstance(result, tuple | mx.array):
        mx.eval(result)
    assert rows_written(cache) >= 8


def test_attention_that_nobody_evaluated_yet_keeps_its_rows_through_a_trim():
    cache, rows, queries = PagedKVCache(block_size=4), random_rows(10), random_rows(1, heads=4)
    out = step(cache, rows, queries)
    cache.trim(6)
    other = random_rows(6, seed=9)
    step(cache, other, queries)
    fresh = PagedKVCache(block_size=4)
    assert same(out, step(fresh, rows, queries))
    assert same(cache.keys, joined([rows[:, :, :4], other]))


def test_forks_with_pending_rows_go_on_apart():
    cache, rows = PagedKVCache(block_size=4), random_rows(6)
    cache.update_without_fetch(rows, rows)
    fork = cache.fork()
    mine, others = random_rows(2, seed=5), random_rows(3, seed=6)
    cache.update_without_fetch(mine, mine)
    fork.update_without_fetch(others, others)
    assert same(cache.keys, joined([rows, mine])) and same(fork.keys, joined([rows, others]))


def test_errors_of_shape_and_room_come_when_the_node_is_built():
    cache = PagedKVCache(block_size=4, num_blocks=2)
    rows = random_rows(6)
    cache.update_without_fetch(rows, rows)
    with pytest.raises(ValueError, match="the new rows are"):
        cache.update_without_fetch(random_rows(1, dim=48), random_rows(1, dim=48))
    with pytest.raises(ValueError, match="the new rows are"):
        cache.update_without_fetch(rows.astype(mx.float16), rows.astype(mx.float16))
    with pytest.raises(kvik.OutOfPagesError, match="need 9 > have 8"):
        cache.update_without_fetch(random_rows(3), random_rows(3))
    with pytest.raises(ValueError, match="no multiple"):
        cache.attend(random_rows(1, heads=3))
    with pytest.raises(ValueError, match="exceeds the 6 cached rows"):
        cache.attend(random_rows(7, heads=4))
    assert cache.offset == 6 and rows_written(cache) == 0
    cache.update_without_fetch(random_rows(2, seed=3), random_rows(2, seed=3))
    assert cache.offset == 8 and same(cache.keys[:, :, :6], rows)


def test_room_is_taken_when_the_node_is_built():
    """Forks that fill the pool later cannot take it."""
    cache, rows = PagedKVCache(block_size=16, num_blocks=2), random_rows(16)
    cache.update_without_fetch(rows, rows)
    forks = [cache.fork() for _ in range(6)]
    cache.update_without_fetch(rows, rows)
    for fork in forks:
        fork.update_without_fetch(rows, rows)
        mx.eval(fork.state)
    assert same(cache.keys, joined([rows, rows]))
    for fork in forks:
        assert same(fork.keys, joined([rows, rows]))


def test_rows_that_cannot_be_evaluated_lose_no_stored_row_and_can_be_trimmed_away():
    cache, rows, queries = PagedKVCache(block_size=4), random_rows(6), random_rows(1, heads=4)
    mx.eval(step(cache, rows, queries))
    bad = failing_rows(2)
    out = step(cache, bad, queries)
    for wants in (lambda: mx.eval(out), lambda: cache.state, lambda: cache.trim(1)):
        with pytest.raises(RuntimeError, match="float32"):
            mx.eval(wants())
    assert cache.offset == 8
    assert cache.trim(2) == 2
    assert cache.offset == 6 and same(cache.keys, rows)
    more = random_rows(2, seed=4)
    mx.eval(step(cache, more, queries))
    assert same(cache.keys, joined([rows, more]))


def test_rows_that_a_low_bit_format_refuses_are_an_error_once_and_lose_no_stored_row():
    cache = PagedKVCache(kv_quant_config="q8")
    rows, queries = random_rows(6, dim=64), random_rows(1, heads=4, dim=64)
    mx.eval(step(cache, rows, queries))
    kept = np.array(cache.keys)
    bad = mx.full((1, 2, 1, 64), float("nan"))
    out = step(cache, bad, queries)
    with pytest.raises(RuntimeError, match="cannot store"):
        mx.eval(out)
    with pytest.raises(RuntimeError, match="back at offset 6.*cannot store"):
        cache.trim(1)
    assert cache.offset == 6 and np.array_equal(np.array(cache.keys), kept)
    mx.eval(step(cache, rows, queries))
    assert cache.offset == 12 and rows_written(cache) == 12


@pytest.mark.parametrize("fetch", [True, False])
def test_transforms_are_refused_by_name(fetch):
    cache, rows = PagedKVCache(), random_rows(2)
    cache.update_and_fetch(rows, rows)

    def update(x):
        return cache.update_and_fetch(x, x)[0].sum()

    def attend(x):
        return cache.attend(x, mask="causal").sum()

    for function, x in ((update, rows), (attend, random_rows(2, heads=4))):
        for transform in (mx.compile, mx.grad):
            with pytest.raises(ValueError, match="inside mx.compile, mx.grad or mx.vmap"):
                mx.eval(transform(function)(x))
        with pytest.raises(ValueError, match="inside mx.compile, mx.grad or mx.vmap"):
            mx.eval(mx.vmap(function)(mx.stack([x, x])))
    assert cache.offset == 2 and same(cache.keys, rows)


def test_the_output_joins_its_heads_without_a_copy():
    cache, rows = PagedKVCache(), random_rows(5)
    out = step(cache, rows, random_rows(5, heads=4), "causal")
    joined_heads = out.transpose(0, 2, 1, 3).reshape(1, 5, -1)
    mx.eval(out, joined_heads)
    address = [np.from_dlpack(array).ctypes.data for array in (out, joined_heads)]
    assert address[0] == address[1]


def test_queries_of_any_strides_are_attended():
    cache, rows = PagedKVCache(), random_rows(5)
    cache.update_without_fetch(rows, rows)
    queries = random_rows(5, heads=4)
    wanted = cache.attend(queries, mask="causal")
    turned = mx.contiguous(queries.swapaxes(2, 3)).swapaxes(2, 3)
    assert same(cache.attend(turned, mask="causal"), wanted)
    apart = mx.contiguous(queries.swapaxes(1, 2)).swapaxes(1, 2)
    assert same(cache.attend(apart, mask="causal"), wanted)
    one = mx.broadcast_to(queries[:, :1], queries.shape)
    assert same(cache.attend(one, mask="causal")[:, 0], wanted[:, 0])


def test_steps_of_different_streams_run_in_order():
    cache, parts, outs, held = PagedKVCache(block_size=4), [], [], []
    streams = [mx.new_stream(mx.cpu) for _ in range(3)]
    for turn in range(24):
        with mx.stream(streams[turn % 3]):
            parts.append(random_rows(1 + turn % 2, seed=turn))
            held.append(cache.update_and_fetch(parts[-1] * 1.0, parts[-1]))
            outs.append(cache.attend(random_rows(1, heads=4, seed=1)))
            if turn % 5 == 4:
                mx.async_eval(outs[-1])
    for i in (23, 4, 11):
        assert same(held[i][0], joined(parts[: i + 1]))
        other = PagedKVCache()
        assert same(outs[i], step(other, joined(parts[: i + 1]), random_rows(1, heads=4, seed=1)))


TELLS = """
import warnings
import kvik, kvik.mlx, mlx.core as mx
rows, queries = mx.ones((1, 2, 3, 64)), mx.ones((1, 4, 1, 64))
cache = kvik.mlx.PagedKVCache(kv_quant_config="q8")
for route in ("packed", "mirror", "mirror"):
    cache.reconfigure(attention_impl=route)
    cache.update_without_fetch(rows[:, :, :1], rows[:, :, :1])
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        out = cache.attend(queries)
        mx.eval(out)
    print([issubclass(w.category, kvik.FallbackWarning) for w in told])
"""


def test_what_a_node_falls_back_to_is_told_once_by_the_next_call():
    """In a process of its own: what it tells, it tells once."""
    done = subprocess.run([sys.executable, "-c", TELLS], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:3] == ["[]", "[]", "[True]"]


def test_pending_nodes_keep_no_cache_alive():
    cache, rows = PagedKVCache(), random_rows(5)
    out = step(cache, rows, random_rows(5, heads=4), "causal")
    seen = weakref.ref(cache)
    del cache
    gc.collect()
    assert seen() is None
    mx.eval(out)
    assert out.shape == (1, 4, 5, 4)


def test_fetched_rows_are_gathered_after_they_are_written():
    cache, parts, held = PagedKVCache(block_size=4), [], []
    for n in (3, 1, 4):
        parts.append(random_rows(n))
        held.append(cache.update_and_fetch(parts[-1] * 1.0, parts[-1]))
    assert rows_written(cache) == 0
    for i, (keys, values) in enumerate(held):
        assert same(keys, joined(parts[: i + 1])) and same(values, joined(parts[: i + 1]))


def test_random_operations_on_pending_rows_match_a_list_of_rows():
    rng = np.random.default_rng(7)
    pairs = [(PagedKVCache(block_size=4), random_rows(0))]
    queries = random_rows(1, heads=4, seed=99)
    checks = []
    for turn in range(150):
        at = int(rng.integers(len(pairs)))
        cache, rows = pairs[at]
        kind = rng.integers(8)
        if kind < 5:
            new = random_rows(int(rng.integers(1, 6)), seed=turn)
            rows = joined([rows, new]) if rows.shape[2] else new
            out = step(cache, new * 1.0, queries)
            checks.append((out, rows))
            if rng.integers(2):
                mx.async_eval(out)
        elif kind == 5 and len(pairs) < 4:
            pairs.append((copy.deepcopy(cache), rows))
        elif kind == 6:
            n = int(rng.integers(0, 7))
            n = cache.trim(n)
            rows = rows[:, :, : rows.shape[2] - n]
        else:
            assert cache.offset == rows.shape[2]
        pairs[at] = (cache, rows)
    for out, rows in checks[::7]:
        other = PagedKVCache(block_size=16)
        assert same(out, step(other, rows, queries))
    for cache, rows in pairs:
        assert cache.offset == rows.shape[2]
        if rows.shape[2]:
            assert same(cache.keys, rows) and same(cache.values, rows)


def test_a_core_with_other_functions_is_refused():
    with pytest.raises(Exception, match="(?i)capsule|invalid|incompatible"):
        extension.append_extension().PagedNodes(
            PagedKVCache()._raw._handle(), PagedKVCache()._raw._handle()
        )


def test_without_the_extension_steps_run_at_once(monkeypatch):
    for user in (paged, snapshots):
        monkeypatch.setattr(user, "append_extension", lambda: None)
    cache, rows = PagedKVCache(), random_rows(4)
    cache.update_without_fetch(rows, rows)
    assert rows_written(cache) == 4 and kmlx.PagedKVCache is PagedKVCache
