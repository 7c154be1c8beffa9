#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kvik/attention/attention.h"
#include "kvik/backend/cpu_backend.h"
#include "kvik/layer_cache/paged_kv_cache.h"
#include "support/layer_rows.h"

namespace kvik {
namespace {

using test::element;
using test::LayerRows;

constexpr KvArrayShape kShape{2, 2, 16, 12, DType::f32, DType::f32};
constexpr int kHeads = 4;

std::shared_ptr<Backend> backend() {
  static const std::shared_ptr<Backend> kBackend = make_cpu_backend({2}).value();
  return kBackend;
}

PagedKVCache make(const PagedKVCacheOptions& options = {}) {
  return PagedKVCache::create(options, backend()).value();
}

PagedKVCache filled(const LayerRows& rows, const PagedKVCacheOptions& options = {}) {
  PagedKVCache cache = make(options);
  EXPECT_TRUE(cache.update_without_fetch(rows.keys(), rows.values()).ok());
  return cache;
}

// Queries [B, H, q, D] and the outputs of a call.
struct Queries {
  Queries(int64_t b, int64_t q, uint64_t seed = 5, int64_t dim_k = 16, int64_t dim_v = 12)
      : batch(b),
        q_len(q),
        head_dim_v(dim_v),
        values(test::bell(seed, b * kHeads * q * dim_k)),
        out(static_cast<size_t>(b * kHeads * q * dim_v), -12345.0f),
        head_dim_k(dim_k) {}

  PagedAttentionCall call() {
    PagedAttentionCall c;
    c.queries = ConstTensorView(values.data(), DType::f32, {batch, kHeads, q_len, head_dim_k});
    c.out = TensorView(out.data(), DType::f32, {batch, kHeads, q_len, head_dim_v});
    c.scale = 0.25f;
    return c;
  }

