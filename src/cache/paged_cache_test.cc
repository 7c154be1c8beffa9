#include "kvik/cache/paged_cache.h"
#include "cache/plan_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "kvik/backend/cpu_backend.h"
#include "kvik/cache/cache_set.h"
#include "kvik/cache/contiguous_cache.h"
#include "support/attention_case.h"
#include "support/model_rows.h"

namespace kvik {
namespace {

using test::holds_model_rows;
using test::write_model_rows;
using testing::ElementsAre;
using testing::HasSubstr;

const KvSpec kSpec{2, 8, 8, {{KvCode::f32, KvCode::f32}, {KvCode::f16, KvCode::bf16}}};

std::shared_ptr<Backend> backend() {
  return make_cpu_backend({.kernel_set = KernelSet::exact}).value();
}

// Verbs over one cache, so that a test reads as a story. Token ids are whatever the test says.
class CacheStory : public testing::Test {
 protected:
  void open(int max_blocks, int block_size = 16, std::shared_ptr<Backend> with = backend()) {
    PagedCacheOptions options;
    options.spec = kSpec;
    options.block_size = block_size;
    options.max_blocks = max_blocks;
    cache_.emplace(PagedCache::create(options, std::move(with)).value());
  }

  static std::vector<int64_t> ids(int64_t from, int count) {
    std::vector<int64_t> out;
    for (int i = 0; i < count; ++i) out.push_back(from + i);
    return out;
  }

  Status append(Sequence& sequence, const std::vector<int64_t>& tokens) {
    const AppendRequest request{&sequence, static_cast<int>(tokens.size())};
    Result<AppendPlan> plan = cache_->reserve({&request, 1});
    if (!plan.ok()) return plan.status();
    for (int layer = 0; layer < kSpec.num_layers(); ++layer) {
      write_model_rows(*cache_, *plan, layer, tokens);
    }
    return cache_->commit(std::move(plan).value());
  }

  bool holds(Sequence& sequence, const std::vector<int64_t>& tokens) {
    if (sequence.num_cached() != static_cast<int>(tokens.size())) return false;
    const AppendRequest request{&sequence, 0};
    const AppendPlan plan = cache_->reserve({&request, 1}).value();
    for (int layer = 0; layer < kSpec.num_layers(); ++layer) {
      if (!holds_model_rows(cache_->view(plan, layer), 0, layer, tokens)) return false;
    }
    return true;
  }

