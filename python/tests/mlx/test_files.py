"""Prompt cache files in both layouts."""

from __future__ import annotations

import kvik.mlx as kmlx
import mlx.core as mx
import mlx_lm.models.cache as mlx_lm_cache
import pytest
from kvik.mlx import BlockOwnedKVCache, PagedKVCache, TailOwnedKVCache
from mlx_rows import random_rows, same

pytestmark = pytest.mark.usefixtures("with_extension")


def make_caches(rows):
    caches = [
        TailOwnedKVCache(step=8, mode="eval_only"),
        BlockOwnedKVCache(block_size=4),
        PagedKVCache(block_size=4, num_blocks=16),
    ]
    for cache in caches:
        cache.update_and_fetch(rows, rows)
    return caches


@pytest.mark.parametrize("metadata", [{}, {"model": "a", "note": "b"}])
@pytest.mark.parametrize("save", [kmlx.save_prompt_cache, kmlx.save_older_prompt_cache])
def test_both_layouts_are_read(tmp_path, save, metadata):
    rows = random_rows(10)
    caches, path = make_caches(rows), tmp_path / "prompt.safetensors"
    save(path, caches, metadata)
    loaded, found = kmlx.load_prompt_cache(path, return_metadata=True)
    assert found == metadata
    for ours, was in zip(loaded, caches, strict=True):
        assert (
            type(ours) is type(was)
            and ours.offset == 10
            and same(ours.keys, rows)
            and same(ours.values, rows)
        )
    if save is kmlx.save_older_prompt_cache:
        assert [c.meta_state for c in loaded] == [c.meta_state for c in caches]


def test_mlx_lm_reads_what_is_written(tmp_path):
    rows, path = random_rows(10), str(tmp_path / "prompt.safetensors")
    kmlx.save_prompt_cache(path, make_caches(rows), {"a": "b"})
    loaded, metadata = mlx_lm_cache.load_prompt_cache(path, return_metadata=True)
    assert metadata == {"a": "b"} and all(same(cache.keys, rows) for cache in loaded)


def test_files_of_mlx_lm_are_read(tmp_path):
    rows, path = random_rows(10, dim=64), str(tmp_path / "prompt.safetensors")
    stock = [
        mlx_lm_cache.KVCache(),
        mlx_lm_cache.RotatingKVCache(8, keep=2),
        mlx_lm_cache.QuantizedKVCache(),
    ]
    for cache in stock:
        cache.update_and_fetch(rows, rows)
    mlx_lm_cache.save_prompt_cache(path, stock)
    loaded = kmlx.load_prompt_cache(path)
    assert [type(c) for c in loaded] == [type(c) for c in stock] and [c.offset for c in loaded] == [
        10,
        10,
        10,
    ]


def test_older_files_of_mlx_lms_classes_are_read(tmp_path):
    rows, path = random_rows(10), str(tmp_path / "prompt.safetensors")
    parts = {
        "0.0": "",
        "0.1.0": "2",
        "0.1.1": "16",
        "0.1.2": "10",
        "0.1.3": "10",
        "1.a": "b",
        "2.0": "KVCache",
        "2.1": "RotatingKVCache",
    }
    mx.save_safetensors(path, {"0.0": rows, "0.1": rows, "1.0": rows, "1.1": rows}, parts)
    (plain, rotating), metadata = kmlx.load_prompt_cache(path, return_metadata=True)
    assert metadata == {"a": "b"} and plain.offset == rotating.offset == 10
    assert (rotating.keep, rotating.max_size) == (2, 16)
    assert plain.update_and_fetch(rows, rows)[0].shape[2] == 20


def test_an_unknown_class_or_file_is_refused(tmp_path):
    path = str(tmp_path / "prompt.safetensors")
    rows = random_rows(2)
    mx.save_safetensors(path, {"0.0": rows, "0.1": rows}, {"0.0": "", "2.0": "load_prompt_cache"})
    with pytest.raises(ValueError, match="load_prompt_cache"):
        kmlx.load_prompt_cache(path)
    mx.save_safetensors(path, {"a": rows}, {"x": "y"})
    with pytest.raises(ValueError, match="not a prompt cache"):
        kmlx.load_prompt_cache(path)
