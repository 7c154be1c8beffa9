"""The paged cache of one layer on MLX arrays."""

import contextlib
import contextvars

import mlx.core as mx
import numpy as np

import kvik
from kvik import _core

from . import handover, masks, settings
from .arrays import to_mlx
from .checks import number, whole
from .extension import append_extension
from .owned import check_pair, parse_state, rows_of
from .snapshots import Snapshots

_FALLBACK_KEYS = {
    "prefill": "prefill_dense_fallback_calls",
    "decode_verify": "decode_dense_fallback_calls",
    "ar_decode": "ar_dense_fallback_calls",
    "postcommit": "postcommit_dense_fallback_calls",
}

_DTYPES = {mx.float32: "float32", mx.float16: "float16", mx.bfloat16: "bfloat16"}

_BY_NAME = {name: dtype for dtype, name in _DTYPES.items()}

_PHASES = (*_FALLBACK_KEYS, "unknown")

# What a cache is without options, whatever the environment says.
_DEFAULTS = {
    "block_size": 16,
    "num_blocks": 1024,
    "dynamic": False,
    "context_window": 0,
    "max_tokens": 1 << 20,
    "attention_impl": "paged",
    "sliding_window": 0,
    "max_q_len": 0,
    "partitioned": False,
    "partition_threshold": 2048,
    "forbid_dense_fallback": False,
    "forbid_active_arrays": False,
}
_CODES = ("format", "layout", "num_rows", "head_dim_k", "head_dim_v", "dtype_k", "dtype_v")

_phase = contextvars.ContextVar("kvik_mlx_phase", default=None)


@contextlib.contextmanager
def phase(name):
    """Within it, calls count as this phase: prefill, decode_verify, ar_decode, postcommit or
    unknown.

    Elsewhere a call of one token counts as ar_decode, one of more as prefill.
    """
    if name not in _PHASES:
        raise ValueError(f"phase is {name!r}; it may be {', '.join(_PHASES)}")
    token = _phase.set(name)
    try:
        yield
    finally:
        _phase.reset(token)


def _phase_of(num_queries):
    return _phase.get() or ("ar_decode" if num_queries == 1 else "prefill")