  std::optional<PagedCache> cache_;
};

TEST_F(CacheStory, AppendsAcrossBlocks) {
  open(8);
  Sequence s = cache_->new_sequence();
  std::vector<int64_t> all;
  for (const int count : {1, 15, 1, 16, 33, 0}) {
    const std::vector<int64_t> more = ids(static_cast<int64_t>(all.size()), count);
    ASSERT_TRUE(append(s, more).ok());
    all.insert(all.end(), more.begin(), more.end());
    EXPECT_TRUE(holds(s, all)) << all.size();
    EXPECT_EQ(s.table().end_block(), static_cast<int>((all.size() + 15) / 16));
  }
}

TEST_F(CacheStory, ForkSharesUntilOneWrites) {
  open(8);
  Sequence parent = cache_->new_sequence();
  ASSERT_TRUE(append(parent, ids(0, 20)).ok());
  Sequence child = cache_->fork(parent).value();
  EXPECT_EQ(cache_->stats().used_blocks, 2);
  EXPECT_EQ(cache_->stats().shared_blocks, 2);

  ASSERT_TRUE(append(parent, {100}).ok());  // the owner of the tail writes in place
  EXPECT_EQ(cache_->stats().copy_on_write_copies, 0);
  EXPECT_TRUE(holds(child, ids(0, 20)));

  ASSERT_TRUE(append(child, {200}).ok());
  EXPECT_EQ(cache_->stats().copy_on_write_copies, 1);
  EXPECT_EQ(cache_->stats().copied_rows, 4 * 2 * 2);  // 4 tokens, 2 heads, 2 layers
  std::vector<int64_t> expected = ids(0, 20);
  expected.push_back(100);
  EXPECT_TRUE(holds(parent, expected));
  expected.back() = 200;
  EXPECT_TRUE(holds(child, expected));
}

TEST_F(CacheStory, BeamsThatDivergeLeaveTheCountsRight) {
  open(8);
  Sequence root = cache_->new_sequence();
  ASSERT_TRUE(append(root, ids(0, 22)).ok());
  Sequence a = cache_->fork(root).value();
  ASSERT_TRUE(append(root, {50}).ok());
  ASSERT_TRUE(append(a, {60}).ok());
  Sequence b = cache_->fork(a).value();
  root = Sequence();
  ASSERT_TRUE(append(b, {70}).ok());
  ASSERT_TRUE(append(a, {80}).ok());
  std::vector<int64_t> expected = ids(0, 22);
  expected.insert(expected.end(), {60, 70});
  EXPECT_TRUE(holds(b, expected));
  expected.back() = 80;
  EXPECT_TRUE(holds(a, expected));
  EXPECT_EQ(cache_->stats().used_blocks, 3);  // block 0 shared, a tail each
  a = Sequence();
  b = Sequence();
  EXPECT_EQ(cache_->stats().used_blocks, 0);
}

TEST_F(CacheStory, TruncateThenRewriteLeavesTheForkAlone) {
  open(8);
  Sequence parent = cache_->new_sequence();
  ASSERT_TRUE(append(parent, ids(0, 40)).ok());
  Sequence child = cache_->fork(parent).value();
  ASSERT_TRUE(cache_->truncate(parent, 10).ok());
  ASSERT_TRUE(append(parent, ids(500, 30)).ok());
  EXPECT_TRUE(holds(child, ids(0, 40)));
  std::vector<int64_t> expected = ids(0, 10);
  for (const int64_t id : ids(500, 30)) expected.push_back(id);
  EXPECT_TRUE(holds(parent, expected));
}

TEST_F(CacheStory, TruncateKeepsCapacityAndAddresses) {
  open(4);
  Sequence s = cache_->new_sequence();
  ASSERT_TRUE(append(s, ids(0, 40)).ok());
  std::byte* const before = internal::CacheAccess::raw_view(*cache_, 0).k;
  ASSERT_TRUE(cache_->truncate(s, 36).ok());
  ASSERT_TRUE(append(s, ids(36, 28)).ok());
  EXPECT_EQ(internal::CacheAccess::raw_view(*cache_, 0).k, before);
  EXPECT_TRUE(holds(s, ids(0, 64)));
  EXPECT_EQ(append(s, {64}).code(), StatusCode::out_of_pages);
  EXPECT_TRUE(holds(s, ids(0, 64)));
}

TEST_F(CacheStory, TruncateToZeroAndBack) {
  open(4);
  Sequence s = cache_->new_sequence();
  ASSERT_TRUE(append(s, ids(0, 3)).ok());
  ASSERT_TRUE(cache_->truncate(s, 0).ok());
  EXPECT_EQ(s.num_cached(), 0);
  EXPECT_EQ(cache_->stats().used_blocks, 0);
  ASSERT_TRUE(append(s, ids(7, 2)).ok());
  EXPECT_TRUE(holds(s, ids(7, 2)));
}

TEST_F(CacheStory, TruncateRefusesWhatItCannotKeep) {
  open(4);
  Sequence s = cache_->new_sequence();
  ASSERT_TRUE(append(s, ids(0, 10)).ok());
  for (const int count : {-1, -5, INT32_MIN, 11, INT32_MAX}) {
    EXPECT_EQ(cache_->truncate(s, count).code(), StatusCode::invalid_argument) << count;
  }
  EXPECT_TRUE(cache_->truncate(s, 10).ok());
  EXPECT_TRUE(holds(s, ids(0, 10)));
}

TEST_F(CacheStory, RunningOutInABatchChangesNothing) {
  open(4);
  Sequence a = cache_->new_sequence();
  Sequence b = cache_->new_sequence();
  ASSERT_TRUE(append(a, ids(0, 17)).ok());
  ASSERT_TRUE(append(b, ids(100, 5)).ok());
  const std::vector<AppendRequest> requests = {{&a, 10}, {&b, 40}};
  const Result<AppendPlan> plan = cache_->reserve(requests);
  EXPECT_EQ(plan.status().code(), StatusCode::out_of_pages);
  EXPECT_THAT(plan.status().message(),
              HasSubstr("needs 2 more blocks of 16 tokens; 1 of the limit"));
  EXPECT_TRUE(holds(a, ids(0, 17)));
  EXPECT_TRUE(holds(b, ids(100, 5)));
  EXPECT_EQ(cache_->stats().used_blocks, 3);
  EXPECT_TRUE(append(b, ids(105, 20)).ok());
}

TEST_F(CacheStory, AppendingNothingWorksWhenFull) {
  open(1);
  Sequence s = cache_->new_sequence();
  ASSERT_TRUE(append(s, ids(0, 16)).ok());
  EXPECT_TRUE(append(s, {}).ok());
  EXPECT_TRUE(holds(s, ids(0, 16)));
}

TEST_F(CacheStory, ADroppedPlanGivesEverythingBack) {
  open(4);
  Sequence s = cache_->new_sequence();
  ASSERT_TRUE(append(s, ids(0, 10)).ok());
  {
    const AppendRequest request{&s, 40};
    AppendPlan plan = cache_->reserve({&request, 1}).value();
    write_model_rows(*cache_, plan, 0, ids(900, 40));
    EXPECT_EQ(cache_->stats().used_blocks, 4);
  }
  EXPECT_EQ(cache_->stats().used_blocks, 1);
  EXPECT_TRUE(holds(s, ids(0, 10)));
}

TEST_F(CacheStory, CommitRefusesALayerThatWasNotWritten) {
  open(4);
  Sequence s = cache_->new_sequence();
  const AppendRequest request{&s, 1};
  AppendPlan plan = cache_->reserve({&request, 1}).value();
  write_model_rows(*cache_, plan, 0, {1});
  const Status status = cache_->commit(std::move(plan));
  EXPECT_THAT(status.to_string(), HasSubstr("layer 1 was not written"));
  EXPECT_EQ(s.num_cached(), 0);
  EXPECT_EQ(cache_->stats().used_blocks, 0);
}

TEST_F(CacheStory, CommitReturnsTheFirstBadWrite) {
  open(4);
  Sequence s = cache_->new_sequence();
  const std::vector<float> rows(100);
  const ConstTensorView good(rows.data(), DType::f32, {1, 2, 8});
  const std::vector<std::pair<ConstTensorView, std::string>> bad = {
      {{rows.data(), DType::f32, {2, 2, 8}},
       "layer 0: k has shape [2, 2, 8]; the plan wants [1, 2"},
      {{rows.data(), DType::f32, {1, 8}}, "k has shape [1, 8]"},
      {{nullptr, DType::f32, {1, 2, 8}}, "k is null"},
  };
  for (const auto& [k, message] : bad) {
    const AppendRequest request{&s, 1};
    AppendPlan plan = cache_->reserve({&request, 1}).value();
    cache_->write(plan, 0, k, good);
    cache_->write(plan, 1, good, good);
    EXPECT_THAT(cache_->commit(std::move(plan)).message(), HasSubstr(message));
    EXPECT_EQ(s.num_cached(), 0);
  }
  for (const int layer : {-1, 2}) {
    const AppendRequest request{&s, 1};
    AppendPlan plan = cache_->reserve({&request, 1}).value();
    cache_->write(plan, layer, good, good);
    EXPECT_THAT(cache_->commit(std::move(plan)).message(), HasSubstr("the cache has 2 layers"));
  }
}

// A format that refuses token 1 of every second step's layer 1.
class RefusingBackend final : public Backend {
 public:
  std::string_view name() const override { return "refusing"; }
  Status supports(const KvSpec&, const AttentionParams&) const override { return {}; }
  Result<Buffer> reserve(int64_t bytes) override { return Buffer::reserve(bytes); }
  std::optional<int64_t> encode(const MutableKvView& view, const ConstTensorView& k,
                                const ConstTensorView& v, std::span<const int64_t> slots,
                                std::span<const int32_t> positions) override {
    if (refuse) return 1;
    return inner_->encode(view, k, v, slots, positions);
  }
  void attend(const AttentionCall& call) override { inner_->attend(call); }

