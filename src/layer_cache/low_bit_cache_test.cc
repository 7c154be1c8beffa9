// Low-bit storage of the paged one-layer cache: what is stored, refused, moved and decoded.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <limits>

#include "kvik/backend/cpu_backend.h"
#include "kvik/layer_cache/block_owned_kv_cache.h"
#include "kvik/layer_cache/tail_owned_kv_cache.h"
#include "support/low_bit_rows.h"

namespace kvik {
namespace {

using test::every_low_bit;
using test::expect_holds;
using test::first_rows;
using test::join;
using test::kv_quant;
using test::LayerRows;
using test::LowBit;
using test::pair_of;
using test::rows_of_state;
using test::same_rows;
using test::stored_rows;
using test::turboquant;

constexpr KvArrayShape kShape{2, 2, 64, 32, DType::f32, DType::f32};

std::shared_ptr<Backend> backend() {
  static const std::shared_ptr<Backend> kBackend = make_cpu_backend({2}).value();
  return kBackend;
}

PagedKVCache make(const PagedKVCacheOptions& options) {
  Result<PagedKVCache> cache = PagedKVCache::create(options, backend());
  EXPECT_TRUE(cache.ok()) << cache.status().to_string();
  return std::move(cache).value();
}

Status write(PagedKVCache& cache, const LayerRows& rows) {
  return cache.update_without_fetch(rows.keys(), rows.values());
}

PagedKVCache filled(const LowBit& low_bit, const LayerRows& rows) {
  PagedKVCache cache = make(low_bit.options);
  EXPECT_TRUE(write(cache, rows).ok());
  return cache;
}

LayerRows rows_of_length(int64_t n, uint64_t seed = 1) { return {kShape, n, seed, seed + 1000}; }

TEST(LowBitCache, StoresTheCodesOfEachRowHoweverTheRowsCome) {
  for (const LowBit& low_bit : every_low_bit()) {
    SCOPED_TRACE(low_bit.name());
    const LayerRows rows = rows_of_length(37);
    for (const std::vector<int64_t>& chunks :
         {std::vector<int64_t>{37}, {36, 1}, std::vector<int64_t>(37, 1)}) {
      PagedKVCache cache = make(low_bit.options);
      int64_t first = 0;
      for (const int64_t n : chunks) {
        ASSERT_TRUE(cache
                        .update_without_fetch(rows_of(rows.keys(), first, first + n),
                                              rows_of(rows.values(), first, first + n))
                        .ok());
        first += n;
      }
      expect_holds(cache, rows, low_bit.format);
    }
  }
}

TEST(LowBitCache, DecodesToTheDtypeOfTheRows) {
  for (const LowBit& low_bit : every_low_bit()) {
    SCOPED_TRACE(low_bit.name());
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      // f32 formats hold what f32 rows hold; other plain formats round.
      const KvArrayShape shape{1, 3, 32, 96, dtype, dtype};
      const LayerRows rows(shape, 19, 3, 4);
      PagedKVCache cache = filled(low_bit, rows);
      expect_holds(cache, rows, low_bit.format);
      EXPECT_EQ(*cache.shape(), shape);
    }
  }
}

TEST(LowBitCache, CountsTheBytesOfItsCodes) {
  PagedKVCache plain = make({});
  const LayerRows rows = rows_of_length(8192);
  ASSERT_TRUE(write(plain, rows).ok());
  const PagedKVCache cache = filled(kv_quant(KvCode::q4), rows);
  // A token: 4 bits of 64 and 32 elements and two scales, against 4 bytes an element.
  const int64_t token = 2 * (32 + 16 + 8);
  EXPECT_EQ(cache.nbytes() % (token * 16), 0) << "whole pages";
  EXPECT_GE(cache.nbytes(), 2 * 8192 * token);
  EXPECT_LT(cache.nbytes(), 2 * 8192 * token * 5 / 4) << "little is backed ahead";
  EXPECT_GE(plain.nbytes(), 2 * 8192 * int64_t{2 * 96 * 4});
  EXPECT_EQ(cache.paged_stats().format, "q4:q4");
  EXPECT_EQ(plain.paged_stats().format, "f32:f32");
}

TEST(LowBitCache, TurboQuantWinsOverKvQuantAndFormatStandsAlone) {
  PagedKVCacheOptions both = kv_quant(KvCode::q4).options;
  both.turboquant = TurboQuantConfig{};
  EXPECT_EQ(make(both).format_of(kShape), (KvFormat{KvCode::tqk_q8_0, KvCode::tqv_q3_0}));
  EXPECT_FALSE(make(both).paged_stats().kv_quant);
  both.format = KvFormat{};
  EXPECT_EQ(PagedKVCache::create(both, backend()).status().code(), StatusCode::invalid_argument);
  PagedKVCacheOptions off;
  off.kv_quant = KvQuantConfig{std::nullopt};
  EXPECT_EQ(make(off).format_of(kShape), (KvFormat{KvCode::f32, KvCode::f32}));
}

TEST(LowBitCache, RefusesCodesThatAConfigDoesNotName) {
  const auto refused = [](const LowBit& low_bit, const char* text) {
    const Status status = PagedKVCache::create(low_bit.options, backend()).status();
    EXPECT_EQ(status.code(), StatusCode::invalid_argument) << low_bit.name();
    EXPECT_NE(status.message().find(text), std::string::npos) << status.message();
  };
  refused(turboquant(KvCode::q8, KvCode::tqv_q3_0), "turboquant.k_quant is q8");
  refused(turboquant(KvCode::tqk_q8_0, KvCode::tqk_q4_0), "turboquant.v_quant is tqk_q4_0");
  refused(kv_quant(KvCode::tq8), "kv_quant.mode is tq8");
  refused(pair_of(KvCode::tqv_q3_0, KvCode::f16), "stores values only");
  refused(pair_of(KvCode::f16, KvCode::tqk_q8_0), "stores keys only");
}

TEST(LowBitCache, AHeadDimThatTheFormatDoesNotStoreIsRefusedWithWhatWouldWork) {
  struct Case {
    LowBit low_bit;
    int64_t dim_k, dim_v;
    std::vector<const char*> texts;
  };
  const std::vector<Case> cases = {
      {kv_quant(KvCode::q6), 10, 32, {"keys", "q6", "head_dim is 10", "q8, q4"}},
      {kv_quant(KvCode::q4), 32, 33, {"values", "q4", "head_dim is 33", "q8"}},
      {kv_quant(KvCode::q8), 32, 0, {"values", "q8", "head_dim is 0", "low-bit storage off"}},
      {turboquant(KvCode::tqk_q8_0, KvCode::tqv_q3_0),
       48,
       32,
       {"tqk_q8_0", "48", "multiples of 32"}},
      {turboquant(KvCode::tqk_q8_0, KvCode::tqv_q3_0), 32, 80, {"tqv_q3_0", "80", "tcq4"}},
      {pair_of(KvCode::tcq4, KvCode::tcq4), 20, 32, {"tcq4", "20", "q8"}},
  };
  for (const Case& c : cases) {
    PagedKVCache cache = make(c.low_bit.options);
    const LayerRows rows({1, 1, c.dim_k, c.dim_v, DType::f32, DType::f32}, 3, 1, 2);
    const Status status = write(cache, rows);
    EXPECT_EQ(status.code(), StatusCode::invalid_argument);
    for (const char* text : c.texts) {
      EXPECT_NE(status.message().find(text), std::string::npos) << status.message();
    }
    EXPECT_TRUE(cache.empty());
    EXPECT_FALSE(cache.shape().has_value());
    const LayerRows good({1, 1, 64, 64, DType::f32, DType::f32}, 3, 1, 2);
    EXPECT_TRUE(write(cache, good).ok()) << "another shape still fits";
  }
}

TEST(LowBitCache, ANumberThatIsNotFiniteIsRefusedAndNothingIsWritten) {
  for (const LowBit& low_bit : every_low_bit()) {
    SCOPED_TRACE(low_bit.name());
    for (const float bad : {std::nanf(""), INFINITY, -INFINITY}) {
      for (const bool in_keys : {true, false}) {
        // Plain codes store every value.
        if (!is_packed(in_keys ? low_bit.format.k : low_bit.format.v)) continue;
        LayerRows rows = rows_of_length(20, 5);
        std::vector<std::byte>& half = in_keys ? rows.k : rows.v;
        // An element of the second batch row's last head and row.
        std::memcpy(half.data() + half.size() - 8, &bad, 4);
        PagedKVCache fresh = make(low_bit.options);
        const Status status = write(fresh, rows);
        EXPECT_EQ(status.code(), StatusCode::invalid_argument);
        EXPECT_NE(status.message().find("NaN"), std::string::npos) << status.message();
        EXPECT_TRUE(fresh.empty());

        const LayerRows before = rows_of_length(21);
        PagedKVCache cache = filled(low_bit, before);
        PagedKVCache fork = cache.fork();
        EXPECT_FALSE(write(cache, rows).ok());
        EXPECT_FALSE(cache.set_state(rows.arrays()).ok());
        EXPECT_EQ(cache.paged_stats().updates, 1);
        expect_holds(cache, before, low_bit.format);
        expect_holds(fork, before, low_bit.format);
        ASSERT_TRUE(write(cache, rows_of_length(3, 9)).ok());
        expect_holds(cache, join(before, rows_of_length(3, 9)), low_bit.format);
      }
    }
  }
}

// Rows at the ends of what numbers hold, one kind per token.
LayerRows extreme_rows(const KvArrayShape& shape) {
  constexpr int kKinds = 12;
  LayerRows rows(shape, kKinds, 1, 2);
  const auto fill = [&](std::vector<std::byte>& half, int64_t head_dim, DType dtype) {
    const std::vector<float> bell = test::bell(7, int64_t(half.size()) / dtype_bytes(dtype));
    for (size_t i = 0; i < bell.size(); ++i) {
      const auto d = int64_t(i) % head_dim;
      const auto kind = int64_t(i) / head_dim % kKinds;
      float x = bell[i];
      if (kind == 0) x = 0;
      if (kind == 1) x = -0.0f;
      if (kind == 2) x = 3;
      if (kind == 3) x = -65504;
      if (kind == 4 && d == 7) x = 1e4f;
      if (kind == 5) x *= 1e-41f;  // denormal
      if (kind == 6) x = d % 2 == 0 ? 65504.0f : -65504.0f;
      if (kind == 7) x = 65504;
      if (kind == 8) x = d == 0 ? 65504.0f : 0.0f;
      if (kind == 9) x = d == 3 ? 1e-40f : 0.0f;
      if (kind == 10) x = 10 + float(d) / float(head_dim);  // far from zero, of one sign
      if (kind == 11) x = d == 0 ? 1e-8f : 1e-9f;
      store_float(dtype, half.data() + int64_t(i) * dtype_bytes(dtype), x);
    }
  };
  fill(rows.k, shape.head_dim_k, shape.dtype_k);
  fill(rows.v, shape.head_dim_v, shape.dtype_v);
  return rows;
}

TEST(LowBitCache, RowsAtTheEndsOfTheNumbersStayFiniteAndTheirZerosZero) {
  for (const LowBit& low_bit : every_low_bit()) {
    SCOPED_TRACE(low_bit.name());
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      // 65504 is 65536 in bf16, and infinite in f16, as plain formats say.
      if (low_bit.format.k == KvCode::f16 && dtype == DType::bf16) continue;
      const LayerRows rows = extreme_rows({1, 2, 96, 64, dtype, dtype});
      PagedKVCache cache = filled(low_bit, rows);
      expect_holds(cache, rows, low_bit.format);
      const KvArrays state = *rows_of_state(cache.state());
      for (const ConstTensorView& half : {state.keys, state.values}) {
        for (int64_t h = 0; h < 2; ++h) {
          for (int64_t i = 0; i < half.dim(2) * half.dim(3); ++i) {
            const float x = load_float(dtype, half.at(0, h) + i * dtype_bytes(dtype));
            ASSERT_TRUE(std::isfinite(x)) << "row " << i / half.dim(3);
            if (i / half.dim(3) < 2) {
              ASSERT_EQ(x, 0.0f) << "row " << i / half.dim(3);
            }
          }
        }
      }
      PagedKVCache again = make(low_bit.options);
      EXPECT_TRUE(again.set_state(state).ok()) << "what a state holds can be stored";
    }
  }
}

