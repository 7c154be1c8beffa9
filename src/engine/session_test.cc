#include "kvik/engine/session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>

#include "kvik/engine/perplexity.h"
#include "kvik/model/stream_decoder.h"
#include "support/tiny_model.h"

namespace kvik {
namespace {

using test::tiny_tokens;
using test::TinyModel;
using ::testing::HasSubstr;

class SessionTest : public ::testing::Test {
 protected:
  std::unique_ptr<Session> make(const SessionOptions& options = {.context = 128}, int batch = 16) {
    std::shared_ptr<ModelRunner> runner =
        ModelRunner::create(model_, {.max_batch_tokens = batch}).value();
    return Session::create(std::move(runner), options).value();
  }
  static std::vector<float> logits(const Session& session) {
    const std::span<const float> logits = session.next_logits();
    return {logits.begin(), logits.end()};
  }
  // Logits after these tokens in a session of their own.
  std::vector<float> cold(const std::vector<TokenId>& tokens) {
    const std::unique_ptr<Session> session = make();
    EXPECT_TRUE(session->feed(tokens).ok());
    return logits(*session);
  }
  static GenerateParams greedy(int max_tokens) {
    GenerateParams params;
    params.max_tokens = max_tokens;
    params.ignore_end_tokens = true;
    return params;
  }

