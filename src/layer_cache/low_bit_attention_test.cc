// Attention of the paged one-layer cache over low-bit rows: both routes, the request's latch, the
// mirror, and what is counted.
#include <gtest/gtest.h>

#include <cmath>

#include "kvik/backend/cpu_backend.h"
#include "support/low_bit_rows.h"

namespace kvik {
namespace {

using test::every_low_bit;
using test::kv_quant;
using test::LayerRows;
using test::LowBit;
using test::pair_of;
using test::rows_of_state;
using test::stored_rows;
using test::turboquant;

constexpr KvArrayShape kShape{2, 2, 64, 32, DType::f32, DType::f32};
constexpr int64_t kHeads = 4;

std::shared_ptr<Backend> backend(int num_threads = 2) {
  static const std::shared_ptr<Backend> kOne =
      make_cpu_backend({.num_threads = 1, .kernel_set = KernelSet::exact}).value();
  static const std::shared_ptr<Backend> kTwo =
      make_cpu_backend({.num_threads = 2, .kernel_set = KernelSet::exact}).value();
  return num_threads == 1 ? kOne : kTwo;
}

Status write(PagedKVCache& cache, const LayerRows& rows, PagedPhase phase = PagedPhase::unknown) {
  return cache.update_without_fetch(rows.keys(), rows.values(), phase);
}

PagedKVCache filled(const PagedKVCacheOptions& options, const LayerRows& rows,
                    int num_threads = 2) {
  PagedKVCache cache = PagedKVCache::create(options, backend(num_threads)).value();
  EXPECT_TRUE(write(cache, rows).ok());
  return cache;
}

LayerRows rows_of_length(int64_t n, uint64_t seed = 1) { return {kShape, n, seed, seed + 1000}; }

struct Query {
  explicit Query(int64_t q, uint64_t seed = 5, int64_t batch = 2)
      : q_len(q),
        values(test::bell(seed, batch * kHeads * q * 64)),
        out(size_t(batch * kHeads * q * 32), -12345.0f) {
    call.queries = ConstTensorView(values.data(), DType::f32, {batch, kHeads, q, 64});
    call.out = TensorView(out.data(), DType::f32, {batch, kHeads, q, 32});
    call.scale = 0.125f;
  }
  Query(const Query&) = delete;

  // Served by the wanted route, whatever the cache's is.
  const std::vector<float>& run(PagedKVCache& cache,
                                std::optional<PagedRoute> route = std::nullopt) {
    call.impl_override = route;
    std::fill(out.begin(), out.end(), -12345.0f);
    const Result<bool> served = cache.paged_attention(call);
    EXPECT_TRUE(served.ok() && *served) << served.status().to_string();
    return out;
  }

  int64_t q_len;
  std::vector<float> values, out;
  PagedAttentionCall call;
};

// The largest difference, which NaN makes infinite.
double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double most = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double d = std::abs(double(a[i]) - double(b[i]));
    most = std::isnan(d) ? INFINITY : std::max(most, d);
  }
  return most;
}

TEST(LowBitAttention, TheMirrorGivesTheBitsOfAPlainCacheOfTheDecodedRows) {
  const LayerRows rows = rows_of_length(300);
  for (const LowBit& low_bit : every_low_bit()) {
    SCOPED_TRACE(low_bit.name());
    PagedKVCache plain = filled({}, stored_rows(rows, low_bit.format).decoded);
    PagedKVCache cache = filled(low_bit.options, rows);
    for (const int64_t q_len : {1, 9}) {
      Query a(q_len);
      Query b(q_len);
      EXPECT_EQ(a.run(cache, PagedRoute::mirror), b.run(plain));
    }
  }
}

TEST(LowBitAttention, PackedRowsAreAttendedAsWhatTheyStandFor) {
  const LayerRows rows = rows_of_length(300);
  for (const LowBit& low_bit : every_low_bit()) {
    SCOPED_TRACE(low_bit.name());
    PagedKVCache plain = filled({}, stored_rows(rows, low_bit.format).decoded);
    for (const int64_t q_len : {1, 2, 9, 300}) {
      PagedKVCache cache = filled(low_bit.options, rows);
      Query a(q_len);
      Query b(q_len);
      // Sums of a few hundred f32 terms of size 4, once in another basis.
      EXPECT_LT(distance(a.run(cache), b.run(plain)), 5e-5) << q_len;
      EXPECT_EQ(cache.paged_stats().route, "packed");
    }
  }
}

