#include <gtest/gtest.h>

#include <algorithm>

#include "kvik/model/matmul.h"
#include "model/matmul_test_util.h"

namespace kvik {
namespace {

using testing::products_by_rule;
using testing::random_floats;
using testing::RandomWeight;
using testing::same_bits;

constexpr WeightType kSomeTypes[] = {WeightType::q4_1, WeightType::q8_0, WeightType::f16,
                                     WeightType::q4_k, WeightType::q6_k};
// Not many, but whole blocks.
int64_t cols_of(WeightType type) { return weight_block_values(type) == 256 ? 512 : 96; }

TEST(MatMulThreads, AnyNumberOfThreadsGivesTheSameBits) {
  for (const WeightType type : kSomeTypes) {
    const int64_t cols = cols_of(type);
    const RandomWeight w(type, 29, cols, 5);
    const std::vector<float> x = random_floats(cols * 10, 7);
    for (const CpuIsa set : available_cpu_isas(detect_cpu_features())) {
      // More threads than tiles leave some without work.
      for (const int num_threads : {1, 2, 3, 5, 9}) {
        ThreadTeam team = ThreadTeam::create(num_threads).value();
        MatMul matmul = MatMul::create(set, team, cols).value();
        for (const int64_t n : {1, 10}) {
          std::vector<float> y(static_cast<size_t>(29 * n));
          matmul.multiply(w.weight, x.data(), cols, n, y.data(), 29);
          EXPECT_TRUE(same_bits(y, products_by_rule(w.weight, x, n)))
              << cpu_isa_name(set) << ", " << num_threads << " threads, " << n << " rows";
        }
      }
    }
  }
}

TEST(MatMulThreads, AnySplitOfABatchGivesTheSameBits) {
  constexpr int64_t kRows = 21, kBatch = 23;
  for (const WeightType type : kSomeTypes) {
    const int64_t cols = cols_of(type);
    const RandomWeight w(type, kRows, cols, 5);
    const std::vector<float> x = random_floats(cols * kBatch, 7);
    const std::vector<float> expected = products_by_rule(w.weight, x, kBatch);
    for (const CpuIsa set : available_cpu_isas(detect_cpu_features())) {
      ThreadTeam team = ThreadTeam::create(2).value();
      MatMul matmul = MatMul::create(set, team, cols).value();
      for (const int64_t step : {1, 2, 3, 4, 7, 23}) {
        std::vector<float> y(static_cast<size_t>(kRows * kBatch));
        for (int64_t n = 0; n < kBatch; n += step) {
          matmul.multiply(w.weight, x.data() + n * cols, cols, std::min(step, kBatch - n),
                          y.data() + n * kRows, kRows);
        }
        EXPECT_TRUE(same_bits(y, expected)) << cpu_isa_name(set) << " in steps of " << step;
      }
    }
  }
}

}  // namespace
}  // namespace kvik
