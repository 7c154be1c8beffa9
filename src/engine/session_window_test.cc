// Sessions that roll past their context.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "kvik/engine/session.h"
#include "support/tiny_gemma.h"
#include "support/tiny_model.h"

namespace kvik {
namespace {

using test::tiny_tokens;
using test::TinyModel;
using ::testing::HasSubstr;

constexpr int kContext = 40;

class SessionWindow : public ::testing::Test {
 protected:
  std::unique_ptr<Session> make(int block_size = 16, int batch = 16, int num_threads = 1,
                                KvCode code = KvCode::f32) {
    std::shared_ptr<ModelRunner> runner =
        ModelRunner::create(model_, {.num_threads = num_threads, .max_batch_tokens = batch})
            .value();
    const SessionOptions options = {.context = kContext,
                                    .overflow = Overflow::window,
                                    .kv_format = {code, code},
                                    .block_size = block_size};
    return Session::create(std::move(runner), options).value();
  }
  static std::vector<float> logits(const Session& session) {
    const std::span<const float> logits = session.next_logits();
    return {logits.begin(), logits.end()};
  }

  TinyModel tiny_;
  std::shared_ptr<const Model> model_ = tiny_.load().value();
};

TEST_F(SessionWindow, EachTokenSeesTheNewestTokensOfTheContext) {
  const std::vector<TokenId> tokens = tiny_tokens(1, 300);
  const std::vector<std::vector<double>> expected = tiny_.logits(tokens, kContext);
  const std::unique_ptr<Session> session = make();
  int fed = 0;
  for (const int end : {1, 30, 40, 41, 57, 58, 200, 300}) {
    ASSERT_TRUE(session
                    ->feed(std::span(tokens).subspan(static_cast<size_t>(fed),
                                                     static_cast<size_t>(end - fed)))
                    .ok());
    fed = end;
    const std::vector<float> got = logits(*session);
    const std::vector<double>& wanted = expected[static_cast<size_t>(end - 1)];
    for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(double{got[i]}, wanted[i], 1e-4) << end;
  }
  // The window is seen: without it the logits are others.
  const std::vector<double> all = tiny_.logits(tokens).back();
  double difference = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    difference = std::max(difference, std::abs(all[i] - expected.back()[i]));
  }
  EXPECT_GT(difference, 0.01);
}

TEST_F(SessionWindow, BitsAreTheSameForAnyBlockSizeBatchAndThreads) {
  const std::vector<TokenId> tokens = tiny_tokens(2, 700);  // more than a partition
  std::vector<float> first;
  for (const auto& [block_size, batch, num_threads] :
       {std::array{16, 16, 1}, {16, 1, 1}, {32, 7, 2}, {64, 512, 3}, {1024, 100, 1}}) {
    const std::unique_ptr<Session> session = make(block_size, batch, num_threads, KvCode::f16);
    ASSERT_TRUE(session->feed(tokens).ok());
    if (first.empty()) first = logits(*session);
    EXPECT_EQ(logits(*session), first) << block_size << " " << batch << " " << num_threads;
  }
}

TEST_F(SessionWindow, MemoryStopsGrowing) {
  const std::unique_ptr<Session> session = make();
  ASSERT_TRUE(session->feed(tiny_tokens(3, 400)).ok());
  const CacheStats before = session->cache_stats()[0];
  GenerateParams params;
  params.max_tokens = 2000;
  params.ignore_end_tokens = true;
  const Generated answer = session->generate(params).value();
  EXPECT_EQ(answer.reason, StopReason::max_tokens);
  const CacheStats after = session->cache_stats()[0];
  EXPECT_EQ(after.committed_bytes, before.committed_bytes);
  EXPECT_LE(after.used_blocks, (kContext + 64 + 16) / 16 + 2);
  EXPECT_EQ(session->num_cached(), 400 + 2000 - 1);
}

TEST_F(SessionWindow, GoingBackToRowsThatAreGoneIsRefusedAndRewindStartsAnew) {
  const std::vector<TokenId> tokens = tiny_tokens(4, 300);
  const std::unique_ptr<Session> session = make();
  ASSERT_TRUE(session->feed(tokens).ok());
  const std::vector<float> at_end = logits(*session);
  EXPECT_EQ(session->truncate(100).code(), StatusCode::unsupported);
  EXPECT_EQ(session->tokens().size(), 300U);
  EXPECT_EQ(logits(*session), at_end);

  // Within the rollback slack rows are still there.
  EXPECT_EQ(session->rewind_to(std::span(tokens).first(290)).value(), 289);
  ASSERT_TRUE(session->feed(std::span(tokens).subspan(289)).ok());
  EXPECT_EQ(logits(*session), at_end);

  const std::span<const TokenId> start = std::span(tokens).first(100);
  EXPECT_EQ(session->rewind_to(start).value(), 0);
  ASSERT_TRUE(session->feed(start).ok());
  const std::unique_ptr<Session> cold = make();
  ASSERT_TRUE(cold->feed(start).ok());
  EXPECT_EQ(logits(*session), logits(*cold));
}

TEST_F(SessionWindow, AnywhereThatItCanBeCutBackToItCanGoOn) {
  const std::vector<TokenId> tokens = tiny_tokens(5, 300);
  int refused = 0;
  for (int kept = 170; kept < 300; ++kept) {
    const std::unique_ptr<Session> session = make();
    ASSERT_TRUE(session->feed(tokens).ok());
    if (const Status status = session->truncate(kept); !status.ok()) {
      EXPECT_EQ(status.code(), StatusCode::unsupported);
      ++refused;
      continue;
    }
    const Status status = session->feed({});
    ASSERT_TRUE(status.ok()) << kept << ": " << status.to_string();
    const std::unique_ptr<Session> cold = make();
    ASSERT_TRUE(cold->feed(std::span(tokens).first(static_cast<size_t>(kept))).ok());
    EXPECT_EQ(logits(*session), logits(*cold)) << kept;
  }
  EXPECT_GT(refused, 0);
  EXPECT_LT(refused, 80);
}

TEST_F(SessionWindow, AContiguousCacheCannotRoll) {
  std::shared_ptr<ModelRunner> runner = ModelRunner::create(model_).value();
  const Status status =
      Session::create(runner, {.context = 64, .overflow = Overflow::window, .contiguous = true})
          .status();
  EXPECT_THAT(status.message(), HasSubstr("contiguous"));
}

// Prompts that end just before, at and behind the window of a model's layers.
TEST(WindowOf1024, PromptsAroundItGiveTheSameBitsInAnyChunks) {
  constexpr int kWindow = 1024;
  test::TinyShape shape;
  shape.num_layers = 6;
  shape.embedding_dim = 16;
  shape.ffn_dim = 16;
  shape.num_heads = 2;
  shape.num_kv_heads = 1;
  shape.head_dim = shape.rope_dim = 32;
  shape.context_length = 2048;
  TinyModel tiny = test::tiny_gemma(shape, kWindow);
  const std::shared_ptr<const Model> model = tiny.load().value();
  ASSERT_EQ(model->info().groups.size(), 2);
  const std::vector<TokenId> text = tiny_tokens(5, kWindow + 100);
  // Logits after `length` tokens and after 60 more, the first ones fed `piece` at once.
  const auto logits = [&](size_t length, size_t piece, int batch, KvCode code) {
    std::shared_ptr<ModelRunner> runner =
        ModelRunner::create(model, {.max_batch_tokens = batch}).value();
    const std::unique_ptr<Session> session =
        Session::create(std::move(runner), {.context = 2048, .kv_format = {code, code}}).value();
    for (size_t at = 0; at < length; at += piece) {
      EXPECT_TRUE(session->feed(std::span(text).subspan(at, std::min(piece, length - at))).ok());
    }
    std::vector<float> got(session->next_logits().begin(), session->next_logits().end());
    EXPECT_TRUE(session->feed(std::span(text).subspan(length, 60)).ok());
    got.insert(got.end(), session->next_logits().begin(), session->next_logits().end());
    return got;
  };
  for (const KvCode code : {KvCode::f16, KvCode::tq4}) {
    for (const size_t length : {kWindow - 1, kWindow, kWindow + 1}) {
      SCOPED_TRACE(std::to_string(length) + " tokens as " + std::string(kv_code_name(code)));
      const std::vector<float> one_by_one = logits(length, 1, 1, code);
      for (const float x : one_by_one) ASSERT_TRUE(std::isfinite(x));
      EXPECT_EQ(logits(length, length, 2048, code), one_by_one);
      EXPECT_EQ(logits(length, length, 512, code), one_by_one);
      EXPECT_EQ(logits(length, 1000, 333, code), one_by_one);
    }
  }
}

}  // namespace
}  // namespace kvik