TEST(LowBitCache, RowsThatWereTrimmedInsideABlockAreRewritten) {
  for (const LowBit& low_bit : every_low_bit()) {
    SCOPED_TRACE(low_bit.name());
    const LayerRows rows = rows_of_length(37);
    for (const int64_t keep : {0, 1, 15, 16, 17, 31, 33, 36}) {
      PagedKVCache cache = filled(low_bit, rows);
      const LayerRows bad = LayerRows::filled(kShape, 9, 1e4f);
      ASSERT_TRUE(write(cache, bad).ok());
      ASSERT_EQ(cache.trim(46 - keep), 46 - keep);
      expect_holds(cache, first_rows(rows, keep), low_bit.format);
      const LayerRows more = rows_of_length(5, 77);
      ASSERT_TRUE(write(cache, more).ok());
      expect_holds(cache, join(first_rows(rows, keep), more), low_bit.format);
    }
  }
}

TEST(LowBitCache, ForksInTheMiddleOfABlockGoOnApart) {
  for (const LowBit& low_bit : every_low_bit()) {
    SCOPED_TRACE(low_bit.name());
    const LayerRows rows = rows_of_length(21);
    PagedKVCache a = filled(low_bit, rows);
    PagedKVCache b = a.fork();
    PagedKVCache c = a.fork();
    c.trim(3);
    ASSERT_TRUE(write(a, rows_of_length(2, 7)).ok());
    ASSERT_TRUE(write(b, rows_of_length(2, 8)).ok());
    ASSERT_TRUE(write(c, rows_of_length(2, 9)).ok());
    expect_holds(a, join(rows, rows_of_length(2, 7)), low_bit.format);
    expect_holds(b, join(rows, rows_of_length(2, 8)), low_bit.format);
    expect_holds(c, join(first_rows(rows, 18), rows_of_length(2, 9)), low_bit.format);
    EXPECT_GT(b.paged_stats().copy_on_write_copies, 0);
  }
}

