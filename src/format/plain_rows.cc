#include "kvik/format/plain_rows.h"

#include <algorithm>
#include <cstring>

#include "kvik/format/tile.h"

namespace kvik {

void unpack_k_tile(KvCode code, const std::byte* tile, int num_slots, int head_dim, std::byte* rows,
                   int64_t row_stride) noexcept {
  const int64_t row_bytes = head_dim * kv_code_bytes(code);
  for (int slot = 0; slot < num_slots; ++slot) {
    std::byte* const row = rows + slot * row_stride;
    const std::byte* word = tile + slot * 4;
    int64_t at = 0;
    for (; at + 4 <= row_bytes; at += 4, word += kLineBytes) std::memcpy(row + at, word, 4);
    // The last word of an odd number of 2-byte elements is half padding.
    if (at < row_bytes) std::memcpy(row + at, word, static_cast<size_t>(row_bytes - at));
  }
}

void unpack_v_tile(KvCode code, const std::byte* tile, int num_slots, int head_dim, std::byte* rows,
                   int64_t row_stride) noexcept {
  if (head_dim == 0) return;  // a tile of no bytes may have no address
  const int per_word = elements_per_word(code);
  const int64_t size = kv_code_bytes(code);
  const int64_t group_bytes = kTileTokens / per_word * kLineBytes;
  for (int slot = 0; slot < num_slots; ++slot) {
    std::byte* const row = rows + slot * row_stride;
    const std::byte* line = tile + slot / per_word * kLineBytes + slot % per_word * size;
    for (int d = 0; d < head_dim; d += kTileLanes, line += group_bytes) {
      const int lanes = std::min(kTileLanes, head_dim - d);
      if (per_word == 1) {
        std::memcpy(row + d * size, line, static_cast<size_t>(lanes * size));
        continue;
      }
      for (int lane = 0; lane < lanes; ++lane) {
        std::memcpy(row + (d + lane) * size, line + lane * 4, static_cast<size_t>(size));
      }
    }
  }
}

}  // namespace kvik
