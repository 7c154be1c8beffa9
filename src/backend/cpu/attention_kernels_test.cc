// Kernels of every instruction set of this machine against the double-precision reference.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cmath>
#include <fstream>
#include <optional>
#include <string>

#include "kvik/attention/reference.h"
#include "kvik/core/cpu_features.h"
#include "support/attention_case.h"

namespace kvik::test {
namespace {

std::vector<CpuIsa> isas() { return available_cpu_isas(detect_cpu_features()); }

// What a case varies; the rest is derived from the seed.
struct Shape {
  int num_heads = 8, num_kv_heads = 2, head_dim_k = 64, head_dim_v = 64;
  std::vector<std::pair<int, int>> seqs;  // q_len, kv_len
  AttentionParams params;
  TiledOptions options;
};

// The call on every instruction set: close to the reference, and the same bits on all of them.
void expect_right(const Shape& shape, uint64_t seed, double tolerance = 1e-5) {
  const KvShape kv_shape{shape.num_kv_heads, shape.head_dim_k, shape.head_dim_v};
  std::vector<SequenceRows> sequences;
  Queries queries(shape.num_heads, shape.head_dim_k);
  for (size_t b = 0; b < shape.seqs.size(); ++b) {
    sequences.push_back(random_rows(seed + 10 * b, shape.seqs[b].second, kv_shape));
    queries.add(seed + 10 * b + 5, shape.seqs[b].first);
  }
  TiledKv kv(kv_shape, sequences, shape.options);
  const Segment segment{.view = kv.view()};
  Outputs first;
  const AttentionCall call = make_call(queries, {&segment, 1}, shape.params, first);
  const Result<ReferenceResult> reference = reference_attention(call);
  ASSERT_TRUE(reference.ok()) << reference.status().to_string();
  for (const CpuIsa isa : isas()) {
    Outputs outputs;
    const AttentionCall again = make_call(queries, {&segment, 1}, shape.params, outputs);
    ASSERT_TRUE(attend(*backend_for(isa), again).ok());
    const std::string name(cpu_isa_name(isa));
    EXPECT_LE(max_difference(outputs.out, reference->out), tolerance) << name << " seed " << seed;
    EXPECT_LE(max_difference(outputs.lse, reference->lse), 2 * tolerance) << name;
    EXPECT_LE(max_difference(outputs.lse_keys, reference->lse_keys), 2 * tolerance) << name;
    if (isa == isas().front()) first = outputs;
    EXPECT_TRUE(outputs.same_bits(first)) << name << " differs from " << cpu_isa_name(isas()[0]);
  }
}

TEST(AttentionKernels, CoverEveryInstructionSetOfThisMachine) {
  // The expectation comes from the system, not from our own CPUID code.
  std::ifstream file("/proc/cpuinfo");
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const auto has = [&](const std::string& flag) {
    return text.find(" " + flag + " ") != std::string::npos;
  };
  size_t expected = 1;
#ifdef KVIK_HAVE_SPINE_AVX2
  if (has("avx2") && has("fma") && has("f16c")) ++expected;
#endif
#ifdef KVIK_HAVE_SPINE_AVX512
  if (has("avx512f") && has("avx512bw") && has("avx512dq") && has("avx512vl")) ++expected;
#endif
  EXPECT_EQ(isas().size(), expected);
}

TEST(AttentionKernels, MatchTheReferenceForAllFormatPairs) {
  uint64_t seed = 1000;
  for (const KvCode k : all_kv_codes()) {
    for (const KvCode v : all_kv_codes()) {
      // Sides are read apart: packed codes meet one plain code and themselves.
      if (is_packed(k) && is_packed(v) && k != v) continue;
      if (is_packed(k) != is_packed(v) && k != KvCode::bf16 && v != KvCode::bf16) continue;
      if (!stores_keys(k) || !stores_values(v)) continue;
      Shape shape;
      shape.head_dim_v = is_packed(v) ? 96 : 48;
      shape.params.scale = 0.125f;
      shape.seqs = {{1, 77}, {5, 131}};
      shape.options.format = {k, v};
      shape.options.shuffled = true;
      expect_right(shape, seed += 100);
    }
  }
}

TEST(AttentionKernels, MatchTheReferenceForAllHeadDims) {
  uint64_t seed = 5000;
  for (const int dim : {0, 1, 2, 3, 7, 15, 16, 17, 31, 33, 63, 64, 80, 100, 128, 255, 512, 576}) {
    for (const KvCode code : all_kv_codes()) {
      Shape shape;
      shape.num_heads = 3;
      shape.num_kv_heads = 1;
      shape.head_dim_k = dim;
      shape.head_dim_v = dim == 0 ? 16 : 577 - std::max(dim, 1);
      shape.seqs = {{2, 37}};
      shape.params.scale = dim == 0 ? 1.0f : 1.0f / std::sqrt(static_cast<float>(dim));
      shape.options.format = {code, code};
      if (!check_keys(code, shape.head_dim_k).ok()) continue;
      if (is_packed(code)) shape.head_dim_v = dim;
      const bool both = check_values(code, shape.head_dim_v).ok();
      if (!both) shape.options.format.v = KvCode::f16;
      expect_right(shape, seed += 100);
    }
  }
}

// Value formats that no key format mirrors.
TEST(AttentionKernels, MatchTheReferenceForAllHeadDimsOfValues) {
  uint64_t seed = 9000;
  for (const int dim : {32, 64, 96, 160, 512, 576}) {
    for (const KvCode code : all_packed_codes()) {
      if (stores_keys(code) || !check_values(code, dim).ok()) continue;
      Shape shape;
      shape.head_dim_k = 16;
      shape.head_dim_v = dim;
      shape.seqs = {{2, 37}};
      shape.params.scale = 0.25f;
      shape.options.format = {KvCode::f32, code};
      expect_right(shape, seed += 100);
    }
  }
}

TEST(AttentionKernels, MatchTheReferenceAtEveryLengthAroundBlocksAndPartitions) {
  for (const int length : {1,  2,  15, 16,  17,  31,  32,  33,  47,  48,   49,
                           63, 64, 65, 127, 128, 129, 511, 512, 513, 1023, 1025}) {
    for (const Poison poison : {Poison::nan, Poison::large}) {
      Shape shape;
      shape.seqs = {{1, length}};
      shape.head_dim_k = shape.head_dim_v = 32;
      shape.options.poison = poison;
      shape.options.shuffled = true;
      for (const KvFormat format : {KvFormat{KvCode::bf16, KvCode::bf16},
                                    {KvCode::tqk_q5_0, KvCode::tqv_q3_0},
                                    {KvCode::q8, KvCode::q4},
                                    {KvCode::tcq4, KvCode::tcq3}}) {
        shape.options.format = format;
        expect_right(shape, static_cast<uint64_t>(length));
      }
    }
  }
}

TEST(AttentionKernels, MatchTheReferenceForHeadGroups) {
  for (const auto& [heads, kv_heads] : std::vector<std::pair<int, int>>{
           {1, 1}, {8, 1}, {12, 12}, {9, 3}, {28, 4}, {14, 2}, {5, 1}, {70, 1}}) {
    Shape shape;
    shape.num_heads = heads;
    shape.num_kv_heads = kv_heads;
    shape.head_dim_k = shape.head_dim_v = 16;
    shape.seqs = {{1, 40}, {7, 90}};
    expect_right(shape, static_cast<uint64_t>(100 * heads + kv_heads));
  }
}

TEST(AttentionKernels, MatchTheReferenceForWindowsSoftcapSinksAndFullAttention) {
  std::vector<float> sinks;
  for (int h = 0; h < 8; ++h) sinks.push_back(static_cast<float>(h) - 4.0f);
  for (const int window : {-1, 0, 1, 2, 16, 17, 100, 600, 5000}) {
    for (const float softcap : {0.0f, 0.5f, 20.0f}) {
      for (const bool causal : {true, false}) {
        Shape shape;
        shape.head_dim_k = shape.head_dim_v = 32;
        shape.seqs = {{9, 530}, {1, 17}};
        shape.params.causal = causal;
        if (window >= 0) shape.params.window = window;
        shape.params.softcap = softcap;
        if (softcap != 0.5f) shape.params.sinks = sinks;
        expect_right(shape, static_cast<uint64_t>(window + 7000));
        if (softcap == 0.5f) continue;
        shape.options.format = {KvCode::tq4, KvCode::tcq2};
        shape.seqs = {{3, 530}, {1, 17}};
        expect_right(shape, static_cast<uint64_t>(window + 8000));
      }
    }
  }
}

TEST(AttentionKernels, MatchTheReferenceFromALaterFirstPosition) {
  for (const int first : {16, 48, 496, 512, 4096}) {
    Shape shape;
    shape.seqs = {{3, 130}};
    shape.params.window = 100;
    shape.options.first_pos = first;
    shape.options.block_size = 32;
    expect_right(shape, static_cast<uint64_t>(first));
  }
}

// ---- known answers
// ------------------------------------------------------------------------------------

// One sequence whose rows and queries the test writes by hand.
struct Handmade {
  KvShape shape{1, 4, 4};
  SequenceRows rows;
  Queries queries{1, 4};
  AttentionParams params{.scale = 1.0f};

