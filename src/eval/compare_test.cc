#include "kvik/eval/compare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "support/eval_case.h"

namespace kvik {
namespace {

using test::candidates;
using test::expect_same;
using test::kContext;
using test::make_runner;
using test::tiny_tokens;
using ::testing::HasSubstr;

// Log probabilities after each token of one chunk, in double from the runner's logits, as a plain
// loop finds them.
std::vector<std::vector<double>> log_probabilities(const Candidate& candidate,
                                                   std::span<const TokenId> chunk) {
  const auto runner = make_runner();
  ModelCacheOptions options = candidate.cache;
  options.max_tokens = kContext;
  CacheSet caches = runner->make_caches(options).value();
  Sequence sequence = caches.new_sequence();
  runner->set_row_hook(candidate.hook);
  std::vector<std::vector<double>> all;
  for (size_t i = 0; i < chunk.size(); ++i) {
    const SequenceTokens step{&sequence, chunk.subspan(i, 1)};
    EXPECT_TRUE(runner->forward(caches, {&step, 1}).ok());
    std::vector<float> logits(static_cast<size_t>(runner->model().info().vocab_size));
    runner->logits(0, 1, logits);
    double sum = 0;
    for (const float logit : logits) sum += std::exp(double{logit});
    std::vector<double> row;
    for (const float logit : logits) row.push_back(double{logit} - std::log(sum));
    all.push_back(std::move(row));
  }
  return all;
}

TEST(Compare, AnF32CacheDoesNotDivergeFromItself) {
  const auto runner = make_runner();
  const Comparison got =
      compare_formats(*runner, tiny_tokens(1, 150), candidates({"f32"}), {.context = kContext})
          .value();
  EXPECT_EQ(got.num_chunks, 3);
  EXPECT_EQ(got.first_scored, kContext / 2);
  EXPECT_EQ(got.num_positions, 3 * (kContext / 2 - 1));
  const CandidateResult& same = got.candidates.at(0);
  EXPECT_EQ(same.mean_kld, 0);
  EXPECT_EQ(same.kld_max, 0);
  EXPECT_EQ(same.kld_error, 0);
  EXPECT_EQ(same.same_top, 1);
  EXPECT_EQ(same.rms_dp, 0);
  EXPECT_EQ(same.ppl, got.reference.ppl);
  EXPECT_EQ(same.ratio, 2);
  EXPECT_GT(same.tokens_per_second, 0);
}

TEST(Compare, AgreesWithAPlainLoopOverAllPositions) {
  const std::vector<TokenId> tokens = tiny_tokens(2, 2 * kContext);
  const auto runner = make_runner();
  const auto all = candidates({"q4", "ggml-q4_0", "f16:ggml-q8_0"});
  const Comparison got =
      compare_formats(*runner, tokens, all, {.context = kContext, .first_scored = 5}).value();
  const Candidate reference = candidates({"f32"}).front();
  for (size_t c = 0; c < all.size(); ++c) {
    double kld = 0, most = 0, nll = 0, squares = 0;
    int same = 0, count = 0;
    for (const size_t begin : {0, kContext}) {
      const auto chunk = std::span(tokens).subspan(begin, kContext);
      const auto expected = log_probabilities(reference, chunk);
      const auto rows = log_probabilities(all[c], chunk);
      for (size_t i = 5; i + 1 < chunk.size(); ++i) {
        double at = 0;
        for (size_t t = 0; t < rows[i].size(); ++t) {
          at += std::exp(expected[i][t]) * (expected[i][t] - rows[i][t]);
        }
        kld += at;
        most = std::max(most, at);
        const auto target = static_cast<size_t>(chunk[i + 1]);
        nll -= rows[i][target];
        squares += std::pow(std::exp(rows[i][target]) - std::exp(expected[i][target]), 2);
        const auto top = [](const std::vector<double>& x) {
          return std::max_element(x.begin(), x.end()) - x.begin();
        };
        same += top(rows[i]) == top(expected[i]) ? 1 : 0;
        ++count;
      }
    }
    const CandidateResult& result = got.candidates[c];
    EXPECT_EQ(got.num_positions, count);
    EXPECT_GT(result.mean_kld, 0);
    EXPECT_NEAR(result.mean_kld, kld / count, 1e-5 * kld / count) << result.name;
    EXPECT_NEAR(result.kld_max, most, 1e-5 * most) << result.name;
    EXPECT_NEAR(result.ppl, std::exp(nll / count), 1e-6 * result.ppl) << result.name;
    EXPECT_NEAR(result.rms_dp, std::sqrt(squares / count), 1e-5 * result.rms_dp) << result.name;
    EXPECT_DOUBLE_EQ(result.same_top, static_cast<double>(same) / count) << result.name;
  }
}

TEST(Compare, ACandidateIsTheSameAloneAndInCompany) {
  const std::vector<TokenId> tokens = tiny_tokens(4, kContext);
  const auto runner = make_runner();
  const Comparison together =
      compare_formats(*runner, tokens, candidates({"ggml-q4_0", "tq4"}), {.context = kContext})
          .value();
  const Comparison alone =
      compare_formats(*runner, tokens, candidates({"tq4"}), {.context = kContext}).value();
  expect_same(alone.candidates[0], together.candidates[1]);
}

TEST(Compare, LeavesNoHookBehind) {
  const std::vector<TokenId> tokens = tiny_tokens(4, kContext);
  const auto runner = make_runner();
  const auto rounded = candidates({"ggml-q4_0"});
  const Comparison first = compare_formats(*runner, tokens, rounded, {.context = kContext}).value();
  const Comparison plain =
      compare_formats(*runner, tokens, candidates({"f32"}), {.context = kContext}).value();
  EXPECT_EQ(plain.candidates[0].kld_max, 0);
  EXPECT_EQ(plain.reference.ppl, first.reference.ppl);
  EXPECT_GT(first.candidates[0].kld_max, 0);
}

TEST(Compare, PositionsMayCountFromFarAway) {
  const std::vector<TokenId> tokens = tiny_tokens(4, kContext);
  const auto runner = make_runner();
  const auto all = candidates({"f32", "tq8"});
  const Comparison near = compare_formats(*runner, tokens, all, {.context = kContext}).value();
  const Comparison far =
      compare_formats(*runner, tokens, all, {.context = kContext, .first_position = 16384}).value();
  EXPECT_EQ(far.first_position, 16384);
  EXPECT_EQ(far.candidates[0].mean_kld, 0);
  // RoPE is relative: the same predictions, but for rounding.
  EXPECT_NE(far.reference.ppl, near.reference.ppl);
  EXPECT_NEAR(far.reference.ppl, near.reference.ppl, 1e-4 * near.reference.ppl);
  // Nothing stays behind.
  const Comparison again = compare_formats(*runner, tokens, all, {.context = kContext}).value();
  expect_same(again.reference, near.reference);
  expect_same(again.candidates[1], near.candidates[1]);
}

TEST(Compare, BucketsCoverTheScoredPositionsOnce) {
  const auto runner = make_runner();
  const Comparison got =
      compare_formats(*runner, tiny_tokens(5, kContext), candidates({"q4"}),
                      {.context = kContext, .first_scored = 10, .num_buckets = 5})
          .value();
  const CandidateResult& result = got.candidates[0];
  ASSERT_EQ(result.by_position.size(), 5);
  int position = 10;
  double sum = 0;
  for (const PositionDivergence& part : result.by_position) {
    EXPECT_EQ(part.begin, position);
    EXPECT_GT(part.end, part.begin);
    sum += part.mean_kld * (part.end - part.begin);
    position = part.end;
  }
  EXPECT_EQ(position, kContext - 1);
  EXPECT_NEAR(sum / static_cast<double>(got.num_positions), result.mean_kld, 1e-12);
}

TEST(Compare, FewerPositionsThanBucketsGiveOneEach) {
  const auto runner = make_runner();
  const Comparison got = compare_formats(*runner, tiny_tokens(5, 6), candidates({"q4"}),
                                         {.context = 6, .num_buckets = 32})
                             .value();
  EXPECT_EQ(got.num_positions, 2);
  EXPECT_EQ(got.candidates[0].by_position.size(), 2);
}

TEST(Compare, ReportsProgressToItsEndAndStopsWhenTold) {
  const std::vector<TokenId> tokens = tiny_tokens(6, 2 * kContext);
  const auto runner = make_runner();
  CompareParams params = {.context = kContext};
  CompareProgress last;
  params.on_progress = [&](const CompareProgress& progress) {
    EXPECT_GT(progress.done, last.done);
    last = progress;
    return true;
  };
  ASSERT_TRUE(compare_formats(*runner, tokens, candidates({"q8"}), params).ok());
  EXPECT_EQ(last.done, last.total);
  EXPECT_EQ(last.total, 2 * 2 * (kContext - 1));
  EXPECT_EQ(last.chunk, 1);
  int calls = 0;
  params.on_progress = [&](const CompareProgress&) { return ++calls < 3; };
  EXPECT_EQ(compare_formats(*runner, tokens, candidates({"q8"}), params).status().code(),
            StatusCode::cancelled);
  EXPECT_EQ(calls, 3);
}

TEST(Compare, RefusesWhatItCannotScore) {
  const auto runner = make_runner();
  const auto all = candidates({"f16"});
  const std::vector<TokenId> tokens = tiny_tokens(7, 100);
  const auto message = [&](const CompareParams& params, std::span<const Candidate> which) {
    const Result<Comparison> result = compare_formats(*runner, tokens, which, params);
    return result.ok() ? std::string() : result.status().message();
  };
  EXPECT_THAT(message({.context = 101}, all), HasSubstr("has 100 tokens; one chunk needs 101"));
  EXPECT_THAT(message({.context = 3}, all), HasSubstr("at least 4"));
  EXPECT_THAT(message({.context = 48, .first_scored = 47}, all), HasSubstr("0 to 46"));
  EXPECT_THAT(message({.context = 48, .max_rows = 0}, all), HasSubstr("max_rows"));
  EXPECT_THAT(message({.context = 48, .max_chunks = 0}, all), HasSubstr("max_chunks"));
  EXPECT_THAT(message({.context = 48, .first_position = 128}, all), HasSubstr("multiple of 512"));
  EXPECT_THAT(message({.context = 48}, {}), HasSubstr("no format"));
}

TEST(Compare, NamesTheCandidateThatFails) {
  const auto runner = make_runner();
  auto all = candidates({"f16", "q8"});
  all[1].cache.block_size = 17;
  const Result<Comparison> result =
      compare_formats(*runner, tiny_tokens(7, 100), all, {.context = kContext});
  ASSERT_FALSE(result.ok());
  EXPECT_THAT(result.status().message(), HasSubstr("q8: "));
  // A row that a packed format refuses.
  all = candidates({"q8"});
  all[0].hook = [](const LayerRows& rows) { reinterpret_cast<float*>(rows.k.data)[0] = INFINITY; };
  const Result<Comparison> refused =
      compare_formats(*runner, tiny_tokens(7, 100), all, {.context = kContext});
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.status().message(), HasSubstr("q8: "));
}

}  // namespace
}  // namespace kvik