TEST(LowBitCache, MovesOfAllRowsKeepTheirCodes) {
  const LowBit low_bit = turboquant(KvCode::tqk_q4_0, KvCode::tqv_q2_0);
  LowBit small = low_bit;
  small.options.block_size = 16;
  small.options.num_blocks = 2;
  std::vector<PagedKVCache> forks;
  forks.push_back(filled(small, rows_of_length(9)));
  for (int i = 0; i < 8; ++i) forks.push_back(forks[0].fork());
  for (size_t i = 0; i < forks.size(); ++i) {
    ASSERT_TRUE(write(forks[i], rows_of_length(23, 50 + i)).ok());
    expect_holds(forks[i], join(rows_of_length(9), rows_of_length(23, 50 + i)), low_bit.format);
  }
  EXPECT_GT(forks.back().paged_stats().copies, 0) << "the pool has room for four forks";
  PagedKVCacheOptions larger = small.options;
  larger.num_blocks = 8;
  larger.dynamic = true;
  ASSERT_TRUE(forks[0].reconfigure(larger).ok());
  ASSERT_TRUE(write(forks[0], rows_of_length(60, 3)).ok());
  expect_holds(forks[0],
               join(join(rows_of_length(9), rows_of_length(23, 50)), rows_of_length(60, 3)),
               low_bit.format);
}

