// What rounding keys and values costs, against the oracle's figures for the same text.
#include <cmath>
#include <map>

#include "golden/model_golden.h"
#include "kvik/eval/compare.h"

namespace kvik::test {
namespace {

using nlohmann::json;

// Names of kv_quality.json and ours.
const std::map<std::string, std::string> kNames = {
    {"f32", "f32"},
    {"f16", "f16"},
    {"q8_0", "ggml-q8_0"},
    {"q5_1", "ggml-q5_1"},
    {"q4_0", "ggml-q4_0"},
    {"q8_0 rotated", "ggml-q8_0-rot"},
    {"q5_1 rotated", "ggml-q5_1-rot"},
    {"q4_0 rotated", "ggml-q4_0-rot"},
    {"K q8_0, V q4_0 rotated", "ggml-q8_0-rot:ggml-q4_0-rot"}};

class KvQuality : public GoldenModel {
 protected:
  using GoldenModel::GoldenModel;

  void check() const {
    KVIK_NEEDS_FILE(book());
    const json golden = read_json("kv_quality.json").at("runs").at(0);
    const json& rows = golden.at("kv_both_k_and_v");
    std::vector<Candidate> candidates;
    for (const auto& [name, ours] : kNames) {
      candidates.push_back(make_candidate(*model_, parse_candidate_format(ours).value()).value());
    }
    CompareParams params;
    params.context = golden.at("context");
    params.max_chunks = golden.at("chunks").get<int>();
    const std::shared_ptr<ModelRunner> runner = GoldenModel::runner({.num_threads = 2});
    const Result<Comparison> got = compare_formats(*runner, book_tokens(), candidates, params);
    ASSERT_TRUE(got.ok()) << got.status().to_string();
    size_t i = 0;
    for (const auto& [name, ours] : kNames) {
      SCOPED_TRACE(name);
      expect_near(got->candidates[i++], rows.at(name));
      EXPECT_EQ(got->num_positions, rows.at(name).at("positions"));
    }
  }

 private:
  // Another order of additions moves a row across the border between two codes now and then, and
  // what follows grows from there: two right programs agree in how much is lost, not in digits.
  // Formats differ from their neighbours by factors of 1.6 and more.
  static void expect_near(const CandidateResult& got, const json& wanted) {
    const auto number = [&](const char* key) { return wanted.at(key).get<double>(); };
    if (got.name == "f32") {
      EXPECT_EQ(got.mean_kld, 0);
      EXPECT_EQ(got.kld_max, 0);
      EXPECT_EQ(got.same_top, 1);
      EXPECT_NEAR(got.ppl / number("ppl"), 1, kGoldenF32.perplexity);
      return;
    }
    // Of a divergence as small as f16's, only the size is certain.
    const double factor = got.name == "f16" ? 2 : 1.35;
    const auto expect_factor = [&](double value, const char* key) {
      EXPECT_LT(std::abs(std::log(value / number(key))), std::log(factor)) << key << " " << value;
    };
    expect_factor(got.mean_kld, "kl_mean");
    expect_factor(got.kld_median, "kl_median");
    expect_factor(got.rms_dp, "rms_dp");
    EXPECT_NEAR(got.same_top, number("same_top"), 0.04);
    EXPECT_NEAR(got.ppl / number("ppl"), 1, got.name == "f16" ? kGoldenF16.perplexity : 0.05);
  }
};

class SmolLm2KvQuality : public KvQuality {
 protected:
  SmolLm2KvQuality() : KvQuality(KVIK_GOLDEN_DIR "/smollm2-135m-instruct-q4_1", kSmolLm2) {}
};
class Gemma3KvQuality : public KvQuality {
 protected:
  Gemma3KvQuality() : KvQuality(KVIK_GOLDEN_DIR "/gemma3-270m-q4_k_m", kGemma3) {}
};

TEST_F(SmolLm2KvQuality, IsThatOfTheOracle) { check(); }
TEST_F(Gemma3KvQuality, IsThatOfTheOracle) { check(); }

}  // namespace
}  // namespace kvik::test
