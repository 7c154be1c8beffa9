// Runs of tokens taken out of sequences whose keys lie in frames.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>
#include <optional>
#include <set>

#include "cache/plan_state.h"
#include "kvik/attention/reference.h"
#include "kvik/backend/cpu_backend.h"
#include "kvik/cache/cache_set.h"
#include "kvik/format/key_frame.h"
#include "kvik/format/tile.h"
#include "support/attention_case.h"

namespace kvik {
namespace {

using test::bell;
using ::testing::HasSubstr;

constexpr int kHeadDim = 64;
constexpr int kNumKvHeads = 2;
constexpr int kNumHeads = 4;
constexpr int kTokens = 1500;
constexpr size_t kKvRow = size_t{kNumKvHeads} * kHeadDim;
constexpr size_t kQueryRow = size_t{kNumHeads} * kHeadDim;

// Radians per position of each pair.
enum class Turns {
  rope,
  // Multiples of a quarter turn per 128 tokens: turning a key by frames only swaps and negates its
  // elements, without rounding.
  quarters,
};

double frequency(Turns turns, int pair) {
  if (turns == Turns::quarters) return pair * std::numbers::pi / 2 / 128;
  return std::pow(1e4, -pair / 32.0);
}

// Keys, as RoPE turned them, of tokens that are `by` positions before where they were.
std::vector<float> turned_back(const std::vector<float>& keys, Turns turns, int by) {
  std::vector<float> result(keys.size());
  for (size_t row = 0; row < keys.size(); row += kHeadDim) {
    for (size_t p = 0; p < kHeadDim / 2; ++p) {
      const double x = keys[row + p];
      const double y = keys[row + p + kHeadDim / 2];
      const double angle = -by * frequency(turns, static_cast<int>(p));
      double c = std::cos(angle);
      double s = std::sin(angle);
      if (turns == Turns::quarters) {
        c = std::round(c);
        s = std::round(s);
      }
      result[row + p] = static_cast<float>(x * c - y * s);
      result[row + p + kHeadDim / 2] = static_cast<float>(x * s + y * c);
    }
  }
  return result;
}

std::shared_ptr<const KeyCalibration> calibration(Turns turns, int frame, int num_layers = 1) {
  LayerKeyCalibration layer;
  for (int p = 0; p < kHeadDim / 2; ++p) layer.frequencies.push_back(frequency(turns, p));
  layer.centre = bell(11, int64_t{kNumKvHeads} * kHeadDim);
  for (const float x : bell(12, int64_t{kNumKvHeads} * kHeadDim)) {
    layer.diagonal.push_back(std::exp2(0.3F * x));
  }
  return std::make_shared<const KeyCalibration>(KeyCalibration{
      .frame = frame,
      .layers = std::vector<LayerKeyCalibration>(static_cast<size_t>(num_layers), layer)});
}

PagedCacheOptions options_of(KvFormat format, Turns turns = Turns::rope, int frame = 128,
                             int block_size = 16) {
  PagedCacheOptions options;
  options.spec = {kNumKvHeads, kHeadDim, kHeadDim, {format}};
  options.spec.key_calibration = calibration(turns, frame);
  options.block_size = block_size;
  options.max_blocks = 4000 / block_size;
  return options;
}

// Rows [token][head][dim] of tokens, at whatever positions.
struct Rows {
  std::vector<float> k = bell(1, int64_t{kTokens} * kKvRow);
  std::vector<float> v = bell(2, int64_t{kTokens} * kKvRow);
  std::vector<float> q = bell(3, int64_t{kTokens} * kQueryRow);

  void erase(int begin, int count, Turns turns) {
    const auto cut = [&](std::vector<float>& rows, size_t width) {
      const auto first = rows.begin() + static_cast<int64_t>(width) * begin;
      rows.erase(first, first + static_cast<int64_t>(width) * count);
    };
    cut(k, kKvRow);
    cut(v, kKvRow);
    cut(q, kQueryRow);
    const auto moved = k.begin() + static_cast<int64_t>(kKvRow) * begin;
    const std::vector<float> turned = turned_back({moved, k.end()}, turns, count);
    std::copy(turned.begin(), turned.end(), moved);
  }
};

// A set of one-layer caches, all fed with the same rows.
class Fed {
 public:
  explicit Fed(std::vector<PagedCacheOptions> options)
      : backend_(make_cpu_backend({.kernel_set = KernelSet::exact}).value()),
        set_(CacheSet::create(options, backend_).value()),
        sequence_(set_.new_sequence()) {}
  explicit Fed(const PagedCacheOptions& options) : Fed(std::vector{options}) {}