TEST(LowBitCache, GrowsByTheRuleUpToTheContextWindow) {
  LowBit low_bit = kv_quant(KvCode::q6);
  low_bit.options.block_size = 3;
  low_bit.options.num_blocks = 1;
  low_bit.options.dynamic = true;
  low_bit.options.context_window = 40;
  PagedKVCache cache = make(low_bit.options);
  LayerRows all = rows_of_length(0);
  for (uint64_t i = 0; i < 10; ++i) {
    ASSERT_TRUE(write(cache, rows_of_length(4, 10 + i)).ok());
    all = join(all, rows_of_length(4, 10 + i));
  }
  EXPECT_EQ(write(cache, rows_of_length(1)).code(), StatusCode::out_of_pages);
  expect_holds(cache, all, low_bit.format);
  EXPECT_EQ(cache.paged_stats().copies, 0) << "growth moves no row";
}

TEST(LowBitCache, CodesGoOutAndInExactlyInBothLayouts) {
  for (const LowBit& low_bit : every_low_bit()) {
    SCOPED_TRACE(low_bit.name());
    for (const int64_t length : {1, 16, 37}) {
      const LayerRows rows = rows_of_length(length);
      PagedKVCache cache = filled(low_bit, rows);
      ASSERT_TRUE(write(cache, LayerRows::filled(kShape, 9, 1e4f)).ok());
      cache.trim(9);
      for (const KvCodeLayout layout : {KvCodeLayout::rows, KvCodeLayout::tiles}) {
        const KvCodes codes = **cache.export_codes(layout);
        LowBit odd = low_bit;
        odd.options.block_size = 5;  // other pages, the same rows
        PagedKVCache other = make(odd.options);
        ASSERT_TRUE(write(other, rows_of_length(50, 4)).ok());
        const Status status = other.import_codes(codes);
        ASSERT_TRUE(status.ok()) << status.to_string();
        expect_holds(other, rows, low_bit.format);
        const KvCodes again = **other.export_codes(layout);
        EXPECT_TRUE(
            std::equal(codes.keys.begin(), codes.keys.end(), again.keys.begin(), again.keys.end()))
            << "what lay behind the last row did not leave the cache";
        EXPECT_TRUE(std::equal(codes.values.begin(), codes.values.end(), again.values.begin(),
                               again.values.end()));
      }
    }
  }
}

