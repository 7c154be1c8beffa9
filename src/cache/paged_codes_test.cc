// Rows that are encoded already, written into a paged cache.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "kvik/backend/cpu_backend.h"
#include "kvik/cache/paged_cache.h"
#include "kvik/format/packed_code.h"
#include "support/random.h"

namespace kvik {
namespace {

using testing::HasSubstr;

const KvSpec kSpec{
    2,
    32,
    64,
    {{KvCode::tqk_q4_0, KvCode::tcq3}, {KvCode::f16, KvCode::q8}, {KvCode::bf16, KvCode::f32}}};

PagedCache make() {
  PagedCacheOptions options;
  options.spec = kSpec;
  return PagedCache::create(options, make_cpu_backend({}).value()).value();
}

// The bytes of num_tokens tokens' rows as one cache stores them.
struct Codes {
  std::vector<std::byte> k, v;
};

Codes read(const KvView& view, int num_tokens) {
  Codes codes;
  for (int t = 0; t < num_tokens; ++t) {
    const int64_t page = view.page_ids[size_t(t / view.block_size)];
    for (int head = 0; head < view.num_kv_heads; ++head) {
      std::vector<std::byte> k(size_t(stored_row_bytes(view.format.k, view.head_dim_k)));
      std::vector<std::byte> v(size_t(stored_row_bytes(view.format.v, view.head_dim_v)));
      const std::byte* k_from = k_tile(view, page, t % view.block_size / 16, head);
      const std::byte* v_from = v_tile(view, page, t % view.block_size / 16, head);
      std::vector<float> row(64);
      const auto plain = [&](KvCode code, std::vector<std::byte>& to, int head_dim) {
        for (int d = 0; d < head_dim; ++d) {
          store_float(dtype_of(code), to.data() + d * kv_code_bytes(code), row[size_t(d)]);
        }
      };
      if (is_packed(view.format.k)) {
        export_k_row(view.format.k, k_from, t % 16, k, view.head_dim_k);
      } else {
        decode_k_row(view.format.k, k_from, t % 16, row.data(), view.head_dim_k);
        plain(view.format.k, k, view.head_dim_k);
      }
      if (is_packed(view.format.v)) {
        export_v_row(view.format.v, v_from, t % 16, v, view.head_dim_v);
      } else {
        decode_v_row(view.format.v, v_from, t % 16, row.data(), view.head_dim_v);
        plain(view.format.v, v, view.head_dim_v);
      }
      codes.k.insert(codes.k.end(), k.begin(), k.end());
      codes.v.insert(codes.v.end(), v.begin(), v.end());
    }
  }
  return codes;
}

constexpr int kTokens = 21;

std::vector<Codes> encoded_by_a_cache() {
  PagedCache cache = make();
  Sequence sequence = cache.new_sequence();
  const AppendRequest request{&sequence, kTokens};
  AppendPlan plan = cache.reserve({&request, 1}).value();
  const std::vector<float> k = test::bell(1, kTokens * 2 * 32);
  const std::vector<float> v = test::bell(2, kTokens * 2 * 64);
  std::vector<Codes> layers;
  for (int layer = 0; layer < kSpec.num_layers(); ++layer) {
    cache.write(plan, layer, {k.data(), DType::f32, {kTokens, 2, 32}},
                {v.data(), DType::f32, {kTokens, 2, 64}});
    layers.push_back(read(cache.view(plan, layer), kTokens));
  }
  EXPECT_TRUE(cache.commit(std::move(plan)).ok());
  return layers;
}

TEST(PagedCodes, AreStoredAsTheyAre) {
  const std::vector<Codes> want = encoded_by_a_cache();
  PagedCache cache = make();
  Sequence other = cache.new_sequence();
  Sequence sequence = cache.new_sequence();
  for (const int count : {5, 16}) {
    // Beside a sequence that takes pages too, so that tables are no identity.
    const std::vector<AppendRequest> requests = {{&other, 16}, {&sequence, count}};
    AppendPlan plan = cache.reserve(requests).value();
    const auto first = size_t(sequence.num_cached());
    for (int layer = 0; layer < kSpec.num_layers(); ++layer) {
      const Codes& codes = want[size_t(layer)];
      const auto part = [&](const std::vector<std::byte>& rows) {
        const size_t token = rows.size() / kTokens;
        std::vector<std::byte> both(rows.begin(), rows.begin() + int64_t(16 * token));
        both.insert(both.end(), rows.begin() + int64_t(first * token),
                    rows.begin() + int64_t((first + size_t(count)) * token));
        return both;
      };
      cache.write_codes(plan, layer, part(codes.k), part(codes.v));
    }
    ASSERT_TRUE(cache.commit(std::move(plan)).ok());
  }
  const AppendRequest request{&sequence, 0};
  const AppendPlan plan = cache.reserve({&request, 1}).value();
  for (int layer = 0; layer < kSpec.num_layers(); ++layer) {
    const Codes got = read(cache.view(plan, layer), kTokens);
    EXPECT_EQ(got.k, want[size_t(layer)].k);
    EXPECT_EQ(got.v, want[size_t(layer)].v);
  }
}

TEST(PagedCodes, ThatDoNotFitStopTheStep) {
  const std::vector<Codes> good = encoded_by_a_cache();
  PagedCache cache = make();
  Sequence sequence = cache.new_sequence();
  const auto refused = [&](int layer, const Codes& codes, const char* text) {
    const AppendRequest request{&sequence, kTokens};
    AppendPlan plan = cache.reserve({&request, 1}).value();
    for (int i = 0; i < kSpec.num_layers(); ++i) {
      if (i != layer) cache.write_codes(plan, i, good[size_t(i)].k, good[size_t(i)].v);
    }
    cache.write_codes(plan, layer, codes.k, codes.v);
    const Status status = cache.commit(std::move(plan));
    EXPECT_EQ(status.code(), StatusCode::invalid_argument);
    EXPECT_THAT(status.message(), HasSubstr(text));
    EXPECT_EQ(sequence.num_cached(), 0);
    EXPECT_EQ(cache.stats().used_blocks, 0);
  };
  refused(3, good[0], "3 layers");
  Codes codes = good[1];
  codes.v.pop_back();
  refused(1, codes, "write_codes of layer 1: v has");
  refused(0, good[1], "k has");
  codes = good[1];
  const float nan = NAN;
  std::memcpy(codes.v.data() + 7 * 68 + 64, &nan, 4);  // 64 codes, then the scale
  refused(1, codes, "v row 7 stands for values that are not finite");
}

}  // namespace
}  // namespace kvik
