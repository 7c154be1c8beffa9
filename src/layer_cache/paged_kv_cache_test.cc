#include "kvik/layer_cache/paged_kv_cache.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <limits>

#include "kvik/backend/cpu_backend.h"
#include "kvik/layer_cache/block_owned_kv_cache.h"
#include "kvik/layer_cache/tail_owned_kv_cache.h"
#include "support/layer_cache_model.h"
#include "support/layer_rows.h"

namespace kvik {
namespace {

using test::bytes_of;
using test::first_rows;
using test::join;
using test::LayerRows;
using test::rows_of_state;
using test::same_rows;

constexpr KvArrayShape kShape{2, 3, 8, 5, DType::f32, DType::bf16};

std::shared_ptr<Backend> backend() {
  static const std::shared_ptr<Backend> kBackend = make_cpu_backend({}).value();
  return kBackend;
}

PagedKVCacheOptions sized(int64_t block_size, int64_t num_blocks, bool dynamic = false) {
  PagedKVCacheOptions options;
  options.block_size = block_size;
  options.num_blocks = num_blocks;
  options.dynamic = dynamic;
  return options;
}

PagedKVCache make(const PagedKVCacheOptions& options = {}) {
  Result<PagedKVCache> cache = PagedKVCache::create(options, backend());
  EXPECT_TRUE(cache.ok()) << cache.status().to_string();
  return std::move(cache).value();
}

Status write(PagedKVCache& cache, const LayerRows& rows) {
  return cache.update_without_fetch(rows.keys(), rows.values());
}

LayerRows rows_of_length(int64_t n, uint64_t seed = 1) { return {kShape, n, seed, seed + 1000}; }

RC_GTEST_PROP(PagedKVCacheModel, RandomOperationsMatchAListOfRows, ()) {
  const int64_t block_size = *rc::gen::element(1, 3, 16, 48);
  const bool dynamic = *rc::gen::arbitrary<bool>();
  PagedKVCacheOptions options = sized(block_size, dynamic ? 1 : 8192 / block_size, dynamic);
  options.max_tokens = 8192;
  test::run_layer_cache_model<PagedKVCache>([=] { return make(options); },
                                            {2, 2, 3, 4, DType::f32, DType::f16});
}

TEST(PagedKVCache, AllocatesNothingBeforeTheFirstWrite) {
  PagedKVCache cache = make();
  EXPECT_TRUE(cache.empty());
  EXPECT_FALSE(cache.shape().has_value());
  EXPECT_FALSE(cache.export_pages().value().has_value());
  EXPECT_FALSE(rows_of_state(cache.state()).has_value());
  EXPECT_EQ(cache.nbytes(), 0);
  EXPECT_EQ(cache.resident_bytes(), 0);
  EXPECT_EQ(cache.capacity(), 16 * 1024);
  EXPECT_TRUE(cache.block_table(0).empty());
}

TEST(PagedKVCache, KeepsTheBitsOfItsRows) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    const KvArrayShape shape{1, 2, 7, 20, dtype, dtype};
    PagedKVCache cache = make();
    const LayerRows rows(shape, 37, 1, 2);
    ASSERT_TRUE(write(cache, rows).ok());
    EXPECT_TRUE(same_rows(*rows_of_state(cache.state()), rows));
  }
}

TEST(PagedKVCache, TakesInputsOfAnyStrides) {
  const LayerRows rows = rows_of_length(5);
  std::vector<std::byte> memory(rows.k.size() * 2);
  TensorView wide(memory.data(), kShape.dtype_k, {5, 2, 8, 2 * 3});  // [T, B, D, 2 * H]
  for (int64_t b = 0; b < 2; ++b) {
    for (int64_t h = 0; h < 3; ++h) {
      for (int64_t t = 0; t < 5; ++t) {
        for (int64_t d = 0; d < 8; ++d) {
          std::memcpy(wide.at(t, b) + (d * 6 + 2 * h) * 4, rows.keys().at(b, h) + (t * 8 + d) * 4,
                      4);
        }
      }
    }
  }
  ConstTensorView keys = wide;
  keys.shape = {2, 3, 5, 8};
  keys.stride = {wide.step(1), 2, wide.step(0), wide.step(2)};
  PagedKVCache cache = make();
  ASSERT_TRUE(cache.update_without_fetch(keys, rows.values()).ok());
  EXPECT_TRUE(same_rows(*rows_of_state(cache.state()), rows));
}

