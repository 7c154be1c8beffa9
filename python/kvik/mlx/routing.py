"""Attention of mlx-lm's models over the pages of PagedKVCache.
 mlx-lm's models call `scaled_dot_product_attention`, imported by name into each module. While it
is routed, every module has `_routed` under that name, which serves calls for a PagedKVCache from
the pages and passes all others on.
"""

import sys
import threading
import warnings

import mlx.core as mx

import kvik

from .paged import PagedKVCache

_NAME = "scaled_dot_product_attention"

_lock = threading.Lock()
_original = None
_warned = set()


def _warn_once(reason):
    if reason not in _warned:
        _warned.add(reason)
        warnings.warn(
            f"kvik: attention over gathered rows instead of pages: {reason}",
            kvik.FallbackWarning,
            stacklevel=4,
        )


def _routed(queries, keys, values, cache, scale, mask, sinks=None):
    if not isinstance(cache, PagedKVCache):
        return _base_attention()(queries, keys, values, cache, scale, mask, sinks)
    if cache.is_fetched(keys, values):
        out = cache.attend(queries, scale, mask, sinks)
        if out is not None:
            return out
        _warn_once(cache.paged_attention_last_bailout["reason"])
    else:
        # Keys or values that a model has changed since (joined, tiled, scaled) are not those of
        # the pages.
        _warn_once("the model attends to other keys or values than the cache returned")
    cache.count_fallback(queries.shape[2])
    return mx.fast.scaled_dot_product_attention(
        queries, keys, values, scale=scale, mask=mask, sinks=sinks
    )


def _base_attention():
    import mlx_lm.models.base as base

    return _original or getattr(base, _NAME)


def _replace(old, new):
    for name, module in list(sys.modules.items()):
        names = vars(module) if module is not None and hasattr(module, "__dict__") else {}
        if names.get(_NAME) is old:
            names[_NAME] = new
        elif name.startswith("mlx_lm."):
            for other in [key for key, value in list(names.items()) if value is old]:
                names[other] = new


def is_routed():
    return _original is not None


def route():
    """Routes attention for PagedKVCache objects; does nothing where it is routed already.

    Modules that are imported later take the routed function from mlx_lm.models.base.
    """
    global _original
    with _lock:
        if _original is not None:
            return
        import mlx_lm.models.base as base

        original = getattr(base, _NAME)
        _replace(original, _routed)
        _original = original


def unroute():
    """Puts mlx-lm's function back everywhere."""
    global _original
    with _lock:
        if _original is None:
            return
        _replace(_routed, _original)
        _original = None
