#include "kvik/backend/cpu_backend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string>

#include "kvik/core/check.h"
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
    const std::string name = "cpu-" + std::string(cpu_isa_name(isa));
    EXPECT_EQ(test::backend_for(isa, 1, KernelSet::fast)->name(), name);
    EXPECT_EQ(test::backend_for(isa, 1, KernelSet::exact)->name(), name + "-exact");
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

// Address space whose pages appear when they are first written.
class SparseMemory {
 public:
  explicit SparseMemory(int64_t bytes) : bytes_(static_cast<size_t>(bytes)) {
    memory_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    KVIK_CHECK(memory_ != MAP_FAILED, "no address space");
  }
  SparseMemory(const SparseMemory&) = delete;
  SparseMemory& operator=(const SparseMemory&) = delete;
  ~SparseMemory() { munmap(memory_, bytes_); }
  std::byte* data() const { return static_cast<std::byte*>(memory_); }

 private:
  size_t bytes_;
  void* memory_;
};

// Pages whose offset is a multiple of 2^32: in 32 bits they would all be page 0.
TEST(CpuBackend, StoresRowsBeyondFourGigabytesWhereTheyBelong) {
  constexpr int64_t kPageStride = 16384;
  constexpr int kFarPage = 2 * 262144;  // at 2^33 bytes, 2^31 floats
  const test::KvShape shape{2, 64, 64};
  const test::SequenceRows rows = test::random_rows(3, 16, shape);
  test::TiledKv near(shape, {rows}, {.format = {KvCode::f32, KvCode::f32}});
  const MutableKvView expected = near.view();
  const SparseMemory memory((kFarPage + 1) * kPageStride);
  MutableKvView view = expected;
  view.k = memory.data();
  view.v = memory.data() + expected.k_stride[0];
  view.k_stride[0] = view.v_stride[0] = kPageStride;
  ASSERT_EQ(expected.k_stride[0] + expected.v_stride[0], kPageStride);
  view.num_pages = kFarPage + 1;
  std::vector<int64_t> slots;
  std::vector<int32_t> positions;
  for (int i = 0; i < 16; ++i) {
    slots.push_back(int64_t{kFarPage} * 16 + i);
    positions.push_back(i);
  }
  const auto backend = make_cpu_backend({}).value();
  EXPECT_EQ(
      backend->encode(view, ConstTensorView(rows.k.data(), DType::f32, {16, 2, 64}),
                      ConstTensorView(rows.v.data(), DType::f32, {16, 2, 64}), slots, positions),
      std::nullopt);
  const std::byte* const far = memory.data() + kFarPage * kPageStride;
  const auto size_k = static_cast<size_t>(expected.k_stride[0]);
  const auto size_v = static_cast<size_t>(expected.v_stride[0]);
  EXPECT_EQ(std::memcmp(far, expected.k, size_k), 0);
  EXPECT_EQ(std::memcmp(far + size_k, expected.v, size_v), 0);
  for (int64_t i = 0; i < kPageStride; ++i) ASSERT_EQ(memory.data()[i], std::byte{0}) << i;
}

TEST(CpuBackend, ReadsRowsOfArraysBeyondFourGigabytesAndWithGaps) {
  const test::KvShape shape{2, 32, 32};
  const test::SequenceRows rows = test::random_rows(3, 20, shape);
  // [token][head][dim] with gaps behind each head and each token, from row 2^17 on.
  constexpr int64_t kRow = 16384, kHead = 100;  // floats
  constexpr int kFirst = 1 << 17;
  const SparseMemory memory((kFirst + 20) * kRow * 4);
  auto* const floats = reinterpret_cast<float*>(memory.data());
  for (int64_t t = 0; t < 20; ++t) {
    for (int64_t h = 0; h < 2; ++h) {
      float* const to = floats + (kFirst + t) * kRow + h * kHead;
      std::copy_n(rows.k.data() + (t * 2 + h) * 32, 32, to);
      std::copy_n(rows.v.data() + (t * 2 + h) * 32, 32, to + 1000);
      to[32] = to[1032] = NAN;
    }
  }
  ConstTensorView k(floats, DType::f32, {kFirst + 20, 2, 32});
  k.stride = {kRow, kHead, 1, 0};
  ConstTensorView v = k;
  v.data += 1000 * sizeof(float);
  const std::vector<int32_t> far_indptr = {kFirst, kFirst + 20}, indptr = {0, 20};
  const std::vector<int32_t> length = {20}, first = {0};
  const Segment far{.view = rows_view(k, v, far_indptr, length, first).value()};
  const ConstTensorView near_k(rows.k.data(), DType::f32, {20, 2, 32});
  const ConstTensorView near_v(rows.v.data(), DType::f32, {20, 2, 32});
  const Segment near{.view = rows_view(near_k, near_v, indptr, length, first).value()};
  test::Queries queries(4, 32);
  queries.add(9, 3);
  for (const CpuIsa isa : available_cpu_isas(detect_cpu_features())) {
    test::Outputs from_far, from_near;
    const auto backend = test::backend_for(isa);
    ASSERT_TRUE(attend(*backend, test::make_call(queries, {&far, 1}, {}, from_far)).ok());
    ASSERT_TRUE(attend(*backend, test::make_call(queries, {&near, 1}, {}, from_near)).ok());
    EXPECT_TRUE(from_far.same_bits(from_near));
  }
}

}  // namespace
}  // namespace kvik
