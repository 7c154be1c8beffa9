#!/usr/bin/env python3
"""Writes tests/golden/weights/<type>.bin: packed rows and their values as the `gguf` package decodes them.

File: u32 rows, u32 cols, u32 bytes of a packed row; the packed rows; rows x cols float32. All
little-endian. Needs `pip install gguf==0.19.0`. The codes are random bytes; scales are random f16 bit
patterns of finite values, denormals and both zeros among them.
"""
import pathlib
import struct
import sys

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType as T
from gguf.quants import dequantize

ROWS = 6
TYPES = {"f32": (T.F32, 19), "f16": (T.F16, 21), "bf16": (T.BF16, 21), "q8_0": (T.Q8_0, 64),
         "q4_0": (T.Q4_0, 64), "q4_1": (T.Q4_1, 64), "q5_0": (T.Q5_0, 64), "q5_1": (T.Q5_1, 64)}
NUM_SCALES = {T.Q8_0: 1, T.Q4_0: 1, T.Q5_0: 1, T.Q4_1: 2, T.Q5_1: 2}


def finite_f16(rng, shape):
    bits = rng.integers(0, 1 << 16, shape, dtype=np.uint16)
    bits = np.where((bits & 0x7C00) == 0x7C00, bits & 0x83FF, bits).astype(np.uint16)
    bits.flat[:4] = [0x0000, 0x8000, 0x0001, 0x7BFF]
    return bits


def packed_rows(rng, qtype, cols):
    block, size = GGML_QUANT_SIZES[qtype]
    if qtype == T.F32:
        values = (rng.standard_normal((ROWS, cols)) * 10.0 ** rng.integers(-40, 38, (ROWS, cols)))
        return values.astype(np.float32).view(np.uint8)
    if qtype == T.F16:
        return finite_f16(rng, (ROWS, cols)).view(np.uint8)
    if qtype == T.BF16:
        bits = rng.integers(0, 1 << 16, (ROWS, cols), dtype=np.uint16)
        return np.where((bits & 0x7F80) == 0x7F80, bits & 0x807F, bits).astype(np.uint16).view(np.uint8)
    blocks = rng.integers(0, 256, (ROWS * cols // block, size), dtype=np.uint8)
    scales = finite_f16(rng, (blocks.shape[0], NUM_SCALES[qtype]))
    blocks[:, : 2 * NUM_SCALES[qtype]] = scales.view(np.uint8)
    return blocks.reshape(ROWS, -1)


def main():
    out = pathlib.Path(sys.argv[1])
    rng = np.random.default_rng(20240607)
    for name, (qtype, cols) in TYPES.items():
        rows = np.ascontiguousarray(packed_rows(rng, qtype, cols))
        values = dequantize(rows, qtype).astype(np.float32).reshape(ROWS, cols)
        assert np.isfinite(values).all(), name
        header = struct.pack("<III", ROWS, cols, rows.shape[1])
        (out / f"{name}.bin").write_bytes(header + rows.tobytes() + values.tobytes())


if __name__ == "__main__":
    main()
