// Forks and views used and dropped on several threads.
#include <gtest/gtest.h>

#include <thread>

#include "kvik/backend/cpu_backend.h"
#include "kvik/layer_cache/paged_kv_cache.h"
#include "kvik/layer_cache/tail_owned_kv_cache.h"
#include "support/layer_rows.h"

namespace kvik {
namespace {

using test::join;
using test::LayerRows;
using test::rows_of_state;
using test::same_rows;

constexpr KvArrayShape kShape{1, 2, 8, 8, DType::f16, DType::f16};

// Grows, trims and reads a cache; whether its rows are as they should be at the end.
template <class Cache>
bool work(Cache& cache, LayerRows rows, uint64_t seed) {
  std::vector<KvArrays> views;
  for (uint64_t i = 0; i < 40; ++i) {
    const LayerRows more(kShape, 1 + int64_t(i % 3), seed + i, seed + 100 + i);
    Result<KvArrays> all = cache.update_and_fetch(more.keys(), more.values());
    if (!all.ok()) return false;
    rows = join(rows, more);
    if (!same_rows(*all, rows)) return false;
    if (i % 4 == 0) views.push_back(*all);
    if (i % 5 == 0) rows = test::first_rows(rows, rows.num_rows - cache.trim(1));
  }
  return same_rows(*rows_of_state(cache.state()), rows);
}

template <class Cache>
void run_forks(Cache cache) {
  const LayerRows rows(kShape, 21, 1, 2);
  ASSERT_TRUE(cache.update_and_fetch(rows.keys(), rows.values()).ok());
  std::vector<Cache> forks;
  for (int i = 0; i < 3; ++i) forks.push_back(cache.fork());
  std::vector<char> good(4, 0);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < 3; ++i) {
    threads.emplace_back([&, i] {
      Cache mine = std::move(forks[i]);
      good[i] = work(mine, rows, 1000 * (i + 1));
    });
  }
  good[3] = work(cache, rows, 77);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(good, std::vector<char>(4, 1));
}

TEST(Forks, OfATailOwnedCacheAreIndependent) { run_forks(TailOwnedKVCache::create({16}).value()); }

TEST(Forks, OfAPagedCacheAreIndependent) {
  PagedKVCacheOptions options;
  options.num_blocks = 16;
  run_forks(PagedKVCache::create(options, make_cpu_backend({}).value()).value());
}

TEST(Forks, OfALowBitCacheShareAMirrorAndAreIndependent) {
  constexpr KvArrayShape kWide{1, 2, 32, 32, DType::f16, DType::f16};
  PagedKVCacheOptions options;
  options.kv_quant = KvQuantConfig{KvCode::q4};
  options.route = PagedRoute::mirror;
  const std::shared_ptr<Backend> backend = make_cpu_backend({}).value();
  const std::vector<float> q = test::bell(5, 2 * 32);
  const auto attend = [&](PagedKVCache& cache) {
    std::vector<float> out(2 * 32);
    PagedAttentionCall call;
    call.queries = ConstTensorView(q.data(), DType::f32, {1, 2, 1, 32});
    call.out = TensorView(out.data(), DType::f32, {1, 2, 1, 32});
    EXPECT_TRUE(cache.attend(call).ok());
    return out;
  };
  // What a handle computes after each of its steps.
  const auto steps = [&](PagedKVCache& cache, uint64_t seed) {
    std::vector<std::vector<float>> results;
    for (uint64_t i = 0; i < 40; ++i) {
      const LayerRows more(kWide, 1 + int64_t(i % 3), seed + i, seed + 100 + i);
      EXPECT_TRUE(
          cache.update_without_fetch(more.keys(), more.values(), PagedPhase::ar_decode).ok());
      results.push_back(attend(cache));
      if (i % 5 == 0) cache.trim(2);
    }
    return results;
  };
  const LayerRows rows(kWide, 21, 1, 2);
  const auto fresh = [&] {
    PagedKVCache cache = PagedKVCache::create(options, backend, rows.keys(), rows.values()).value();
    attend(cache);
    return cache;
  };
  PagedKVCache source = fresh();
  std::vector<PagedKVCache> forks;
  for (int i = 0; i < 3; ++i) forks.push_back(source.fork());
  std::vector<std::vector<std::vector<float>>> got(3);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < 3; ++i) {
    threads.emplace_back([&, i] { got[i] = steps(forks[i], 1000 * (i + 1)); });
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t i = 0; i < 3; ++i) {
    PagedKVCache alone = fresh();
    EXPECT_EQ(got[i], steps(alone, 1000 * (i + 1)));
  }
}

TEST(Forks, AttendWhileOthersWrite) {
  const std::shared_ptr<Backend> backend = make_cpu_backend({}).value();
  PagedKVCache a = PagedKVCache::create({}, backend).value();
  const LayerRows rows(kShape, 21, 1, 2);
  ASSERT_TRUE(a.update_without_fetch(rows.keys(), rows.values()).ok());
  PagedKVCache b = a.fork();
  const std::vector<float> q = test::bell(5, 2 * 8);
  const auto attend = [&](PagedKVCache& cache) {
    std::vector<float> out(2 * 8);
    PagedAttentionCall call;
    call.queries = ConstTensorView(q.data(), DType::f32, {1, 2, 1, 8});
    call.out = TensorView(out.data(), DType::f32, {1, 2, 1, 8});
    EXPECT_TRUE(cache.attend(call).ok());
    return out;
  };
  const std::vector<float> before = attend(b);
  std::thread writer([&] {
    for (uint64_t i = 0; i < 50; ++i) {
      const LayerRows one(kShape, 1, i, i + 1);
      EXPECT_TRUE(a.update_without_fetch(one.keys(), one.values()).ok());
    }
  });
  for (int i = 0; i < 50; ++i) EXPECT_EQ(attend(b), before);
  writer.join();
}

}  // namespace
}  // namespace kvik