TEST(LowBitAttention, WindowsMasksSinksAndSoftcapsReachTheRows) {
  const LayerRows rows = rows_of_length(70);
  std::vector<uint8_t> visible(size_t(2 * kHeads * 5 * 70));
  const std::vector<float> noise = test::bell(3, int64_t(visible.size()));
  for (size_t i = 0; i < visible.size(); ++i) visible[i] = noise[i] > -0.5f;
  const std::vector<float> sinks = {0.5f, -1, 2, 0};
  for (const LowBit& low_bit : every_low_bit()) {
    SCOPED_TRACE(low_bit.name());
    PagedKVCache plain = filled({}, stored_rows(rows, low_bit.format).decoded);
    for (const PagedRoute route : {PagedRoute::packed, PagedRoute::mirror}) {
      PagedKVCache cache = filled(low_bit.options, rows);
      for (int kind = 0; kind < 4; ++kind) {
        Query a(5);
        Query b(5);
        for (Query* query : {&a, &b}) {
          PagedAttentionCall& call = query->call;
          if (kind == 0) call.sliding_window = 9;
          if (kind == 1) call.mask.kind = AttentionMask::Kind::full;
          if (kind == 2) call.sinks = sinks;
          if (kind == 2) call.softcap = 3;
          if (kind < 3) continue;
          call.mask.kind = AttentionMask::Kind::array;
          call.mask.array = MaskView{reinterpret_cast<const std::byte*>(visible.data()),
                                     MaskType::boolean,
                                     4,
                                     {2, kHeads, 5, 70},
                                     {kHeads * 5 * 70, 5 * 70, 70, 1}};
        }
        EXPECT_LT(distance(a.run(cache, route), b.run(plain)), 5e-5) << kind;
      }
    }
  }
}

TEST(LowBitAttention, EveryKeyFormatMeetsEveryValueFormat) {
  for (const KvCode k : all_kv_codes()) {
    for (const KvCode v : all_kv_codes()) {
      if (!stores_keys(k) || !stores_values(v)) continue;
      const LowBit low_bit = pair_of(k, v);
      LayerRows rows = rows_of_length(3);
      const std::vector<float> ones(rows.k.size() / 4, 1.0f);
      const std::vector<float> twos(rows.v.size() / 4, 2.0f);
      rows.k = test::cast(ones, DType::f32);
      rows.v = test::cast(twos, DType::f32);
      PagedKVCache cache = filled(low_bit.options, rows);
      Query query(1);
      query.run(cache);
      // Equal rows: their mean is each of them.
      const test::StoredRows want = stored_rows(rows, low_bit.format);
      for (int64_t h = 0; h < kHeads; ++h) {
        for (int64_t d = 0; d < 32; ++d) {
          EXPECT_NEAR(query.out[size_t(h * 32 + d)],
                      load_float(DType::f32, want.decoded.v.data() + d * 4), 1e-5)
              << low_bit.name();
        }
      }
    }
  }
}

