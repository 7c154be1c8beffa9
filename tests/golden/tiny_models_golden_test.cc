// Small models of every architecture against logits that transformers computes from the same
// weights (tests/golden/tiny_models/README.md).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kvik/engine/session.h"

namespace kvik {
namespace {

using nlohmann::json;

constexpr const char* kFolder = KVIK_GOLDEN_DIR "/tiny_models/";
constexpr const char* kModels[] = {
    "gemma3",       "gemma3-local-base", "llama-gqa1",  "llama-gqa4", "llama-linear", "llama-mqa8",
    "llama-untied", "llama-yarn",        "llama3-rope", "qwen2",      "qwen3"};

class TinyModels : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const std::string path = kFolder + std::string(GetParam());
    Result<std::shared_ptr<const Model>> model = Model::load(path + ".gguf");
    ASSERT_TRUE(model.ok()) << model.status().to_string();
    model_ = std::move(model).value();
    std::ifstream in(path + ".json");
    golden_ = json::parse(in);
    tokens_ = golden_.at("tokens").get<std::vector<TokenId>>();
    positions_ = golden_.at("positions").get<std::vector<size_t>>();
  }

  std::unique_ptr<Session> session(KvCode code, int block_size = 16, int batch = 512,
                                   int num_threads = 1, bool contiguous = false) {
    std::shared_ptr<ModelRunner> runner =
        ModelRunner::create(model_, {.num_threads = num_threads, .max_batch_tokens = batch})
            .value();
    return Session::create(runner, {.context = 256,
                                    .kv_format = {code, code},
                                    .block_size = block_size,
                                    .contiguous = contiguous})
        .value();
  }

  // Logits after each golden position.
  std::vector<std::vector<float>> rows(Session& session) {
    std::vector<std::vector<float>> rows;
    size_t fed = 0;
    for (const size_t position : positions_) {
      EXPECT_TRUE(session.feed(std::span(tokens_).subspan(fed, position + 1 - fed)).ok());
      fed = position + 1;
      rows.emplace_back(session.next_logits().begin(), session.next_logits().end());
    }
    return rows;
  }

  void expect_golden(KvCode code, double tolerance) {
    const std::unique_ptr<Session> session = TinyModels::session(code);
    const std::vector<std::vector<float>> got = rows(*session);
    const json& logits = golden_.at("logits");
    ASSERT_EQ(got.size(), logits.size());
    double worst = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      const auto expected = logits[i].get<std::vector<double>>();
      ASSERT_EQ(got[i].size(), expected.size());
      for (size_t t = 0; t < expected.size(); ++t) {
        worst = std::max(worst, std::abs(double{got[i][t]} - expected[t]));
      }
    }
    RecordProperty("worst", std::to_string(worst));
    EXPECT_LE(worst, tolerance);
  }

  std::shared_ptr<const Model> model_;
  json golden_;
  std::vector<TokenId> tokens_;
  std::vector<size_t> positions_;
};

TEST_P(TinyModels, GiveTheLogitsOfTransformersWithAnF32Cache) { expect_golden(KvCode::f32, 2e-4); }
TEST_P(TinyModels, GiveTheLogitsOfTransformersWithAnF16Cache) { expect_golden(KvCode::f16, 0.1); }

TEST_P(TinyModels, GiveTheSameBitsForAnyLayoutBlockSizeBatchAndThreads) {
  const std::vector<std::vector<float>> first = rows(*session(KvCode::f16));
  EXPECT_EQ(rows(*session(KvCode::f16, 16, 1)), first);
  EXPECT_EQ(rows(*session(KvCode::f16, 64, 7, 3)), first);
  EXPECT_EQ(rows(*session(KvCode::f16, 32, 20, 2, /*contiguous=*/true)), first);
}

// Every model of the folder is tried.
TEST(TinyModelFolder, HoldsTheModelsOfTheseTests) {
  std::vector<std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder)) {
    if (entry.path().extension() == ".gguf") found.push_back(entry.path().stem().string());
  }
  EXPECT_THAT(found, testing::UnorderedElementsAreArray(kModels));
}

INSTANTIATE_TEST_SUITE_P(Each, TinyModels, testing::ValuesIn(kModels), [](const auto& each) {
  std::string name = each.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

}  // namespace
}  // namespace kvik
