"""The tail-owned cache of one layer on MLX arrays."""

from .modes import parse_meta
from .owned import MAX_ROWS, OwnedKVCache


class TailOwnedKVCache(OwnedKVCache):
    """Keys and values of one layer, ``[B, H, T, D]``, in the place of mlx-lm's KVCache.

    With the extension (``python -m kvik.mlx.build``) an update writes the new rows and nothing
    else, also while arrays of earlier steps are held. Only where the rows to be written can still
    be read elsewhere (a held array after a trim, a fork that went on) is the history copied first,
    once, counted as `copies`.

    Args:
        keys, values: rows to start with (by one copy); None starts empty.
        step: the capacity is a multiple of so many rows.
        offset: valid rows of keys and values; None: all.
        mode: eval_only, contiguous_eval, selected_slice_contiguous_eval or metal_copy_leaf, in any
            case and with '-' for '_'. All do the same: rows are copied when the graph runs.
        max_rows: rows for which addresses are reserved; growth up to it moves nothing.
    """

    _SETTINGS = {"step": 256, "mode": "contiguous_eval", "max_rows": MAX_ROWS}

    def __init__(
        self,
        keys=None,
        values=None,
        step=256,
        offset=None,
        mode="contiguous_eval",
        *,
        max_rows=MAX_ROWS,
    ):
        super().__init__(step, mode, max_rows)
        if keys is not None or values is not None:
            self._replace(keys, values, offset)
        elif offset:
            raise ValueError(f"an offset of {offset} needs keys and values")

    @classmethod
    def from_cache(cls, entry, mode="contiguous_eval", step=None):
        """The rows of another cache with keys, values and offset (mlx-lm's, Kvik's): by reference
        from Kvik's owned caches, else by one copy. step: None takes the entry's, or 256."""
        if step is None:
            step = getattr(entry, "step", 256)
        cache = cls(step=step, mode=mode)
        cache._adopt(entry)
        return cache

    @property
    def meta_state(self):
        """``(step, offset, mode)`` as strings. Set it after the state; an offset that does not fit
        the rows is a ValueError and changes nothing."""
        return (str(self.step), str(self.offset), self.mode)

    @meta_state.setter
    def meta_state(self, meta):
        parsed = parse_meta(meta, "step")
        if parsed is None:
            return
        step, offset, mode = parsed
        if not 0 <= offset <= self.offset:
            raise ValueError(
                f"an offset of {offset} does not fit the {self.offset} rows of the cache"
            )
        self.step, self.mode = step, mode or self.mode
        for rows in (self._key_rows, self._value_rows):
            if rows is not None:
                rows.step = step
        self._trim_to(offset)