TEST(LowBitCache, CodesThatDoNotFitAreRefusedAndNothingChanged) {
  const LowBit low_bit = kv_quant(KvCode::q4);
  const LayerRows rows = rows_of_length(5);
  PagedKVCache source = filled(low_bit, rows);
  PagedKVCache cache = filled(low_bit, rows_of_length(7, 3));
  const KvCodes good = **source.export_codes();
  const auto refused = [&](const KvCodes& codes, const char* text) {
    const Status status = cache.import_codes(codes);
    EXPECT_EQ(status.code(), StatusCode::invalid_argument);
    EXPECT_NE(status.message().find(text), std::string::npos) << status.message();
    expect_holds(cache, rows_of_length(7, 3), low_bit.format);
  };
  KvCodes codes = good;
  codes.format = {KvCode::q8, KvCode::q8};
  refused(codes, "the codes are q8:q8, and the cache stores q4:q4");
  codes = good;
  codes.keys = codes.keys.first(codes.keys.size() - 1);
  refused(codes, "bytes");
  codes = good;
  codes.layout = KvCodeLayout::tiles;
  refused(codes, "bytes");
  codes = good;
  codes.num_rows = -1;
  refused(codes, "2^31 rows");
  codes = good;
  codes.shape.num_kv_heads = INT64_MAX / 2;
  refused(codes, "2^63");
  codes = good;
  codes.shape.head_dim_k = 63;
  refused(codes, "63");
  std::vector<std::byte> keys(good.keys.begin(), good.keys.end());
  const float infinity = INFINITY;
  std::memcpy(keys.data() + keys.size() - 4, &infinity, 4);  // the scale of the last row
  codes = good;
  codes.keys = keys;
  refused(codes, "not finite");
  const float huge = 3e38f;
  std::memcpy(keys.data() + keys.size() - 4, &huge, 4);  // times 7 it is not
  refused(codes, "not finite");
  EXPECT_FALSE(make(low_bit.options).export_codes().value().has_value());
}

