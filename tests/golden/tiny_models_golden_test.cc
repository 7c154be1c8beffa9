// Small models of every architecture against logits that transformers computes from the same
// weights (tests/golden/tiny_models/README.md).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "cache/plan_state.h"
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

  void expect_golden(KvFormat format, double tolerance) {
    const std::unique_ptr<Session> session =
        Session::create(ModelRunner::create(model_).value(), {.context = 256, .kv_format = format})
            .value();
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

  // Tokens that differ with the seed, as many as asked for.
  std::vector<TokenId> more_tokens(size_t seed, size_t count) const {
    std::vector<TokenId> tokens;
    for (size_t i = 0; i < count; ++i) {
      tokens.push_back(tokens_[(i + i / 50 * seed + seed) % tokens_.size()]);
    }
    return tokens;
  }

  // The logits of a session that was fed nothing else.
  std::vector<float> cold(std::span<const TokenId> tokens) {
    const std::unique_ptr<Session> session = TinyModels::session(KvCode::f16);
    EXPECT_TRUE(session->feed(tokens).ok());
    return {session->next_logits().begin(), session->next_logits().end()};
  }

  bool has_window() const {
    const std::vector<LayerGroup>& groups = model_->info().groups;
    return std::any_of(groups.begin(), groups.end(), [](const auto& g) { return g.window; });
  }

  std::shared_ptr<const Model> model_;
  json golden_;
  std::vector<TokenId> tokens_;
  std::vector<size_t> positions_;
};

TEST_P(TinyModels, GiveTheLogitsOfTransformersWithAnF32Cache) {
  expect_golden({KvCode::f32, KvCode::f32}, 2e-4);
}
TEST_P(TinyModels, GiveTheLogitsOfTransformersWithAnF16Cache) {
  expect_golden({KvCode::f16, KvCode::f16}, 0.1);
}

// bf16 keeps three bits fewer of a value than f16; the largest difference measured is 0.14.
TEST_P(TinyModels, GiveTheLogitsOfTransformersWithAnyPairOfPlainFormats) {
  constexpr std::array kPlain = {KvCode::f32, KvCode::f16, KvCode::bf16};
  for (const KvCode k : kPlain) {
    for (const KvCode v : kPlain) {
      SCOPED_TRACE(std::string(kv_code_name(k)) + ", " + std::string(kv_code_name(v)));
      const bool has_bf16 = k == KvCode::bf16 || v == KvCode::bf16;
      expect_golden({k, v}, has_bf16 ? 0.4 : 0.1);
    }
  }
}

TEST_P(TinyModels, GiveTheSameBitsForAnyLayoutBlockSizeBatchAndThreads) {
  for (const KvCode code : {KvCode::f16, KvCode::q8, KvCode::q4}) {
    SCOPED_TRACE(kv_code_name(code));
    const std::vector<std::vector<float>> first = rows(*session(code));
    EXPECT_EQ(rows(*session(code, 16, 1)), first);
    EXPECT_EQ(rows(*session(code, 64, 7, 3)), first);
    EXPECT_EQ(rows(*session(code, 32, 20, 2, /*contiguous=*/true)), first);
  }
}

