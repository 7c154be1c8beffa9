#include "kvik/eval/ggml_rounding.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "kvik/core/dtype.h"
#include "support/random.h"

namespace kvik {
namespace {

using ::testing::HasSubstr;

constexpr GgmlBlock kBlocks[] = {GgmlBlock::q8_0, GgmlBlock::q5_1, GgmlBlock::q4_0};

float as_f16(float x) { return f16_to_f32(f32_to_f16(x)); }

// A block of zeros but for the first elements, rounded.
std::vector<float> rounded(GgmlBlock block, std::vector<float> row) {
  row.resize(32);
  round_ggml_key({block}, 32, row.data());
  return row;
}

float largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  float most = 0;
  for (size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(a[i] - b[i]));
  return most;
}

double squares(const std::vector<float>& x) {
  double sum = 0;
  for (const float value : x) sum += double{value} * double{value};
  return sum;
}

TEST(GgmlRounding, NamesAreParsedAndPrinted) {
  for (const GgmlBlock block : kBlocks) {
    for (const bool rotated : {false, true}) {
      const GgmlFormat format = {block, rotated};
      EXPECT_EQ(parse_ggml_format(ggml_format_name(format)), format);
    }
  }
  EXPECT_EQ(parse_ggml_format("ggml-q4_0-rot"), (GgmlFormat{GgmlBlock::q4_0, true}));
  for (const char* name : {"q4_0", "ggml-q4_1", "ggml-q4_0-rot ", "", "ggml-"}) {
    EXPECT_FALSE(parse_ggml_format(name)) << name;
  }
}

TEST(GgmlRounding, RowBytesAreThoseOfTheBlocks) {
  EXPECT_EQ(ggml_row_bytes(GgmlBlock::q8_0, 64), 2 * 34);
  EXPECT_EQ(ggml_row_bytes(GgmlBlock::q5_1, 128), 4 * 24);
  EXPECT_EQ(ggml_row_bytes(GgmlBlock::q4_0, 32), 18);
}

TEST(GgmlRounding, HeadDimsMustBeWholeBlocks) {
  EXPECT_TRUE(check_ggml({GgmlBlock::q4_0, false}, 96).ok());
  EXPECT_TRUE(check_ggml({GgmlBlock::q4_0, true}, 192).ok());
  EXPECT_THAT(check_ggml({GgmlBlock::q4_0, true}, 96).message(),
              HasSubstr("multiples of 64, not 96"));
  EXPECT_THAT(check_ggml({GgmlBlock::q8_0, false}, 8).message(),
              HasSubstr("multiples of 32, not 8"));
}

TEST(GgmlRounding, Q8RoundsHalvesAwayFromZero) {
  const auto got = rounded(GgmlBlock::q8_0, {127, 0.5F, -0.5F, 1.49F, -126.5F, 3});
  EXPECT_EQ(std::vector<float>(got.begin(), got.begin() + 7),
            (std::vector<float>{127, 1, -1, 1, -127, 3, 0}));
}

TEST(GgmlRounding, Q5TakesTheRangeOfABlockInThirtyOneSteps) {
  const auto got = rounded(GgmlBlock::q5_1, {31, 0.49F, 0.5F, 30.6F, 17.2F});
  EXPECT_EQ(std::vector<float>(got.begin(), got.begin() + 6),
            (std::vector<float>{31, 0, 1, 31, 17, 0}));
  // A block of one value has no range; the value is kept in half precision.
  EXPECT_EQ(rounded(GgmlBlock::q5_1, std::vector<float>(32, 0.1F)),
            std::vector<float>(32, as_f16(0.1F)));
}

TEST(GgmlRounding, Q4HasEightStepsTowardsItsLargestElementAndSevenAwayFromIt) {
  const auto negative = rounded(GgmlBlock::q4_0, {-8, 8, 6.5F, 6.49F, -0.5F, -0.51F});
  EXPECT_EQ(std::vector<float>(negative.begin(), negative.begin() + 7),
            (std::vector<float>{-8, 7, 7, 6, 0, -1, 0}));
  const auto positive = rounded(GgmlBlock::q4_0, {8, -8, -7.5F});
  EXPECT_EQ(std::vector<float>(positive.begin(), positive.begin() + 4),
            (std::vector<float>{8, -7, -7, 0}));
}

TEST(GgmlRounding, ScalesAreStoredInHalfPrecision) {
  // The code is made with the exact scale, the value with the stored one.
  EXPECT_EQ(rounded(GgmlBlock::q8_0, {1})[0], 127 * as_f16(1.0F / 127));
  EXPECT_EQ(rounded(GgmlBlock::q4_0, {-0.3F})[0], -8 * as_f16(0.3F / 8));
  EXPECT_EQ(rounded(GgmlBlock::q5_1, {0.7F, -0.3F})[0],
            31 * as_f16((0.7F + 0.3F) / 31) + as_f16(-0.3F));
}

TEST(GgmlRounding, ZerosStayZeros) {
  for (const GgmlBlock block : kBlocks) {
    EXPECT_EQ(rounded(block, {}), std::vector<float>(32, 0.0F));
  }
}

TEST(GgmlRounding, EveryElementLandsWithinItsStep) {
  // As shares of the largest element: half a step (a whole one at q4_0's short end), and a scale or
  // least element that half precision moves by up to 2^-11 of itself, times the largest code.
  constexpr float kHalf = 0x1p-11F;
  const std::pair<GgmlBlock, float> steps[] = {
      {GgmlBlock::q8_0, (0.5F + 127 * kHalf) / 127},
      {GgmlBlock::q5_1, (0.5F + 31 * kHalf) * 2 / 31 + kHalf},
      {GgmlBlock::q4_0, (1 + 8 * kHalf) / 8}};
  for (const auto& [block, step] : steps) {
    for (uint64_t seed = 0; seed < 200; ++seed) {
      const std::vector<float> row = test::bell(seed, 32);
      float most = 0;
      for (const float value : row) most = std::max(most, std::abs(value));
      EXPECT_LE(largest_difference(rounded(block, row), row), step * most * 1.0001F) << seed;
    }
  }
}

TEST(GgmlRounding, BlocksOfARowAreRoundedApart) {
  for (const GgmlBlock block : kBlocks) {
    const std::vector<float> first = test::bell(1, 32);
    std::vector<float> second = test::bell(2, 32);
    for (float& value : second) value *= 1000;
    std::vector<float> row = first;
    row.insert(row.end(), second.begin(), second.end());
    round_ggml_value({block}, 64, row.data());
    std::vector<float> expected = rounded(block, first);
    const std::vector<float> rest = rounded(block, second);
    expected.insert(expected.end(), rest.begin(), rest.end());
    EXPECT_EQ(row, expected);
  }
}

TEST(GgmlRounding, RotationSpreadsAnOutlierOverTheRow) {
  // One large element among small ones takes all the codes of its block, unless it is spread first.
  std::vector<float> row = test::bell(5, 64);
  row[3] = 60;
  std::vector<float> plain = row;
  std::vector<float> turned = row;
  round_ggml_key({GgmlBlock::q4_0, false}, 64, plain.data());
  round_ggml_key({GgmlBlock::q4_0, true}, 64, turned.data());
  const auto error = [&](std::vector<float> got) {
    for (size_t i = 0; i < got.size(); ++i) got[i] -= row[i];
    return squares(got);
  };
  EXPECT_LT(error(turned), 0.8 * error(plain));
  EXPECT_LT(error(turned), 0.02 * squares(row));
}

TEST(GgmlRounding, KeysAreTurnedOverTheWholeRowAndValuesOver64Elements) {
  // What stands in the second 64 elements reaches the first ones of a key only.
  std::vector<float> row = test::bell(5, 128);
  std::vector<float> other = row;
  other[100] += 9;
  const auto first_half = [](void (*round)(const GgmlFormat&, int, float*) noexcept,
                             std::vector<float> x) {
    round({GgmlBlock::q4_0, true}, 128, x.data());
    x.resize(64);
    return x;
  };
  EXPECT_NE(first_half(round_ggml_key, row), first_half(round_ggml_key, other));
  EXPECT_EQ(first_half(round_ggml_value, row), first_half(round_ggml_value, other));
}

TEST(GgmlRounding, TheHookRoundsTheSidesItNamesAndNoOther) {
  const std::vector<float> row = test::bell(9, 2 * 3 * 32);
  const auto apply = [&](const RowHook& hook) {
    std::vector<float> q = row, k = row, v = row;
    const LayerRows rows = {0,
                            {},
                            TensorView(q.data(), DType::f32, {2, 3, 32}),
                            TensorView(k.data(), DType::f32, {2, 3, 32}),
                            TensorView(v.data(), DType::f32, {2, 3, 32})};
    hook(rows);
    EXPECT_EQ(q, row);
    return std::pair(k, v);
  };
  std::vector<float> expected = row;
  for (size_t i = 0; i < row.size(); i += 32) {
    round_ggml_key({GgmlBlock::q4_0}, 32, expected.data() + i);
  }
  EXPECT_EQ(apply(ggml_hook(GgmlFormat{GgmlBlock::q4_0}, std::nullopt)), std::pair(expected, row));
  EXPECT_EQ(apply(ggml_hook(std::nullopt, GgmlFormat{GgmlBlock::q4_0})), std::pair(row, expected));
  EXPECT_FALSE(ggml_hook(std::nullopt, std::nullopt));
}

}  // namespace
}  // namespace kvik