  TinyModel tiny_;
  std::shared_ptr<const Model> model_ = tiny_.load().value();
};

TEST_F(SessionTest, FeedInPartsGivesTheLogitsOfAllAtOnce) {
  const std::vector<TokenId> tokens = tiny_tokens(1, 50);
  const std::unique_ptr<Session> session = make();
  ASSERT_TRUE(session->feed(std::span(tokens).first(3)).ok());
  ASSERT_TRUE(session->feed({}).ok());
  ASSERT_TRUE(session->feed(std::span(tokens).subspan(3)).ok());
  EXPECT_EQ(logits(*session), cold(tokens));
  EXPECT_EQ(session->num_cached(), 50);
  EXPECT_EQ(session->timings().prompt_tokens, 50);
}

TEST_F(SessionTest, AnAnswerIsTheGreedyPathOfColdLogits) {
  std::vector<TokenId> tokens = tiny_tokens(2, 9);
  const std::unique_ptr<Session> session = make();
  ASSERT_TRUE(session->feed(tokens).ok());
  const Generated answer = session->generate(greedy(12)).value();
  EXPECT_EQ(answer.reason, StopReason::max_tokens);
  ASSERT_EQ(answer.ids.size(), 12U);
  for (const TokenId id : answer.ids) {
    const std::vector<float> expected = cold(tokens);
    EXPECT_EQ(id, std::max_element(expected.begin(), expected.end()) - expected.begin());
    tokens.push_back(id);
  }
  EXPECT_TRUE(
      std::equal(tokens.begin(), tokens.end(), session->tokens().begin(), session->tokens().end()));
}

TEST_F(SessionTest, ALaterTurnContinuesWhereTheAnswerEnded) {
  const std::unique_ptr<Session> session = make();
  ASSERT_TRUE(session->feed(tiny_tokens(3, 9)).ok());
  ASSERT_TRUE(session->generate(greedy(5)).ok());
  ASSERT_TRUE(session->feed(tiny_tokens(4, 6)).ok());
  EXPECT_EQ(logits(*session), cold({session->tokens().begin(), session->tokens().end()}));
}

TEST_F(SessionTest, RewindKeepsTheCommonPrefixAndNothingElse) {
  const std::unique_ptr<Session> session = make();
  const std::vector<TokenId> first = tiny_tokens(5, 40);
  ASSERT_TRUE(session->feed(first).ok());
  std::vector<TokenId> second(first.begin(), first.begin() + 21);
  second.insert(second.end(), {1, 2, 3});
  const int kept = session->rewind_to(second).value();
  EXPECT_EQ(kept, 21);
  ASSERT_TRUE(session->feed(std::span(second).subspan(21)).ok());
  EXPECT_EQ(logits(*session), cold(second));
  // The same prompt again: its last token is computed anew.
  EXPECT_EQ(session->rewind_to(second).value(), 23);
  ASSERT_TRUE(session->feed(std::span(second).subspan(23)).ok());
  EXPECT_EQ(logits(*session), cold(second));
  EXPECT_EQ(session->timings().reused_tokens, 44);
  EXPECT_EQ(session->rewind_to({}).value(), 0);
  EXPECT_TRUE(session->tokens().empty());
}

TEST_F(SessionTest, TruncateThenGenerateUsesTheLogitsOfTheTokensKept) {
  const std::vector<TokenId> tokens = tiny_tokens(6, 30);
  const std::unique_ptr<Session> session = make();
  ASSERT_TRUE(session->feed(tokens).ok());
  ASSERT_TRUE(session->truncate(20).ok());
  EXPECT_TRUE(session->next_logits().empty());
  ASSERT_TRUE(session->feed({}).ok());
  EXPECT_EQ(logits(*session), cold({tokens.begin(), tokens.begin() + 20}));
  EXPECT_EQ(session->truncate(21).code(), StatusCode::invalid_argument);
  EXPECT_EQ(session->truncate(-1).code(), StatusCode::invalid_argument);
}

TEST_F(SessionTest, AFullContextIsAReasonToStopAndAnErrorToFeed) {
  const std::unique_ptr<Session> session = make({.context = 20});
  ASSERT_TRUE(session->feed(tiny_tokens(7, 15)).ok());
  const Generated answer = session->generate(greedy(100)).value();
  EXPECT_EQ(answer.reason, StopReason::context_full);
  EXPECT_EQ(answer.ids.size(), 5U);
  EXPECT_EQ(session->tokens().size(), 20U);
  const Status full = session->feed(tiny_tokens(7, 1));
  EXPECT_EQ(full.code(), StatusCode::invalid_argument);
  EXPECT_THAT(full.message(), ::testing::AllOf(HasSubstr("21"), HasSubstr("20")));
  EXPECT_EQ(session->tokens().size(), 20U);
  // What was refused leaves the session usable.
  EXPECT_EQ(session->generate(greedy(100)).value().ids.size(), 0U);
  ASSERT_TRUE(session->truncate(10).ok());
  EXPECT_EQ(session->generate(greedy(100)).value().ids.size(), 10U);
}

TEST_F(SessionTest, AnEmptyPromptIsAnError) {
  const std::unique_ptr<Session> session = make();
  ASSERT_TRUE(session->feed({}).ok());
  EXPECT_THAT(session->generate(greedy(1)).status().message(), HasSubstr("empty"));
}

TEST_F(SessionTest, StopStringsAndTheCallbackSeeTheSameText) {
  const std::unique_ptr<Session> session = make();
  ASSERT_TRUE(session->feed(tiny_tokens(8, 12)).ok());
  const std::string all = session->generate(greedy(60)).value().text;
  ASSERT_GT(all.size(), 24U);
  for (size_t begin = 4; begin + 6 < all.size(); begin += 5) {
    GenerateParams params = greedy(60);
    params.stop = {all.substr(begin, 6)};
    if (all.find(params.stop[0]) != begin || to_valid_utf8(params.stop[0]) != params.stop[0]) {
      continue;
    }
    ASSERT_TRUE(session->truncate(12).ok());
    std::string streamed;
    const Generated answer = session
                                 ->generate(params,
                                            [&](std::string_view text) {
                                              streamed += text;
                                              return true;
                                            })
                                 .value();
    EXPECT_EQ(answer.reason, StopReason::stop_string);
    EXPECT_EQ(answer.text, all.substr(0, begin));
    EXPECT_EQ(streamed, answer.text);
  }
}

TEST_F(SessionTest, AnEndTokenStopsUnlessIgnored) {
  // A model whose every answer is the end token: its row of the output matrix wins.
  TinyModel tiny(test::TinyShape{.is_tied = false});
  testing::TensorSpec& norm = tiny.tensors()["output_norm.weight"];
  testing::TensorSpec& output = tiny.tensors()["output.weight"];
  std::fill(norm.data.begin(), norm.data.end(), std::byte{0});
  const float one = 1;
  std::memcpy(norm.data.data(), &one, 4);
  std::fill(output.data.begin(), output.data.end(), std::byte{0});
  for (const float sign : {1.0f, -1.0f}) {
    std::memcpy(output.data.data() + 257 * 32 * 4, &sign, 4);
    const std::shared_ptr<const Model> model = tiny.load().value();
    const auto session =
        Session::create(std::shared_ptr<ModelRunner>(ModelRunner::create(model).value()),
                        {.context = 64})
            .value();
    ASSERT_TRUE(session->feed(tiny_tokens(1, 3)).ok());
    if (session->next_logits()[257] <= 0) continue;
    GenerateParams params;
    params.max_tokens = 4;
    const Generated answer = session->generate(params).value();
    EXPECT_EQ(answer.reason, StopReason::end_token);
    EXPECT_EQ(answer.ids, std::vector<TokenId>{257});
    EXPECT_EQ(answer.text, "");
    ASSERT_TRUE(session->truncate(3).ok());
    params.ignore_end_tokens = true;
    EXPECT_EQ(session->generate(params).value().reason, StopReason::max_tokens);
    return;
  }
  FAIL() << "neither sign made the end token win";
}

TEST_F(SessionTest, CancellingLeavesASessionThatCanGoOn) {
  const std::vector<TokenId> tokens = tiny_tokens(9, 40);
  const std::unique_ptr<Session> session = make();
  std::atomic<bool> cancel{true};
  session->set_cancel_flag(&cancel);
  EXPECT_EQ(session->feed(tokens).code(), StatusCode::cancelled);
  cancel = false;
  ASSERT_TRUE(session->feed({}).ok());
  EXPECT_EQ(logits(*session), cold(tokens));
  int pieces = 0;
  const Generated answer =
      session->generate(greedy(50), [&](std::string_view) { return ++pieces < 3; }).value();
  EXPECT_EQ(answer.reason, StopReason::cancelled);
  EXPECT_EQ(pieces, 3);
}

TEST_F(SessionTest, ARequestAfterFailedOnesGivesTheLogitsOfAColdSession) {
  const std::vector<TokenId> tokens = tiny_tokens(21, 60);
  for (const KvFormat format : {KvFormat{}, KvFormat{KvCode::q8, KvCode::q4}}) {
    const auto fresh = [&] {
      return make({.context = 128,
                   .kv_format = format,
                   .kv_protection = {.exact_first = is_packed(format.k) ? 4 : 0,
                                     .exact_recent = is_packed(format.k) ? 20 : 0}});
    };
    const std::unique_ptr<Session> session = fresh();
    ASSERT_TRUE(session->feed(std::span(tokens).first(20)).ok());
    const std::vector<float> before = logits(*session);
    EXPECT_FALSE(session->feed(tiny_tokens(22, 200)).ok());  // more than the context
    const std::vector<TokenId> unknown = {tokens[0], model_->info().vocab_size};
    EXPECT_FALSE(session->feed(unknown).ok());
    EXPECT_FALSE(session->generate({.max_tokens = -1}).ok());
    EXPECT_FALSE(session->truncate(21).ok());
    EXPECT_EQ(logits(*session), before);
    std::atomic<bool> cancel{true};
    session->set_cancel_flag(&cancel);
    EXPECT_EQ(session->feed(std::span(tokens).subspan(20, 30)).code(), StatusCode::cancelled);
    session->set_cancel_flag(nullptr);
    ASSERT_TRUE(session->truncate(20).ok());
    ASSERT_TRUE(session->feed(std::span(tokens).subspan(20)).ok());
    const std::unique_ptr<Session> cold = fresh();
    ASSERT_TRUE(cold->feed(tokens).ok());
    EXPECT_EQ(logits(*session), logits(*cold));
    EXPECT_EQ(session->cache_stats()[0].used_blocks, cold->cache_stats()[0].used_blocks);
  }
}

// A small model guesses, a larger one keeps the first of the guesses, and both go back.
TEST_F(SessionTest, ADraftAndItsTargetThatGoBackToTheSameLengthStayInStep) {
  TinyModel small({.num_layers = 1}, 5);
  const std::shared_ptr<const Model> draft_model = small.load().value();
  const auto make_draft = [&] {
    return Session::create(ModelRunner::create(draft_model).value(), {.context = 64}).value();
  };
  const std::unique_ptr<Session> target = make({.context = 128});
  const std::unique_ptr<Session> draft = make_draft();
  const std::vector<TokenId> prompt = tiny_tokens(23, 30);
  ASSERT_TRUE(target->feed(prompt).ok());
  ASSERT_TRUE(draft->feed(prompt).ok());
  bool was_full = false;
  for (int round = 0; round < 40 && !was_full; ++round) {
    const int kept = static_cast<int>(target->tokens().size());
    ASSERT_EQ(static_cast<int>(draft->tokens().size()), kept);
    const Generated guesses = draft->generate(greedy(5)).value();
    was_full |= guesses.reason == StopReason::context_full;
    ASSERT_TRUE(target->feed(guesses.ids).ok());
    const int accepted = std::min(round % 6, static_cast<int>(guesses.ids.size()));
    ASSERT_TRUE(target->truncate(kept + accepted).ok());
    ASSERT_TRUE(draft->truncate(kept + accepted).ok());
    ASSERT_TRUE(std::ranges::equal(target->tokens(), draft->tokens()));
  }
  EXPECT_TRUE(was_full);  // the draft's cache is the smaller one
  const int length = static_cast<int>(target->tokens().size()) - 1;
  const TokenId last = target->tokens().back();
  for (Session* session : {target.get(), draft.get()}) {
    ASSERT_TRUE(session->truncate(length).ok());
    ASSERT_TRUE(session->feed({&last, 1}).ok());
  }
  const std::vector<TokenId> all(target->tokens().begin(), target->tokens().end());
  EXPECT_EQ(logits(*target), cold(all));
  const std::unique_ptr<Session> cold_draft = make_draft();
  ASSERT_TRUE(cold_draft->feed(all).ok());
  EXPECT_EQ(logits(*draft), logits(*cold_draft));
}

TEST_F(SessionTest, ScoresAreTheLogProbabilitiesOfColdLogits) {
  const std::vector<TokenId> tokens = tiny_tokens(10, 40);
  const std::unique_ptr<Session> session = make();  // batches of 16
  ASSERT_TRUE(session->feed(tiny_tokens(11, 5)).ok());
  const std::vector<double> scores = session->score(tokens).value();
  ASSERT_EQ(scores.size(), 39U);
  for (const size_t i : {size_t{0}, size_t{14}, size_t{15}, size_t{16}, size_t{38}}) {
    const std::vector<float> expected =
        cold({tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>(i) + 1});
    double sum = 0;
    for (const float logit : expected) sum += std::exp(double{logit});
    EXPECT_NEAR(scores[i], double{expected[static_cast<size_t>(tokens[i + 1])]} - std::log(sum),
                1e-9);
  }
  EXPECT_TRUE(session->score({}).value().empty());
}

TEST_F(SessionTest, PerplexityIsTheMeanOverChunksFromEmptyCaches) {
  const std::vector<TokenId> tokens = tiny_tokens(12, 70);
  const std::unique_ptr<Session> session = make();
  const Perplexity result = perplexity(*session, tokens, {.context = 32}).value();
  ASSERT_EQ(result.chunks.size(), 2U);
  double second_halves = 0;
  double squares = 0;
  double wholes = 0;
  for (size_t chunk = 0; chunk < 2; ++chunk) {
    const std::vector<double> scores =
        session->score(std::span(tokens).subspan(chunk * 32, 32)).value();
    for (size_t i = 0; i < 31; ++i) {
      wholes -= scores[i];
      if (i >= 16) second_halves -= scores[i];
      if (i >= 16) squares += scores[i] * scores[i];
    }
  }
  EXPECT_NEAR(result.ppl, std::exp(second_halves / 30), 1e-9 * result.ppl);
  const double variance = squares / 30 - std::pow(second_halves / 30, 2);
  EXPECT_NEAR(result.ppl_error, result.ppl * std::sqrt(variance / 29), 1e-9 * result.ppl);
  EXPECT_NEAR(result.ppl_whole, std::exp(wholes / 62), 1e-9 * result.ppl_whole);
  EXPECT_FALSE(perplexity(*session, tokens, {.context = 71}).ok());
  EXPECT_FALSE(perplexity(*session, tokens, {.context = 129}).ok());
  EXPECT_EQ(perplexity(*session, tokens, {.context = 32, .max_chunks = 1})->chunks.size(), 1U);
}

TEST_F(SessionTest, OptionsOutOfRangeAreNamed) {
  const std::shared_ptr<ModelRunner> runner = ModelRunner::create(model_).value();
  EXPECT_THAT(Session::create(runner, {.context = 0}).status().message(), HasSubstr("context"));
  EXPECT_FALSE(Session::create(nullptr).ok());
  EXPECT_EQ(Session::create(runner).value()->context(), 256);
  const std::unique_ptr<Session> session = make();
  ASSERT_TRUE(session->feed(tiny_tokens(1, 2)).ok());
  GenerateParams params = greedy(1);
  params.stop = {""};
  EXPECT_THAT(session->generate(params).status().message(), HasSubstr("stop"));
  params = greedy(-1);
  EXPECT_THAT(session->generate(params).status().message(), HasSubstr("max_tokens"));
}

}  // namespace
}  // namespace kvik