TEST(PagedKVCache, CapacityIsPhysical) {
  PagedKVCache cache = make(sized(16, 4));
  ASSERT_TRUE(write(cache, rows_of_length(64)).ok());
  ASSERT_TRUE(cache.set_meta_state(std::vector<std::string>{"32", "4096", "60"}).ok());
  EXPECT_EQ(cache.block_size(), 16);
  EXPECT_EQ(cache.num_blocks(), 4);
  EXPECT_EQ(cache.offset(), 60);
  const Status full = write(cache, rows_of_length(5));
  EXPECT_EQ(full.code(), StatusCode::out_of_pages);
  EXPECT_NE(full.message().find("need 65 > have 64"), std::string::npos) << full.message();
  EXPECT_EQ(cache.offset(), 60);
  EXPECT_TRUE(same_rows(*rows_of_state(cache.state()), first_rows(rows_of_length(64), 60)));
  EXPECT_TRUE(write(cache, rows_of_length(4)).ok());
  EXPECT_TRUE(write(cache, rows_of_length(0)).ok()) << "no rows fit a full cache";
  EXPECT_FALSE(write(cache, rows_of_length(1)).ok());
}

TEST(PagedKVCache, GrowthCopiesNoRow) {
  PagedKVCache cache = make(sized(16, 1, true));
  LayerRows all = rows_of_length(0);
  for (int i = 0; i < 40; ++i) {
    const LayerRows more = rows_of_length(23, 10 + uint64_t(i));
    ASSERT_TRUE(write(cache, more).ok());
    all = join(all, more);
  }
  const PagedStats stats = cache.paged_stats();
  EXPECT_GT(stats.grow_events, 5);
  EXPECT_EQ(stats.copies, 0);
  EXPECT_EQ(stats.copy_on_write_copies, 0);
  EXPECT_TRUE(same_rows(*rows_of_state(cache.state()), all));
}

TEST(PagedKVCache, NeverHoldsMoreThanTheContextWindow) {
  PagedKVCacheOptions options = sized(16, 2, true);
  options.context_window = 100;
  PagedKVCache cache = make(options);
  ASSERT_TRUE(write(cache, rows_of_length(100)).ok());
  EXPECT_EQ(cache.num_blocks(), 7);
  const Status full = write(cache, rows_of_length(1));
  EXPECT_EQ(full.code(), StatusCode::out_of_pages);
  EXPECT_NE(full.message().find("101"), std::string::npos);
  EXPECT_NE(full.message().find("100"), std::string::npos);
  EXPECT_EQ(cache.offset(), 100);
  EXPECT_EQ(cache.num_blocks(), 7);

  options.context_window = std::nullopt;
  options.max_tokens = 50;
  PagedKVCache limited = make(options);
  ASSERT_TRUE(write(limited, rows_of_length(50)).ok());
  EXPECT_EQ(write(limited, rows_of_length(20)).code(), StatusCode::out_of_pages);
}

TEST(PagedKVCache, NumbersBlocksOfAnySize) {
  for (const int64_t block_size : {1, 3, 4, 8, 16, 48, 100}) {
    const KvArrayShape one{1, 3, 8, 5, DType::f32, DType::bf16};
    PagedKVCache cache = make(sized(block_size, 200));
    const LayerRows rows(one, 75, 1, 2);
    ASSERT_TRUE(write(cache, rows).ok());
    const std::vector<int32_t> table = cache.block_table(0);
    ASSERT_EQ(static_cast<int64_t>(table.size()), (75 + block_size - 1) / block_size);
    for (size_t i = 0; i < table.size(); ++i) EXPECT_EQ(table[i], static_cast<int32_t>(i));
    EXPECT_EQ(cache.paged_stats().allocated_blocks, static_cast<int64_t>(table.size()));
    EXPECT_TRUE(same_rows(*rows_of_state(cache.state()), rows));
  }
}

