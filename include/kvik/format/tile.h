// The one memory layout of stored rows: tiles of 16 tokens of one KV head. docs/tile-layout.md
// draws it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kvik/core/dtype.h"
#include "kvik/core/export.h"
#include "kvik/format/kv_format.h"

namespace kvik {

// Tokens of one tile. Every block size of the core is a multiple of it.
inline constexpr int kTileTokens = 16;
// A tile is a run of lines of 64 bytes: 16 lanes of one 4-byte word. In K a lane is a token and its
// word holds 1 (f32) or 2 (f16, bf16) consecutive dims; in V a lane is a dim and its word holds 1
// or 2 consecutive tokens.
inline constexpr int kTileLanes = 16;
inline constexpr int64_t kLineBytes = 64;

constexpr int64_t kv_code_bytes(KvCode code) { return code == KvCode::f32 ? 4 : 2; }
// Elements that share a 4-byte word of a line.
constexpr int elements_per_word(KvCode code) { return code == KvCode::f32 ? 1 : 2; }

// Head dims as stored: K padded to a whole word, V to 16 dims.
constexpr int padded_dim_k(KvCode code, int head_dim) {
  const int step = elements_per_word(code);
  return (head_dim + step - 1) / step * step;
}
constexpr int padded_dim_v(int head_dim) {
  return (head_dim + kTileLanes - 1) / kTileLanes * kTileLanes;
}

constexpr int64_t tile_bytes_k(KvCode code, int head_dim) {
  return kTileTokens * padded_dim_k(code, head_dim) * kv_code_bytes(code);
}
constexpr int64_t tile_bytes_v(KvCode code, int head_dim) {
  return kTileTokens * padded_dim_v(head_dim) * kv_code_bytes(code);
}

// Stores one row of head_dim elements of `dtype` (consecutive in memory) in slot 0..15 of a tile,
// the padding as zeros. Changes only that slot, but writes its
// neighbour's half of shared words back as it was: rows of one tile are not encoded by two threads
// at once. Requires: head_dim at most kMaxHeadDim. Rounds to nearest even; infinities and NaN are
// stored as they are, an f32 value beyond the range of f16 becomes an infinity. Returns whether the
// format accepts the row (the plain formats accept every row).
KVIK_API bool encode_k_row(KvCode code, std::byte* tile, int slot, const std::byte* row,
                           DType dtype, int head_dim) noexcept;
KVIK_API bool encode_v_row(KvCode code, std::byte* tile, int slot, const std::byte* row,
                           DType dtype, int head_dim) noexcept;

// The values that a slot stands for, exactly, as head_dim floats.
KVIK_API void decode_k_row(KvCode code, const std::byte* tile, int slot, float* row,
                           int head_dim) noexcept;
KVIK_API void decode_v_row(KvCode code, const std::byte* tile, int slot, float* row,
                           int head_dim) noexcept;

}  // namespace kvik
