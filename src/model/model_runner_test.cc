#include "kvik/model/model_runner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "support/tiny_model.h"

namespace kvik {
namespace {

using test::tiny_tokens;
using test::TinyModel;
using test::TinyShape;
using ::testing::HasSubstr;

constexpr KvFormat kF32 = {KvCode::f32, KvCode::f32};

struct Chunked {
  RunnerOptions runner = {};
  ModelCacheOptions cache = {.format = kF32, .max_tokens = 128};
  size_t chunk = 1000;
};

// Logits after each token, fed to an empty sequence in chunks.
std::vector<std::vector<float>> run(const std::shared_ptr<const Model>& model,
                                    const std::vector<TokenId>& tokens, const Chunked& how) {
  const std::unique_ptr<ModelRunner> runner = ModelRunner::create(model, how.runner).value();
  CacheSet caches = runner->make_caches(how.cache).value();
  Sequence sequence = caches.new_sequence();
  std::vector<std::vector<float>> all;
  for (size_t begin = 0; begin < tokens.size(); begin += how.chunk) {
    const size_t count = std::min(how.chunk, tokens.size() - begin);
    const SequenceTokens step{&sequence, std::span(tokens).subspan(begin, count)};
    const Status status = runner->forward(caches, {&step, 1});
    EXPECT_TRUE(status.ok()) << status.to_string();
    EXPECT_EQ(runner->num_rows(), static_cast<int>(count));
    for (int row = 0; row < runner->num_rows(); ++row) {
      std::vector<float> logits(static_cast<size_t>(model->info().vocab_size));
      runner->logits(row, 1, logits);
      all.push_back(std::move(logits));
    }
  }
  return all;
}

double worst_difference(const std::vector<std::vector<float>>& got,
                        const std::vector<std::vector<double>>& expected) {
  if (got.size() != expected.size()) return INFINITY;
  double worst = 0;
  for (size_t n = 0; n < got.size(); ++n) {
    for (size_t i = 0; i < expected[n].size(); ++i) {
      const double difference = std::abs(double{got[n][i]} - expected[n][i]);
      if (!(difference <= worst)) worst = std::isnan(difference) ? INFINITY : difference;
    }
  }
  return worst;
}

TEST(ModelRunner, ComputesWhatPlainLoopsInDoubleCompute) {
  const TinyShape shapes[] = {
      {},
      {.num_layers = 3, .num_heads = 6, .num_kv_heads = 6, .head_dim = 10, .rope_dim = 6},
      {.num_kv_heads = 1, .rope_base = 500000, .has_rope_factors = true, .is_tied = false},
      {.rope_factor = 4, .is_tied = false}};
  const std::vector<TokenId> tokens = tiny_tokens(3, 40);
  for (const TinyShape& shape : shapes) {
    TinyModel tiny(shape);
    const std::shared_ptr<const Model> model = tiny.load().value();
    const auto expected = tiny.logits(tokens);
    for (const CpuIsa isa : available_cpu_isas(detect_cpu_features())) {
      EXPECT_LT(worst_difference(run(model, tokens, {.runner = {.isa = isa}}), expected), 2e-4)
          << cpu_isa_name(isa);
    }
    // Halves of 11 bits: a looser limit, yet far from what a wrong angle or head would give.
    const Chunked half = {.cache = {.max_tokens = 128}};
    EXPECT_LT(worst_difference(run(model, tokens, half), expected), 0.1);
  }
}

TEST(ModelRunner, GivesTheSameBitsInAnyChunksThreadsBlocksAndLayout) {
  TinyModel tiny;
  const std::shared_ptr<const Model> model = tiny.load().value();
  const std::vector<TokenId> tokens = tiny_tokens(4, 75);
  const auto expected = run(model, tokens, {});
  for (const size_t chunk : {1, 7, 20, 64}) {
    for (const int num_threads : {1, 2, 3}) {
      Chunked how;
      how.chunk = chunk;
      how.runner.num_threads = num_threads;
      how.cache.block_size = num_threads == 2 ? 32 : 64;
      how.cache.contiguous = num_threads == 3;
      EXPECT_EQ(run(model, tokens, how), expected) << chunk << ", " << num_threads;
    }
  }
}

// Sequences of different lengths in one batch, over pages that are not in order.
TEST(ModelRunner, ASequenceInABatchGivesTheBitsItGivesAlone) {
  TinyModel tiny;
  const std::shared_ptr<const Model> model = tiny.load().value();
  const std::unique_ptr<ModelRunner> runner =
      ModelRunner::create(model, {.num_threads = 2, .max_batch_tokens = 64}).value();
  CacheSet caches = runner->make_caches({.format = kF32, .max_tokens = 512}).value();
  const auto vocab = static_cast<size_t>(model->info().vocab_size);

  const std::vector<std::vector<TokenId>> prompts = {tiny_tokens(5, 2), tiny_tokens(6, 19),
                                                     tiny_tokens(7, 33)};
  std::vector<Sequence> sequences;
  for (size_t b = 0; b < prompts.size(); ++b) sequences.push_back(caches.new_sequence());
  std::vector<SequenceTokens> steps;
  for (size_t b = 0; b < prompts.size(); ++b) steps.push_back({&sequences[b], prompts[b]});
  ASSERT_TRUE(runner->forward(caches, steps).ok());
  const TokenId next = 65;
  for (size_t b = 0; b < prompts.size(); ++b) steps[b].tokens = {&next, 1};
  ASSERT_TRUE(runner->forward(caches, steps).ok());
  std::vector<float> logits(3 * vocab);
  runner->logits(0, 3, logits);
  for (size_t b = 0; b < prompts.size(); ++b) {
    std::vector<TokenId> tokens = prompts[b];
    tokens.push_back(next);
    const std::vector<float> alone = run(model, tokens, {}).back();
    EXPECT_TRUE(
        std::equal(alone.begin(), alone.end(), logits.begin() + static_cast<ptrdiff_t>(b * vocab)))
        << b;
    EXPECT_EQ(sequences[b].num_cached(), static_cast<int>(tokens.size()));
  }
}

TEST(ModelRunner, LogProbabilitiesAreTheSoftmaxOfTheLogits) {
  TinyModel tiny;
  const std::shared_ptr<const Model> model = tiny.load().value();
  const std::unique_ptr<ModelRunner> runner = ModelRunner::create(model).value();
  CacheSet caches = runner->make_caches({.max_tokens = 128}).value();
  Sequence sequence = caches.new_sequence();
  const std::vector<TokenId> tokens = tiny_tokens(8, 70);  // more rows than are scored at a time
  const SequenceTokens step{&sequence, tokens};
  ASSERT_TRUE(runner->forward(caches, {&step, 1}).ok());
  const size_t vocab = static_cast<size_t>(model->info().vocab_size);
  std::vector<float> logits(70 * vocab);
  runner->logits(0, 70, logits);
  std::vector<double> scores(68);
  runner->log_probabilities(1, std::span(tokens).subspan(2), scores);
  for (size_t i = 0; i < scores.size(); ++i) {
    const float* row = logits.data() + (i + 1) * vocab;
    double sum = 0;
    for (size_t t = 0; t < vocab; ++t) sum += std::exp(double{row[t]});
    EXPECT_NEAR(scores[i], double{row[tokens[i + 2]]} - std::log(sum), 1e-9);
  }
}

TEST(ModelRunner, RefusesWrongStepsAndChangesNothing) {
  TinyModel tiny;
  const std::shared_ptr<const Model> model = tiny.load().value();
  const std::unique_ptr<ModelRunner> runner =
      ModelRunner::create(model, {.max_batch_tokens = 8}).value();
  CacheSet caches = runner->make_caches({.max_tokens = 16}).value();
  Sequence sequence = caches.new_sequence();
  const auto forward = [&](const std::vector<TokenId>& tokens) {
    const SequenceTokens step{&sequence, tokens};
    return runner->forward(caches, {&step, 1});
  };
  ASSERT_TRUE(forward(tiny_tokens(1, 8)).ok());
  EXPECT_EQ(forward({}).code(), StatusCode::invalid_argument);
  EXPECT_EQ(runner->num_rows(), 0);
  EXPECT_THAT(forward(tiny_tokens(1, 9)).message(), HasSubstr("max_batch_tokens"));
  EXPECT_THAT(forward({-1}).message(), HasSubstr("-1"));
  EXPECT_THAT(forward({model->info().vocab_size}).message(), HasSubstr("vocabulary"));
  EXPECT_EQ(sequence.num_cached(), 8);
  ASSERT_TRUE(forward(tiny_tokens(1, 8)).ok());
  EXPECT_EQ(forward({1}).code(), StatusCode::out_of_pages);
  EXPECT_EQ(sequence.num_cached(), 16);

  TinyModel other(TinyShape{.num_layers = 1});
  const std::unique_ptr<ModelRunner> other_runner =
      ModelRunner::create(other.load().value()).value();
  const TokenId token = 1;
  const SequenceTokens step{&sequence, {&token, 1}};
  EXPECT_THAT(other_runner->forward(caches, {&step, 1}).message(), HasSubstr("another model"));
}

TEST(ModelRunner, RefusesOptionsOutOfRange) {
  TinyModel tiny;
  const std::shared_ptr<const Model> model = tiny.load().value();
  EXPECT_FALSE(ModelRunner::create(nullptr).ok());
  EXPECT_FALSE(ModelRunner::create(model, {.num_threads = 0}).ok());
  EXPECT_FALSE(ModelRunner::create(model, {.max_batch_tokens = 0}).ok());
  const std::unique_ptr<ModelRunner> runner = ModelRunner::create(model).value();
  EXPECT_EQ(runner->make_caches({.max_tokens = 2147483647}).status().code(),
            StatusCode::out_of_memory);
}

TEST(ModelRunner, ShowsAHookTheRowsOfEachLayerAndStoresWhatItLeaves) {
  TinyModel tiny({.num_layers = 3});
  const std::shared_ptr<const Model> model = tiny.load().value();
  const std::vector<TokenId> tokens = tiny_tokens(3, 10);
  const std::unique_ptr<ModelRunner> runner = ModelRunner::create(model, {}).value();
  CacheSet caches = runner->make_caches({.format = kF32, .max_tokens = 64}).value();
  Sequence sequence = caches.new_sequence();
  std::vector<int> layers;
  std::vector<int32_t> positions;
  runner->set_row_hook([&](const LayerRows& rows) {
    layers.push_back(rows.layer);
    if (rows.layer == 0) {
      positions.insert(positions.end(), rows.positions.begin(), rows.positions.end());
    }
    const ModelInfo& info = model->info();
    EXPECT_EQ(rows.q.dim(0), static_cast<int64_t>(rows.positions.size()));
    EXPECT_EQ(rows.q.dim(1), info.num_heads);
    EXPECT_EQ(rows.k.dim(1), info.num_kv_heads);
    EXPECT_EQ(rows.v.dim(2), info.head_dim_v);
    // With all values zero, attention adds nothing.
    auto* const v = reinterpret_cast<float*>(rows.v.data);
    std::fill_n(v, rows.v.dim(0) * rows.v.dim(1) * rows.v.dim(2), 0.0F);
    if (rows.layer == 1) {
      auto* const q = reinterpret_cast<float*>(rows.q.data);
      std::fill_n(q, rows.q.dim(0) * rows.q.dim(1) * rows.q.dim(2), 1e3F);
    }
  });
  const auto feed = [&](size_t begin, size_t count) {
    const SequenceTokens step{&sequence, std::span(tokens).subspan(begin, count)};
    ASSERT_TRUE(runner->forward(caches, {&step, 1}).ok());
  };
  feed(0, 7);
  feed(7, 3);
  EXPECT_EQ(layers, (std::vector<int>{0, 1, 2, 0, 1, 2}));
  EXPECT_EQ(positions, (std::vector<int32_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
  std::vector<float> blind(static_cast<size_t>(model->info().vocab_size));
  runner->logits(2, 1, blind);

  // The last token alone gives the same, since nobody read the others; without the hook it differs.
  const auto alone = [&] {
    Sequence other = caches.new_sequence();
    const SequenceTokens step{&other, std::span(tokens).last(1)};
    EXPECT_TRUE(runner->forward(caches, {&step, 1}).ok());
    std::vector<float> logits(blind.size());
    runner->logits(0, 1, logits);
    return logits;
  };
  EXPECT_EQ(alone(), blind);
  runner->set_row_hook({});
  EXPECT_NE(alone(), blind);
}

}  // namespace
}  // namespace kvik
