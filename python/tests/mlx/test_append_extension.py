"""What the extension adds: new rows and nothing else are written."""

from __future__ import annotations

import copy
import ctypes

import mlx.core as mx
import numpy as np
import pytest
from kvik.mlx import TailOwnedKVCache, build, extension
from mlx_lm.models.cache import KVCache
from mlx_rows import joined, random_rows, same


def address(array):
    mx.eval(array)
    return np.from_dlpack(array).ctypes.data


def test_growth_and_held_views_move_nothing(with_extension):
    cache, held, addresses = TailOwnedKVCache(step=4), [], set()
    for _ in range(50):
        rows = random_rows(1)
        held.append(cache.update_and_fetch(rows, rows))
        addresses.add((address(held[-1][0]), address(held[-1][1])))
    assert len(addresses) == 1 and cache.tail_owner_stats()["copies"] == 0


def test_updates_in_flight_move_nothing(with_extension):
    cache, held, parts = TailOwnedKVCache(), [], []
    for _ in range(20):
        parts.append(random_rows(1))
        held.append(cache.update_and_fetch(parts[-1], parts[-1])[0])
        mx.async_eval(held[-1])
    assert len({address(keys) for keys in held}) == 1
    assert all(same(keys, joined(parts[: i + 1])) for i, keys in enumerate(held))


def test_an_update_writes_only_the_new_rows(with_extension):
    """Older rows are changed behind MLX's back: had an update copied them, the old values were
    back."""
    cache, rows = TailOwnedKVCache(), random_rows(6, heads=1)
    held = cache.update_and_fetch(rows, rows)[0]
    ctypes.memset(address(held), 0, held.nbytes)
    keys, _ = cache.update_and_fetch(rows, rows)
    assert not mx.any(keys[:, :, :6]).item() and same(keys[:, :, 6:], rows)


def test_copies_once_after_a_trim_only_where_a_live_array_covers_the_rows(with_extension):
    def copies_after(hold):
        cache, rows = TailOwnedKVCache(), random_rows(8)
        mx.eval(cache.update_and_fetch(rows, rows))
        held = hold(cache)
        cache.trim(3)
        for _ in range(3):
            mx.eval(cache.update_and_fetch(rows[:, :, :1], rows[:, :, :1]))
        del held
        return cache.tail_owner_stats()["copies"]

    def keys_of_five_rows(cache):
        shorter = copy.deepcopy(cache)
        shorter.trim(3)
        return shorter.keys

    assert copies_after(lambda cache: None) == 0
    assert copies_after(lambda cache: cache.keys) == 1
    assert copies_after(lambda cache: cache.keys[..., 7:, :]) == 1
    assert copies_after(keys_of_five_rows) == 0
    assert copies_after(copy.deepcopy) == 1


def test_of_two_forks_the_second_to_append_copies_once(with_extension):
    cache, rows = TailOwnedKVCache(), random_rows(8)
    cache.update_and_fetch(rows, rows)
    fork = copy.deepcopy(cache)
    for _ in range(3):
        cache.update_and_fetch(rows, rows)
        fork.update_and_fetch(rows, rows)
    assert (cache.tail_owner_stats()["copies"], fork.tail_owner_stats()["copies"]) == (0, 1)


def test_growth_past_the_reserved_rows_copies_once(with_extension):
    cache, parts = TailOwnedKVCache(step=2, max_rows=4), []
    for _ in range(7):
        parts.append(random_rows(1))
        keys, _ = cache.update_and_fetch(parts[-1], parts[-1])
        assert same(keys, joined(parts))
    assert cache.tail_owner_stats()["copies"] == 1


def test_memory_is_resident_as_rows_come(with_extension):
    cache, rows = TailOwnedKVCache(), random_rows(1, heads=4, dim=64)
    mx.eval(cache.update_and_fetch(rows, rows))
    assert cache.nbytes == 256 * 2 * 4 * 64 * 4
    assert cache.nbytes <= cache.resident_bytes <= cache.nbytes + 2 * 5 * 4096
    stats = cache.tail_owner_stats()
    assert stats["bytes"] == rows.nbytes * 2 and stats["nbytes"] == cache.nbytes


def test_the_stock_cache_moves_its_buffer_where_ours_does_not(with_extension):
    """The reason for the extension: MLX copies a whole buffer of which an older array is held."""

    def addresses(cache):
        rows, held, found = random_rows(1), [], set()
        for _ in range(4):
            held.append(cache.update_and_fetch(rows, rows)[0])
            found.add(address(held[-1]))
        return len(found)

    assert (addresses(KVCache()), addresses(TailOwnedKVCache())) == (4, 1)


def test_updates_inside_a_transform_are_refused(with_extension):
    cache, rows = TailOwnedKVCache(), random_rows(1)
    cache.update_and_fetch(rows, rows)
    with pytest.raises(ValueError, match="mx.compile"):
        mx.compile(lambda x: cache.update_and_fetch(x, x)[0])(rows)


def test_two_branches_never_append_at_one_position(with_extension):
    region = with_extension.TailRegion(random_rows(1), 8, 8)
    first = region.append(random_rows(2), None, 0)
    second = region.append(random_rows(1), first, 2)
    assert second is not None and region.visible_rows == 3
    assert region.append(random_rows(1), first, 2) is None
    del second
    assert region.append(random_rows(1), first, 2) is not None
    assert region.append(random_rows(7), first, 2) is None


def test_a_later_array_is_made_only_when_it_is_evaluated(with_extension):
    calls = []

    def make():
        calls.append(1)
        rows = mx.ones((2, 3))
        mx.eval(rows)
        return rows

    unused = with_extension.deferred([2, 3], mx.float32, make)
    del unused
    array = with_extension.deferred([2, 3], mx.float32, make) + 1
    assert not calls
    assert mx.sum(array).item() == 12 and calls == [1]
    with pytest.raises(RuntimeError, match="no longer there"):
        mx.eval(with_extension.deferred([2, 2], mx.float32, make))


def test_the_built_file_is_for_this_mlx_and_python(append_extension):
    path = extension.extension_path()
    assert path.exists() and mx.__version__ in path.parent.name
    assert build.build() == path


def test_a_nanobind_that_does_not_fit_is_refused_by_name(tmp_path):
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "nb_internals.h").write_text("#define NB_INTERNALS_VERSION 1\n")
    with pytest.raises(extension.ExtensionError, match="pip install 'nanobind=="):
        build.find_nanobind(tmp_path)


def test_a_file_that_is_no_extension_is_refused(tmp_path):
    path = tmp_path / extension.extension_path().name
    path.write_bytes(b"not an extension")
    with pytest.raises(extension.ExtensionError, match="does not load"):
        extension.load(path)


def test_says_once_that_there_is_no_extension(tmp_path, monkeypatch):
    monkeypatch.setenv("KVIK_CACHE_DIR", str(tmp_path))
    fresh = extension.append_extension.__wrapped__
    with pytest.warns(UserWarning, match="python -m kvik.mlx.build"):
        assert fresh() is None
