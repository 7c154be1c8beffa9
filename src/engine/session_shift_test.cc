// Sessions that forget a run of old tokens where the context is full.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kvik/engine/key_calibration.h"
#include "kvik/engine/session.h"
#include "support/tiny_gemma.h"
#include "support/tiny_model.h"

namespace kvik {
namespace {

using test::tiny_tokens;
using test::TinyModel;
using test::TinyShape;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kContext = 600;

// Heads long enough for the formats whose keys lie in frames.
TinyShape shape(int num_layers) {
  TinyShape shape;
  shape.num_layers = num_layers;
  shape.head_dim = shape.rope_dim = 32;
  shape.context_length = 1024;
  return shape;
}

// How a session is made.
struct How {
  int keep = 100;
  int batch = 64;
  KvFormat format = {KvCode::tq8, KvCode::tq8};
  int block_size = 16;
  int num_threads = 1;
  int exact_first = 0;
  int context = kContext;
  Overflow overflow = Overflow::shift;
  bool contiguous = false;
};

class SessionShift : public ::testing::Test {
 protected:
  SessionShift() : SessionShift(2) {}
  explicit SessionShift(int num_layers) : SessionShift(TinyModel(shape(num_layers))) {}
  explicit SessionShift(TinyModel tiny) : tiny_(std::move(tiny)) {
    model_ = tiny_.load().value();
    const std::unique_ptr<ModelRunner> runner = ModelRunner::create(model_).value();
    const std::vector<std::vector<TokenId>> texts = {tiny_tokens(90, 300)};
    calibration_ = std::make_shared<const KeyCalibration>(calibrate_keys(*runner, texts).value());
  }

  Result<std::unique_ptr<Session>> try_make(const How& how) {
    std::shared_ptr<ModelRunner> runner =
        ModelRunner::create(model_, {.num_threads = how.num_threads, .max_batch_tokens = how.batch})
            .value();
    return Session::create(std::move(runner), {.context = how.context,
                                               .overflow = how.overflow,
                                               .keep = how.keep,
                                               .kv_format = how.format,
                                               .kv_protection = {.exact_first = how.exact_first},
                                               .key_calibration = calibration_,
                                               .block_size = how.block_size,
                                               .contiguous = how.contiguous});
  }
  std::unique_ptr<Session> make(const How& how = {}) { return try_make(how).value(); }
  // Fed in pieces of `piece` tokens.
  std::unique_ptr<Session> fed(std::span<const TokenId> tokens, const How& how = {},
                               size_t piece = 1000000) {
    std::unique_ptr<Session> session = make(how);
    for (size_t at = 0; at < tokens.size(); at += piece) {
      EXPECT_TRUE(session->feed(tokens.subspan(at, std::min(piece, tokens.size() - at))).ok());
    }
    return session;
  }
  static std::vector<float> logits(const Session& session) {
    return {session.next_logits().begin(), session.next_logits().end()};
  }
  static std::vector<TokenId> tokens_of(const Session& session) {
    return {session.tokens().begin(), session.tokens().end()};
  }

