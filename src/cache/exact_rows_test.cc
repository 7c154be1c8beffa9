// Exact first and recent rows beside packed ones, and keys in calibrated frames, through a
// CacheSet.
#include <gtest/gtest.h>

#include <cmath>
#include <optional>

#include "kvik/attention/reference.h"
#include "kvik/cache/cache_set.h"
#include "kvik/format/key_frame.h"
#include "support/attention_case.h"

namespace kvik {
namespace {

using test::bell;

constexpr int kHeadDim = 64;
constexpr int kNumKvHeads = 2;
constexpr int kNumHeads = 4;
constexpr int kTokens = 700;  // two partitions

// Rows of one sequence, [token][KV head][dim].
struct Rows {
  std::vector<float> k = bell(1, int64_t{kTokens} * kNumKvHeads * kHeadDim);
  std::vector<float> v = bell(2, int64_t{kTokens} * kNumKvHeads * kHeadDim);
  std::vector<float> q = bell(3, int64_t{kTokens} * kNumHeads * kHeadDim);
};
const Rows& rows() {
  static const Rows kRows;
  return kRows;
}

PagedCacheOptions options_of(KvFormat format, int first, int recent) {
  PagedCacheOptions options;
  options.spec = {kNumKvHeads, kHeadDim, kHeadDim, {format}};
  options.max_blocks = 200;
  options.rollback_slack = 600;
  options.exact_first = first;
  options.exact_recent = recent;
  return options;
}

// A set of one cache, fed with the tokens of rows().
class Fed {
 public:
  explicit Fed(const PagedCacheOptions& options, int num_threads = 1,
               KernelSet kernel_set = KernelSet::fast)
      : backend_(make_cpu_backend({.num_threads = num_threads, .kernel_set = kernel_set}).value()),
        set_(CacheSet::create({&options, 1}, backend_).value()),
        sequence_(set_.new_sequence()) {}

  CacheSet& set() { return set_; }
  Sequence& sequence() { return sequence_; }

  // Appends the next tokens to `sequence`; attention of their queries, and the same in double.
  Status append(Sequence& sequence, int count, std::vector<float>* out,
                std::vector<double>* reference = nullptr) {
    const AppendRequest request{&sequence, count};
    Result<SetPlan> plan = set_.reserve({&request, 1});
    if (!plan.ok()) return plan.status();
    const size_t first = static_cast<size_t>(sequence.num_cached());
    set_.write(*plan, 0, 0,
               {rows().k.data() + first * kNumKvHeads * kHeadDim,
                DType::f32,
                {count, kNumKvHeads, kHeadDim}},
               {rows().v.data() + first * kNumKvHeads * kHeadDim,
                DType::f32,
                {count, kNumKvHeads, kHeadDim}});
    const LayerSegments segments = set_.segments(*plan, 0, 0);
    AttentionCall call;
    call.q = {
        rows().q.data() + first * kNumHeads * kHeadDim, DType::f32, {count, kNumHeads, kHeadDim}};
    call.query_indptr = plan->plan(0).query_indptr();
    call.segments = segments.span();
    call.params.scale = 0.2F;
    std::vector<float> result(static_cast<size_t>(count) * kNumHeads * kHeadDim);
    call.out = {result.data(), DType::f32, {count, kNumHeads, kHeadDim}};
    if (Status status = attend(*backend_, call); !status.ok()) return status;
    if (out != nullptr) out->insert(out->end(), result.begin(), result.end());
    if (reference != nullptr) *reference = reference_attention(call)->out;
    return set_.commit(std::move(plan).value());
  }
  Status append(int count, std::vector<float>* out = nullptr,
                std::vector<double>* reference = nullptr) {
    return append(sequence_, count, out, reference);
  }

