// Reading whole tiles of the plain formats back into rows, bit for bit.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kvik/core/export.h"
#include "kvik/format/kv_format.h"

namespace kvik {

// Writes the stored elements of slots [0, num_slots) of a tile to rows of head_dim elements,
// row_stride bytes apart. Requires: a plain code, num_slots <= kTileTokens.
KVIK_API void unpack_k_tile(KvCode code, const std::byte* tile, int num_slots, int head_dim,
                            std::byte* rows, int64_t row_stride) noexcept;
KVIK_API void unpack_v_tile(KvCode code, const std::byte* tile, int num_slots, int head_dim,
                            std::byte* rows, int64_t row_stride) noexcept;

}  // namespace kvik
