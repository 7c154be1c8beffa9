"""Kvik's caches under MLX and mlx-lm."""

from .block_owned import BlockOwnedKVCache
from .files import load_prompt_cache, save_older_prompt_cache, save_prompt_cache
from .registration import register
from .tail_owned import TailOwnedKVCache

__all__ = [
    "BlockOwnedKVCache",
    "TailOwnedKVCache",
    "load_prompt_cache",
    "save_older_prompt_cache",
    "save_prompt_cache",
]

register(BlockOwnedKVCache, TailOwnedKVCache)
