// A paged cache by hand: append tokens, attend to them, fork the sequence, see what is shared.
#include <cstdio>
#include <memory>
#include <vector>

#include "kvik/backend/cpu_backend.h"
#include "kvik/cache/paged_cache.h"

namespace {

constexpr int kLayers = 2, kHeads = 4, kKvHeads = 2, kDim = 32;

// One step of a model: the rows of `count` new tokens, `value` standing in for real keys and
// values.
kvik::Status step(kvik::PagedCache& cache, kvik::Backend& backend, kvik::Sequence& sequence,
                  int count, float value) {
  const kvik::AppendRequest request{&sequence, count};
  kvik::Result<kvik::AppendPlan> plan = cache.reserve({&request, 1});  // only this can run out
  if (!plan.ok()) return plan.status();
  const std::vector<float> rows(static_cast<size_t>(count * kKvHeads * kDim), value);
  const std::vector<float> queries(static_cast<size_t>(count * kHeads * kDim), 0.5f);
  std::vector<float> out(queries.size());
  for (int layer = 0; layer < kLayers; ++layer) {
    const kvik::ConstTensorView kv(rows.data(), kvik::DType::f32, {count, kKvHeads, kDim});
    cache.write(*plan, layer, kv, kv);
    const kvik::Segment segment{.view = cache.view(*plan, layer)};
    kvik::AttentionCall call;
    call.q = {queries.data(), kvik::DType::f32, {count, kHeads, kDim}};
    call.query_indptr = plan->query_indptr();
    call.segments = {&segment, 1};
    call.out = {out.data(), kvik::DType::f32, {count, kHeads, kDim}};
    if (kvik::Status status = kvik::attend(backend, call); !status.ok()) return status;
  }
  std::printf("%3d tokens cached, last output %.4f\n", sequence.num_cached() + count, out.back());
  return cache.commit(std::move(plan).value());  // lengths grow here
}

}  // namespace

int main() {
  const std::shared_ptr<kvik::Backend> backend = kvik::make_cpu_backend({}).value();
  kvik::PagedCacheOptions options;
  options.spec = {
      kKvHeads, kDim, kDim, {kLayers, kvik::KvFormat{kvik::KvCode::bf16, kvik::KvCode::f16}}};
  options.max_blocks = 64;
  kvik::PagedCache cache = kvik::PagedCache::create(options, backend).value();

  kvik::Sequence story = cache.new_sequence();
  if (!step(cache, *backend, story, 40, 1.0f).ok()) return 1;
  kvik::Sequence other = cache.fork(story).value();  // copies nothing
  if (!step(cache, *backend, story, 1, 2.0f).ok()) return 1;
  if (!step(cache, *backend, other, 1, 3.0f).ok())
    return 1;  // gets its own copy of the partial block
  if (!cache.truncate(story, 20).ok()) return 1;

  const kvik::CacheStats stats = cache.stats();
  std::printf("%d and %d tokens in %d blocks, %d of them shared, %d copied\n", story.num_cached(),
              other.num_cached(), static_cast<int>(stats.used_blocks),
              static_cast<int>(stats.shared_blocks), static_cast<int>(stats.copy_on_write_copies));
  return 0;
}
