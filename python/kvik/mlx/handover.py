"""Where mlx-lm takes Kvik's caches and goes on with its own: said once, and counted."""

import threading
import warnings

import kvik

_lock = threading.Lock()
_counts = {}
_told = set()


def handover_counts():
    """How many of Kvik's caches mlx-lm has replaced by its own in this process, by reason: "merge"
    (batches) and "to_quantized" (kv_bits)."""
    with _lock:
        return dict(_counts)


def hand_over(caches, reason, text):
    """Counts caches and warns of the first for this reason and text, once per process."""
    with _lock:
        _counts[reason] = _counts.get(reason, 0) + len(caches)
        is_new = (reason, text) not in _told
        _told.add((reason, text))
    for cache in caches:
        cache._handed_over[reason] = cache._handed_over.get(reason, 0) + 1
    if is_new:
        warnings.warn(f"kvik: {text}", kvik.FallbackWarning, stacklevel=4)


def merge(caches, form):
    """mlx-lm's BatchKVCache of caches that hold rows as `form` says."""
    from mlx_lm.models.cache import BatchKVCache

    batch = BatchKVCache.merge(caches)
    hand_over(
        [cache for cache in caches if hasattr(cache, "_handed_over")],
        "merge",
        f"mlx-lm's batched generation goes on with its own BatchKVCache in the place of {form}; "
        "Kvik's storage and attention are not used there. Generate one sequence at a time to keep "
        "them",
    )
    return batch


def to_quantized(cache, form, keys, values, group_size, bits):
    """mlx-lm's QuantizedKVCache of the rows."""
    import mlx.core as mx
    from mlx_lm.models.cache import QuantizedKVCache

    quantized = QuantizedKVCache(group_size=group_size, bits=bits)
    quantized.offset = cache.offset
    if keys is not None and cache.offset > 0:
        quantized.keys, quantized.values = (
            mx.quantize(rows, group_size=group_size, bits=bits) for rows in (keys, values)
        )
    hand_over(
        [cache],
        "to_quantized",
        f"mlx-lm's kv_bits goes on with its own QuantizedKVCache in the place of {form}; Kvik's "
        "storage and attention are not used there. Leave kv_bits out, and for low bits of Kvik's "
        'install(cache, kv_quant_config="q4")',
    )
    return quantized
