// Packed rows in tiles: every code comes back, only its own bits are touched, and the bits lie
// where docs/tile-layout.md says.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "kvik/format/kv_view.h"
#include "kvik/format/packed_code.h"
#include "kvik/format/row_codec.h"
#include "kvik/format/tile.h"
#include "support/random.h"

namespace kvik {
namespace {

using testing::HasSubstr;

constexpr int kDims[] = {1, 2, 4, 6, 20, 32, 48, 64, 80, 96, 128, 144, 160, 512, 576};

// The functions of one side of a tile.
struct Side {
  bool is_key;

  bool stores(KvCode code) const { return is_key ? stores_keys(code) : stores_values(code); }
  bool encode(KvCode code, std::byte* tile, int slot, const float* row, int dim) const {
    return (is_key ? encode_k_row : encode_v_row)(
        code, tile, slot, reinterpret_cast<const std::byte*>(row), DType::f32, dim);
  }
  void decode(KvCode code, const std::byte* tile, int slot, float* row, int dim) const {
    (is_key ? decode_k_row : decode_v_row)(code, tile, slot, row, dim);
  }
  void decode_stored(KvCode code, const std::byte* tile, int slot, float* row, int dim) const {
    (is_key ? decode_stored_k_row : decode_stored_v_row)(code, tile, slot, row, dim);
  }
  void put(KvCode code, std::byte* tile, int slot, std::span<const std::byte> packed,
           int dim) const {
    (is_key ? import_k_row : import_v_row)(code, tile, slot, packed, dim);
  }
  std::vector<std::byte> get(KvCode code, const std::byte* tile, int slot, int dim) const {
    std::vector<std::byte> packed(static_cast<size_t>(packed_row_bytes(code, dim)));
    (is_key ? export_k_row : export_v_row)(code, tile, slot, packed, dim);
    return packed;
  }
};
constexpr Side kSides[] = {{true}, {false}};

std::vector<std::byte> random_bytes(uint64_t seed, int64_t count) {
  std::vector<std::byte> bytes(static_cast<size_t>(count));
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::byte>(test::hash64(seed, i) & 0xffu);
  }
  return bytes;
}

class PackedTiles : public testing::TestWithParam<KvCode> {
 protected:
  const KvCode code_ = GetParam();