  CacheSet& set() { return set_; }
  Sequence& sequence() { return sequence_; }

  // Appends `count` tokens, the rows of those from `from` on. The attention of their queries in
  // cache `cache_idx`, and the same in double over the rows that are stored.
  std::vector<float> append(Sequence& sequence, const Rows& rows, int from, int count,
                            size_t cache_idx = 0, std::vector<double>* reference = nullptr) {
    const AppendRequest request{&sequence, count};
    SetPlan plan = set_.reserve({&request, 1}).value();
    const size_t first = static_cast<size_t>(from);
    std::vector<float> out(static_cast<size_t>(count) * kQueryRow);
    for (int i = 0; i < set_.num_caches(); ++i) {
      set_.write(plan, i, 0,
                 {rows.k.data() + first * kKvRow, DType::f32, {count, kNumKvHeads, kHeadDim}},
                 {rows.v.data() + first * kKvRow, DType::f32, {count, kNumKvHeads, kHeadDim}});
    }
    const auto idx = static_cast<int>(cache_idx);
    const LayerSegments segments = set_.segments(plan, idx, 0);
    AttentionCall call;
    call.q = {rows.q.data() + first * kQueryRow, DType::f32, {count, kNumHeads, kHeadDim}};
    call.query_indptr = plan.plan(idx).query_indptr();
    call.segments = segments.span();
    call.params.scale = 0.2F;
    call.params.window = set_.cache(idx).window();
    call.out = {out.data(), DType::f32, {count, kNumHeads, kHeadDim}};
    EXPECT_TRUE(attend(*backend_, call).ok());
    if (reference != nullptr) *reference = reference_attention(call)->out;
    EXPECT_TRUE(set_.commit(std::move(plan)).ok());
    return out;
  }
  // The tokens that come next.
  std::vector<float> append(const Rows& rows, int count, size_t cache_idx = 0,
                            std::vector<double>* reference = nullptr) {
    return append(sequence_, rows, sequence_.num_cached(), count, cache_idx, reference);
  }