// Prompts of different lengths, in chunks and then token by token. Those with windows have given
// rows back, the longest most of them.
TEST_P(TinyModels, ASequenceInABatchGivesTheBitsItGivesAlone) {
  constexpr size_t kSizes[] = {2, 5, 160, 97};
  constexpr size_t kNum = std::size(kSizes);
  const std::unique_ptr<ModelRunner> runner =
      ModelRunner::create(model_, {.num_threads = 2, .max_batch_tokens = 80}).value();
  CacheSet caches =
      runner->make_caches({.max_tokens = 1024, .max_sequences = static_cast<int>(kNum)}).value();
  std::vector<std::vector<TokenId>> prompts;
  std::vector<Sequence> sequences;
  for (size_t b = 0; b < kNum; ++b) {
    prompts.push_back(more_tokens(b, kSizes[b] + 3));
    sequences.push_back(caches.new_sequence());
  }
  const auto vocab_size = static_cast<size_t>(model_->info().vocab_size);
  std::vector<size_t> fed(kNum);
  std::vector<std::vector<float>> last(kNum, std::vector<float>(vocab_size));
  while (fed[2] < prompts[2].size()) {
    std::vector<SequenceTokens> steps;
    std::vector<size_t> who;
    for (size_t b = 0; b < kNum; ++b) {
      const size_t before_end = kSizes[b] - std::min(kSizes[b], fed[b]);
      const size_t count = before_end > 0 ? std::min<size_t>(before_end, 20) : 1;
      if (fed[b] == prompts[b].size()) continue;
      steps.push_back({&sequences[b], std::span(prompts[b]).subspan(fed[b], count)});
      who.push_back(b);
      fed[b] += count;
    }
    ASSERT_TRUE(runner->forward(caches, steps).ok());
    int row = -1;
    for (size_t i = 0; i < who.size(); ++i) {
      row += static_cast<int>(steps[i].tokens.size());
      runner->logits(row, 1, last[who[i]]);
    }
  }
  for (size_t b = 0; b < kNum; ++b) EXPECT_EQ(last[b], cold(prompts[b])) << b;
}

// All memory of the caches is NaN, or large, before the prompt comes in chunks.
TEST_P(TinyModels, WhatNoTokenWroteReachesNoLogit) {
  const std::vector<TokenId> tokens = more_tokens(3, 150);
  const std::vector<float> expected = cold(tokens);
  for (const int poison : {0xff, 0x70}) {
    const std::unique_ptr<ModelRunner> runner =
        ModelRunner::create(model_, {.max_batch_tokens = 16}).value();
    CacheSet caches = runner->make_caches({.block_size = 64, .max_tokens = 256}).value();
    const auto feed = [&](Sequence& sequence) {
      for (size_t begin = 0; begin < tokens.size(); begin += 16) {
        const SequenceTokens step{
            &sequence,
            std::span(tokens).subspan(begin, std::min<size_t>(16, tokens.size() - begin))};
        ASSERT_TRUE(runner->forward(caches, {&step, 1}).ok());
      }
    };
    {
      Sequence before = caches.new_sequence();
      feed(before);
    }
    for (int i = 0; i < caches.num_caches(); ++i) {
      PagedCache& cache = caches.cache(i);
      ASSERT_EQ(cache.stats().used_blocks, 0);
      const int64_t blocks = cache.stats().committed_blocks;
      ASSERT_GE(blocks, 2);
      for (int layer = 0; layer < cache.spec().num_layers(); ++layer) {
        const MutableKvView view = internal::CacheAccess::raw_view(cache, layer);
        std::memset(view.k, poison, static_cast<size_t>(blocks * view.k_stride[0]));
        std::memset(view.v, poison, static_cast<size_t>(blocks * view.v_stride[0]));
      }
    }
    Sequence sequence = caches.new_sequence();
    feed(sequence);
    std::vector<float> logits(expected.size());
    runner->logits(runner->num_rows() - 1, 1, logits);
    EXPECT_EQ(logits, expected) << poison;
  }
}

// What every layer still holds is reused, and nothing where a window has given rows back.
TEST_P(TinyModels, APromptThatSharesItsStartGivesTheLogitsOfAColdSession) {
  const std::vector<TokenId> stored = more_tokens(4, 200);
  for (const size_t shared : {1, 60, 180, 199}) {
    const std::unique_ptr<Session> session = TinyModels::session(KvCode::f16);
    ASSERT_TRUE(session->feed(stored).ok());
    std::vector<TokenId> prompt(stored.begin(), stored.begin() + static_cast<ptrdiff_t>(shared));
    for (int i = 1; i <= 3; ++i) {
      prompt.push_back((stored[shared] + i) % model_->info().vocab_size);
    }
    const int reused = session->rewind_to(prompt).value();
    EXPECT_EQ(reused, has_window() && shared < 180 ? 0 : static_cast<int>(shared));
    ASSERT_TRUE(session->feed(std::span(prompt).subspan(static_cast<size_t>(reused))).ok());
    const std::vector<float> logits(session->next_logits().begin(), session->next_logits().end());
    EXPECT_EQ(logits, cold(prompt)) << shared;
  }
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
