// What is chosen when nobody chooses is not the slower way.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <vector>

#include "kvik/cache/paged_cache.h"
#include "support/attention_case.h"

namespace kvik::test {
namespace {

constexpr int kKvHeads = 4;
constexpr int kHeads = 8;
constexpr int kDim = 64;
constexpr int kTokens = 4096;
constexpr int kRounds = 25;

// One layer of one sequence, and a decode step over it.
class Step {
 public:
  Step(KvFormat format, const CpuBackendOptions& options)
      : backend_(make_cpu_backend(options).value()),
        cache_(PagedCache::create(cache_options(format), backend_).value()),
        sequence_(cache_.new_sequence()),
        queries_(kHeads, kDim) {
    const std::vector<float> rows = bell(1, int64_t{kTokens} * kKvHeads * kDim);
    const AppendRequest request{&sequence_, kTokens};
    AppendPlan plan = cache_.reserve({&request, 1}).value();
    const ConstTensorView view(rows.data(), DType::f32, {kTokens, kKvHeads, kDim});
    cache_.write(plan, 0, view, view);
    EXPECT_TRUE(cache_.commit(std::move(plan)).ok());
    queries_.add(2, 1);
  }

  void time_once() {
    const AppendRequest request{&sequence_, 0};
    const AppendPlan plan = cache_.reserve({&request, 1}).value();
    const Segment segment{.view = cache_.view(plan, 0)};
    const AttentionCall call = make_call(queries_, {&segment, 1}, {.scale = 0.1F}, outputs_);
    const auto start = std::chrono::steady_clock::now();
    EXPECT_TRUE(attend(*backend_, call).ok());
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    best_ = std::min(best_, took.count());
  }
  double best() const { return best_; }

 private:
  static PagedCacheOptions cache_options(KvFormat format) {
    PagedCacheOptions options;
    options.spec = {kKvHeads, kDim, kDim, {format}};
    return options;
  }

  std::shared_ptr<Backend> backend_;
  PagedCache cache_;
  Sequence sequence_;
  Queries queries_;
  Outputs outputs_;
  double best_ = INFINITY;
};

// The best time of `chosen` over that of `other`, measured in turns.
double ratio(KvFormat chosen, const CpuBackendOptions& chosen_options, KvFormat other,
             const CpuBackendOptions& other_options) {
  Step a(chosen, chosen_options);
  Step b(other, other_options);
  for (int i = 0; i < kRounds; ++i) {
    a.time_once();
    b.time_once();
  }
  return a.best() / b.best();
}

TEST(KernelChoice, TheDefaultIsNotSlowerThanTheOtherKernelSet) {
  for (const KvCode code : all_packed_codes()) {
    if (!stores_keys(code) || !stores_values(code)) continue;
    const double r = ratio({code, code}, {}, {code, code}, {.kernel_set = KernelSet::exact});
    RecordProperty(std::string(kv_code_name(code)), std::to_string(r));
    EXPECT_LT(r, 1.1) << kv_code_name(code);
  }
}

TEST(KernelChoice, TheFirstInstructionSetIsNotSlowerThanTheOthers) {
  const std::vector<CpuIsa> isas = available_cpu_isas(detect_cpu_features());
  for (size_t i = 1; i < isas.size(); ++i) {
    for (const KvFormat format :
         {KvFormat{}, KvFormat{KvCode::tq8, KvCode::tq8}, KvFormat{KvCode::tcq4, KvCode::tcq4},
          KvFormat{KvCode::tqk_q4_0, KvCode::tqv_q4_0}}) {
      EXPECT_LT(ratio(format, {}, format, {.isa = isas[i]}), 1.1)
          << cpu_isa_name(isas[i]) << " " << kv_code_name(format.k);
    }
  }
}

}  // namespace
}  // namespace kvik::test