TEST(PagedKVCache, ForksShareFullPagesAndCopyThePartialOneOnce) {
  PagedKVCache a = make();
  const LayerRows rows = rows_of_length(40);
  ASSERT_TRUE(write(a, rows).ok());
  PagedKVCache b = a.fork();
  EXPECT_EQ(a.block_table(1), b.block_table(1));
  EXPECT_EQ(a.paged_stats().shared_blocks, 6);
  const LayerRows more_a = rows_of_length(3, 7);
  const LayerRows more_b = rows_of_length(4, 8);
  ASSERT_TRUE(write(a, more_a).ok());
  EXPECT_EQ(a.paged_stats().copy_on_write_copies, 0) << "a filled the partial pages itself";
  ASSERT_TRUE(write(b, more_b).ok());
  EXPECT_EQ(a.paged_stats().copy_on_write_copies, 2) << "one page per batch row";
  EXPECT_EQ(a.block_table(0)[1], b.block_table(0)[1]);
  EXPECT_NE(a.block_table(0)[2], b.block_table(0)[2]);
  EXPECT_TRUE(same_rows(*rows_of_state(a.state()), join(rows, more_a)));
  EXPECT_TRUE(same_rows(*rows_of_state(b.state()), join(rows, more_b)));
}

TEST(PagedKVCache, ATrimmedForkKeepsWhatTheOtherSees) {
  PagedKVCache original = make();
  const LayerRows y = rows_of_length(10);
  ASSERT_TRUE(write(original, y).ok());
  PagedKVCache copy = original.fork();
  original.trim(1);
  const LayerRows z = rows_of_length(1, 9);
  ASSERT_TRUE(write(original, z).ok());
  EXPECT_TRUE(same_rows(*rows_of_state(copy.state()), y));
  EXPECT_TRUE(same_rows(*rows_of_state(original.state()), join(first_rows(y, 9), z)));
}

TEST(PagedKVCache, ManyForksEachKeepTheirCapacity) {
  PagedKVCache first = make(sized(16, 4));
  const LayerRows rows = rows_of_length(5);
  ASSERT_TRUE(write(first, rows).ok());
  std::vector<PagedKVCache> forks;
  for (int i = 0; i < 9; ++i) forks.push_back(first.fork());
  int64_t copies = 0;
  for (size_t i = 0; i < forks.size(); ++i) {
    const LayerRows more = rows_of_length(59, 50 + i);
    ASSERT_TRUE(write(forks[i], more).ok()) << i;
    EXPECT_TRUE(same_rows(*rows_of_state(forks[i].state()), join(rows, more)));
    copies += forks[i].paged_stats().copies;
    EXPECT_EQ(write(forks[i], rows_of_length(1)).code(), StatusCode::out_of_pages);
  }
  EXPECT_GT(copies, 0) << "past the reserved space a fork moves to a pool of its own";
  EXPECT_TRUE(same_rows(*rows_of_state(first.state()), rows));
}

TEST(PagedKVCache, RoomThatWasPreparedCannotRunOut) {
  PagedKVCache first = make(sized(16, 4));
  const LayerRows rows = rows_of_length(5);
  ASSERT_TRUE(write(first, rows).ok());
  std::vector<PagedKVCache> forks;
  for (int i = 0; i < 9; ++i) forks.push_back(first.fork());
  ASSERT_TRUE(first.prepare(kShape, 5, 30).ok());
  ASSERT_TRUE(first.prepare(kShape, 35, 29).ok());
  EXPECT_EQ(first.prepare(kShape, 64, 1).code(), StatusCode::out_of_pages);
  EXPECT_EQ(first.offset(), 5);
  for (size_t i = 0; i < forks.size(); ++i) {
    ASSERT_TRUE(write(forks[i], rows_of_length(59, 50 + i)).ok()) << i;
  }
  const int64_t copies = first.paged_stats().copies;
  LayerRows all = rows;
  for (const int64_t n : {1, 40, 18}) {
    const LayerRows more = rows_of_length(n, 70 + static_cast<uint64_t>(n));
    ASSERT_TRUE(write(first, more).ok()) << n;
    all = join(all, more);
  }
  EXPECT_EQ(first.paged_stats().copies, copies) << "no move to another pool was needed";
  EXPECT_TRUE(same_rows(*rows_of_state(first.state()), all));
}

