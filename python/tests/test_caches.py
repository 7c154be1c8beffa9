"""Ranges and faults that the three caches answer alike."""

from __future__ import annotations

import copy
import threading

import kvik
import numpy as np
import pytest
from rows import append, holds, make_rows, same


def test_batch_and_head_dims_that_differ(make_cache):
    cache = make_cache()
    parts = [
        make_rows(n, seed=n, batch=3, heads=2, head_dim_k=16, head_dim_v=24) for n in (5, 1, 9)
    ]
    for part in parts:
        append(cache, *part)
    assert holds(cache, parts)
    assert cache.offset == cache.size() == 15
    assert cache.state[1].shape == (3, 2, 15, 24)


def test_values_of_no_width(make_cache):
    cache = make_cache()
    keys, values = cache.update_and_fetch(*make_rows(3, head_dim_v=0))
    assert values.shape == (1, 2, 3, 0)
    assert same(keys, make_rows(3)[0])


@pytest.mark.parametrize(
    "other",
    [
        {"dtype": np.float16},
        {"heads": 1},
        {"batch": 2},
        {"head_dim_k": 16},
        {"head_dim_v": 16},
    ],
    ids=["dtype", "heads", "batch", "head_dim_k", "head_dim_v"],
)
def test_other_rows_than_the_first_are_refused_and_change_nothing(make_cache, other):
    cache = make_cache()
    rows = make_rows(5)
    append(cache, *rows)
    before = cache.meta_state
    with pytest.raises(ValueError):
        append(cache, *make_rows(2, **other))
    assert cache.meta_state == before
    assert holds(cache, [rows])


def test_keys_and_values_of_two_dtypes_stay_two(make_cache):
    cache = make_cache()
    keys, values = make_rows(3)[0], make_rows(3, dtype=np.float16)[1]
    append(cache, keys, values)
    assert same(cache.state[0], keys) and same(cache.state[1], values)


@pytest.mark.parametrize(("n", "removed"), [(-3, 0), (0, 0), (4, 4), (10, 10), (300, 10)])
def test_trim_takes_any_number(make_cache, n, removed):
    cache = make_cache()
    rows = make_rows(10)
    append(cache, *rows)
    assert cache.trim(n) == removed
    assert cache.offset == 10 - removed
    if removed < 10:
        assert holds(cache, [tuple(a[:, :, : 10 - removed] for a in rows)])
    assert cache.is_trimmable() is True


def test_a_state_replaces_the_rows_of_a_used_cache(make_cache):
    cache = make_cache()
    append(cache, *make_rows(9, batch=2))
    cache.trim(2)
    rows = make_rows(4, seed=3, heads=1, head_dim_k=32, dtype=np.float16)
    cache.state = rows
    assert cache.offset == 4
    assert holds(cache, [rows])
    more = make_rows(2, seed=4, heads=1, head_dim_k=32, dtype=np.float16)
    append(cache, *more)
    assert holds(cache, [rows, more])


@pytest.mark.parametrize("nothing", [None, (None, None), [], ()], ids=str)
def test_a_state_of_nothing_empties(make_cache, nothing):
    cache = make_cache()
    append(cache, *make_rows(3))
    cache.state = nothing
    assert cache.empty() and cache.offset == 0
    assert cache.state == (None, None)
    assert cache.keys is None and cache.values is None


@pytest.mark.parametrize(
    "state",
    [(None, make_rows(2)[1]), (1,), 7, make_rows(2)[0]],
    ids=["half", "one", "int", "array"],
)
def test_what_is_no_state_is_refused_and_changes_nothing(make_cache, state):
    cache = make_cache()
    rows = make_rows(3)
    append(cache, *rows)
    with pytest.raises((ValueError, TypeError)):
        cache.state = state
    assert holds(cache, [rows])


def test_state_then_meta_state_restores(make_cache):
    cache = make_cache()
    rows = make_rows(7)
    append(cache, *rows)
    cache.trim(1)
    restored = make_cache()
    restored.state = cache.state
    restored.meta_state = cache.meta_state
    assert restored.meta_state == cache.meta_state
    assert holds(restored, [tuple(a[:, :, :6] for a in rows)])


@pytest.mark.parametrize("meta", [["1"], ["a", "b", "c"], ["4", "-1", "x"], ["1"] * 4], ids=str)
def test_a_meta_state_that_does_not_fit_is_refused_and_changes_nothing(make_cache, meta):
    cache = make_cache()
    append(cache, *make_rows(5))
    before = cache.meta_state
    with pytest.raises(ValueError):
        cache.meta_state = meta
    assert cache.meta_state == before


@pytest.mark.parametrize("nothing", [None, [], ()], ids=str)
def test_an_empty_meta_state_is_ignored(make_cache, nothing):
    cache = make_cache()
    append(cache, *make_rows(5))
    before = cache.meta_state
    cache.meta_state = nothing
    assert cache.meta_state == before


@pytest.mark.parametrize(
    "duplicate", [lambda c: c.fork(), copy.copy, copy.deepcopy], ids=["fork", "copy", "deepcopy"]
)
def test_copies_go_on_apart(make_cache, duplicate):
    cache = make_cache()
    rows = make_rows(6)
    append(cache, *rows)
    other = duplicate(cache)
    assert type(other) is type(cache)
    ours, theirs = make_rows(3, seed=2), make_rows(5, seed=3)
    append(cache, *ours)
    append(other, *theirs)
    assert holds(cache, [rows, ours])
    assert holds(other, [rows, theirs])
    other.trim(8)
    append(other, *ours)
    assert holds(cache, [rows, ours])
    assert holds(other, [tuple(a[:, :, :3] for a in rows), ours])