TEST(LowBitAttention, BitsDoNotDependOnBlocksBatchThreadsOrChunks) {
  const LayerRows rows = rows_of_length(70);
  for (const LowBit& low_bit : every_low_bit()) {
    SCOPED_TRACE(low_bit.name());
    for (const PagedRoute route : {PagedRoute::packed, PagedRoute::mirror}) {
      LowBit options = low_bit;
      options.options.route = route;
      PagedKVCache cache = filled(options.options, rows);
      Query all(6);
      all.run(cache);
      for (const int64_t block_size : {1, 5, 48}) {
        options.options.block_size = block_size;
        PagedKVCache other = filled(options.options, rows, 1);
        Query again(6);
        EXPECT_EQ(again.run(other), all.out);
      }
      // One query at a time, the second batch row alone.
      PagedKVCache alone = PagedKVCache::create(options.options, backend()).value();
      ConstTensorView k = rows.keys();
      ConstTensorView v = rows.values();
      k.data = k.at(1);
      v.data = v.at(1);
      k.shape[0] = v.shape[0] = 1;
      for (int64_t t = 0; t < 70; ++t) {
        ASSERT_TRUE(alone.update_without_fetch(rows_of(k, t, t + 1), rows_of(v, t, t + 1)).ok());
        if (t < 64) continue;
        Query one(1, 5, 1);
        for (int64_t h = 0; h < kHeads; ++h) {
          std::copy_n(all.values.begin() + ((kHeads + h) * 6 + t - 64) * 64, 64,
                      one.values.begin() + h * 64);
        }
        one.run(alone);
        for (int64_t h = 0; h < kHeads; ++h) {
          EXPECT_TRUE(std::equal(one.out.begin() + h * 32, one.out.begin() + (h + 1) * 32,
                                 all.out.begin() + ((kHeads + h) * 6 + t - 64) * 32));
        }
      }
    }
  }
}

TEST(LowBitAttention, ExportedCodesGiveTheSameBits) {
  const LayerRows rows = rows_of_length(70);
  for (const LowBit& low_bit : every_low_bit()) {
    SCOPED_TRACE(low_bit.name());
    for (const PagedRoute route : {PagedRoute::packed, PagedRoute::mirror}) {
      PagedKVCache cache = filled(low_bit.options, rows);
      Query query(3);
      query.run(cache, route);
      for (const KvCodeLayout layout : {KvCodeLayout::rows, KvCodeLayout::tiles}) {
        PagedKVCache other = PagedKVCache::create(low_bit.options, backend()).value();
        ASSERT_TRUE(other.import_codes(**cache.export_codes(layout)).ok());
        Query again(3);
        EXPECT_EQ(again.run(other, route), query.out);
      }
    }
  }
}

TEST(LowBitAttention, DeadSlotsNeverReachAResult) {
  for (const LowBit& low_bit : every_low_bit()) {
    SCOPED_TRACE(low_bit.name());
    for (const PagedRoute route : {PagedRoute::packed, PagedRoute::mirror}) {
      for (const int64_t length : {1, 15, 16, 17, 33}) {
        const LayerRows rows = rows_of_length(length);
        PagedKVCache clean = filled(low_bit.options, rows);
        PagedKVCache cache = filled(low_bit.options, rows);
        ASSERT_TRUE(write(cache, LayerRows::filled(kShape, 40, 6e4f)).ok());
        Query before(1);
        before.run(cache, route);
        cache.trim(40);
        Query a(1);
        Query b(1);
        EXPECT_EQ(a.run(cache, route), b.run(clean, route));
      }
    }
  }
}

TEST(LowBitAttention, TheMirrorDecodesEachRowOnce) {
  LowBit low_bit = kv_quant(KvCode::q8);
  low_bit.options.route = PagedRoute::mirror;
  PagedKVCache cache = filled(low_bit.options, rows_of_length(100));
  const int64_t codes_bytes = cache.nbytes();
  Query query(1);
  query.run(cache);
  ASSERT_TRUE(write(cache, rows_of_length(5, 9), PagedPhase::decode_verify).ok());
  query.run(cache);
  PagedStats stats = cache.paged_stats();
  EXPECT_EQ(stats.kv_quant_dequant_tokens, 105);
  EXPECT_EQ(stats.kv_quant_dequant_calls, 2);
  EXPECT_EQ(stats.kv_quant_dequant_memo_hits, 0);
  EXPECT_EQ(stats.kv_quant_dequant_memo_rebuilds, 1);
  query.run(cache);
  stats = cache.paged_stats();
  EXPECT_EQ(stats.kv_quant_dequant_tokens, 105);
  EXPECT_EQ(stats.kv_quant_dequant_memo_hits, 1);
  EXPECT_EQ(stats.kv_quant_attention_calls, 3);
  EXPECT_EQ(stats.kv_quant_kernel_calls, 0);
  EXPECT_EQ(stats.turboquant_attention_calls, 0);
  EXPECT_EQ(stats.kv_quant_route, "mirror");
  EXPECT_EQ(stats.kv_quant_route_offset, 100);
  EXPECT_EQ(stats.active_array_calls, 0);
  // 256 rows are backed at a time.
  EXPECT_EQ(stats.mirror_bytes, 256 * kShape.row_bytes());
  EXPECT_EQ(cache.nbytes(), codes_bytes + stats.mirror_bytes);
  EXPECT_EQ(stats.bytes, cache.nbytes());
  ASSERT_TRUE(cache.set_state(rows_of_length(3).arrays()).ok());
  EXPECT_EQ(cache.paged_stats().mirror_bytes, 0);
}

