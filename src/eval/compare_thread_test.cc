#include <gtest/gtest.h>

#include <tuple>

#include "kvik/eval/compare.h"
#include "support/eval_case.h"

namespace kvik {
namespace {

using test::candidates;
using test::expect_same;
using test::kContext;
using test::make_runner;
using test::tiny_tokens;

TEST(Compare, IsTheSameForAnyThreadsBatchesAndRows) {
  const std::vector<TokenId> tokens = tiny_tokens(3, 2 * kContext + 7);
  const auto all = candidates({"tcq3", "ggml-q4_0-rot", "f16"});
  const auto with = [&](int threads, int batch, int rows) {
    const auto runner = make_runner({.num_threads = threads, .max_batch_tokens = batch});
    return compare_formats(*runner, tokens, all, {.context = kContext, .max_rows = rows}).value();
  };
  const Comparison wanted = with(1, 512, 64);
  EXPECT_GT(wanted.candidates[0].mean_kld, 0);
  for (const auto& [threads, batch, rows] :
       {std::tuple{3, 512, 64}, {1, 5, 64}, {2, 512, 1}, {1, 7, 3}, {2, 16, 1000}}) {
    const Comparison got = with(threads, batch, rows);
    expect_same(got.reference, wanted.reference);
    for (size_t i = 0; i < all.size(); ++i) expect_same(got.candidates[i], wanted.candidates[i]);
  }
}

}  // namespace
}  // namespace kvik
