"""Encoding and decoding rows by the storage formats of keys and values."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from kvik import _core
from kvik._types import Array, ArrayLike


def _rows(array: Any) -> np.ndarray:
    """As float32 or float16 [..., head_dim]."""
    plain, is_bfloat16 = _core._plain_array(array, "rows")
    return _widen(plain) if is_bfloat16 else plain


def _widen(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def encode(rows: ArrayLike, format: str) -> np.ndarray:
    """Rows [..., head_dim] as they are stored: uint8 [..., row_bytes].

    ``format`` is a name of ``formats()``. Each row is encoded by itself. Raises ValueError for an
    unknown format, a head_dim that it does not take, and a row that it cannot store (not finite, or
    too large), naming the first.
    """
    array = _rows(rows)
    if array.ndim < 1:
        raise ValueError("rows need at least one dimension, the head dim")
    head_dim = array.shape[-1]
    flat = np.ascontiguousarray(array, dtype=np.float32)
    flat = flat.reshape(math.prod(array.shape[:-1]), head_dim)
    packed = _core._encode(flat, format)
    return packed.reshape(*array.shape[:-1], packed.shape[-1])


def decode(packed: np.ndarray, format: str, head_dim: int, *, stored: bool = False) -> np.ndarray:
    """The values float32 [..., head_dim] that stored rows uint8 [..., row_bytes] stand for.

    ``stored``: before the inverse rotation, which is what attention multiplies with a rotated query
    (the same where the format is not rotated). Raises ValueError for an unknown format, a head_dim
    that it does not take, and rows of another number of bytes.
    """
    array = _core._plain_bytes(packed, "packed")
    if array.ndim < 1:
        raise ValueError("packed needs at least one dimension, the bytes of a row")
    flat = array.reshape(math.prod(array.shape[:-1]), array.shape[-1])
    rows = _core._decode(flat, format, head_dim, stored)
    return rows.reshape(*array.shape[:-1], rows.shape[-1])


__all__ = ["Array", "decode", "encode"]