  Outputs run(CpuIsa isa, KvFormat format = {KvCode::f32, KvCode::f32}) const {
    TiledOptions options;
    options.format = format;
    TiledKv kv(shape, {rows}, options);
    const Segment segment{.view = kv.view()};
    Outputs outputs;
    const AttentionCall call = make_call(queries, {&segment, 1}, params, outputs);
    EXPECT_TRUE(attend(*backend_for(isa), call).ok());
    return outputs;
  }
};

Handmade handmade(int kv_len, float key, float query) {
  Handmade h;
  h.rows.kv_len = kv_len;
  h.rows.k.assign(static_cast<size_t>(4 * kv_len), key);
  for (int t = 0; t < kv_len; ++t) {
    for (int d = 0; d < 4; ++d) h.rows.v.push_back(static_cast<float>(t + 1));
  }
  h.queries.add(std::vector<float>(4, query));
  return h;
}

TEST(AttentionKernels, ZeroQueryGivesTheMeanOfTheValuesWithoutPaddingLanes) {
  for (const CpuIsa isa : isas()) {
    for (const int length : {1, 100, 255, 256, 257}) {
      Handmade h = handmade(length, 1.0f, 0.0f);
      h.params.causal = false;
      const Outputs outputs = h.run(isa);
      EXPECT_NEAR(outputs.out[0], (length + 1) / 2.0, 1e-4 * length) << length;
      EXPECT_NEAR(outputs.lse[0], std::log(length), 1e-5);
    }
  }
}

TEST(AttentionKernels, ScoresFarBelowAnySentinelAreStillScores) {
  for (const CpuIsa isa : isas()) {
    for (const double score : {-60000.0, -1e30}) {
      Handmade h = handmade(4, static_cast<float>(score / 4), 1.0f);
      const Outputs outputs = h.run(isa);
      EXPECT_FLOAT_EQ(outputs.out[0], 2.5f);
      EXPECT_NEAR(outputs.lse[0], score + std::log(4.0), std::abs(score) * 1e-6);
    }
  }
}

TEST(AttentionKernels, LargeValuesDoNotOverflowTheSum) {
  for (const CpuIsa isa : isas()) {
    for (const auto& [length, value] :
         std::vector<std::pair<int, float>>{{64, 2000.0f}, {32768, 10.0f}}) {
      Handmade h = handmade(length, 1.0f, 1.0f);
      std::fill(h.rows.v.begin(), h.rows.v.end(), value);
      EXPECT_NEAR(h.run(isa, {KvCode::f16, KvCode::f16}).out[0], value, value * 1e-5);
    }
  }
}

TEST(AttentionKernels, LargeDotsAreSummedInFloat) {
  for (const CpuIsa isa : isas()) {
    Handmade h;
    h.shape = {1, 128, 4};
    h.rows.kv_len = 2;
    h.rows.k.assign(256, 50.0f);
    std::fill(h.rows.k.begin() + 128, h.rows.k.end(), 25.0f);
    h.rows.v = {1, 1, 1, 1, 9, 9, 9, 9};
    h.queries = Queries(1, 128);
    h.queries.add(std::vector<float>(128, 50.0f));
    h.params.scale = 1.0f / std::sqrt(128.0f);
    const Outputs outputs = h.run(isa, {KvCode::f16, KvCode::f16});
    EXPECT_EQ(outputs.out[0], 1.0f);
    EXPECT_NEAR(outputs.lse[0], 28284.27, 0.01);
  }
}

TEST(AttentionKernels, EachQueryHeadReadsItsOwnKvHead) {
  for (const auto& [heads, kv_heads] :
       std::vector<std::pair<int, int>>{{12, 12}, {32, 8}, {28, 4}, {14, 2}, {8, 1}}) {
    const KvShape shape{kv_heads, 4, 80};
    SequenceRows rows{3, std::vector<float>(static_cast<size_t>(3 * kv_heads * 4), 1.0f), {}};
    for (int t = 0; t < 3; ++t) {
      for (int h = 0; h < kv_heads; ++h) rows.v.insert(rows.v.end(), 80, static_cast<float>(h + 1));
    }
    Queries queries(heads, 4);
    queries.add(1, 1);
    TiledKv kv(shape, {rows}, {});
    const Segment segment{.view = kv.view()};
    for (const CpuIsa isa : isas()) {
      Outputs outputs;
      ASSERT_TRUE(attend(*backend_for(isa), make_call(queries, {&segment, 1}, {}, outputs)).ok());
      for (int h = 0; h < heads; ++h) {
        for (int d = 0; d < 80; ++d) {
          EXPECT_NEAR(outputs.out[static_cast<size_t>(h * 80 + d)],
                      static_cast<float>(h / (heads / kv_heads) + 1), 1e-5);
        }
      }
    }
  }
}

TEST(AttentionKernels, RowsThatSeeNothingGiveZerosAndMinusInfinityOrTheSink) {
  const std::vector<float> sink = {3.5f};
  for (const CpuIsa isa : isas()) {
    Handmade h = handmade(20, 1.0f, 1.0f);
    h.params.window = 0;
    Outputs outputs = h.run(isa);
    EXPECT_EQ(outputs.out, std::vector<float>(4, 0.0f));
    EXPECT_EQ(outputs.lse[0], -INFINITY);
    EXPECT_EQ(outputs.lse_keys[0], -INFINITY);
    h.params.sinks = sink;
    outputs = h.run(isa);
    EXPECT_EQ(outputs.out, std::vector<float>(4, 0.0f));
    EXPECT_EQ(outputs.lse[0], 3.5f);
    EXPECT_EQ(outputs.lse_keys[0], -INFINITY);
  }
}

TEST(AttentionKernels, SequencesWithoutKeysOrQueriesAreFine) {
  Shape shape;
  shape.seqs = {{0, 30}, {2, 0}, {0, 0}, {1, 5}};
  shape.params.causal = false;
  expect_right(shape, 77);
  shape.params.causal = true;
  expect_right(shape, 78);
  shape.seqs = {};
  expect_right(shape, 79);
}

TEST(AttentionKernels, NotANumberInAVisibleRowIsNotHidden) {
  for (const CpuIsa isa : isas()) {
    for (const bool in_key : {true, false}) {
      Handmade h = handmade(70, 1.0f, 1.0f);
      (in_key ? h.rows.k : h.rows.v)[4 * 33 + 2] = NAN;
      EXPECT_TRUE(std::isnan(h.run(isa).out[2]));
    }
  }
}

TEST(AttentionKernels, OutputsRoundToTheirOwnType) {
  const KvShape shape{2, 64, 64};
  TiledKv kv(shape, {random_rows(3, 50, shape)}, {});
  const Segment segment{.view = kv.view()};
  Queries queries(4, 64);
  queries.add(9, 2);
  for (const CpuIsa isa : isas()) {
    Outputs outputs;
    AttentionCall call = make_call(queries, {&segment, 1}, {}, outputs);
    ASSERT_TRUE(attend(*backend_for(isa), call).ok());
    for (const DType dtype : {DType::f16, DType::bf16}) {
      std::vector<uint16_t> half(outputs.out.size());
      call.out = TensorView(half.data(), dtype, {2, 4, 64});
      ASSERT_TRUE(attend(*backend_for(isa), call).ok());
      for (size_t i = 0; i < half.size(); ++i) {
        const float x = outputs.out[i];
        ASSERT_EQ(half[i], dtype == DType::f16 ? f32_to_f16(x) : f32_to_bf16(x));
      }
    }
  }
}

// ---- which keys are seen
// ------------------------------------------------------------------------------------

// Up to 32 tokens whose value is 1 in the dim of their position, and queries of zeros: a key is
// seen where the output is not zero.
class SeenKeys {
 public:
  explicit SeenKeys(int kv_len, int q_len = 1) : queries_(1, 4) {
    SequenceRows rows{kv_len, std::vector<float>(static_cast<size_t>(4 * kv_len), 1.0f), {}};
    rows.v.assign(static_cast<size_t>(32 * kv_len), 0.0f);
    for (size_t t = 0; t < static_cast<size_t>(kv_len); ++t) rows.v[t * 32 + t] = 1;
    kv_.emplace(KvShape{1, 4, 32}, std::vector<SequenceRows>{rows}, TiledOptions{});
    queries_.add(std::vector<float>(static_cast<size_t>(4 * q_len), 0.0f));
  }

