#include "kvik/layer_cache/tail_owned_kv_cache.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <limits>
#include <memory>

#include "support/layer_cache_model.h"
#include "support/layer_rows.h"

namespace kvik {
namespace {

using test::bytes_of;
using test::first_rows;
using test::join;
using test::LayerRows;
using test::same_rows;

constexpr KvArrayShape kShape{2, 3, 8, 5, DType::f32, DType::bf16};

TailOwnedKVCache make(const TailOwnedOptions& options = {}) {
  Result<TailOwnedKVCache> cache = TailOwnedKVCache::create(options);
  EXPECT_TRUE(cache.ok()) << cache.status().to_string();
  return std::move(cache).value();
}

KvArrays update(TailOwnedKVCache& cache, const LayerRows& rows) {
  Result<KvArrays> all = cache.update_and_fetch(rows.keys(), rows.values());
  EXPECT_TRUE(all.ok()) << all.status().to_string();
  return std::move(all).value();
}

RC_GTEST_PROP(TailOwnedKVCacheModel, RandomOperationsMatchAListOfRows, ()) {
  const int64_t step = *rc::gen::element(1, 4, 7, 256);
  const int64_t max_rows = *rc::gen::element(1, 16, 1000);
  test::run_layer_cache_model<TailOwnedKVCache>(
      [=] {
        return make({step, DetachMode::contiguous_eval, max_rows});
      },
      {2, 2, 3, 4, DType::f32, DType::f16});
}

TEST(TailOwnedKVCache, CountsExactlyTheNewRows) {
  TailOwnedKVCache cache = make();
  int64_t bytes = 0;
  for (int i = 0; i < 40; ++i) {
    const LayerRows rows(kShape, 1 + i * 7 % 50, uint64_t(i), uint64_t(i) + 100);
    update(cache, rows);
    bytes += int64_t(rows.k.size() + rows.v.size());
  }
  const TailOwnerStats stats = cache.tail_owner_stats();
  EXPECT_EQ(stats.updates, 40);
  EXPECT_EQ(stats.arrays, 80);
  EXPECT_EQ(stats.bytes, bytes);
  EXPECT_EQ(stats.copies, 0);
  EXPECT_GT(stats.time_s, 0);
  EXPECT_EQ(stats.mode, "contiguous_eval");
}

TEST(TailOwnedKVCache, GrowthMovesNothingAlsoWhileViewsAreHeld) {
  TailOwnedKVCache cache = make({16});
  std::vector<KvArrays> views;
  LayerRows all;
  all.shape = kShape;
  std::vector<LayerRows> expected;
  for (int i = 0; i < 60; ++i) {
    const LayerRows rows(kShape, 9, uint64_t(i), uint64_t(i) + 100);
    views.push_back(update(cache, rows));
    all = join(all, rows);
    expected.push_back(all);
  }
  EXPECT_EQ(cache.tail_owner_stats().copies, 0);
  for (size_t i = 0; i < views.size(); ++i) {
    EXPECT_EQ(views[i].keys.data, views[0].keys.data);
    EXPECT_TRUE(same_rows(views[i], expected[i])) << i;
  }
}

TEST(TailOwnedKVCache, ReturnsPlainStridesWithTheRowsOfAHeadTogether) {
  TailOwnedKVCache cache = make();
  const KvArrays all = update(cache, LayerRows(kShape, 10, 1, 2));
  EXPECT_EQ(all.keys.step(3), 1);
  EXPECT_EQ(all.keys.step(2), kShape.head_dim_k);
  EXPECT_EQ(all.keys.step(0), kShape.num_kv_heads * all.keys.step(1));
  EXPECT_EQ(all.values.step(2), kShape.head_dim_v);
}

TEST(TailOwnedKVCache, ViewsOutliveTheCache) {
  const LayerRows rows(kShape, 10, 1, 2);
  auto cache = std::make_unique<TailOwnedKVCache>(make());
  const KvArrays all = update(*cache, rows);
  cache.reset();
  EXPECT_TRUE(same_rows(all, rows));
}

TEST(TailOwnedKVCache, CopiesOnceAfterATrimOnlyIfALiveViewCoversTheRows) {
  TailOwnedKVCache cache = make();
  const LayerRows rows(kShape, 10, 1, 2);
  update(cache, rows);
  cache.trim(3);
  update(cache, LayerRows(kShape, 2, 3, 4));
  EXPECT_EQ(cache.tail_owner_stats().copies, 0) << "the view was dropped at once";

  KvArrays held = *cache.state();
  const LayerRows expected = join(first_rows(rows, 7), LayerRows(kShape, 2, 3, 4));
  cache.trim(1);
  update(cache, LayerRows(kShape, 2, 5, 6));
  EXPECT_EQ(cache.tail_owner_stats().copies, 1);
  EXPECT_TRUE(same_rows(held, expected));
  update(cache, LayerRows(kShape, 2, 7, 8));
  cache.trim(1);
  update(cache, LayerRows(kShape, 2, 7, 8));
  EXPECT_EQ(cache.tail_owner_stats().copies, 1) << "the held view is of other memory by now";

  const KvArrays all = *cache.state();
  cache.trim(cache.offset());
  update(cache, LayerRows(kShape, 1, 9, 9));
  EXPECT_EQ(cache.tail_owner_stats().copies, 1) << "nothing is left to copy after a trim to zero";
  EXPECT_EQ(all.num_rows(), 13);
}

TEST(TailOwnedKVCache, AppendsInPlaceWhenLiveViewsEndBelowTheNewRows) {
  TailOwnedKVCache cache = make();
  const KvArrays first = update(cache, LayerRows(kShape, 5, 1, 2));
  update(cache, LayerRows(kShape, 5, 3, 4));
  cache.trim(5);
  update(cache, LayerRows(kShape, 5, 5, 6));
  EXPECT_EQ(cache.tail_owner_stats().copies, 0);
  EXPECT_TRUE(same_rows(first, LayerRows(kShape, 5, 1, 2)));
}

TEST(TailOwnedKVCache, OfTwoForksTheOneWithoutTheTailCopiesOnce) {
  TailOwnedKVCache a = make();
  const LayerRows rows(kShape, 10, 1, 2);
  const LayerRows more_a(kShape, 3, 3, 4);
  const LayerRows more_b(kShape, 4, 5, 6);
  update(a, rows);
  TailOwnedKVCache b = a.fork();
  update(a, more_a);
  update(b, more_b);
  EXPECT_EQ(a.tail_owner_stats().copies, 0);
  EXPECT_EQ(b.tail_owner_stats().copies, 1);
  EXPECT_TRUE(same_rows(*a.state(), join(rows, more_a)));
  EXPECT_TRUE(same_rows(*b.state(), join(rows, more_b)));
  update(b, more_a);
  EXPECT_EQ(b.tail_owner_stats().copies, 1);
}

TEST(TailOwnedKVCache, ATrimmedForkKeepsWhatTheOtherSees) {
  TailOwnedKVCache original = make();
  const LayerRows y(kShape, 10, 1, 2);
  update(original, y);
  TailOwnedKVCache copy = original.fork();
  original.trim(1);
  const LayerRows z(kShape, 1, 3, 4);
  update(original, z);
  EXPECT_TRUE(same_rows(*copy.state(), y));
  EXPECT_TRUE(same_rows(*original.state(), join(first_rows(y, 9), z)));
}

TEST(TailOwnedKVCache, AForkTakesOverTheTailOfAHandleThatIsGone) {
  auto a = std::make_unique<TailOwnedKVCache>(make());
  update(*a, LayerRows(kShape, 10, 1, 2));
  TailOwnedKVCache b = a->fork();
  a.reset();
  update(b, LayerRows(kShape, 3, 3, 4));
  EXPECT_EQ(b.tail_owner_stats().copies, 0);
}

TEST(TailOwnedKVCache, PastMaxRowsOneCountedCopyDoublesTheReservation) {
  TailOwnedKVCache cache = make({4, DetachMode::contiguous_eval, 8});
  LayerRows all(kShape, 8, 1, 2);
  const KvArrays old = update(cache, all);
  EXPECT_EQ(cache.tail_owner_stats().copies, 0);
  for (int i = 0; i < 8; ++i) {
    const LayerRows one(kShape, 1, uint64_t(i) + 9, uint64_t(i) + 50);
    update(cache, one);
    all = join(all, one);
  }
  EXPECT_EQ(cache.tail_owner_stats().copies, 1);
  EXPECT_TRUE(same_rows(*cache.state(), all));
  EXPECT_TRUE(same_rows(old, first_rows(all, 8)));
}

TEST(TailOwnedKVCache, FollowsTheExampleOfUnevenChunks) {
  TailOwnedKVCache cache = make();
  LayerRows all;
  all.shape = kShape;
  for (const int64_t n : {100, 337, 1, 513}) {
    const LayerRows rows(kShape, n, uint64_t(n), uint64_t(n) + 1);
    update(cache, rows);
    all = join(all, rows);
    EXPECT_GE(cache.capacity(), cache.offset());
    EXPECT_EQ(cache.capacity() % 256, 0);
    EXPECT_TRUE(same_rows(*cache.state(), all));
  }
  EXPECT_EQ(cache.offset(), 951);
}

TEST(TailOwnedKVCache, RefusesOtherShapesAndDtypesAndChangesNothing) {
  TailOwnedKVCache cache = make();
  const LayerRows rows(kShape, 4, 1, 2);
  update(cache, rows);
  std::vector<KvArrayShape> wrong(7, kShape);
  wrong[0].batch = 1;
  wrong[1].num_kv_heads = 2;
  wrong[2].head_dim_k = 7;
  wrong[3].head_dim_v = 6;
  wrong[4].dtype_k = DType::bf16;
  wrong[5].dtype_v = DType::f16;
  wrong[6].head_dim_k = 577;
  for (const KvArrayShape& shape : wrong) {
    const LayerRows other(shape, 2, 3, 4);
    const Result<KvArrays> result = cache.update_and_fetch(other.keys(), other.values());
    EXPECT_EQ(result.status().code(), StatusCode::invalid_argument);
  }
  ConstTensorView shorter = rows_of(rows.values(), 0, 3);
  EXPECT_FALSE(cache.update_and_fetch(rows.keys(), shorter).ok());
  ConstTensorView null = rows.values();
  null.data = nullptr;
  EXPECT_FALSE(cache.update_and_fetch(rows.keys(), null).ok());
  ConstTensorView flat = rows.keys();
  flat.rank = 3;
  EXPECT_FALSE(cache.update_and_fetch(flat, rows.values()).ok());
  EXPECT_EQ(cache.tail_owner_stats().updates, 1);
  EXPECT_TRUE(same_rows(*cache.state(), rows));
}

TEST(TailOwnedKVCache, TakesInputsOfAnyStrides) {
  const LayerRows rows(kShape, 6, 1, 2);
  // [B, T, H, D] in memory, seen as [B, H, T, D]; and every second element of a wider row.
  const LayerRows wide({kShape.batch, kShape.num_kv_heads, 2 * kShape.head_dim_k, kShape.head_dim_v,
                        kShape.dtype_k, kShape.dtype_v},
                       6, 7, 8);
  ConstTensorView every_second = wide.keys();
  every_second.shape[3] = kShape.head_dim_k;
  every_second.stride[3] = 2;
  std::vector<std::byte> transposed(rows.k.size());
  TensorView target(transposed.data(), kShape.dtype_k, {2, 6, 3, 8});
  for (int64_t b = 0; b < 2; ++b) {
    for (int64_t h = 0; h < 3; ++h) {
      for (int64_t t = 0; t < 6; ++t) {
        std::memcpy(target.at(b, t) + h * 8 * 4, rows.keys().at(b, h) + t * 8 * 4, 8 * 4);
      }
    }
  }
  ConstTensorView view = target;
  std::swap(view.shape[1], view.shape[2]);
  std::swap(view.stride[1], view.stride[2]);
  TailOwnedKVCache cache = make();
  ASSERT_TRUE(cache.update_and_fetch(view, rows.values()).ok());
  EXPECT_TRUE(same_rows(*cache.state(), rows));
  ASSERT_TRUE(cache.update_and_fetch(every_second, rows.values()).ok());
  const KvArrays all = *cache.state();
  EXPECT_EQ(bytes_of(rows_of(all.keys, 6, 12)), bytes_of(every_second));
}

TEST(TailOwnedKVCache, AppendingNothingChangesNothing) {
  TailOwnedKVCache cache = make();
  const LayerRows none(kShape, 0, 1, 2);
  const KvArrays empty = update(cache, none);
  EXPECT_EQ(empty.num_rows(), 0);
  EXPECT_TRUE(cache.empty());
  const LayerRows rows(kShape, 4, 1, 2);
  update(cache, rows);
  EXPECT_TRUE(same_rows(update(cache, none), rows));
  EXPECT_EQ(cache.tail_owner_stats().updates, 1);
}

TEST(TailOwnedKVCache, TrimTakesAnyNumber) {
  TailOwnedKVCache cache = make();
  EXPECT_EQ(cache.trim(3), 0);
  const LayerRows rows(kShape, 10, 1, 2);
  update(cache, rows);
  EXPECT_EQ(cache.trim(-5), 0);
  EXPECT_EQ(cache.trim(std::numeric_limits<int64_t>::min()), 0);
  EXPECT_EQ(cache.trim(0), 0);
  EXPECT_EQ(cache.offset(), 10);
  EXPECT_EQ(cache.trim(std::numeric_limits<int64_t>::max()), 10);
  EXPECT_EQ(cache.offset(), 0);
  EXPECT_FALSE(cache.empty());
  EXPECT_EQ(cache.capacity(), 256);
}

TEST(TailOwnedKVCache, StaleRowsNeverReappear) {
  for (const float poison : {std::nanf(""), 1e4f}) {
    TailOwnedKVCache cache = make({4});
    const LayerRows rows(kShape, 9, 1, 2);
    update(cache, rows);
    update(cache, LayerRows::filled(kShape, 30, poison));
    cache.trim(30);
    EXPECT_TRUE(same_rows(*cache.state(), rows));
    const LayerRows more(kShape, 3, 3, 4);
    EXPECT_TRUE(same_rows(update(cache, more), join(rows, more)));
  }
}

TEST(TailOwnedKVCache, RestoresFromStateAndThenMeta) {
  TailOwnedKVCache cache = make({64});
  EXPECT_FALSE(cache.state().has_value());
  const LayerRows rows(kShape, 12, 1, 2);
  update(cache, rows);
  cache.trim(2);
  TailOwnedKVCache other = make();
  ASSERT_TRUE(other.set_state(cache.state()).ok());
  EXPECT_EQ(other.offset(), 10);
  ASSERT_TRUE(other.set_meta_state(cache.meta_state()).ok());
  EXPECT_EQ(other.meta_state(), (std::vector<std::string>{"64", "10", "contiguous_eval"}));
  EXPECT_TRUE(same_rows(*other.state(), first_rows(rows, 10)));
}

TEST(TailOwnedKVCache, ReplacesTheStateOfAUsedCache) {
  TailOwnedKVCache cache = make();
  update(cache, LayerRows(kShape, 300, 1, 2));
  KvArrayShape other_shape = kShape;
  other_shape.batch = 1;
  const LayerRows rows(other_shape, 5, 3, 4);
  ASSERT_TRUE(cache.set_state(rows.arrays()).ok());
  EXPECT_EQ(cache.offset(), 5);
  EXPECT_EQ(cache.capacity(), 256);
  EXPECT_EQ(cache.shape(), other_shape);
  ASSERT_TRUE(cache.set_state(cache.state()).ok()) << "its own view";
  EXPECT_TRUE(same_rows(*cache.state(), rows));
  ASSERT_TRUE(cache.set_state(std::nullopt).ok());
  EXPECT_TRUE(cache.empty());
  EXPECT_EQ(cache.nbytes(), 0);
  update(cache, LayerRows(kShape, 3, 1, 2));
  EXPECT_EQ(cache.tail_owner_stats().updates, 2) << "counters stay";
}

TEST(TailOwnedKVCache, RefusesAMetaStateThatDoesNotFitAndChangesNothing) {
  TailOwnedKVCache cache = make({4});
  update(cache, LayerRows(kShape, 8, 1, 2));
  const std::vector<std::vector<std::string>> wrong = {{"4"},
                                                       {"4", "9"},
                                                       {"4", "-1"},
                                                       {"0", "5"},
                                                       {"4", "5", "warp"},
                                                       {"four", "5"},
                                                       {"4", "5 "},
                                                       {"4", ""},
                                                       {"4", "5", "eval_only", "x"},
                                                       {"-4", "5"},
                                                       {"4", "99999999999999999999"}};
  for (const auto& meta : wrong) {
    EXPECT_EQ(cache.set_meta_state(meta).code(), StatusCode::invalid_argument) << meta[0];
  }
  EXPECT_EQ(cache.meta_state(), (std::vector<std::string>{"4", "8", "contiguous_eval"}));
}

TEST(TailOwnedKVCache, CapacityIsNeverMoreThanWhatIsBacked) {
  TailOwnedKVCache cache = make({4});
  update(cache, LayerRows(kShape, 8, 1, 2));
  ASSERT_TRUE(cache.set_meta_state(std::vector<std::string>{"1000000000", "8"}).ok());
  EXPECT_EQ(cache.capacity(), 8);
}

TEST(TailOwnedKVCache, SharesTheRowsOfAnotherCache) {
  TailOwnedKVCache cache = make({64});
  const LayerRows rows(kShape, 12, 1, 2);
  update(cache, rows);
  Result<TailOwnedKVCache> other = TailOwnedKVCache::from_cache(cache, DetachMode::eval_only);
  ASSERT_TRUE(other.ok());
  EXPECT_EQ(other->step(), 64);
  EXPECT_EQ(other->keys()->data, cache.keys()->data);
  EXPECT_EQ(other->tail_owner_stats().updates, 0);
  Result<TailOwnedKVCache> stepped =
      TailOwnedKVCache::from_cache(cache, DetachMode::eval_only, 1000);
  ASSERT_TRUE(stepped.ok());
  EXPECT_EQ(stepped->capacity(), 1000);
  update(*other, LayerRows(kShape, 2, 3, 4));
  update(cache, LayerRows(kShape, 2, 5, 6));
  EXPECT_TRUE(same_rows(*cache.state(), join(rows, LayerRows(kShape, 2, 5, 6))));
  EXPECT_TRUE(same_rows(*other->state(), join(rows, LayerRows(kShape, 2, 3, 4))));
}

TEST(TailOwnedKVCache, TakesArraysAtConstruction) {
  const LayerRows rows(kShape, 12, 1, 2);
  Result<TailOwnedKVCache> cache = TailOwnedKVCache::create({}, rows.keys(), rows.values(), 7);
  ASSERT_TRUE(cache.ok());
  EXPECT_TRUE(same_rows(*cache->state(), first_rows(rows, 7)));
  EXPECT_FALSE(TailOwnedKVCache::create({}, rows.keys(), rows.values(), 13).ok());
  EXPECT_FALSE(TailOwnedKVCache::create({}, rows.keys(), rows.values(), -1).ok());
  EXPECT_FALSE(TailOwnedKVCache::create({0}).ok());
  EXPECT_FALSE(TailOwnedKVCache::create({1, DetachMode::eval_only, 0}).ok());
}

TEST(TailOwnedKVCache, SetsKeysAndValuesApart) {
  TailOwnedKVCache cache = make();
  const LayerRows rows(kShape, 6, 1, 2);
  update(cache, rows);
  const KvArrays old = *cache.state();
  const LayerRows other(kShape, 6, 3, 4);
  ASSERT_TRUE(cache.set_keys(other.keys()).ok());
  EXPECT_EQ(bytes_of(*cache.keys()), other.k);
  EXPECT_EQ(bytes_of(*cache.values()), rows.v);
  EXPECT_TRUE(same_rows(old, rows));
  const LayerRows longer(kShape, 9, 5, 6);
  ASSERT_TRUE(cache.set_values(longer.values()).ok());
  EXPECT_EQ(cache.offset(), 6) << "a half waits for the other";
  ASSERT_TRUE(cache.set_keys(longer.keys()).ok());
  EXPECT_TRUE(same_rows(*cache.state(), longer));
  ASSERT_TRUE(cache.set_keys(std::nullopt).ok());
  EXPECT_TRUE(cache.empty());
}

TEST(TailOwnedKVCache, KeepsValuesOfNoWidth) {
  const KvArrayShape shape{1, 1, 64, 0, DType::f32, DType::f32};
  TailOwnedKVCache cache = make();
  update(cache, LayerRows(shape, 5, 1, 2));
  const LayerRows more(shape, 300, 3, 4);
  const KvArrays all = update(cache, more);
  EXPECT_EQ(all.values.dim(2), 305);
  EXPECT_EQ(all.values.dim(3), 0);
  EXPECT_TRUE(same_rows(all, join(LayerRows(shape, 5, 1, 2), more)));
}

TEST(TailOwnedKVCache, CountsBytesOfCapacityAndOfMemoryApart) {
  TailOwnedKVCache cache = make();
  EXPECT_EQ(cache.nbytes(), 0);
  EXPECT_EQ(cache.resident_bytes(), 0);
  update(cache, LayerRows(kShape, 3, 1, 2));
  EXPECT_EQ(cache.nbytes(), 256 * kShape.row_bytes());
  EXPECT_GE(cache.resident_bytes(), cache.nbytes());
}

TEST(TailOwnedKVCache, WritesItsStatisticsAsJson) {
  TailOwnedKVCache cache = make({256, DetachMode::metal_copy_leaf});
  update(cache, LayerRows({1, 2, 64, 64, DType::f32, DType::f32}, 1, 1, 2));
  TailOwnerStats stats = cache.tail_owner_stats();
  stats.time_s = 0.5;
  stats.resident_bytes = 7;
  EXPECT_EQ(to_json(stats),
            "{\"mode\": \"metal_copy_leaf\", \"updates\": 1, \"arrays\": 2, \"bytes\": 1024, "
            "\"time_s\": 0.5, \"copies\": 0, \"nbytes\": 262144, \"resident_bytes\": 7}");
}

TEST(DetachMode, IsNormalised) {
  for (const char* text : {"contiguous_eval", " Contiguous-Eval ", "CONTIGUOUS_EVAL\n"}) {
    ASSERT_TRUE(parse_detach_mode(text).ok());
    EXPECT_EQ(*parse_detach_mode(text), DetachMode::contiguous_eval);
  }
  for (const DetachMode mode :
       {DetachMode::eval_only, DetachMode::contiguous_eval,
        DetachMode::selected_slice_contiguous_eval, DetachMode::metal_copy_leaf}) {
    EXPECT_EQ(*parse_detach_mode(detach_mode_name(mode)), mode);
  }
  const Result<DetachMode> wrong = parse_detach_mode("lazy");
  EXPECT_EQ(wrong.status().code(), StatusCode::invalid_argument);
  for (const char* name : {"eval_only", "contiguous_eval", "selected_slice_contiguous_eval",
                           "metal_copy_leaf", "lazy"}) {
    EXPECT_NE(wrong.status().message().find(name), std::string::npos) << name;
  }
  EXPECT_FALSE(parse_detach_mode("").ok());
}

}  // namespace
}  // namespace kvik