TEST(PagedKVCache, PreparingFixesTheShapeGrowsTheCapacityAndStoresNothing) {
  PagedKVCacheOptions options = sized(16, 1, true);
  PagedKVCache cache = make(options);
  EXPECT_EQ(cache.prepare(kShape, 1, 3).code(), StatusCode::ok) << "others may be to come before";
  EXPECT_TRUE(cache.empty());
  EXPECT_EQ(cache.shape(), kShape);
  KvArrayShape other = kShape;
  other.head_dim_k = 7;
  EXPECT_EQ(cache.prepare(other, 0, 1).code(), StatusCode::invalid_argument);
  EXPECT_TRUE(cache.prepare(kShape, 0, 100).ok());
  EXPECT_GE(cache.capacity(), 100);
  EXPECT_EQ(cache.paged_stats().grow_events, 1);
  EXPECT_EQ(cache.prepare(kShape, 0, -1).code(), StatusCode::invalid_argument);
  const LayerRows rows = rows_of_length(40);
  ASSERT_TRUE(write(cache, rows).ok());
  EXPECT_EQ(cache.prepare(kShape, 39, 1).code(), StatusCode::invalid_argument);
  EXPECT_EQ(cache.trim(30), 30);
  EXPECT_TRUE(cache.prepare(kShape, 10, 90).ok());
  ASSERT_TRUE(write(cache, rows).ok());
  EXPECT_EQ(cache.offset(), 50);
}

TEST(PagedKVCache, AForkAfterPreparingMayCostAPageAndNoRow) {
  PagedKVCache first = make(sized(16, 4));
  const LayerRows rows = rows_of_length(5);
  ASSERT_TRUE(write(first, rows).ok());
  ASSERT_TRUE(first.prepare(kShape, 5, 59).ok());
  std::vector<PagedKVCache> forks;
  for (int i = 0; i < 9; ++i) forks.push_back(first.fork());
  for (size_t i = 0; i < forks.size(); ++i) {
    ASSERT_TRUE(write(forks[i], rows_of_length(59, 50 + i)).ok()) << i;
  }
  LayerRows all = rows;
  for (const int64_t n : {1, 40, 18}) {
    const LayerRows more = rows_of_length(n, 70 + static_cast<uint64_t>(n));
    ASSERT_TRUE(write(first, more).ok()) << n;
    all = join(all, more);
  }
  EXPECT_TRUE(same_rows(*rows_of_state(first.state()), all));
}

TEST(PagedKVCache, PreparedPagesGoBackWithTheCache) {
  PagedKVCache first = make(sized(16, 4));
  ASSERT_TRUE(write(first, rows_of_length(16)).ok());
  PagedKVCache second = first.fork();
  {
    PagedKVCache third = first.fork();
    ASSERT_TRUE(third.prepare(kShape, 16, 48).ok());
  }
  ASSERT_TRUE(second.prepare(kShape, 16, 48).ok());
  EXPECT_EQ(second.trim(1), 1);
  for (int i = 0; i < 12; ++i) {
    PagedKVCache fork = first.fork();
    ASSERT_TRUE(write(fork, rows_of_length(48)).ok());
    EXPECT_EQ(fork.paged_stats().copies, 0) << "the pool has room again";
  }
}

TEST(PagedKVCache, RefusesOtherShapesAndDtypesAndChangesNothing) {
  PagedKVCache cache = make();
  const LayerRows rows = rows_of_length(4);
  ASSERT_TRUE(write(cache, rows).ok());
  std::vector<KvArrayShape> wrong(6, kShape);
  wrong[0].batch = 1;
  wrong[1].num_kv_heads = 2;
  wrong[2].head_dim_k = 7;
  wrong[3].head_dim_v = 6;
  wrong[4].dtype_k = DType::bf16;
  wrong[5].dtype_v = DType::f16;
  for (const KvArrayShape& shape : wrong) {
    EXPECT_EQ(write(cache, LayerRows(shape, 2, 3, 4)).code(), StatusCode::invalid_argument);
  }
  EXPECT_TRUE(same_rows(*rows_of_state(cache.state()), rows));
  EXPECT_EQ(cache.paged_stats().updates, 1);
}

