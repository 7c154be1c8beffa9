// The promise of bit-for-bit determinism, case by case, on every instruction set of this machine.
#include <gtest/gtest.h>

#include "kvik/core/cpu_features.h"
#include "support/attention_case.h"

namespace kvik::test {
namespace {

constexpr KvShape kShape{3, 64, 48};
constexpr int kHeads = 9;

std::vector<SequenceRows> sequences() {
  return {random_rows(1, 1500, kShape), random_rows(2, 33, kShape), random_rows(3, 700, kShape)};
}

Queries queries_for(const std::vector<int>& q_lens) {
  Queries queries(kHeads, kShape.head_dim_k);
  for (size_t b = 0; b < q_lens.size(); ++b) queries.add(50 + b, q_lens[b]);
  return queries;
}

struct Setup {
  CpuIsa isa;
  KvFormat format;
  KernelSet kernel_set = KernelSet::fast;
};

std::vector<Setup> setups() {
  std::vector<Setup> all;
  for (const CpuIsa isa : available_cpu_isas(detect_cpu_features())) {
    for (const KvFormat format : {KvFormat{},
                                  {KvCode::q8, KvCode::q4},
                                  {KvCode::tqk_q5_0, KvCode::q6},
                                  {KvCode::tcq4, KvCode::tq3}}) {
      all.push_back({isa, format});
    }
    all.push_back({isa, {KvCode::tqk_q5_0, KvCode::tq3}, KernelSet::exact});
  }
  return all;
}

class Determinism : public testing::TestWithParam<Setup> {
 protected:
  static CpuIsa isa() { return GetParam().isa; }

  Outputs run(const std::vector<SequenceRows>& rows, const Queries& queries, TiledOptions options,
              int num_threads = 1) {
    options.format = GetParam().format;
    TiledKv kv(kShape, rows, options);
    const Segment segment{.view = kv.view()};
    Outputs outputs;
    const AttentionCall call = make_call(queries, {&segment, 1}, params_, outputs);
    EXPECT_TRUE(attend(*backend_for(isa(), num_threads, GetParam().kernel_set), call).ok());
    return outputs;
  }

