#include "eval/divergence.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "support/random.h"

namespace kvik::internal {
namespace {

// log(sum e^x) in long double, the largest taken out.
long double log_sum_exp(const std::vector<float>& x) {
  long double most = x[0];
  for (const float value : x) most = std::max<long double>(most, value);
  long double sum = 0;
  for (const float value : x) sum += std::exp(value - most);
  return most + std::log(sum);
}

// The definition, in long double.
long double kld_of(const std::vector<float>& reference, const std::vector<float>& row) {
  const long double log_r = log_sum_exp(reference);
  const long double log_c = log_sum_exp(row);
  long double kld = 0;
  for (size_t i = 0; i < row.size(); ++i) {
    const long double lp = reference[i] - log_r;
    kld += std::exp(lp) * (lp - (row[i] - log_c));
  }
  return kld;
}

RowDivergence diverge(const std::vector<float>& reference, const std::vector<float>& row) {
  std::vector<float> weights(reference.size());
  const auto count = static_cast<int64_t>(row.size());
  return diverge(make_reference(reference.data(), count, weights.data()), row.data(), count);
}

TEST(Divergence, OfHandMadeProbabilitiesIsTheirKullbackLeiblerDivergence) {
  // 1/2 1/4 1/4 against 1/4 1/2 1/4: 1/2 ln 2 + 1/4 ln 1/2. A number added to all logits changes
  // no probability.
  const std::vector<float> p = {std::log(0.5F), std::log(0.25F), std::log(0.25F)};
  const std::vector<float> q = {std::log(0.25F) + 3, std::log(0.5F) + 3, std::log(0.25F) + 3};
  const RowDivergence result = diverge(p, q);
  EXPECT_NEAR(result.kld, std::log(2.0) / 4, 1e-6);
  EXPECT_NEAR(result.log_sum_exp, 3, 1e-6);
  EXPECT_EQ(result.top, 1);
}

TEST(Divergence, OfEqualRowsIsExactlyZero) {
  for (const int64_t count : {1, 7, 64, 65, 1000}) {
    std::vector<float> row = test::bell(3, count);
    for (float& logit : row) logit *= 20;
    EXPECT_EQ(diverge(row, row).kld, 0) << count;
  }
}

TEST(Divergence, AgreesWithTheDefinitionFromTheSmallestToTheLargest) {
  for (const int64_t count : {3, 63, 64, 129, 5000}) {
    for (const float change : {1e-3F, 0.1F, 1.0F, 10.0F, 100.0F}) {
      std::vector<float> reference = test::bell(1, count);
      for (float& logit : reference) logit *= 8;
      std::vector<float> row = test::bell(2, count);
      for (size_t i = 0; i < row.size(); ++i) row[i] = reference[i] + change * row[i];
      const RowDivergence result = diverge(reference, row);
      const auto expected = static_cast<double>(kld_of(reference, row));
      // The weights are floats: their errors of 2^-24 change the mean of the differences.
      EXPECT_NEAR(result.kld, expected, 1e-6 * expected + 1e-15) << count << " " << change;
      EXPECT_NEAR(result.log_sum_exp, static_cast<double>(log_sum_exp(row)), 1e-6);
    }
  }
}

TEST(Divergence, CountsWhatTheReferenceHeldImpossible) {
  // e^-200 is no float: the weight of element 1 is 0, and yet the row puts all its mass there.
  const std::vector<float> reference = {0, -200, -1};
  const std::vector<float> row = {0, 100, -1};
  const RowDivergence result = diverge(reference, row);
  EXPECT_NEAR(result.kld, static_cast<double>(kld_of(reference, row)), 1e-5);
  EXPECT_NEAR(result.log_sum_exp, 100, 1e-6);
}

TEST(Divergence, IsTheSameWhenAllLogitsMove) {
  const std::vector<float> reference = {1, 2, 3, 4};
  const std::vector<float> row = {65, 66, 67, 68};
  EXPECT_NEAR(diverge(reference, row).kld, 0, 1e-13);
}

TEST(Divergence, IsInfiniteWhereALogitIsNotFinite) {
  std::vector<float> reference = test::bell(1, 100);
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
        -std::numeric_limits<float>::infinity()}) {
    for (const size_t place : {size_t{0}, size_t{70}, size_t{99}}) {
      std::vector<float> row = reference;
      row[place] = bad;
      EXPECT_EQ(diverge(reference, row).kld, std::numeric_limits<double>::infinity());
      EXPECT_EQ(diverge(row, reference).kld, std::numeric_limits<double>::infinity());
    }
  }
}

TEST(Divergence, NamesTheFirstOfEqualTops) {
  const std::vector<float> reference = {0, 5, 1, 5};
  std::vector<float> weights(4);
  EXPECT_EQ(make_reference(reference.data(), 4, weights.data()).top, 1);
  EXPECT_EQ(diverge(reference, {7, 0, 7, 1}).top, 0);
}

}  // namespace
}  // namespace kvik::internal
