"""What the tail-owned and the block-owned cache share: rows of keys and values, state, trim,
masks, forks."""

import time

import mlx.core as mx

from . import handover, masks, settings
from .checks import whole
from .extension import append_extension
from .modes import parse_mode
from .tail_rows import make_rows

MAX_ROWS = 1 << 18


def _describe(keys, values):
    return ", ".join(
        f"[{', '.join(map(str, a.shape))}] {str(a.dtype).rpartition('.')[2]}"
        for a in (keys, values)
    )


def check_pair(keys, values):
    """Raises ValueError unless keys and values are ``[B, H, T, Dk]`` and ``[B, H, T, Dv]``."""
    for name, array in (("keys", keys), ("values", values)):
        if not isinstance(array, mx.array):
            raise TypeError(f"{name} are an mx.array, not {type(array).__name__}")
    if keys.ndim != 4 or values.ndim != 4 or keys.shape[:3] != values.shape[:3]:
        raise ValueError(
            f"keys and values are [B, H, T, D] with equal B, H and T, not {_describe(keys, values)}"
        )


def rows_of(entry):
    """(keys, values, offset) of another cache. Raises TypeError for what is none."""
    if not all(hasattr(entry, name) for name in ("keys", "values", "offset")):
        raise TypeError(f"a cache needs keys, values and offset; {type(entry).__name__} lacks them")
    return entry.keys, entry.values, whole(entry.offset, "the offset of the entry")


def parse_state(state):
    """(keys, values, offset or settings or None) of a state; None stands for an array without
    rows. Raises ValueError."""
    if state is None:
        return None, None, None
    if not isinstance(state, (tuple, list)) or len(state) not in (0, 2, 3):
        raise ValueError(
            "a state is (keys, values), (keys, values, offset), (keys, values, settings) or None, "
            f"not {type(state).__name__}"
            + (f" of {len(state)} items" if isinstance(state, (tuple, list)) else "")
        )
    if len(state) == 0:
        return None, None, None
    for name, array in zip(("keys", "values"), state[:2], strict=True):
        if array is not None and not isinstance(array, mx.array):
            raise TypeError(f"{name} of a state are an mx.array, not {type(array).__name__}")
    keys, values = (None if a is None or a.size == 0 and a.ndim < 4 else a for a in state[:2])
    if (keys is None) != (values is None):
        raise ValueError("a state has keys and values, or neither")
    return keys, values, state[2] if len(state) == 3 else None


def are_defaults(keywords, defaults):
    return all(keywords[name] == value for name, value in defaults.items())


def _kind(keys, values):
    """All of a pair that no later update may change."""
    return (keys.shape[0], keys.shape[1], keys.shape[3], values.shape[3], keys.dtype, values.dtype)


