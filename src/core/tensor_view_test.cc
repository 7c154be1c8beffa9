#include "kvik/core/tensor_view.h"

#include <gtest/gtest.h>

#include <numeric>
#include <type_traits>
#include <vector>

namespace kvik {
namespace {

static_assert(std::is_convertible_v<TensorView, ConstTensorView>);
static_assert(!std::is_convertible_v<ConstTensorView, TensorView>);
static_assert(!std::is_constructible_v<TensorView, ConstTensorView>);
static_assert(
    !std::is_constructible_v<TensorView, const float*, DType, std::initializer_list<int64_t>>);
static_assert(std::is_trivially_copyable_v<TensorView>);

TEST(TensorView, IsEmptyByDefault) {
  const TensorView view;
  EXPECT_EQ(view.data, nullptr);
  EXPECT_EQ(view.rank, 0);
  EXPECT_EQ(view.dim(0), 0);
}

TEST(TensorView, LaysRowsOutWithoutGaps) {
  std::vector<float> values(2 * 3 * 5 * 7);
  std::iota(values.begin(), values.end(), 0.0f);
  const ConstTensorView view(values.data(), DType::f32, {2, 3, 5, 7});
  ASSERT_EQ(view.rank, 4);
  EXPECT_EQ(view.step(3), 1);
  EXPECT_EQ(view.step(2), 7);
  EXPECT_EQ(view.step(1), 35);
  EXPECT_EQ(view.step(0), 105);
  for (int64_t i = 0; i < 2; ++i) {
    for (int64_t j = 0; j < 3; ++j) {
      EXPECT_EQ(*reinterpret_cast<const float*>(view.at(i, j)),
                static_cast<float>(i * 105 + j * 35));
    }
  }
}

TEST(TensorView, CountsStridesInElementsOfItsType) {
  std::vector<uint16_t> values(6);
  const TensorView view(values.data(), DType::bf16, {2, 3});
  EXPECT_EQ(view.at(1, 2) - view.at(0), 10);
  const TensorView wide(values.data(), DType::f32, {1, 3});
  EXPECT_EQ(wide.at(0, 2) - wide.at(0), 8);
}

TEST(TensorView, FollowsStridesThatItIsGiven) {
  std::vector<float> values(20);
  TensorView view(values.data(), DType::f32, {4, 5});
  std::swap(view.shape[0], view.shape[1]);
  std::swap(view.stride[0], view.stride[1]);
  EXPECT_EQ(reinterpret_cast<float*>(view.at(3, 2)), values.data() + 2 * 5 + 3);
}

TEST(TensorView, KeepsEverythingWhenItBecomesReadOnly) {
  std::vector<float> values(6);
  TensorView view(values.data(), DType::f16, {2, 3});
  view.device = Device::cuda;
  view.stride = {9, 2, 0, 0};
  const ConstTensorView read_only = view;
  EXPECT_EQ(read_only.data, view.data);
  EXPECT_EQ(read_only.dtype, DType::f16);
  EXPECT_EQ(read_only.device, Device::cuda);
  EXPECT_EQ(read_only.rank, 2);
  EXPECT_EQ(read_only.shape, view.shape);
  EXPECT_EQ(read_only.stride, view.stride);
}

TEST(TensorView, MayHaveAnEmptyDimension) {
  const TensorView view(nullptr, DType::f32, {3, 0, 4});
  EXPECT_EQ(view.dim(1), 0);
  EXPECT_EQ(view.step(1), 4);
  EXPECT_EQ(view.step(0), 0);
}

// An offset from null is undefined, and a cut-out of an empty tensor keeps its strides.
TEST(TensorView, WithoutMemoryHasNoAddresses) {
  TensorView view(nullptr, DType::f32, {3, 4, 0});
  view.stride = {40, 10, 1, 0};
  EXPECT_EQ(view.at(2, 3), nullptr);
  EXPECT_EQ(ConstTensorView(view).at(1), nullptr);
}

TEST(TensorView, AbsurdShapesAreDescribedWithoutUndefinedBehaviour) {
  const int64_t huge = int64_t{1} << 62;
  const TensorView view(nullptr, DType::f32, {huge, huge, huge, huge});
  EXPECT_EQ(view.dim(0), huge);
  EXPECT_EQ(view.step(3), 1);
  EXPECT_EQ(view.step(2), huge);
}

TEST(TensorViewDeathTest, RefusesAFifthDimension) {
  EXPECT_DEATH((ConstTensorView(nullptr, DType::f32, {1, 1, 1, 1, 1})), "four dimensions");
}

}  // namespace
}  // namespace kvik
