// For tests of compare_formats(): a tiny model whose head dim every format takes.
#pragma once

#include <gtest/gtest.h>

#include <initializer_list>
#include <memory>
#include <vector>

#include "kvik/eval/compare.h"
#include "support/tiny_model.h"

namespace kvik::test {

inline constexpr int kContext = 48;

inline std::shared_ptr<const Model> load_tiny() {
  static TinyModel* const tiny = new TinyModel({.head_dim = 64, .rope_dim = 64});
  static const std::shared_ptr<const Model> model = tiny->load().value();
  return model;
}

inline std::unique_ptr<ModelRunner> make_runner(const RunnerOptions& options = {}) {
  return ModelRunner::create(load_tiny(), options).value();
}

inline std::vector<Candidate> candidates(std::initializer_list<const char*> names) {
  std::vector<Candidate> all;
  for (const char* name : names) {
    all.push_back(make_candidate(*load_tiny(), parse_candidate_format(name).value()).value());
  }
  return all;
}

// All but the speed.
inline void expect_same(const CandidateResult& a, const CandidateResult& b) {
  EXPECT_EQ(a.name, b.name);
  EXPECT_EQ(a.ppl, b.ppl);
  EXPECT_EQ(a.ppl_error, b.ppl_error);
  EXPECT_EQ(a.mean_kld, b.mean_kld);
  EXPECT_EQ(a.kld_error, b.kld_error);
  EXPECT_EQ(a.kld_median, b.kld_median);
  EXPECT_EQ(a.kld_99, b.kld_99);
  EXPECT_EQ(a.kld_999, b.kld_999);
  EXPECT_EQ(a.kld_max, b.kld_max);
  EXPECT_EQ(a.same_top, b.same_top);
  EXPECT_EQ(a.rms_dp, b.rms_dp);
  ASSERT_EQ(a.by_position.size(), b.by_position.size());
  for (size_t i = 0; i < a.by_position.size(); ++i) {
    EXPECT_EQ(a.by_position[i].mean_kld, b.by_position[i].mean_kld);
  }
}

}  // namespace kvik::test
