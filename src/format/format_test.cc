#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "kvik/format/kv_format.h"
#include "kvik/format/tile.h"
#include "support/random.h"

namespace kvik {
namespace {

using testing::HasSubstr;

struct alignas(64) Line {
  std::byte bytes[64];
};

std::vector<Line> tile(int64_t bytes, int fill = 0xa5) {
  std::vector<Line> lines(static_cast<size_t>(bytes / 64));
  if (bytes > 0) std::memset(lines.data(), fill, static_cast<size_t>(bytes));
  return lines;
}

const std::byte* bytes_of(const std::vector<float>& row) {
  return reinterpret_cast<const std::byte*>(row.data());
}

TEST(KvFormat, ParsesItsOwnNamesAndPairs) {
  for (const KvCode code : all_kv_codes()) {
    EXPECT_EQ(parse_kv_code(kv_code_name(code)).value(), code);
  }
  EXPECT_EQ(parse_kv_format("f16").value(), (KvFormat{KvCode::f16, KvCode::f16}));
  EXPECT_EQ(parse_kv_format("bf16:f32").value(), (KvFormat{KvCode::bf16, KvCode::f32}));
}

TEST(KvFormat, RefusesUnknownNamesAndListsTheKnown) {
  for (const char* name : {"", "f17", "F16", "f16:", ":f16", "f16:f16:f16", "f16 "}) {
    const Result<KvFormat> format = parse_kv_format(name);
    ASSERT_FALSE(format.ok()) << name;
    EXPECT_THAT(format.status().message(), HasSubstr("known are f32, f16, bf16"));
  }
}

TEST(KvSpec, RefusesFieldsOutOfRange) {
  const KvSpec good{2, 64, 64, {{}}};
  EXPECT_TRUE(check(good).ok());
  KvSpec spec = good;
  spec.num_kv_heads = 0;
  EXPECT_THAT(check(spec).message(), HasSubstr("num_kv_heads is 0"));
  spec = good;
  spec.head_dim_k = 577;
  EXPECT_THAT(check(spec).message(), HasSubstr("head_dim_k is 577"));
  spec = good;
  spec.head_dim_v = -1;
  EXPECT_THAT(check(spec).message(), HasSubstr("head_dim_v is -1"));
  spec = good;
  spec.layers.clear();
  EXPECT_THAT(check(spec).message(), HasSubstr("layers is empty"));
}

TEST(KvSpec, CountsTheBytesOfATokenWithPadding) {
  const KvSpec spec{3, 65, 20, {{KvCode::f16, KvCode::f32}, {KvCode::f32, KvCode::bf16}}};
  EXPECT_EQ(token_bytes_k(spec, 0), 3 * 66 * 2);
  EXPECT_EQ(token_bytes_v(spec, 0), 3 * 32 * 4);
  EXPECT_EQ(token_bytes_k(spec, 1), 3 * 65 * 4);
  EXPECT_EQ(token_bytes_v(spec, 1), 3 * 32 * 2);
  EXPECT_EQ(token_bytes(spec), 3 * (66 * 2 + 32 * 4 + 65 * 4 + 32 * 2));
}

// The worked example of docs/tile-layout.md.
TEST(Tile, PlacesElementsWhereTheDocumentSays) {
  std::vector<float> row(20);
  for (size_t d = 0; d < row.size(); ++d) row[d] = static_cast<float>(d + 1);
  auto k = tile(tile_bytes_k(KvCode::bf16, 20));
  auto v = tile(tile_bytes_v(KvCode::bf16, 20));
  encode_k_row(KvCode::bf16, k[0].bytes, 5, bytes_of(row), DType::f32, 20);
  encode_v_row(KvCode::bf16, v[0].bytes, 5, bytes_of(row), DType::f32, 20);
  const auto half_at = [](const std::vector<Line>& lines, size_t line, size_t byte) {
    uint16_t half;
    std::memcpy(&half, lines[line].bytes + byte, 2);
    return bf16_to_f32(half);
  };
  EXPECT_EQ(half_at(k, 3, 5 * 4 + 0), 7.0f);  // dim 6 of slot 5: line 3, word 5, lower half
  EXPECT_EQ(half_at(k, 3, 5 * 4 + 2), 8.0f);  // dim 7: upper half
  EXPECT_EQ(half_at(v, 2, 6 * 4 + 2), 7.0f);  // dim 6 of slot 5: line 5 / 2, word 6, upper half
  EXPECT_EQ(half_at(v, 8 + 2, 1 * 4 + 2), 18.0f);  // dim 17: second group of 8 lines
  EXPECT_EQ(half_at(v, 8 + 2, 4 * 4 + 2), 0.0f);   // dim 20 is padding
}

class TileRows : public testing::TestWithParam<KvCode> {};

TEST_P(TileRows, ComeBackAsTheyWereRoundedAndTouchNoOtherSlot) {
  const KvCode code = GetParam();
  for (const int dim : {0, 1, 2, 15, 16, 17, 64, 100, 576}) {
    auto k = tile(tile_bytes_k(code, dim));
    auto v = tile(tile_bytes_v(code, dim));
    std::vector<std::vector<float>> expected(16, std::vector<float>(static_cast<size_t>(dim)));
    // Twice, in an order that leaves gaps, so that rewriting and neighbours are both tried.
    for (int round = 0; round < 2; ++round) {
      for (int i = 0; i < 16; ++i) {
        const int slot = i * 7 % 16;
        const std::vector<float> row =
            test::bell(static_cast<uint64_t>(1000 * dim + 16 * round + i), dim);
        ASSERT_TRUE(encode_k_row(code, k.empty() ? nullptr : k[0].bytes, slot, bytes_of(row),
                                 DType::f32, dim));
        ASSERT_TRUE(encode_v_row(code, v.empty() ? nullptr : v[0].bytes, slot, bytes_of(row),
                                 DType::f32, dim));
        for (size_t d = 0; d < row.size(); ++d) {
          expected[static_cast<size_t>(slot)][d] = code == KvCode::f32 ? row[d]
                                                   : code == KvCode::f16
                                                       ? f16_to_f32(f32_to_f16(row[d]))
                                                       : bf16_to_f32(f32_to_bf16(row[d]));
        }
      }
      for (int slot = 0; slot < 16 && dim > 0; ++slot) {
        std::vector<float> got(static_cast<size_t>(dim));
        decode_k_row(code, k[0].bytes, slot, got.data(), dim);
        EXPECT_EQ(got, expected[static_cast<size_t>(slot)]) << "k slot " << slot << " dim " << dim;
        decode_v_row(code, v[0].bytes, slot, got.data(), dim);
        EXPECT_EQ(got, expected[static_cast<size_t>(slot)]) << "v slot " << slot << " dim " << dim;
      }
    }
  }
}

TEST_P(TileRows, PadWithZerosThatAQueryCanMultiply) {
  const KvCode code = GetParam();
  const std::vector<float> row = {1, 2, 3};
  auto k = tile(tile_bytes_k(code, 3), 0xff);  // NaN everywhere
  for (int slot = 0; slot < 16; ++slot) {
    encode_k_row(code, k[0].bytes, slot, bytes_of(row), DType::f32, 3);
  }
  std::vector<float> padded(static_cast<size_t>(padded_dim_k(code, 3)));
  decode_k_row(code, k[0].bytes, 9, padded.data(), padded_dim_k(code, 3));
  EXPECT_EQ(padded[2], 3.0f);
  for (size_t d = 3; d < padded.size(); ++d) EXPECT_EQ(padded[d], 0.0f);
}

TEST_P(TileRows, StoreInfinityAndNanAsTheyAre) {
  const KvCode code = GetParam();
  const std::vector<float> row = {INFINITY, -INFINITY, NAN, 0.0f, -0.0f};
  auto v = tile(tile_bytes_v(code, 5));
  EXPECT_TRUE(encode_v_row(code, v[0].bytes, 3, bytes_of(row), DType::f32, 5));
  std::vector<float> got(5);
  decode_v_row(code, v[0].bytes, 3, got.data(), 5);
  EXPECT_EQ(got[0], INFINITY);
  EXPECT_EQ(got[1], -INFINITY);
  EXPECT_TRUE(std::isnan(got[2]));
  EXPECT_FALSE(std::signbit(got[3]));
  EXPECT_TRUE(std::signbit(got[4]));
}

// All 65536 codes of the 16-bit formats pass through unchanged when source and storage agree.
TEST_P(TileRows, KeepEveryBitOfASourceOfTheirOwnType) {
  const KvCode code = GetParam();
  if (code == KvCode::f32) return;
  const DType dtype = code == KvCode::f16 ? DType::f16 : DType::bf16;
  auto k = tile(tile_bytes_k(code, 16));
  for (uint32_t base = 0; base < 65536; base += 16) {
    std::vector<uint16_t> row;
    for (uint32_t d = 0; d < 16; ++d) row.push_back(static_cast<uint16_t>(base + d));
    encode_k_row(code, k[0].bytes, 2, reinterpret_cast<const std::byte*>(row.data()), dtype, 16);
    for (size_t d = 0; d < 16; ++d) {
      uint16_t stored;
      std::memcpy(&stored, k[d / 2].bytes + 2 * 4 + d % 2 * 2, 2);
      ASSERT_EQ(stored, row[d]);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Codes, TileRows, testing::Values(KvCode::f32, KvCode::f16, KvCode::bf16),
                         [](const auto& test) { return std::string(kv_code_name(test.param)); });

// Larger than any memory: sizes are 64-bit products.
TEST(KvSpec, SizesOfHugeContextsDoNotWrap) {
  const KvSpec spec{8, 128, 128, {{KvCode::f16, KvCode::f16}}};
  EXPECT_EQ(token_bytes_k(spec, 0) * int64_t{5242880}, int64_t{10737418240});
}

}  // namespace
}  // namespace kvik