  KvView view() { return kv_->view(); }
  // For each query the positions that it sees, all equally.
  std::vector<std::vector<int>> by(CpuIsa isa, std::span<const Segment> segments,
                                   const AttentionParams& params) const {
    Outputs outputs;
    EXPECT_TRUE(attend(*backend_for(isa), make_call(queries_, segments, params, outputs)).ok());
    std::vector<std::vector<int>> seen;
    for (auto row = outputs.out.begin(); row != outputs.out.end(); row += 32) {
      std::vector<int>& positions = seen.emplace_back();
      for (int t = 0; t < 32; ++t) {
        if (row[t] != 0) positions.push_back(t);
      }
      for (const int t : positions) {
        EXPECT_NEAR(row[t], 1.0 / static_cast<double>(positions.size()), 1e-6);
      }
    }
    return seen;
  }

 private:
  std::optional<TiledKv> kv_;
  Queries queries_;
};

TEST(AttentionKernels, AWindowOfFourIsTheQueryAndThreeBeforeItInAnyChunking) {
  const std::vector<std::vector<int>> expected = {
      {0},          {0, 1},       {0, 1, 2},    {0, 1, 2, 3}, {1, 2, 3, 4},  {2, 3, 4, 5},
      {3, 4, 5, 6}, {4, 5, 6, 7}, {5, 6, 7, 8}, {6, 7, 8, 9}, {7, 8, 9, 10}, {8, 9, 10, 11}};
  for (const CpuIsa isa : isas()) {
    for (const int chunk : {12, 3, 1}) {
      std::vector<std::vector<int>> seen;
      for (int begin = 0; begin < 12; begin += chunk) {
        SeenKeys keys(begin + chunk, chunk);
        const Segment segment{.view = keys.view()};
        for (auto& positions : keys.by(isa, {&segment, 1}, {.window = 4})) {
          seen.push_back(std::move(positions));
        }
      }
      EXPECT_EQ(seen, expected) << "chunks of " << chunk;
    }
  }
}

TEST(AttentionKernels, FirstAndNewestRowsAreSeenAlikeByOneQueryAndByThree) {
  for (const CpuIsa isa : isas()) {
    for (const int q_len : {1, 3}) {
      SeenKeys keys(21, q_len);
      const std::vector<Segment> segments = {{.view = keys.view(), .begin = 0, .end = 2},
                                             {.view = keys.view(), .begin = 2, .newest = 4}};
      EXPECT_EQ(keys.by(isa, segments, {}).back(), (std::vector<int>{0, 1, 17, 18, 19, 20}));
    }
  }
}

TEST(AttentionKernels, TheLargestScoreWinsAtEveryPlaceOfEveryLength) {
  for (const CpuIsa isa : isas()) {
    for (int length = 1; length <= 67; ++length) {
      for (int place = 0; place < length; ++place) {
        Handmade h = handmade(length, -50.0f, 1.0f);
        std::fill_n(h.rows.k.begin() + 4 * place, 4, 50.0f);
        const Outputs outputs = h.run(isa);
        ASSERT_EQ(outputs.out[3], static_cast<float>(place + 1)) << length;
        ASSERT_EQ(outputs.lse[0], 200.0f) << length << ", " << place;
      }
    }
  }
}

// ---- addresses
// ------------------------------------------------------------------------------------------

// The same rows behind a pool whose offsets pass 2^32 bytes: nothing is computed in 32 bits.
TEST(AttentionKernels, PagesBeyondFourGigabytesAreRead) {
  const int64_t page_stride = int64_t{1} << 20;
  constexpr int kFarPage = 8192;  // at 2^33 bytes
  const int64_t bytes = (kFarPage + 1) * page_stride;
  void* memory = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  const KvShape shape{2, 64, 64};
  TiledKv near(shape, {random_rows(3, 16, shape)}, {});
  const KvView near_view = near.view();
  auto* base = static_cast<std::byte*>(memory);
  std::byte* const far_k = base + kFarPage * page_stride;
  std::byte* const far_v = far_k + near_view.k_stride[0];
  std::copy_n(near_view.k, near_view.k_stride[0], far_k);
  std::copy_n(near_view.v, near_view.v_stride[0], far_v);
  KvView far_view = near_view;
  far_view.k = base;
  far_view.v = base + near_view.k_stride[0];
  far_view.k_stride[0] = far_view.v_stride[0] = page_stride;
  far_view.num_pages = kFarPage + 1;
  const std::vector<int32_t> ids = {kFarPage};
  far_view.page_ids = ids;
  Queries queries(4, 64);
  queries.add(9, 1);
  for (const CpuIsa isa : isas()) {
    Outputs near_out, far_out;
    const Segment near_segment{.view = near_view};
    const Segment far_segment{.view = far_view};
    ASSERT_TRUE(
        attend(*backend_for(isa), make_call(queries, {&near_segment, 1}, {}, near_out)).ok());
    ASSERT_TRUE(attend(*backend_for(isa), make_call(queries, {&far_segment, 1}, {}, far_out)).ok());
    EXPECT_TRUE(near_out.same_bits(far_out));
  }
  munmap(memory, static_cast<size_t>(bytes));
}

TEST(AttentionKernels, InterleavedPagesAndStridedTensorsGiveTheSameBits) {
  const KvShape shape{3, 32, 32};
  TiledKv kv(shape, {random_rows(3, 100, shape)}, {});
  const KvView plain = kv.view();
  // [page][K|V][head][tile], with 64 bytes of poison after each page.
  const int64_t stride = plain.k_stride[0] + plain.v_stride[0] + 64;
  std::vector<std::byte> storage(static_cast<size_t>(stride * plain.num_pages + 64),
                                 std::byte{0xff});
  auto* base = storage.data() + (64 - reinterpret_cast<uintptr_t>(storage.data()) % 64) % 64;
  for (int page = 0; page < plain.num_pages; ++page) {
    std::copy_n(plain.k + page * plain.k_stride[0], plain.k_stride[0], base + page * stride);
    std::copy_n(plain.v + page * plain.v_stride[0], plain.v_stride[0],
                base + page * stride + plain.k_stride[0]);
  }
  KvView interleaved = plain;
  interleaved.k = base;
  interleaved.v = base + plain.k_stride[0];
  interleaved.k_stride[0] = interleaved.v_stride[0] = stride;
  Queries queries(6, 32);
  queries.add(9, 4);
  // The same queries as [heads][queries][dim] with a gap after each row.
  std::vector<float> transposed(6 * 4 * 40, NAN);
  std::vector<float> gapped(6 * 4 * 50, -1.0f);
  for (size_t q = 0; q < 4; ++q) {
    for (size_t h = 0; h < 6; ++h) {
      std::copy_n(queries.values.begin() + static_cast<int64_t>((q * 6 + h) * 32), 32,
                  transposed.begin() + static_cast<int64_t>((h * 4 + q) * 40));
    }
  }
  for (const CpuIsa isa : isas()) {
    Outputs expected, outputs;
    const Segment a{.view = plain};
    const Segment b{.view = interleaved};
    ASSERT_TRUE(attend(*backend_for(isa), make_call(queries, {&a, 1}, {}, expected)).ok());
    AttentionCall call = make_call(queries, {&b, 1}, {}, outputs);
    call.q.data = reinterpret_cast<const std::byte*>(transposed.data());
    call.q.stride = {40, 160, 1};
    call.out.data = reinterpret_cast<std::byte*>(gapped.data());
    call.out.stride = {50, 200, 1};
    ASSERT_TRUE(attend(*backend_for(isa), call).ok());
    for (size_t q = 0; q < 4; ++q) {
      for (size_t h = 0; h < 6; ++h) {
        for (size_t d = 0; d < 32; ++d) {
          ASSERT_EQ(gapped[h * 200 + q * 50 + d], expected.out[(q * 6 + h) * 32 + d]);
        }
        ASSERT_EQ(gapped[h * 200 + q * 50 + 32], -1.0f) << "wrote past a row";
      }
    }
  }
}

}  // namespace
}  // namespace kvik::test
