#include "format/hadamard.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <vector>

#include "support/random.h"

namespace kvik::internal {
namespace {

// All head dims of the rotated formats, and those of TurboQuant beyond them.
std::vector<int> head_dims() {
  std::vector<int> dims;
  for (int dim = 32; dim <= 576; dim += 16) dims.push_back(dim);
  return dims;
}

// Entry of the orthonormal matrix signs-then-Hadamard, from its definition.
double rotation_entry(int head_dim, int row, int column) {
  int block = 1;
  while (head_dim % (2 * block) == 0) block *= 2;
  if (row / block != column / block) return 0;
  const auto common = static_cast<unsigned>(row % block & column % block);
  const double sign =
      (std::popcount(common) % 2 == 0 ? 1 : -1) * (is_sign_negative(head_dim, column) ? -1 : 1);
  return sign / std::sqrt(block);
}

double energy(const std::vector<float>& row) {
  double sum = 0;
  for (const float x : row) sum += double{x} * x;
  return sum;
}

float largest(const std::vector<float>& row) {
  float most = 0;
  for (const float x : row) most = std::max(most, std::fabs(x));
  return most;
}

TEST(Hadamard, RotationIsItsDenseMatrixOnEveryHeadDim) {
  for (const int dim : head_dims()) {
    const std::vector<float> row = test::bell(static_cast<uint64_t>(dim), dim);
    std::vector<float> rotated = row;
    rotate(rotated.data(), dim);
    for (int i = 0; i < dim; ++i) {
      double want = 0;
      for (int j = 0; j < dim; ++j) want += rotation_entry(dim, i, j) * row[static_cast<size_t>(j)];
      // log2(512) + 1 roundings of numbers below sqrt(block) * largest.
      EXPECT_NEAR(rotated[static_cast<size_t>(i)], want, 4e-6 * largest(row)) << dim << " " << i;
    }
  }
}

TEST(Hadamard, IsItsOwnInverseAndKeepsLengths) {
  for (const int dim : head_dims()) {
    const std::vector<float> row = test::bell(static_cast<uint64_t>(dim) + 7, dim);
    std::vector<float> twice = row;
    hadamard(twice.data(), dim);
    EXPECT_NEAR(energy(twice), energy(row), 1e-6 * energy(row)) << dim;
    hadamard(twice.data(), dim);
    std::vector<float> back = row;
    rotate(back.data(), dim);
    EXPECT_NEAR(energy(back), energy(row), 1e-6 * energy(row)) << dim;
    unrotate(back.data(), dim);
    for (size_t d = 0; d < row.size(); ++d) {
      EXPECT_NEAR(twice[d], row[d], 4e-6 * largest(row)) << dim;
      EXPECT_NEAR(back[d], row[d], 4e-6 * largest(row)) << dim;
    }
  }
}

TEST(Hadamard, PowersOfFourInvertWithoutRounding) {
  // 1 / sqrt(64) is exact, and so are sums of small integers.
  std::vector<float> row(64);
  for (size_t d = 0; d < row.size(); ++d) row[d] = static_cast<float>(test::below(3, d, 201) - 100);
  std::vector<float> back = row;
  rotate(back.data(), 64);
  unrotate(back.data(), 64);
  EXPECT_EQ(back, row);
}

TEST(Hadamard, SpreadsAnOutlierOverItsBlockAlone) {
  std::vector<float> row(96);  // three blocks of 32
  row[40] = 1e4f;
  rotate(row.data(), 96);
  for (size_t d = 0; d < 96; ++d) {
    EXPECT_NEAR(std::fabs(row[d]), d / 32 == 1 ? 1e4 / std::sqrt(32.0) : 0, 1e-3) << d;
  }
}

TEST(Hadamard, SignsAreBalancedAndDifferByHeadDim) {
  int negative = 0;
  int differ = 0;
  for (int i = 0; i < 512; ++i) {
    negative += is_sign_negative(512, i);
    if (i < 256) differ += is_sign_negative(512, i) != is_sign_negative(256, i);
  }
  // Four standard deviations of fair coins.
  EXPECT_NEAR(negative, 256, 4 * std::sqrt(128.0));
  EXPECT_NEAR(differ, 128, 4 * std::sqrt(64.0));
}

}  // namespace
}  // namespace kvik::internal
