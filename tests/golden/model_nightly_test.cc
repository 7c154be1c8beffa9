// Every chunk of the golden perplexities: minutes of computing.
#include "golden/model_golden.h"
#include "support/model_files.h"

namespace kvik::test {
namespace {

constexpr int kAllChunks = 1 << 20;

class SmolLm2Perplexity : public GoldenModel {
 protected:
  SmolLm2Perplexity() : GoldenModel(KVIK_GOLDEN_DIR "/smollm2-135m-instruct-q4_1", kSmolLm2File) {}
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

}  // namespace
}  // namespace kvik::test
