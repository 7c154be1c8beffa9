#include "eval/statistics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace kvik::internal {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(Moments, GiveTheMeanAndItsStandardError) {
  Moments moments;
  for (const double value : {1.0, 2.0, 3.0, 6.0}) moments.add(value);
  EXPECT_EQ(moments.count(), 4);
  EXPECT_DOUBLE_EQ(moments.mean(), 3);
  // Squares of the distances: 4 + 1 + 0 + 9 = 14; 14 / 3 / 4.
  EXPECT_DOUBLE_EQ(moments.error(), std::sqrt(14.0 / 12));
}

TEST(Moments, HaveNoErrorBelowTwoValues) {
  Moments moments;
  EXPECT_EQ(moments.mean(), 0);
  EXPECT_EQ(moments.error(), 0);
  moments.add(7);
  EXPECT_EQ(moments.mean(), 7);
  EXPECT_EQ(moments.error(), 0);
}

TEST(Moments, KeepTheirDigitsFarFromZero) {
  Moments moments;
  for (int i = 0; i < 1000; ++i) moments.add(1e9 + (i % 2));
  EXPECT_DOUBLE_EQ(moments.mean(), 1e9 + 0.5);
  EXPECT_NEAR(moments.error(), std::sqrt(250.0 / 999 / 1000), 1e-9);
}

TEST(Moments, OneInfiniteValueMakesMeanAndErrorInfinite) {
  Moments moments;
  for (const double value : {1.0, kInfinity, 2.0, kInfinity}) moments.add(value);
  EXPECT_EQ(moments.mean(), kInfinity);
  EXPECT_EQ(moments.error(), kInfinity);
}

TEST(Quantile, LiesOnALineBetweenNeighbours) {
  const std::vector<double> values = {1, 2, 4, 8, 16};
  EXPECT_EQ(quantile(values, 0), 1);
  EXPECT_EQ(quantile(values, 0.5), 4);
  EXPECT_EQ(quantile(values, 1), 16);
  EXPECT_DOUBLE_EQ(quantile(values, 0.125), 1.5);
  EXPECT_DOUBLE_EQ(quantile(values, 0.9), 8 + 0.6 * 8);
}

TEST(Quantile, OfOneValueIsThatValue) {
  const std::vector<double> one = {5};
  EXPECT_EQ(quantile(one, 0), 5);
  EXPECT_EQ(quantile(one, 0.999), 5);
}

TEST(Quantile, MeetsInfinityOnlyWhereItLies) {
  const std::vector<double> values = {1, 2, kInfinity, kInfinity};
  EXPECT_DOUBLE_EQ(quantile(values, 0.25), 1.75);
  EXPECT_EQ(quantile(values, 0.5), kInfinity);
  EXPECT_EQ(quantile(values, 0.9), kInfinity);
}

}  // namespace
}  // namespace kvik::internal
