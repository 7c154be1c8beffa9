// SmolLM2-135M against the oracle: shape, greedy answers, logits, log probabilities, perplexity.
#include "golden/model_golden.h"

namespace kvik::test {
namespace {

class SmolLm2 : public GoldenModel {
 protected:
  SmolLm2() : GoldenModel(KVIK_GOLDEN_DIR "/smollm2-135m-instruct-q4_1", kSmolLm2) {}
};

TEST_F(SmolLm2, HasTheShapeThatTheFileStates) {
  check_shape();
  const nlohmann::json golden = read_json("model.json");
  const nlohmann::json& bytes = golden.at("derived").at("kv_bytes_per_token");
  EXPECT_EQ(model_->info().vocab_size, golden.at("metadata").at("llama.vocab_size"));
  EXPECT_EQ(model_->info().end_tokens, (std::vector<TokenId>{0, 2}));
  EXPECT_EQ(token_bytes(model_->kv_spec({KvCode::f16, KvCode::f16})), bytes.at("f16"));
  EXPECT_EQ(token_bytes(model_->kv_spec({KvCode::f32, KvCode::f32})), bytes.at("f32"));
  EXPECT_TRUE(model_->chat_template().ok());
}

TEST_F(SmolLm2, AnswersAsTheOracleWithAnF32Cache) { check_greedy(kGoldenF32); }
TEST_F(SmolLm2, AnswersAsTheOracleWithAnF16Cache) { check_greedy(kGoldenF16); }
TEST_F(SmolLm2, GivesTheLogitsOfTheOracleWithAnF32Cache) { check_logits(kGoldenF32); }
TEST_F(SmolLm2, GivesTheLogitsOfTheOracleWithAnF16Cache) { check_logits(kGoldenF16); }
TEST_F(SmolLm2, HasTheOraclesPerplexityWithAnF32Cache) { check_perplexity(kGoldenF32, 512, 3); }
TEST_F(SmolLm2, HasTheOraclesPerplexityWithAnF16Cache) { check_perplexity(kGoldenF16, 512, 3); }

// 753 tokens: more than a partition.
TEST_F(SmolLm2, GivesTheSameBitsWhateverTheLayoutBlockSizeThreadsAndBatch) { check_same_bits(6); }

}  // namespace
}  // namespace kvik::test
