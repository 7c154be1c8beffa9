"""Installing caches over a list, in place, and what is read from the environment."""

from __future__ import annotations

import kvik
import numpy as np
import pytest
from rows import append, holds, make_rows


class Stock:
    """A cache of another library: more rows than are valid."""

    step = 8

    def __init__(self, num_rows: int | None = 5, trimmable: bool = True) -> None:
        self.keys, self.values = (None, None) if num_rows is None else make_rows(num_rows + 3)
        self.offset = num_rows or 0
        self.trimmable = trimmable

    def is_trimmable(self) -> bool:
        return self.trimmable

    def rows(self):
        return self.keys[:, :, : self.offset], self.values[:, :, : self.offset]


class Rotating(Stock):
    _idx = 0


def test_tail_owned_replaces_what_holds_rows_in_order():
    stock = Stock()
    paged = kvik.PagedKVCache()
    append(paged, *make_rows(4))
    entries = [stock, None, Stock(None), Stock(trimmable=False), Rotating(), object(), paged]
    kept = entries[3:6]
    report = kvik.install_tail_owned_attention_kv_cache(entries)
    assert report == {
        "enabled": True,
        "mode": "contiguous_eval",
        "entries": 3,
        "skipped": 4,
        **({"step": None} if "step" in report else {}),
    }
    assert [type(e) is kvik.TailOwnedKVCache for e in entries] == [1, 0, 1, 0, 0, 0, 1]
    assert entries[3:6] == kept and entries[1] is None
    assert holds(entries[0], [stock.rows()]) and entries[0].step == 8
    assert entries[2].empty() and entries[2].step == 8
    assert holds(entries[6], [make_rows(4)]) and entries[6].step == 256


def test_an_entry_of_the_wanted_kind_stays_the_same_object_with_new_settings():
    tail = kvik.TailOwnedKVCache(step=4)
    append(tail, *make_rows(3))
    entries = [tail]
    kvik.install_tail_owned_attention_kv_cache(entries, mode="eval-only", step=16)
    assert entries == [tail]
    assert tail.meta_state == ("16", "3", "eval_only")
    append(tail, *make_rows(2, seed=2))
    assert holds(tail, [make_rows(3), make_rows(2, seed=2)])
    assert tail.tail_owner_stats()["copies"] <= 1


def test_block_owned_skips_tail_owned():
    entries = [Stock(), kvik.TailOwnedKVCache(), kvik.BlockOwnedKVCache(block_size=4)]
    report = kvik.install_block_owned_attention_kv_cache(entries, block_size=32)
    assert (report["entries"], report["skipped"], report["block_size"]) == (2, 1, 32)
    assert [e.block_size for e in (entries[0], entries[2])] == [32, 32]
    assert type(entries[1]) is kvik.TailOwnedKVCache


def test_paged_reports_the_keys_of_the_contract():
    stock = Stock()
    entries = [stock, kvik.TailOwnedKVCache(), kvik.BlockOwnedKVCache(), None]
    report = kvik.install_vllm_metal_paged_attention_kv_cache(entries, block_size=4, num_blocks=9)
    assert report == {
        "enabled": True,
        "mode": "vllm_metal_paged",
        "entries": 1,
        "skipped": 3,
        "block_size": 4,
        "num_blocks": 9,
        "turboquant": False,
        "kv_quant": False,
        "attention_impl": "vllm_metal",
        "external_ops_required": False,
    }
    assert (entries[0].block_size, entries[0].num_blocks) == (4, 9)
    assert holds(entries[0], [stock.rows()])


def test_no_entry_changes_when_one_fails():
    full = kvik.PagedKVCache(block_size=4, num_blocks=2)
    append(full, *make_rows(8))
    entries = [Stock(), full, Stock(None)]
    before = list(entries)
    with pytest.raises((ValueError, RuntimeError), match="cache entry 1"):
        kvik.install_vllm_metal_paged_attention_kv_cache(entries, block_size=8, num_blocks=4)
    assert entries == before
    assert holds(full, [make_rows(8)])


def test_options_that_no_entry_could_take_are_an_error_for_an_empty_list_too():
    with pytest.raises(ValueError, match="block_size"):
        kvik.install_vllm_metal_paged_attention_kv_cache([], block_size=0)
    with pytest.raises(ValueError, match="eval_only"):
        kvik.install_tail_owned_attention_kv_cache([], mode="quickly")


def test_statistics_sum_over_the_entries_and_leave_them_as_they_are():
    tails = [kvik.TailOwnedKVCache(), kvik.TailOwnedKVCache()]
    for tail in tails:
        append(tail, *make_rows(3))
    entries = [tails[0], None, Stock(), tails[1]]
    stats = kvik.tail_owned_attention_kv_stats(entries)
    one = tails[0].tail_owner_stats()
    assert (stats["updates"], stats["arrays"], stats["bytes"]) == (2, 4, 2 * one["bytes"])
    assert entries[0] is tails[0] and holds(tails[0], [make_rows(3)])
    assert kvik.tail_owned_attention_kv_stats([None, Stock()]) is None