 private:
  std::shared_ptr<Backend> backend_;
  CacheSet set_;
  Sequence sequence_;
};

std::vector<int> page_ids(const Sequence& sequence, int cache_idx = 0) {
  const std::span<const int32_t> ids = sequence.table(cache_idx).page_ids();
  return {ids.begin(), ids.end()};
}

// The bytes of the row at each position that a cache holds: K, then V, of all heads.
std::map<int, std::vector<std::byte>> stored_rows(CacheSet& set, const Sequence& sequence,
                                                  int cache_idx = 0) {
  PagedCache& cache = set.cache(cache_idx);
  const MutableKvView view = internal::CacheAccess::raw_view(cache, 0);
  const BlockTable& table = sequence.table(cache_idx);
  std::map<int, std::vector<std::byte>> rows;
  for (int p = table.begin_block() * view.block_size; p < sequence.num_cached(); ++p) {
    const int64_t page = table.page(p / view.block_size);
    const int64_t tile = p % view.block_size / kTileTokens;
    std::vector<std::byte>& bytes = rows[p];
    for (int head = 0; head < view.num_kv_heads; ++head) {
      std::vector<std::byte> k(static_cast<size_t>(stored_row_bytes(view.format.k, kHeadDim)));
      std::vector<std::byte> v(static_cast<size_t>(stored_row_bytes(view.format.v, kHeadDim)));
      export_k_row(view.format.k, k_tile(view, page, tile, head), p % kTileTokens, k, kHeadDim);
      export_v_row(view.format.v, v_tile(view, page, tile, head), p % kTileTokens, v, kHeadDim);
      bytes.insert(bytes.end(), k.begin(), k.end());
      bytes.insert(bytes.end(), v.begin(), v.end());
    }
  }
  return rows;
}

double rms(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += std::pow(double{a[i]} - b[i], 2);
  return std::sqrt(sum / static_cast<double>(a.size()));
}

struct Shape {
  KvCode code;
  int frame, block_size, unit;
};

TEST(DropTokens, EqualsACacheThatWasFedWithTheKeysAtTheirNewPositionsBitForBit) {
  for (const Shape& shape :
       {Shape{KvCode::tq8, 128, 16, 128}, Shape{KvCode::tcq4, 256, 16, 256},
        Shape{KvCode::tq4, 128, 48, 384}, Shape{KvCode::tcq2, 128, 512, 512}}) {
    const PagedCacheOptions options =
        options_of({shape.code, KvCode::tcq3}, Turns::quarters, shape.frame, shape.block_size);
    for (const int begin : {0, shape.unit}) {
      SCOPED_TRACE(std::string(kv_code_name(shape.code)) + " from " + std::to_string(begin));
      Rows rows;
      Fed moved(options);
      EXPECT_EQ(moved.set().drop_unit().value(), shape.unit);
      moved.append(rows, 1333);
      std::vector<int> pages = page_ids(moved.sequence());
      const CacheStats before = moved.set().stats(0);
      ASSERT_TRUE(moved.set().drop_tokens(moved.sequence(), begin, shape.unit).ok());

      // No row is encoded or copied, and no page is another.
      const CacheStats after = moved.set().stats(0);
      EXPECT_EQ(after.encoded_rows, before.encoded_rows);
      EXPECT_EQ(after.copied_rows, before.copied_rows);
      EXPECT_EQ(after.used_blocks, before.used_blocks - shape.unit / shape.block_size);
      const auto run = pages.begin() + begin / shape.block_size;
      pages.erase(run, run + shape.unit / shape.block_size);
      EXPECT_EQ(page_ids(moved.sequence()), pages);
      EXPECT_EQ(moved.sequence().num_cached(), 1333 - shape.unit);

      rows.erase(begin, shape.unit, Turns::quarters);
      Fed fresh(options);
      fresh.append(rows, 1333 - shape.unit);
      EXPECT_EQ(stored_rows(moved.set(), moved.sequence()),
                stored_rows(fresh.set(), fresh.sequence()));
      std::vector<double> reference;
      const std::vector<float> out = moved.append(rows, 50, 0, &reference);
      EXPECT_EQ(out, fresh.append(rows, 50));
      EXPECT_LE(test::max_difference(out, reference), 1e-5);
      EXPECT_EQ(moved.set().stats(0).copied_rows, 0);
    }
  }
}

TEST(DropTokens, StaysWithinTheErrorOfTheFormatForTheFrequenciesOfRope) {
  for (const auto& [code, limit] : {std::pair{KvCode::tq8, 0.01}, {KvCode::tcq4, 0.12}}) {
    Rows rows;
    Fed moved(options_of({code, KvCode::f32}));
    moved.append(rows, 1333);
    ASSERT_TRUE(moved.set().drop_tokens(moved.sequence(), 128, 512).ok());
    ASSERT_TRUE(moved.set().drop_tokens(moved.sequence(), 128, 128).ok());
    rows.erase(128, 640, Turns::rope);
    Fed fresh(options_of({code, KvCode::f32}));
    Fed exact(options_of({KvCode::f32, KvCode::f32}));
    for (Fed* fed : {&fresh, &exact}) fed->append(rows, 1333 - 640);
    const std::vector<float> out = moved.append(rows, 50);
    const std::vector<float> wanted = exact.append(rows, 50);
    EXPECT_LT(rms(out, wanted), limit);
    // The same rows turned to where they are, up to what rounds the other way.
    EXPECT_LT(rms(out, fresh.append(rows, 50)), 0.1 * rms(out, wanted));
    // Keys that stay at their old positions are something else.
    Fed unmoved(options_of({code, KvCode::f32}));
    Rows cut;
    cut.k.erase(cut.k.begin() + int64_t{128} * kKvRow, cut.k.begin() + int64_t{768} * kKvRow);
    cut.v = rows.v;
    cut.q = rows.q;
    unmoved.append(cut, 1333 - 640);
    EXPECT_GT(rms(unmoved.append(rows, 50), wanted), 2 * limit);
  }
}

TEST(DropTokens, LeavesForksTheirPages) {
  Rows rows;
  const PagedCacheOptions options = options_of({KvCode::tq4, KvCode::tq4}, Turns::quarters);
  Fed fed(options);
  fed.append(rows, 700);
  Sequence fork = fed.set().fork(fed.sequence()).value();
  const std::vector<int> pages = page_ids(fork);
  ASSERT_TRUE(fed.set().drop_tokens(fed.sequence(), 128, 256).ok());
  EXPECT_EQ(page_ids(fork), pages);
  EXPECT_EQ(fork.num_cached(), 700);
  EXPECT_EQ(fed.set().stats(0).used_blocks, 44);
  EXPECT_EQ(fed.set().stats(0).shared_blocks, 44 - 16);

  // Both go on from the block that they share, whoever writes first.
  Rows erased;
  erased.erase(128, 256, Turns::quarters);
  Fed straight(options);
  straight.append(rows, 700);
  const std::vector<float> of_fork = straight.append(rows, 20);
  Fed fresh(options);
  fresh.append(erased, 444);
  const std::vector<float> of_moved = fresh.append(erased, 20);
  EXPECT_EQ(fed.append(erased, 20), of_moved);
  EXPECT_EQ(fed.set().stats(0).copied_rows, 0);
  EXPECT_EQ(fed.append(fork, rows, 700, 20), of_fork);
  EXPECT_GT(fed.set().stats(0).copied_rows, 0);

  // The fork drops what it shares with nobody and what it shares, then forks in turn.
  ASSERT_TRUE(fed.set().drop_tokens(fork, 128, 256).ok());
  EXPECT_EQ(fed.set().stats(0).used_blocks, 28 + 1 + 2);  // 444 rows together, 20 more each
  Sequence third = fed.set().fork(fork).value();
  ASSERT_TRUE(fed.set().truncate(fork, 300).ok());
  ASSERT_TRUE(fed.set().truncate(third, 444).ok());
  EXPECT_EQ(fed.append(third, erased, 444, 20), of_moved);
  EXPECT_EQ(stored_rows(fed.set(), third), stored_rows(fed.set(), fed.sequence()));
}

TEST(DropTokens, ATruncatedSequenceGoesOnFromItsNewPositions) {
  Rows rows;
  const PagedCacheOptions options = options_of({KvCode::tq4, KvCode::tq4}, Turns::quarters);
  Fed moved(options);
  moved.append(rows, 900);
  ASSERT_TRUE(moved.set().drop_tokens(moved.sequence(), 128, 384).ok());
  rows.erase(128, 384, Turns::quarters);
  for (const int kept : {500, 131, 100}) {
    ASSERT_TRUE(moved.set().truncate(moved.sequence(), kept).ok());
    Fed fresh(options);
    fresh.append(rows, kept);
    EXPECT_EQ(moved.append(rows, 9), fresh.append(rows, 9));
  }
}

TEST(DropTokens, KeepsExactFirstRowsThatLieBeforeTheRun) {
  Rows rows;
  PagedCacheOptions options = options_of({KvCode::tq4, KvCode::tq4}, Turns::quarters);
  options.exact_first = 130;
  Fed moved(options);
  moved.append(rows, 900);
  const Status status = moved.set().drop_tokens(moved.sequence(), 128, 384);
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  EXPECT_THAT(status.message(), HasSubstr("the first 130 tokens are exact"));
  EXPECT_EQ(moved.sequence().num_cached(), 900);
  ASSERT_TRUE(moved.set().drop_tokens(moved.sequence(), 256, 384).ok());
  rows.erase(256, 384, Turns::quarters);
  Fed fresh(options);
  fresh.append(rows, 900 - 384);
  EXPECT_EQ(moved.append(rows, 20), fresh.append(rows, 20));
}

// Beside a full cache one with a window, which has given its first blocks back.
std::vector<PagedCacheOptions> with_window(int window, int slack, int block_size = 16) {
  const KvFormat format = {KvCode::tq8, KvCode::tq8};
  std::vector<PagedCacheOptions> options(2, options_of(format, Turns::quarters, 128, block_size));
  options[1].window = window;
  options[1].rollback_slack = slack;
  return options;
}

TEST(DropTokens, MovesTheBlocksOfAWindow) {
  const std::vector<PagedCacheOptions> options = with_window(100, 32);
  Rows rows;
  Fed moved(options);
  moved.append(rows, 1000);
  const int first = moved.sequence().table(1).begin_block();
  EXPECT_EQ(first, (1000 - 100 - 32) / 16);
  std::vector<int> pages = page_ids(moved.sequence(), 1);
  // The run lies before what the window holds.
  ASSERT_TRUE(moved.set().drop_tokens(moved.sequence(), 128, 384).ok());
  EXPECT_EQ(moved.sequence().table(1).begin_block(), first - 24);
  EXPECT_EQ(page_ids(moved.sequence(), 1), pages);
  rows.erase(128, 384, Turns::quarters);
  Fed fresh(options);
  fresh.append(rows, 616);
  for (const size_t cache : {0, 1}) {
    std::vector<double> reference;
    const std::vector<float> out = moved.append(rows, 30, cache, &reference);
    EXPECT_EQ(out, fresh.append(rows, 30, cache));
    EXPECT_LE(test::max_difference(out, reference), 1e-5);
  }
}

// Where the run ends within the window, later tokens see the moved rows and none of the kept ones:
// those had left the window. That must not depend on which blocks happen to be there still.
TEST(DropTokens, BringsNothingBackIntoAWindow) {
  std::vector<float> first;
  for (const auto& [slack, block_size] : {std::pair{0, 16}, {64, 16}, {900, 16}, {0, 128}}) {
    SCOPED_TRACE(std::to_string(slack) + " " + std::to_string(block_size));
    Rows rows;
    Fed moved(with_window(300, slack, block_size));
    moved.append(rows, 1000);
    ASSERT_TRUE(moved.set().drop_tokens(moved.sequence(), 128, 768).ok());
    rows.erase(128, 768, Turns::quarters);
    EXPECT_EQ(moved.sequence().table(1).begin_block() * block_size, 128);
    std::vector<double> reference;
    const std::vector<float> out = moved.append(rows, 30, 1, &reference);
    EXPECT_LE(test::max_difference(out, reference), 1e-5);
    if (first.empty()) first = out;
    EXPECT_EQ(out, first);
    // It can go back within what it saw, but not to rows that are gone.
    EXPECT_TRUE(moved.set().truncate(moved.sequence(), 140).ok());
    moved.append(rows, 400, 1);
    EXPECT_EQ(moved.set().truncate(moved.sequence(), 128).code(), StatusCode::unsupported);
    EXPECT_EQ(moved.sequence().num_cached(), 540);
  }
  // A window that has seen everything keeps the kept tokens.
  Rows rows;
  Fed wide(with_window(1001, 0));
  wide.append(rows, 1000);
  ASSERT_TRUE(wide.set().drop_tokens(wide.sequence(), 128, 768).ok());
  EXPECT_EQ(wide.sequence().table(1).begin_block(), 0);
  rows.erase(128, 768, Turns::quarters);
  Fed fresh(with_window(1001, 0));
  fresh.append(rows, 232);
  EXPECT_EQ(wide.append(rows, 30, 1), fresh.append(rows, 30, 1));
}

TEST(DropTokens, RefusesKeysThatAreBoundToTheirPositions) {
  const Rows rows;
  const auto refusal = [&](const PagedCacheOptions& options) {
    Fed fed(options);
    fed.append(rows, 600);
    const std::vector<int> pages = page_ids(fed.sequence());
    const Status status = fed.set().drop_tokens(fed.sequence(), 128, 128);
    EXPECT_EQ(status.to_string(), fed.set().drop_unit().status().to_string());
    EXPECT_EQ(status.code(), StatusCode::unsupported);
    EXPECT_EQ(fed.sequence().num_cached(), 600);
    EXPECT_EQ(page_ids(fed.sequence()), pages);
    return status.message();
  };
  for (const KvCode code : {KvCode::f32, KvCode::f16, KvCode::q8, KvCode::tqk_q4_0}) {
    const KvCode values = stores_values(code) ? code : KvCode::tcq4;
    EXPECT_THAT(refusal(options_of({code, values})),
                AllOf(HasSubstr("layer 0 stores keys as " + std::string(kv_code_name(code)) + ","),
                      HasSubstr("tcq4")));
  }
  PagedCacheOptions options = options_of({KvCode::tq4, KvCode::tq4});
  options.exact_recent = 20;
  EXPECT_THAT(refusal(options), HasSubstr("exact_recent"));
  options = options_of({KvCode::tq4, KvCode::tq4});
  options.spec.key_calibration = nullptr;
  EXPECT_THAT(refusal(options), HasSubstr("tq4 without a key calibration"));
  options = options_of({KvCode::tq4, KvCode::tq4});
  options.contiguous = true;
  EXPECT_THAT(refusal(options), HasSubstr("contiguous"));
}

TEST(DropTokens, RefusesALayerThatIsKeptWideAndACacheOfTheSet) {
  const std::shared_ptr<Backend> backend = make_cpu_backend({}).value();
  PagedCacheOptions good = options_of({KvCode::tq4, KvCode::tq4});
  PagedCacheOptions wide = good;
  wide.spec.layers.push_back({KvCode::f16, KvCode::f16});
  wide.spec.key_calibration = calibration(Turns::rope, 128, 2);
  const std::vector<PagedCacheOptions> options = {good, wide};
  EXPECT_THAT(CacheSet::create(options, backend)->drop_unit().status().message(),
              AllOf(HasSubstr("cache 1"), HasSubstr("layer 1 stores keys as f16")));
  // Values may be of any format.
  EXPECT_EQ(Fed(options_of({KvCode::tq4, KvCode::f16})).set().drop_unit().value(), 128);
}

TEST(DropTokens, RefusesRunsThatAreNoneAndSequencesThatAreNotItsOwn) {
  const Rows rows;
  Fed fed(options_of({KvCode::tq4, KvCode::tq4}, Turns::rope, 256, 48));  // unit 768
  fed.append(rows, 900);
  for (const auto& [begin, count, says] : {std::tuple{-768, 768, "multiples of 768"},
                                           {256, 768, "multiples of 768"},
                                           {0, 256, "multiples of 768"},
                                           {0, -768, "multiples of 768"},
                                           {768, 768, "holds 900"},
                                           {0, 1536, "holds 900"},
                                           {1 << 30, 768, "multiples of"},
                                           {2147483136, 768, "holds 900"}}) {
    const Status status = fed.set().drop_tokens(fed.sequence(), begin, count);
    EXPECT_EQ(status.code(), StatusCode::invalid_argument) << begin << " " << count;
    EXPECT_THAT(status.message(), HasSubstr(says)) << begin << " " << count;
  }
  EXPECT_TRUE(fed.set().drop_tokens(fed.sequence(), 768, 0).ok());
  EXPECT_EQ(fed.sequence().num_cached(), 900);
  const AppendRequest request{&fed.sequence(), 1};
  const SetPlan plan = fed.set().reserve({&request, 1}).value();
  EXPECT_THAT(fed.set().drop_tokens(fed.sequence(), 0, 768).message(), HasSubstr("open plan"));
  Fed other(options_of({KvCode::tq4, KvCode::tq4}));
  EXPECT_THAT(fed.set().drop_tokens(other.sequence(), 0, 768).message(), HasSubstr("another"));
  Sequence empty;
  EXPECT_THAT(fed.set().drop_tokens(empty, 0, 768).message(), HasSubstr("empty"));
}

// Random operations on a full cache and one with a window, beside lists of the tokens that each
// sequence holds. A token's stored row never changes, wherever it moves.
class RandomDrops {
 public:
  explicit RandomDrops(uint64_t seed) : seed_(seed), fed_(with_window(kWindow, kSlack, 32)) {
    sequences_.push_back({fed_.set().new_sequence(), {}});
  }

