"""KV cache and attention for transformer inference.

Arrays are NumPy arrays or whatever has ``__dlpack__`` (mlx, torch, jax), float32, float16 or
bfloat16, in CPU memory. See docs/python.md.
"""

from kvik._bfloat16 import BFloat16Array
from kvik._core import (
    BlockOwnedKVCache,
    CorruptError,
    Error,
    FormatInfo,
    OutOfPagesError,
    PagedKVCache,
    TailOwnedKVCache,
    UnsupportedError,
    __version__,
    attend,
    configure_tail_owned_attention_kv_cache,
    cpu_info,
    formats,
    get_num_threads,
    install_block_owned_attention_kv_cache,
    install_tail_owned_attention_kv_cache,
    install_vllm_metal_paged_attention_kv_cache,
    set_num_threads,
    split_block_table,
    tail_owned_attention_kv_stats,
)
from kvik._formats import decode, encode
from kvik._views import CacheView
from kvik._warnings import FallbackWarning

VllmMetalPagedKVCache = PagedKVCache

__all__ = [
    "BFloat16Array",
    "BlockOwnedKVCache",
    "CacheView",
    "CorruptError",
    "Error",
    "FallbackWarning",
    "FormatInfo",
    "OutOfPagesError",
    "PagedKVCache",
    "TailOwnedKVCache",
    "UnsupportedError",
    "VllmMetalPagedKVCache",
    "__version__",
    "attend",
    "configure_tail_owned_attention_kv_cache",
    "cpu_info",
    "decode",
    "encode",
    "formats",
    "get_num_threads",
    "install_block_owned_attention_kv_cache",
    "install_tail_owned_attention_kv_cache",
    "install_vllm_metal_paged_attention_kv_cache",
    "set_num_threads",
    "split_block_table",
    "tail_owned_attention_kv_stats",
]
