// Minutes of computing: every chunk of the golden perplexities, and of Gemma the f16 cache and the
// promise of equal bits, which SmolLM2 shows in every run.
#include "golden/model_golden.h"

namespace kvik::test {
namespace {

constexpr int kAllChunks = 1 << 20;

class SmolLm2Perplexity : public GoldenModel {
 protected:
  SmolLm2Perplexity() : GoldenModel(KVIK_GOLDEN_DIR "/smollm2-135m-instruct-q4_1", kSmolLm2) {}
};

TEST_F(SmolLm2Perplexity, IsTheOraclesOver512TokensWithAnF32Cache) {
  check_perplexity(kGoldenF32, 512, kAllChunks);
}
TEST_F(SmolLm2Perplexity, IsTheOraclesOver512TokensWithAnF16Cache) {
  check_perplexity(kGoldenF16, 512, kAllChunks);
}
TEST_F(SmolLm2Perplexity, IsTheOraclesOver2048TokensWithAnF32Cache) {
  check_perplexity(kGoldenF32, 2048, kAllChunks);
}

class Gemma3Nightly : public GoldenModel {
 protected:
  Gemma3Nightly() : GoldenModel(KVIK_GOLDEN_DIR "/gemma3-270m-q4_k_m", kGemma3) {}
};

TEST_F(Gemma3Nightly, AnswersAsTheOracleWithAnF16Cache) { check_greedy(kGoldenF16); }
TEST_F(Gemma3Nightly, GivesTheLogitsOfTheOracleWithAnF16Cache) { check_logits(kGoldenF16); }

// 1440 tokens: local layers have given most of them back.
TEST_F(Gemma3Nightly, GivesTheSameBitsWhateverTheLayoutBlockSizeThreadsAndBatch) {
  check_same_bits(7);
}

using Gemma3Perplexity = Gemma3Nightly;

TEST_F(Gemma3Perplexity, IsTheOraclesOver512TokensWithAnF32Cache) {
  check_perplexity(kGoldenF32, 512, kAllChunks);
}
TEST_F(Gemma3Perplexity, IsTheOraclesOver512TokensWithAnF16Cache) {
  check_perplexity(kGoldenF16, 512, kAllChunks);
}
TEST_F(Gemma3Perplexity, IsTheOraclesOver2048TokensWithAnF32Cache) {
  check_perplexity(kGoldenF32, 2048, kAllChunks);
}

}  // namespace
}  // namespace kvik::test