  bool refuse = false;

 private:
  std::shared_ptr<Backend> inner_ = backend();
};

TEST_F(CacheStory, CommitRefusesAStepWhoseRowAFormatRefused) {
  const auto refusing = std::make_shared<RefusingBackend>();
  open(4, 16, refusing);
  Sequence s = cache_->new_sequence();
  ASSERT_TRUE(append(s, ids(0, 5)).ok());
  refusing->refuse = true;
  const Status status = append(s, ids(5, 3));
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  EXPECT_THAT(status.message(), HasSubstr("token 1 (position 6) holds a value"));
  refusing->refuse = false;
  EXPECT_TRUE(holds(s, ids(0, 5)));
  EXPECT_TRUE(append(s, ids(5, 3)).ok());
  EXPECT_TRUE(holds(s, ids(0, 8)));
}

TEST_F(CacheStory, PositionsOfABatchContinueEachSequence) {
  open(8);
  Sequence a = cache_->new_sequence();
  Sequence b = cache_->new_sequence();
  ASSERT_TRUE(append(a, ids(0, 4)).ok());
  ASSERT_TRUE(append(b, ids(100, 7)).ok());
  const std::vector<AppendRequest> requests = {{&a, 3}, {&b, 3}};
  AppendPlan plan = cache_->reserve(requests).value();
  EXPECT_THAT(plan.positions(), ElementsAre(4, 5, 6, 7, 8, 9));
  EXPECT_THAT(plan.query_indptr(), ElementsAre(0, 3, 6));
  EXPECT_THAT(plan.seq_lens(), ElementsAre(7, 10));
  std::vector<int64_t> more = ids(4, 3);
  for (const int64_t id : ids(107, 3)) more.push_back(id);
  for (int layer = 0; layer < 2; ++layer) write_model_rows(*cache_, plan, layer, more);
  EXPECT_THAT(plan.positions(), ElementsAre(4, 5, 6, 7, 8, 9));
  ASSERT_TRUE(cache_->commit(std::move(plan)).ok());
  EXPECT_EQ(a.num_cached(), 7);
  EXPECT_EQ(b.num_cached(), 10);
  EXPECT_TRUE(holds(a, ids(0, 7)));
  EXPECT_TRUE(holds(b, ids(100, 10)));
}

// [head][token][dim] with a gap behind each row, instead of [token][head][dim].
TEST_F(CacheStory, RowsWithStridesOfTheirOwnAreStored) {
  open(4);
  Sequence s = cache_->new_sequence();
  const AppendRequest request{&s, 5};
  AppendPlan plan = cache_->reserve({&request, 1}).value();
  for (int layer = 0; layer < 2; ++layer) {
    const std::vector<float> k = test::model_rows(ids(0, 5), kSpec, layer, true);
    const std::vector<float> v = test::model_rows(ids(0, 5), kSpec, layer, false);
    std::vector<float> strided(2 * 2 * 5 * 11, 99.0f);
    for (size_t token = 0; token < 5; ++token) {
      for (size_t head = 0; head < 2; ++head) {
        for (size_t d = 0; d < 8; ++d) {
          const size_t to = (head * 5 + token) * 11 + d;
          strided[to] = k[(token * 2 + head) * 8 + d];
          strided[110 + to] = v[(token * 2 + head) * 8 + d];
        }
      }
    }
    ConstTensorView k_view(strided.data(), DType::f32, {5, 2, 8});
    k_view.stride = {11, 55, 1, 0};
    ConstTensorView v_view = k_view;
    v_view.data += 110 * sizeof(float);
    cache_->write(plan, layer, k_view, v_view);
  }
  ASSERT_TRUE(cache_->commit(std::move(plan)).ok());
  EXPECT_TRUE(holds(s, ids(0, 5)));
}

TEST_F(CacheStory, SequencesOfAnotherCacheAreRefused) {
  open(4);
  PagedCache other = std::move(*cache_);
  open(4);
  Sequence foreign = other.new_sequence();
  Sequence empty;
  for (Sequence* s : {&foreign, &empty}) {
    const AppendRequest request{s, 1};
    EXPECT_EQ(cache_->reserve({&request, 1}).status().code(), StatusCode::invalid_argument);
    EXPECT_EQ(cache_->truncate(*s, 0).code(), StatusCode::invalid_argument);
    EXPECT_EQ(cache_->fork(*s).status().code(), StatusCode::invalid_argument);
  }
  const AppendRequest null{nullptr, 1};
  EXPECT_EQ(cache_->reserve({&null, 1}).status().code(), StatusCode::invalid_argument);
}

TEST_F(CacheStory, ASequenceHasOneOpenPlanAtATime) {
  open(4);
  Sequence s = cache_->new_sequence();
  const AppendRequest request{&s, 1};
  const std::vector<AppendRequest> twice = {request, request};
  EXPECT_THAT(cache_->reserve(twice).status().message(), HasSubstr("named twice"));
  const AppendPlan plan = cache_->reserve({&request, 1}).value();
  EXPECT_THAT(cache_->reserve({&request, 1}).status().message(), HasSubstr("open plan"));
  EXPECT_THAT(cache_->truncate(s, 0).message(), HasSubstr("open plan"));
  EXPECT_THAT(cache_->fork(s).status().message(), HasSubstr("open plan"));
}

TEST_F(CacheStory, RefusesNegativeAndOverflowingCounts) {
  open(4);
  Sequence s = cache_->new_sequence();
  for (const int count : {-1, INT32_MIN}) {
    const AppendRequest request{&s, count};
    EXPECT_EQ(cache_->reserve({&request, 1}).status().code(), StatusCode::invalid_argument);
  }
  ASSERT_TRUE(append(s, {1}).ok());
  const AppendRequest request{&s, INT32_MAX};
  EXPECT_EQ(cache_->reserve({&request, 1}).status().code(), StatusCode::invalid_argument);
}

// Every byte outside the new slots is what it was before the cache grew, at the same address.
TEST_F(CacheStory, GrowthWritesNoRowAndMovesNothing) {
  open(4096);
  Sequence s = cache_->new_sequence();
  ASSERT_TRUE(append(s, ids(0, 100)).ok());
  std::vector<std::vector<std::byte>> before;
  std::vector<std::pair<std::byte*, int64_t>> used;
  for (int layer = 0; layer < 2; ++layer) {
    const MutableKvView view = internal::CacheAccess::raw_view(*cache_, layer);
    used.emplace_back(view.k, 6 * view.k_stride[0]);  // blocks 0 to 5 are full
    used.emplace_back(view.v, 6 * view.v_stride[0]);
  }
  for (const auto& [data, bytes] : used) before.emplace_back(data, data + bytes);
  const CacheStats small = cache_->stats();
  for (int i = 100; i < 20000; i += 100) ASSERT_TRUE(append(s, ids(i, 100)).ok());
  const CacheStats large = cache_->stats();
  EXPECT_GT(large.committed_blocks, 4 * small.committed_blocks);
  EXPECT_EQ(large.encoded_rows, 20000 * 2 * 2);  // tokens, heads, layers: each row once
  EXPECT_EQ(large.copied_rows, 0);
  for (size_t i = 0; i < used.size(); ++i) {
    EXPECT_EQ(std::memcmp(used[i].first, before[i].data(), before[i].size()), 0);
  }
  EXPECT_EQ(internal::CacheAccess::raw_view(*cache_, 0).k, used[0].first);
  EXPECT_TRUE(holds(s, ids(0, 20000)));
}

TEST_F(CacheStory, StatisticsAddUp) {
  open(1024);
  Sequence s = cache_->new_sequence();
  EXPECT_EQ(cache_->stats().resident_bytes, 0);
  ASSERT_TRUE(append(s, ids(0, 1000)).ok());
  const CacheStats stats = cache_->stats();
  EXPECT_EQ(stats.backend, backend()->name());
  EXPECT_EQ(stats.max_blocks, 1024);
  EXPECT_EQ(stats.used_blocks, 63);
  EXPECT_EQ(stats.nbytes, stats.committed_blocks * 16 * token_bytes(kSpec));
  EXPECT_LE(stats.nbytes, stats.committed_bytes);
  EXPECT_LE(stats.resident_bytes, stats.committed_bytes);
  EXPECT_GE(stats.resident_bytes, 1000 * token_bytes(kSpec));
}

TEST_F(CacheStory, ASequenceMayOutliveItsCache) {
  open(4);
  Sequence s = cache_->new_sequence();
  ASSERT_TRUE(append(s, {1}).ok());
  const AppendRequest request{&s, 1};
  AppendPlan plan = cache_->reserve({&request, 1}).value();
  cache_.reset();
  EXPECT_EQ(plan.num_tokens(), 1);
  EXPECT_EQ(s.num_cached(), 1);
}

TEST(PagedCache, RefusesOptionsOutOfRange) {
  PagedCacheOptions good;
  good.spec = kSpec;
  EXPECT_TRUE(PagedCache::create(good, backend()).ok());
  const auto refused = [&](auto change, const std::string& part) {
    PagedCacheOptions options = good;
    change(options);
    const auto cache = PagedCache::create(options, backend());
    EXPECT_EQ(cache.status().code(), StatusCode::invalid_argument);
    EXPECT_THAT(cache.status().message(), HasSubstr(part));
  };
  refused([](auto& o) { o.block_size = 8; }, "block_size is 8");
  refused([](auto& o) { o.block_size = 0; }, "block_size is 0");
  refused([](auto& o) { o.max_blocks = 0; }, "max_blocks 0");
  refused([](auto& o) { o.num_blocks = 1025; }, "num_blocks 1025");
  refused([](auto& o) { o.window = 0; }, "window is 0");
  refused([](auto& o) { o.rollback_slack = -1; }, "rollback_slack is -1");
  refused([](auto& o) { o.spec.layers.clear(); }, "layers is empty");
  refused(
      [](auto& o) {
        o.block_size = o.max_blocks = INT32_MAX / 16 * 16;
        o.spec.num_kv_heads = 1000;
      },
      "exceed 2^63 bytes");
  EXPECT_EQ(PagedCache::create(good, nullptr).status().code(), StatusCode::invalid_argument);
}

TEST(PagedCache, RefusesMoreAddressSpaceThanThereIs) {
  PagedCacheOptions options;
  options.spec = {64, 512, 512, {{KvCode::f32, KvCode::f32}}};
  options.max_blocks = INT32_MAX;
  const auto cache = PagedCache::create(options, backend());
  EXPECT_EQ(cache.status().code(), StatusCode::out_of_memory);
  EXPECT_THAT(cache.status().message(), HasSubstr("address space"));
}

TEST(PagedCache, BlocksAskedForAtTheStartAreBacked) {
  PagedCacheOptions options;
  options.spec = kSpec;
  options.num_blocks = 100;
  const PagedCache cache = PagedCache::create(options, backend()).value();
  EXPECT_GE(cache.stats().committed_blocks, 100);
  EXPECT_GE(cache.stats().resident_bytes, 100 * 16 * token_bytes(kSpec));
}

// ---- contiguous
// ------------------------------------------------------------------------------------------

TEST(ContiguousCache, IsTheIdentityTableOverTheSameTiles) {
  ContiguousCache cache = ContiguousCache::create({kSpec, 100}, backend()).value();
  std::vector<int64_t> all;
  for (const int count : {5, 30, 1, 40}) {
    AppendPlan plan = cache.reserve(count).value();
    std::vector<int64_t> more;
    for (int i = 0; i < count; ++i) more.push_back(static_cast<int64_t>(all.size()) + i);
    for (int layer = 0; layer < 2; ++layer) write_model_rows(cache, plan, layer, more);
    all.insert(all.end(), more.begin(), more.end());
    for (int layer = 0; layer < 2; ++layer) {
      const KvView view = cache.view(plan, layer);
      EXPECT_TRUE(holds_model_rows(view, 0, layer, all));
      for (size_t i = 0; i < view.page_ids.size(); ++i) {
        EXPECT_EQ(view.page_ids[i], static_cast<int32_t>(i));
      }
    }
    ASSERT_TRUE(cache.commit(std::move(plan)).ok());
    // Going back and on again keeps the identity.
    if (count == 30) {
      ASSERT_TRUE(cache.truncate(10).ok());
      all.resize(10);
    }
  }
  EXPECT_EQ(cache.num_cached(), 51);
  const Result<AppendPlan> refused = cache.reserve(50);
  EXPECT_EQ(refused.status().code(), StatusCode::out_of_pages);
  EXPECT_THAT(refused.status().message(),
              HasSubstr("room for 101 tokens; the cache was made for 100"));
  EXPECT_TRUE(cache.reserve(49).ok());
}

// ---- paged = contiguous = forked, to the bit, through attention
// -------------------------------------------

class CacheParity : public testing::TestWithParam<KvFormat> {
 protected:
  static constexpr int kTokens = 150;
  const KvSpec spec_{3, 32, 48, {GetParam()}};
  const test::SequenceRows rows_ = test::random_rows(11, kTokens, {3, 32, 48});

