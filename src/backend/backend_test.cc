// Bad calls at kvik::attend: each is refused with a sentence that names the argument, before
// anything is written.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <optional>

#include "kvik/attention/reference.h"
#include "kvik/backend/cpu_backend.h"
#include "support/attention_case.h"

namespace kvik::test {
namespace {

using testing::HasSubstr;

// A good call that a test then spoils.
class Door : public testing::Test {
 protected:
  Door() : kv_(kShape, {random_rows(1, 40, kShape), random_rows(2, 17, kShape)}, {}) {
    queries_.add(3, 2);
    queries_.add(4, 1);
    segment_.view = kv_.view();
    call_ = make_call(queries_, {&segment_, 1}, {}, outputs_);
  }

  void expect_refused(const std::string& part, StatusCode code = StatusCode::invalid_argument) {
    const Status status = attend(*backend_, call_);
    EXPECT_EQ(status.code(), code) << status.to_string();
    EXPECT_THAT(status.message(), HasSubstr(part));
    for (const float x : outputs_.out) ASSERT_EQ(x, -12345.0f) << "something was written";
  }

  static constexpr KvShape kShape{2, 32, 48};
  TiledKv kv_;
  Queries queries_{4, 32};
  Outputs outputs_;
  Segment segment_;
  AttentionCall call_;
  std::shared_ptr<Backend> backend_ = make_cpu_backend({.kernel_set = KernelSet::exact}).value();
};

// Doors of packed formats: another storage of the same rows.
class PackedDoor : public Door {
 protected:
  void store_as(KvFormat format) {
    TiledOptions options;
    options.format = format;
    packed_.emplace(kShape, std::vector{random_rows(1, 40, kShape), random_rows(2, 17, kShape)},
                    options);
    segment_.view = packed_->view();
  }
  std::optional<TiledKv> packed_;
};

TEST_F(PackedDoor, LetsFormatsThroughThatStoreTheSideAndHeadDim) {
  for (const KvFormat format : {KvFormat{KvCode::tqk_int2, KvCode::tcq3},
                                {KvCode::tq4, KvCode::q6},
                                {KvCode::q8, KvCode::f16}}) {
    store_as(format);
    EXPECT_TRUE(attend(*backend_, call_).ok());
  }
}
TEST_F(PackedDoor, RefusesValueFormatsForKeysAndKeyFormatsForValues) {
  segment_.view.format.k = KvCode::tqv_q4_0;
  expect_refused("tqv_q4_0 stores values only; q8, q6, q4, tqk_q8_0");
  segment_.view.format = {KvCode::f16, KvCode::tqk_q4_0};
  expect_refused("tqk_q4_0 stores keys only; q8, q6, q4, tq8");
}
TEST_F(PackedDoor, RefusesHeadDimsAndSaysWhatStoresThem) {
  segment_.view.format.v = KvCode::tqv_q4_0;
  expect_refused("tqv_q4_0 stores multiples of 32 from 32 to 576, and head_dim is 48; q8, q6, q4");
}
TEST_F(PackedDoor, RefusesRotatedKeysWithoutTheirTransform) {
  store_as({KvCode::tq8, KvCode::f16});
  segment_.view.key_transform = nullptr;
  expect_refused("tq8 keys are stored rotated, and key_transform is null");
}
TEST_F(PackedDoor, RefusesPackedRowsOutsideTiles) {
  segment_.view.layout = KvLayout::rows;
  segment_.view.format.v = KvCode::q8;
  expect_refused("q8 lives in tiles", StatusCode::unsupported);
}
TEST_F(PackedDoor, JoinsSegmentsOfRotatedAndOfPlainValuesInAnyOrder) {
  store_as({KvCode::tq4, KvCode::tq4});
  Segment plain{.view = kv_.view()};
  for (const bool plain_first : {false, true}) {
    std::vector<Segment> both = {segment_, plain};
    if (plain_first) std::swap(both[0], both[1]);
    both[0].end = both[1].begin = 10;
    Segment recent = plain;
    recent.newest = 3;
    both.push_back(recent);
    call_.segments = both;
    for (const CpuIsa isa : available_cpu_isas(detect_cpu_features())) {
      ASSERT_TRUE(attend(*backend_for(isa), call_).ok());
      EXPECT_LE(max_difference(outputs_.out, reference_attention(call_)->out), 1e-5);
    }
  }
}
TEST_F(PackedDoor, JoinsSegmentsOfRotatedValuesInOtherFormats) {
  store_as({KvCode::f16, KvCode::tq4});
  Segment first = segment_;
  first.end = 16;
  TiledOptions options;
  options.format = {KvCode::tq8, KvCode::tcq4};
  TiledKv rest_kv(kShape, {random_rows(1, 40, kShape), random_rows(2, 17, kShape)}, options);
  const std::vector<Segment> both = {first, {.view = rest_kv.view(), .begin = 16}};
  call_.segments = both;
  ASSERT_TRUE(attend(*backend_, call_).ok());
  EXPECT_LE(max_difference(outputs_.out, reference_attention(call_)->out), 1e-5);
}

TEST_F(Door, LetsAGoodCallThrough) { EXPECT_TRUE(attend(*backend_, call_).ok()); }

TEST_F(Door, RefusesWrongRanks) {
  call_.q.rank = 2;
  expect_refused("q has 2 dimensions");
}
TEST_F(Door, RefusesNegativeDimensions) {
  call_.q.shape[1] = -4;
  expect_refused("q has a negative dimension");
}
TEST_F(Door, RefusesAnotherDevice) {
  call_.q.device = Device::cuda;
  expect_refused("q lives on another device", StatusCode::unsupported);
}
TEST_F(Door, RefusesNullPointers) {
  call_.q.data = nullptr;
  expect_refused("q has a null pointer");
}
TEST_F(Door, RefusesANullPool) {
  segment_.view.v = nullptr;
  expect_refused("v of a segment has a null pointer");
}
TEST_F(Door, RefusesAnInnerStride) {
  call_.q.stride[2] = 2;
  expect_refused("q has stride 2 in its last dimension");
}
TEST_F(Door, RefusesNegativeStrides) {
  call_.q.stride[0] = -128;
  expect_refused("q has stride -128");
}
TEST_F(Door, RefusesOutputRowsThatOverlap) {
  call_.out.stride[1] = 47;
  expect_refused("out has strides that lay rows over each other");
}
TEST_F(Door, RefusesBroadcastOutputs) {
  call_.out.stride[0] = 0;
  expect_refused("out has stride 0");
}
TEST_F(Door, RefusesSizesBeyond64Bits) {
  call_.q.stride[0] = INT64_MAX / 2;
  expect_refused("q spans more than 2^63");
}
TEST_F(Door, RefusesOutputsOfAnotherShape) {
  call_.out.shape[1] = 3;
  expect_refused("out has shape [3, 3");
}
TEST_F(Door, RefusesLseOfAnotherTypeOrShape) {
  call_.lse->dtype = DType::f16;
  expect_refused("lse must be f32");
  call_.lse->dtype = DType::f32;
  call_.lse->shape[0] = 1;
  expect_refused("lse has shape [1, 4]");
}
TEST_F(Door, RefusesHeadsThatDoNotDivide) {
  for (const auto& [heads, kv_heads] : std::vector<std::pair<int, int>>{{33, 2}, {3, 2}, {2, 3}}) {
    call_.q.shape[1] = call_.out.shape[1] = heads;
    call_.q.stride[0] = call_.out.stride[0] = 48 * heads;
    segment_.view.num_kv_heads = kv_heads;
    expect_refused("not a multiple");
  }
}
TEST_F(Door, RefusesNoHeadsAtAll) {
  segment_.view.num_kv_heads = 0;
  expect_refused("not a multiple of the 0 KV heads");
  segment_.view.num_kv_heads = 2;
  call_.q.shape[1] = call_.out.shape[1] = 0;
  expect_refused("q has 0 heads");
}
TEST_F(Door, RefusesHeadDimsThatDiffer) {
  call_.q.shape[2] = 31;
  expect_refused("q has head_dim 31, the keys have 32");
}
TEST_F(Door, RefusesHeadDimsOutOfRange) {
  segment_.view.head_dim_k = 577;
  call_.q.shape[2] = 577;
  expect_refused("must lie in 0 to 576");
}
TEST_F(Door, RefusesBlockSizesThatAreNoTiles) {
  for (const int block_size : {0, -16, 8, 24}) {
    segment_.view.block_size = block_size;
    expect_refused("block_size is " + std::to_string(block_size));
  }
}
TEST_F(Door, RefusesStridesThatBreakTiles) {
  segment_.view.k_stride[1] += 32;
  expect_refused("k_stride per head");
  segment_.view = kv_.view();
  segment_.view.v_stride[0] = INT64_MAX / 64 * 64;
  expect_refused("exceeds 64 bits");
}
TEST_F(Door, RefusesStridesWhoseSumExceeds64Bits) {
  segment_.view.k_stride = {int64_t{1} << 60, int64_t{1} << 61};
  segment_.view.num_pages = 5;
  expect_refused("k of a segment spans more than 2^63 bytes");
}
TEST_F(Door, RefusesMoreRowsThan31Bits) {
  // Rows of no elements need no memory, so only their count can give such a call away.
  const std::vector<int32_t> indptr = {0, 1, INT32_MAX};
  call_.query_indptr = indptr;
  call_.lse.reset();
  call_.lse_keys.reset();
  segment_.view.head_dim_k = segment_.view.head_dim_v = 0;
  call_.q = ConstTensorView(nullptr, DType::f32, {INT32_MAX, 4, 0});
  call_.out = TensorView(nullptr, DType::f32, {INT32_MAX, 4, 0});
  call_.out.stride = {4, 1, 1, 0};
  expect_refused("a call takes at most 2^31 - 1 rows");
}
TEST_F(Door, RefusesMisalignedTiles) {
  segment_.view.k += 4;
  expect_refused("k of a segment is not aligned to 64 bytes");
}
TEST_F(Door, RefusesTablesTooShortForTheLength) {
  const std::vector<int32_t> lengths = {33, 40};
  segment_.view.kv_len = lengths;
  expect_refused("kv_len[1] is 40: needs 3 blocks, its table has 2");
}
TEST_F(Door, RefusesNegativeLengths) {
  const std::vector<int32_t> lengths = {-1, 17};
  segment_.view.kv_len = lengths;
  expect_refused("kv_len[0] is -1");
}
TEST_F(Door, RefusesPagesOutsideThePool) {
  for (const int32_t page : {-1, 5, INT32_MAX}) {
    const std::vector<int32_t> ids = {0, 1, 2, 3, page};
    segment_.view.page_ids = ids;
    expect_refused("page_ids[4] is " + std::to_string(page));
  }
}
TEST_F(Door, RefusesIndptrsThatDecreaseOrEndElsewhere) {
  for (const std::vector<int32_t>& indptr :
       std::vector<std::vector<int32_t>>{{0, 2}, {0, 4, 3}, {0, 1, 2}, {1, 2, 3}, {0, 2, 4}, {}}) {
    call_.query_indptr = indptr;
    const Status status = attend(*backend_, call_);
    EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  }
}
TEST_F(Door, RefusesFirstPositionsInsideATile) {
  const std::vector<int32_t> first = {8, 0};
  segment_.view.first_pos = first;
  expect_refused("first_pos[0] is 8");
}
TEST_F(Door, RefusesPositionsBeyond31Bits) {
  const std::vector<int32_t> first = {INT32_MAX / 16 * 16, 0};
  segment_.view.first_pos = first;
  expect_refused("positions must stay below 2^31");
}
TEST_F(Door, RefusesBatchesOfDifferentSizes) {
  const std::vector<int32_t> one = {40};
  segment_.view.kv_len = one;
  expect_refused("kv_len and first_pos need one entry");
}
TEST_F(Door, RefusesCallsWithoutSegments) {
  call_.segments = {};
  expect_refused("segments is empty");
}
TEST_F(Door, RefusesSegmentsThatOverlap) {
  const std::vector<Segment> segments = {{.view = kv_.view(), .end = 20}, {.view = kv_.view()}};
  call_.segments = segments;
  expect_refused("before the end 20 of the segment before it");
}
TEST_F(Door, RefusesParametersOutOfRange) {
  call_.params.scale = NAN;
  expect_refused("scale is not finite");
  call_.params = {.softcap = -1.0f};
  expect_refused("softcap");
  call_.params = {.softcap = INFINITY};
  expect_refused("softcap");
  call_.params = {.window = -1};
  expect_refused("window is -1");
  const std::vector<float> sinks = {1, 2, 3};
  call_.params = {.sinks = sinks};
  expect_refused("sinks has 3 entries");
  const std::vector<float> bad_sinks = {1, 2, 3, NAN};
  call_.params = {.sinks = bad_sinks};
  expect_refused("sinks must be finite");
}
TEST_F(Door, RefusesTransformsWithoutAFunctionOrWithAnOddFrame) {
  const KeyTransform no_function{128, nullptr, nullptr};
  segment_.view.key_transform = &no_function;
  expect_refused("key_transform has frame 128");
}
TEST_F(Door, RefusesOutputsThatShareMemoryWithAnInput) {
  std::vector<float> q = queries_.values;
  const auto out_at = [&](void* data) {
    TensorView out = call_.out;
    out.data = static_cast<std::byte*>(data);
    return out;
  };
  const TensorView own = call_.out;
  call_.out = out_at(const_cast<float*>(queries_.values.data()));
  expect_refused("out shares memory with q");
  call_.out = out_at(const_cast<std::byte*>(segment_.view.k) + 4);
  expect_refused("out shares memory with the keys");
  call_.out = out_at(const_cast<std::byte*>(segment_.view.v) + 4);
  expect_refused("out shares memory with the values");
  call_.out = own;
  call_.lse = TensorView(own.data, DType::f32, {call_.q.dim(0), call_.q.dim(1)});
  expect_refused("lse shares memory with out");
  call_.lse = TensorView(const_cast<float*>(queries_.values.data()), DType::f32,
                         {call_.q.dim(0), call_.q.dim(1)});
  expect_refused("lse shares memory with q");
  EXPECT_EQ(q, queries_.values);
}
TEST_F(Door, RefusesAWindowThatIsWiderThanTheRowsThatAreKept) {
  segment_.view.window = 16;
  call_.params.window = 17;
  expect_refused("params.window is 17; rows are kept for a window of 16");
  std::vector<Segment> segments(2, segment_);
  segments[0].view.window.reset();
  segments[0].end = segments[1].begin = 16;
  call_.segments = segments;
  expect_refused("a window of 16 tokens, that of the first segment none");
}
TEST_F(Door, AViewsWindowCountsWithoutBeingSaidAgain) {
  call_.params.window = 5;
  ASSERT_TRUE(attend(*backend_, call_).ok());
  const std::vector<float> expected = outputs_.out;
  call_.params.window.reset();
  ASSERT_TRUE(attend(*backend_, call_).ok());
  EXPECT_NE(outputs_.out, expected);
  segment_.view.window = 5;
  for (const std::optional<int> said : {std::optional<int>(), std::optional<int>(5)}) {
    call_.params.window = said;
    ASSERT_TRUE(attend(*backend_, call_).ok());
    EXPECT_EQ(outputs_.out, expected);
  }
  segment_.view.window = 9;
  ASSERT_TRUE(attend(*backend_, call_).ok());
  EXPECT_EQ(outputs_.out, expected) << "the narrower one counts";
}
TEST_F(Door, WithoutAScaleScoresAreDividedByTheRootOfTheHeadDim) {
  call_.params.scale = 1.0f / std::sqrt(32.0f);
  ASSERT_TRUE(attend(*backend_, call_).ok());
  const std::vector<float> expected = outputs_.out;
  call_.params.scale.reset();
  ASSERT_TRUE(attend(*backend_, call_).ok());
  EXPECT_EQ(outputs_.out, expected);
  EXPECT_EQ(scale_of({}, 0), 1.0f);
  EXPECT_EQ(scale_of({}, 64), 0.125f);
  EXPECT_EQ(scale_of({.scale = 1.0f}, 64), 1.0f);
}
TEST_F(Door, AcceptsNothingAtAll) {
  const std::vector<int32_t> zero = {0};
  const std::vector<int32_t> none;
  segment_.view.page_indptr = zero;
  segment_.view.page_ids = segment_.view.first_pos = segment_.view.kv_len = none;
  call_.query_indptr = zero;
  call_.q.shape[0] = call_.out.shape[0] = call_.lse->shape[0] = call_.lse_keys->shape[0] = 0;
  call_.q.data = nullptr;
  call_.out.data = nullptr;
  EXPECT_TRUE(attend(*backend_, call_).ok());
}

TEST(RowsView, RefusesArraysThatDoNotFitTogether) {
  const std::vector<float> data(2 * 3 * 8);
  const std::vector<int32_t> indptr = {0, 2}, length = {2}, first = {0};
  const ConstTensorView k(data.data(), DType::f32, {2, 3, 8});
  EXPECT_TRUE(rows_view(k, k, indptr, length, first).ok());
  for (const ConstTensorView& v : {ConstTensorView(data.data(), DType::f32, {1, 3, 8}),
                                   ConstTensorView(data.data(), DType::f32, {2, 2, 8}),
                                   ConstTensorView(data.data(), DType::f32, {2, 3}),
                                   ConstTensorView(nullptr, DType::f32, {2, 3, 8})}) {
    EXPECT_EQ(rows_view(k, v, indptr, length, first).status().code(), StatusCode::invalid_argument);
  }
}

TEST(RowsView, RowsBehindTheArrayAreRefused) {
  const std::vector<float> data(2 * 3 * 8);
  const std::vector<int32_t> indptr = {0, 3}, length = {3}, first = {0};
  const ConstTensorView k(data.data(), DType::f32, {2, 3, 8});
  Segment segment{.view = rows_view(k, k, indptr, length, first).value()};
  Queries queries(3, 8);
  queries.add(1, 1);
  Outputs outputs;
  const auto backend = make_cpu_backend({}).value();
  EXPECT_THAT(attend(*backend, make_call(queries, {&segment, 1}, {}, outputs)).message(),
              HasSubstr("page_indptr ends at 3, past 2"));
}

}  // namespace
}  // namespace kvik::test
