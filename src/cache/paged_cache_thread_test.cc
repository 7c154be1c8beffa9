// Caches used by several threads: each cache by one of them, back ends shared or not.
#include <gtest/gtest.h>

#include <cstring>
#include <thread>
#include <vector>

#include "kvik/backend/cpu_backend.h"
#include "kvik/cache/paged_cache.h"
#include "support/model_rows.h"

namespace kvik {
namespace {

constexpr int kHeads = 4;
constexpr int kDim = 16;

std::shared_ptr<Backend> backend_with(int num_threads) {
  CpuBackendOptions options;
  options.num_threads = num_threads;
  return make_cpu_backend(options).value();
}

// The attention of all steps of one cache, so that runs can be compared.
using Outputs = std::vector<float>;

// One query per head for each new token, made from the token's position.
void attend_step(Backend& backend, const PagedCache& cache, const AppendPlan& plan, int layer,
                 Outputs& outputs) {
  const int64_t n = plan.num_tokens();
  std::vector<float> q;
  for (const int32_t position : plan.positions()) {
    for (int i = 0; i < kHeads * kDim; ++i) {
      q.push_back(static_cast<float>((position * 3 + i) % 17) / 16.0f);
    }
  }
  std::vector<float> out(static_cast<size_t>(n * kHeads * kDim));
  const Segment segment{.view = cache.view(plan, layer)};
  AttentionCall call;
  call.q = ConstTensorView(q.data(), DType::f32, {n, kHeads, kDim});
  call.query_indptr = plan.query_indptr();
  call.segments = {&segment, 1};
  call.params.scale = 0.02f;
  call.out = TensorView(out.data(), DType::f32, {n, kHeads, kDim});
  ASSERT_TRUE(attend(backend, call).ok());
  outputs.insert(outputs.end(), out.begin(), out.end());
}

// Makes a cache on the back end and steps it: a prompt, then tokens one by one, a fork now and
// then.
void run_cache(const std::shared_ptr<Backend>& backend, int first_id, int num_steps,
               Outputs& outputs) {
  PagedCacheOptions options;
  options.spec = {2, kDim, kDim, {{KvCode::f16, KvCode::f16}, {KvCode::f32, KvCode::bf16}}};
  PagedCache cache = PagedCache::create(options, backend).value();
  Sequence sequence = cache.new_sequence();
  std::vector<int64_t> ids;
  for (int step = 0; step < num_steps; ++step) {
    std::vector<int64_t> news(step == 0 ? 70 : 1 + step % 3);
    for (int64_t& id : news) id = first_id++;
    ids.insert(ids.end(), news.begin(), news.end());
    const AppendRequest request{&sequence, static_cast<int>(news.size())};
    Result<AppendPlan> plan = cache.reserve({&request, 1});
    ASSERT_TRUE(plan.ok());
    for (int layer = 0; layer < 2; ++layer) {
      test::write_model_rows(cache, *plan, layer, news);
      attend_step(*backend, cache, *plan, layer, outputs);
      EXPECT_TRUE(test::holds_model_rows(cache.view(*plan, layer), 0, layer, ids));
    }
    ASSERT_TRUE(cache.commit(std::move(plan).value()).ok());
    // The fork is dropped with the old handle's pages still shared.
    if (step % 5 == 4) sequence = cache.fork(sequence).value();
  }
}

bool same_bits(const Outputs& a, const Outputs& b) {
  return !a.empty() && a.size() == b.size() &&
         std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

constexpr int kSteps = 24;

// What each of two caches gives with a processor to itself.
std::vector<Outputs> alone() {
  std::vector<Outputs> outputs(2);
  for (int i = 0; i < 2; ++i) {
    run_cache(backend_with(1), 1000 * i, kSteps, outputs[static_cast<size_t>(i)]);
  }
  return outputs;
}

TEST(CachesOnThreads, TwoThreadsMayShareOneBackendThroughCachesOfTheirOwn) {
  const std::vector<Outputs> expected = alone();
  for (const int num_threads : {1, 3}) {
    const std::shared_ptr<Backend> backend = backend_with(num_threads);
    std::vector<Outputs> outputs(2);
    std::vector<std::thread> threads;
    for (int i = 0; i < 2; ++i) {
      threads.emplace_back(
          [&, i] { run_cache(backend, 1000 * i, kSteps, outputs[static_cast<size_t>(i)]); });
    }
    for (std::thread& thread : threads) thread.join();
    for (size_t i = 0; i < 2; ++i) EXPECT_TRUE(same_bits(outputs[i], expected[i])) << i;
  }
}

TEST(CachesOnThreads, TwoThreadsWithBackendsOfTheirOwnAreIndependent) {
  const std::vector<Outputs> expected = alone();
  std::vector<Outputs> outputs(2);
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back(
        [&, i] { run_cache(backend_with(2), 1000 * i, kSteps, outputs[static_cast<size_t>(i)]); });
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t i = 0; i < 2; ++i) EXPECT_TRUE(same_bits(outputs[i], expected[i])) << i;
}

TEST(CachesOnThreads, ACacheMayMoveFromThreadToThreadBetweenSteps) {
  const std::shared_ptr<Backend> backend = backend_with(2);
  PagedCacheOptions options;
  options.spec = {1, kDim, kDim, {{KvCode::f16, KvCode::f16}}};
  PagedCache cache = PagedCache::create(options, backend).value();
  Sequence sequence = cache.new_sequence();
  std::vector<int64_t> ids;
  for (int64_t step = 0; step < 40; ++step) {
    std::thread([&] {
      const AppendRequest request{&sequence, 1};
      Result<AppendPlan> plan = cache.reserve({&request, 1});
      ids.push_back(step);
      test::write_model_rows(cache, *plan, 0, {step});
      EXPECT_TRUE(test::holds_model_rows(cache.view(*plan, 0), 0, 0, ids));
      EXPECT_TRUE(cache.commit(std::move(plan).value()).ok());
    }).join();
  }
}

}  // namespace
}  // namespace kvik
