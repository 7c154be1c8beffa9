"""The block-owned cache of one layer on MLX arrays."""

from .checks import whole
from .modes import parse_meta
from .owned import MAX_ROWS, OwnedKVCache


class BlockOwnedKVCache(OwnedKVCache):
    """Rows counted in blocks of block_size; block i holds rows ``[i * block_size, (i + 1) *
    block_size)``.

    With the extension all blocks lie in one range of addresses, so that reading all rows joins
    nothing. All else is as in TailOwnedKVCache. `updates` counts blocks that a call touches, not
    calls.
    """

    _STEP_NAME = "block_size"
    _SETTINGS = {"block_size": 1024, "mode": "contiguous_eval", "max_rows": MAX_ROWS}

    def __init__(
        self,
        mode="contiguous_eval",
        block_size=1024,
        keys=None,
        values=None,
        offset=None,
        *,
        max_rows=MAX_ROWS,
    ):
        super().__init__(block_size, mode, max_rows)
        if keys is not None or values is not None:
            self._replace(keys, values, offset)

    @classmethod
    def from_cache(cls, entry, mode="contiguous_eval", block_size=1024):
        """As TailOwnedKVCache.from_cache; the block size is always the argument."""
        cache = cls(mode=mode, block_size=block_size)
        cache._adopt(entry)
        return cache

    @classmethod
    def _for_meta(cls, meta_state):
        parsed = parse_meta(meta_state, "block_size")
        return cls() if parsed is None else cls(block_size=parsed[0])

    @property
    def block_size(self):
        return self.step

    @property
    def num_blocks(self):
        """Blocks with memory behind them; a trim keeps them."""
        return -(-self.capacity // self.step)

    def count_anew(self, block_size):
        """Counts the rows in blocks of another size; nothing is copied."""
        block_size = whole(block_size, "block_size")
        if block_size < 1:
            raise ValueError(f"a block has at least one row, not {block_size}")
        self.step = block_size
        for rows in (self._key_rows, self._value_rows):
            if rows is not None:
                rows.step = block_size

    def _pieces(self, count):
        begin, end = self.offset, self.offset + count
        return -(-end // self.step) - begin // self.step

    def update_without_fetch(self, keys, values):
        """Appends as update_and_fetch and returns nothing."""
        self._write(keys, values)

    def active_block_slices(self):
        """``(start, keys, values)`` of each block with valid rows, in order, the last one cut to
        its rows."""
        if self.offset == 0:
            return []
        keys, values = self.keys_and_values()
        return [
            (
                start,
                keys[..., start : start + self.step, :],
                values[..., start : start + self.step, :],
            )
            for start in range(0, self.offset, self.step)
        ]

    def empty(self):
        """No valid rows."""
        return self.offset == 0

    @property
    def meta_state(self):
        """``(block_size, offset, mode)`` as strings. Setting another block size is a ValueError
        once there are rows."""
        return (str(self.step), str(self.offset), self.mode)

    @meta_state.setter
    def meta_state(self, meta):
        parsed = parse_meta(meta, "block_size")
        if parsed is None:
            return
        block_size, offset, mode = parsed
        if block_size != self.step and self._kind is not None:
            raise ValueError(
                f"the cache has rows in blocks of {self.step}; it takes none of {block_size}"
            )
        if not 0 <= offset <= self.offset:
            raise ValueError(
                f"an offset of {offset} does not fit the {self.offset} rows of the cache"
            )
        self.step, self.mode = block_size, mode or self.mode
        self._trim_to(offset)