TEST(PagedKVCache, TrimTakesAnyNumber) {
  PagedKVCache cache = make();
  EXPECT_EQ(cache.trim(3), 0);
  ASSERT_TRUE(write(cache, rows_of_length(10)).ok());
  EXPECT_EQ(cache.trim(-5), 0);
  EXPECT_EQ(cache.trim(std::numeric_limits<int64_t>::min()), 0);
  EXPECT_EQ(cache.trim(0), 0);
  EXPECT_EQ(cache.offset(), 10);
  EXPECT_EQ(cache.trim(std::numeric_limits<int64_t>::max()), 10);
  EXPECT_TRUE(cache.empty());
}

TEST(PagedKVCache, StaleRowsNeverReappear) {
  for (const float poison : {std::nanf(""), 1e4f}) {
    PagedKVCache cache = make(sized(4, 64));
    const LayerRows rows = rows_of_length(9);
    ASSERT_TRUE(write(cache, rows).ok());
    ASSERT_TRUE(write(cache, LayerRows::filled(kShape, 30, poison)).ok());
    cache.trim(30);
    const LayerRows more = rows_of_length(3, 5);
    ASSERT_TRUE(write(cache, more).ok());
    EXPECT_TRUE(same_rows(*rows_of_state(cache.state()), join(rows, more)));
  }
}

TEST(PagedKVCache, RestoresFromStateAndThenMeta) {
  PagedKVCache cache = make(sized(4, 20));
  const LayerRows rows = rows_of_length(50);
  ASSERT_TRUE(write(cache, rows).ok());
  cache.trim(3);
  PagedKVCache other = make(sized(4, 20));
  ASSERT_TRUE(write(other, rows_of_length(20, 99)).ok());
  ASSERT_TRUE(other.set_state(rows_of_state(cache.state())).ok());
  ASSERT_TRUE(other.set_meta_state(cache.meta_state()).ok());
  EXPECT_EQ(other.meta_state(), (std::vector<std::string>{"4", "20", "47"}));
  EXPECT_TRUE(same_rows(*rows_of_state(other.state()), first_rows(rows, 47)));
}

TEST(PagedKVCache, APlannedOffsetTakesNoRowsThatAreNotThere) {
  PagedKVCache cache = make();
  ASSERT_TRUE(cache.set_meta_state(std::vector<std::string>{"16", "4096", "50"}).ok());
  EXPECT_EQ(cache.offset(), 50);
  EXPECT_TRUE(cache.empty());
  EXPECT_EQ(write(cache, rows_of_length(3)).code(), StatusCode::invalid_argument);
  ASSERT_TRUE(cache.set_state(rows_of_length(50).arrays()).ok());
  EXPECT_EQ(cache.offset(), 50);
  EXPECT_TRUE(write(cache, rows_of_length(3)).ok());
}

TEST(PagedKVCache, RefusesAMetaStateThatDoesNotFitAndChangesNothing) {
  PagedKVCache cache = make(sized(16, 4));
  ASSERT_TRUE(write(cache, rows_of_length(60)).ok());
  for (const std::vector<std::string>& meta :
       std::vector<std::vector<std::string>>{{"16", "4"},
                                             {"16", "4", "61"},
                                             {"16", "4", "-1"},
                                             {"0", "4", "5"},
                                             {"16", "x", "5"},
                                             {"16", "4", "100"},
                                             {"16", "4", "5", "6"}}) {
    EXPECT_EQ(cache.set_meta_state(meta).code(), StatusCode::invalid_argument);
  }
  EXPECT_EQ(cache.meta_state(), (std::vector<std::string>{"16", "4", "60"}));
}

TEST(PagedKVCache, AStateThatDoesNotFitChangesNothing) {
  PagedKVCache cache = make(sized(16, 2));
  const LayerRows rows = rows_of_length(20);
  ASSERT_TRUE(write(cache, rows).ok());
  EXPECT_EQ(cache.set_state(rows_of_length(33).arrays()).code(), StatusCode::out_of_pages);
  EXPECT_TRUE(same_rows(*rows_of_state(cache.state()), rows));
}

