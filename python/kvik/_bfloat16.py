"""Arrays of bfloat16, a type that NumPy lacks."""

from __future__ import annotations

from typing import Any

import numpy as np


def _round_to_odd(array: np.ndarray) -> np.ndarray:
    """As float32, so that rounding that once more is as rounding once: what lies between two
    floats becomes the one whose last bit is set."""
    if array.dtype.kind == "f" and array.dtype.itemsize <= 4:
        return np.ascontiguousarray(array, dtype=np.float32)
    exact = np.ascontiguousarray(array, dtype=np.float64)
    with np.errstate(over="ignore", under="ignore"):
        floats = exact.astype(np.float32)
    words = floats.view(np.uint32)
    back = floats.astype(np.float64)
    words -= (np.abs(back) > np.abs(exact)).astype(np.uint32)
    words |= ((back != exact) & ~np.isnan(exact)).astype(np.uint32)
    return floats


class BFloat16Array:
    """An array of bfloat16 over memory of kvik.

    Other libraries take it by DLPack (``torch.from_dlpack(a)``, ``mx.array(a)``), a read-only one
    as a copy; NumPy gets it as float32 (``numpy.asarray(a)``, a copy), as bits (``a.bits``, no
    copy), or as ``ml_dtypes.bfloat16`` where that package is installed (``a.ml_dtypes()``, no
    copy).
    """

    __slots__ = ("_bits", "__weakref__")

    def __init__(self, bits: np.ndarray) -> None:
        """An array over the bits, uint16 of any shape, which it keeps."""
        if not isinstance(bits, np.ndarray) or bits.dtype != np.uint16:
            raise TypeError("the bits of a BFloat16Array are a NumPy array of uint16")
        self._bits = bits

    @classmethod
    def from_float32(cls, values: Any) -> BFloat16Array:
        """Rounds real numbers of at most 64 bits to the nearest bfloat16, ties to even."""
        if isinstance(values, np.ma.MaskedArray):
            raise ValueError("values is a masked array, whose mask would be lost; give .filled()")
        array = np.asarray(values)
        if array.dtype.kind not in "fiub" or array.dtype.itemsize > 8:
            raise ValueError(f"values has dtype {array.dtype}; use floats or ints of 64 bits")
        floats = _round_to_odd(array)
        words = floats.view(np.uint32).astype(np.uint64)
        rounded = ((words + 0x7FFF + ((words >> 16) & 1)) >> 16).astype(np.uint16)
        rounded[np.isnan(floats)] = 0x7FC0
        return cls(rounded)

    @property
    def bits(self) -> np.ndarray:
        """The memory as uint16, not copied."""
        return self._bits

    @property
    def shape(self) -> tuple[int, ...]:
        return self._bits.shape

    @property
    def ndim(self) -> int:
        return self._bits.ndim

    @property
    def size(self) -> int:
        return self._bits.size

    @property
    def nbytes(self) -> int:
        return self._bits.nbytes

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes from one element to the next, by axis."""
        return self._bits.strides

    @property
    def dtype(self) -> str:
        """``"bfloat16"``; NumPy has no such dtype."""
        return "bfloat16"

    def numpy(self) -> np.ndarray:
        """A copy as float32, exact."""
        return (self._bits.astype(np.uint32) << 16).view(np.float32)

    def view(self, dtype: Any) -> np.ndarray:
        """The memory as a NumPy array of another dtype, not copied."""
        return self._bits.view(dtype)

    def ml_dtypes(self) -> np.ndarray:
        """The memory as a NumPy array of ml_dtypes.bfloat16, not copied."""
        import ml_dtypes

        return self._bits.view(ml_dtypes.bfloat16)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError("NumPy has no bfloat16; use .bits or .ml_dtypes() to copy nothing")
        values = self.numpy()
        return values if dtype is None else values.astype(dtype, copy=False)

    def __dlpack__(self, *, copy: bool | None = None, **options: Any) -> Any:
        """The memory itself, or a copy where it is read-only: some libraries write whatever they
        are given. copy=False asks for the memory itself, said to be read-only."""
        from kvik import _core

        bits = np.asarray(self._bits)
        if copy or (copy is None and not bits.flags.writeable):
            bits = bits.copy()
        return _core._bfloat16_dlpack(bits).__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def __getitem__(self, index: Any) -> BFloat16Array:
        bits = self._bits[index]
        return BFloat16Array(bits if isinstance(bits, np.ndarray) else np.asarray(bits))

    def transpose(self, *axes: int) -> BFloat16Array:
        return BFloat16Array(self._bits.transpose(*axes))

    def reshape(self, *shape: Any) -> BFloat16Array:
        return BFloat16Array(self._bits.reshape(*shape))

    def __len__(self) -> int:
        return len(self._bits)

    def __repr__(self) -> str:
        return f"BFloat16Array({self.numpy()!r})"