  // Calls f(side, dim) for all sides and head dims that the code takes.
  template <class F>
  void for_each_case(const F& f) const {
    for (const Side& side : kSides) {
      for (const int dim : kDims) {
        if (side.stores(code_) && check(code_, dim).ok()) f(side, dim);
      }
    }
  }
};

// Random bytes are rows with every code in every place.
TEST_P(PackedTiles, RowsGoInAndOutUnchangedAndTouchNoOtherSlot) {
  for_each_case([&](const Side& side, int dim) {
    auto tile = random_bytes(7, tile_bytes_k(code_, dim));
    std::vector<std::vector<std::byte>> rows(16);
    for (int round = 0; round < 2; ++round) {
      for (int i = 0; i < 16; ++i) {
        const auto slot = static_cast<size_t>(i * 7 % 16);
        rows[slot] = random_bytes(static_cast<uint64_t>(100 * dim + 16 * round + i),
                                  packed_row_bytes(code_, dim));
        side.put(code_, tile.data(), static_cast<int>(slot), rows[slot], dim);
        for (size_t other = 0; other < 16; ++other) {
          if (rows[other].empty()) continue;
          ASSERT_EQ(side.get(code_, tile.data(), static_cast<int>(other), dim), rows[other])
              << "slot " << other << " dim " << dim;
        }
      }
    }
  });
}

// A tile is a bijection of its 16 rows: what a row does not own, it leaves, in both directions.
TEST_P(PackedTiles, OneRowChangesOnlyBitsThatNoOtherRowOwns) {
  for_each_case([&](const Side& side, int dim) {
    const int64_t bytes = tile_bytes_v(code_, dim);
    std::vector<std::byte> owned(static_cast<size_t>(bytes));
    for (int slot = 0; slot < 16; ++slot) {
      std::vector<std::byte> zeros(owned.size()), ones(owned.size());
      const auto row_bytes = static_cast<size_t>(packed_row_bytes(code_, dim));
      std::fill(ones.begin(), ones.end(), std::byte{0xff});
      side.put(code_, zeros.data(), slot, std::vector<std::byte>(row_bytes, std::byte{0xff}), dim);
      side.put(code_, ones.data(), slot, std::vector<std::byte>(row_bytes, std::byte{0}), dim);
      for (size_t i = 0; i < owned.size(); ++i) {
        // Bits that are written as ones, and bits that are written at all (padding is zeroed).
        EXPECT_EQ(zeros[i] & ones[i], std::byte{0}) << i;
        const std::byte written = ~ones[i];
        ASSERT_EQ(owned[i] & written, std::byte{0}) << "slot " << slot << " byte " << i;
        owned[i] |= written;
      }
    }
  });
}

TEST_P(PackedTiles, RowsDecodeAsTheRowCodecSays) {
  for_each_case([&](const Side& side, int dim) {
    auto tile = random_bytes(7, tile_bytes_k(code_, dim));
    for (int slot = 0; slot < 16; ++slot) {
      const std::vector<float> row = test::bell(static_cast<uint64_t>(31 * dim + slot), dim);
      ASSERT_TRUE(side.encode(code_, tile.data(), slot, row.data(), dim));
      std::vector<std::byte> packed(static_cast<size_t>(packed_row_bytes(code_, dim)));
      ASSERT_TRUE(encode_row(code_, row, packed));
      EXPECT_EQ(side.get(code_, tile.data(), slot, dim), packed);
      std::vector<float> expected(row.size()), got(row.size());
      decode_row(code_, packed, expected);
      side.decode(code_, tile.data(), slot, got.data(), dim);
      EXPECT_EQ(got, expected);
      decode_stored_row(code_, packed, expected);
      side.decode_stored(code_, tile.data(), slot, got.data(), dim);
      EXPECT_EQ(got, expected);
    }
  });
}

TEST_P(PackedTiles, TakeRowsOfHalvesAsTheFloatsThatTheyAre) {
  const int dim = 64;
  for (const Side& side : kSides) {
    if (!side.stores(code_)) continue;
    const std::vector<float> row = test::bell(3, dim);
    for (const DType dtype : {DType::f16, DType::bf16}) {
      std::vector<uint16_t> half;
      std::vector<float> rounded;
      for (const float x : row) {
        half.push_back(dtype == DType::f16 ? f32_to_f16(x) : f32_to_bf16(x));
        rounded.push_back(dtype == DType::f16 ? f16_to_f32(half.back()) : bf16_to_f32(half.back()));
      }
      auto a = random_bytes(7, tile_bytes_k(code_, dim));
      auto b = a;
      ASSERT_TRUE(side.encode(code_, a.data(), 4, rounded.data(), dim));
      ASSERT_TRUE((side.is_key ? encode_k_row : encode_v_row)(
          code_, b.data(), 4, reinterpret_cast<const std::byte*>(half.data()), dtype, dim));
      EXPECT_EQ(a, b);
    }
  }
}

TEST_P(PackedTiles, RefuseNumbersThatAreNotFiniteAndWriteNothing) {
  for_each_case([&](const Side& side, int dim) {
    const auto before = random_bytes(7, tile_bytes_k(code_, dim));
    for (const float bad : {INFINITY, -INFINITY, NAN}) {
      auto tile = before;
      std::vector<float> row(static_cast<size_t>(dim), 1.0f);
      row.back() = bad;
      EXPECT_FALSE(side.encode(code_, tile.data(), 5, row.data(), dim));
      EXPECT_EQ(tile, before);
    }
  });
}

TEST_P(PackedTiles, TakeTheBytesOfTheirRowsAndOfPaddingTo16Dims) {
  for (const int dim : {32, 64, 96, 128, 256, 512}) {
    const int64_t rows = 16 * packed_row_bytes(code_, dim);
    EXPECT_EQ(tile_bytes_k(code_, dim), rows) << dim;
    EXPECT_EQ(tile_bytes_v(code_, dim), rows) << dim;
  }
}

INSTANTIATE_TEST_SUITE_P(Codes, PackedTiles,
                         testing::ValuesIn(all_packed_codes().begin(), all_packed_codes().end()),
                         [](const auto& test) { return std::string(kv_code_name(test.param)); });

TEST(PackedTileBytes, CountWhatWholeLinesNeed) {
  // 20 dims are two chunks of 16: 8 lines of codes, and a line of f32 scales.
  EXPECT_EQ(tile_bytes_k(KvCode::q8, 20), 8 * 64 + 64);
  // Five chunks: a plane of 2 bits has 5 lines, a plane of 1 bit needs 2.5 and takes 3.
  EXPECT_EQ(tile_bytes_k(KvCode::tq3, 80), 5 * 64 + 3 * 64 + 32);
  EXPECT_EQ(tile_bytes_v(KvCode::tcq4, 80), 5 * 64 + 2 * 3 * 64 + 32);
  const KvSpec spec{3, 64, 128, {{KvCode::tq4, KvCode::tcq3}}};
  EXPECT_EQ(token_bytes_k(spec, 0), 3 * 34);
  EXPECT_EQ(token_bytes_v(spec, 0), 3 * 50);
}

// The worked example of docs/tile-layout.md.
TEST(PackedTileExample, PlacesCodesWhereTheDocumentSays) {
  constexpr int kDim = 48;
  // tq3: code of dim d is d % 8; scale 0x3c00.
  std::vector<std::byte> packed(static_cast<size_t>(packed_row_bytes(KvCode::tq3, kDim)));
  for (int d = 0; d < kDim; ++d) {
    for (int bit = 0; bit < 3; ++bit) {
      const auto at = static_cast<size_t>(3 * d + bit);
      packed[at / 8] |= static_cast<std::byte>((d % 8 >> bit & 1) << at % 8);
    }
  }
  packed[18] = std::byte{0x00};
  packed[19] = std::byte{0x3c};
  std::vector<std::byte> k(static_cast<size_t>(tile_bytes_k(KvCode::tq3, kDim)));
  std::vector<std::byte> v = k;
  EXPECT_EQ(k.size(), 5 * 64u + 32u);
  import_k_row(KvCode::tq3, k.data(), 5, packed, kDim);
  import_v_row(KvCode::tq3, v.data(), 5, packed, kDim);
  const auto word = [](const std::vector<std::byte>& tile, size_t line, size_t lane) {
    uint32_t x;
    std::memcpy(&x, tile.data() + line * 64 + lane * 4, 4);
    return x;
  };
  // Dim 22 (code 6 = 2 + 4) of slot 5.
  EXPECT_EQ(word(k, 1, 5) >> 12 & 3, 2u);  // low bits: line 1, lane 5, bits 12 and 13
  EXPECT_EQ(word(k, 3, 5) >> 22 & 1, 1u);  // high bit: line 3 + 0, bit 16 + 6
  EXPECT_EQ(word(v, 1, 6) >> 10 & 3, 2u);  // line 1, lane 6, bits 10 and 11
  EXPECT_EQ(word(v, 3, 6) >> 21 & 1, 1u);  // line 3 + 0, lane 6, bit 16 + 5
  EXPECT_EQ(word(v, 4, 6) >> 5 & 1, 1u);   // dim 38: line 3 + 1, lane 6, bit 5
  // The scale of slot 5: after five lines, at 5 * 2 bytes.
  EXPECT_EQ(word(k, 5, 2) >> 16, 0x3c00u);
  EXPECT_EQ(word(v, 5, 2) >> 16, 0x3c00u);
}

// ---- specs

TEST(KvSpec, NamesTheLayerAndSideWhoseFormatDoesNotFit) {
  const auto message = [](int dim_k, int dim_v, KvFormat format) {
    return check(KvSpec{2, dim_k, dim_v, {{KvCode::f16, KvCode::f16}, format}}).message();
  };
  EXPECT_EQ(message(64, 64, {KvCode::tcq4, KvCode::tqv_q3_0}), "");
  EXPECT_EQ(message(64, 64, {KvCode::tqv_q4_0, KvCode::f16}),
            "keys of layer 1: tqv_q4_0 stores values only; q8, q6, q4, tqk_q8_0, tqk_uint8, "
            "tqk_q5_0, tqk_q4_0, tqk_int2, tq8, tq4, tq3, tq2, tcq4, tcq3, tcq2, f32, f16 and bf16 "
            "store keys of head_dim 64");
  EXPECT_THAT(message(64, 80, {KvCode::f16, KvCode::tqk_int2}),
              HasSubstr("values of layer 1: tqk_int2 stores keys only; q8, q6, q4, tq8,"));
  EXPECT_THAT(message(64, 80, {KvCode::f16, KvCode::tqv_q4_0}),
              HasSubstr("tqv_q4_0 stores multiples of 32 from 32 to 576, and head_dim is 80; q8"));
  EXPECT_THAT(message(16, 64, {KvCode::tq4, KvCode::tq4}), HasSubstr("keys of layer 1: tq4"));
}

TEST(RotatedKeys, PrepareQueriesForStoredRows) {
  for (const int dim : {32, 48, 512}) {
    const KeyTransform* const transform = rotated_keys(dim);
    EXPECT_EQ(transform, rotated_keys(dim));
    EXPECT_EQ(transform->frame, 0);
    const std::vector<float> query = test::bell(1, dim);
    const std::vector<float> key = test::bell(2, dim);
    std::vector<std::byte> packed(static_cast<size_t>(packed_row_bytes(KvCode::tq8, dim)));
    ASSERT_TRUE(encode_row(KvCode::tq8, key, packed));
    std::vector<float> plain(key.size()), stored(key.size()), prepared(key.size());
    decode_row(KvCode::tq8, packed, plain);
    decode_stored_row(KvCode::tq8, packed, stored);
    EXPECT_EQ(transform->prepare(transform->state, 0, 0, query.data(), prepared.data()), 0.0f);
    double want = 0, got = 0;
    for (size_t d = 0; d < key.size(); ++d) {
      want += double{query[d]} * plain[d];
      got += double{prepared[d]} * stored[d];
    }
    EXPECT_NEAR(got, want, 1e-5 * std::sqrt(dim));
  }
}

}  // namespace
}  // namespace kvik