  void step() {
    Tracked& t = sequences_[draw(sequences_.size())];
    const auto size = static_cast<int64_t>(t.ids.size());
    switch (draw(6)) {
      case 0:
        if (sequences_.size() < 4) {
          Sequence fork = fed_.set().fork(t.sequence).value();
          sequences_.push_back({std::move(fork), t.ids, t.floor});
        }
        break;
      case 1: {
        const auto kept = static_cast<int64_t>(size - std::min<int64_t>(size, draw(60)));
        const Status status = fed_.set().truncate(t.sequence, static_cast<int>(kept));
        if (!status.ok()) {
          ASSERT_EQ(status.code(), StatusCode::unsupported);
          break;
        }
        t.ids.resize(static_cast<size_t>(kept));
        if (kept == 0) t.floor = 0;
        break;
      }
      case 2:
        if (sequences_.size() > 1) {
          std::swap(t, sequences_.back());
          sequences_.pop_back();
        }
        break;
      case 3: {
        if (size < 128) break;
        const int64_t begin = 128 * draw(size / 128);
        const int64_t count = 128 * (1 + draw((size - begin) / 128));
        ASSERT_TRUE(fed_.set()
                        .drop_tokens(t.sequence, static_cast<int>(begin), static_cast<int>(count))
                        .ok());
        t.ids.erase(t.ids.begin() + begin, t.ids.begin() + begin + count);
        if (t.floor > begin) t.floor = std::max(begin, t.floor - count);
        if (size + 1 > kWindow) t.floor = std::max(t.floor, begin);
        break;
      }
      default:
        append(t, 1 + static_cast<int>(draw(200)));
    }
    audit();
  }

