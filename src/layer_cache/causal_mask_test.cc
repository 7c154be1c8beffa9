#include "kvik/layer_cache/causal_mask.h"

#include <gtest/gtest.h>

namespace kvik {
namespace {

TEST(CausalMask, ComesInTheFormThatTheQueryNeeds) {
  EXPECT_EQ(make_causal_mask(1, 16, false, std::nullopt)->kind, MaskKind::none);
  EXPECT_EQ(make_causal_mask(1, 16, true, std::nullopt)->kind, MaskKind::none);
  EXPECT_EQ(make_causal_mask(4, 16, false, std::nullopt)->kind, MaskKind::causal);
  EXPECT_EQ(make_causal_mask(4, 16, true, std::nullopt)->kind, MaskKind::array);
  EXPECT_EQ(make_causal_mask(1, 32, false, 4)->kind, MaskKind::array);
  EXPECT_EQ(make_causal_mask(4, 16, false, 100)->kind, MaskKind::array);
}

TEST(CausalMask, ShowsAQueryTheKeysOfItsWindow) {
  for (const int64_t offset : {0, 1, 5, 32}) {
    for (const int64_t n : {1, 2, 5}) {
      for (const int64_t window : {1, 2, 3, 4, 50}) {
        const Result<CausalMask> mask = make_causal_mask(n, offset, true, window);
        ASSERT_TRUE(mask.ok());
        ASSERT_EQ(mask->num_rows, n);
        ASSERT_EQ(mask->num_cols, offset + n);
        for (int64_t i = 0; i < n; ++i) {
          for (int64_t k = 0; k < offset + n; ++k) {
            const int64_t q = offset + i;
            EXPECT_EQ(mask->visible(i, k), q >= k && q < k + window);
          }
        }
      }
    }
  }
}

TEST(CausalMask, ComesInEveryType) {
  for (const MaskType type : {MaskType::boolean, MaskType::f32, MaskType::f16, MaskType::bf16}) {
    const Result<CausalMask> mask = make_mask_array(3, 5, type);
    ASSERT_TRUE(mask.ok());
    EXPECT_EQ(static_cast<int64_t>(mask->data.size()), 15 * mask_type_bytes(type));
    for (int64_t i = 0; i < 3; ++i) {
      for (int64_t k = 0; k < 5; ++k) EXPECT_EQ(mask->visible(i, k), k <= i + 2);
    }
  }
}

TEST(CausalMask, RefusesSizesOutOfRange) {
  EXPECT_FALSE(make_causal_mask(0, 4, false, std::nullopt).ok());
  EXPECT_FALSE(make_causal_mask(1, -1, false, std::nullopt).ok());
  EXPECT_FALSE(make_causal_mask(1, 4, false, 0).ok());
  EXPECT_FALSE(make_mask_array(5, 4, MaskType::boolean).ok());
  EXPECT_FALSE(make_mask_array(0, 4, MaskType::boolean).ok());
}

}  // namespace
}  // namespace kvik
