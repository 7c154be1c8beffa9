"""The contract of the tail- and the block-owned cache on MLX arrays."""

from __future__ import annotations

import copy
import random
import threading

import mlx.core as mx
import pytest
from kvik.mlx import BlockOwnedKVCache, TailOwnedKVCache
from mlx_lm.models.cache import KVCache, make_prompt_cache
from mlx_lm.models.llama import Model, ModelArgs
from mlx_rows import joined, random_rows, same

pytestmark = pytest.mark.usefixtures("appends")

OWNED = {"tail": lambda: TailOwnedKVCache(step=4), "block": lambda: BlockOwnedKVCache(block_size=4)}


@pytest.fixture(params=OWNED)
def make_owned(request):
    return OWNED[request.param]


def test_starts_empty_with_the_defaults():
    cache = TailOwnedKVCache()
    assert (cache.step, cache.mode, cache.offset, cache.size()) == (256, "contiguous_eval", 0, 0)
    assert (
        cache.empty() and cache.state == (None, None) and cache.nbytes == 0 and cache.is_trimmable()
    )
    assert BlockOwnedKVCache().block_size == 1024


@pytest.mark.parametrize(
    "name", [" Eval-Only ", "CONTIGUOUS_EVAL", "selected-slice-contiguous-eval"]
)
def test_modes_are_normalised(name):
    assert TailOwnedKVCache(mode=name).mode == name.strip().lower().replace("-", "_")


def test_another_mode_is_an_error_that_lists_the_modes():
    with pytest.raises(
        ValueError,
        match="eval_only, contiguous_eval, selected_slice_contiguous_eval, metal_copy_leaf",
    ):
        TailOwnedKVCache(keys="not looked at", mode="lazy")


def test_an_update_counts_exactly_the_new_rows(make_owned):
    cache = make_owned()
    cache.update_and_fetch(random_rows(3), random_rows(3, dim=8))
    cache.update_and_fetch(random_rows(1), random_rows(1, dim=8))
    stats = cache.tail_owner_stats()
    assert (stats["updates"], stats["arrays"]) == (2, 4)
    assert stats["bytes"] == 4 * 2 * (4 + 8) * 4
    assert stats["copies"] == 0 and stats["time_s"] > 0


def test_blocks_are_counted_one_by_one():
    cache = BlockOwnedKVCache(block_size=3)
    cache.update_without_fetch(random_rows(2), random_rows(2))
    cache.update_without_fetch(random_rows(3), random_rows(3))
    assert (cache.num_blocks, cache._updates) == (2, 3)
    slices = cache.active_block_slices()
    assert [(start, keys.shape[2]) for start, keys, _ in slices] == [(0, 3), (3, 2)]
    assert same(joined([keys for _, keys, _ in slices]), cache.keys)


def test_the_capacity_is_the_smallest_multiple_of_the_step():
    cache = TailOwnedKVCache(step=4)
    capacities = []
    for rows in (3, 2, 4, 1):
        cache.update_and_fetch(random_rows(rows), random_rows(rows))
        capacities.append(cache.capacity)
    assert capacities == [4, 8, 12, 12]
    assert cache.nbytes == 12 * 2 * 2 * 4 * 4
    cache.trim(9)
    cache.update_and_fetch(random_rows(1), random_rows(1))
    assert cache.capacity == 12


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16, mx.int32])
@pytest.mark.parametrize(("batch", "key_dim", "value_dim"), [(1, 4, 4), (3, 8, 2), (2, 5, 0)])
def test_fetches_all_rows_of_every_shape_and_dtype(make_owned, dtype, batch, key_dim, value_dim):
    cache, keys, values = make_owned(), [], []
    for rows in (1, 6, 2, 1):
        keys.append(random_rows(rows, dim=key_dim, batch=batch).astype(dtype))
        values.append(random_rows(rows, dim=value_dim, batch=batch).astype(dtype))
        fetched = cache.update_and_fetch(keys[-1], values[-1])
        assert same(fetched[0], joined(keys)) and same(fetched[1], joined(values))
    assert cache.offset == 10


def test_takes_rows_of_any_strides(make_owned):
    cache = make_owned()
    rows = mx.random.normal((1, 5, 2, 4))
    odd = random_rows(5, dim=8)[..., ::2]
    keys, values = cache.update_and_fetch(rows.transpose(0, 2, 1, 3), odd)
    assert same(keys, mx.contiguous(rows.transpose(0, 2, 1, 3))) and same(
        values, mx.contiguous(odd)
    )


