// Every chunk of the golden perplexities: minutes of computing.
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

class Gemma3Perplexity : public GoldenModel {
 protected:
  Gemma3Perplexity() : GoldenModel(KVIK_GOLDEN_DIR "/gemma3-270m-q4_k_m", kGemma3) {}
};

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
