"""Reading tests/golden, and test data that can be rebuilt bit for bit anywhere."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

FOLDER = Path(__file__).resolve().parents[3] / "tests" / "golden"
BF16 = np.dtype(ml_dtypes.bfloat16)
DTYPES = {
    "f32": np.dtype(np.float32),
    "f16": np.dtype(np.float16),
    "bf16": BF16,
    "u8": np.dtype(np.uint8),
}


def load(name: str) -> Any:
    return json.loads((FOLDER / name).read_text())


def stored(folder: str, ref: dict[str, Any]) -> np.ndarray:
    """The array that a manifest of the folder refers to."""
    dtype = DTYPES[ref["dtype"]]
    count = int(np.prod(ref["shape"]))
    array = np.fromfile(
        FOLDER / folder / ref["file"], dtype=dtype, count=count, offset=ref["offset"]
    )
    return array.reshape(ref["shape"])


def digest(array: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def bell(seed: int, shape: tuple[int, ...]) -> np.ndarray:
    """As bell() of tests/support/random.h: float32 in (-4, 4)."""
    count = int(np.prod(shape))
    index = np.arange(1, count + 1, dtype=np.uint64)
    with np.errstate(over="ignore"):
        z = np.uint64(seed) + index * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    total = sum(((z >> np.uint64(s)) & np.uint64(0xFFFF)).astype(np.int64) for s in (0, 16, 32, 48))
    return ((total - 131070).astype(np.float32) * np.float32(2.0**-15)).reshape(shape)
