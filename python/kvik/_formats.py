"""Encoding and decoding rows by the storage formats of keys and values."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvik import _core
from kvik._types import Array, ArrayLike


def _rows(array: Any) -> np.ndarray:
    """As float32 [num_rows, head_dim], row-major."""
    if not isinstance(array, np.ndarray):
        bits = _core._bfloat16_bits(array)
        array = np.from_dlpack(array) if bits is None else _widen(bits)
    elif array.dtype.name == "bfloat16":
        array = _widen(array.view(np.uint16))
    if array.dtype not in (np.float32, np.float16):
        raise ValueError(f"rows have dtype {array.dtype}; use float32, float16 or bfloat16")
    return array


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
    flat = np.ascontiguousarray(array.reshape(-1, head_dim), dtype=np.float32)
    packed = _core._encode(flat, format)
    return packed.reshape(*array.shape[:-1], packed.shape[-1])


def decode(packed: np.ndarray, format: str, head_dim: int, *, stored: bool = False) -> np.ndarray:
    """The values float32 [..., head_dim] that stored rows uint8 [..., row_bytes] stand for.

    ``stored``: before the inverse rotation, which is what attention multiplies with a rotated query
    (the same where the format is not rotated). Raises ValueError for an unknown format, a head_dim
    that it does not take, and rows of another number of bytes.
    """
    array = np.asarray(packed)
    if array.dtype != np.uint8 or array.ndim < 1:
        raise ValueError("packed rows are an array of uint8 [..., row_bytes]")
    flat = np.ascontiguousarray(array.reshape(-1, array.shape[-1]))
    rows = _core._decode(flat, format, head_dim, stored)
    return rows.reshape(*array.shape[:-1], head_dim)


__all__ = ["Array", "decode", "encode"]
