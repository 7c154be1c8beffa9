// What the views of a step let an attention call read: the rows of the step's own sequences, once
// they are written, while the step is open.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kvik/backend/cpu_backend.h"
#include "kvik/cache/cache_set.h"
#include "kvik/cache/paged_cache.h"
#include "kvik/format/tile.h"
#include "support/attention_case.h"
#include "support/random.h"

namespace kvik {
namespace {

using testing::HasSubstr;

constexpr int kDim = 64;
constexpr float kOld = 7.0f;  // what a dropped sequence left in the pages

// One layer, one head; rows of equal numbers, so that a result tells whose rows were read.
class StepRowsTest : public testing::Test {
 protected:
  explicit StepRowsTest(PagedCacheOptions options = {}) {
    options.spec = {1, kDim, kDim, {KvFormat{KvCode::f16, KvCode::f16}}};
    options.max_blocks = 8;
    cache_.emplace(PagedCache::create(options, backend_).value());
    fill(kOld, 64);  // the sequence goes at once, its rows stay in memory
  }

  AppendPlan reserve(Sequence& sequence, int count) {
    const AppendRequest request{&sequence, count};
    return cache_->reserve({&request, 1}).value();
  }
  void write(AppendPlan& plan, float value, int count) {
    const std::vector<float> rows(static_cast<size_t>(count) * kDim, value);
    const ConstTensorView t(rows.data(), DType::f32, {count, 1, kDim});
    cache_->write(plan, 0, t, t);
  }
  Sequence fill(float value, int count) {
    Sequence sequence = cache_->new_sequence();
    AppendPlan plan = reserve(sequence, count);
    write(plan, value, count);
    EXPECT_TRUE(cache_->commit(std::move(plan)).ok());
    return sequence;
  }
  // Attends with `q_len` queries; the first output, if the call is served.
  Result<float> attend_view(const KvView& view, int q_len = 1) {
    const std::vector<float> q(static_cast<size_t>(q_len) * kDim, 1.0f);
    std::vector<float> out(q.size(), -12345.0f);
    const std::vector<int32_t> indptr = {0, q_len};
    const Segment segment{.view = view};
    AttentionCall call;
    call.q = {q.data(), DType::f32, {q_len, 1, kDim}};
    call.query_indptr = indptr;
    call.segments = {&segment, 1};
    call.out = {out.data(), DType::f32, {q_len, 1, kDim}};
    Status status = attend(*backend_, call);
    if (status.ok()) return out[0];
    EXPECT_EQ(status.code(), StatusCode::invalid_argument) << status.to_string();
    EXPECT_EQ(out[0], -12345.0f) << "something was written";
    return status;
  }
  void expect_refused(const KvView& view, const std::string& why, int q_len = 1) {
    EXPECT_THAT(attend_view(view, q_len).status().message(), HasSubstr(why));
  }