def test_trim_takes_any_number(make_owned):
    cache = make_owned()
    cache.update_and_fetch(random_rows(10), random_rows(10))
    assert (cache.trim(-5), cache.offset) == (0, 10)
    assert (cache.trim(-(2**63)), cache.trim(0), cache.offset) == (0, 0, 10)
    assert (cache.trim(3), cache.offset) == (3, 7)
    assert (cache.trim(100), cache.offset) == (7, 0)


def test_rows_that_were_trimmed_never_reappear(make_owned):
    cache, first = make_owned(), random_rows(10)
    cache.update_and_fetch(first, first)
    cache.trim(9)
    new = random_rows(2)
    assert same(cache.update_and_fetch(new, new)[0], joined([first[:, :, :1], new]))
    cache.trim(3)
    assert same(cache.update_and_fetch(new, new)[0], new)


def test_a_rollback_of_the_whole_last_batch_leaves_no_trace(make_owned):
    prompt, next_row = random_rows(10), random_rows(1)
    for dropped in (1, 2, 3, 4):
        cache, control, draft = make_owned(), make_owned(), random_rows(4)
        for each in (cache, control):
            each.update_and_fetch(prompt, prompt)
        cache.update_and_fetch(draft, draft)
        assert cache.trim(dropped) == dropped
        kept = draft[:, :, : 4 - dropped]
        control.update_and_fetch(kept, kept)
        assert same(cache.state[0], control.state[0])
        assert same(
            cache.update_and_fetch(next_row, next_row)[1],
            control.update_and_fetch(next_row, next_row)[1],
        )


@pytest.mark.parametrize(
    "keys",
    [
        random_rows(1, heads=3),
        random_rows(1, dim=5),
        random_rows(1, batch=2),
        random_rows(1, dtype=mx.float16),
    ],
)
def test_other_shapes_and_dtypes_are_refused_and_nothing_changes(make_owned, keys):
    cache, rows = make_owned(), random_rows(3)
    cache.update_and_fetch(rows, rows)
    before = (cache.offset, cache.capacity, cache.tail_owner_stats()["bytes"])
    with pytest.raises(ValueError, match="does not fit|equal B, H and T"):
        cache.update_and_fetch(keys, keys)
    assert before == (cache.offset, cache.capacity, cache.tail_owner_stats()["bytes"])
    assert same(cache.keys, rows)


def test_no_rows_change_nothing(make_owned):
    cache, rows = make_owned(), random_rows(3)
    cache.update_and_fetch(rows, rows)
    assert same(cache.update_and_fetch(rows[:, :, :0], rows[:, :, :0])[0], rows)
    assert cache.tail_owner_stats()["updates"] == 1


def test_a_state_replaces_what_a_used_cache_holds(make_owned):
    cache, old, new = make_owned(), random_rows(9), random_rows(3, heads=5, dim=6)
    held = cache.update_and_fetch(old, old)
    cache.state = (new, new)
    assert cache.offset == 3 and same(cache.keys, new) and same(held[0], old)
    cache.update_and_fetch(new, new)
    assert same(cache.values, joined([new, new]))
    cache.state = (None, None)
    assert cache.empty() and cache.state == (None, None)
    cache.update_and_fetch(old, old)
    assert cache.offset == 9


def test_the_state_of_the_stock_cache_is_taken(make_owned):
    stock, rows, cache = KVCache(), random_rows(5), make_owned()
    stock.update_and_fetch(rows, rows)
    cache.state = stock.state
    assert cache.offset == 5 and same(cache.keys, rows)
    with pytest.raises(ValueError, match="does not fit"):
        cache.state = (rows, rows, 6)
    assert cache.offset == 5


def test_state_then_meta_state_restore(make_owned):
    cache, rows = make_owned(), random_rows(6)
    cache.update_and_fetch(rows, rows)
    cache.trim(1)
    for restored in (make_owned(), type(cache).from_state(cache.state, cache.meta_state)):
        restored.state = cache.state
        restored.meta_state = cache.meta_state
        assert restored.meta_state == cache.meta_state == ("4", "5", "contiguous_eval")
        assert same(restored.keys, rows[:, :, :5])
    assert same(type(cache).from_state(cache.state).values, rows[:, :, :5])


@pytest.mark.parametrize(
    "meta",
    [
        ("4", "7", "eval_only"),
        ("4", "-1", "eval_only"),
        ("0", "3", "eval_only"),
        ("4", "x", "eval_only"),
        ("4", "3", "other"),
        ("4",),
        ("4", "3", "eval_only", "1"),
        "431",
    ],
)
def test_a_meta_state_that_does_not_fit_is_refused_and_nothing_changes(make_owned, meta):
    cache, rows = make_owned(), random_rows(6)
    cache.update_and_fetch(rows, rows)
    with pytest.raises(ValueError):
        cache.meta_state = meta
    assert cache.meta_state == ("4", "6", "contiguous_eval") and same(cache.keys, rows)


