#include "kvik/format/plain_rows.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "kvik/format/tile.h"

namespace kvik {
namespace {

TEST(PlainRows, ComeBackBitForBitWithNaNPayloads) {
  for (const KvCode code : {KvCode::f32, KvCode::f16, KvCode::bf16}) {
    for (const int head_dim : {0, 1, 2, 15, 16, 17, 64, 80, 576}) {
      const int64_t row_bytes = head_dim * kv_code_bytes(code);
      std::vector<std::byte> k(static_cast<size_t>(tile_bytes_k(code, head_dim)) + 1);
      std::vector<std::byte> v(static_cast<size_t>(tile_bytes_v(code, head_dim)) + 1);
      std::vector<std::byte> rows(static_cast<size_t>(kTileTokens * row_bytes) + 1);
      for (size_t i = 0; i < rows.size(); ++i) rows[i] = std::byte(i * 131 % 251 + 5);
      for (int slot = 0; slot < kTileTokens; ++slot) {
        const std::byte* row = rows.data() + slot * row_bytes;
        encode_k_row(code, k.data(), slot, row, dtype_of(code), head_dim);
        encode_v_row(code, v.data(), slot, row, dtype_of(code), head_dim);
      }
      for (const int count : {0, 1, 3, 16}) {
        const int64_t stride = row_bytes + 3;
        const std::vector<std::byte> blank(static_cast<size_t>(kTileTokens * stride) + 1,
                                           std::byte{0xee});
        std::vector<std::byte> k_out = blank;
        std::vector<std::byte> v_out = blank;
        unpack_k_tile(code, k.data(), count, head_dim, k_out.data(), stride);
        unpack_v_tile(code, v.data(), count, head_dim, v_out.data(), stride);
        std::vector<std::byte> expected = blank;
        for (int slot = 0; slot < count; ++slot) {
          std::memcpy(expected.data() + slot * stride, rows.data() + slot * row_bytes,
                      static_cast<size_t>(row_bytes));
        }
        EXPECT_EQ(k_out, expected);
        EXPECT_EQ(v_out, expected);
      }
    }
  }
}

}  // namespace
}  // namespace kvik
