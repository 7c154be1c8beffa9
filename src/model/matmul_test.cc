#include "kvik/model/matmul.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <tuple>

#include "model/matmul_test_util.h"

namespace kvik {
namespace {

using ::testing::ElementsAre;
using testing::product_by_rule;
using testing::products_by_rule;
using testing::random_floats;
using testing::RandomWeight;
using testing::same_bits;

std::vector<float> multiply(CpuIsa set, int num_threads, const Weight& w,
                            const std::vector<float>& x, int64_t num_x_rows) {
  ThreadTeam team = ThreadTeam::create(num_threads).value();
  MatMul matmul = MatMul::create(set, team, w.cols()).value();
  std::vector<float> y(static_cast<size_t>(num_x_rows * w.rows()), -1.0f);
  matmul.multiply(w, x.data(), w.cols(), num_x_rows, y.data(), w.rows());
  return y;
}

std::vector<int64_t> widths(WeightType type) {
  if (type <= WeightType::bf16) return {1, 15, 16, 17, 31, 64, 100};
  if (weight_block_values(type) == 256) return {256, 512, 768};
  return {32, 64, 96, 576};
}

// Every instruction set of this machine × every weight type.
class MatMulSets : public ::testing::TestWithParam<std::tuple<CpuIsa, int>> {
 protected:
  CpuIsa set() const { return std::get<0>(GetParam()); }
  WeightType type() const { return static_cast<WeightType>(std::get<1>(GetParam())); }
};

TEST_P(MatMulSets, VectorProductsFollowTheRuleBitForBit) {
  for (const int64_t cols : widths(type())) {
    for (const int64_t rows : {1, 3, 4, 5, 9}) {
      const RandomWeight w(type(), rows, cols, static_cast<uint32_t>(cols + rows));
      const std::vector<float> x = random_floats(cols, 7);
      EXPECT_TRUE(same_bits(multiply(set(), 1, w.weight, x, 1), products_by_rule(w.weight, x, 1)))
          << rows << " x " << cols;
    }
  }
}

TEST_P(MatMulSets, MatrixProductsFollowTheRuleBitForBit) {
  for (const int64_t cols : widths(type())) {
    for (const int64_t rows : {1, 4, 7, 18}) {
      const RandomWeight w(type(), rows, cols, static_cast<uint32_t>(cols + rows));
      const std::vector<float> x = random_floats(14 * cols, 7);
      for (const int64_t n : {2, 3, 5, 6, 7, 13, 14}) {
        EXPECT_TRUE(same_bits(multiply(set(), 1, w.weight, x, n), products_by_rule(w.weight, x, n)))
            << rows << " x " << cols << ", " << n << " rows of x";
      }
    }
  }
}

// Rows so long, and so many, that x is cut into blocks and only one tile fits the scratch.
TEST_P(MatMulSets, BlocksOfALargeProductFollowTheRuleBitForBit) {
  const int64_t cols = 8192;
  const RandomWeight w(type(), 6, cols, 3);
  const std::vector<float> x = random_floats(50 * cols, 7);
  EXPECT_TRUE(same_bits(multiply(set(), 1, w.weight, x, 50), products_by_rule(w.weight, x, 50)));
}

TEST_P(MatMulSets, ResultsLieWithinTheRoundingBoundOfDoublePrecision) {
  const int64_t cols = 1536;
  const RandomWeight w(type(), 8, cols, 3);
  const std::vector<float> x = random_floats(cols, 7);
  const std::vector<float> y = multiply(set(), 1, w.weight, x, 1);
  const std::vector<float> values = testing::decoded(w.weight);
  for (int64_t r = 0; r < 8; ++r) {
    double exact = 0;
    double magnitude = 0;
    for (int64_t i = 0; i < cols; ++i) {
      const double term =
          double{values[static_cast<size_t>(r * cols + i)]} * double{x[static_cast<size_t>(i)]};
      exact += term;
      magnitude += std::abs(term);
    }
    // Each term passes through at most cols/16 roundings in its lane and four in the tree.
    const double bound = (static_cast<double>(cols) / 16 + 4) * 0x1p-24 * magnitude;
    EXPECT_NEAR(double{y[static_cast<size_t>(r)]}, exact, bound);
  }
}

// Strides wider than the rows; what lies between them is neither read into results nor written.
TEST_P(MatMulSets, StridesLeaveGapsAlone) {
  const int64_t rows = 5, cols = widths(type()).back(), n = 4, x_stride = cols + 3, y_stride = 9;
  const RandomWeight w(type(), rows, cols, 3);
  const std::vector<float> dense = random_floats(n * cols, 7);
  std::vector<float> x(static_cast<size_t>(n * x_stride), std::numeric_limits<float>::quiet_NaN());
  for (int64_t i = 0; i < n; ++i) {
    std::copy_n(dense.begin() + i * cols, cols, x.begin() + i * x_stride);
  }
  std::vector<float> y(static_cast<size_t>(n * y_stride), -1.0f);
  ThreadTeam team = ThreadTeam::create(1).value();
  MatMul matmul = MatMul::create(set(), team, cols).value();
  matmul.multiply(w.weight, x.data(), x_stride, n, y.data(), y_stride);
  const std::vector<float> expected = products_by_rule(w.weight, dense, n);
  for (int64_t i = 0; i < n * y_stride; ++i) {
    const int64_t r = i % y_stride;
    const float want = r < rows ? expected[static_cast<size_t>(i / y_stride * rows + r)] : -1.0f;
    EXPECT_EQ(y[static_cast<size_t>(i)], want) << i;
  }
}

TEST_P(MatMulSets, ANonFiniteXReachesItsOwnRowOnly) {
  const int64_t cols = widths(type()).back(), n = 7;
  const RandomWeight w(type(), 6, cols, 3);
  std::vector<float> x = random_floats(n * cols, 7);
  x[static_cast<size_t>(3 * cols + 5)] = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> y = multiply(set(), 1, w.weight, x, n);
  for (int64_t i = 0; i < n * 6; ++i) {
    EXPECT_EQ(std::isnan(y[static_cast<size_t>(i)]), i / 6 == 3) << i;
  }
}

// No such weight passes check_finite; still the row alone suffers, and as the rule says.
TEST_P(MatMulSets, ANonFiniteScaleReachesItsOwnOutputsOnly) {
  const int64_t cols = widths(type()).back(), rows = 6;
  RandomWeight w(type(), rows, cols, 3);
  const bool is_f32 = type() == WeightType::f32 || type() == WeightType::bf16;
  // NaN and both infinities.
  const std::array<uint16_t, 3> bad = is_f32 ? std::array<uint16_t, 3>{0x7fc0, 0x7f80, 0xff80}
                                             : std::array<uint16_t, 3>{0x7e00, 0x7c00, 0xfc00};
  for (const int64_t n : {1, 4}) {
    const std::vector<float> x = random_floats(n * cols, 7);
    for (const uint16_t bits : bad) {
      for (const int at : testing::scale_offsets(type())) {
        std::byte* p = w.bytes.data() + 2 * w.weight.row_bytes() + at;
        uint16_t kept = 0;
        if (type() == WeightType::f32) p += 2;
        std::memcpy(&kept, p, 2);
        std::memcpy(p, &bits, 2);
        const std::vector<float> y = multiply(set(), 1, w.weight, x, n);
        const std::vector<float> expected = products_by_rule(w.weight, x, n);
        std::memcpy(p, &kept, 2);
        for (size_t i = 0; i < y.size(); ++i) {
          EXPECT_EQ(std::isfinite(y[i]), i % rows != 2) << i;
          if (std::isnan(expected[i])) {
            EXPECT_TRUE(std::isnan(y[i])) << i;  // of whatever payload
          } else {
            EXPECT_EQ(y[i], expected[i]) << i;
          }
        }
      }
    }
  }
}

std::string set_and_type(const ::testing::TestParamInfo<std::tuple<CpuIsa, int>>& info) {
  return std::string(cpu_isa_name(std::get<0>(info.param))) + "_" +
         std::string(weight_type_name(static_cast<WeightType>(std::get<1>(info.param))));
}

INSTANTIATE_TEST_SUITE_P(
    All, MatMulSets,
    ::testing::Combine(::testing::ValuesIn(available_cpu_isas(detect_cpu_features())),
                       ::testing::Range(0, kNumWeightTypes)),
    set_and_type);

// Scales at the edges of f16, where a fused and a separate multiply-add could differ if the product
// d·q were not exact, and zeros of both signs.
TEST(MatMul, ExtremeScalesFollowTheRuleBitForBit) {
  const uint16_t scales[] = {0x0001, 0x8001, 0x03ff, 0x7bff, 0xfbff, 0x8000, 0x0000, 0x3c01};
  for (int t = 0; t < kNumWeightTypes; ++t) {
    const auto type = static_cast<WeightType>(t);
    const int64_t values = weight_block_values(type);
    if (values == 1) continue;
    RandomWeight w(type, 8, 8 * values, 11);
    const std::span<const int> offsets = testing::scale_offsets(type);
    const int64_t block = weight_row_bytes(type, values).value();
    for (size_t r = 0; r < 8; ++r) {
      for (size_t b = 0; b < 8; ++b) {
        std::byte* p = w.bytes.data() + static_cast<int64_t>(r * 8 + b) * block;
        std::memcpy(p + offsets[0], &scales[r], 2);
        if (offsets.size() > 1) std::memcpy(p + offsets[1], &scales[b], 2);
      }
    }
    const std::vector<float> x = random_floats(8 * values * 4, 7);
    for (const CpuIsa set : available_cpu_isas(detect_cpu_features())) {
      for (const int64_t n : {1, 4}) {
        EXPECT_TRUE(same_bits(multiply(set, 1, w.weight, x, n), products_by_rule(w.weight, x, n)))
            << weight_type_name(type) << " " << cpu_isa_name(set);
      }
    }
  }
}

TEST(MatMul, ZerosHaveTheSignThatTheRuleGives) {
  // The only product is negative and too small for f32, so that its lane holds -0 beside 15 lanes
  // of +0; a kernel that pads with zeros or sums in another order could give the other zero.
  const float tiny = -0x1p-100f;
  std::vector<std::byte> bytes(sizeof tiny);
  std::memcpy(bytes.data(), &tiny, sizeof tiny);
  const Weight w = Weight::make(WeightType::f32, 1, 1, bytes).value();
  const std::vector<float> x(2, 0x1p-100f);
  for (const CpuIsa set : available_cpu_isas(detect_cpu_features())) {
    for (const int64_t n : {1, 2}) {
      EXPECT_TRUE(same_bits(multiply(set, 1, w, x, n), products_by_rule(w, x, n)));
    }
  }
}

TEST(MatMul, SeveralWeightsInOneCallGiveWhatEachGivesAlone) {
  const RandomWeight q(WeightType::q4_1, 12, 96, 1);
  const RandomWeight k(WeightType::q8_0, 5, 96, 2);
  const RandomWeight v(WeightType::f16, 1, 96, 3);
  const std::vector<float> x = random_floats(96 * 3, 7);
  const CpuIsa set = available_cpu_isas(detect_cpu_features()).front();
  ThreadTeam team = ThreadTeam::create(2).value();
  MatMul matmul = MatMul::create(set, team, 200).value();
  for (const int64_t n : {1, 3}) {
    std::vector<float> yq(static_cast<size_t>(12 * n)), yk(static_cast<size_t>(5 * n)),
        yv(static_cast<size_t>(n));
    const WeightProduct products[] = {
        {q.weight, yq.data(), 12}, {k.weight, yk.data(), 5}, {v.weight, yv.data(), 1}};
    matmul.multiply(products, x.data(), 96, n);
    EXPECT_TRUE(same_bits(yq, products_by_rule(q.weight, x, n)));
    EXPECT_TRUE(same_bits(yk, products_by_rule(k.weight, x, n)));
    EXPECT_TRUE(same_bits(yv, products_by_rule(v.weight, x, n)));
  }
}

TEST(MatMul, OneCallMayMixAllTypes) {
  constexpr int64_t kCols = 512;
  const std::vector<float> x = random_floats(kCols * 5, 7);
  std::vector<RandomWeight> weights;
  for (int t = 0; t < kNumWeightTypes; ++t) {
    weights.emplace_back(static_cast<WeightType>(t), 3 + t, kCols, static_cast<uint32_t>(t));
  }
  for (const CpuIsa set : available_cpu_isas(detect_cpu_features())) {
    ThreadTeam team = ThreadTeam::create(2).value();
    MatMul matmul = MatMul::create(set, team, kCols).value();
    for (const int64_t n : {1, 5}) {
      std::vector<std::vector<float>> y;
      std::vector<WeightProduct> products;
      for (const RandomWeight& w : weights) {
        y.emplace_back(static_cast<size_t>(n * w.weight.rows()));
        products.push_back({w.weight, y.back().data(), w.weight.rows()});
      }
      matmul.multiply(products, x.data(), kCols, n);
      for (size_t i = 0; i < weights.size(); ++i) {
        EXPECT_TRUE(same_bits(y[i], products_by_rule(weights[i].weight, x, n)))
            << cpu_isa_name(set) << " " << weight_type_name(weights[i].weight.type());
      }
    }
  }
}

TEST(MatMul, NoRowsOfXWriteNothing) {
  const RandomWeight w(WeightType::q4_0, 3, 32, 1);
  const CpuIsa set = CpuIsa::scalar;
  ThreadTeam team = ThreadTeam::create(1).value();
  MatMul matmul = MatMul::create(set, team, 32).value();
  float y = -1.0f;
  matmul.multiply(w.weight, nullptr, 32, 0, &y, 3);
  matmul.multiply({}, nullptr, 32, 2);
  EXPECT_EQ(y, -1.0f);
}

TEST(MatMul, CpuIsasFollowTheProcessorFastestFirst) {
  CpuFeatures cpu;
  EXPECT_THAT(available_cpu_isas(cpu), ElementsAre(CpuIsa::scalar));
  cpu.avx2 = cpu.fma = true;  // but no f16c
  EXPECT_THAT(available_cpu_isas(cpu), ElementsAre(CpuIsa::scalar));
#if defined(KVIK_HAVE_SPINE_AVX2) && defined(KVIK_HAVE_SPINE_AVX512)
  cpu.f16c = true;
  EXPECT_THAT(available_cpu_isas(cpu), ElementsAre(CpuIsa::avx2, CpuIsa::scalar));
  cpu.avx512 = true;
  EXPECT_THAT(available_cpu_isas(cpu), ElementsAre(CpuIsa::avx512, CpuIsa::avx2, CpuIsa::scalar));
#endif
}

TEST(MatMul, CreateRefusesAbsurdWidths) {
  ThreadTeam team = ThreadTeam::create(1).value();
  for (const int64_t cols : {int64_t{0}, int64_t{-1}, std::numeric_limits<int64_t>::max()}) {
    EXPECT_EQ(MatMul::create(CpuIsa::scalar, team, cols).status().code(),
              StatusCode::invalid_argument);
  }
}

TEST(MatMulDeathTest, AWeightWiderThanTheScratchIsABug) {
  const RandomWeight w(WeightType::q4_0, 3, 64, 1);
  const std::vector<float> x(128);
  EXPECT_DEATH(
      {
        ThreadTeam team = ThreadTeam::create(1).value();
        MatMul matmul = MatMul::create(CpuIsa::scalar, team, 32).value();
        std::vector<float> y(6);
        matmul.multiply(w.weight, x.data(), 64, 2, y.data(), 3);
      },
      "more columns");
}

}  // namespace
}  // namespace kvik