def test_a_block_size_does_not_change_under_rows():
    cache = BlockOwnedKVCache(block_size=4)
    cache.meta_state = ("8", "0", "eval_only")
    assert cache.block_size == 8
    cache.update_without_fetch(random_rows(6), random_rows(6))
    with pytest.raises(ValueError, match="blocks of 8"):
        cache.meta_state = ("4", "6", "eval_only")


def test_deep_copies_go_on_apart(make_owned):
    cache, rows, a, b = make_owned(), random_rows(10), random_rows(2), random_rows(2)
    cache.update_and_fetch(rows, rows)
    other = copy.deepcopy(cache)
    assert same(other.update_and_fetch(b, b)[0], joined([rows, b]))
    assert same(cache.update_and_fetch(a, a)[0], joined([rows, a]))
    assert same(other.keys, joined([rows, b]))
    other.trim(5)
    assert same(other.update_and_fetch(a, a)[1], joined([rows[:, :, :7], a]))
    assert same(cache.values, joined([rows, a]))


def test_an_older_view_stays_as_it_is(make_owned):
    cache, parts, held = make_owned(), [], []
    for step in range(40):
        parts.append(random_rows(1 + step % 3))
        held.append((cache.update_and_fetch(parts[-1], parts[-1]), joined(parts)))
        if step % 7 == 6:
            kept = cache.offset - cache.trim(2)
            parts = [joined(parts)[:, :, :kept]]
    for (keys, values), wanted in held:
        assert same(keys, wanted) and same(values, wanted)


def test_views_outlive_the_cache(make_owned):
    cache, rows = make_owned(), random_rows(5)
    keys, _ = cache.update_and_fetch(rows, rows)
    del cache
    assert same(keys, rows)


@pytest.mark.parametrize("seed", range(6))
def test_random_operations_match_a_list_of_rows(make_owned, seed):
    """Handles, forks, held views and unevaluated updates against joined arrays."""
    choose = random.Random(seed)
    handles, held = [(make_owned(), None)], []
    for _ in range(60):
        at = choose.randrange(len(handles))
        cache, rows = handles[at]
        kind = choose.choice(
            ["append", "append", "append", "trim", "fork", "drop", "eval", "hold", "state"]
        )
        if kind == "append":
            new = random_rows(choose.choice([1, 1, 2, 7]))
            cache.update_and_fetch(new, new)
            handles[at] = (cache, new if rows is None else joined([rows, new]))
        elif kind == "trim" and rows is not None:
            n = choose.randrange(4)
            assert cache.trim(n) == min(n, rows.shape[2])
            handles[at] = (cache, rows[:, :, : max(rows.shape[2] - n, 0)])
        elif kind == "fork" and len(handles) < 5:
            handles.append((copy.deepcopy(cache), rows))
        elif kind == "drop" and len(handles) > 1:
            handles.pop(at)
        elif kind == "eval":
            mx.eval(cache.state)
        elif kind == "hold" and rows is not None:
            held.append((cache.keys, cache.values, rows))
        elif kind == "state" and rows is not None and choose.random() < 0.3:
            cache.state = (rows, rows)
        if choose.random() < 0.2 and held:
            held.pop(choose.randrange(len(held)))
    for cache, rows in handles:
        if rows is not None and rows.shape[2] > 0:
            assert same(cache.keys, rows) and same(cache.values, rows)
    for keys, values, rows in held:
        if rows.shape[2] > 0:
            assert same(keys, rows) and same(values, rows)


