"""tests/golden/cache_contract through Python: recorded answers, and the numbers of the
contract."""

from __future__ import annotations

import copy

import kvik
import numpy as np
import pytest
from golden import DTYPES, bell, digest, load
from rows import make_rows

TRACES = load("cache_contract/traces.json")["traces"]
STOCK = [t for t in TRACES if t["class"] == "KVCache"]
CONTRACT = load("cache_contract/contract.json")
CACHES = {
    "tail": kvik.TailOwnedKVCache,
    "block": lambda: kvik.BlockOwnedKVCache(block_size=48),
    "paged": lambda: kvik.PagedKVCache(block_size=12, num_blocks=1, dynamic=True),
}


def expect_array(array, want):
    assert list(array.shape) == want["shape"]
    assert str(array.dtype) == want["dtype"]
    assert digest(array) == want["sha256"]


def expect_mask(mask, want):
    if want["kind"] == "none":
        assert mask is None
    elif want["kind"] == "causal":
        assert mask == "causal"
    else:
        assert list(mask.shape) == want["shape"] and digest(mask) == want["sha256"]


def step(caches, op, trace, make):
    cache = caches[op["on"]]
    if op["op"] == "update":
        batch, heads, head_dim_k, head_dim_v = trace["shape"]
        dtype = DTYPES[trace["dtype"]]
        keys = bell(op["k_seed"], (batch, heads, op["S"], head_dim_k)).astype(dtype)
        values = bell(op["v_seed"], (batch, heads, op["S"], head_dim_v)).astype(dtype)
        got = cache.update_and_fetch(keys, values)
        expect_array(got[0], op["keys"])
        expect_array(got[1], op["values"])
    elif op["op"] == "trim":
        assert cache.trim(op["n"]) == op["returned"]
    elif op["op"] == "mask":
        expect_mask(cache.make_mask(op["N"], op["return_array"], op["window"]), op["mask"])
    elif op["op"] == "fork":
        caches[op["to"]] = copy.deepcopy(cache)
    else:
        assert op["op"] == "reload"
        fresh = make()
        fresh.state = cache.state
        fresh.meta_state = cache.meta_state
        caches[op["on"]] = fresh
        expect_array(fresh.state[0], op["live_keys"])
        expect_array(fresh.state[1], op["live_values"])


@pytest.mark.parametrize("kind", CACHES)
@pytest.mark.parametrize("trace", STOCK, ids=[t["id"] for t in STOCK])
def test_answers_as_the_stock_cache(trace, kind):
    caches = {"a": CACHES[kind]()}
    for op in trace["ops"]:
        step(caches, op, trace, CACHES[kind])
        cache, after = caches[op["on"]], op["after"]
        assert (cache.offset, cache.size()) == (after["offset"], after["size"])
        assert cache.is_trimmable() == after["trimmable"]
        # After a trim to zero the stock and the tail-owned cache are not empty; the others are.
        if kind == "tail" or cache.offset > 0:
            assert cache.empty() == after["empty"]
        assert cache.capacity >= cache.offset


def test_all_traces_of_plain_caches_ran():
    assert len(STOCK) == 10


def update(cache, num_rows):
    return cache.update_and_fetch(*make_rows(num_rows))


@pytest.mark.parametrize(
    "case", CONTRACT["tail_owned"], ids=lambda c: c.get("note", str(c["step"]))
)
def test_tail_owned_capacity_and_updates(case):
    cache = kvik.TailOwnedKVCache(step=case["step"])
    for op in case["ops"]:
        if op["op"] == "update":
            update(cache, op["s"])
        else:
            assert cache.trim(op["n"]) == op["returned"]
        after = op["after"]
        assert cache.offset == after["offset"]
        assert cache.capacity == after["kvik_cap"]
        assert cache.tail_owner_stats()["updates"] == after["updates"]


@pytest.mark.parametrize("case", CONTRACT["block_owned"], ids=lambda c: str(c["block_size"]))
def test_block_owned_blocks_pieces_and_slices(case):
    cache = kvik.BlockOwnedKVCache(block_size=case["block_size"])
    for op in case["ops"]:
        if op["op"] == "update":
            cache.update_without_fetch(*make_rows(op["s"]))
        else:
            assert cache.trim(op["n"]) == op["returned"]
        after = op["after"]
        assert (cache.offset, cache.num_blocks) == (after["offset"], after["blocks"])
        assert cache.tail_owner_stats()["updates"] == after["updates"]
        slices = [[start, keys.shape[2]] for start, keys, _ in cache.active_block_slices()]
        assert slices == after["slices"]


@pytest.mark.parametrize(
    "case", CONTRACT["paged"], ids=lambda c: f"{c['block_size']}x{c['num_blocks']}"
)
def test_paged_blocks_growth_and_refusals(case):
    cache = kvik.PagedKVCache(
        block_size=case["block_size"],
        num_blocks=case["num_blocks"],
        dynamic=case["dynamic"],
        context_window=case["window"] or None,
    )
    for op in case["ops"]:
        if op["op"] == "trim":
            assert cache.trim(op["n"]) == op["returned"]
        elif "error" in op:
            with pytest.raises(kvik.OutOfPagesError, match=op["error"]) as error:
                update(cache, op["s"])
            assert str(op["need"]) in str(error.value) and str(op["have"]) in str(error.value)
        else:
            update(cache, op["s"])
        stats, after = cache.paged_stats(), op["after"]
        got = [stats[key] for key in ("offset", "num_blocks", "grow_events", "updates")]
        assert got == [after[key] for key in ("offset", "n", "grow_events", "updates")]


