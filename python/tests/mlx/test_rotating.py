"""mlx-lm's rotating caches beside ours: install leaves them, and they go on answering as recorded.

Kvik has no cache that rotates.
"""

from __future__ import annotations

import copy

import kvik.mlx as kmlx
import mlx.core as mx
import numpy as np
import pytest
from golden import DTYPES, bell, digest, load
from kvik.mlx import PagedKVCache
from mlx_lm.models.cache import KVCache, RotatingKVCache

TRACES = [
    trace
    for trace in load("cache_contract/traces.json")["traces"]
    if trace["class"] == "RotatingKVCache"
]
MLX_DTYPES = {"f32": mx.float32, "f16": mx.float16, "bf16": mx.bfloat16}


@pytest.fixture(autouse=True)
def _unrouted():
    yield
    kmlx.uninstall()


def numpy_of(array):
    if array.dtype == mx.bfloat16:
        return np.array(array.view(mx.uint16)).view(DTYPES["bf16"])
    return np.array(array)


def expect_array(array, want):
    assert list(array.shape) == want["shape"]
    assert str(array.dtype).rpartition(".")[2] == want["dtype"]
    assert digest(numpy_of(array)) == want["sha256"]


def step(caches, op, trace):
    cache = caches[op["on"]]
    if op["op"] == "update":
        batch, heads, head_dim_k, head_dim_v = trace["shape"]
        rows = [
            mx.array(bell(op[seed], (batch, heads, op["S"], dim))).astype(
                MLX_DTYPES[trace["dtype"]]
            )
            for seed, dim in (("k_seed", head_dim_k), ("v_seed", head_dim_v))
        ]
        for got, want in zip(cache.update_and_fetch(*rows), ("keys", "values"), strict=True):
            expect_array(got, op[want])
    elif op["op"] == "trim":
        assert cache.trim(op["n"]) == op["returned"]
    elif op["op"] == "mask":
        mask, want = cache.make_mask(op["N"], op["window"], op["return_array"]), op["mask"]
        if want["kind"] == "array":
            assert list(mask.shape) == want["shape"] and digest(np.array(mask)) == want["sha256"]
        else:
            assert mask == (None if want["kind"] == "none" else want["kind"])
    elif op["op"] == "fork":
        caches[op["to"]] = copy.deepcopy(cache)
    else:
        assert op["op"] == "reload" and list(cache.state[2:]) == op["state_scalars"]
        caches[op["on"]] = RotatingKVCache.from_state(cache.state)


@pytest.mark.parametrize("trace", TRACES, ids=[t["id"] for t in TRACES])
def test_entries_that_install_leaves_answer_as_recorded(trace):
    """A list as of a model with sliding and full layers: only the full one is replaced."""
    rotating = RotatingKVCache(**trace["ctor"])
    entries = [rotating, KVCache()]
    report = kmlx.install(entries)
    assert (report["entries"], report["skipped"]) == (1, 1)
    assert entries[0] is rotating and isinstance(entries[1], PagedKVCache)
    caches = {"a": rotating}
    for i, op in enumerate(trace["ops"]):
        step(caches, op, trace)
        cache, after = caches[op["on"]], op["after"]
        assert (cache.offset, cache.size(), cache.empty()) == (
            after["offset"],
            after["size"],
            after["empty"],
        ), i
        assert cache.is_trimmable() == after["trimmable"] and cache.nbytes == after["nbytes"]
        # Installing again, in the middle of it, leaves what is there too.
        entries[0] = caches["a"]
        if i % 10 == 5:
            assert kmlx.install(entries)["skipped"] == 1 and entries[0] is caches["a"]
    assert kmlx.uninstall(entries) is None and isinstance(entries[1], KVCache)
    assert entries[0] is caches["a"]


def test_all_traces_of_rotating_caches_ran():
    assert len(TRACES) == 4 and sum(len(trace["ops"]) for trace in TRACES) == 112