TEST(PagedKVCache, SetsKeysAndValuesApart) {
  PagedKVCache cache = make();
  const LayerRows rows = rows_of_length(6);
  const LayerRows other = rows_of_length(6, 5);
  ASSERT_TRUE(cache.set_keys(rows.keys()).ok());
  EXPECT_TRUE(cache.empty()) << "a half waits for the other";
  ASSERT_TRUE(cache.set_values(rows.values()).ok());
  EXPECT_TRUE(same_rows(*rows_of_state(cache.state()), rows));
  ASSERT_TRUE(cache.set_values(other.values()).ok());
  EXPECT_EQ(bytes_of(rows_of_state(cache.state())->keys), rows.k);
  EXPECT_EQ(bytes_of(rows_of_state(cache.state())->values), other.v);
  ASSERT_TRUE(cache.set_values(std::nullopt).ok());
  EXPECT_TRUE(cache.empty());
}

TEST(PagedKVCache, ComesFromTheOtherCachesAndGoesBack) {
  const LayerRows rows = rows_of_length(12);
  TailOwnedKVCache tail = TailOwnedKVCache::create({}, rows.keys(), rows.values()).value();
  Result<PagedKVCache> paged = PagedKVCache::from_cache(tail, {}, backend());
  ASSERT_TRUE(paged.ok());
  EXPECT_TRUE(same_rows(*rows_of_state(paged->state()), rows));
  Result<TailOwnedKVCache> back = TailOwnedKVCache::from_cache(*paged, DetachMode::eval_only);
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(back->step(), 256);
  EXPECT_TRUE(same_rows(*back->state(), rows));
  Result<BlockOwnedKVCache> blocks =
      BlockOwnedKVCache::from_cache(*paged, DetachMode::eval_only, 5);
  ASSERT_TRUE(blocks.ok());
  EXPECT_EQ(blocks->num_blocks(), 3);
  Result<PagedKVCache> again = PagedKVCache::from_cache(*blocks, sized(4, 8), backend());
  ASSERT_TRUE(again.ok());
  Result<PagedKVCache> last = PagedKVCache::from_cache(*again, sized(8, 8), backend());
  ASSERT_TRUE(last.ok());
  EXPECT_TRUE(same_rows(*rows_of_state(last->state()), rows));
  EXPECT_FALSE(PagedKVCache::from_cache(tail, sized(4, 2), backend()).ok());
}

TEST(PagedKVCache, ExportsAndImportsPages) {
  PagedKVCache cache = make(sized(4, 5));
  const LayerRows rows = rows_of_length(10);
  ASSERT_TRUE(write(cache, rows).ok());
  const KvPages pages = *cache.export_pages().value();
  ASSERT_EQ(pages.key_cache.dim(0), 2 * 5);
  ASSERT_EQ(pages.key_cache.dim(1), 4);
  ASSERT_EQ(pages.key_cache.dim(2), 3);
  ASSERT_EQ(pages.value_cache.dim(3), 5);
  // Token 6 of batch row 1, head 2: block 5 + 1, slot 2; the slots after the rows are zero.
  EXPECT_EQ(std::memcmp(pages.key_cache.at(6, 2) + 2 * 8 * 4, rows.keys().at(1, 2) + 6 * 8 * 4, 32),
            0);
  for (int64_t b = 0; b < 3 * 5 * 2; ++b) {
    EXPECT_EQ(pages.value_cache.at(2, 2)[b], std::byte{0});
  }
  PagedKVCache other = make(sized(4, 5));
  const std::vector<int32_t> table = {0, 1, 2, 5, 6, 7};
  ASSERT_TRUE(other.import_pages(pages.key_cache, pages.value_cache, table, 10).ok());
  EXPECT_TRUE(same_rows(*rows_of_state(other.state()), rows));
  const std::vector<int32_t> shuffled = {7, 5};
  ASSERT_TRUE(other.import_pages(pages.key_cache, pages.value_cache, shuffled, 7).ok());
  EXPECT_EQ(other.shape()->batch, 1);
  const std::vector<int32_t> beyond = {0, 10};
  EXPECT_FALSE(other.import_pages(pages.key_cache, pages.value_cache, beyond, 7).ok());
  const std::vector<int32_t> negative = {0, -1};
  EXPECT_FALSE(other.import_pages(pages.key_cache, pages.value_cache, negative, 7).ok());
  EXPECT_FALSE(other.import_pages(pages.key_cache, pages.value_cache, shuffled, 9).ok());
  EXPECT_EQ(other.offset(), 7);
}