TEST(LowBitAttention, TheMirrorFollowsRowsThatAreTrimmedAndRewritten) {
  for (const LowBit& each : every_low_bit()) {
    SCOPED_TRACE(each.name());
    LowBit low_bit = each;
    low_bit.options.route = PagedRoute::mirror;
    const LayerRows rows = rows_of_length(40);
    for (const bool by_meta : {false, true}) {
      PagedKVCache cache = filled(low_bit.options, rows);
      Query query(1);
      query.run(cache);
      if (by_meta) {
        std::vector<std::string> meta = cache.meta_state();
        meta[2] = "30";
        ASSERT_TRUE(cache.set_meta_state(meta).ok());
      } else {
        cache.trim(10);
      }
      const LayerRows more = rows_of_length(6, 70);
      ASSERT_TRUE(write(cache, more, PagedPhase::decode_verify).ok());
      PagedKVCache fresh = filled(low_bit.options, test::join(test::first_rows(rows, 30), more));
      Query a(1);
      Query b(1);
      EXPECT_EQ(a.run(cache), b.run(fresh));
      EXPECT_EQ(cache.paged_stats().kv_quant_dequant_tokens, 46);
      EXPECT_EQ(cache.paged_stats().kv_quant_dequant_memo_rebuilds, 1);
    }
  }
}

TEST(LowBitAttention, ForksShareTheMirrorAndGoOnApart) {
  LowBit low_bit = turboquant(KvCode::tqk_q4_0, KvCode::tqv_q4_0);
  low_bit.options.route = PagedRoute::mirror;
  const LayerRows rows = rows_of_length(21);
  PagedKVCache a = filled(low_bit.options, rows);
  Query query(1);
  query.run(a);
  PagedKVCache b = a.fork();
  EXPECT_EQ(b.paged_stats().kv_quant_dequant_tokens, 21);
  ASSERT_TRUE(write(b, rows_of_length(1, 8), PagedPhase::ar_decode).ok());
  ASSERT_TRUE(write(a, rows_of_length(1, 7), PagedPhase::ar_decode).ok());
  for (const auto& [cache, seed] : {std::pair(&a, 7), std::pair(&b, 8)}) {
    PagedKVCache fresh =
        filled(low_bit.options, test::join(rows, rows_of_length(1, uint64_t(seed))));
    Query x(1);
    Query y(1);
    EXPECT_EQ(x.run(*cache), y.run(fresh));
    EXPECT_EQ(cache->paged_stats().kv_quant_dequant_tokens, 22) << "the shared rows are not new";
  }
}

TEST(LowBitAttention, TheMirrorHasItsOwnDtype) {
  const LayerRows rows = rows_of_length(50);
  for (LowBit low_bit : {kv_quant(KvCode::q8, DType::bf16), kv_quant(KvCode::q4, DType::f16)}) {
    low_bit.options.route = PagedRoute::mirror;
    const DType dtype = *low_bit.options.kv_quant->mirror_dtype;
    PagedKVCache cache = filled(low_bit.options, rows);
    PagedKVCache plain = filled({}, stored_rows(rows, low_bit.format, dtype, dtype).decoded);
    Query a(4);
    Query b(4);
    EXPECT_EQ(a.run(cache), b.run(plain));
    EXPECT_EQ(rows_of_state(cache.state())->keys.dtype, DType::f32) << "the state has the rows'";
    EXPECT_EQ(cache.paged_stats().mirror_bytes, 256 * kShape.row_bytes() / 2);
    PagedKVCacheOptions wide = low_bit.options;
    wide.kv_quant->mirror_dtype = DType::f32;
    ASSERT_TRUE(cache.reconfigure(wide).ok());
    PagedKVCache fresh = filled(wide, rows);
    EXPECT_EQ(a.run(cache), b.run(fresh));
  }
}

