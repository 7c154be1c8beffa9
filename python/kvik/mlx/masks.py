"""The masks that the caches hand out, in mlx-lm's form and as arrays of a given size."""

import mlx.core as mx

_FLOATS = {"float16": mx.float16, "bfloat16": mx.bfloat16, "float32": mx.float32}


def _mask_dtype(dtype):
    if dtype is None or dtype is bool or dtype == mx.bool_:
        return mx.bool_
    if dtype is float:
        return mx.float32
    name = str(dtype).rpartition(".")[2]
    if name in ("bool", "bool_"):
        return mx.bool_
    if name not in _FLOATS:
        raise ValueError(f"a mask is of dtype bool, float16, bfloat16 or float32, not {dtype}")
    return _FLOATS[name]


def causal_array(query_len, key_len, dtype=None):
    """The mask ``[query_len, key_len]``; the queries are the newest of key_len positions.

    bool: true where the key is visible. A float dtype: 0 there, the dtype's lowest value elsewhere.
    """
    if not 1 <= query_len <= key_len:
        raise ValueError(f"a mask needs 1 <= query_len <= key_len, not {query_len} and {key_len}")
    visible = mx.arange(key_len - query_len, key_len)[:, None] >= mx.arange(key_len)[None]
    dtype = _mask_dtype(dtype)
    if dtype == mx.bool_:
        return visible
    return mx.where(visible, mx.array(0, dtype), mx.array(mx.finfo(dtype).min, dtype))


def make_mask(
    offset,
    N=None,  # noqa: N803
    return_array=False,
    window_size=None,
    *,
    query_len=None,
    key_len=None,
    dtype=None,
):
    """The mask of N queries after `offset` cached rows.

    mlx-lm's form (N, return_array, window_size): None, "causal" or a bool array ``[N, offset +
    N]``. With query_len and key_len: `causal_array`.
    """
    if query_len is not None or key_len is not None:
        if N is not None or return_array or window_size is not None:
            raise ValueError(
                "make_mask takes N with its options, or query_len and key_len, not both"
            )
        query_len = key_len if query_len is None else query_len
        key_len = offset + query_len if key_len is None else key_len
        return causal_array(query_len, key_len, dtype)
    if N is None:
        raise TypeError("make_mask needs N, or query_len and key_len")
    if window_size is not None and window_size < 1:
        raise ValueError(f"a window holds at least one token, not {window_size}")
    if window_size is None and N == 1:
        return None
    if window_size is None and not return_array:
        return "causal"
    queries, keys = mx.arange(offset, offset + N)[:, None], mx.arange(offset + N)[None]
    mask = queries >= keys
    return mask if window_size is None else mask & (queries < keys + window_size)
