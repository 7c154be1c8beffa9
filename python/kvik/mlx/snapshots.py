"""Rows of a paged cache as MLX arrays that are gathered from the pages only when something
evaluates them."""

import weakref

from .arrays import to_mlx
from .extension import append_extension


class Snapshot:
    """The first `length` rows of a cache of kvik._core, as they are now.

    Rows that were written stay as they are until the cache goes back below them; before it does,
    it calls freeze(), which keeps the pages by a fork.
    """

    def __init__(self, core, length):
        self._core = core
        self._length = length
        self._rows = {}
        self._frozen = False

    def freeze(self):
        if not self._frozen:
            self._core = self._core.fork()
            self._frozen = True

    def _read(self, half):
        # Runs inside an evaluation: it makes arrays that need none themselves.
        if not self._rows:
            self._rows = {i: to_mlx(rows, self._length) for i, rows in enumerate(self._core.state)}
        # Each half is wanted once, and kept no longer than until then.
        return self._rows.pop(half)

    def arrays(self, key_shape, value_shape, key_dtype, value_dtype, after=None):
        """keys and values; gathered at once where there is no extension to do so later. after: an
        array whose evaluation writes the last of the rows."""
        extension = append_extension()
        if extension is None:
            return self._read(0), self._read(1)
        return (
            extension.deferred(list(key_shape), key_dtype, lambda: self._read(0), after),
            extension.deferred(list(value_shape), value_dtype, lambda: self._read(1), after),
        )


class Snapshots:
    """The snapshots of one cache that arrays still need."""

    def __init__(self):
        self._alive = weakref.WeakSet()

    def take(self, core, length):
        snapshot = Snapshot(core, length)
        self._alive.add(snapshot)
        return snapshot

    def freeze(self):
        """To be called before rows that they show are dropped or written anew."""
        for snapshot in list(self._alive):
            snapshot.freeze()
        self._alive.clear()