TEST(PagedKVCache, RefusesOptionsOutOfRange) {
  EXPECT_FALSE(PagedKVCache::create(sized(0, 4), backend()).ok());
  EXPECT_FALSE(PagedKVCache::create(sized(16, 0), backend()).ok());
  EXPECT_FALSE(PagedKVCache::create(sized(int64_t{1} << 31, int64_t{1} << 31), backend()).ok());
  EXPECT_FALSE(PagedKVCache::create({}, nullptr).ok());
  PagedKVCacheOptions window;
  window.context_window = 0;
  EXPECT_FALSE(PagedKVCache::create(window, backend()).ok());
}

TEST(PagedKVCache, TakesNewOptionsWhileItLives) {
  PagedKVCache cache = make(sized(4, 4));
  const LayerRows rows = rows_of_length(10);
  ASSERT_TRUE(write(cache, rows).ok());
  EXPECT_EQ(cache.reconfigure(sized(16, 64)).code(), StatusCode::out_of_pages);
  EXPECT_EQ(cache.capacity(), 16);
  PagedKVCacheOptions turbo = sized(16, 64, true);
  turbo.turboquant = TurboQuantConfig{};
  const Status refused = cache.reconfigure(turbo);
  EXPECT_EQ(refused.code(), StatusCode::invalid_argument);
  EXPECT_NE(refused.message().find("tqk_q8_0"), std::string::npos) << "its head dims are 8 and 5";
  ASSERT_TRUE(cache.reconfigure(sized(16, 64, true)).ok());
  EXPECT_GE(cache.capacity(), 1024);
  EXPECT_EQ(cache.block_size(), 4);
  EXPECT_EQ(cache.offset(), 10);
  EXPECT_TRUE(same_rows(*rows_of_state(cache.state()), rows));
  EXPECT_TRUE(write(cache, rows_of_length(1014, 3)).ok());
}

TEST(PagedKVCache, ForbidsActiveArraysFromTheThresholdOn) {
  PagedKVCacheOptions options;
  options.forbid_active_arrays = true;
  options.partition_threshold = 4;
  PagedKVCache cache = make(options);
  ASSERT_TRUE(write(cache, rows_of_length(3)).ok());
  EXPECT_TRUE(cache.state().ok());
  ASSERT_TRUE(write(cache, rows_of_length(1)).ok());
  const auto state = cache.state();
  EXPECT_EQ(state.status().code(), StatusCode::unsupported);
  EXPECT_NE(state.status().message().find("materialize active K/V arrays"), std::string::npos);
}

TEST(PagedKVCache, KeepsValuesOfNoWidth) {
  const KvArrayShape shape{1, 1, 64, 0, DType::f32, DType::f32};
  PagedKVCache cache = make();
  const LayerRows rows(shape, 33, 1, 2);
  ASSERT_TRUE(write(cache, rows).ok());
  EXPECT_TRUE(same_rows(*rows_of_state(cache.state()), rows));
}

TEST(PagedOptions, NamesAreReadAsUsersWriteThem) {
  EXPECT_EQ(parse_paged_phase("prefill"), PagedPhase::prefill);
  EXPECT_EQ(parse_paged_phase("warmup"), PagedPhase::unknown);
  EXPECT_EQ(parse_paged_route("exact-gather").value(), PagedRoute::gather);
  EXPECT_EQ(parse_paged_route("").value(), PagedRoute::paged);
  EXPECT_FALSE(parse_paged_route("warp").ok());
  EXPECT_EQ(parse_paged_route("auto").value(), PagedRoute::packed);
  EXPECT_EQ(parse_paged_route("Kernel").value(), PagedRoute::packed);
  EXPECT_EQ(parse_paged_route("dequant").value(), PagedRoute::mirror);
  EXPECT_EQ(paged_route_name(PagedRoute::mirror), "gather");
  EXPECT_EQ(paged_route_name(PagedRoute::mirror, true), "mirror");
  EXPECT_EQ(paged_route_name(PagedRoute::packed, true), "packed");
}

}  // namespace
}  // namespace kvik
