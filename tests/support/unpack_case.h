// Compares a kernel set's unpacked tiles with the row codec.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "backend/cpu/attend_task.h"
#include "kvik/format/packed_code.h"
#include "kvik/format/row_codec.h"
#include "kvik/format/tile.h"
#include "support/random.h"

namespace kvik::test {

struct alignas(64) TileLine {
  std::byte bytes[64];
};

// Sixteen rows of random codes, so that every code meets every neighbour, under scales of ordinary,
// zero, denormal and largest size. Byte i of the tile is shifted by half a line, as tiles may lie.
inline void fill_tile(KvCode code, bool is_key, int dim, std::byte* tile) {
  const PackedRowLayout layout = packed_row_layout(code, dim);
  for (int slot = 0; slot < 16; ++slot) {
    std::vector<std::byte> packed(static_cast<size_t>(layout.row_bytes()));
    for (size_t i = 0; i < packed.size(); ++i) {
      packed[i] =
          static_cast<std::byte>(hash64(static_cast<uint64_t>(1000 * dim + slot), i) & 0xffu);
    }
    const int64_t scales = (layout.scale_bytes + layout.zero_bytes) / 2;
    for (int64_t i = 0; i < scales; ++i) {
      // f16 patterns; of an f32 scale the upper half decides.
      constexpr uint16_t kScales[] = {0x3c01, 0x0000, 0x0001, 0x7bff, 0x2e66, 0xc480, 0x4321};
      const uint16_t bits = kScales[static_cast<size_t>(slot + i) % 7];
      std::memcpy(packed.data() + layout.code_bytes + 2 * i, &bits, 2);
    }
    (is_key ? import_k_row : import_v_row)(code, tile, slot, packed, dim);
  }
}

inline void expect_decoded(const cpu::AttendKernels& kernels, KvCode code) {
  for (const bool is_key : {true, false}) {
    if (!(is_key ? stores_keys(code) : stores_values(code))) continue;
    for (const int dim : {1, 2, 4, 20, 32, 48, 64, 80, 96, 128, 144, 512, 576}) {
      if (!check(code, dim).ok()) continue;
      std::vector<TileLine> memory(static_cast<size_t>(tile_bytes_k(code, dim) / 64 + 2));
      std::byte* const tile = memory[0].bytes + 32;
      fill_tile(code, is_key, dim, tile);
      const int padded = padded_dim_v(dim);
      std::vector<TileLine> out(static_cast<size_t>(padded));
      auto* const values = reinterpret_cast<float*>(out.data());
      kernels.unpack(code, is_key, tile, dim, values);
      for (int slot = 0; slot < 16; ++slot) {
        std::vector<float> expected(static_cast<size_t>(dim)), got;
        (is_key ? decode_stored_k_row : decode_stored_v_row)(code, tile, slot, expected.data(),
                                                             dim);
        for (int d = 0; d < dim; ++d) {
          got.push_back(is_key ? values[d * 16 + slot]
                               : values[(d / 16 * 16 + slot) * 16 + d % 16]);
        }
        ASSERT_EQ(std::memcmp(got.data(), expected.data(), got.size() * 4), 0)
            << kv_code_name(code) << (is_key ? " key" : " value") << " dim " << dim << " slot "
            << slot;
      }
    }
  }
}

}  // namespace kvik::test
