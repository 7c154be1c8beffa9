// Gemma 3 270M against the oracle: shape, greedy answers, logits, log probabilities, perplexity,
// and what its windows save. What takes longer is in model_nightly_test.cc.
#include "golden/model_golden.h"
#include "kvik/cache/size_prediction.h"

namespace kvik::test {
namespace {

class Gemma3 : public GoldenModel {
 protected:
  Gemma3() : GoldenModel(KVIK_GOLDEN_DIR "/gemma3-270m-q4_k_m", kGemma3) {}
};

TEST_F(Gemma3, HasTheShapeThatTheFileStates) {
  check_shape();
  const nlohmann::json derived = read_json("model.json").at("derived");
  const std::vector<LayerGroup>& groups = model_->info().groups;
  ASSERT_EQ(groups.size(), 2U);
  EXPECT_EQ(groups[0].layers, derived.at("global_layers").get<std::vector<int>>());
  EXPECT_FALSE(groups[0].window);
  EXPECT_EQ(groups[1].layers.size(), 15U);
  EXPECT_EQ(groups[1].window, derived.at("sliding_window").get<int>());
  EXPECT_EQ(model_->info().end_tokens, (std::vector<TokenId>{1, 106}));

  const std::vector<PagedCacheOptions> caches =
      model_->cache_options({.format = {KvCode::f16, KvCode::f16}, .max_tokens = 32768}).value();
  const nlohmann::json& all = derived.at("kv_bytes_per_token_full");
  EXPECT_EQ(token_bytes(caches[0].spec) + token_bytes(caches[1].spec), all.at("f16"));
  EXPECT_EQ(token_bytes(caches[0].spec), derived.at("kv_bytes_per_token_global_only").at("f16"));
}

TEST_F(Gemma3, AnswersAsTheOracleWithAnF32Cache) { check_greedy(kGoldenF32); }
TEST_F(Gemma3, GivesTheLogitsOfTheOracleWithAnF32Cache) { check_logits(kGoldenF32); }
TEST_F(Gemma3, HasTheOraclesPerplexityWithAnF32Cache) { check_perplexity(kGoldenF32, 512, 2); }

// The window layers' memory stands still; predicted and measured agree to the byte.
TEST_F(Gemma3, WindowLayersTakeAFixedAmountOfMemory) {
  const KvFormat f16 = {KvCode::f16, KvCode::f16};
  std::vector<int64_t> local_bytes;
  for (const int num_tokens : {512, 1536, 3072}) {
    const auto runner = GoldenModel::runner({.num_threads = 2});
    const auto session = GoldenModel::session(runner, KvCode::f16, {.context = 32768});
    std::vector<TokenId> tokens;
    for (int i = 0; i < num_tokens; ++i) tokens.push_back(1000 + i % 5000);
    ASSERT_TRUE(session->feed(tokens).ok());
    const std::vector<CacheStats> stats = session->cache_stats();
    const auto options = model_->cache_options({.format = f16, .max_tokens = 32768}).value();
    ASSERT_EQ(stats.size(), options.size());
    for (size_t i = 0; i < stats.size(); ++i) {
      const std::vector<AppendRun> runs = {{num_tokens / 512, 512}};
      const CacheSize size = predict_cache_size(options[i], runs).value();
      EXPECT_EQ(stats[i].committed_bytes, size.committed_bytes);
      EXPECT_EQ(stats[i].used_blocks, size.used_blocks);
    }
    local_bytes.push_back(stats[1].committed_bytes);
  }
  EXPECT_EQ(local_bytes[1], local_bytes[2]);
}

}  // namespace
}  // namespace kvik::test