def test_keys_and_values_can_be_set(make_cache):
    cache = make_cache()
    append(cache, *make_rows(4))
    keys, values = make_rows(4, seed=2)
    cache.keys = keys
    cache.values = values
    assert same(cache.keys, keys) and same(cache.values, values)
    longer = make_rows(9, seed=3)
    cache.keys = longer[0]
    cache.values = longer[1]
    assert cache.offset == 9 and holds(cache, [longer])
    cache.keys = None
    assert cache.empty()


def test_updates_of_no_rows_change_nothing(make_cache):
    cache = make_cache()
    rows = make_rows(3)
    append(cache, *rows)
    append(cache, *make_rows(0))
    assert holds(cache, [rows])


def test_masks_in_both_forms(make_cache):
    cache = make_cache()
    append(cache, *make_rows(5))
    assert cache.make_mask(1) is None
    assert cache.make_mask(3) == "causal"
    array = cache.make_mask(3, return_array=True)
    assert array.dtype == np.bool_
    np.testing.assert_array_equal(array, np.arange(8) <= np.arange(5, 8)[:, None])
    window = cache.make_mask(2, window_size=3)
    position = np.arange(5, 7)[:, None]
    np.testing.assert_array_equal(
        window, (np.arange(7) <= position) & (np.arange(7) > position - 3)
    )
    added = cache.make_mask(query_len=2, key_len=4, dtype=np.float32)
    assert added.dtype == np.float32
    np.testing.assert_array_equal(added == 0, np.arange(4) <= np.arange(2, 4)[:, None])
    assert (added[added != 0] < -1e30).all()
    assert cache.make_mask(query_len=2, key_len=4, dtype="bfloat16").dtype == "bfloat16"


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"N": 0},
        {"N": 2, "window_size": 0},
        {"query_len": 3},
        {"query_len": 3, "key_len": 2},
        {"N": 1, "query_len": 1, "key_len": 1},
        {"query_len": 1, "key_len": 1, "dtype": np.int8},
    ],
    ids=str,
)
def test_masks_out_of_range_are_refused(make_cache, arguments):
    with pytest.raises(ValueError):
        make_cache().make_mask(**arguments)


def test_two_threads_on_two_caches(make_cache):
    def work(seed: int, results: dict[int, bool]) -> None:
        cache, parts = make_cache(), []
        for step in range(60):
            part = make_rows(1 + step % 3, seed=100 * seed + step)
            append(cache, *part)
            parts.append(part)
        results[seed] = holds(cache, parts)

    results: dict[int, bool] = {}
    threads = [threading.Thread(target=work, args=(seed, results)) for seed in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {1: True, 2: True}


def test_threads_that_meet_in_one_cache_wait(make_cache):
    cache = make_cache()
    rows = make_rows(1)
    threads = [
        threading.Thread(target=lambda: [append(cache, *rows) for _ in range(25)]) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert cache.offset == 100
    assert holds(cache, [rows] * 100)


def test_forks_on_two_threads(make_cache):
    cache = make_cache()
    rows = make_rows(9)
    append(cache, *rows)
    forks = [cache.fork() for _ in range(4)]

    def work(fork, seed: int) -> None:
        for step in range(20):
            append(fork, *make_rows(1, seed=100 * seed + step))

    threads = [threading.Thread(target=work, args=(f, i + 1)) for i, f in enumerate(forks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, fork in enumerate(forks):
        added = [make_rows(1, seed=100 * (i + 1) + step) for step in range(20)]
        assert holds(fork, [rows, *added])
    assert holds(cache, [rows])


def test_numbers_out_of_range_are_refused_at_construction():
    with pytest.raises(ValueError, match="step"):
        kvik.TailOwnedKVCache(step=0)
    with pytest.raises(ValueError, match="block"):
        kvik.BlockOwnedKVCache(block_size=0)
    with pytest.raises(ValueError, match="block_size"):
        kvik.PagedKVCache(block_size=0)
    for kind in (kvik.TailOwnedKVCache, kvik.BlockOwnedKVCache, kvik.PagedKVCache):
        with pytest.raises(ValueError, match="both keys and values"):
            kind(keys=make_rows(2)[0])
        with pytest.raises(ValueError, match="no keys"):
            kind(offset=3)
        with pytest.raises(ValueError, match="offset"):
            kind(keys=make_rows(2)[0], values=make_rows(2)[1], offset=3)


@pytest.mark.parametrize("kind", [kvik.TailOwnedKVCache, kvik.BlockOwnedKVCache, kvik.PagedKVCache])
def test_a_cache_is_made_of_rows(kind):
    keys, values = make_rows(6)
    assert holds(kind(keys=keys, values=values), [(keys, values)])
    cut = kind(keys=keys, values=values, offset=4)
    assert holds(cut, [(keys[:, :, :4], values[:, :, :4])])


@pytest.mark.parametrize("kind", [kvik.TailOwnedKVCache, kvik.BlockOwnedKVCache, kvik.PagedKVCache])
def test_from_cache_takes_ours_and_those_of_others(kind, make_cache):
    rows = make_rows(6)
    source = make_cache()
    append(source, *rows)
    made = kind.from_cache(source)
    append(made, *make_rows(1, seed=5))
    assert holds(source, [rows])
    assert holds(made, [rows, make_rows(1, seed=5)])

    class Stock:
        keys, values = make_rows(8)
        offset = 5

    assert holds(kind.from_cache(Stock()), [tuple(a[:, :, :5] for a in make_rows(8))])
    Stock.keys = Stock.values = None
    assert kind.from_cache(Stock()).empty()
    with pytest.raises(TypeError, match="keys, values and offset"):
        kind.from_cache(object())