  template <class Cache>
  void write(Cache& cache, AppendPlan& plan, int from) const {
    const int64_t n = plan.num_tokens();
    cache.write(plan, 0, {rows_.k.data() + from * 3 * 32, DType::f32, {n, 3, 32}},
                {rows_.v.data() + from * 3 * 48, DType::f32, {n, 3, 48}});
  }

  test::Outputs attend_to(const KvView& view) const {
    const Segment segment{.view = view};
    test::Queries queries(9, 32);
    queries.add(5, 4);
    test::Outputs outputs;
    const auto cpu = backend();
    EXPECT_TRUE(attend(*cpu, test::make_call(queries, {&segment, 1}, {}, outputs)).ok());
    return outputs;
  }

  Status append(PagedCache& cache, Sequence& s, int from, int count) const {
    const AppendRequest request{&s, count};
    Result<AppendPlan> plan = cache.reserve({&request, 1});
    if (!plan.ok()) return plan.status();
    write(cache, *plan, from);
    return cache.commit(std::move(plan).value());
  }

  test::Outputs read(PagedCache& cache, Sequence& s) const {
    const AppendRequest request{&s, 0};
    const AppendPlan plan = cache.reserve({&request, 1}).value();
    return attend_to(cache.view(plan, 0));
  }
};

TEST_P(CacheParity, PagedEqualsContiguousEqualsForked) {
  ContiguousCache contiguous = ContiguousCache::create({spec_, 1000}, backend()).value();
  AppendPlan whole = contiguous.reserve(kTokens).value();
  write(contiguous, whole, 0);
  const test::Outputs expected = attend_to(contiguous.view(whole, 0));

  for (const int block_size : {16, 48, 128}) {
    PagedCacheOptions options;
    options.spec = spec_;
    options.block_size = block_size;
    PagedCache paged = PagedCache::create(options, backend()).value();
    Sequence other = paged.new_sequence();  // interleaves its pages with those of s
    Sequence s = paged.new_sequence();
    for (int from = 0; from < kTokens; from += 10) {
      ASSERT_TRUE(append(paged, other, from, 7).ok());
      ASSERT_TRUE(append(paged, s, from, 10).ok());
    }
    EXPECT_TRUE(read(paged, s).same_bits(expected)) << block_size;

    Sequence long_one = paged.fork(s).value();
    ASSERT_TRUE(paged.truncate(long_one, 71).ok());
    Sequence fork = paged.fork(long_one).value();
    ASSERT_TRUE(append(paged, fork, 71, kTokens - 71).ok());
    EXPECT_TRUE(read(paged, fork).same_bits(expected)) << "forked, " << block_size;
    EXPECT_TRUE(read(paged, s).same_bits(expected));
  }
}

// The attention of a cache is that of its decoded rows.
TEST_P(CacheParity, AttendsToWhatItsRowsDecodeTo) {
  PagedCacheOptions options;
  options.spec = spec_;
  PagedCache paged = PagedCache::create(options, backend()).value();
  Sequence s = paged.new_sequence();
  ASSERT_TRUE(append(paged, s, 0, kTokens).ok());
  test::SequenceRows decoded = rows_;
  const MutableKvView view = internal::CacheAccess::raw_view(paged, 0);
  for (int t = 0; t < kTokens; ++t) {
    for (int h = 0; h < 3; ++h) {
      const int page = s.table().page(t / 16);
      decode_k_row(view.format.k, k_tile(view, page, 0, h), t % 16,
                   decoded.k.data() + (t * 3 + h) * 32, 32);
      decode_v_row(view.format.v, v_tile(view, page, 0, h), t % 16,
                   decoded.v.data() + (t * 3 + h) * 48, 48);
    }
  }
  test::TiledOptions plain;
  plain.format = {KvCode::f32, KvCode::f32};
  test::TiledKv kv({3, 32, 48}, {decoded}, plain);
  const test::Outputs expected = attend_to(kv.view());
  const test::Outputs got = read(paged, s);
  EXPECT_LE(test::max_difference(got.out, expected.out), 1e-5);
  EXPECT_LE(test::max_difference(got.lse, expected.lse), 2e-5);
}

// A refused row leaves lengths, and what is stored is read as before.
TEST_P(CacheParity, RefusesRowsThatItsFormatCannotStore) {
  if (!is_packed(GetParam().k)) return;
  PagedCacheOptions options;
  options.spec = spec_;
  PagedCache paged = PagedCache::create(options, backend()).value();
  Sequence s = paged.new_sequence();
  ASSERT_TRUE(append(paged, s, 0, 21).ok());
  const test::Outputs before = read(paged, s);
  const AppendRequest request{&s, 2};
  AppendPlan plan = paged.reserve({&request, 1}).value();
  std::vector<float> k(rows_.k.begin(), rows_.k.begin() + 2 * 3 * 32);
  k[3 * 32 + 5] = NAN;  // of the second token
  paged.write(plan, 0, {k.data(), DType::f32, {2, 3, 32}},
              {rows_.v.data(), DType::f32, {2, 3, 48}});
  const Status status = paged.commit(std::move(plan));
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  EXPECT_THAT(status.message(), HasSubstr("token 1 (position 22) holds a value"));
  EXPECT_EQ(s.num_cached(), 21);
  EXPECT_TRUE(read(paged, s).same_bits(before));
}

INSTANTIATE_TEST_SUITE_P(
    Formats, CacheParity,
    testing::Values(KvFormat{KvCode::bf16, KvCode::f16}, KvFormat{KvCode::q8, KvCode::q8},
                    KvFormat{KvCode::q4, KvCode::q6}, KvFormat{KvCode::tqk_q4_0, KvCode::tq8},
                    KvFormat{KvCode::tq4, KvCode::tq2}, KvFormat{KvCode::tcq4, KvCode::tcq3}),
    [](const auto& test) {
      return std::string(kv_code_name(test.param.k)) + "_" +
             std::string(kv_code_name(test.param.v));
    });

TEST(PagedCachePacked, ChecksFormatsWhenItIsMade) {
  PagedCacheOptions options;
  options.spec = {2, 64, 80, {{KvCode::tq4, KvCode::tq4}, {KvCode::tq4, KvCode::tqv_q4_0}}};
  const Status status = PagedCache::create(options, backend()).status();
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  EXPECT_THAT(status.message(), HasSubstr("values of layer 1: tqv_q4_0 stores multiples of 32"));
}

// ---- sets
// ----------------------------------------------------------------------------------------------

class SetStory : public testing::Test {
 protected:
  void SetUp() override {
    PagedCacheOptions full;
    full.spec = {1, 4, 4, {{KvCode::f32, KvCode::f32}}};
    full.max_blocks = 8;
    PagedCacheOptions window = full;
    window.window = 20;
    window.rollback_slack = 4;
    const std::vector<PagedCacheOptions> options = {full, window};
    set_.emplace(CacheSet::create(options, backend()).value());
  }

