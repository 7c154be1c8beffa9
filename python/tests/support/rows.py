"""Rows for caches, and reading what comes back."""

from __future__ import annotations

from typing import Any

import kvik
import numpy as np
from golden import BF16, bell


def make_rows(
    num_rows: int,
    seed: int = 1,
    *,
    batch: int = 1,
    heads: int = 2,
    head_dim_k: int = 8,
    head_dim_v: int = 8,
    dtype: Any = np.float32,
) -> tuple[np.ndarray, np.ndarray]:
    """Keys [B, H, T, Dk] and values [B, H, T, Dv]."""
    keys = bell(1000 * seed, (batch, heads, num_rows, head_dim_k)).astype(dtype)
    values = bell(1000 * seed + 1, (batch, heads, num_rows, head_dim_v)).astype(dtype)
    return keys, values


def bits(array: Any) -> np.ndarray:
    """The array as NumPy, bfloat16 as its bits."""
    if isinstance(array, kvik.BFloat16Array):
        return array.bits
    return array.view(np.uint16) if array.dtype == BF16 else array


def same(a: Any, b: Any) -> bool:
    """Whether two arrays have the same shape and bits."""
    x, y = np.ascontiguousarray(bits(a)), np.ascontiguousarray(bits(b))
    return x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes()


def address(array: Any) -> int:
    return bits(array).__array_interface__["data"][0]


def append(cache: Any, keys: np.ndarray, values: np.ndarray) -> None:
    """Appends without fetching where the cache can."""
    getattr(cache, "update_without_fetch", cache.update_and_fetch)(keys, values)


def joined(parts: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """The rows of several updates as one."""
    return (
        np.concatenate([keys for keys, _ in parts], axis=2),
        np.concatenate([values for _, values in parts], axis=2),
    )


def holds(cache: Any, parts: list[tuple[np.ndarray, np.ndarray]]) -> bool:
    """Whether the cache holds exactly these rows."""
    keys, values = cache.state
    want_keys, want_values = joined(parts)
    return same(keys, want_keys) and same(values, want_values)