TEST(LowBitCache, AStateOfTheSameFormatIsCopiedExactlyFromCacheToCache) {
  for (const LowBit& low_bit : every_low_bit()) {
    SCOPED_TRACE(low_bit.name());
    const LayerRows rows = rows_of_length(20);
    PagedKVCache cache = filled(low_bit, rows);
    PagedKVCache copy = PagedKVCache::from_cache(cache, low_bit.options, backend()).value();
    expect_holds(copy, rows, low_bit.format);
    const LayerRows decoded = stored_rows(rows, low_bit.format).decoded;
    TailOwnedKVCache tail =
        TailOwnedKVCache::from_cache(cache, DetachMode::contiguous_eval).value();
    EXPECT_TRUE(same_rows(*tail.state(), decoded));
    BlockOwnedKVCache block =
        BlockOwnedKVCache::from_cache(cache, DetachMode::contiguous_eval, 8).value();
    EXPECT_TRUE(same_rows(*block.state(), decoded));
    PagedKVCache plain = PagedKVCache::from_cache(cache, {}, backend()).value();
    EXPECT_TRUE(same_rows(*rows_of_state(plain.state()), decoded));
    PagedKVCache back = PagedKVCache::from_cache(tail, low_bit.options, backend()).value();
    expect_holds(back, decoded, low_bit.format);
  }
}

TEST(LowBitCache, ALiveCacheIsEncodedAnewForAnotherFormatOrRefused) {
  const LayerRows rows = rows_of_length(20);
  PagedKVCache cache = make({});
  ASSERT_TRUE(write(cache, rows).ok());
  const LowBit q8 = kv_quant(KvCode::q8);
  ASSERT_TRUE(cache.reconfigure(q8.options).ok());
  expect_holds(cache, rows, q8.format);
  EXPECT_EQ(cache.paged_stats().copies, 1);
  EXPECT_EQ(cache.paged_stats().kv_quant_mode, "q8");
  const LayerRows once = stored_rows(rows, q8.format).decoded;
  const LowBit turbo = turboquant(KvCode::tqk_q5_0, KvCode::tqv_q4_0);
  ASSERT_TRUE(cache.reconfigure(turbo.options).ok());
  expect_holds(cache, once, turbo.format);
  const LayerRows twice = stored_rows(once, turbo.format).decoded;
  ASSERT_TRUE(cache.reconfigure({}).ok());
  EXPECT_TRUE(same_rows(*rows_of_state(cache.state()), twice));

  const LayerRows odd({1, 1, 33, 33, DType::f32, DType::f32}, 4, 1, 2);
  PagedKVCache narrow = make({});
  ASSERT_TRUE(write(narrow, odd).ok());
  const Status status = narrow.reconfigure(turbo.options);
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  EXPECT_NE(status.message().find("head_dim is 33"), std::string::npos) << status.message();
  EXPECT_FALSE(narrow.options().turboquant.has_value());
  EXPECT_TRUE(same_rows(*rows_of_state(narrow.state()), odd));
  LayerRows infinite = odd;
  const float infinity = INFINITY;
  std::memcpy(infinite.v.data(), &infinity, 4);
  ASSERT_TRUE(narrow.set_state(infinite.arrays()).ok()) << "plain rows hold it";
  EXPECT_FALSE(narrow.reconfigure(q8.options).ok());
  EXPECT_TRUE(same_rows(*rows_of_state(narrow.state()), infinite));
}

TEST(LowBitCache, SettingOneHalfKeepsTheCodesOfTheOther) {
  for (const LowBit& low_bit : every_low_bit()) {
    SCOPED_TRACE(low_bit.name());
    const LayerRows rows = rows_of_length(20);
    const LayerRows other = rows_of_length(20, 50);
    PagedKVCache cache = filled(low_bit, rows);
    ASSERT_TRUE(cache.set_keys(other.keys()).ok());
    LayerRows mixed = rows;
    mixed.k = other.k;
    expect_holds(cache, mixed, low_bit.format);
    ASSERT_TRUE(cache.set_values(other.values()).ok());
    expect_holds(cache, other, low_bit.format);
  }
}