  Status append(Sequence& s, int count, bool forget = false) {
    const AppendRequest request{&s, count};
    Result<SetPlan> plan = set_->reserve({&request, 1});
    if (!plan.ok()) return plan.status();
    const std::vector<int64_t> tokens(static_cast<size_t>(count), 3);
    write_model_rows(set_->cache(0), plan->plan(0), 0, tokens);
    if (!forget) write_model_rows(set_->cache(1), plan->plan(1), 0, tokens);
    return set_->commit(std::move(plan).value());
  }

  std::optional<CacheSet> set_;
};

TEST_F(SetStory, WindowLayersGiveBlocksBackAndTheOthersKeepThem) {
  Sequence s = set_->new_sequence();
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(append(s, 1).ok());
  EXPECT_EQ(set_->cache(0).stats().used_blocks, 7);
  EXPECT_EQ(s.table(1).begin_block(), (100 - 20 - 4) / 16);
  EXPECT_EQ(set_->cache(1).stats().used_blocks, 7 - 4);
}

TEST_F(SetStory, GoesBackWithinTheSlackAndRefusesBeyond) {
  Sequence s = set_->new_sequence();
  ASSERT_TRUE(append(s, 100).ok());
  EXPECT_TRUE(set_->truncate(s, 96).ok());
  const Status status = set_->truncate(s, 50);
  EXPECT_EQ(status.code(), StatusCode::unsupported);
  EXPECT_THAT(status.message(), HasSubstr("left the window"));
  EXPECT_EQ(s.num_cached(), 96);
  EXPECT_EQ(s.table(0).end_block(), 6);
  EXPECT_TRUE(append(s, 1).ok());
  EXPECT_TRUE(set_->truncate(s, 0).ok());
  EXPECT_TRUE(append(s, 1).ok());
}

TEST_F(SetStory, PositionsGoOnCountingWhenRowsWereGivenBack) {
  Sequence s = set_->new_sequence();
  for (int position = 0; position < 120; ++position) {
    const AppendRequest request{&s, 1};
    SetPlan plan = set_->reserve({&request, 1}).value();
    for (int c = 0; c < 2; ++c) {
      EXPECT_THAT(plan.plan(c).positions(), ElementsAre(position));
      EXPECT_THAT(plan.plan(c).seq_lens(), ElementsAre(position + 1));
      write_model_rows(set_->cache(c), plan.plan(c), 0, {position});
    }
    ASSERT_TRUE(set_->commit(std::move(plan)).ok());
  }
  EXPECT_EQ(s.num_cached(), 120);
  EXPECT_LE(s.table(1).end_block() - s.table(1).begin_block(), 3);
}

// Each dim's value is 1 for the tokens whose position is that dim modulo 16, and queries are zeros:
// the mean over the newest 8.
TEST(PagedCache, AWindowShowsItsNewestTokensBeforeAtAndAfterItFills) {
  PagedCacheOptions options;
  options.spec = {1, 4, 16, {{KvCode::f32, KvCode::f32}}};
  options.window = 8;
  options.rollback_slack = 0;
  options.max_blocks = 3;
  const std::shared_ptr<Backend> cpu = backend();
  PagedCache cache = PagedCache::create(options, cpu).value();
  Sequence s = cache.new_sequence();
  for (int count = 6; s.num_cached() < 60; count = 1) {
    const AppendRequest request{&s, count};
    AppendPlan plan = cache.reserve({&request, 1}).value();
    std::vector<float> k(static_cast<size_t>(count) * 4, 1.0f);
    std::vector<float> v(static_cast<size_t>(count) * 16, 0.0f);
    for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
      v[i * 16 + static_cast<size_t>(plan.positions()[i] % 16)] = 1;
    }
    cache.write(plan, 0, {k.data(), DType::f32, {count, 1, 4}},
                {v.data(), DType::f32, {count, 1, 16}});
    const Segment segment{.view = cache.view(plan, 0)};
    test::Queries queries(1, 4);
    queries.add(std::vector<float>(k.size(), 0.0f));
    test::Outputs outputs;
    ASSERT_TRUE(attend(*cpu, test::make_call(queries, {&segment, 1}, {.window = 8}, outputs)).ok());
    ASSERT_TRUE(cache.commit(std::move(plan)).ok());
    const int length = s.num_cached();
    const int seen = std::min(length, 8);
    std::vector<float> expected(16, 0.0f);
    for (int p = length - seen; p < length; ++p) {
      expected[static_cast<size_t>(p % 16)] = 1.0f / static_cast<float>(seen);
    }
    const std::vector<float> newest(outputs.out.end() - 16, outputs.out.end());
    EXPECT_THAT(newest, testing::Pointwise(testing::FloatNear(1e-6f), expected)) << length;
  }
}

TEST_F(SetStory, OneCacheWithoutRoomStopsAll) {
  Sequence s = set_->new_sequence();
  ASSERT_TRUE(append(s, 120).ok());
  const int64_t before = set_->cache(1).stats().used_blocks;
  EXPECT_EQ(append(s, 9).code(), StatusCode::out_of_pages);
  EXPECT_EQ(set_->cache(1).stats().used_blocks, before);
  EXPECT_EQ(s.num_cached(), 120);
  EXPECT_TRUE(append(s, 8).ok());
}

TEST_F(SetStory, OneLayerForgottenStopsAll) {
  Sequence s = set_->new_sequence();
  EXPECT_THAT(append(s, 5, true).message(), HasSubstr("cache 1: layer 0 was not written"));
  EXPECT_EQ(s.num_cached(), 0);
  EXPECT_EQ(set_->cache(0).stats().used_blocks, 0);
}

TEST_F(SetStory, ACacheOfASetRefusesToStepAlone) {
  Sequence s = set_->new_sequence();
  PagedCache& cache = set_->cache(0);
  const AppendRequest request{&s, 1};
  EXPECT_THAT(cache.reserve({&request, 1}).status().message(), HasSubstr("call the CacheSet"));
  EXPECT_THAT(cache.truncate(s, 0).message(), HasSubstr("call the CacheSet"));
  EXPECT_THAT(cache.fork(s).status().message(), HasSubstr("call the CacheSet"));
  EXPECT_EQ(cache.new_sequence().id(), 0u);
}

TEST_F(SetStory, ForksSpanAllCaches) {
  Sequence s = set_->new_sequence();
  ASSERT_TRUE(append(s, 40).ok());
  Sequence fork = set_->fork(s).value();
  EXPECT_NE(fork.id(), s.id());
  EXPECT_EQ(set_->cache(0).stats().shared_blocks, 3);
  EXPECT_EQ(set_->cache(1).stats().shared_blocks, set_->cache(1).stats().used_blocks);
  ASSERT_TRUE(append(fork, 1).ok());
  EXPECT_EQ(s.num_cached(), 40);
  EXPECT_EQ(fork.num_cached(), 41);
}

TEST(CacheSet, RefusesAnEmptyList) {
  EXPECT_EQ(CacheSet::create({}, backend()).status().code(), StatusCode::invalid_argument);
}

TEST(ContiguousOption, OneSequenceWhoseBlockIIsPageI) {
  PagedCacheOptions options;
  options.spec = kSpec;
  options.max_blocks = 8;
  options.contiguous = true;
  CacheSet set = CacheSet::create({&options, 1}, backend()).value();
  Sequence sequence = set.new_sequence();
  const auto grow = [&](int num_tokens) {
    const AppendRequest request{&sequence, num_tokens};
    SetPlan plan = set.reserve({&request, 1}).value();
    const std::vector<int64_t> ids(static_cast<size_t>(num_tokens), 7);
    for (int layer = 0; layer < kSpec.num_layers(); ++layer) {
      write_model_rows(set.cache(0), plan.plan(0), layer, ids);
    }
    EXPECT_TRUE(set.commit(std::move(plan)).ok());
    for (int block = 0; block < sequence.table().end_block(); ++block) {
      EXPECT_EQ(sequence.table().page(block), block);
    }
  };
  grow(100);
  ASSERT_TRUE(set.truncate(sequence, 20).ok());
  grow(50);
  ASSERT_TRUE(set.truncate(sequence, 0).ok());
  grow(128);

  EXPECT_EQ(set.new_sequence().id(), 0U);
  EXPECT_EQ(set.fork(sequence).status().code(), StatusCode::unsupported);
  sequence = Sequence();
  sequence = set.new_sequence();
  EXPECT_NE(sequence.id(), 0U);
  grow(16);
}

}  // namespace
}  // namespace kvik
