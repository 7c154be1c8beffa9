// One step of attention is work for all threads, whatever its shape.
#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "kvik/cache/paged_cache.h"
#include "support/attention_case.h"

namespace kvik {
namespace {

constexpr int kHeadDim = 64;

// Stands in for the transform of rotated keys and holds each thread that prepares a query until
// `wanted` of them have come.
class Meeting {
 public:
  Meeting(const KeyTransform& real, size_t wanted) : real_(real), wanted_(wanted) {
    transform_ = {.frame = 128, .prepare = &prepare, .state = this};
  }
  const KeyTransform* transform() const { return &transform_; }
  size_t num_threads() const { return came_.size(); }

 private:
  static float prepare(const void* state, int kv_head, int64_t frame_begin, const float* query,
                       float* prepared) {
    auto* self = const_cast<Meeting*>(static_cast<const Meeting*>(state));
    {
      std::unique_lock lock(self->mutex_);
      self->came_.insert(std::this_thread::get_id());
      self->changed_.notify_all();
      // Those that wait for nobody pass once it is certain that nobody comes.
      self->changed_.wait_for(lock, std::chrono::seconds(self->has_waited_ ? 0 : 20),
                              [&] { return self->came_.size() >= self->wanted_; });
      self->has_waited_ = true;
    }
    return self->real_.prepare(self->real_.state, kv_head, frame_begin, query, prepared);
  }

  const KeyTransform& real_;
  size_t wanted_;
  KeyTransform transform_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::set<std::thread::id> came_;
  bool has_waited_ = false;
};

// How many threads prepare queries in one call: `q_len` queries over `num_tokens` of packed rows.
size_t threads_at_work(int num_threads, int num_kv_heads, int num_tokens, int q_len) {
  const std::shared_ptr<Backend> backend = make_cpu_backend({.num_threads = num_threads}).value();
  PagedCacheOptions options;
  options.spec = {num_kv_heads, kHeadDim, kHeadDim, {{KvCode::tq4, KvCode::q4}}};
  PagedCache cache = PagedCache::create(options, backend).value();
  Sequence sequence = cache.new_sequence();
  const std::vector<float> rows = test::bell(1, int64_t{num_tokens} * num_kv_heads * kHeadDim);
  const AppendRequest request{&sequence, num_tokens};
  AppendPlan plan = cache.reserve({&request, 1}).value();
  const ConstTensorView view(rows.data(), DType::f32, {num_tokens, num_kv_heads, kHeadDim});
  cache.write(plan, 0, view, view);
  Segment segment{.view = cache.view(plan, 0)};
  Meeting meeting(*rotated_keys(kHeadDim), static_cast<size_t>(num_threads));
  segment.view.key_transform = meeting.transform();
  test::Queries queries(num_kv_heads, kHeadDim);
  queries.add(2, q_len);
  test::Outputs outputs;
  const AttentionCall call = test::make_call(queries, {&segment, 1}, {.scale = 0.1F}, outputs);
  EXPECT_TRUE(attend(*backend, call).ok());
  return meeting.num_threads();
}

TEST(SharedWork, AllThreadsTakePartInAStep) {
  EXPECT_EQ(threads_at_work(4, 8, 600, 1), 4U);    // many heads
  EXPECT_EQ(threads_at_work(4, 1, 4096, 1), 4U);   // one head, a long context: its partitions
  EXPECT_EQ(threads_at_work(4, 1, 512, 256), 4U);  // one head, a prompt: its queries
  EXPECT_EQ(threads_at_work(1, 8, 600, 4), 1U);
}

}  // namespace
}  // namespace kvik
