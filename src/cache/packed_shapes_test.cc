// Packed rows in shapes and places that are rare: many heads, pages with gaps between them and in
// the table, positions near 100,000, keys with a few large channels.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <optional>

#include "kvik/attention/reference.h"
#include "kvik/cache/cache_set.h"
#include "kvik/format/key_frame.h"
#include "kvik/format/row_codec.h"
#include "support/attention_case.h"

namespace kvik {
namespace {

using test::bell;
using test::Outputs;
using test::Queries;

constexpr int kHeadDim = 64;

struct Rows {
  std::vector<float> k, v;  // [token][KV head][dim]
};

// A cache of one layer with one sequence; rows are appended in the order they are given.
class OneLayer {
 public:
  OneLayer(KvFormat format, int num_kv_heads, const PagedCacheOptions& more = {},
           int num_threads = 1)
      : num_kv_heads_(num_kv_heads),
        backend_(make_cpu_backend({.num_threads = num_threads}).value()) {
    PagedCacheOptions options = more;
    options.spec.num_kv_heads = num_kv_heads;
    options.spec.head_dim_k = options.spec.head_dim_v = kHeadDim;
    options.spec.layers = {format};
    cache_.emplace(PagedCache::create(options, backend_).value());
    sequence_ = cache_->new_sequence();
  }

  PagedCache& cache() { return *cache_; }
  Sequence& sequence() { return sequence_; }
  Backend& backend() { return *backend_; }

  void append(Sequence& sequence, const float* k, const float* v, int count) {
    const AppendRequest request{&sequence, count};
    AppendPlan plan = cache_->reserve({&request, 1}).value();
    cache_->write(plan, 0, {k, DType::f32, {count, num_kv_heads_, kHeadDim}},
                  {v, DType::f32, {count, num_kv_heads_, kHeadDim}});
    ASSERT_TRUE(cache_->commit(std::move(plan)).ok());
  }
  void append(const Rows& rows) {
    append(sequence_, rows.k.data(), rows.v.data(),
           static_cast<int>(rows.k.size()) / num_kv_heads_ / kHeadDim);
  }

  // What the queries, the newest of `sequence`, read; `change` may replace the view.
  Outputs read(const Sequence& sequence, const Queries& queries, const AttentionParams& params,
               std::vector<double>* reference = nullptr,
               const std::function<void(KvView&)>& change = nullptr) {
    const AppendRequest request{const_cast<Sequence*>(&sequence), 0};
    const AppendPlan plan = cache_->reserve({&request, 1}).value();
    Segment segment{.view = cache_->view(plan, 0)};
    if (change) change(segment.view);
    Outputs outputs;
    const AttentionCall call = test::make_call(queries, {&segment, 1}, params, outputs);
    const Status status = attend(*backend_, call);
    EXPECT_TRUE(status.ok()) << status.to_string();
    if (reference != nullptr) *reference = reference_attention(call)->out;
    return outputs;
  }
  Outputs read(const Queries& queries, std::vector<double>* reference = nullptr) {
    return read(sequence_, queries, {.scale = 0.2F}, reference);
  }