  std::shared_ptr<Backend> backend_ = make_cpu_backend({}).value();
  std::optional<PagedCache> cache_;
};

TEST_F(StepRowsTest, NewRowsAreReadableOnceTheyAreWritten) {
  Sequence sequence = cache_->new_sequence();
  AppendPlan plan = reserve(sequence, 16);
  expect_refused(cache_->view(plan, 0), "not written yet: write the layer, then attend");
  const std::vector<float> wide(16 * (kDim + 1), 1.0f);
  const ConstTensorView wrong(wide.data(), DType::f32, {16, 1, kDim + 1});
  cache_->write(plan, 0, wrong, wrong);  // stores nothing
  expect_refused(cache_->view(plan, 0), "not written yet");
  write(plan, 2.0f, 16);
  EXPECT_EQ(*attend_view(cache_->view(plan, 0)), 2.0f);
}

TEST_F(StepRowsTest, RowsFromBeforeTheStepAreReadableBeforeItsOwnAreWritten) {
  Sequence sequence = fill(3.0f, 20);
  AppendPlan plan = reserve(sequence, 4);
  KvView view = cache_->view(plan, 0);
  const std::vector<int32_t> before = {20}, after = {21};
  view.kv_len = before;
  EXPECT_EQ(*attend_view(view), 3.0f);
  view.kv_len = after;
  expect_refused(view, "kv_len[0] is 21; the sequence has 20 rows in layer 0");
}

TEST_F(StepRowsTest, RowsBehindTheLengthAreNotReadable) {
  Sequence sequence = fill(3.0f, 20);
  const AppendPlan plan = reserve(sequence, 0);
  KvView view = cache_->view(plan, 0);
  const std::vector<int32_t> more = {21}, all = {32}, fewer = {5};
  view.kv_len = more;
  expect_refused(view, "kv_len[0] is 21; the sequence has 20 rows");
  view.kv_len = all;
  expect_refused(view, "kv_len[0] is 32; the sequence has 20 rows");
  view.kv_len = fewer;
  EXPECT_EQ(*attend_view(view), 3.0f);
}

TEST_F(StepRowsTest, AViewEndsWithItsStep) {
  Sequence sequence = fill(3.0f, 20);
  const char* const ended = "the view's step has ended";
  AppendPlan plan = reserve(sequence, 4);
  write(plan, 4.0f, 4);
  const KvView committed = cache_->view(plan, 0);
  EXPECT_GT(*attend_view(committed), 3.0f);
  ASSERT_TRUE(cache_->commit(std::move(plan)).ok());
  expect_refused(committed, ended);

  std::optional<AppendPlan> dropped = reserve(sequence, 4);
  write(*dropped, 5.0f, 4);
  const KvView of_dropped = cache_->view(*dropped, 0);
  dropped.reset();
  expect_refused(of_dropped, ended);

  // Also while another step uses the same memory.
  Sequence other = fill(9.0f, 20);
  const AppendPlan another = reserve(other, 0);
  expect_refused(committed, ended);
  expect_refused(of_dropped, ended);
  EXPECT_EQ(*attend_view(cache_->view(another, 0)), 9.0f);
}

TEST_F(StepRowsTest, AViewOutlivesTheCacheAndIsRefused) {
  Sequence sequence = fill(3.0f, 20);
  KvView view;
  {
    const AppendPlan plan = reserve(sequence, 0);
    view = cache_->view(plan, 0);
  }
  cache_.reset();
  expect_refused(view, "the view's step has ended");
}

TEST_F(StepRowsTest, PagesOfOtherSequencesAreOutOfReach) {
  Sequence sequence = fill(3.0f, 20);
  Sequence other = fill(9.0f, 20);
  const AppendPlan plan = reserve(sequence, 0);
  const char* const why = "not those of the view's step";
  KvView view = cache_->view(plan, 0);
  const std::vector<int32_t> pages(other.table().page_ids().begin(),
                                   other.table().page_ids().end());
  view.page_ids = pages;
  expect_refused(view, why);
  view = cache_->view(plan, 0);
  const std::vector<int32_t> indptr = {0, 2};
  view.page_indptr = indptr;
  expect_refused(view, why);
  view = cache_->view(plan, 0);
  const std::vector<int32_t> first = {16};
  view.first_pos = first;
  expect_refused(view, why);
}

TEST_F(StepRowsTest, OneSequenceOfAStepCanBeReadAlone) {
  Sequence a = fill(3.0f, 20);
  Sequence b = fill(9.0f, 40);
  const std::vector<AppendRequest> requests = {{&a, 0}, {&b, 0}};
  const AppendPlan plan = cache_->reserve(requests).value();
  KvView view = cache_->view(plan, 0);
  view.page_indptr = view.page_indptr.subspan(1, 2);
  view.first_pos = view.first_pos.subspan(1, 1);
  KvView longer = view;
  view.kv_len = view.kv_len.subspan(1, 1);
  EXPECT_EQ(*attend_view(view), 9.0f);
  // The other one's place for the first position: lengths are held to the wrong sequence's.
  view.first_pos = cache_->view(plan, 0).first_pos.subspan(0, 1);
  expect_refused(view, "not those of the view's step");
  const std::vector<int32_t> more = {41};
  longer.kv_len = more;
  expect_refused(longer, "the sequence has 40 rows");
}

TEST(RefusedRows, ShowNothingOfWhatLayInTheirSlots) {
  for (const KvFormat& format : {KvFormat{KvCode::tcq4, KvCode::tcq3},
                                 {KvCode::tq4, KvCode::tq8},
                                 {KvCode::q8, KvCode::q4},
                                 {KvCode::tqk_q4_0, KvCode::tqv_q3_0}}) {
    std::shared_ptr<Backend> backend = make_cpu_backend({.num_threads = 2}).value();
    PagedCacheOptions options;
    options.spec = {8, kDim, kDim, {format}};
    options.max_blocks = 64;
    PagedCache cache = PagedCache::create(options, backend).value();
    constexpr int kTokens = 512;  // enough to be shared out to threads
    std::vector<float> rows = test::bell(3, int64_t{kTokens} * 8 * kDim);
    const ConstTensorView t(rows.data(), DType::f32, {kTokens, 8, kDim});
    const auto reserve = [&](Sequence& sequence) {
      const AppendRequest request{&sequence, kTokens};
      return cache.reserve({&request, 1}).value();
    };
    {
      Sequence old = cache.new_sequence();
      AppendPlan plan = reserve(old);
      cache.write(plan, 0, t, t);
      ASSERT_TRUE(cache.commit(std::move(plan)).ok());
    }
    Sequence sequence = cache.new_sequence();
    AppendPlan plan = reserve(sequence);
    for (float& x : rows) x = 0.001f;
    rows[(17 * 8 + 2) * kDim + 5] = INFINITY;
    rows[(400 * 8 + 7) * kDim] = NAN;
    cache.write(plan, 0, t, t);
    const KvView view = cache.view(plan, 0);
    // Every row is a new one: none holds a value of the old sequence's size.
    for (int token = 0; token < kTokens; ++token) {
      for (int head = 0; head < 8; ++head) {
        std::vector<float> value(kDim);
        const int page = view.page_ids[static_cast<size_t>(token / options.block_size)];
        const int64_t tile = token % options.block_size / kTileTokens;
        decode_stored_v_row(view.format.v, v_tile(view, page, tile, head), token % kTileTokens,
                            value.data(), kDim);
        for (const float x : value) ASSERT_LT(std::abs(x), 0.01f) << "token " << token;
      }
    }
    EXPECT_THAT(cache.commit(std::move(plan)).message(), HasSubstr("token 17 (position 17)"));
  }
}

// ---- windows
// ---------------------------------------------------------------------------------------------

constexpr int kWindow = 40;

// The newest query's output after 300 tokens, fed in chunks, of a layer with a window that the call
// does not repeat.
std::vector<float> window_output(int block_size, int slack, int chunk, const KvFormat& format) {
  std::shared_ptr<Backend> backend = make_cpu_backend({}).value();
  PagedCacheOptions options;
  options.spec = {2, kDim, kDim, {format}};
  options.block_size = block_size;
  options.max_blocks = 4096 / block_size;
  options.window = kWindow;
  options.rollback_slack = slack;
  PagedCache cache = PagedCache::create(options, backend).value();
  Sequence sequence = cache.new_sequence();
  std::vector<float> last;
  for (int done = 0; done < 300; done += chunk) {
    const int count = std::min(chunk, 300 - done);
    const AppendRequest request{&sequence, count};
    AppendPlan plan = cache.reserve({&request, 1}).value();
    std::vector<float> k, v, q;
    for (int token = done; token < done + count; ++token) {
      const auto seed = static_cast<uint64_t>(token) * 10;
      for (const auto& [to, salt, heads] : {std::tuple{&k, 1, 2}, {&v, 2, 2}, {&q, 3, 4}}) {
        const std::vector<float> rows =
            test::bell(seed + static_cast<uint64_t>(salt), heads * kDim);
        to->insert(to->end(), rows.begin(), rows.end());
      }
    }
    cache.write(plan, 0, {k.data(), DType::f32, {count, 2, kDim}},
                {v.data(), DType::f32, {count, 2, kDim}});
    std::vector<float> out(q.size());
    const Segment segment{.view = cache.view(plan, 0)};
    AttentionCall call;
    call.q = {q.data(), DType::f32, {count, 4, kDim}};
    call.query_indptr = plan.query_indptr();
    call.segments = {&segment, 1};
    call.out = {out.data(), DType::f32, {count, 4, kDim}};
    const Status status = attend(*backend, call);
    EXPECT_TRUE(status.ok()) << status.to_string();
    last.assign(out.end() - 4 * kDim, out.end());
    EXPECT_TRUE(cache.commit(std::move(plan)).ok());
  }
  return last;
}

TEST(Windows, EveryBlockSizeSlackAndChunkGiveOneResult) {
  for (const KvFormat& format : {KvFormat{}, KvFormat{KvCode::tcq4, KvCode::tcq4}}) {
    const std::vector<float> expected = window_output(16, 0, 1, format);
    for (const int block_size : {16, 32, 64, 128, 256}) {
      for (const int slack : {0, 1, 64, 1000}) {
        for (const int chunk : {1, 50, 300}) {
          EXPECT_EQ(window_output(block_size, slack, chunk, format), expected)
              << block_size << ", " << slack << ", " << chunk;
        }
      }
    }
  }
}

class WindowRowsTest : public StepRowsTest {
 protected:
  WindowRowsTest() : StepRowsTest(options()) {}
  static PagedCacheOptions options() {
    PagedCacheOptions options;
    options.window = 32;
    options.rollback_slack = 0;
    return options;
  }
};

TEST_F(WindowRowsTest, QueriesWhoseWindowReachesBelowTheHeldRowsAreRefused) {
  Sequence sequence = fill(3.0f, 100);  // rows 64 to 99 are held, 68 to 99 are needed
  AppendPlan plan = reserve(sequence, 1);
  write(plan, 3.0f, 1);
  const KvView view = cache_->view(plan, 0);
  ASSERT_EQ(view.first_pos[0], 64);
  EXPECT_EQ(*attend_view(view, 1), 3.0f);
  EXPECT_EQ(*attend_view(view, 6), 3.0f) << "the oldest query is at 95 and sees 64 on";
  expect_refused(view, "sees keys from position 63 on; those below 64 left the window", 7);
}

}  // namespace
}  // namespace kvik