  TinyModel tiny_;
  std::shared_ptr<const Model> model_;
  std::shared_ptr<const KeyCalibration> calibration_;
};

TEST_F(SessionShift, DropsWholeRunsAfterTheKeptTokens) {
  const std::vector<TokenId> tokens = tiny_tokens(1, 1500);
  const std::unique_ptr<Session> session = make();
  EXPECT_EQ(session->kept(), 128);
  std::vector<TokenId> expected;
  for (const size_t end : {600, 601, 944, 945, 1500}) {
    const size_t fed = expected.size() + static_cast<size_t>(session->timings().dropped_tokens);
    const std::span<const TokenId> piece = std::span(tokens).subspan(fed, end - fed);
    ASSERT_TRUE(session->feed(piece).ok());
    for (const TokenId token : piece) {
      if (expected.size() == kContext) {  // 472 are not kept; 256 is at least half of them
        expected.erase(expected.begin() + 128, expected.begin() + 128 + 256);
      }
      expected.push_back(token);
    }
    EXPECT_EQ(tokens_of(*session), expected) << end;
    EXPECT_EQ(session->num_cached(), static_cast<int>(expected.size()));
    EXPECT_EQ(session->timings().prompt_tokens, static_cast<int64_t>(end));
  }
  EXPECT_EQ(session->timings().shifts, 4);
  EXPECT_EQ(session->timings().dropped_tokens, 4 * 256);
  // Each token's rows were written once, and none was copied.
  const CacheStats stats = session->cache_stats()[0];
  EXPECT_EQ(stats.encoded_rows, 1500 * 2 * 2);
  EXPECT_EQ(stats.copied_rows, 0);
  EXPECT_LE(stats.used_blocks, (kContext + 15) / 16);
}

TEST_F(SessionShift, BitsAreTheSameHoweverTheTokensCome) {
  const std::vector<TokenId> tokens = tiny_tokens(2, 1300);
  const std::unique_ptr<Session> first = fed(tokens);
  for (const auto& [how, piece] : {std::pair<How, size_t>{{}, 1},
                                   {{.batch = 1}, 1300},
                                   {{.batch = 300, .num_threads = 3}, 599},
                                   {{.batch = 512, .block_size = 64}, 601}}) {
    const std::unique_ptr<Session> session = fed(tokens, how, piece);
    EXPECT_EQ(tokens_of(*session), tokens_of(*first));
    EXPECT_EQ(logits(*session), logits(*first)) << how.batch << " " << piece;
  }
}

TEST_F(SessionShift, WritesOnAsIfItsTokensHadBeenFed) {
  const std::vector<TokenId> prompt = tiny_tokens(3, 400);
  const std::unique_ptr<Session> session = fed(prompt);
  GenerateParams params;
  params.max_tokens = 700;
  params.ignore_end_tokens = true;
  const Generated answer = session->generate(params).value();
  EXPECT_EQ(answer.reason, StopReason::max_tokens);
  EXPECT_EQ(answer.ids.size(), 700U);
  EXPECT_EQ(session->timings().shifts, 2);
  ASSERT_TRUE(session->feed({}).ok());

  std::vector<TokenId> all = prompt;
  all.insert(all.end(), answer.ids.begin(), answer.ids.end());
  const std::unique_ptr<Session> straight = fed(all);
  EXPECT_EQ(tokens_of(*session), tokens_of(*straight));
  EXPECT_EQ(logits(*session), logits(*straight));
}

TEST_F(SessionShift, ScoresInAnyBatch) {
  const std::vector<TokenId> tokens = tiny_tokens(4, 1300);
  const std::vector<double> scores = make()->score(tokens).value();
  ASSERT_EQ(scores.size(), 1299U);
  const std::unique_ptr<Session> session = make({.batch = 7});
  EXPECT_EQ(session->score(tokens).value(), scores);
  EXPECT_EQ(tokens_of(*session), tokens_of(*fed(tokens)));
  // Up to the first shift as without one.
  const std::vector<TokenId> start(tokens.begin(), tokens.begin() + kContext);
  const std::vector<double> plain =
      make({.keep = 0, .overflow = Overflow::stop})->score(start).value();
  EXPECT_TRUE(std::equal(plain.begin(), plain.end(), scores.begin()));
}

TEST_F(SessionShift, FindsATextAgainThatGoesOnWhereItIs) {
  std::vector<TokenId> text = tiny_tokens(5, 1000);
  const std::unique_ptr<Session> session = fed(text);
  EXPECT_EQ(session->timings().shifts, 2);  // at 600 and at 856
  const auto check = [&](int found) {
    EXPECT_EQ(session->rewind_to(text).value(), found);
    ASSERT_TRUE(session->feed(std::span(text).subspan(static_cast<size_t>(found))).ok());
    const std::unique_ptr<Session> cold = fed(text);
    EXPECT_EQ(tokens_of(*session), tokens_of(*cold));
    EXPECT_EQ(logits(*session), logits(*cold));
  };
  const std::vector<TokenId> more = tiny_tokens(6, 400);
  text.insert(text.end(), more.begin(), more.begin() + 50);
  check(1000);
  text.insert(text.end(), more.begin(), more.end());  // shifts twice more
  check(1050);
  text.back() = text.back() == 5 ? 6 : 5;
  check(1449);
  text.resize(1380);
  check(1379);
  // Before the last shift the moved rows are not what this text makes.
  text.resize(1300);
  check(128);
  text.resize(400);
  check(128);
  text[50] = text[50] == 5 ? 6 : 5;
  check(50);
}

TEST_F(SessionShift, TruncatesWhatIsLeftAndGoesOn) {
  const std::vector<TokenId> text = tiny_tokens(7, 700);
  const std::unique_ptr<Session> session = fed(text);
  ASSERT_EQ(session->num_cached(), 444);
  std::vector<TokenId> left = tokens_of(*session);
  ASSERT_TRUE(session->truncate(200).ok());
  left.resize(200);
  EXPECT_EQ(tokens_of(*session), left);
  ASSERT_TRUE(session->feed(std::span(text).first(10)).ok());
  EXPECT_EQ(session->num_cached(), 210);
  // The rows know of more than any text that starts like this one, so only the kept ones count.
  std::vector<TokenId> history(text.begin(), text.begin() + 456);
  history.insert(history.end(), text.begin(), text.begin() + 11);
  EXPECT_EQ(session->rewind_to(history).value(), 128);
  ASSERT_TRUE(session->feed(std::span(history).subspan(128)).ok());
  EXPECT_EQ(logits(*session), logits(*fed(history)));
}

TEST_F(SessionShift, KeepsExactFirstRows) {
  const std::unique_ptr<Session> session = fed(tiny_tokens(8, 900), {.keep = 0, .exact_first = 4});
  EXPECT_EQ(session->kept(), 128);
  EXPECT_GT(session->timings().shifts, 0);
  EXPECT_EQ(make({.keep = 0})->kept(), 0);
}

TEST_F(SessionShift, RefusesWhatCannotMove) {
  const auto refusal = [&](const How& how) { return try_make(how).status().to_string(); };
  EXPECT_THAT(refusal({.format = {KvCode::f16, KvCode::f16}}),
              AllOf(HasSubstr("unsupported: shift"), HasSubstr("keys as f16")));
  EXPECT_THAT(refusal({.contiguous = true}), HasSubstr("contiguous"));
  EXPECT_THAT(refusal({.keep = -1}), HasSubstr("keep is -1"));
  EXPECT_THAT(refusal({.keep = 1, .overflow = Overflow::stop}), HasSubstr("keep is 1"));
  EXPECT_THAT(refusal({.keep = 129, .context = 383}),
              AllOf(HasSubstr("383"), HasSubstr("the least is 384")));
  EXPECT_THAT(refusal({.keep = 2147483647}), HasSubstr("too short"));
  calibration_ = nullptr;
  EXPECT_THAT(refusal({}), HasSubstr("tq8 without a key calibration"));
}

TEST_F(SessionShift, GoesOnInTheLeastContext) {
  const std::vector<TokenId> text = tiny_tokens(9, 700);
  const std::unique_ptr<Session> session = fed(text, {.keep = 1, .context = 256});
  EXPECT_EQ(session->timings().shifts, 4);  // at 256 and after each 128 more
  EXPECT_EQ(session->num_cached(), 700 - 4 * 128);
}

// The rows of a model of one layer depend on their own token alone, so a session that shifted
// holds what its tokens make of an empty one.
class SessionShiftOfOneLayer : public SessionShift {
 protected:
  SessionShiftOfOneLayer() : SessionShift(1) {}
};

TEST_F(SessionShiftOfOneLayer, AttendsToTheMovedKeysAtTheirNewPositions) {
  const std::vector<TokenId> text = tiny_tokens(10, 1000);
  const std::unique_ptr<Session> session = fed(text);
  ASSERT_EQ(session->timings().shifts, 2);
  const std::vector<float> got = logits(*session);
  const std::vector<float> expected = logits(*fed(tokens_of(*session)));
  const std::vector<float> whole =
      logits(*fed(text, {.keep = 0, .context = 1024, .overflow = Overflow::stop}));
  double error = 0, change = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    error = std::max(error, std::abs(double{got[i]} - expected[i]));
    change = std::max(change, std::abs(double{whole[i]} - expected[i]));
  }
  RecordProperty("error", std::to_string(error));
  // The same codes but for what RoPE rounds the other way.
  EXPECT_LT(error, 0.05 * change) << change;
}

// Layers that see a window: all of them, in a model of one.
class SessionShiftOfAWindowLayer : public SessionShift {
 protected:
  SessionShiftOfAWindowLayer() : SessionShift(test::tiny_gemma(shape(1), 100)) {}
};

TEST_F(SessionShiftOfAWindowLayer, AttendsToTheMovedKeysOfItsWindow) {
  ASSERT_EQ(model_->info().groups.at(0).window, 100);
  const std::vector<TokenId> text = tiny_tokens(11, 1000);
  const std::unique_ptr<Session> session = fed(text);
  ASSERT_EQ(session->timings().shifts, 2);
  const std::vector<float> got = logits(*session);
  // All that the newest token sees lies behind the run that was dropped last.
  const std::vector<float> expected = logits(*fed(tokens_of(*session)));
  std::vector<TokenId> others = tokens_of(*session);
  for (TokenId& token : std::span(others).last(50)) token = text[0];
  others.back() = text.back();
  const std::vector<float> elsewhere = logits(*fed(others));
  double error = 0, change = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    error = std::max(error, std::abs(double{got[i]} - expected[i]));
    change = std::max(change, std::abs(double{elsewhere[i]} - expected[i]));
  }
  EXPECT_LT(error, 0.05 * change) << change;
}

// Five layers with a window beside one that sees everything.
class SessionShiftWithWindows : public SessionShift {
 protected:
  SessionShiftWithWindows() : SessionShift(test::tiny_gemma(shape(6), 100)) {}
};

TEST_F(SessionShiftWithWindows, GivesTheSameBitsHoweverTheTokensCome) {
  ASSERT_EQ(model_->info().groups.size(), 2);
  const std::vector<TokenId> text = tiny_tokens(12, 1000);
  const std::unique_ptr<Session> session = fed(text);
  EXPECT_EQ(session->timings().shifts, 2);
  const std::vector<float> expected = logits(*session);
  for (const float x : expected) ASSERT_TRUE(std::isfinite(x));
  EXPECT_EQ(logits(*fed(text, {}, 1)), expected);
  EXPECT_EQ(logits(*fed(text, {.batch = 7, .num_threads = 2}, 333)), expected);
  EXPECT_EQ(logits(*fed(text, {.block_size = 32})), expected);
  // The shift is seen.
  EXPECT_NE(logits(*fed(text, {.keep = 0, .context = 1024, .overflow = Overflow::stop})), expected);
}

}  // namespace
}  // namespace kvik
