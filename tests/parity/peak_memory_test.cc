// The most memory that a process ever holds for a cache: what was predicted, and nothing decoded to
// the side.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "kvik/cache/cache_set.h"
#include "kvik/cache/size_prediction.h"
#include "support/attention_case.h"

namespace kvik::test {
namespace {

constexpr int kKvHeads = 4;
constexpr int kDim = 64;
constexpr int kLayers = 3;
constexpr int kBatch = 512;
constexpr int kTokens = 8192;

// High-water mark of the process's resident memory.
int64_t peak_bytes() {
  std::FILE* const file = std::fopen("/proc/self/status", "r");
  if (file == nullptr) return -1;
  char line[256];
  long long kib = -1;
  while (std::fgets(line, sizeof line, file) != nullptr) {
    if (std::sscanf(line, "VmHWM: %lld kB", &kib) == 1) break;
  }
  std::fclose(file);
  return kib < 0 ? -1 : kib * 1024;
}

PagedCacheOptions options_of(KvFormat format) {
  PagedCacheOptions options;
  options.spec = {kKvHeads, kDim, kDim, std::vector<KvFormat>(kLayers, format)};
  options.max_blocks = kTokens / 16;
  if (is_packed(format.k)) {
    options.exact_first = 4;
    options.exact_recent = 64;
  }
  return options;
}

// A prompt in batches, each written and attended to in every layer, then a few single tokens.
// Returns by how much the peak rose.
int64_t rise_of_peak(KvFormat format) {
  const std::vector<float> rows = bell(1, int64_t{kBatch} * kKvHeads * kDim);
  std::vector<float> out(rows.size());
  std::memset(out.data(), 1, out.size() * sizeof(float));
  const std::shared_ptr<Backend> backend = make_cpu_backend({}).value();
  const int64_t before = peak_bytes();
  const PagedCacheOptions options = options_of(format);
  CacheSet set = CacheSet::create({&options, 1}, backend).value();
  Sequence sequence = set.new_sequence();
  const auto step = [&](int count) {
    const AppendRequest request{&sequence, count};
    SetPlan plan = set.reserve({&request, 1}).value();
    const ConstTensorView view(rows.data(), DType::f32, {count, kKvHeads, kDim});
    for (int layer = 0; layer < kLayers; ++layer) {
      set.write(plan, 0, layer, view, view);
      const LayerSegments segments = set.segments(plan, 0, layer);
      AttentionCall call;
      call.q = view;
      // A window on prompts, as reading all of them takes long and holds no more.
      const int32_t indptr[] = {0, count};
      call.query_indptr = indptr;
      call.segments = segments.span();
      call.params.scale = 0.1F;
      call.params.window = count > 1 ? std::optional<int>(256) : std::nullopt;
      call.out = {out.data(), DType::f32, {count, kKvHeads, kDim}};
      if (!attend(*backend, call).ok()) std::abort();
    }
    if (!set.commit(std::move(plan)).ok()) std::abort();
  };
  for (int done = 0; done + kBatch < kTokens; done += kBatch) step(kBatch);
  for (int i = 0; i < 8; ++i) step(1);
  return peak_bytes() - before;
}

// The same in a process of its own, whose peak begins at what it holds.
int64_t rise_in_child(KvFormat format) {
  int ends[2];
  if (pipe(ends) != 0) return -1;
  const pid_t child = fork();
  if (child == 0) {
    const int64_t rise = rise_of_peak(format);
    const bool is_written = write(ends[1], &rise, sizeof rise) == sizeof rise;
    _exit(is_written ? 0 : 1);
  }
  close(ends[1]);
  int64_t rise = -1;
  if (read(ends[0], &rise, sizeof rise) != sizeof rise) rise = -1;
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  return rise;
}

TEST(PeakMemory, OfALongPromptIsThePredictionAndALittle) {
  if (peak_bytes() < 0) GTEST_SKIP() << "no /proc/self/status";
  // Scratch of one thread, block tables and the heap's own rounding.
  constexpr int64_t kSlack = int64_t{2} << 20;
  const AppendRun runs[] = {{kTokens / kBatch - 1, kBatch}, {8, 1}};
  int64_t of_f16 = 0;
  for (const KvFormat format :
       {KvFormat{}, KvFormat{KvCode::tq8, KvCode::tq8}, KvFormat{KvCode::tcq4, KvCode::tcq3},
        KvFormat{KvCode::tqk_q4_0, KvCode::tqv_q3_0}}) {
    SCOPED_TRACE(kv_code_name(format.k));
    const int64_t predicted = predict_cache_size(options_of(format), runs).value().committed_bytes;
    const int64_t rise = rise_in_child(format);
    ASSERT_GE(rise, 0);
    EXPECT_LE(rise, predicted + kSlack);
    EXPECT_GE(rise, predicted / 2);  // the rows were there
    if (!is_packed(format.k)) {
      of_f16 = rise;
    } else {
      EXPECT_LT(rise, of_f16 * 3 / 4);
    }
  }
}

}  // namespace
}  // namespace kvik::test