@pytest.mark.parametrize("case", CONTRACT["trim"], ids=lambda c: f"{c['offset']}-{c['n']}")
@pytest.mark.parametrize("kind", CACHES)
def test_trim_returns_what_it_removed(case, kind):
    cache = CACHES[kind]()
    if case["offset"]:
        update(cache, case["offset"])
    assert cache.trim(case["n"]) == case["returned"]
    assert cache.offset == case["offset_after"]


def made(case):
    """The cache that a case of meta_state starts from."""
    live = case.get("live", {})
    if case["class"] == "tail":
        cache, rows = kvik.TailOwnedKVCache(step=live.get("step", 256)), case.get("rows", 0)
    elif case["class"] == "block":
        cache, rows = kvik.BlockOwnedKVCache(block_size=live["block_size"]), 0
    else:
        sizes = {"block_size": live.get("block_size", 4), "num_blocks": live.get("num_blocks", 4)}
        cache, rows = kvik.PagedKVCache(**sizes), 0
    rows = live.get("offset", rows)
    if rows:
        update(cache, rows)
    return cache


@pytest.mark.parametrize("case", CONTRACT["meta_state"], ids=str)
def test_meta_states_restore_or_are_refused(case):
    cache = made(case)
    if "get" in case:
        assert list(cache.meta_state) == case["get"]
        return
    before, expect = cache.meta_state, case["expect"]
    if expect == "ignored":
        cache.meta_state = case["set"]
        assert cache.meta_state == before
    elif isinstance(expect, str):
        text = "exceeds page capacity" if "exceeds page capacity" in expect else "."
        with pytest.raises(ValueError, match=text):
            cache.meta_state = case["set"]
        assert cache.meta_state == before
    else:
        cache.meta_state = case["set"]
        for name, value in expect.items():
            got = getattr(cache, name)
            want = before[2] if value == "unchanged" else value
            assert (got() if callable(got) else got) == want, name


def test_growth_follows_the_rule():
    for num_blocks, block_size, tokens, window, want in CONTRACT["growth"]:
        cache = kvik.PagedKVCache(
            block_size=block_size,
            num_blocks=num_blocks,
            dynamic=True,
            context_window=window or None,
            max_tokens=1 << 24,
        )
        rows = np.zeros((1, 1, tokens, 1), np.float32)
        cache.update_without_fetch(rows, rows)
        assert cache.num_blocks == want, (num_blocks, block_size, tokens, window)


def test_growth_past_the_window_is_refused():
    for case in CONTRACT["growth_past_window"]:
        num_blocks, block_size, tokens, window = case["args"]
        cache = kvik.PagedKVCache(
            block_size=block_size, num_blocks=num_blocks, dynamic=True, context_window=window
        )
        rows = np.zeros((1, 1, tokens, 1), np.float32)
        with pytest.raises(kvik.OutOfPagesError):
            cache.update_without_fetch(rows, rows)
        assert cache.empty()


def test_dynamic_caches_start_with_the_blocks_of_the_rule(monkeypatch):
    for case in CONTRACT["dynamic_initial_blocks"]:
        num_blocks, dynamic, least, tokens, high_water, margin, block_size, want = case
        for name, value in (
            ("", int(dynamic)),
            ("_MIN_BLOCKS", least),
            ("_TOKENS", tokens),
            ("_PREVIOUS_HIGH_WATER", high_water),
            ("_MARGIN", margin),
        ):
            monkeypatch.setenv("MTPLX_DYNAMIC_PAGED_KV" + name, str(value))
        entries = [kvik.PagedKVCache()]
        report = kvik.install_vllm_metal_paged_attention_kv_cache(
            entries, block_size=block_size, num_blocks=num_blocks, max_tokens=1 << 24
        )
        assert report["num_blocks"] == entries[0].num_blocks == want, case


def test_blocks_are_split_for_kernels_of_other_programs():
    for case in CONTRACT["block_translation"]:
        table = case.get("table", [0])
        if case["kernel_block"] == "error":
            with pytest.raises(ValueError, match="32, 16 or 8"):
                kvik.split_block_table(case["block"], table)
            continue
        assert kvik.split_block_table(case["block"], table) == (
            case["kernel_block"],
            case["expanded"],
        )
    assert len(CONTRACT["block_translation"]) == 8


def test_split_pages_are_the_rows_in_order():
    cache = kvik.PagedKVCache(block_size=48, num_blocks=4)
    keys, values = make_rows(100)
    cache.update_without_fetch(keys, values)
    size, table = kvik.split_block_table(48, cache.block_table())
    pages = cache.key_cache
    parts = pages.reshape(-1, size, *pages.shape[2:])
    rows = np.concatenate([parts[i] for i in table])[:100]
    assert size == 16 and np.array_equal(rows.transpose(1, 0, 2)[None], keys)
