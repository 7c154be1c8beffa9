// The AVX-512 kernels under emulation give the bits of the scalar ones.
#include <gtest/gtest.h>

#include "backend/cpu/cpu_backend_kernels.h"
#include "kvik/core/cpu_features.h"
#include "support/attention_case.h"
#include "support/unpack_case.h"

namespace kvik::cpu {
extern const AttendKernels kEmulatedAvx512Kernels;
}

namespace kvik::test {
namespace {

class EmulatedAvx512 : public testing::Test {
 protected:
  void SetUp() override {
    const CpuFeatures features = detect_cpu_features();
    if (!features.avx2 || !features.fma || !features.f16c) {
      GTEST_SKIP() << "the emulation itself needs AVX2, FMA and F16C";
    }
    for (const KernelSet set : {KernelSet::exact, KernelSet::fast}) {
      scalar_.push_back(backend_for(CpuIsa::scalar, 1, set));
      emulated_.push_back(
          cpu::make_backend_of_kernels(cpu::kEmulatedAvx512Kernels, "emulated", set, 1));
    }
  }

  void expect_same_bits(const KvShape& shape, int num_heads, const TiledOptions& options,
                        const AttentionParams& params,
                        const std::vector<std::pair<int, int>>& seqs) {
    std::vector<SequenceRows> sequences;
    Queries queries(num_heads, shape.head_dim_k);
    for (size_t b = 0; b < seqs.size(); ++b) {
      sequences.push_back(random_rows(20 + b, seqs[b].second, shape));
      queries.add(90 + b, seqs[b].first);
    }
    TiledKv kv(shape, sequences, options);
    const Segment segment{.view = kv.view()};
    for (size_t set = 0; set < scalar_.size(); ++set) {
      Outputs expected, outputs;
      ASSERT_TRUE(attend(*scalar_[set], make_call(queries, {&segment, 1}, params, expected)).ok());
      ASSERT_TRUE(attend(*emulated_[set], make_call(queries, {&segment, 1}, params, outputs)).ok());
      EXPECT_TRUE(outputs.same_bits(expected));
    }
  }

  std::vector<std::unique_ptr<Backend>> scalar_, emulated_;  // of both kernel sets
};

TEST_F(EmulatedAvx512, ForAllFormatsAndRowCounts) {
  for (const KvCode code : all_kv_codes()) {
    for (const int heads : {1, 2, 3, 4, 5, 8}) {
      TiledOptions options;
      options.format = {code, code};
      options.shuffled = true;
      KvShape shape{1, 40, 100};
      if (is_packed(code)) {
        if (heads > 2) continue;
        shape = {1, 96, 160};
        if (!stores_keys(code)) options.format.k = KvCode::f16;
        if (!stores_values(code)) options.format.v = KvCode::f16;
      }
      expect_same_bits(shape, heads, options, {.scale = 0.15f}, {{1, 200}, {3, 77}, {9, 9}});
    }
  }
}

TEST_F(EmulatedAvx512, UnpacksTheDecodedRowsOfEveryCode) {
  for (const KvCode code : all_packed_codes()) {
    expect_decoded(cpu::kEmulatedAvx512Kernels, code);
  }
}

TEST_F(EmulatedAvx512, ForWindowsSinksAndSoftcap) {
  const std::vector<float> sinks = {-1.0f, 0.0f, 1.0f, 2.0f};
  for (const int window : {0, 1, 17, 64, 300}) {
    for (const float softcap : {0.0f, 1.5f, 30.0f}) {
      TiledOptions options;
      options.format = {KvCode::bf16, KvCode::f16};
      expect_same_bits({2, 64, 64}, 4, options,
                       {.scale = 0.3f, .window = window, .softcap = softcap, .sinks = sinks},
                       {{5, 700}, {1, 30}});
    }
  }
}

TEST_F(EmulatedAvx512, ForOddHeadDims) {
  for (const int dim : {1, 3, 16, 31, 80, 576}) {
    TiledOptions options;
    options.format = {KvCode::f16, KvCode::bf16};
    expect_same_bits({1, dim, dim}, 4, options, {.scale = 0.1f}, {{2, 90}});
  }
}

}  // namespace
}  // namespace kvik::test