 private:
  std::shared_ptr<Backend> backend_;
  CacheSet set_;
  Sequence sequence_;
};

std::vector<float> outputs_in_chunks(const PagedCacheOptions& options, int chunk, int threads = 1) {
  Fed fed(options, threads);
  std::vector<float> out;
  for (int done = 0; done < kTokens; done += chunk) {
    EXPECT_TRUE(fed.append(std::min(chunk, kTokens - done), &out).ok());
  }
  return out;
}

double error_of(const std::vector<float>& out, const std::vector<float>& exact, int begin,
                int end) {
  double sum = 0;
  for (size_t i = static_cast<size_t>(begin) * kNumHeads * kHeadDim;
       i < static_cast<size_t>(end) * kNumHeads * kHeadDim; ++i) {
    sum += std::pow(double{out[i]} - exact[i], 2);
  }
  return std::sqrt(sum / ((end - begin) * kNumHeads * kHeadDim));
}

const std::vector<float>& exact_outputs() {
  static const std::vector<float> kOut =
      outputs_in_chunks(options_of({KvCode::f32, KvCode::f32}, 0, 0), kTokens);
  return kOut;
}

TEST(ExactRows, EqualTheReferenceOverTheSameSegments) {
  for (const KvFormat format :
       {KvFormat{KvCode::tq4, KvCode::tcq3}, KvFormat{KvCode::q8, KvCode::q4},
        KvFormat{KvCode::tqk_q4_0, KvCode::tqv_q3_0}}) {
    Fed fed(options_of(format, 4, 20), 1, KernelSet::exact);
    ASSERT_TRUE(fed.append(kTokens - 9).ok());
    std::vector<float> out;
    std::vector<double> reference;
    ASSERT_TRUE(fed.append(9, &out, &reference).ok());
    EXPECT_LE(test::max_difference(out, reference), 1e-5) << kv_code_name(format.k);
  }
}

TEST(ExactRows, AreWhatTheQueriesThatSeeNothingElseRead) {
  const KvFormat tiny = {KvCode::tq2, KvCode::tq2};
  const std::vector<float>& exact = exact_outputs();
  const std::vector<float> packed = outputs_in_chunks(options_of(tiny, 0, 0), kTokens);
  EXPECT_GT(error_of(packed, exact, 0, 24), 0.1);
  // The first four tokens see exact rows only, then the packed ones join.
  const std::vector<float> first = outputs_in_chunks(options_of(tiny, 4, 0), kTokens);
  EXPECT_LT(error_of(first, exact, 0, 4), 1e-3);
  EXPECT_GT(error_of(first, exact, 8, 24), 0.01);
  // Twenty tokens are within a window of twenty; all are with one of all tokens.
  const std::vector<float> recent = outputs_in_chunks(options_of(tiny, 0, 20), kTokens);
  EXPECT_LT(error_of(recent, exact, 0, 20), 1e-3);
  EXPECT_GT(error_of(recent, exact, 600, 700), 0.01);
  EXPECT_LT(error_of(recent, exact, 600, 700), error_of(packed, exact, 600, 700));
  const std::vector<float> all = outputs_in_chunks(options_of(tiny, 0, kTokens), kTokens);
  EXPECT_LT(error_of(all, exact, 0, kTokens), 1e-3);
}

TEST(ExactRows, GiveTheSameBitsInAnyChunkingBlockSizeAndNumberOfThreads) {
  const KvFormat format = {KvCode::tq4, KvCode::tcq4};
  const std::vector<float> whole = outputs_in_chunks(options_of(format, 4, 20), kTokens);
  EXPECT_EQ(outputs_in_chunks(options_of(format, 4, 20), 1), whole);
  EXPECT_EQ(outputs_in_chunks(options_of(format, 4, 20), 37, 3), whole);
  PagedCacheOptions wide = options_of(format, 4, 20);
  wide.block_size = 64;
  EXPECT_EQ(outputs_in_chunks(wide, 100, 2), whole);
  PagedCacheOptions contiguous = options_of(format, 4, 20);
  contiguous.contiguous = true;
  EXPECT_EQ(outputs_in_chunks(contiguous, 300), whole);
}

TEST(ExactRows, ForksAndTruncatedSequencesReadTheirOwn) {
  const PagedCacheOptions options = options_of({KvCode::tq4, KvCode::tq4}, 10, 20);
  std::vector<float> expected;
  Fed straight(options);
  ASSERT_TRUE(straight.append(kTokens, &expected).ok());
  const auto tail = [&](int begin, int end) {
    return std::vector<float>(expected.begin() + int64_t{begin} * kNumHeads * kHeadDim,
                              expected.begin() + int64_t{end} * kNumHeads * kHeadDim);
  };

  Fed fed(options);
  ASSERT_TRUE(fed.append(7).ok());
  Sequence fork = fed.set().fork(fed.sequence()).value();  // within the first rows
  std::vector<float> of_fork, of_first;
  ASSERT_TRUE(fed.append(5, &of_first).ok());
  ASSERT_TRUE(fed.append(fork, 9, &of_fork).ok());
  EXPECT_EQ(of_first, tail(7, 12));
  EXPECT_EQ(of_fork, tail(7, 16));

  ASSERT_TRUE(fed.append(88).ok());
  ASSERT_TRUE(fed.set().truncate(fed.sequence(), 60).ok());
  of_first.clear();
  ASSERT_TRUE(fed.append(40, &of_first).ok());
  EXPECT_EQ(of_first, tail(60, 100));
  ASSERT_TRUE(fed.set().truncate(fed.sequence(), 3).ok());
  of_first.clear();
  ASSERT_TRUE(fed.append(20, &of_first).ok());
  EXPECT_EQ(of_first, tail(3, 23));
}

TEST(ExactRows, AreKeptForPackedLayersOnlyAndCountedWithTheirCache) {
  PagedCacheOptions options = options_of({KvCode::f16, KvCode::f16}, 4, 20);
  Fed plain(options);
  ASSERT_TRUE(plain.append(100).ok());
  EXPECT_EQ(plain.set().stats(0).nbytes, plain.set().cache(0).stats().nbytes);

  Fed packed(options_of({KvCode::tq4, KvCode::tq4}, 4, 20));
  ASSERT_TRUE(packed.append(100).ok());
  const CacheStats all = packed.set().stats(0);
  EXPECT_GT(all.nbytes, packed.set().cache(0).stats().nbytes);
  EXPECT_EQ(all.encoded_rows, (100 + 100 + 4) * kNumKvHeads);
  EXPECT_EQ(packed.set().num_caches(), 1);
}

TEST(ExactRows, NeedASetAndCountsThatAreNotNegative) {
  const std::shared_ptr<Backend> backend = make_cpu_backend({}).value();
  const PagedCacheOptions options = options_of({KvCode::tq4, KvCode::tq4}, 4, 0);
  EXPECT_EQ(PagedCache::create(options, backend).status().code(), StatusCode::unsupported);
  const PagedCacheOptions negative = options_of({KvCode::tq4, KvCode::tq4}, 0, -1);
  EXPECT_EQ(CacheSet::create({&negative, 1}, backend).status().code(),
            StatusCode::invalid_argument);
}

// Keys with one large vector in common, which stays put in a frame and turns with position.
std::shared_ptr<const KeyCalibration> calibration(bool neighbours) {
  LayerKeyCalibration layer;
  layer.pairs = neighbours ? KeyPairs::neighbours : KeyPairs::halves;
  for (int p = 0; p < kHeadDim / 2; ++p) layer.frequencies.push_back(std::pow(1e4, -p / 32.0));
  layer.centre = bell(11, int64_t{kNumKvHeads} * kHeadDim);
  for (const float x : bell(12, int64_t{kNumKvHeads} * kHeadDim)) {
    layer.diagonal.push_back(std::exp2(0.3F * x));
  }
  return std::make_shared<const KeyCalibration>(KeyCalibration{.frame = 128, .layers = {layer}});
}

TEST(CalibratedKeys, EqualTheReferenceAndStayNearTheExactOutputs) {
  for (const bool neighbours : {false, true}) {
    PagedCacheOptions options = options_of({KvCode::tq8, KvCode::tq8}, 0, 0);
    options.spec.key_calibration = calibration(neighbours);
    Fed fed(options, 1, KernelSet::exact);
    std::vector<float> out;
    std::vector<double> reference;
    ASSERT_TRUE(fed.append(kTokens - 3, &out).ok());
    EXPECT_LT(error_of(out, exact_outputs(), 100, kTokens - 3), 0.01);
    out.clear();
    ASSERT_TRUE(fed.append(3, &out, &reference).ok());
    EXPECT_LE(test::max_difference(out, reference), 1e-5);
    const std::vector<float> framed = outputs_in_chunks(options, kTokens);
    options.spec.key_calibration = nullptr;
    EXPECT_NE(outputs_in_chunks(options, kTokens), framed);
  }
}

TEST(CalibratedKeys, GiveTheSameBitsInAnyChunking) {
  PagedCacheOptions options = options_of({KvCode::tcq4, KvCode::tcq4}, 4, 0);
  options.spec.key_calibration = calibration(false);
  const std::vector<float> whole = outputs_in_chunks(options, kTokens);
  EXPECT_EQ(outputs_in_chunks(options, 1), whole);
  options.block_size = 48;
  EXPECT_EQ(outputs_in_chunks(options, 133, 3), whole);
}

TEST(CalibratedKeys, AreRefusedInAnotherShape) {
  const std::shared_ptr<Backend> backend = make_cpu_backend({}).value();
  PagedCacheOptions options = options_of({KvCode::tq4, KvCode::tq4}, 0, 0);
  KeyCalibration wrong = *calibration(false);
  wrong.layers[0].centre.pop_back();
  options.spec.key_calibration = std::make_shared<const KeyCalibration>(wrong);
  const Status size = PagedCache::create(options, backend).status();
  EXPECT_EQ(size.to_string(),
            "invalid_argument: key calibration of layer 0: centre has 127 numbers; 2 KV heads of "
            "64 dims need 128");
  wrong = *calibration(false);
  wrong.layers.push_back(wrong.layers[0]);
  options.spec.key_calibration = std::make_shared<const KeyCalibration>(wrong);
  EXPECT_EQ(PagedCache::create(options, backend).status().code(), StatusCode::invalid_argument);
  wrong = *calibration(false);
  wrong.layers[0].diagonal[70] = 0;
  options.spec.key_calibration = std::make_shared<const KeyCalibration>(wrong);
  EXPECT_NE(PagedCache::create(options, backend).status().message().find("KV head 1"),
            std::string::npos);
}

}  // namespace
}  // namespace kvik