TEST(LowBitCache, RestoresFromStateAndMetaAndTakesPages) {
  const LowBit low_bit = kv_quant(KvCode::q8);
  const LayerRows rows = rows_of_length(20);
  PagedKVCache cache = filled(low_bit, rows);
  const LayerRows decoded = stored_rows(rows, low_bit.format).decoded;
  PagedKVCache again = make(low_bit.options);
  ASSERT_TRUE(again.set_state(*cache.state()).ok());
  std::vector<std::string> meta = cache.meta_state();
  meta[2] = "18";
  ASSERT_TRUE(again.set_meta_state(meta).ok());
  expect_holds(again, first_rows(decoded, 18), low_bit.format);
  const KvPages pages = **cache.export_pages();
  std::vector<int32_t> table;
  for (int32_t b = 0; b < 2; ++b) {
    for (int32_t i = 0; i < 2; ++i) table.push_back(b * int32_t(cache.num_blocks()) + i);
  }
  ASSERT_TRUE(again.import_pages(pages.key_cache, pages.value_cache, table, 20).ok());
  expect_holds(again, decoded, low_bit.format);
}

// Random operations on forks against lists of rows, codes compared after each.
RC_GTEST_PROP(LowBitCacheModel, RandomOperationsMatchAListOfCodes, ()) {
  const std::vector<LowBit> all = every_low_bit();
  LowBit low_bit = all[*rc::gen::inRange<size_t>(0, all.size())];
  low_bit.options.block_size = *rc::gen::element<int64_t>(1, 3, 16, 48);
  low_bit.options.num_blocks = 1;
  low_bit.options.dynamic = true;
  low_bit.options.max_tokens = 4096;
  constexpr KvArrayShape kSmall{1, 2, 32, 32, DType::f32, DType::bf16};
  struct Handle {
    PagedKVCache cache;
    LayerRows rows;
  };
  std::vector<Handle> handles;
  handles.push_back({make(low_bit.options), LayerRows(kSmall, 0, 1, 2)});
  const auto ops = *rc::gen::container<std::vector<std::array<int, 3>>>(
      rc::gen::container<std::array<int, 3>>(rc::gen::inRange(0, 64)));
  uint64_t seed = 100;
  for (const auto& [kind, which, amount] : ops) {
    Handle& handle = handles[size_t(which) % handles.size()];
    if (kind < 30) {
      const LayerRows more(kSmall, amount % 20, seed, seed + 1);
      seed += 2;
      RC_ASSERT(write(handle.cache, more).ok());
      handle.rows = join(handle.rows, more);
    } else if (kind < 44) {
      const int64_t removed = std::min<int64_t>(amount % 24, handle.rows.num_rows);
      RC_ASSERT(handle.cache.trim(amount % 24) == removed);
      handle.rows = first_rows(handle.rows, handle.rows.num_rows - removed);
    } else if (kind < 54 && handles.size() < 5) {
      Handle other{handle.cache.fork(), handle.rows};
      handles.push_back(std::move(other));
    } else if (kind < 60 && handle.rows.num_rows > 0) {
      const KvCodeLayout layout = amount % 2 == 0 ? KvCodeLayout::rows : KvCodeLayout::tiles;
      PagedKVCache fresh = make(low_bit.options);
      RC_ASSERT(fresh.import_codes(**handle.cache.export_codes(layout)).ok());
      handle.cache = std::move(fresh);
    }
    for (Handle& each : handles) {
      const auto codes = each.cache.export_codes();
      RC_ASSERT(each.cache.offset() == each.rows.num_rows);
      if (!codes->has_value()) continue;
      const test::StoredRows want = stored_rows(each.rows, low_bit.format);
      RC_ASSERT(test::same_bytes((*codes)->keys, want.k));
      RC_ASSERT(test::same_bytes((*codes)->values, want.v));
    }
  }
}

}  // namespace
}  // namespace kvik
