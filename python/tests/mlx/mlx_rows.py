"""Rows for the tests: random, and comparisons of arrays."""

import mlx.core as mx


def random_rows(num_rows, heads=2, dim=4, batch=1, dtype=mx.float32, seed=None):
    key = None if seed is None else mx.random.key(seed)
    rows = mx.random.normal((batch, heads, num_rows, dim), key=key).astype(dtype)
    mx.eval(rows)
    return rows


def same(a, b):
    return a.shape == b.shape and a.dtype == b.dtype and bool(mx.array_equal(a, b))


def joined(parts):
    return mx.concatenate(parts, axis=2)
