"""Types in the signatures of kvik."""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np

from kvik._bfloat16 import BFloat16Array


@runtime_checkable
class SupportsDLPack(Protocol):
    """An array of another library, such as mlx.core.array or torch.Tensor."""

    def __dlpack__(self) -> Any: ...

    def __dlpack_device__(self) -> tuple[Any, int]: ...


ArrayLike: TypeAlias = np.ndarray | SupportsDLPack
"""What kvik takes as an array: float32, float16 or bfloat16 in CPU memory, any strides."""

Array: TypeAlias = np.ndarray | BFloat16Array
"""What kvik returns as an array."""
