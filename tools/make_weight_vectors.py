#!/usr/bin/env python3
"""Writes tests/golden/weights/<type>.bin: packed rows and their values as the `gguf` package decodes them.

File: u32 rows, u32 cols, u32 bytes of a packed row; the packed rows; rows x cols float32. All
little-endian. Needs `pip install gguf==0.19.0`. The codes are random bytes; scales are random f16 bit
patterns of finite values, denormals and both zeros among them. The bytes of the integer scales of
super blocks differ as far as there are enough values for them.

Writes checksums.txt too, a line for each block type: its name, then the FNV-1a hash, 32 bits of a value
at a time, of what NUM_HASHED blocks decode to. Their bytes are the top bytes of a linear congruential
sequence, so that every byte of a block takes every value; infinite and NaN scales lose their exponent.
"""
import pathlib
import struct
import sys

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType as T
from gguf.quants import dequantize

ROWS = 6
TYPES = {"f32": (T.F32, 19), "f16": (T.F16, 21), "bf16": (T.BF16, 21), "q8_0": (T.Q8_0, 64),
         "q4_0": (T.Q4_0, 64), "q4_1": (T.Q4_1, 64), "q5_0": (T.Q5_0, 64), "q5_1": (T.Q5_1, 64),
         "iq4_nl": (T.IQ4_NL, 64), "q2_k": (T.Q2_K, 768), "q3_k": (T.Q3_K, 768), "q4_k": (T.Q4_K, 768),
         "q5_k": (T.Q5_K, 768), "q6_k": (T.Q6_K, 768)}
# Offsets of the f16 numbers of a block, and the bytes [begin, end) of its integer scales.
F16_AT = {T.Q8_0: [0], T.Q4_0: [0], T.Q5_0: [0], T.Q4_1: [0, 2], T.Q5_1: [0, 2], T.IQ4_NL: [0],
          T.Q2_K: [80, 82], T.Q3_K: [108], T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208]}
INT_SCALES_AT = {T.Q2_K: (0, 16), T.Q3_K: (96, 108), T.Q4_K: (4, 16), T.Q5_K: (4, 16), T.Q6_K: (192, 208)}
NUM_HASHED = 4096


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
    scales = finite_f16(rng, (blocks.shape[0], len(F16_AT[qtype])))
    for i, at in enumerate(F16_AT[qtype]):
        blocks[:, at : at + 2] = scales[:, i : i + 1].view(np.uint8)
    if qtype in INT_SCALES_AT:
        begin, end = INT_SCALES_AT[qtype]
        count = blocks.shape[0] * (end - begin)
        codes = rng.permutation(np.resize(np.arange(256), count)).astype(np.uint8)
        blocks[:, begin:end] = codes.reshape(blocks.shape[0], -1)
    return blocks.reshape(ROWS, -1)


def hashed_blocks(qtype):
    size = GGML_QUANT_SIZES[qtype][1]
    state, out = 1, bytearray()
    for _ in range(NUM_HASHED * size):
        state = (state * 1664525 + 1013904223) & 0xFFFFFFFF
        out.append(state >> 24)
    blocks = np.frombuffer(bytes(out), np.uint8).reshape(NUM_HASHED, size).copy()
    assert all(len(np.unique(blocks[:, i])) == 256 for i in range(size))
    for at in F16_AT[qtype]:
        bits = blocks[:, at : at + 2].copy().view(np.uint16)
        blocks[:, at : at + 2] = np.where((bits & 0x7C00) == 0x7C00, bits & 0x83FF, bits).view(np.uint8)
    return blocks


def fnv_1a(words):
    value = 0xCBF29CE484222325
    for word in words.tolist():
        value = ((value ^ word) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return value


def main():
    out = pathlib.Path(sys.argv[1])
    rng = np.random.default_rng(20240607)
    checksums = ""
    for name, (qtype, cols) in TYPES.items():
        rows = np.ascontiguousarray(packed_rows(rng, qtype, cols))
        values = dequantize(rows, qtype).astype(np.float32).reshape(ROWS, cols)
        assert np.isfinite(values).all(), name
        header = struct.pack("<III", ROWS, cols, rows.shape[1])
        (out / f"{name}.bin").write_bytes(header + rows.tobytes() + values.tobytes())
        if qtype in F16_AT:
            hashed = dequantize(hashed_blocks(qtype), qtype).astype(np.float32)
            checksums += f"{name} {fnv_1a(hashed.view(np.uint32).ravel()):016x}\n"
    (out / "checksums.txt").write_text(checksums)


if __name__ == "__main__":
    main()