def test_the_constructor_reads_the_variables_of_the_paged_cache(monkeypatch):
    monkeypatch.setenv("MTPLX_DYNAMIC_PAGED_KV", "Yes")
    monkeypatch.setenv("MTPLX_CONTEXT_WINDOW_TOKENS", "20")
    monkeypatch.setenv("MTPLX_VLLM_METAL_PAGED_ATTN_MAX_Q", "2")
    monkeypatch.setenv("MTPLX_VLLM_METAL_PAGED_SLIDING_WINDOW", "3")
    cache = kvik.PagedKVCache(block_size=4, num_blocks=1)
    append(cache, *make_rows(10))
    assert cache.num_blocks == 3
    assert cache.paged_stats()["sliding_window"] == 3
    assert cache.paged_attention(np.zeros((1, 2, 3, 8), np.float32)) is None
    with pytest.raises(kvik.OutOfPagesError, match="context window"):
        append(cache, *make_rows(11))
    monkeypatch.delenv("MTPLX_DYNAMIC_PAGED_KV")
    append(cache, *make_rows(10, seed=2))
    assert cache.offset == 20, "the environment is read when a cache is made, not later"


def test_what_is_given_beats_the_environment_and_the_new_name_the_old(monkeypatch):
    monkeypatch.setenv("MTPLX_DYNAMIC_PAGED_KV", "1")
    monkeypatch.setenv("KVIK_CONTEXT_WINDOW_TOKENS", "8")
    monkeypatch.setenv("MTPLX_CONTEXT_WINDOW_TOKENS", "4")
    cache = kvik.PagedKVCache(block_size=4, num_blocks=1)
    append(cache, *make_rows(8))
    with pytest.raises(kvik.OutOfPagesError, match="context window has 8"):
        append(cache, *make_rows(1))
    fixed = kvik.PagedKVCache(block_size=4, num_blocks=1, dynamic=False)
    with pytest.raises(kvik.OutOfPagesError, match="capacity exceeded"):
        append(fixed, *make_rows(5))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("MTPLX_DYNAMIC_PAGED_KV", "perhaps"),
        ("MTPLX_CONTEXT_WINDOW_TOKENS", "8k"),
        ("MTPLX_VLLM_METAL_PAGED_ATTN_MAX_Q", "1.5"),
    ],
)
def test_a_variable_that_cannot_be_read_is_named(monkeypatch, name, text):
    monkeypatch.setenv(name, text)
    with pytest.raises(ValueError, match=f'{name} is "{text}"'):
        kvik.PagedKVCache()


def test_the_paged_installer_reads_its_variables(monkeypatch):
    monkeypatch.setenv("MTPLX_VLLM_METAL_PAGED_BLOCK_SIZE", "32")
    monkeypatch.setenv("MTPLX_VLLM_METAL_PAGED_NUM_BLOCKS", "7")
    monkeypatch.setenv("MTPLX_VLLM_METAL_PAGED_ATTN_IMPL", "sdpa_gather")
    report = kvik.install_vllm_metal_paged_attention_kv_cache([kvik.PagedKVCache()])
    assert (report["block_size"], report["num_blocks"]) == (32, 7)
    assert report["attention_impl"] == "gather"
    assert kvik.PagedKVCache().block_size == 16
    monkeypatch.setenv("MTPLX_PAGED_KV_QUANT", "q5")
    with pytest.raises(ValueError, match="q5"):
        kvik.install_vllm_metal_paged_attention_kv_cache([])


def test_configure_installs_what_the_environment_asks_for(monkeypatch):
    entries = [Stock()]
    assert kvik.configure_tail_owned_attention_kv_cache(entries)["enabled"] is False
    assert type(entries[0]) is Stock
    monkeypatch.setenv("MTPLX_OWNED_ATTN_KV", "block")
    monkeypatch.setenv("MTPLX_OWNED_ATTN_KV_BLOCK_SIZE", "64")
    kvik.configure_tail_owned_attention_kv_cache(entries)
    assert type(entries[0]) is kvik.BlockOwnedKVCache and entries[0].block_size == 64
    monkeypatch.setenv("MTPLX_OWNED_ATTN_KV", "tail")
    monkeypatch.setenv("MTPLX_OWNED_ATTN_KV_MODE", "eval_only")
    entries = [Stock()]
    kvik.configure_tail_owned_attention_kv_cache(entries)
    assert type(entries[0]) is kvik.TailOwnedKVCache and entries[0].mode == "eval_only"
    monkeypatch.setenv("MTPLX_VLLM_METAL_PAGED_ATTN", "on")
    entries = [Stock()]
    assert kvik.configure_tail_owned_attention_kv_cache(entries)["mode"] == "vllm_metal_paged"
    monkeypatch.delenv("MTPLX_VLLM_METAL_PAGED_ATTN")
    monkeypatch.setenv("MTPLX_OWNED_ATTN_KV", "heads")
    with pytest.raises(ValueError, match="tail, block or off"):
        kvik.configure_tail_owned_attention_kv_cache([])
