"""The rows of one tensor of a cache, ``[B, H, T, D]``: appended in place with the extension, else
by slice updates.

Both kinds have the same members:

    array      the valid rows as an mx.array, or None before the first write
    length     valid rows
    capacity   rows for which memory is there: the smallest multiple of step that has held the rows
    append(rows) -> bool    True if the history was copied because it is visible elsewhere
    trim(length)            forgets the rows from `length` on
    assign(array, length)   takes the first `length` rows of an array in the place of all rows
    fork()                  a second handle on the same rows
"""

import mlx.core as mx


def round_up(rows, step):
    return -(-rows // step) * step


class SliceUpdateRows:
    """Rows in an ordinary array. MLX's own value semantics keep older arrays as they are: it
    copies the whole array at the next update while an older one is held, which is not counted
    here."""

    def __init__(self, step, max_rows=None):
        self.step = step
        self.length = 0
        self._buffer = None

    @property
    def capacity(self):
        return 0 if self._buffer is None else self._buffer.shape[2]

    @property
    def array(self):
        # Always another object than the buffer, which slice updates rebind.
        return None if self._buffer is None else self._buffer[..., : self.length, :]

    @property
    def resident_bytes(self):
        return 0 if self._buffer is None else self._buffer.nbytes

    def append(self, rows):
        batch, heads, count, dim = rows.shape
        end = self.length + count
        if self._buffer is None or end > self._buffer.shape[2]:
            room = round_up(end, self.step) - self.length
            zeros = mx.zeros((batch, heads, room, dim), rows.dtype)
            self._buffer = (
                zeros if self.length == 0 else mx.concatenate([self.array, zeros], axis=2)
            )
        self._buffer[..., self.length : end, :] = rows
        self.length = end
        return False

    def trim(self, length):
        self.length = length

    def assign(self, array, length):
        self._buffer, self.length = None, 0
        if array is not None:
            self.append(array[..., :length, :])

    def fork(self):
        other = type(self)(self.step)
        other._buffer = None if self._buffer is None else self._buffer[:]
        other.length = self.length
        return other


class RegionRows:
    """Rows in a region of the extension: an append writes the new rows and nothing else.

    Where a row that is to be written may still be read (an older array after a trim, a fork that
    went on), the history is copied to a region of this handle's own first.
    """

    def __init__(self, extension, step, max_rows):
        self._extension = extension
        self.step = step
        self.max_rows = max_rows
        self.length = 0
        self.capacity = 0
        self._region = None
        self._array = (
            None  # what the last append returned; may be longer than `length` after a trim
        )

    @property
    def array(self):
        if self._array is not None and self._array.shape[2] != self.length:
            self._settle()
        return self._array

    @property
    def resident_bytes(self):
        return 0 if self._region is None else self._region.resident_bytes

    def append(self, rows):
        count = rows.shape[2]
        if count == 0:
            return False
        if self._region is None:
            self._open(rows, count)
        before = self.array if self.length > 0 else None
        if before is None:
            self._array = (
                None  # after a trim to nothing, the rows that were there need no reader here
            )
        out = self._region.append(rows, before, self.length)
        copied = out is None
        if copied:
            out = self._move(rows, before)
        # Nothing was written yet: the graph has not run.
        self._back(self.length + count)
        self._array = out
        self.length += count
        return copied

    def trim(self, length):
        self.length = length

    def assign(self, array, length):
        if (
            array is not None
            and self._array is not None
            and length == array.shape[2] == self.length
        ):
            if self._extension.is_same_rows(array, self.array):
                self._array = array  # the same rows, after something else (mx.depends)
                return
        self._region, self._array, self.length, self.capacity = None, None, 0, 0
        if array is not None:
            self.append(array[..., :length, :])

    def fork(self):
        other = type(self)(self._extension, self.step, self.max_rows)
        other.length, other.capacity = self.length, self.capacity
        other._region, other._array = self._region, self._array
        return other

    def _open(self, like, count):
        room = round_up(max(count, 1), self.step)
        self._region = self._extension.TailRegion(like, room, max(self.max_rows, room))
        self.max_rows = max(self.max_rows, room)
        self.capacity = 0

    def _back(self, rows):
        """Has memory ready for so many rows, so that no append meets page faults one by one."""
        if rows > self.capacity:
            capacity = round_up(rows, self.step)
            self._region.populate(self.capacity, min(capacity, self._region.max_rows))
            self.capacity = capacity

    def _settle(self):
        """After a trim: an array that ends where the rows do, so that what lies behind may be
        written."""
        mx.eval(self._array)
        self._array = self._region.view(self.length) if self.length > 0 else None

    def _move(self, rows, history):
        """Copies the history and the new rows to a region of this handle's own."""
        end = self.length + rows.shape[2]
        if end > self.max_rows:
            self.max_rows = max(2 * self.max_rows, end)
        self._region = self._extension.TailRegion(rows, round_up(end, self.step), self.max_rows)
        capacity, self.capacity = self.capacity, 0
        self._back(max(capacity, end))
        before = None if history is None else self._region.append(history, None, 0)
        return self._region.append(rows, before, self.length)


class EmptyRows:
    """Rows of no bytes (values of width 0)."""

    def __init__(self, step, max_rows=None):
        self.step = step
        self.length = 0
        self.capacity = 0
        self.resident_bytes = 0
        self._like = None

    @property
    def array(self):
        if self._like is None:
            return None
        batch, heads, _, dim = self._like.shape
        return mx.zeros((batch, heads, self.length, dim), self._like.dtype)

    def append(self, rows):
        self._like = mx.zeros((*rows.shape[:2], 0, rows.shape[3]), rows.dtype)
        self.length += rows.shape[2]
        self.capacity = max(self.capacity, round_up(self.length, self.step))
        return False

    def trim(self, length):
        self.length = length

    def assign(self, array, length):
        self._like = None
        self.length = self.capacity = 0
        if array is not None:
            self.append(array[..., :length, :])

    def fork(self):
        other = type(self)(self.step)
        other.__dict__.update(self.__dict__)
        return other


def make_rows(like, step, max_rows, extension):
    """Rows of the shape and dtype of `like`."""
    if 0 in (like.shape[0], like.shape[1], like.shape[3]):
        return EmptyRows(step)
    if extension is None:
        return SliceUpdateRows(step)
    return RegionRows(extension, step, max_rows)