TEST(LowBitAttention, ARequestNeverLeavesItsRoute) {
  for (const PagedRoute first : {PagedRoute::packed, PagedRoute::mirror}) {
    const PagedRoute other = first == PagedRoute::packed ? PagedRoute::mirror : PagedRoute::packed;
    // Its two routes differ in every bit.
    LowBit low_bit = kv_quant(KvCode::q8, DType::bf16);
    std::vector<std::string> told;
    low_bit.options.on_fallback = [&](const std::string& text) { told.push_back(text); };
    const LayerRows rows = rows_of_length(60);
    PagedKVCache cache = filled(low_bit.options, rows);
    Query a(1);
    Query b(1);
    a.run(cache, first);
    EXPECT_EQ(b.run(cache, other), a.out);
    EXPECT_EQ(cache.paged_stats().kv_quant_route, paged_route_name(first, true));
    EXPECT_EQ(cache.last_bailout()->reason, "route_latched");
    EXPECT_EQ(cache.paged_stats().paged_attention_bailouts_by_phase_reason,
              (PagedCounts{{"unknown:route_latched", 1}}));
    ASSERT_EQ(told.size(), 1U);
    EXPECT_NE(told[0].find("round differently"), std::string::npos) << told[0];
    // Not by a decode step, a trim or a fork.
    ASSERT_TRUE(write(cache, rows_of_length(1, 8), PagedPhase::ar_decode).ok());
    cache.trim(1);
    PagedKVCache fork = cache.fork();
    EXPECT_EQ(b.run(fork, other), a.out);
    EXPECT_EQ(b.run(cache, other), a.out);
    EXPECT_EQ(told.size(), 1U) << "told once";
    EXPECT_EQ(
        cache.paged_stats().paged_attention_bailouts_by_phase_reason.at("unknown:route_latched"),
        2);
    // A prompt begins a request; so do other rows.
    ASSERT_TRUE(write(cache, rows_of_length(1, 8), PagedPhase::prefill).ok());
    cache.trim(1);
    EXPECT_NE(b.run(cache, other), a.out);
    EXPECT_EQ(cache.paged_stats().kv_quant_route, paged_route_name(other, true));
    ASSERT_TRUE(cache.import_codes(**cache.export_codes()).ok());
    EXPECT_EQ(b.run(cache, first), a.out);
  }
}

TEST(LowBitAttention, TheMirrorIsDroppedWhenTheRouteDoesNotNeedIt) {
  PagedKVCache cache = filled(kv_quant(KvCode::q4).options, rows_of_length(60));
  const int64_t codes_bytes = cache.nbytes();
  Query query(1);
  query.run(cache, PagedRoute::mirror);
  EXPECT_GT(cache.nbytes(), codes_bytes);
  ASSERT_TRUE(write(cache, rows_of_length(2), PagedPhase::prefill).ok());
  EXPECT_GT(cache.nbytes(), codes_bytes) << "the next request may want it";
  query.run(cache, PagedRoute::packed);
  EXPECT_EQ(cache.nbytes(), codes_bytes);
  const PagedStats stats = cache.paged_stats();
  EXPECT_EQ(stats.kv_quant_kernel_calls, 1);
  EXPECT_EQ(stats.kv_quant_attention_calls, 2);
  EXPECT_EQ(stats.mirror_bytes, 0);
}

