#include "kvik/cache/size_prediction.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "kvik/backend/cpu_backend.h"
#include "kvik/cache/cache_set.h"

namespace kvik {
namespace {

// Appends to a sequence of a real cache, the rows all zero.
void grow(PagedCache& cache, const PagedCacheOptions& options, Sequence& sequence,
          const std::vector<AppendRun>& runs) {
  const KvSpec& spec = options.spec;
  for (const AppendRun& run : runs) {
    std::vector<float> rows(static_cast<size_t>(run.num_tokens) * spec.num_kv_heads *
                            std::max(spec.head_dim_k, spec.head_dim_v));
    for (int step = 0; step < run.num_steps; ++step) {
      const AppendRequest request{&sequence, run.num_tokens};
      AppendPlan plan = cache.reserve({&request, 1}).value();
      for (int layer = 0; layer < spec.num_layers(); ++layer) {
        cache.write(plan, layer,
                    ConstTensorView(rows.data(), DType::f32,
                                    {run.num_tokens, spec.num_kv_heads, spec.head_dim_k}),
                    ConstTensorView(rows.data(), DType::f32,
                                    {run.num_tokens, spec.num_kv_heads, spec.head_dim_v}));
      }
      EXPECT_TRUE(cache.commit(std::move(plan)).ok());
    }
  }
}

void expect_predicted(const PagedCacheOptions& options, const std::vector<AppendRun>& runs,
                      int num_sequences = 1) {
  std::shared_ptr<Backend> backend = make_cpu_backend({}).value();
  PagedCache cache = PagedCache::create(options, backend).value();
  std::vector<Sequence> sequences;
  int64_t num_tokens = 0;
  for (int i = 0; i < num_sequences; ++i) {
    sequences.push_back(cache.new_sequence());
    grow(cache, options, sequences.back(), runs);
    num_tokens += sequences.back().num_cached();
  }
  const CacheStats stats = cache.stats();
  const CacheSize size = predict_cache_size(options, runs, num_sequences).value();
  EXPECT_EQ(size.num_tokens, num_tokens);
  EXPECT_EQ(size.committed_bytes, stats.committed_bytes);
  EXPECT_EQ(size.committed_blocks, stats.committed_blocks);
  EXPECT_EQ(size.used_blocks, stats.used_blocks);
  EXPECT_EQ(size.nbytes, stats.nbytes);
}

PagedCacheOptions options_of(KvFormat format, int num_layers) {
  PagedCacheOptions options;
  options.spec = {3, 64, 64, std::vector<KvFormat>(static_cast<size_t>(num_layers), format)};
  options.max_blocks = 512;
  return options;
}

TEST(SizePrediction, EqualsACacheThatTookAPromptAndThenSingleTokens) {
  for (const KvFormat format : {KvFormat{KvCode::f16, KvCode::f16},
                                {KvCode::f32, KvCode::bf16},
                                {KvCode::tqk_q4_0, KvCode::tqv_q3_0},
                                {KvCode::tcq3, KvCode::q8}}) {
    expect_predicted(options_of(format, 3), {{2, 512}, {1, 77}, {900, 1}});
  }
}

TEST(SizePrediction, EqualsACacheThatTookSingleTokensOnly) {
  expect_predicted(options_of({}, 5), {{3000, 1}});
}

TEST(SizePrediction, EqualsACacheFilledToItsLimit) {
  PagedCacheOptions options = options_of({}, 2);
  options.max_blocks = 100;
  expect_predicted(options, {{1, 1000}, {600, 1}});
  options.num_blocks = 100;
  expect_predicted(options, {{1, 1000}, {600, 1}});
}

TEST(SizePrediction, EqualsACacheWithLargeBlocksAndWideHeads) {
  PagedCacheOptions options = options_of({KvCode::f32, KvCode::f32}, 1);
  options.spec.num_kv_heads = 8;
  options.spec.head_dim_k = 100;
  options.block_size = 64;
  options.num_blocks = 7;
  expect_predicted(options, {{5, 333}, {400, 1}, {1, 2000}, {50, 3}});
}

TEST(SizePrediction, EqualsACacheThatForgetsWhatLeftItsWindow) {
  PagedCacheOptions options = options_of({}, 2);
  options.window = 128;
  expect_predicted(options, {{3, 200}, {1500, 1}});
}

TEST(SizePrediction, EqualsACacheOfManySequences) {
  PagedCacheOptions options = options_of({KvCode::tcq4, KvCode::f16}, 2);
  expect_predicted(options, {{2, 300}, {30, 1}}, 7);
  options.window = 128;
  expect_predicted(options, {{3, 200}, {300, 1}}, 9);
}

// No memory is needed to count it.
TEST(SizePrediction, CountsBytesThatNeedMoreThan32Bits) {
  constexpr int kTokens = 5242880;
  PagedCacheOptions options = options_of({KvCode::f16, KvCode::f16}, 1);
  options.spec.num_kv_heads = 8;
  options.spec.head_dim_k = options.spec.head_dim_v = 128;
  options.max_blocks = kTokens / 16;
  options.num_blocks = options.max_blocks;
  const AppendRun all{1, kTokens};
  const CacheSize size = predict_cache_size(options, {&all, 1}).value();
  EXPECT_EQ(size.num_tokens, kTokens);
  EXPECT_EQ(size.used_blocks, kTokens / 16);
  EXPECT_EQ(size.nbytes, int64_t{2} * 10737418240);
  EXPECT_EQ(size.committed_bytes, int64_t{2} * 10737418240);
}

// As expect_predicted, of a set whose only cache has exact rows beside it.
void expect_set_predicted(const PagedCacheOptions& options, const std::vector<AppendRun>& runs,
                          int num_sequences = 1) {
  const std::shared_ptr<Backend> backend = make_cpu_backend({}).value();
  CacheSet set = CacheSet::create({&options, 1}, backend).value();
  const KvSpec& spec = options.spec;
  std::vector<Sequence> sequences;
  for (int i = 0; i < num_sequences; ++i) {
    sequences.push_back(set.new_sequence());
    for (const AppendRun& run : runs) {
      const std::vector<float> rows(static_cast<size_t>(run.num_tokens) * spec.num_kv_heads *
                                    static_cast<size_t>(spec.head_dim_k));
      const ConstTensorView view(rows.data(), DType::f32,
                                 {run.num_tokens, spec.num_kv_heads, spec.head_dim_k});
      for (int step = 0; step < run.num_steps; ++step) {
        const AppendRequest request{&sequences.back(), run.num_tokens};
        SetPlan plan = set.reserve({&request, 1}).value();
        for (int layer = 0; layer < spec.num_layers(); ++layer) {
          set.write(plan, 0, layer, view, view);
        }
        ASSERT_TRUE(set.commit(std::move(plan)).ok());
      }
    }
  }
  const CacheStats stats = set.stats(0);
  const CacheSize size = predict_cache_size(options, runs, num_sequences).value();
  EXPECT_EQ(size.committed_bytes, stats.committed_bytes);
  EXPECT_EQ(size.nbytes, stats.nbytes);
  EXPECT_EQ(size.exact_bytes, stats.committed_bytes - set.cache(0).stats().committed_bytes);
  EXPECT_EQ(size.committed_blocks, stats.committed_blocks);
  EXPECT_EQ(size.used_blocks, stats.used_blocks);
}

TEST(SizePrediction, CountsExactRowsToTheByte) {
  for (const auto& [first, recent] :
       {std::pair{4, 0}, {0, 64}, {4, 64}, {100, 1}, {3000, 0}, {0, 5000}}) {
    SCOPED_TRACE(std::to_string(first) + " first, " + std::to_string(recent) + " recent");
    PagedCacheOptions options = options_of({KvCode::tcq4, KvCode::tcq3}, 3);
    options.spec.layers[1] = {};  // stays f16: no exact rows beside it
    options.exact_first = first;
    options.exact_recent = recent;
    expect_set_predicted(options, {{1, 700}, {1, 33}, {400, 1}});
    expect_set_predicted(options, {{2, 100}, {30, 1}}, 7);
    options.window = 300;
    options.block_size = 48;
    expect_set_predicted(options, {{1, 700}, {1, 33}, {400, 1}});
  }
}

TEST(SizePrediction, CountsNoExactRowsBesidePlainLayers) {
  PagedCacheOptions options = options_of({}, 2);
  options.exact_first = 4;
  options.exact_recent = 64;
  expect_set_predicted(options, {{1, 700}, {100, 1}});
  const AppendRun run{1, 700};
  EXPECT_EQ(predict_cache_size(options, {&run, 1})->exact_bytes, 0);
  options.exact_first = -1;
  EXPECT_EQ(predict_cache_size(options, {&run, 1}).status().code(), StatusCode::invalid_argument);
}

TEST(SizePrediction, RefusesWhatNoCacheCouldHold) {
  const PagedCacheOptions options = options_of({}, 2);
  const AppendRun too_many{1, 512 * 16 + 1};
  EXPECT_EQ(predict_cache_size(options, {&too_many, 1}).status().code(), StatusCode::out_of_pages);
  PagedCacheOptions odd = options;
  odd.block_size = 17;
  EXPECT_EQ(predict_cache_size(odd, {}).status().code(), StatusCode::invalid_argument);
  const AppendRun half{1, 256 * 16};
  EXPECT_TRUE(predict_cache_size(options, {&half, 1}, 2).ok());
  EXPECT_EQ(predict_cache_size(options, {&half, 1}, 3).status().code(), StatusCode::out_of_pages);
  EXPECT_EQ(predict_cache_size(options, {&half, 1}, 0).status().code(),
            StatusCode::invalid_argument);
}

}  // namespace
}  // namespace kvik
