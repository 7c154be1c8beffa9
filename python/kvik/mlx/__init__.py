"""Kvik's caches under MLX and mlx-lm. See docs/mlx.md."""

from .block_owned import BlockOwnedKVCache
from .extension import ExtensionError
from .files import load_prompt_cache, save_older_prompt_cache, save_prompt_cache
from .flags import add_paged_arguments, paged_options
from .handover import handover_counts
from .install import (
    install,
    install_block_owned_attention_kv_cache,
    install_tail_owned_attention_kv_cache,
    install_vllm_metal_paged_attention_kv_cache,
    tail_owned_attention_kv_stats,
    uninstall,
)
from .paged import PagedKVCache, VllmMetalPagedKVCache, phase
from .registration import register
from .routing import is_routed, route, unroute
from .tail_owned import TailOwnedKVCache

__all__ = [
    "BlockOwnedKVCache",
    "ExtensionError",
    "PagedKVCache",
    "TailOwnedKVCache",
    "VllmMetalPagedKVCache",
    "add_paged_arguments",
    "handover_counts",
    "install",
    "install_block_owned_attention_kv_cache",
    "install_tail_owned_attention_kv_cache",
    "install_vllm_metal_paged_attention_kv_cache",
    "is_routed",
    "load_prompt_cache",
    "paged_options",
    "phase",
    "register",
    "route",
    "save_older_prompt_cache",
    "save_prompt_cache",
    "tail_owned_attention_kv_stats",
    "uninstall",
    "unroute",
]

register(BlockOwnedKVCache, PagedKVCache, TailOwnedKVCache)