 private:
  static constexpr int kWindow = 90;
  static constexpr int kSlack = 20;

  struct Tracked {
    Sequence sequence;
    std::vector<int> ids;  // of the rows in known_
    int64_t floor = 0;     // rows before it have left the window for good
  };

  int64_t draw(uint64_t limit) { return test::below(seed_, draws_++, static_cast<int64_t>(limit)); }

  void append(Tracked& t, int count) {
    if (t.ids.size() + static_cast<size_t>(count) > 900) return;
    const int from = static_cast<int>(draw(kTokens - 200));
    fed_.append(t.sequence, rows_, from, count, static_cast<size_t>(draw(2)));
    for (int i = 0; i < count; ++i) {
      t.ids.push_back(static_cast<int>(known_.size()));
      known_.emplace_back();
    }
  }

  void audit() {
    for (int cache = 0; cache < 2; ++cache) {
      std::map<int, int> pages;
      for (const Tracked& t : sequences_) {
        ASSERT_EQ(t.sequence.num_cached(), static_cast<int>(t.ids.size()));
        for (const int page : page_ids(t.sequence, cache)) ++pages[page];
        const auto rows = stored_rows(fed_.set(), t.sequence, cache);
        const int64_t next = static_cast<int64_t>(t.ids.size());
        const int64_t needed = cache == 0 ? 0 : std::max(t.floor, next + 1 - kWindow);
        if (next > needed) {
          ASSERT_FALSE(rows.empty());
          ASSERT_LE(rows.begin()->first, needed);
        }
        for (const auto& [position, bytes] : rows) {
          auto& known = known_[static_cast<size_t>(t.ids[static_cast<size_t>(position)])];
          if (known.empty()) known = bytes;
          ASSERT_EQ(known, bytes) << "cache " << cache << " position " << position;
        }
      }
      const CacheStats stats = fed_.set().stats(cache);
      ASSERT_EQ(stats.used_blocks, static_cast<int64_t>(pages.size()));
      ASSERT_EQ(stats.shared_blocks,
                std::count_if(pages.begin(), pages.end(),
                              [](const auto& page) { return page.second > 1; }));
    }
  }

  uint64_t seed_;
  uint64_t draws_ = 0;
  Rows rows_;
  Fed fed_;
  std::vector<Tracked> sequences_;
  std::vector<std::vector<std::byte>> known_;  // bytes of each token's row, once seen
};

TEST(DropTokens, NeverTouchesARowInRandomOrderOfOperations) {
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    RandomDrops drops(seed);
    for (int i = 0; i < 60; ++i) {
      drops.step();
      if (HasFatalFailure()) FAIL() << "seed " << seed << ", operation " << i;
    }
  }
}

}  // namespace
}  // namespace kvik