def test_two_threads_use_two_caches(make_owned):
    shared = random_rows(8)
    base = make_owned()
    base.update_and_fetch(shared, shared)
    mx.eval(base.state)
    forks, failed = [base, base.fork()], []

    def work(cache, seed):
        parts = [shared]
        for step in range(50):
            parts.append(random_rows(1 + step % 2, seed=seed * 1000 + step))
            keys, _ = cache.update_and_fetch(parts[-1], parts[-1])
            mx.eval(keys)
            if not same(keys, joined(parts)):
                failed.append((seed, step))
        mx.eval(cache.state)

    threads = [threading.Thread(target=work, args=(cache, i)) for i, cache in enumerate(forks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed and forks[0].offset == forks[1].offset == 83


def test_keys_and_values_can_be_set(make_owned):
    cache, rows, other = make_owned(), random_rows(4), random_rows(4)
    cache.update_and_fetch(rows, rows)
    cache.keys = other
    assert same(cache.keys, other) and same(cache.values, rows)
    longer = random_rows(7)
    cache.keys = longer
    assert cache.offset == 4
    cache.values = longer
    assert cache.offset == 7 and same(cache.values, longer)
    cache.keys = mx.depends(cache.keys, mx.zeros(3))
    cache.update_and_fetch(rows, rows)
    assert same(cache.keys, joined([longer, rows]))
    cache.offset = 3
    assert same(cache.keys, longer[:, :, :3])
    with pytest.raises(ValueError, match="does not fit"):
        cache.offset = 4
    cache.keys = None
    assert cache.empty()


def test_takes_the_rows_of_other_caches(make_owned):
    stock, rows = KVCache(), random_rows(5)
    stock.update_and_fetch(rows, rows)
    cls = type(make_owned())
    cache = cls.from_cache(stock)
    assert same(cache.keys, rows) and cache.offset == 5
    again = cls.from_cache(cache)
    again.update_and_fetch(rows, rows)
    assert same(cache.keys, rows) and same(again.keys, joined([rows, rows]))
    assert cls.from_cache(KVCache()).empty()


def test_from_cache_takes_the_step_of_the_entry():
    assert TailOwnedKVCache.from_cache(TailOwnedKVCache(step=8)).step == 8
    assert TailOwnedKVCache.from_cache(KVCache(), step=16, mode="eval-only").meta_state == (
        "16",
        "0",
        "eval_only",
    )


@pytest.mark.parametrize(
    ("n", "offset", "return_array", "window"),
    [
        (1, 0, False, None),
        (1, 5, True, None),
        (4, 0, False, None),
        (4, 5, True, None),
        (1, 9, False, 4),
        (3, 9, False, 4),
        (3, 0, True, 2),
    ],
)
def test_masks_are_those_of_the_stock_cache(make_owned, n, offset, return_array, window):
    ours, stock = make_owned(), KVCache()
    if offset:
        for cache in (ours, stock):
            cache.update_and_fetch(random_rows(offset), random_rows(offset))
    a, b = (c.make_mask(n, return_array=return_array, window_size=window) for c in (ours, stock))
    assert same(a, b) if isinstance(b, mx.array) else a == b


def test_masks_have_the_size_and_dtype_asked_for(make_owned):
    cache = make_owned()
    mask = cache.make_mask(query_len=2, key_len=4, dtype=bool)
    assert mask.tolist() == [[True, True, True, False], [True, True, True, True]]
    added = cache.make_mask(query_len=2, key_len=4, dtype=mx.float16)
    assert added.dtype == mx.float16 and added[0].tolist() == [0, 0, 0, -65504]
    with pytest.raises(ValueError, match="query_len <= key_len"):
        cache.make_mask(query_len=5, key_len=4)


@pytest.mark.filterwarnings("ignore::kvik.FallbackWarning")
def test_merges_and_quantises_as_the_stock_cache(make_owned):
    ours, stock = [make_owned(), make_owned()], [KVCache(), KVCache()]
    for i, rows in enumerate((random_rows(3, dim=64), random_rows(5, dim=64))):
        for cache in (ours[i], stock[i]):
            cache.update_and_fetch(rows, rows)
    a, b = type(ours[0]).merge(ours), KVCache.merge(stock)
    assert type(a) is type(b) and same(a.keys, b.keys) and same(a.left_padding, b.left_padding)
    a, b = ours[1].to_quantized(32, 8), stock[1].to_quantized(32, 8)
    new = random_rows(1, dim=64)
    a, b = a.update_and_fetch(new, new), b.update_and_fetch(new, new)
    assert all(same(x, y) for x, y in zip(a[0] + a[1], b[0] + b[1], strict=True))


@pytest.mark.parametrize("chunks", [[20], [7, 7, 6], [1] * 20, [19, 1]])
def test_a_prompt_in_any_chunks_gives_the_same_rows(make_owned, chunks):
    args = ModelArgs("llama", 32, 2, 64, 4, 1e-5, 50, num_key_value_heads=2)
    mx.random.seed(0)
    model = Model(args)
    prompt = mx.arange(20)[None] % 50
    stock = make_prompt_cache(model)
    wanted = model(prompt, cache=stock)[0, -1]
    cache, at = [make_owned() for _ in stock], 0
    for size in chunks:
        logits = model(prompt[:, at : at + size], cache=cache)
        at += size
    assert mx.allclose(logits[0, -1], wanted, atol=1e-4)
    for ours, theirs in zip(cache, stock, strict=True):
        assert mx.allclose(ours.keys, theirs.keys[..., :20, :], atol=1e-4)
