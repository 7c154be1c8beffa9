// A decode step allocates nothing once its arrays have their size: this program counts every
// allocation.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <vector>

#include "kvik/backend/cpu_backend.h"
#include "kvik/cache/cache_set.h"
#include "kvik/model/model_runner.h"
#include "support/attention_case.h"
#include "support/tiny_model.h"

namespace {
std::atomic<int64_t> allocations{0};
}

extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);

void* malloc(size_t bytes) {
  ++allocations;
  return __libc_malloc(bytes);
}
void* calloc(size_t count, size_t bytes) {
  ++allocations;
  return __libc_calloc(count, bytes);
}
void* realloc(void* old, size_t bytes) {
  ++allocations;
  return __libc_realloc(old, bytes);
}
void* aligned_alloc(size_t alignment, size_t bytes) {
  ++allocations;
  return __libc_memalign(alignment, bytes);
}
}

namespace kvik::test {
namespace {

constexpr int kLayers = 3;
constexpr int kHeads = 6;
constexpr int kKvHeads = 2;
constexpr int kDim = 32;

TEST(DecodeStep, AllocatesNothing) {
  PagedCacheOptions options;
  options.spec = {kKvHeads, kDim, kDim, std::vector<KvFormat>(kLayers)};
  options.max_blocks = 64;
  const std::shared_ptr<Backend> backend = backend_for(CpuIsa::scalar, 2);
  CacheSet set = CacheSet::create({&options, 1}, backend).value();
  Sequence sequence = set.new_sequence();
  const std::vector<float> rows = bell(1, 600 * kKvHeads * kDim);
  std::vector<float> out(600 * kHeads * kDim);
  const std::vector<float> queries = bell(2, 600 * kHeads * kDim);

  const auto step = [&](int num_tokens) {
    const AppendRequest request{&sequence, num_tokens};
    Result<SetPlan> plan = set.reserve({&request, 1});
    ASSERT_TRUE(plan.ok());
    for (int layer = 0; layer < kLayers; ++layer) {
      const ConstTensorView kv(rows.data(), DType::f32, {num_tokens, kKvHeads, kDim});
      set.cache(0).write(plan->plan(0), layer, kv, kv);
      const Segment segment{.view = set.cache(0).view(plan->plan(0), layer)};
      AttentionCall call;
      call.q = ConstTensorView(queries.data(), DType::f32, {num_tokens, kHeads, kDim});
      call.query_indptr = plan->plan(0).query_indptr();
      call.segments = {&segment, 1};
      call.out = TensorView(out.data(), DType::f32, {num_tokens, kHeads, kDim});
      ASSERT_TRUE(attend(*backend, call).ok());
    }
    ASSERT_TRUE(set.commit(std::move(plan).value()).ok());
  };

  step(560);  // 35 blocks: the tables, which double, have room for 64
  for (int i = 0; i < 20; ++i) step(1);
  const int64_t before = allocations;
  for (int i = 0; i < 400; ++i) step(1);
  EXPECT_EQ(allocations - before, 0);

  const std::vector<int> counted(1000);  // the counter counts
  EXPECT_GT(allocations - before, 0);
}

// The whole forward pass of a model, logits included.
TEST(DecodeStep, OfAModelAllocatesNothing) {
  TinyModel tiny;
  const std::shared_ptr<const Model> model = tiny.load().value();
  const std::unique_ptr<ModelRunner> runner =
      ModelRunner::create(model, {.num_threads = 2, .max_batch_tokens = 560}).value();
  CacheSet caches = runner->make_caches({.max_tokens = 1024}).value();
  Sequence sequence = caches.new_sequence();
  std::vector<float> logits(static_cast<size_t>(model->info().vocab_size));
  const std::vector<TokenId> tokens = tiny_tokens(1, 560);
  const auto step = [&](int num_tokens) {
    const SequenceTokens tokens_of_step{&sequence,
                                        std::span(tokens).first(static_cast<size_t>(num_tokens))};
    ASSERT_TRUE(runner->forward(caches, {&tokens_of_step, 1}).ok());
    runner->logits(runner->num_rows() - 1, 1, logits);
  };
  step(560);
  for (int i = 0; i < 20; ++i) step(1);
  const int64_t before = allocations;
  for (int i = 0; i < 400; ++i) step(1);
  EXPECT_EQ(allocations - before, 0);
}

}  // namespace
}  // namespace kvik::test