  AttentionParams params_{.scale = 0.125f};
};

TEST_P(Determinism, OneThreadEqualsManyThreads) {
  const Queries queries = queries_for({1, 4, 40});
  const Outputs one = run(sequences(), queries, {});
  for (const int num_threads : {2, 3, 4, 8, 13}) {
    EXPECT_TRUE(run(sequences(), queries, {}, num_threads).same_bits(one)) << num_threads;
  }
  const Queries decode = queries_for({1, 1, 1});
  EXPECT_TRUE(run(sequences(), decode, {}, 8).same_bits(run(sequences(), decode, {})));
}

TEST_P(Determinism, AnyBlockSizeAndAnyPageOrder) {
  const Queries queries = queries_for({5, 1, 70});
  const Outputs expected = run(sequences(), queries, {});
  for (const int block_size : {16, 48, 80, 2048}) {
    for (const bool shuffled : {false, true}) {
      TiledOptions options;
      options.block_size = block_size;
      options.shuffled = shuffled;
      EXPECT_TRUE(run(sequences(), queries, options, 2).same_bits(expected)) << block_size;
    }
  }
}

TEST_P(Determinism, AloneEqualsInABatch) {
  const std::vector<int> q_lens = {3, 9, 17};
  const Queries together = queries_for(q_lens);
  const Outputs batch = run(sequences(), together, {}, 2);
  for (size_t b = 0; b < 3; ++b) {
    Queries alone(kHeads, kShape.head_dim_k);
    alone.add(50 + b, q_lens[b]);
    const Outputs single = run({sequences()[b]}, alone, {});
    const auto from = static_cast<size_t>(together.indptr[b] * kHeads * kShape.head_dim_v);
    for (size_t i = 0; i < single.out.size(); ++i) {
      ASSERT_EQ(single.out[i], batch.out[from + i]) << "sequence " << b;
    }
  }
}

// Prefill of the last n tokens in one call, in chunks, and token by token. Slots ahead of a chunk
// hold NaN.
TEST_P(Determinism, AnyChunkingOfThePrompt) {
  for (const std::optional<int> window : {std::optional<int>(), std::optional<int>(70)}) {
    params_.window = window;
    const SequenceRows rows = random_rows(8, 600, kShape);
    const Queries whole = queries_for({80});
    const Outputs expected = run({rows}, whole, {});
    const size_t row = static_cast<size_t>(kHeads) * static_cast<size_t>(kShape.head_dim_v);
    for (const int chunk : {1, 7, 16, 61, 79}) {
      for (int begin = 0; begin < 80; begin += chunk) {
        const int count = std::min(chunk, 80 - begin);
        SequenceRows so_far = rows;
        so_far.kv_len = 520 + begin + count;
        const auto from = whole.values.begin() + int64_t{begin} * kHeads * kShape.head_dim_k;
        Queries part(kHeads, kShape.head_dim_k);
        part.add(std::vector<float>(from, from + int64_t{count} * kHeads * kShape.head_dim_k));
        const Outputs outputs = run({so_far}, part, {});
        for (size_t i = 0; i < outputs.out.size(); ++i) {
          ASSERT_EQ(outputs.out[i], expected.out[static_cast<size_t>(begin) * row + i])
              << "chunk " << chunk << " from " << begin;
        }
      }
    }
  }
}

TEST_P(Determinism, RepeatedCallsGiveTheSameBits) {
  const Queries queries = queries_for({2, 2, 2});
  TiledKv kv(kShape, sequences(), {.format = GetParam().format});
  const Segment segment{.view = kv.view()};
  const auto backend = backend_for(isa(), 3, GetParam().kernel_set);
  Outputs first;
  ASSERT_TRUE(attend(*backend, make_call(queries, {&segment, 1}, params_, first)).ok());
  for (int i = 0; i < 20; ++i) {
    Outputs again;
    ASSERT_TRUE(attend(*backend, make_call(queries, {&segment, 1}, params_, again)).ok());
    ASSERT_TRUE(again.same_bits(first));
  }
}

// ---- segments
// -------------------------------------------------------------------------------------------

// Exact first rows, a body and exact recent rows that hold the same values: one softmax over all of
// them. Not the same bits as one segment, since a partition takes its segments one after the other.
TEST_P(Determinism, SegmentsOfTheSameRowsAgreeWithOneSegment) {
  const SequenceRows rows = random_rows(4, 300, kShape);
  TiledKv kv(kShape, {rows}, {.format = GetParam().format});
  const Queries queries = queries_for({50});
  const Segment whole{.view = kv.view()};
  Outputs expected;
  ASSERT_TRUE(attend(*backend_for(isa(), 1, GetParam().kernel_set),
                     make_call(queries, {&whole, 1}, params_, expected))
                  .ok());
  const std::vector<Segment> parts = {{.view = kv.view(), .begin = 0, .end = 4},
                                      {.view = kv.view(), .begin = 4},
                                      {.view = kv.view(), .newest = 40}};
  Outputs outputs;
  ASSERT_TRUE(attend(*backend_for(isa(), 1, GetParam().kernel_set),
                     make_call(queries, parts, params_, outputs))
                  .ok());
  // Integer kernels round the weights of a step by the largest of those that a segment serves.
  const KvFormat format = GetParam().format;
  const bool rounds = is_packed(format.v) && GetParam().kernel_set == KernelSet::fast;
  EXPECT_LE(max_difference(outputs.out, expected.out), rounds ? 4e-4 : 2e-6);
  EXPECT_LE(max_difference(outputs.lse, expected.lse), 2e-6);
}

TEST_P(Determinism, RecentRowsAreRelativeToTheQueryInAnyChunking) {
  const SequenceRows packed = random_rows(4, 260, kShape);
  const SequenceRows exact = random_rows(5, 260, kShape);  // other values, so that a mix-up shows
  const Queries whole = queries_for({64});
  const auto run_with = [&](int kv_len, const Queries& queries) {
    SequenceRows body = packed;
    SequenceRows recent = exact;
    body.kv_len = recent.kv_len = kv_len;
    TiledKv body_kv(kShape, {body}, {.format = GetParam().format});
    TiledKv recent_kv(kShape, {recent}, {.format = GetParam().format});
    const std::vector<Segment> segments = {{.view = body_kv.view()},
                                           {.view = recent_kv.view(), .newest = 20}};
    Outputs outputs;
    EXPECT_TRUE(attend(*backend_for(isa(), 1, GetParam().kernel_set),
                       make_call(queries, segments, params_, outputs))
                    .ok());
    return outputs;
  };
  const Outputs expected = run_with(260, whole);
  const size_t row = static_cast<size_t>(kHeads) * static_cast<size_t>(kShape.head_dim_v);
  for (int i = 0; i < 64; ++i) {
    Queries one(kHeads, kShape.head_dim_k);
    const auto from = whole.values.begin() + int64_t{i} * kHeads * kShape.head_dim_k;
    one.add(std::vector<float>(from, from + int64_t{kHeads} * kShape.head_dim_k));
    const Outputs outputs = run_with(196 + i + 1, one);
    for (size_t d = 0; d < row; ++d) {
      ASSERT_EQ(outputs.out[d], expected.out[static_cast<size_t>(i) * row + d]) << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Setups, Determinism, testing::ValuesIn(setups()), [](const auto& test) {
  return std::string(cpu_isa_name(test.param.isa)) + "_" +
         std::string(kv_code_name(test.param.format.k)) + "_" +
         std::string(kv_code_name(test.param.format.v)) +
         (test.param.kernel_set == KernelSet::exact ? "_exact" : "");
});

}  // namespace
}  // namespace kvik::test
