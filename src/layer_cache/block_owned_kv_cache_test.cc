#include "kvik/layer_cache/block_owned_kv_cache.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>

#include "kvik/layer_cache/tail_owned_kv_cache.h"
#include "support/layer_cache_model.h"
#include "support/layer_rows.h"

namespace kvik {
namespace {

using test::first_rows;
using test::join;
using test::LayerRows;
using test::same_rows;

constexpr KvArrayShape kShape{2, 3, 8, 5, DType::f16, DType::bf16};

BlockOwnedKVCache make(const BlockOwnedOptions& options = {}) {
  Result<BlockOwnedKVCache> cache = BlockOwnedKVCache::create(options);
  EXPECT_TRUE(cache.ok()) << cache.status().to_string();
  return std::move(cache).value();
}

KvArrays update(BlockOwnedKVCache& cache, const LayerRows& rows) {
  Result<KvArrays> all = cache.update_and_fetch(rows.keys(), rows.values());
  EXPECT_TRUE(all.ok()) << all.status().to_string();
  return std::move(all).value();
}

RC_GTEST_PROP(BlockOwnedKVCacheModel, RandomOperationsMatchAListOfRows, ()) {
  const int64_t block_size = *rc::gen::element(1, 3, 16, 1024);
  const int64_t max_rows = *rc::gen::element(1, 16, 1000);
  test::run_layer_cache_model<BlockOwnedKVCache>(
      [=] {
        return make({block_size, DetachMode::contiguous_eval, max_rows});
      },
      {1, 2, 3, 4, DType::f32, DType::f16});
}

TEST(BlockOwnedKVCache, CountsAnUpdateForEveryBlockThatACallTouches) {
  BlockOwnedKVCache cache = make({4});
  const LayerRows rows(kShape, 10, 1, 2);
  ASSERT_TRUE(cache.update_without_fetch(rows.keys(), rows.values()).ok());
  const TailOwnerStats stats = cache.tail_owner_stats();
  EXPECT_EQ(stats.updates, 3);
  EXPECT_EQ(stats.arrays, 6);
  EXPECT_EQ(stats.bytes, static_cast<int64_t>(rows.k.size() + rows.v.size()));
  EXPECT_EQ(cache.num_blocks(), 3);
  EXPECT_EQ(cache.nbytes(), 12 * kShape.row_bytes());
}

TEST(BlockOwnedKVCache, ReadsAllRowsAsOneViewThatStaysValid) {
  BlockOwnedKVCache cache = make({4});
  LayerRows rows(kShape, 5, 1, 2);
  const KvArrays first = update(cache, rows);
  for (int i = 0; i < 30; ++i) {
    const LayerRows more(kShape, 3, uint64_t(i) + 9, uint64_t(i) + 99);
    EXPECT_EQ(update(cache, more).keys.data, first.keys.data);
    rows = join(rows, more);
  }
  EXPECT_TRUE(same_rows(*cache.state(), rows));
  EXPECT_TRUE(same_rows(first, first_rows(rows, 5)));
  EXPECT_EQ(cache.tail_owner_stats().copies, 0);
}

TEST(BlockOwnedKVCache, GivesItsActiveBlocksOneByOne) {
  BlockOwnedKVCache cache = make({3});
  EXPECT_TRUE(cache.active_block_slices().empty());
  const LayerRows rows(kShape, 8, 1, 2);
  update(cache, rows);
  cache.trim(1);
  const auto slices = cache.active_block_slices();
  ASSERT_EQ(slices.size(), 3U);
  for (size_t i = 0; i < 3; ++i) {
    const int64_t start = 3 * static_cast<int64_t>(i);
    const int64_t end = std::min<int64_t>(start + 3, 7);
    EXPECT_EQ(slices[i].start, start);
    EXPECT_EQ(test::bytes_of(slices[i].rows.keys),
              test::bytes_of(rows_of(rows.keys(), start, end)));
    EXPECT_EQ(test::bytes_of(slices[i].rows.values),
              test::bytes_of(rows_of(rows.values(), start, end)));
  }
  EXPECT_EQ(cache.num_blocks(), 3);
}

TEST(BlockOwnedKVCache, IsEmptyWithoutRowsAndKeepsItsBlocks) {
  BlockOwnedKVCache cache = make({4});
  EXPECT_TRUE(cache.empty());
  EXPECT_EQ(cache.num_blocks(), 0);
  update(cache, LayerRows(kShape, 9, 1, 2));
  EXPECT_EQ(cache.trim(9), 9);
  EXPECT_TRUE(cache.empty());
  EXPECT_EQ(cache.num_blocks(), 3);
}

TEST(BlockOwnedKVCache, RefusesAMetaStateOfAnotherBlockSizeOnceItHasRows) {
  BlockOwnedKVCache cache = make({3});
  EXPECT_TRUE(cache.set_meta_state(std::vector<std::string>{"4", "0", "eval_only"}).ok());
  EXPECT_EQ(cache.block_size(), 4);
  update(cache, LayerRows(kShape, 5, 1, 2));
  for (const char* block : {"3", "0", "-4", "x"}) {
    EXPECT_EQ(cache.set_meta_state(std::vector<std::string>{block, "5"}).code(),
              StatusCode::invalid_argument);
  }
  EXPECT_EQ(cache.set_meta_state(std::vector<std::string>{"4", "6"}).code(),
            StatusCode::invalid_argument);
  EXPECT_EQ(cache.meta_state(), (std::vector<std::string>{"4", "5", "eval_only"}));
  EXPECT_TRUE(cache.set_meta_state(std::vector<std::string>{"4", "2"}).ok());
  EXPECT_EQ(cache.offset(), 2);
}

TEST(BlockOwnedKVCache, SharesRowsWithATailOwnedCacheBothWays) {
  BlockOwnedKVCache cache = make({3});
  const LayerRows rows(kShape, 8, 1, 2);
  update(cache, rows);
  Result<TailOwnedKVCache> tail = TailOwnedKVCache::from_cache(cache, DetachMode::eval_only);
  ASSERT_TRUE(tail.ok());
  EXPECT_EQ(tail->step(), 256);
  EXPECT_EQ(tail->keys()->data, cache.keys()->data);
  Result<BlockOwnedKVCache> back = BlockOwnedKVCache::from_cache(*tail, DetachMode::eval_only, 5);
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(back->active_block_slices().size(), 2U);
  const LayerRows more(kShape, 2, 3, 4);
  EXPECT_TRUE(same_rows(update(*back, more), join(rows, more)));
  EXPECT_TRUE(same_rows(*cache.state(), rows));
  EXPECT_FALSE(BlockOwnedKVCache::from_cache(*tail, DetachMode::eval_only, 0).ok());
  EXPECT_FALSE(BlockOwnedKVCache::create({0}).ok());
}

TEST(BlockOwnedKVCache, StaleRowsNeverReappear) {
  for (const float poison : {std::nanf(""), 1e4f}) {
    BlockOwnedKVCache cache = make({4});
    const LayerRows rows(kShape, 9, 1, 2);
    update(cache, rows);
    update(cache, LayerRows::filled(kShape, 30, poison));
    cache.trim(30);
    const LayerRows more(kShape, 3, 3, 4);
    EXPECT_TRUE(same_rows(update(cache, more), join(rows, more)));
  }
}

TEST(BlockOwnedKVCache, ReplacesAndClearsItsRows) {
  BlockOwnedKVCache cache = make({4});
  update(cache, LayerRows(kShape, 9, 1, 2));
  const LayerRows rows(kShape, 3, 5, 6);
  ASSERT_TRUE(cache.set_keys(rows.keys()).ok());
  ASSERT_TRUE(cache.set_values(rows.values()).ok());
  EXPECT_TRUE(same_rows(*cache.state(), rows));
  EXPECT_EQ(cache.num_blocks(), 1);
  ASSERT_TRUE(cache.set_keys(std::nullopt).ok());
  EXPECT_TRUE(cache.empty());
  EXPECT_EQ(cache.num_blocks(), 0);
}

}  // namespace
}  // namespace kvik