 private:
  int num_kv_heads_;
  std::shared_ptr<Backend> backend_;
  std::optional<PagedCache> cache_;
  Sequence sequence_;
};

Rows rows_of(uint64_t seed, int count, int num_kv_heads) {
  const int64_t size = int64_t{count} * num_kv_heads * kHeadDim;
  return {bell(seed, size), bell(seed + 1, size)};
}

constexpr KvFormat kPacked[] = {{KvCode::tcq4, KvCode::tcq3},
                                {KvCode::tq4, KvCode::tq8},
                                {KvCode::q8, KvCode::q4},
                                {KvCode::tqk_q4_0, KvCode::tqv_q3_0}};

TEST(PackedShapes, EachOf512KvHeadsIsReadAsIfItWereAlone) {
  constexpr int kHeads = 512;
  constexpr int kTokens = 40;
  const Rows rows = rows_of(1, kTokens, kHeads);
  Queries queries(kHeads, kHeadDim);
  queries.add(5, 2);
  for (const KvFormat& format : kPacked) {
    OneLayer all(format, kHeads, {}, 2);
    all.append(rows);
    const Outputs got = all.read(queries);
    for (const int head : {0, 1, 127, 128, 255, 256, 510, 511}) {
      SCOPED_TRACE(std::string(kv_code_name(format.k)) + ", head " + std::to_string(head));
      const auto of_head = [&](const std::vector<float>& from, int count) {
        std::vector<float> taken;
        for (int t = 0; t < count; ++t) {
          const float* row = from.data() + (int64_t{t} * kHeads + head) * kHeadDim;
          taken.insert(taken.end(), row, row + kHeadDim);
        }
        return taken;
      };
      OneLayer alone(format, 1);
      alone.append({of_head(rows.k, kTokens), of_head(rows.v, kTokens)});
      Queries own(1, kHeadDim);
      own.add(of_head(queries.values, 2));
      EXPECT_EQ(of_head(got.out, 2), alone.read(own).out);
    }
  }
}

// Pages that lie apart in memory, in another order than in the table.
TEST(PackedShapes, PagesWithGapsInMemoryGiveTheSameBits) {
  const Rows rows = rows_of(11, 700, 2);
  Queries queries(4, kHeadDim);
  queries.add(13, 3);
  for (const KvFormat& format : kPacked) {
    PagedCacheOptions options;
    options.block_size = 32;
    OneLayer layer(format, 2, options);
    layer.append(rows);
    const Outputs expected = layer.read(queries);
    std::vector<std::byte> memory;
    std::vector<int32_t> pages;
    const Outputs got =
        layer.read(layer.sequence(), queries, {.scale = 0.2F}, nullptr, [&](KvView& view) {
          const auto count = static_cast<int64_t>(view.page_ids.size());
          const int64_t k_page = view.k_stride[1] * view.num_kv_heads;
          const int64_t v_page = view.v_stride[1] * view.num_kv_heads;
          // K and V of a page side by side, then a gap.
          const int64_t stride = k_page + v_page + 3 * kLineBytes;
          memory.assign(static_cast<size_t>((count + 2) * stride + kLineBytes), std::byte{0xff});
          auto* base = memory.data();
          base += (kLineBytes - reinterpret_cast<uintptr_t>(base) % kLineBytes) % kLineBytes;
          for (int64_t i = 0; i < count; ++i) {
            const int64_t page = count + 1 - i;
            std::memcpy(base + page * stride,
                        view.k + view.page_ids[static_cast<size_t>(i)] * view.k_stride[0],
                        static_cast<size_t>(k_page));
            std::memcpy(base + page * stride + k_page,
                        view.v + view.page_ids[static_cast<size_t>(i)] * view.v_stride[0],
                        static_cast<size_t>(v_page));
            pages.push_back(static_cast<int32_t>(page));
          }
          view.k = base;
          view.v = base + k_page;
          view.k_stride[0] = view.v_stride[0] = stride;
          view.num_pages = static_cast<int>(count) + 2;
          view.page_ids = pages;
          view.step = {};  // the test's own memory
        });
    EXPECT_TRUE(got.same_bits(expected)) << kv_code_name(format.k);
  }
}

// A table whose page ids jump and go down, as after other sequences have come and gone.
TEST(PackedShapes, ATableWithGapsGivesTheSameBits) {
  const Rows rows = rows_of(21, 300, 2);
  Queries queries(4, kHeadDim);
  queries.add(23, 3);
  for (const KvFormat& format : kPacked) {
    OneLayer straight(format, 2);
    straight.append(rows);
    const Outputs expected = straight.read(queries);

    OneLayer layer(format, 2);
    Sequence others[3] = {layer.cache().new_sequence(), layer.cache().new_sequence(),
                          layer.cache().new_sequence()};
    for (int i = 0; i < 4; ++i) {  // blocks taken in turns
      for (Sequence& other : others) layer.append(other, rows.k.data(), rows.v.data(), 16);
    }
    others[1] = layer.cache().new_sequence();  // frees every third page
    others[0] = layer.cache().new_sequence();
    for (int done = 0; done < 300; done += 50) {
      const auto at = static_cast<size_t>(done) * 2 * kHeadDim;
      layer.append(layer.sequence(), rows.k.data() + at, rows.v.data() + at, 50);
      layer.append(others[2], rows.k.data(), rows.v.data(), 20);
    }
    const auto ids = layer.sequence().table().page_ids();
    int jumps = 0;
    for (size_t i = 1; i < ids.size(); ++i) jumps += ids[i] != ids[i - 1] + 1 ? 1 : 0;
    EXPECT_GT(jumps, 5);
    EXPECT_TRUE(layer.read(queries).same_bits(expected)) << kv_code_name(format.k);
  }
}

// Turned by RoPE to `position`, halves paired.
void turn(std::vector<float>& row, const std::vector<double>& frequencies, int position) {
  const size_t n = frequencies.size();
  for (size_t p = 0; p < n; ++p) {
    const double angle = position * frequencies[p];
    const double x = row[p];
    const double y = row[p + n];
    row[p] = static_cast<float>(x * std::cos(angle) - y * std::sin(angle));
    row[p + n] = static_cast<float>(x * std::sin(angle) + y * std::cos(angle));
  }
}

// 256 keys and 8 queries at their end, all turned to positions from `begin` on; read through a
// cache that counts from 0. Keys have a vector in common, which frames take away.
std::vector<float> outputs_at(int begin, bool is_framed, std::vector<double>* exact) {
  constexpr int kTokens = 256;
  constexpr int kWindow = 248;
  std::vector<double> frequencies;
  for (int p = 0; p < kHeadDim / 2; ++p) frequencies.push_back(std::pow(1e4, -p / 32.0));
  const std::vector<float> common = bell(31, kHeadDim);
  PagedCacheOptions options;
  options.window = 512;
  options.max_blocks = 1000;
  if (is_framed) {
    LayerKeyCalibration layer{.frequencies = frequencies,
                              .centre = common,
                              .diagonal = std::vector<float>(kHeadDim, 1.0F)};
    for (float& x : layer.centre) x *= 3;
    options.spec.key_calibration =
        std::make_shared<const KeyCalibration>(KeyCalibration{.frame = 128, .layers = {layer}});
  }
  OneLayer layer({KvCode::tq8, KvCode::f32}, 1, options);
  const std::vector<float> zeros(size_t{4096} * kHeadDim);
  for (int at = 0; at < begin; at += 4096) {
    const int count = std::min(4096, begin - at);
    layer.append(layer.sequence(), zeros.data(), zeros.data(), count);
  }
  Rows rows = rows_of(33, kTokens, 1);
  std::vector<std::vector<float>> keys;
  for (int t = 0; t < kTokens; ++t) {
    std::vector<float> key(rows.k.begin() + t * kHeadDim, rows.k.begin() + (t + 1) * kHeadDim);
    // The common part stays put within its frame.
    std::vector<float> held = common;
    turn(held, frequencies, t / 128 * 128);
    for (size_t d = 0; d < kHeadDim; ++d) key[d] = 0.3F * key[d] + 3 * held[d];
    turn(key, frequencies, begin);
    std::copy(key.begin(), key.end(), rows.k.begin() + t * kHeadDim);
    keys.push_back(std::move(key));
  }
  layer.append(rows);
  Queries queries(1, kHeadDim);
  std::vector<float> all = bell(35, int64_t{8} * kHeadDim);
  for (int j = 0; j < 8; ++j) {
    std::vector<float> q(all.begin() + j * kHeadDim, all.begin() + (j + 1) * kHeadDim);
    turn(q, frequencies, begin);
    queries.add(q);
    std::vector<double> weights(kTokens), out(kHeadDim);
    double sum = 0;
    for (int t = 0; t < kTokens; ++t) {
      const int last = kTokens - 8 + j;
      if (t > last || t <= last - kWindow) continue;
      double score = 0;
      for (size_t d = 0; d < kHeadDim; ++d) score += double{q[d]} * keys[static_cast<size_t>(t)][d];
      sum += weights[static_cast<size_t>(t)] = std::exp(0.1 * score);
    }
    for (int t = 0; t < kTokens; ++t) {
      for (size_t d = 0; d < kHeadDim; ++d) {
        out[d] += weights[static_cast<size_t>(t)] / sum *
                  double{rows.v[static_cast<size_t>(t) * kHeadDim + d]};
      }
    }
    exact->insert(exact->end(), out.begin(), out.end());
  }
  queries.indptr = {0, 8};  // one sequence
  return layer.read(layer.sequence(), queries, {.scale = 0.1F, .window = kWindow}).out;
}

TEST(CalibratedKeys, AreReadAtPosition100000AsAtTheStart) {
  constexpr int kFar = 781 * 128;  // 99,968
  std::vector<double> exact, exact_far, exact_plain;
  const std::vector<float> near = outputs_at(0, true, &exact);
  const std::vector<float> far = outputs_at(kFar, true, &exact_far);
  // RoPE turns nothing that scores see, so the exact results agree up to the rounding of the rows.
  EXPECT_LT(test::max_difference(exact, exact_far), 2e-6);
  const double format_error = test::max_difference(near, exact);
  EXPECT_LT(format_error, 0.01);
  EXPECT_GT(format_error, 1e-5);
  // A frame's rows are coded alike wherever the frame lies: no error of angles comes on top.
  EXPECT_LT(test::max_difference(far, near), 2e-5);
  EXPECT_LT(test::max_difference(far, exact_far), 1.1 * format_error);
  // Without frames the codes err more, by the vector that keys have in common.
  const std::vector<float> plain = outputs_at(kFar, false, &exact_plain);
  EXPECT_GT(test::max_difference(plain, exact_plain), 1.5 * format_error);
}

// Root mean square of the error of scores over that of the scores' spread, for keys with three
// channels far from zero, as models have them.
double score_error(KvCode code, bool is_centred) {
  constexpr int kKeys = 400;
  std::vector<float> shift(kHeadDim);
  shift[3] = 25;
  shift[17] = -40;
  shift[40] = 12;
  LayerKeyCalibration of_layer{.frequencies = std::vector<double>(kHeadDim / 2),
                               .centre = shift,
                               .diagonal = std::vector<float>(kHeadDim, 1.0F)};
  const KeyCalibration calibration{.frame = 128, .layers = {of_layer}};
  const KeyFrame frame = calibration.key_frame(0, 0, kHeadDim);
  const std::vector<float> keys = bell(41, int64_t{kKeys} * kHeadDim);
  const std::vector<float> queries = bell(42, int64_t{kKeys} * kHeadDim);
  std::vector<std::byte> packed(static_cast<size_t>(packed_row_bytes(code, kHeadDim)));
  double error = 0, spread = 0;
  for (size_t t = 0; t < kKeys; ++t) {
    std::vector<float> key(keys.begin() + static_cast<ptrdiff_t>(t * kHeadDim),
                           keys.begin() + static_cast<ptrdiff_t>((t + 1) * kHeadDim));
    double own = 0;
    for (size_t d = 0; d < kHeadDim; ++d) {
      own += double{queries[t * kHeadDim + d]} * key[d];
      key[d] += shift[d];
    }
    std::vector<float> row = key, decoded(kHeadDim);
    if (is_centred) frame_key(frame, 0, key, row);
    EXPECT_TRUE(encode_row(code, row, packed));
    decode_row(code, packed, decoded);
    if (is_centred) unframe_key(frame, 0, decoded, decoded);
    double off = 0;
    for (size_t d = 0; d < kHeadDim; ++d) {
      off += double{queries[t * kHeadDim + d]} * (double{decoded[d]} - key[d]);
    }
    error += off * off;
    spread += own * own;
  }
  return std::sqrt(error / spread);
}

// What is left once a centre has taken the channels away is the error of the type on bell-shaped
// rows, the limit a little above what was measured; without a centre the channels cost several
// times that.
TEST(ShiftedChannels, CostARotatedFormatNothingOnceTheyAreCentred) {
  for (const auto& [code, limit] : {std::pair{KvCode::tq8, 0.007},
                                    {KvCode::tq4, 0.11},
                                    {KvCode::tcq4, 0.08},
                                    {KvCode::tq3, 0.2},
                                    {KvCode::tcq3, 0.18},
                                    {KvCode::tq2, 0.41},
                                    {KvCode::tcq2, 0.33}}) {
    const double centred = score_error(code, true);
    const double plain = score_error(code, false);
    EXPECT_LT(centred, limit) << kv_code_name(code);
    EXPECT_GT(plain, 3 * centred) << kv_code_name(code);
    EXPECT_LT(plain, 8 * limit) << kv_code_name(code);
  }
  // One scale a row and no rotation: the large channels take the codes of all others.
  EXPECT_LT(score_error(KvCode::q8, false), 0.09);
  EXPECT_GT(score_error(KvCode::q4, false), 0.9);
}

}  // namespace
}  // namespace kvik
