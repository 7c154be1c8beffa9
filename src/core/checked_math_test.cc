#include "kvik/core/checked_math.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>

namespace kvik {
namespace {

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
__extension__ using Wide = __int128;

TEST(CheckedProduct, OfNothingIsOne) { EXPECT_EQ(checked_product({}), 1); }

TEST(CheckedProduct, AgreesWithWideArithmeticOnRandomFactors) {
  std::mt19937_64 random(1);
  int overflows = 0;
  for (int i = 0; i < 100000; ++i) {
    const auto a = static_cast<int64_t>(random() >> (1 + random() % 63));
    const auto b = static_cast<int64_t>(random() >> (1 + random() % 63));
    const Wide wide = static_cast<Wide>(a) * b;
    const auto product = checked_product({a, b});
    if (wide > kMax) {
      ++overflows;
      EXPECT_FALSE(product.has_value()) << a << " * " << b;
    } else {
      EXPECT_EQ(product, static_cast<int64_t>(wide));
    }
  }
  EXPECT_GT(overflows, 1000);
  EXPECT_LT(overflows, 99000);
}

TEST(CheckedProduct, ReachesTheLargestValueAndNotOneMore) {
  EXPECT_EQ(checked_product({kMax, 1}), kMax);
  EXPECT_EQ(checked_product({7, kMax / 7}), kMax);  // 2^63 - 1 is a multiple of 7
  EXPECT_EQ(checked_product({int64_t{1} << 62, 2}), std::nullopt);
  EXPECT_EQ(checked_product({kMax, kMax, kMax}), std::nullopt);
}

TEST(CheckedProduct, RefusesANegativeFactorEvenWhereTheProductIsPositive) {
  EXPECT_EQ(checked_product({-1}), std::nullopt);
  EXPECT_EQ(checked_product({-2, -3}), std::nullopt);
  EXPECT_EQ(checked_product({0, -1}), std::nullopt);
  EXPECT_EQ(checked_product({1, kMin}), std::nullopt);
}

TEST(CheckedProduct, AZeroDoesNotHideAnOverflowBeforeIt) {
  EXPECT_EQ(checked_product({0, kMax, kMax}), 0);
  EXPECT_EQ(checked_product({kMax, kMax, 0}), std::nullopt);
}

TEST(CheckedSum, OfNothingIsZero) { EXPECT_EQ(checked_sum({}), 0); }

TEST(CheckedSum, ReachesTheEndsOfTheRangeAndNotOneMore) {
  EXPECT_EQ(checked_sum({kMax - 1, 1}), kMax);
  EXPECT_EQ(checked_sum({kMax, 1}), std::nullopt);
  EXPECT_EQ(checked_sum({kMin + 1, -1}), kMin);
  EXPECT_EQ(checked_sum({kMin, -1}), std::nullopt);
  EXPECT_EQ(checked_sum({kMax, kMin, 1}), 0);
}

TEST(CeilDiv, IsTheSmallestCountThatCovers) {
  for (int64_t a = 0; a < 200; ++a) {
    for (int64_t b = 1; b < 40; ++b) {
      const int64_t n = ceil_div(a, b);
      EXPECT_GE(n * b, a);
      EXPECT_LT((n - 1) * b, a);
      EXPECT_EQ(round_up(a, b), n * b);
    }
  }
}

TEST(CeilDiv, DoesNotOverflowNearTheLargestValue) {
  EXPECT_EQ(ceil_div(kMax, 1), kMax);
  EXPECT_EQ(ceil_div(kMax, 2), int64_t{1} << 62);
  EXPECT_EQ(ceil_div(kMax, kMax), 1);
  EXPECT_EQ(ceil_div(kMax - 1, kMax), 1);
}

}  // namespace
}  // namespace kvik
