"""Views of the memory of a cache."""

from __future__ import annotations

from typing import Any

import numpy as np


class CacheView(np.ndarray):
    """A read-only NumPy array over the memory of a cache, not copied.

    DLPack says "read-only" by a flag that some libraries do not look at: what they then write would
    be in the cache. So ``__dlpack__`` gives a copy (``torch.from_dlpack(view)`` owns its memory)
    unless ``copy=False`` asks for the memory itself, with the flag. Whatever NumPy computes of a
    view, and ``numpy.asarray(view)``, is an ordinary array.
    """

    __array_priority__ = -1.0

    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
        plain = np.asarray(array)
        return plain[()] if return_scalar else plain

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        options: dict[str, Any] = {"stream": stream}
        if max_version is not None:  # older NumPy does not know these
            options["max_version"] = max_version
        if dl_device is not None:
            options["dl_device"] = dl_device
        own = self.flags.writeable  # a copy, which nobody else has
        if copy is False or (own and not copy):
            return np.asarray(self).__dlpack__(**options)
        return np.array(self, copy=True, subok=False).__dlpack__(**options)