  int64_t batch, q_len, head_dim_v;
  std::vector<float> values, out;
  int64_t head_dim_k;
};

// Softmax attention of one query in double precision over the keys for which `sees` holds.
template <class Sees>
std::vector<double> naive(const Queries& queries, const LayerRows& rows, int64_t b, int64_t h,
                          int64_t j, Sees sees, double sink = -INFINITY) {
  const KvArrayShape& s = rows.shape;
  const int64_t kv = h / (kHeads / s.num_kv_heads);
  std::vector<double> scores;
  double max = sink;
  for (int64_t t = 0; t < rows.num_rows; ++t) {
    double score = -INFINITY;
    if (sees(t)) {
      score = 0;
      for (int64_t d = 0; d < s.head_dim_k; ++d) {
        const size_t at =
            static_cast<size_t>(((b * kHeads + h) * queries.q_len + j) * s.head_dim_k + d);
        score += double(queries.values[at]) *
                 element(rows.keys().at(b, kv) + (t * s.head_dim_k + d) * 4, DType::f32);
      }
      score *= 0.25;
    }
    scores.push_back(score);
    max = std::max(max, score);
  }
  std::vector<double> out(static_cast<size_t>(s.head_dim_v), 0);
  if (max == -INFINITY) return out;
  double sum = std::exp(sink - max);
  for (const double score : scores) sum += std::exp(score - max);
  for (int64_t t = 0; t < rows.num_rows; ++t) {
    for (int64_t d = 0; d < s.head_dim_v; ++d) {
      out[static_cast<size_t>(d)] +=
          std::exp(scores[static_cast<size_t>(t)] - max) / sum *
          element(rows.values().at(b, kv) + (t * s.head_dim_v + d) * 4, DType::f32);
    }
  }
  return out;
}

template <class Sees>
void expect_near_naive(const Queries& queries, const LayerRows& rows, Sees sees) {
  for (int64_t b = 0; b < queries.batch; ++b) {
    for (int64_t h = 0; h < kHeads; ++h) {
      for (int64_t j = 0; j < queries.q_len; ++j) {
        const std::vector<double> want =
            naive(queries, rows, b, h, j, [&](int64_t t) { return sees(b, h, j, t); });
        for (int64_t d = 0; d < queries.head_dim_v; ++d) {
          const auto at =
              static_cast<size_t>(((b * kHeads + h) * queries.q_len + j) * queries.head_dim_v + d);
          // f32 sums of a few hundred terms of size 4: far below 1e-5 each.
          ASSERT_NEAR(queries.out[at], want[static_cast<size_t>(d)], 2e-5)
              << "row " << b << " head " << h << " query " << j;
        }
      }
    }
  }
}

void expect_served(PagedKVCache& cache, const PagedAttentionCall& call) {
  const Result<bool> served = cache.paged_attention(call);
  ASSERT_TRUE(served.ok()) << served.status().to_string();
  ASSERT_TRUE(*served) << cache.last_bailout()->reason;
}

TEST(PagedAttention, MatchesPlainAttentionForEveryBlockSizeBatchAndQueryCount) {
  const LayerRows rows(kShape, 300, 1, 2);
  for (const int64_t q_len : {1, 2, 7, 300}) {
    Queries first(2, q_len);
    for (const int64_t block_size : {1, 5, 16, 64}) {
      PagedKVCacheOptions options;
      options.block_size = block_size;
      PagedKVCache cache = filled(rows, options);
      Queries queries(2, q_len);
      expect_served(cache, queries.call());
      if (block_size == 1) {
        expect_near_naive(queries, rows, [&](int64_t, int64_t, int64_t j, int64_t t) {
          return t <= 300 - q_len + j;
        });
        first = queries;
      }
      EXPECT_EQ(queries.out, first.out) << "the same bits for any block size";
    }
  }
}

TEST(PagedAttention, GatheredRowsGiveTheSameBits) {
  const LayerRows rows(kShape, 700, 1, 2);
  PagedKVCache cache = filled(rows);
  for (const int64_t q_len : {1, 9}) {
    Queries paged(2, q_len);
    Queries gathered(2, q_len);
    expect_served(cache, paged.call());
    PagedAttentionCall call = gathered.call();
    call.impl_override = PagedRoute::gather;
    expect_served(cache, call);
    EXPECT_EQ(paged.out, gathered.out);
  }
}

TEST(PagedAttention, OverTheFirstRowsGivesTheBitsOfACacheWithoutTheOthers) {
  const LayerRows rows(kShape, 700, 1, 2);
  PagedKVCache cache = filled(rows);
  for (const int64_t length : {1, 15, 16, 511, 513, 699, 700}) {
    PagedKVCache alone = make();
    ASSERT_TRUE(alone
                    .update_without_fetch(rows_of(rows.keys(), 0, length),
                                          rows_of(rows.values(), 0, length))
                    .ok());
    for (const PagedRoute route : {PagedRoute::paged, PagedRoute::gather}) {
      for (const int64_t q_len : {int64_t{1}, std::min<int64_t>(9, length)}) {
        Queries whole(2, q_len);
        Queries part(2, q_len);
        PagedAttentionCall call = part.call();
        call.kv_len = length;
        call.impl_override = route;
        expect_served(cache, call);
        expect_served(alone, whole.call());
        EXPECT_EQ(part.out, whole.out) << length << " rows, " << q_len << " queries";
      }
    }
  }
  for (const int64_t length : {int64_t{-1}, int64_t{2}, int64_t{701}}) {
    Queries queries(2, 3);
    PagedAttentionCall call = queries.call();
    call.kv_len = length;
    EXPECT_EQ(cache.paged_attention(call).status().code(), StatusCode::invalid_argument);
  }
}

TEST(PagedAttention, SaysBeforehandWhatItWouldServe) {
  PagedKVCacheOptions options;
  options.max_q_len = 4;
  PagedKVCache cache = make(options);
  Queries queries(2, 3);
  PagedAttentionCall call = queries.call();
  call.queries.data = nullptr;
  call.out.data = nullptr;
  call.kv_len = 10;
  EXPECT_FALSE(cache.would_serve(call).value()) << "no shape yet";
  ASSERT_TRUE(cache.prepare(kShape, 0, 10).ok());
  EXPECT_TRUE(cache.would_serve(call).value());
  call.kv_len = 2;
  EXPECT_EQ(cache.would_serve(call).status().code(), StatusCode::invalid_argument);
  call.kv_len = 10;
  call.queries.shape[2] = call.out.shape[2] = 5;
  EXPECT_FALSE(cache.would_serve(call).value()) << "more queries than max_q_len";
  call.queries.shape[1] = call.out.shape[1] = 3;
  EXPECT_EQ(cache.would_serve(call).status().code(), StatusCode::invalid_argument);
  EXPECT_TRUE(cache.paged_stats().paged_attention_bailouts_by_phase_reason.empty());
}

TEST(PagedAttention, ABatchRowIsIndependentOfItsBatch) {
  const LayerRows rows(kShape, 40, 1, 2);
  PagedKVCache both = filled(rows);
  Queries queries(2, 3);
  expect_served(both, queries.call());
  for (int64_t b = 0; b < 2; ++b) {
    PagedKVCache alone = make();
    ConstTensorView k = rows.keys();
    ConstTensorView v = rows.values();
    k.data = k.at(b);
    v.data = v.at(b);
    k.shape[0] = v.shape[0] = 1;
    ASSERT_TRUE(alone.update_without_fetch(k, v).ok());
    Queries single(1, 3);
    const size_t half = queries.values.size() / 2;
    single.values.assign(queries.values.begin() + b * int64_t(half),
                         queries.values.begin() + (b + 1) * int64_t(half));
    expect_served(alone, single.call());
    const size_t half_out = queries.out.size() / 2;
    EXPECT_EQ(single.out, std::vector<float>(queries.out.begin() + b * int64_t(half_out),
                                             queries.out.begin() + (b + 1) * int64_t(half_out)));
  }
}

TEST(PagedAttention, EqualScoresGiveTheMeanOfTheValidRowsWhateverLiesBehindThem) {
  for (const float poison : {std::nanf(""), 1e4f}) {
    for (const int64_t length : {1, 15, 16, 17, 31, 32, 33, 48}) {
      PagedKVCache cache = make();
      const LayerRows rows(kShape, length, 1, 2);
      const LayerRows bad = LayerRows::filled(kShape, 40, poison);
      ASSERT_TRUE(cache.update_without_fetch(rows.keys(), rows.values()).ok());
      ASSERT_TRUE(cache.update_without_fetch(bad.keys(), bad.values()).ok());
      cache.trim(40);
      Queries queries(2, 1);
      std::fill(queries.values.begin(), queries.values.end(), 0.0f);
      expect_served(cache, queries.call());
      expect_near_naive(queries, rows, [](int64_t, int64_t, int64_t, int64_t) { return true; });
      PagedAttentionCall gathered = queries.call();
      gathered.impl_override = PagedRoute::gather;
      expect_served(cache, gathered);
      expect_near_naive(queries, rows, [](int64_t, int64_t, int64_t, int64_t) { return true; });
    }
  }
}

TEST(PagedAttention, AWindowCountsFromEachQuery) {
  const LayerRows rows(kShape, 60, 1, 2);
  PagedKVCache cache = filled(rows);
  for (const int64_t window : {1, 5, 59, 1000}) {
    Queries queries(2, 9);
    PagedAttentionCall call = queries.call();
    call.sliding_window = window;
    expect_served(cache, call);
    expect_near_naive(queries, rows, [&](int64_t, int64_t, int64_t j, int64_t t) {
      const int64_t p = 60 - 9 + j;
      return t <= p && t > p - window;
    });
  }
  PagedKVCacheOptions options;
  options.sliding_window = 4;
  PagedKVCache fixed = filled(rows, options);
  Queries queries(2, 2);
  PagedAttentionCall call = queries.call();
  call.sliding_window = 50;
  expect_served(fixed, call);
  expect_near_naive(queries, rows, [&](int64_t, int64_t, int64_t j, int64_t t) {
    return t <= 58 + j && t > 58 + j - 4;
  });
}

TEST(PagedAttention, AMaskOfTheCacheGivesTheBitsOfTheCausalKernel) {
  const LayerRows rows(kShape, 50, 1, 2);
  PagedKVCache cache = filled(rows);
  for (const std::optional<int64_t> window :
       {std::optional<int64_t>(), std::optional<int64_t>(6)}) {
    for (const MaskType type : {MaskType::boolean, MaskType::f32, MaskType::f16, MaskType::bf16}) {
      if (window && type != MaskType::boolean) continue;
      // The mask that the cache hands out before the rows of the queries are written.
      const CausalMask mask = window ? make_causal_mask(7, 43, true, window).value()
                                     : make_mask_array(7, 50, type).value();
      Queries plain(2, 7);
      Queries masked(2, 7);
      PagedAttentionCall call = plain.call();
      call.sliding_window = window;
      expect_served(cache, call);
      call = masked.call();
      call.mask = {AttentionMask::Kind::array, mask_view(mask)};
      expect_served(cache, call);
      EXPECT_EQ(plain.out, masked.out);
    }
  }
}

TEST(PagedAttention, TakesMasksOfEveryShape) {
  const LayerRows rows(kShape, 45, 1, 2);
  PagedKVCache cache = filled(rows);
  const int64_t q_len = 3;
  for (const auto& shape :
       {std::array<int64_t, 3>{1, 1, 1}, {2, 1, 3}, {1, 4, 3}, {2, 4, 3}, {2, 1, 1}}) {
    const int64_t nb = shape[0];
    const int64_t nh = shape[1];
    const int64_t nq = shape[2];
    std::vector<std::byte> data(static_cast<size_t>(nb * nh * nq * 45));
    for (size_t i = 0; i < data.size(); ++i) data[i] = std::byte(test::below(77, i, 3) == 0);
    MaskView view;
    view.data = data.data();
    view.rank = 4;
    view.shape = {nb, nh, nq, 45};
    view.stride = {nh * nq * 45, nq * 45, 45, 1};
    Queries queries(2, q_len);
    PagedAttentionCall call = queries.call();
    call.mask = {AttentionMask::Kind::array, view};
    expect_served(cache, call);
    const auto shown = [&](int64_t b, int64_t h, int64_t j, int64_t t) {
      const int64_t at = (nb == 1 ? 0 : b) * view.stride[0] + (nh == 1 ? 0 : h) * view.stride[1] +
                         (nq == 1 ? 0 : j) * view.stride[2] + t;
      return data[static_cast<size_t>(at)] != std::byte{0};
    };
    expect_near_naive(queries, rows, shown);
    call.sliding_window = 20;
    expect_served(cache, call);
    expect_near_naive(queries, rows, [&](int64_t b, int64_t h, int64_t j, int64_t t) {
      return shown(b, h, j, t) && t > 45 - q_len + j - 20;
    });
  }
}

TEST(PagedAttention, ARowThatSeesNothingIsZero) {
  const LayerRows rows(kShape, 20, 1, 2);
  PagedKVCache cache = filled(rows);
  std::vector<float> mask(4 * 20, 0.0f);
  for (size_t t = 0; t < 20; ++t) mask[20 + t] = -INFINITY;  // query 1 sees nothing
  MaskView view;
  view.data = reinterpret_cast<const std::byte*>(mask.data());
  view.type = MaskType::f32;
  view.rank = 2;
  view.shape = {4, 20};
  view.stride = {20, 1};
  Queries queries(2, 4);
  PagedAttentionCall call = queries.call();
  call.mask = {AttentionMask::Kind::array, view};
  expect_served(cache, call);
  expect_near_naive(queries, rows, [](int64_t, int64_t, int64_t j, int64_t) { return j != 1; });
}

TEST(PagedAttention, SinksAndFullMasksReachTheKernel) {
  const LayerRows rows(kShape, 20, 1, 2);
  PagedKVCache cache = filled(rows);
  Queries full(2, 4);
  PagedAttentionCall call = full.call();
  call.mask.kind = AttentionMask::Kind::full;
  expect_served(cache, call);
  expect_near_naive(full, rows, [](int64_t, int64_t, int64_t, int64_t) { return true; });

  const std::vector<float> sinks = {0.5f, -1.0f, 2.0f, 0.0f};
  const std::vector<std::byte> shown(kHeads * 20, std::byte{1});
  MaskView per_head;
  per_head.data = shown.data();
  per_head.rank = 4;
  per_head.shape = {1, kHeads, 1, 20};
  per_head.stride = {kHeads * 20, 20, 20, 1};
  for (const bool masked : {false, true}) {
    Queries queries(2, 1);
    call = queries.call();
    call.sinks = sinks;
    if (masked) call.mask = {AttentionMask::Kind::array, per_head};
    expect_served(cache, call);
    for (int64_t b = 0; b < 2; ++b) {
      for (int64_t h = 0; h < kHeads; ++h) {
        const auto want = naive(
            queries, rows, b, h, 0, [](int64_t) { return true; }, sinks[static_cast<size_t>(h)]);
        EXPECT_NEAR(queries.out[static_cast<size_t>((b * kHeads + h) * 12)], want[0], 2e-5);
      }
    }
  }
}

TEST(PagedAttention, DeclinesByNameAndPhase) {
  PagedKVCache cache = make();
  Queries queries(2, 1);
  PagedAttentionCall call = queries.call();
  call.phase = PagedPhase::ar_decode;
  EXPECT_FALSE(cache.paged_attention(call).value());
  EXPECT_EQ(cache.last_bailout()->reason, "empty_cache");
  EXPECT_EQ(cache.attend(call).code(), StatusCode::unsupported);
  const LayerRows rows(kShape, 20, 1, 2);
  ASSERT_TRUE(cache.update_without_fetch(rows.keys(), rows.values()).ok());
  Queries none(2, 0);
  EXPECT_FALSE(cache.paged_attention(none.call()).value());
  const std::vector<float> bias(20, 0.125f);
  MaskView view;
  view.data = reinterpret_cast<const std::byte*>(bias.data());
  view.type = MaskType::f32;
  view.rank = 2;
  view.shape = {1, 20};
  view.stride = {20, 1};
  call.mask = {AttentionMask::Kind::array, view};
  EXPECT_FALSE(cache.paged_attention(call).value());
  EXPECT_EQ(cache.paged_stats().paged_attention_bailouts_by_phase_reason,
            (PagedCounts{{"ar_decode:empty_cache", 2},
                         {"unknown:q_len_invalid", 1},
                         {"ar_decode:unsupported_mask", 1}}));
  EXPECT_EQ(queries.out[0], -12345.0f) << "nothing is written";
}

TEST(PagedAttention, AMaskThatAddsNumbersIsServedByTheFallback) {
  const LayerRows rows(kShape, 40, 1, 2);
  std::vector<std::string> told;
  PagedKVCacheOptions options;
  options.on_fallback = [&](const std::string& what) { told.push_back(what); };
  PagedKVCache cache = filled(rows, options);
  // Per head a slope, as positions are told by some models; causal; key 5 hidden; window 30.
  std::vector<float> bias(size_t(kHeads * 6 * 40));
  const auto bias_of = [](int64_t h, int64_t j, int64_t t) {
    return t > 34 + j || t == 5 ? -INFINITY : float(t - 34 - j) / float(4 << h);
  };
  for (int64_t h = 0; h < kHeads; ++h) {
    for (int64_t j = 0; j < 6; ++j) {
      for (int64_t t = 0; t < 40; ++t) bias[size_t((h * 6 + j) * 40 + t)] = bias_of(h, j, t);
    }
  }
  MaskView view{reinterpret_cast<const std::byte*>(bias.data()),
                MaskType::f32,
                4,
                {1, kHeads, 6, 40},
                {0, 6 * 40, 40, 1}};
  const std::vector<float> sinks = {0.5f, -1, 2, 0};
  for (const bool has_sinks : {false, true}) {
    Queries queries(2, 6);
    PagedAttentionCall call = queries.call();
    call.mask = {AttentionMask::Kind::array, view};
    call.sliding_window = 30;
    call.phase = PagedPhase::decode_verify;
    if (has_sinks) call.sinks = sinks;
    EXPECT_FALSE(cache.paged_attention(call).value());
    ASSERT_TRUE(cache.attend(call).ok());
    for (int64_t b = 0; b < 2; ++b) {
      for (int64_t h = 0; h < kHeads; ++h) {
        for (int64_t j = 0; j < 6; ++j) {
          // exp(s + bias) = exp(s) times a weight: the same sums, written another way.
          const auto s = [&](int64_t t) {
            double dot = 0;
            for (int64_t d = 0; d < 16; ++d) {
              dot += double(queries.values[size_t(((b * kHeads + h) * 6 + j) * 16 + d)]) *
                     element(rows.keys().at(b, h / 2) + (t * 16 + d) * 4, DType::f32);
            }
            return std::exp(0.25 * dot) * std::exp(double(bias_of(h, j, t)));
          };
          std::vector<double> sums(12, 0);
          double total = has_sinks ? std::exp(double(sinks[size_t(h)])) : 0;
          for (int64_t t = std::max<int64_t>(0, 34 + j - 29); t < 40; ++t) {
            const double weight = s(t);
            total += weight;
            for (int64_t d = 0; d < 12; ++d) {
              sums[size_t(d)] +=
                  weight * element(rows.values().at(b, h / 2) + (t * 12 + d) * 4, DType::f32);
            }
          }
          for (int64_t d = 0; d < 12; ++d) {
            ASSERT_NEAR(queries.out[size_t(((b * kHeads + h) * 6 + j) * 12 + d)],
                        sums[size_t(d)] / total, 1e-6);
          }
        }
      }
    }
  }
  PagedStats stats = cache.paged_stats();
  EXPECT_EQ(stats.paged_attention_bailouts_by_phase_reason,
            (PagedCounts{{"decode_verify:unsupported_mask", 4}}));
  EXPECT_EQ(stats.decode_dense_fallback_calls, 2);
  EXPECT_EQ(stats.paged_attention_calls, 0);
  EXPECT_FALSE(stats.route.has_value());
  ASSERT_EQ(told.size(), 1U);
  EXPECT_NE(told[0].find("the mask adds numbers"), std::string::npos);

  // A query that sees nothing is zeros; what does not fit is refused and not written.
  std::fill(bias.begin(), bias.end(), -INFINITY);
  bias[0] = 0.5f;
  Queries none(2, 6);
  PagedAttentionCall call = none.call();
  call.mask = {AttentionMask::Kind::array, view};
  ASSERT_TRUE(cache.attend(call).ok());
  EXPECT_NE(none.out[0], 0.0f);
  EXPECT_TRUE(std::all_of(none.out.begin() + 12, none.out.begin() + kHeads * 6 * 12,
                          [](float x) { return x == 0.0f; }));
  Queries bad(2, 6);
  call = bad.call();
  call.mask = {AttentionMask::Kind::array, view};
  call.queries.stride[3] = 2;
  EXPECT_EQ(cache.attend(call).code(), StatusCode::invalid_argument);
  call.queries.stride[3] = 1;
  call.sinks = std::span(sinks).first(2);
  EXPECT_EQ(cache.attend(call).code(), StatusCode::invalid_argument);
  EXPECT_EQ(bad.out[0], -12345.0f);
  options.forbid_dense_fallback = true;
  PagedKVCache strict = filled(rows, options);
  EXPECT_EQ(strict.attend(call).code(), StatusCode::unsupported);
}

TEST(PagedAttention, AQueryLimitDeclinesUnlessPartitioned) {
  const LayerRows rows(kShape, 20, 1, 2);
  std::vector<std::string> told;
  PagedKVCacheOptions options;
  options.max_q_len = 1;
  options.on_fallback = [&](const std::string& what) { told.push_back(what); };
  PagedKVCache cache = filled(rows, options);
  Queries queries(2, 4);
  PagedAttentionCall call = queries.call();
  call.phase = PagedPhase::prefill;
  EXPECT_FALSE(cache.paged_attention(call).value());
  EXPECT_EQ(cache.last_bailout()->max_q_len, 1);
  EXPECT_EQ(cache.last_bailout()->q_len, 4);
  EXPECT_EQ(cache.last_bailout()->offset, 20);
  ASSERT_TRUE(cache.attend(call).ok());
  ASSERT_TRUE(cache.attend(call).ok());
  const PagedStats stats = cache.paged_stats();
  EXPECT_EQ(stats.paged_attention_bailouts_by_phase_reason,
            (PagedCounts{{"prefill:q_len_gt_max", 3}}));
  EXPECT_EQ(stats.prefill_dense_fallback_calls, 2);
  EXPECT_EQ(stats.dense_fallback_calls, 2);
  EXPECT_EQ(stats.active_array_calls, 2);
  EXPECT_EQ(stats.paged_attention_calls, 0);
  ASSERT_EQ(told.size(), 1U);
  EXPECT_NE(told[0].find("max_q_len 1"), std::string::npos);

  options.partitioned = true;
  options.partition_threshold = 1;
  PagedKVCache partitioned = filled(rows, options);
  Queries other(2, 4);
  call = other.call();
  call.phase = PagedPhase::prefill;
  expect_served(partitioned, call);
  EXPECT_EQ(other.out, queries.out) << "the fallback gave the same bits";
  EXPECT_EQ(partitioned.paged_stats().partitioned_paged_calls, 1);
  EXPECT_EQ(partitioned.paged_stats().prefill_partitioned_paged_calls, 1);
  EXPECT_EQ(partitioned.paged_stats().paged_attention_large_q_path, "partitioned_paged");

  options.partitioned = false;
  options.forbid_dense_fallback = true;
  PagedKVCache strict = filled(rows, options);
  EXPECT_EQ(strict.attend(call).code(), StatusCode::unsupported);
}

TEST(PagedAttention, ARequestKeepsTheRouteOfItsFirstCall) {
  int told = 0;
  PagedKVCacheOptions options;
  options.on_fallback = [&](const std::string&) { ++told; };
  PagedKVCache cache = filled(LayerRows(kShape, 20, 1, 2), options);
  EXPECT_FALSE(cache.paged_stats().route.has_value());
  Queries queries(2, 1);
  PagedAttentionCall call = queries.call();
  expect_served(cache, call);
  EXPECT_EQ(cache.paged_stats().route, "paged");
  EXPECT_EQ(cache.paged_stats().route_offset, 20);
  call.impl_override = PagedRoute::gather;
  call.phase = PagedPhase::decode_verify;
  expect_served(cache, call);
  EXPECT_EQ(cache.paged_stats().route, "paged");
  EXPECT_EQ(told, 1);
  EXPECT_EQ(cache.paged_stats().paged_attention_bailouts_by_phase_reason,
            (PagedCounts{{"decode_verify:route_latched", 1}}));
  const LayerRows one(kShape, 1, 3, 4);
  ASSERT_TRUE(cache.update_without_fetch(one.keys(), one.values()).ok());
  cache.trim(1);
  EXPECT_TRUE(cache.paged_stats().route.has_value()) << "a token and a trim keep it";
  const LayerRows two(kShape, 2, 3, 4);
  ASSERT_TRUE(cache.update_without_fetch(two.keys(), two.values(), PagedPhase::decode_verify).ok());
  EXPECT_TRUE(cache.paged_stats().route.has_value()) << "so does a verify step";
  ASSERT_TRUE(cache.update_without_fetch(two.keys(), two.values()).ok());
  EXPECT_FALSE(cache.paged_stats().route.has_value()) << "a prompt resets it";
  expect_served(cache, queries.call());
  ASSERT_TRUE(cache.update_without_fetch(one.keys(), one.values(), PagedPhase::prefill).ok());
  EXPECT_FALSE(cache.paged_stats().route.has_value());
}

TEST(PagedAttention, RefusesShapesThatDoNotFitAndWritesNothing) {
  PagedKVCache cache = filled(LayerRows(kShape, 20, 1, 2));
  const auto refused = [&](const PagedAttentionCall& call) {
    return cache.paged_attention(call).status().code() == StatusCode::invalid_argument;
  };
  Queries queries(2, 2);
  PagedAttentionCall call = queries.call();
  call.queries.shape[0] = call.out.shape[0] = 1;
  EXPECT_TRUE(refused(call));
  call = queries.call();
  call.queries.shape[1] = call.out.shape[1] = 3;
  EXPECT_TRUE(refused(call));
  call = queries.call();
  call.out.shape[2] = 1;
  EXPECT_TRUE(refused(call));
  call = queries.call();
  call.queries.shape[3] = 8;
  EXPECT_TRUE(refused(call));
  call = queries.call();
  call.sliding_window = 0;
  EXPECT_TRUE(refused(call));
  call = queries.call();
  call.scale = std::nanf("");
  EXPECT_TRUE(refused(call));
  Queries many(2, 21);
  EXPECT_TRUE(refused(many.call()));
  const CausalMask mask = make_mask_array(2, 19, MaskType::boolean).value();
  call = queries.call();
  call.mask = {AttentionMask::Kind::array, mask_view(mask)};
  EXPECT_TRUE(refused(call));
  for (const float x : queries.out) ASSERT_EQ(x, -12345.0f);
  EXPECT_EQ(cache.paged_stats().paged_attention_calls, 0);
}

TEST(PagedAttention, ForksAttendToTheirOwnRows) {
  const LayerRows rows(kShape, 20, 1, 2);
  PagedKVCache a = filled(rows);
  PagedKVCache b = a.fork();
  const LayerRows more_a(kShape, 1, 3, 4);
  const LayerRows more_b(kShape, 1, 5, 6);
  ASSERT_TRUE(a.update_without_fetch(more_a.keys(), more_a.values()).ok());
  ASSERT_TRUE(b.update_without_fetch(more_b.keys(), more_b.values()).ok());
  Queries qa(2, 1);
  Queries qb(2, 1);
  expect_served(a, qa.call());
  expect_served(b, qb.call());
  const auto all = [](int64_t, int64_t, int64_t, int64_t) { return true; };
  expect_near_naive(qa, test::join(rows, more_a), all);
  expect_near_naive(qb, test::join(rows, more_b), all);
}

TEST(PagedAttention, FollowsTheQueriesStrides) {
  const LayerRows rows(kShape, 20, 1, 2);
  PagedKVCache cache = filled(rows);
  Queries plain(2, 3);
  expect_served(cache, plain.call());
  // [B, q, H, D] in memory, as models lay their projections out.
  std::vector<float> q(plain.values.size());
  std::vector<float> out(plain.out.size());
  PagedAttentionCall call = plain.call();
  call.queries = ConstTensorView(q.data(), DType::f32, {2, 3, kHeads, 16});
  call.out = TensorView(out.data(), DType::f32, {2, 3, kHeads, 12});
  for (int64_t i = 0; i < 2 * 3 * kHeads; ++i) {
    const int64_t b = i / (3 * kHeads);
    const int64_t j = i / kHeads % 3;
    const int64_t h = i % kHeads;
    std::copy_n(&plain.values[static_cast<size_t>(((b * kHeads + h) * 3 + j) * 16)], 16,
                &q[static_cast<size_t>(i * 16)]);
  }
  std::swap(call.queries.shape[1], call.queries.shape[2]);
  std::swap(call.queries.stride[1], call.queries.stride[2]);
  std::swap(call.out.shape[1], call.out.shape[2]);
  std::swap(call.out.stride[1], call.out.stride[2]);
  expect_served(cache, call);
  for (int64_t i = 0; i < 2 * 3 * kHeads; ++i) {
    const int64_t b = i / (3 * kHeads);
    const int64_t j = i / kHeads % 3;
    const int64_t h = i % kHeads;
    for (int64_t d = 0; d < 12; ++d) {
      EXPECT_EQ(out[static_cast<size_t>(i * 12 + d)],
                plain.out[static_cast<size_t>(((b * kHeads + h) * 3 + j) * 12 + d)]);
    }
  }
}

}  // namespace
}  // namespace kvik
