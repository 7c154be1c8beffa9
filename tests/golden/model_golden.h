// Checks of a real model against golden files. The README.md of the files says where the numbers
// come from and what the tolerances mean.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kvik/engine/session.h"
#include "support/model_files.h"

namespace kvik::test {

// What float32 activations may differ by, with a cache of this format.
struct GoldenTolerance {
  KvCode code;
  double logit;
  double log_probability;
  double margin;  // compare greedy answers up to the first smaller one
  double perplexity;
};
inline constexpr GoldenTolerance kGoldenF32 = {KvCode::f32, 2e-3, 2e-3, 0.01, 1e-4};
inline constexpr GoldenTolerance kGoldenF16 = {KvCode::f16, 0.05, 0.05, 0.1, 2e-3};

// Loads the model; its tests are skipped (or fail, where models are required) when it is not there.
class GoldenModel : public testing::Test {
 protected:
  // A folder of golden files, and the model's file.
  GoldenModel(std::string folder, FetchedFile file);
  void SetUp() override;

  std::vector<nlohmann::json> read_lines(const std::string& name) const;
  nlohmann::json read_json(const std::string& name) const;
  std::shared_ptr<ModelRunner> runner(const RunnerOptions& options = {}) const;
  // With room for 2048 tokens unless the options name a context.
  static std::unique_ptr<Session> session(std::shared_ptr<ModelRunner> runner, KvCode code,
                                          SessionOptions options = {});

  // The novel of perplexity.json, and the tokens of its part that the file names.
  FetchedFile book() const;
  std::vector<TokenId> book_tokens() const;

  // What model.json derives from the file.
  void check_shape() const;
  // Every line of greedy.jsonl and of logits.jsonl.
  void check_greedy(const GoldenTolerance& tolerance) const;
  void check_logits(const GoldenTolerance& tolerance) const;
  // The first chunks of that context in perplexity.json, at most `most_chunks`.
  void check_perplexity(const GoldenTolerance& tolerance, int context, int most_chunks) const;
  // The bits of an answer to that line of greedy.jsonl under layouts, block sizes, threads,
  // batches.
  void check_same_bits(size_t line) const;

  std::string folder_;
  FetchedFile file_;
  std::shared_ptr<const Model> model_;
};

// `count` greedy tokens, of a session that is emptied first.
std::vector<TokenId> greedy_answer(Session& session, const std::vector<TokenId>& prompt, int count);

}  // namespace kvik::test
