"""Putting Kvik's caches in the place of a model's caches, one entry per layer."""

import mlx.core as mx

import kvik

from . import routing
from .block_owned import BlockOwnedKVCache
from .owned import OwnedKVCache
from .paged import PagedKVCache
from .tail_owned import TailOwnedKVCache


def _holds_rows_in_order(entry):
    """Whether an entry of a cache list can be replaced: trimmable, not indexed, with keys and
    values."""
    return (
        entry is not None
        and not hasattr(entry, "_idx")
        and hasattr(entry, "keys")
        and hasattr(entry, "values")
        and bool(getattr(entry, "is_trimmable", lambda: False)())
    )


def check_list(cache):
    if not isinstance(cache, list):
        raise TypeError(f"cache must be a list, not {type(cache).__name__}")


class _Rows:
    """What the installer of kvik reads of an entry."""

    def __init__(self, entry):
        self.keys, self.values, self.offset = None, None, 0
        if entry.keys is not None and entry.offset > 0:
            self.keys = entry.keys[..., : entry.offset, :]
            self.values = entry.values[..., : entry.offset, :]
            self.offset = entry.offset
            mx.eval(self.keys, self.values)

    def is_trimmable(self):
        return True


def install_vllm_metal_paged_attention_kv_cache(
    cache, block_size=16, num_blocks=1024, turboquant_config=None, kv_quant_config=None, **options
):
    """Replaces entries of a cache list in place by paged ones with the same rows, and routes
    attention.

    Skipped: None, what is not trimmable, is indexed (rotating) or has no keys and values, and
    tail- and block-owned entries. An entry that is paged already takes the new settings. Either
    all entries change or, with an error, none.

    Args:
        cache: a list, as of mlx_lm.models.cache.make_prompt_cache.
        block_size, num_blocks: tokens of a block; blocks of each batch row.
        turboquant_config, kv_quant_config: low-bit storage.
        options: the further options of kvik.PagedKVCache.

    Returns:
        The report: enabled, mode, entries, skipped, block_size, num_blocks, turboquant, kv_quant,
        attention_impl, external_ops_required.
    """
    check_list(cache)
    shadow = []
    for entry in cache:
        if isinstance(entry, PagedKVCache):
            shadow.append(entry._core)
        elif isinstance(entry, OwnedKVCache) or not _holds_rows_in_order(entry):
            shadow.append(None)
        else:
            shadow.append(_Rows(entry))
    before = list(shadow)
    report = kvik.install_vllm_metal_paged_attention_kv_cache(
        shadow,
        block_size=block_size,
        num_blocks=num_blocks,
        turboquant_config=turboquant_config,
        kv_quant_config=kv_quant_config,
        **options,
    )
    for i, (core, rows) in enumerate(zip(shadow, before, strict=True)):
        if core is not rows:
            cache[i] = PagedKVCache._of(core, rows.keys, rows.values)
    if report["enabled"]:
        routing.route()
    return report


def install(cache, **options):
    """install_vllm_metal_paged_attention_kv_cache with its defaults, of which options may name
    any."""
    return install_vllm_metal_paged_attention_kv_cache(cache, **options)


def uninstall(cache=None):
    """Ends the routing of attention; with a cache list, also puts mlx-lm's KVCache, with the rows,
    in the place of its paged entries. Paged caches that stay in use work on, over gathered
    rows."""
    if cache is not None:
        from mlx_lm.models.cache import KVCache

        for i, entry in enumerate(cache):
            if isinstance(entry, PagedKVCache):
                stock = KVCache()
                if entry.offset > 0:
                    stock.update_and_fetch(*entry.keys_and_values())
                    mx.eval(stock.state)
                cache[i] = stock
    routing.unroute()


def _install_owned(cache, make, wanted, reconfigure, skips):
    check_list(cache)
    entries = skipped = 0
    new = list(cache)
    for i, entry in enumerate(cache):
        if isinstance(entry, wanted):
            reconfigure(entry)
        elif isinstance(entry, skips) or not _holds_rows_in_order(entry):
            skipped += 1
            continue
        else:
            new[i] = make(entry)
        entries += 1
    cache[:] = new
    return {"enabled": entries > 0, "entries": entries, "skipped": skipped}


def install_tail_owned_attention_kv_cache(cache, mode="contiguous_eval", step=None):
    """Replaces entries of a cache list in place by tail-owned ones with the same rows; returns the
    report."""

    TailOwnedKVCache(mode=mode, **({} if step is None else {"step": step}))  # refuses bad ones

    def reconfigure(entry):
        entry.meta_state = (entry.step if step is None else step, entry.offset, mode)

    report = _install_owned(
        cache,
        lambda entry: TailOwnedKVCache.from_cache(entry, mode=mode, step=step),
        TailOwnedKVCache,
        reconfigure,
        (),
    )
    mode = TailOwnedKVCache(mode=mode).mode
    return report | {"mode": mode} | ({} if step is None else {"step": step})


def install_block_owned_attention_kv_cache(cache, mode="contiguous_eval", block_size=1024):
    """Replaces entries by block-owned ones; skips tail-owned ones too. Returns the report."""

    BlockOwnedKVCache(mode=mode, block_size=block_size)  # refuses bad ones

    def reconfigure(entry):
        if entry.block_size != block_size:
            entry.count_anew(block_size)
        entry.meta_state = (entry.block_size, entry.offset, mode)

    report = _install_owned(
        cache,
        lambda entry: BlockOwnedKVCache.from_cache(entry, mode=mode, block_size=block_size),
        BlockOwnedKVCache,
        reconfigure,
        TailOwnedKVCache,
    )
    return report | {"mode": BlockOwnedKVCache(mode=mode).mode, "block_size": block_size}


def tail_owned_attention_kv_stats(cache):
    """Sums over the entries that are Kvik's, or None without any. For a paged entry `arrays`
    counts attention calls and `time_s` writing and attention."""
    total = None
    for entry in cache:
        if isinstance(entry, OwnedKVCache):
            stats = entry.tail_owner_stats()
        elif isinstance(entry, PagedKVCache):
            stats = kvik.tail_owned_attention_kv_stats([entry._core])
        else:
            continue
        if total is None:
            total = {key: stats[key] for key in ("mode", "updates", "arrays", "bytes", "time_s")}
        else:
            for key in ("updates", "arrays", "bytes", "time_s"):
                total[key] += stats[key]
    return total
