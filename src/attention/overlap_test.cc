#include "attention/overlap.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "support/random.h"

namespace kvik::internal {
namespace {

std::set<const std::byte*> bytes_of(const RowGrid& grid) {
  std::set<const std::byte*> bytes;
  for (int64_t i = 0; i < grid.count[0]; ++i) {
    for (int64_t j = 0; j < grid.count[1]; ++j) {
      for (int64_t b = 0; b < grid.row_bytes; ++b) {
        bytes.insert(grid.begin + i * grid.step[0] + j * grid.step[1] + b);
      }
    }
  }
  return bytes;
}

bool shares_a_byte(const RowGrid& a, const RowGrid& b) {
  const std::set<const std::byte*> of_a = bytes_of(a);
  for (const std::byte* byte : bytes_of(b)) {
    if (of_a.contains(byte)) return true;
  }
  return false;
}

TEST(Overlap, NoSharedByteIsEverMissed) {
  std::vector<std::byte> memory(4096);
  uint64_t drawn = 0;
  const auto below = [&drawn](int64_t limit) { return test::below(5, drawn++, limit); };
  int shared = 0;
  int told_apart = 0;
  for (int round = 0; round < 20000; ++round) {
    const auto grid = [&] {
      RowGrid g;
      g.begin = memory.data() + below(300);
      g.count = {below(5), below(5)};
      g.step = {below(8) * 8, below(8) * 8};
      g.row_bytes = below(4) * 4;
      return g;
    };
    const RowGrid a = grid();
    const RowGrid b = grid();
    const bool truth = shares_a_byte(a, b);
    ASSERT_TRUE(may_overlap(a, b) || !truth) << "round " << round;
    shared += truth ? 1 : 0;
    told_apart += may_overlap(a, b) ? 0 : 1;
  }
  EXPECT_GT(shared, 1000);
  EXPECT_GT(told_apart, 1000);
}

TEST(Overlap, ColumnsOfOneArrayAreToldApart) {
  constexpr int64_t kTokens = 7, kHeads = 4, kDim = 64;
  // [tokens, q | k | v | out], heads inside each part.
  std::vector<float> joint(kTokens * 4 * kHeads * kDim);
  const auto part = [&](int64_t i) {
    ConstTensorView t(joint.data() + i * kHeads * kDim, DType::f32, {kTokens, kHeads, kDim});
    t.stride[0] = 4 * kHeads * kDim;
    return grid_of(t);
  };
  for (int64_t i = 0; i < 4; ++i) {
    for (int64_t j = 0; j < 4; ++j) EXPECT_EQ(may_overlap(part(i), part(j)), i == j);
  }
  // [tokens, heads, q | out]
  const auto half = [&](int64_t i) {
    ConstTensorView t(joint.data() + i * kDim, DType::f32, {kTokens, kHeads, kDim});
    t.stride = {2 * kHeads * kDim, 2 * kDim, 1};
    return grid_of(t);
  };
  EXPECT_FALSE(may_overlap(half(0), half(1)));
  EXPECT_TRUE(may_overlap(half(0), half(0)));
}

TEST(Overlap, RowsMovedByARowOrAHeadAreSeen) {
  std::vector<float> base(8 * 4 * 16);
  const ConstTensorView q(base.data(), DType::f32, {6, 3, 16});
  for (const int64_t moved : {16, 3 * 16, 1, 15}) {
    EXPECT_TRUE(may_overlap(grid_of(q),
                            grid_of(ConstTensorView(base.data() + moved, DType::f32, {6, 3, 16}))));
  }
  EXPECT_FALSE(may_overlap(
      grid_of(q), grid_of(ConstTensorView(base.data() + 6 * 3 * 16, DType::f32, {2, 3, 16}))));
}

}  // namespace
}  // namespace kvik::internal
