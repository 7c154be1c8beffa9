#include "kvik/backend/cpu_backend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/attention_case.h"

namespace kvik {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(CpuBackend, OffersOnlyTheScalarKernelsToAProcessorWithoutVectors) {
  EXPECT_THAT(available_cpu_isas({}), ElementsAre(CpuIsa::scalar));
}

TEST(CpuBackend, PrefersTheWidestVectorsOfAProcessor) {
  CpuFeatures features;
  features.avx2 = features.fma = features.f16c = features.avx512 = true;
  for (const CpuVendor vendor : {CpuVendor::amd, CpuVendor::intel, CpuVendor::other}) {
    features.vendor = vendor;
    const std::vector<CpuIsa> isas = available_cpu_isas(features);
    EXPECT_EQ(isas.back(), CpuIsa::scalar);
#if defined(KVIK_HAVE_SPINE_AVX512) && defined(KVIK_HAVE_SPINE_AVX2)
    EXPECT_THAT(isas, ElementsAre(CpuIsa::avx512, CpuIsa::avx2, CpuIsa::scalar));
#endif
  }
  features.fma = false;
  EXPECT_THAT(available_cpu_isas(features), ElementsAre(CpuIsa::scalar));
}

TEST(CpuBackend, RefusesAnInstructionSetThatIsNotThere) {
  CpuBackendOptions options;
  options.features = {};
  options.isa = CpuIsa::avx2;
  const auto backend = make_cpu_backend(options);
  ASSERT_FALSE(backend.ok());
  EXPECT_EQ(backend.status().code(), StatusCode::unsupported);
  EXPECT_THAT(backend.status().message(), HasSubstr("available: scalar"));
}

TEST(CpuBackend, RunsTheInstructionSetThatWasAskedFor) {
  for (const CpuIsa isa : available_cpu_isas(detect_cpu_features())) {
    EXPECT_EQ(test::backend_for(isa)->name(), "cpu-" + std::string(cpu_isa_name(isa)));
  }
}

TEST(CpuBackend, RefusesThreadCountsOutOfRange) {
  for (const int num_threads : {-1, 0, 1025}) {
    CpuBackendOptions options;
    options.num_threads = num_threads;
    EXPECT_EQ(make_cpu_backend(options).status().code(), StatusCode::invalid_argument);
  }
}

TEST(CpuBackend, EncodesTheSameRowsWithAnyNumberOfThreads) {
  const test::KvShape shape{5, 128, 96};
  constexpr int kTokens = 160;
  const test::SequenceRows rows = test::random_rows(1, kTokens, shape);
  test::TiledOptions options;
  options.format = {KvCode::bf16, KvCode::f16};
  options.shuffled = true;
  test::TiledKv expected(shape, {rows}, options);
  test::TiledKv written(
      shape, {{kTokens, std::vector<float>(rows.k.size()), std::vector<float>(rows.v.size())}},
      options);
  const MutableKvView view = written.view();
  std::vector<int64_t> slots;
  std::vector<int32_t> positions;
  for (int i = 0; i < kTokens; ++i) {
    slots.push_back(int64_t{view.page_ids[static_cast<size_t>(i / 16)]} * 16 + i % 16);
    positions.push_back(i);
  }
  const auto backend = test::backend_for(CpuIsa::scalar, 4);
  EXPECT_EQ(backend->encode(view, {rows.k.data(), DType::f32, {kTokens, 5, 128}},
                            {rows.v.data(), DType::f32, {kTokens, 5, 96}}, slots, positions),
            std::nullopt);
  const MutableKvView wanted = expected.view();
  EXPECT_EQ(std::memcmp(view.k, wanted.k, static_cast<size_t>(view.k_stride[0] * view.num_pages)),
            0);
  EXPECT_EQ(std::memcmp(view.v, wanted.v, static_cast<size_t>(view.v_stride[0] * view.num_pages)),
            0);
}

}  // namespace
}  // namespace kvik
