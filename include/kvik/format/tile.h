// The one memory layout of stored rows: tiles of 16 tokens of one KV head. docs/tile-layout.md
// draws it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kvik/core/dtype.h"
#include "kvik/core/export.h"
#include "kvik/format/kv_format.h"

namespace kvik {

// Tokens of one tile. Every block size of the core is a multiple of it.
inline constexpr int kTileTokens = 16;
// A tile is a run of lines of 64 bytes: 16 lanes of one 4-byte word. In K a lane is a token and its
// word holds consecutive dims (1 in f32, 2 in f16 and bf16, up to 32 in a packed format); in V a
// lane is a dim and its word holds as many consecutive tokens. Scales of packed rows follow.
inline constexpr int kTileLanes = 16;
inline constexpr int64_t kLineBytes = 64;

// Of the plain codes. Requires: !is_packed(code).
constexpr int64_t kv_code_bytes(KvCode code) { return code == KvCode::f32 ? 4 : 2; }
// Elements that share a 4-byte word of a line. Requires: !is_packed(code).
constexpr int elements_per_word(KvCode code) { return code == KvCode::f32 ? 1 : 2; }

// Head dims as stored: K of a plain code padded to a whole word, V and packed K to 16 dims.
constexpr int padded_dim_v(int head_dim) {
  return (head_dim + kTileLanes - 1) / kTileLanes * kTileLanes;
}
constexpr int padded_dim_k(KvCode code, int head_dim) {
  if (is_packed(code)) return padded_dim_v(head_dim);
  const int step = elements_per_word(code);
  return (head_dim + step - 1) / step * step;
}

// Bytes of a packed tile, the same for K and V. Requires: is_packed(code), head_dim >= 0.
KVIK_API int64_t packed_tile_bytes(KvCode code, int head_dim) noexcept;

inline int64_t tile_bytes_k(KvCode code, int head_dim) {
  if (is_packed(code)) return packed_tile_bytes(code, head_dim);
  return kTileTokens * padded_dim_k(code, head_dim) * kv_code_bytes(code);
}
inline int64_t tile_bytes_v(KvCode code, int head_dim) {
  if (is_packed(code)) return packed_tile_bytes(code, head_dim);
  return kTileTokens * padded_dim_v(head_dim) * kv_code_bytes(code);
}

// Tiles begin at multiples of it: a line, or half a line where f16 scales of 16 tokens end a tile.
constexpr int64_t tile_alignment(KvCode code) {
  return is_packed(code) ? kLineBytes / 2 : kLineBytes;
}

// Stores one row of head_dim elements of `dtype` (consecutive in memory) in slot 0..15 of a tile,
// the padding as zeros. Changes only that slot, but writes its neighbours' bits of shared words
// back as they were: rows of one tile are not encoded by two threads at once. Requires: head_dim at
// most kMaxHeadDim; check_keys (check_values) ok. Plain formats round to nearest even; infinities
// and NaN are stored as they are, an f32 value beyond the range of f16 becomes an infinity. Returns
// false, with nothing written, for a row that a packed format cannot store (row_codec.h); the plain
// formats accept every row.
KVIK_API bool encode_k_row(KvCode code, std::byte* tile, int slot, const std::byte* row,
                           DType dtype, int head_dim) noexcept;
KVIK_API bool encode_v_row(KvCode code, std::byte* tile, int slot, const std::byte* row,
                           DType dtype, int head_dim) noexcept;

// The values that a slot stands for, as head_dim floats; rotated rows are rotated back.
KVIK_API void decode_k_row(KvCode code, const std::byte* tile, int slot, float* row,
                           int head_dim) noexcept;
KVIK_API void decode_v_row(KvCode code, const std::byte* tile, int slot, float* row,
                           int head_dim) noexcept;
// The same without rotating back: what kernels compute with.
KVIK_API void decode_stored_k_row(KvCode code, const std::byte* tile, int slot, float* row,
                                  int head_dim) noexcept;
KVIK_API void decode_stored_v_row(KvCode code, const std::byte* tile, int slot, float* row,
                                  int head_dim) noexcept;

// Moves a packed row (packed_code.h) into a slot and out of it, exactly: how codes are exported and
// imported. Requires: is_packed(code), packed.size() == packed_row_bytes(code, head_dim); threads
// as for encode_k_row.
KVIK_API void import_k_row(KvCode code, std::byte* tile, int slot,
                           std::span<const std::byte> packed, int head_dim) noexcept;
KVIK_API void import_v_row(KvCode code, std::byte* tile, int slot,
                           std::span<const std::byte> packed, int head_dim) noexcept;
KVIK_API void export_k_row(KvCode code, const std::byte* tile, int slot,
                           std::span<std::byte> packed, int head_dim) noexcept;
KVIK_API void export_v_row(KvCode code, const std::byte* tile, int slot,
                           std::span<std::byte> packed, int head_dim) noexcept;

}  // namespace kvik