TEST(LowBitAttention, AFallbackKeepsTheRequestsArithmetic) {
  for (const PagedRoute route : {PagedRoute::packed, PagedRoute::mirror}) {
    LowBit low_bit = kv_quant(KvCode::q6, DType::bf16);
    low_bit.options.route = route;
    const LayerRows rows = rows_of_length(60);
    PagedKVCache free = filled(low_bit.options, rows);
    std::vector<std::string> told;
    low_bit.options.max_q_len = 4;
    low_bit.options.on_fallback = [&](const std::string& text) { told.push_back(text); };
    PagedKVCache cache = filled(low_bit.options, rows);
    Query a(5);
    Query b(5);
    a.run(free);
    b.call.phase = PagedPhase::prefill;
    EXPECT_FALSE(cache.paged_attention(b.call).value());
    EXPECT_FALSE(cache.paged_stats().route.has_value()) << "nothing was served";
    ASSERT_TRUE(cache.attend(b.call).ok());
    EXPECT_EQ(b.out, a.out);
    PagedStats stats = cache.paged_stats();
    EXPECT_EQ(stats.prefill_dense_fallback_calls, 1);
    EXPECT_EQ(stats.paged_attention_bailouts_by_phase_reason,
              (PagedCounts{{"prefill:q_len_gt_max", 2}}));
    EXPECT_EQ(stats.route, paged_route_name(route, true)) << "a fallback latches too";
    ASSERT_EQ(told.size(), 1U);
    // Another reason is told apart.
    Query c(1);
    c.run(cache, route == PagedRoute::packed ? PagedRoute::mirror : PagedRoute::packed);
    EXPECT_EQ(told.size(), 2U);
    low_bit.options.forbid_dense_fallback = true;
    PagedKVCache strict = filled(low_bit.options, rows);
    EXPECT_EQ(strict.attend(b.call).code(), StatusCode::unsupported);
  }
}

TEST(LowBitAttention, AMaskThatAddsNumbersReadsTheDecodedRows) {
  const LayerRows rows = rows_of_length(20);
  const std::vector<float> bias = test::bell(3, 20);
  for (const LowBit& low_bit : every_low_bit()) {
    SCOPED_TRACE(low_bit.name());
    PagedKVCache cache = filled(low_bit.options, rows);
    PagedKVCache plain = filled({}, stored_rows(rows, low_bit.format).decoded);
    Query a(1);
    Query b(1);
    for (Query* query : {&a, &b}) {
      query->call.mask = {
          AttentionMask::Kind::array,
          MaskView{
              reinterpret_cast<const std::byte*>(bias.data()), MaskType::f32, 2, {1, 20}, {20, 1}}};
    }
    ASSERT_TRUE(cache.attend(a.call).ok());
    ASSERT_TRUE(plain.attend(b.call).ok());
    EXPECT_EQ(a.out, b.out);
    EXPECT_EQ(cache.paged_stats().dense_fallback_calls, 1);
  }
}

TEST(LowBitAttention, CallsAreCountedByStorage) {
  const LayerRows rows = rows_of_length(10);
  PagedKVCache turbo = filled(turboquant(KvCode::tqk_q8_0, KvCode::tqv_q3_0).options, rows);
  Query query(1);
  query.run(turbo);
  PagedStats stats = turbo.paged_stats();
  EXPECT_TRUE(stats.turboquant && !stats.kv_quant);
  EXPECT_EQ(stats.turboquant_attention_calls, 1);
  EXPECT_EQ(stats.kv_quant_attention_calls, 0);
  EXPECT_EQ(stats.turboquant_k_quant, "q8_0");
  EXPECT_EQ(stats.turboquant_v_quant, "q3_0");
  EXPECT_EQ(stats.format, "tqk_q8_0:tqv_q3_0");
  EXPECT_FALSE(stats.kv_quant_mode.has_value());
  EXPECT_FALSE(stats.kv_quant_route.has_value());
  EXPECT_EQ(stats.route, "packed");
  PagedKVCache own = filled(pair_of(KvCode::tq8, KvCode::tcq4).options, rows);
  query.run(own);
  stats = own.paged_stats();
  EXPECT_FALSE(stats.turboquant || stats.kv_quant);
  EXPECT_EQ(stats.paged_attention_calls, 1);
  EXPECT_EQ(stats.turboquant_attention_calls + stats.kv_quant_attention_calls, 0);
}

}  // namespace
}  // namespace kvik
