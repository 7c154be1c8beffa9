#include "kvik/attention/softmax_state.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "support/random.h"

namespace kvik {
namespace {

SoftmaxState state_of(const std::vector<float>& scores) {
  SoftmaxState state;
  for (const float score : scores) state.merge({score, 1.0f});
  return state;
}

TEST(SoftmaxState, MergingPartsGivesTheLogSumExpOfTheWhole) {
  const std::vector<float> scores = test::bell(1, 1000);
  double expected = 0;
  for (const float score : scores) expected += std::exp(static_cast<double>(score));
  for (const int cut : {0, 1, 500, 999, 1000}) {
    SoftmaxState left = state_of({scores.begin(), scores.begin() + cut});
    const SoftmaxState right = state_of({scores.begin() + cut, scores.end()});
    left.merge(right);
    EXPECT_NEAR(left.log_sum_exp(), std::log(expected), 1e-5) << cut;
  }
}

TEST(SoftmaxState, OutputsJoinWithTheSameFactors) {
  // Two keys with values 2 and 10: the merged weights are those of a softmax over both scores.
  SoftmaxState a{1.0f, 1.0f};
  const SoftmaxState b{3.0f, 1.0f};
  SoftmaxState both = a;
  both.merge(b);
  const float out =
      (std::exp(a.max - both.max) * a.sum * 2.0f + std::exp(b.max - both.max) * b.sum * 10.0f) /
      both.sum;
  EXPECT_NEAR(out, (2.0 + 10.0 * std::exp(2.0)) / (1.0 + std::exp(2.0)), 1e-5);
}

TEST(SoftmaxState, EmptyIsNeutralAndTwoEmptyStatesAreEmpty) {
  SoftmaxState empty;
  empty.merge({});
  EXPECT_EQ(empty.sum, 0.0f);
  EXPECT_EQ(empty.log_sum_exp(), -std::numeric_limits<float>::infinity());
  SoftmaxState state{-60000.0f, 4.0f};
  state.merge({});
  EXPECT_EQ(state.max, -60000.0f);
  EXPECT_EQ(state.sum, 4.0f);
  empty.merge(state);
  EXPECT_EQ(empty.sum, 4.0f);
}

}  // namespace
}  // namespace kvik
