#include "kvik/backend/cpu_backend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

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

// In a child process that may have three threads: 0 if the error names the count that was asked
// for.
[[noreturn]] void make_a_team_under_a_limit() {
  // Root is exempt from the limit, so leave root.
  if (geteuid() == 0 && setuid(54321) != 0) std::_Exit(77);
  const rlimit limit = {3, 3};
  if (setrlimit(RLIMIT_NPROC, &limit) != 0) std::_Exit(77);
  CpuBackendOptions options;
  options.num_threads = 40;
  const Status status = make_cpu_backend(options).status();
  const bool named = status.message().find("num_threads is 40") != std::string::npos;
  std::_Exit(status.code() == StatusCode::out_of_memory && named ? 0 : 1);
}

TEST(CpuBackend, SaysWhichThreadCountTheSystemRefused) {
  const pid_t child = fork();
  if (child == 0) make_a_team_under_a_limit();
  int state = 0;
  ASSERT_EQ(waitpid(child, &state, 0), child);
  ASSERT_TRUE(WIFEXITED(state)) << "the child was ended by signal " << WTERMSIG(state);
  if (WEXITSTATUS(state) == 77) GTEST_SKIP() << "no limit can be set here";
  EXPECT_EQ(WEXITSTATUS(state), 0);
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