class PagedKVCache:
    """Keys and values of one layer in Kvik's pages, in the place of mlx-lm's KVCache.

    With the extension `update_and_fetch` and `attend` are nodes of MLX's graph: the offset grows
    at once and room is taken, rows are written and attended to when MLX evaluates. Whatever else
    needs the rows (trim, fork, state, counters, ...) evaluates first what is pending. Without it
    both run at once.

    What `update_and_fetch` returns are ordinary arrays that are gathered from the pages only if
    something evaluates them. With attention routed (`kvik.mlx.install`) nothing does: attention
    runs over the pages.

    The arguments are those of kvik.PagedKVCache, whose methods the rest are too.
    """

    def __init__(self, **options):
        self._raw = kvik.PagedKVCache(**options)
        self._begin()

    def _begin(self):
        self._nodes = None  # of the graph, once there are any
        self._offset = 0  # valid while nodes are pending
        self._snapshots = Snapshots()
        self._fetched = (None, None)
        self._shape = self._dtypes = None  # (B, H, Dk, Dv) and MLX's dtypes of the rows
        self._pending = {}
        self._dense_fallbacks = {}
        self._handed_over = {}

    @property
    def _core(self):
        """kvik's cache with all rows."""
        self._settle()
        return self._raw

    # Pending nodes

    def _settle(self):
        """Evaluates what is pending. Raises what that raises; then the rows stay pending."""
        if self._nodes is not None:
            if self._nodes.busy:
                self._nodes.settle()
            self._check()

    def _check(self):
        """Raises the error of a node that has run, once. The rows before it are all there."""
        error = self._nodes.take_error()
        if error is not None:
            self._fetched = (None, None)
            raise RuntimeError(
                f"rows were not stored, the cache is back at offset {self._raw.offset}: {error}"
            )

    def _graph(self, *arrays):
        """The nodes for these arrays, or None where they cannot be in the graph."""
        extension = append_extension()
        if extension is None or any(array.size == 0 for array in arrays):
            return None
        if any(array.dtype not in _DTYPES or array.ndim != 4 for array in arrays):
            return None
        extension.PagedNodes.refuse_tracers(arrays[0], arrays[-1])
        if self._nodes is None:
            self._nodes = extension.PagedNodes(_core._core_functions(), self._raw._handle())
        return self._nodes

    def _remember(self, keys, values):
        self._shape = (*keys.shape[:2], keys.shape[3], values.shape[3])
        self._dtypes = (keys.dtype, values.dtype)

    @classmethod
    def _of(cls, core, keys=None, values=None):
        """A cache around one of kvik's, which holds rows as these."""
        cache = cls.__new__(cls)
        cache._raw = core
        cache._begin()
        if keys is not None:
            cache._remember(keys, values)
        return cache

    @classmethod
    def from_cache(cls, entry, **options):
        """A cache with a copy of the rows of another one with keys, values and offset; of a
        PagedKVCache that stores them in the same low bits, exactly."""
        if isinstance(entry, PagedKVCache):
            cache = cls._of(kvik.PagedKVCache.from_cache(entry._core, **options))
            cache._replaced()
            return cache
        cache = cls(**options)
        keys, values, offset = rows_of(entry)
        if keys is not None and offset > 0:
            cache.state = (keys[..., :offset, :], values[..., :offset, :])
        return cache

    # Rows

    def update_without_fetch(self, keys, values):
        """Appends ``[B, H, S, Dk]`` and ``[B, H, S, Dv]`` to the pages.

        Raises ValueError for other shapes or dtypes than those of the first write,
        kvik.OutOfPagesError where the capacity is full and may not grow; then nothing was changed.
        """
        check_pair(keys, values)
        nodes, phase = self._graph(keys, values), _phase_of(keys.shape[2])
        if nodes is None:
            mx.eval(keys, values)
            self._core.update_without_fetch(keys, values, phase=phase)
        else:
            position = self.offset
            self._raw._prepare(
                (*keys.shape[:2], keys.shape[3], values.shape[3]),
                _DTYPES[keys.dtype],
                _DTYPES[values.dtype],
                position,
                keys.shape[2],
            )
            nodes.append(keys, values, position, phase)
            self._offset = position + keys.shape[2]
        if keys.shape[2] > 0:
            self._remember(keys, values)
            self._pending = {}

    def update_and_fetch(self, keys, values):
        """As update_without_fetch; returns all valid keys and values, ``[B, H, offset, D]``."""
        self.update_without_fetch(keys, values)
        self._fetched = self.keys_and_values()
        return self._fetched

    def _gather(self):
        length = self.offset
        batch, heads, key_dim, value_dim = self._shape
        after = self._nodes.last if self._nodes is not None else None
        return self._snapshots.take(self._raw, length).arrays(
            (batch, heads, length, key_dim), (batch, heads, length, value_dim), *self._dtypes, after
        )

    def keys_and_values(self):
        """All valid keys and values, gathered when they are evaluated; ``(None, None)`` while
        empty."""
        if self.offset == 0 or self._shape is None:
            return None, None
        return self._gather()

    @property
    def offset(self):
        """Valid rows of each batch row. Setting a smaller number trims."""
        if self._nodes is None:
            return self._raw.offset
        if self._nodes.busy:
            return self._offset
        self._check()
        return self._raw.offset

    @offset.setter
    def offset(self, offset):
        offset = whole(offset, "offset")
        if not 0 <= offset <= self.offset:
            raise ValueError(
                f"an offset of {offset} does not fit the {self.offset} rows of the cache"
            )
        self.trim(self.offset - offset)

    @property
    def step(self):
        return self._raw.block_size

    def size(self):
        return self.offset

    def empty(self):
        return self._core.empty()

    def is_trimmable(self):
        return True

    def trim(self, n):
        """Drops the min(n, offset) newest rows and returns that number; 0 for a negative n."""
        offset = self.offset
        n = min(max(whole(n, "n"), 0), offset)
        if n > 0:
            self._change(offset - n)
            self._raw.trim(self._raw.offset - (offset - n))
        return n

    def _change(self, length=0):
        """Before rows from `length` on are dropped."""
        try:
            self._settle()
        except Exception:
            # Rows whose graph cannot be evaluated can be dropped all the same.
            if not self._nodes.busy or length > self._raw.offset:
                raise
            self._nodes.drop()
        self._snapshots.freeze()
        self._fetched = (None, None)

    # Attention

    def is_fetched(self, keys, values):
        """Whether these are the arrays of the last update_and_fetch: all rows, as they lie in the
        pages."""
        return keys is self._fetched[0] and values is self._fetched[1] and keys is not None

    def attend(self, queries, scale=None, mask=None, sinks=None, sliding_window=None):
        """Attention of queries ``[B, H, S, Dk]`` over the pages, or None where that is declined.

        mask: None lets every query see all rows (mlx's meaning), "causal", or an array: bool, true
        = visible, or of floats, 0 = visible, minus infinity = hidden.
        """
        if not isinstance(queries, mx.array):
            raise TypeError(f"queries are an mx.array, not {type(queries).__name__}")
        if sinks is not None and not isinstance(sinks, mx.array):
            raise TypeError(f"sinks are an mx.array or None, not {type(sinks).__name__}")
        if mask is not None and not isinstance(mask, (str, mx.array)):
            raise TypeError(f"mask is an mx.array, a str or None, not {type(mask).__name__}")
        scale = None if scale is None else number(scale, "scale")
        if sliding_window is not None:
            sliding_window = whole(sliding_window, "sliding_window")
        if mask is None:
            mask = "full" if sliding_window is None else "causal"
        out = self._attend_in_graph(queries, scale, mask, sinks, sliding_window)
        if out is not None:
            return out
        if isinstance(mask, mx.array):
            if mask.ndim < 2:
                mask = mx.broadcast_to(mask, (queries.shape[2], mask.shape[-1]))
            mx.eval(queries, mask)
        else:
            mx.eval(queries)
        if sinks is not None:
            mx.eval(sinks)
        out = self._core.paged_attention(
            queries, scale, sliding_window, mask, None, sinks, phase=_phase_of(queries.shape[2])
        )
        # A copy of the output costs less than having MLX make an array for it first.
        return None if out is None else to_mlx(out, queries.shape[2])

    def _attend_in_graph(self, queries, scale, mask, sinks, sliding_window):
        """The node, or None where the call is not one for the graph."""
        nodes = self._graph(queries)
        if nodes is None or not isinstance(mask, str) or mask not in ("full", "causal"):
            return None
        if self._shape is None or self._shape[3] == 0:
            return None
        logits = []
        if sinks is not None:
            if sinks.ndim != 1 or sinks.dtype not in _DTYPES or len(sinks) != queries.shape[1]:
                return None
            logits = sinks.astype(mx.float32).tolist()
        window = 0 if sliding_window is None else max(sliding_window, 0)
        length = self.offset
        if not self._raw._would_serve(
            queries.shape, _DTYPES[queries.dtype], length, window or None
        ):
            return None
        return nodes.attend(
            queries,
            self._shape[3],
            queries.shape[3] ** -0.5 if scale is None else scale,
            mask == "causal",
            window,
            length,
            logits,
            _phase_of(queries.shape[2]),
        )

    def paged_attention(self, queries, scale=None, sliding_window=None, mask="causal", sinks=None):
        """`attend` with the defaults of kvik.PagedKVCache.paged_attention."""
        return self.attend(
            queries, scale, "causal" if mask is None else mask, sinks, sliding_window
        )

    def count_fallback(self, num_queries):
        """Counts a call that was served over gathered rows."""
        name = _phase_of(num_queries)
        self._dense_fallbacks[name] = self._dense_fallbacks.get(name, 0) + 1

    def paged_stats(self):
        """The counters as a dict, as kvik.PagedKVCache.paged_stats, and handed_over: times that
        mlx-lm took the rows and went on with a cache of its own, by reason."""
        stats = self._core.paged_stats()
        for name, calls in self._dense_fallbacks.items():
            stats["dense_fallback_calls"] += calls
            key = _FALLBACK_KEYS.get(name)
            if key is not None:
                stats[key] += calls
        stats["handed_over"] = dict(self._handed_over)
        return stats

    # Restoring

    @property
    def state(self):
        """The valid rows, ``(keys, values)``; ``(None, None)`` while empty. Where the options are
        not the defaults a third array holds them, and low-bit rows are their codes, exactly as they
        are stored (`keys` and `values` decode): mlx-lm's files keep the state and nothing else.

        Setting replaces all rows by a copy, and takes the options where the state has them;
        mlx-lm's ``(keys, values, offset)`` is taken too.
        """
        keywords = self._core._keywords
        if not self._is_low_bit(keywords):
            if keywords == _DEFAULTS:
                return self.keys_and_values()
            return (*self.keys_and_values(), settings.pack(keywords))
        codes = self._core.export_codes()
        if codes is None or codes["num_rows"] == 0:
            return None, None, settings.pack(keywords)
        kept = {name: codes[name] for name in _CODES}
        arrays = (mx.array(codes[half]) for half in ("keys", "values"))
        return (*arrays, settings.pack(keywords, kept))

    @staticmethod
    def _is_low_bit(keywords):
        return any(name.endswith("_config") or name == "kv_format" for name in keywords)

    @state.setter
    def state(self, state):
        keys, values, last = parse_state(state)
        if settings.is_packed(last):
            self._become(self._made_of(keys, values, *settings.unpack(last)))
            return
        if keys is None:
            self._change()
            self._core.state = None
            self._shape = self._dtypes = None
            return
        check_pair(keys, values)
        offset = keys.shape[2] if last is None else whole(last, "offset")
        if not 0 <= offset <= keys.shape[2]:
            raise ValueError(f"an offset of {offset} does not fit a state of {keys.shape[2]} rows")
        keys, values = keys[..., :offset, :], values[..., :offset, :]
        mx.eval(keys, values)
        self._change()
        self._core.state = (keys, values)
        self._remember(keys, values)

    @classmethod
    def _made_of(cls, keys, values, keywords, codes):
        """A cache with the options and the rows or codes of a state."""
        cache = cls(**keywords)
        if codes is None:
            cache.state = (keys, values)
        elif keys is None or set(codes) != set(_CODES):
            raise ValueError("the codes of a state need keys, values and what export_codes says")
        else:
            mx.eval(keys, values)
            cache.import_codes({**codes, "keys": np.array(keys), "values": np.array(values)})
        return cache

    def _become(self, other):
        """Takes the place of another cache, which nobody else has."""
        self._change()
        handed_over, fallbacks = self._handed_over, self._dense_fallbacks
        self._raw = other._raw
        self._begin()
        self._shape, self._dtypes = other._shape, other._dtypes
        self._handed_over, self._dense_fallbacks = handed_over, fallbacks

    def _replaced(self):
        """After the rows were replaced in kvik's cache."""
        kind = self._raw._rows_kind
        self._shape = self._dtypes = None
        if kind is not None:
            self._shape = tuple(kind[:4])
            self._dtypes = tuple(_BY_NAME[name] for name in kind[4:])

    def import_codes(self, codes):
        """As kvik.PagedKVCache.import_codes."""
        self._change()
        self._raw.import_codes(codes)
        self._replaced()

    def import_pages(self, key_cache, value_cache, block_table, offset):
        """As kvik.PagedKVCache.import_pages."""
        self._change()
        self._raw.import_pages(key_cache, value_cache, block_table, offset)
        self._replaced()

    def reconfigure(self, **options):
        """As kvik.PagedKVCache.reconfigure."""
        self._change()
        self._raw.reconfigure(**options)

    @property
    def meta_state(self):
        """``(block_size, num_blocks, offset)`` as strings."""
        return self._core.meta_state

    @meta_state.setter
    def meta_state(self, meta):
        if meta is not None and len(meta) > 0:
            self._change()
        self._core.meta_state = meta

    @classmethod
    def from_state(cls, state, meta_state=None):
        """A cache with this state and, where given, this meta state."""
        options = {}
        if meta_state is not None and len(meta_state) == 3:
            try:
                options = {"block_size": int(meta_state[0]), "num_blocks": int(meta_state[1])}
            except (TypeError, ValueError):
                raise ValueError(
                    "a meta_state is (block_size, num_blocks, offset) as whole numbers, not "
                    f"{meta_state!r}"
                ) from None
        cache = cls(**options)
        cache.state = state
        if meta_state is not None:
            cache.meta_state = meta_state
        return cache

    def _set_half(self, name, array):
        if array is None:
            self._pending = {}
            self.state = None
            return
        self._pending[name] = array
        rows = dict(zip(("keys", "values"), self.keys_and_values(), strict=True))
        pair = {half: self._pending.get(half, rows[half]) for half in rows}
        if any(half is None for half in pair.values()):
            return
        if pair["keys"].shape[:3] == pair["values"].shape[:3]:
            self._pending = {}
            self.state = (pair["keys"], pair["values"])

    @property
    def keys(self):
        """The valid keys or None. Setting copies all rows: at once where the number of rows stays,
        else when the values are set too; None empties the cache."""
        return self.keys_and_values()[0]

    @keys.setter
    def keys(self, array):
        self._set_half("keys", array)

    @property
    def values(self):
        """The valid values or None; set as `keys`."""
        return self.keys_and_values()[1]

    @values.setter
    def values(self, array):
        self._set_half("values", array)

    def fork(self):
        """A second cache with the same rows; full pages are shared for ever, the last one until
        one appends."""
        other = self._of(self._core.fork())
        other._shape, other._dtypes = self._shape, self._dtypes
        return other

    def __copy__(self):
        return self.fork()

    def __deepcopy__(self, memo):
        return self.fork()

    # mlx-lm

    def make_mask(
        self,
        N=None,  # noqa: N803
        return_array=False,
        window_size=None,
        *,
        query_len=None,
        key_len=None,
        dtype=None,
    ):
        """As TailOwnedKVCache.make_mask."""
        return masks.make_mask(
            self.offset,
            N,
            return_array,
            window_size,
            query_len=query_len,
            key_len=key_len,
            dtype=dtype,
        )

    @classmethod
    def merge(cls, caches):
        """mlx-lm's BatchKVCache of these caches, by one copy: its rows start at different
        positions. Counted, and told once (kvik.FallbackWarning): it is no cache of Kvik's."""
        kvik_caches = [cache for cache in caches if isinstance(cache, PagedKVCache)]
        return handover.merge(caches, kvik_caches[0]._form() if kvik_caches else cls.__name__)

    def _form(self):
        """The class, and the format where that is in low bits."""
        keywords = self._core._keywords
        if not self._is_low_bit(keywords):
            return type(self).__name__
        shape = self._raw._rows_kind
        form = self._raw.paged_stats()["format"] if shape else "low-bit"
        return f"{type(self).__name__} in {form}, whose rows it holds decoded"

    def to_quantized(self, group_size=64, bits=4):
        """mlx-lm's QuantizedKVCache of these rows; counted and told as merge."""
        return handover.to_quantized(self, self._form(), *self.keys_and_values(), group_size, bits)

    # kvik

    def __getattr__(self, name):
        """Everything else that kvik.PagedKVCache has: paged_stats, block_table, capacity, nbytes,
        ..."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._core, name)


VllmMetalPagedKVCache = PagedKVCache