class OwnedKVCache:
    """Base of the caches whose rows are contiguous arrays. Not for use by itself."""

    # Of the class: instances made by __new__ alone (mlx-lm's from_state) start from it.
    step = 256
    _STEP_NAME = "step"

    # The names of the settings that a state keeps, with their defaults.
    _SETTINGS = {}

    def __init__(self, step, mode, max_rows):
        step, max_rows = whole(step, self._STEP_NAME), whole(max_rows, "max_rows")
        if step < 1 or max_rows < 1:
            raise ValueError(
                f"{self._STEP_NAME} and max_rows are at least 1, not {step} and {max_rows}"
            )
        self.step = step
        self.mode = parse_mode(mode)
        self._max_rows = max_rows
        self._clear()
        self._updates = self._arrays = self._bytes = self._copies = 0
        self._time_s = 0.0
        self._handed_over = {}

    def _clear(self):
        self._kind = None
        self._key_rows = self._value_rows = None
        self._pending = {}

    # Rows

    def _append(self, keys, values):
        if self._kind is None:
            extension = append_extension()
            self._key_rows = make_rows(keys, self.step, self._max_rows, extension)
            self._value_rows = make_rows(values, self.step, self._max_rows, extension)
            self._kind = _kind(keys, values)
        copied = self._key_rows.append(keys)
        copied = self._value_rows.append(values) or copied
        return copied

    def _write(self, keys, values):
        """Appends and counts. Raises ValueError, nothing changed, for rows unlike those before."""
        start = time.perf_counter()
        check_pair(keys, values)
        if self._kind is not None and self._kind != _kind(keys, values):
            raise ValueError(
                f"the cache holds {_describe(self._key_rows.array, self._value_rows.array)}; "
                f"an update of {_describe(keys, values)} does not fit"
            )
        if keys.shape[2] > 0:
            self._pending = {}
            pieces = self._pieces(keys.shape[2])
            self._copies += self._append(keys, values)
            self._updates += pieces
            self._arrays += 2 * pieces
            self._bytes += keys.nbytes + values.nbytes
        self._time_s += time.perf_counter() - start

    def _pieces(self, count):
        return 1

    def update_and_fetch(self, keys, values):
        """Appends ``[B, H, S, Dk]`` and ``[B, H, S, Dv]``; returns all valid keys and values,
        ``[B, H, offset, D]``.

        Arrays returned earlier keep their content for ever. Raises ValueError, with nothing
        changed, for other shapes or dtypes than those of the first update.
        """
        self._write(keys, values)
        return self.keys_and_values()

    def keys_and_values(self):
        """All valid keys and values; ``(None, None)`` before the first update."""
        if self._kind is None:
            return None, None
        return self._key_rows.array, self._value_rows.array

    @property
    def offset(self):
        """Valid rows. Setting a smaller number trims."""
        return 0 if self._kind is None else self._key_rows.length

    @offset.setter
    def offset(self, offset):
        offset = whole(offset, "offset")
        if not 0 <= offset <= self.offset:
            raise ValueError(
                f"an offset of {offset} does not fit the {self.offset} rows of the cache"
            )
        self._trim_to(offset)

    def _trim_to(self, offset):
        if self._kind is not None and offset < self._key_rows.length:
            self._key_rows.trim(offset)
            self._value_rows.trim(offset)

    def size(self):
        """Valid rows."""
        return self.offset

    def empty(self):
        """Whether nothing was written yet; stays False after a trim to zero."""
        return self._kind is None

    def is_trimmable(self):
        return True

    def trim(self, n):
        """Drops the min(n, offset) newest rows and returns that number; 0 for a negative n. Frees
        nothing."""
        n = min(self.offset, max(whole(n, "n"), 0))
        self._trim_to(self.offset - n)
        return n

    @property
    def capacity(self):
        """Rows for which memory is there: the smallest multiple of the step that has held the
        rows."""
        return 0 if self._kind is None else self._key_rows.capacity

    @property
    def nbytes(self):
        """Bytes of the capacity."""
        if self._kind is None:
            return 0
        batch, heads, key_dim, value_dim, key_type, value_type = self._kind
        return (
            self.capacity * batch * heads * (key_dim * key_type.size + value_dim * value_type.size)
        )

    @property
    def resident_bytes(self):
        """Bytes that the system holds for the rows now; shared with forks and views."""
        if self._kind is None:
            return 0
        return self._key_rows.resident_bytes + self._value_rows.resident_bytes

    # Restoring

    def _replace(self, keys, values, rows=None):
        """Takes the first `rows` rows (None: all) in the place of all there are."""
        if keys is None and values is None:
            self._clear()
            return
        if keys is None or values is None:
            raise ValueError("a state has keys and values, or neither")
        check_pair(keys, values)
        rows = keys.shape[2] if rows is None else whole(rows, "offset")
        if not 0 <= rows <= keys.shape[2]:
            raise ValueError(f"an offset of {rows} does not fit a state of {keys.shape[2]} rows")
        self._clear()
        self._append(keys[..., :rows, :], values[..., :rows, :])

    @property
    def state(self):
        """The valid rows, ``(keys, values)``; ``(None, None)`` while empty. Where settings are not
        the defaults a third array holds them, for files of mlx-lm, which keep the state alone.

        Setting replaces all rows; the offset becomes their number, and settings are taken where
        there are any. mlx-lm's ``(keys, values, offset)`` is taken too. The counters stay.
        """
        keywords = self._keywords()
        if are_defaults(keywords, self._SETTINGS) or self._kind is None:
            return self.keys_and_values()
        return (*self.keys_and_values(), settings.pack(keywords))

    def _keywords(self):
        return {self._STEP_NAME: self.step, "mode": self.mode, "max_rows": self._max_rows}

    @state.setter
    def state(self, state):
        keys, values, last = parse_state(state)
        rows = None
        if settings.is_packed(last):
            fresh = self._made_of(*settings.unpack(last))
            self._replace(keys, values)
            self.step, self.mode, self._max_rows = fresh.step, fresh.mode, fresh._max_rows
            for half in (self._key_rows, self._value_rows):
                if half is not None:
                    half.step = self.step
            return
        if last is not None and keys is not None:
            rows = whole(last, "offset")
        self._replace(keys, values, rows)

    @classmethod
    def _made_of(cls, keywords, codes):
        """An empty cache with the settings of a state."""
        if codes is not None or not set(keywords) <= set(cls._SETTINGS):
            raise ValueError(f"the settings in a state are none of a {cls.__name__}")
        return cls(**keywords)

    @classmethod
    def from_state(cls, state, meta_state=None):
        """A cache with this state and, where given, this meta state."""
        cache = cls._for_meta(meta_state)
        cache.state = state
        if meta_state is not None:
            cache.meta_state = meta_state
        return cache

    @classmethod
    def _for_meta(cls, meta_state):
        """An empty cache that can take this meta state."""
        return cls()

    def _set_half(self, name, array):
        if array is None:
            self._clear()
            return
        other = "values" if name == "keys" else "keys"
        if other in self._pending:
            pair = {name: array, other: self._pending[other]}
            self._replace(pair["keys"], pair["values"])
            return
        rows = getattr(self, "_key_rows" if name == "keys" else "_value_rows")
        if rows is not None and rows.array.shape == array.shape and rows.array.dtype == array.dtype:
            rows.assign(array, array.shape[2])
            return
        self._pending[name] = array

    @property
    def keys(self):
        """The valid keys or None. Setting takes effect at once where shape and dtype stay, else
        when the values are set too; None empties the cache."""
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

    # Copies

    def fork(self):
        """A second cache with the same rows; nothing is copied until both append."""
        other = type(self).__new__(type(self))
        other.__dict__.update(self.__dict__)
        other._pending = dict(self._pending)
        other._handed_over = dict(self._handed_over)
        if self._kind is not None:
            other._key_rows, other._value_rows = self._key_rows.fork(), self._value_rows.fork()
        return other

    def __copy__(self):
        return self.fork()

    def __deepcopy__(self, memo):
        return self.fork()

    def _adopt(self, entry):
        """Takes the rows of another cache: by reference from an owned one, else by one copy."""
        if isinstance(entry, OwnedKVCache):
            source = entry.fork()
            self._kind = source._kind
            self._key_rows, self._value_rows = source._key_rows, source._value_rows
            for rows in (self._key_rows, self._value_rows):
                if rows is not None:
                    rows.step = self.step
            return
        keys, values, offset = rows_of(entry)
        if keys is not None:
            self._replace(keys, values, offset)

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
        """The mask of N queries that follow the rows: None, "causal" or a bool array ``[N, offset
        + N]`` (mlx-lm's form), or with query_len and key_len the array of that size and dtype."""
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
        return handover.merge(caches, cls.__name__)

    def to_quantized(self, group_size=64, bits=4):
        """mlx-lm's QuantizedKVCache of these rows; counted and told as merge."""
        return handover.to_quantized(
            self, type(self).__name__, *self.keys_and_values(), group_size, bits
        )

    def tail_owner_stats(self):
        """mode, updates, arrays, bytes and time_s of the updates, copies of the history that they
        needed, nbytes, resident_bytes, handed_over (times that mlx-lm took the rows and went on
        with a cache of its own, by reason)."""
        return {
            "mode": self.mode,
            "updates": self._updates,
            "arrays": self._arrays,
            "bytes": self._bytes,
            "time_s": self._time_s,
            "copies": self._copies,
            "nbytes": self.nbytes,
            "resident_bytes": self.resident_bytes,
            "handed_over": dict(self._handed_over),
        }
