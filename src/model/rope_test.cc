#include "model/rope.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace kvik::internal {
namespace {

// Base 10000 and 128 dims over 4096 tokens: pair 20.9 makes 32 turns, pair 45.03 makes one.
TEST(Rope, YarnKeepsFastPairsSlowsSlowOnesAndJoinsThem) {
  const Rope plain = plain_rope(10000, 128);
  Rope rope = plain;
  apply_yarn({.factor = 16, .original_context = 4096}, 10000, 128, rope);
  for (size_t i = 0; i < 64; ++i) {
    const double ratio = rope.frequency[i] / plain.frequency[i];
    // A straight ramp from 1 at pair 20 to 1/16 at pair 46.
    const double slow = std::clamp((static_cast<double>(i) - 20) / 26, 0.0, 1.0);
    EXPECT_NEAR(ratio, 1 - slow * 15 / 16, 1e-12) << i;
  }
  EXPECT_NEAR(rope.magnitude, 1.2772588722, 1e-9);  // 1 + 0.1 ln 16
}

TEST(Rope, AnglesAreExactFarFromTheStart) {
  const Rope rope = plain_rope(100000, 64);
  const std::vector<int32_t> positions = {0, 1, 1000000};
  std::vector<float> cos(96), sin(96);
  rope_angles(rope, positions, 0, cos.data(), sin.data());
  EXPECT_EQ(cos[0], 1.0f);
  EXPECT_EQ(sin[0], 0.0f);
  for (size_t i = 0; i < 32; ++i) {
    const double angle = 1000000 * rope.frequency[i];
    EXPECT_EQ(cos[64 + i], static_cast<float>(std::cos(angle)));
    EXPECT_EQ(sin[64 + i], static_cast<float>(std::sin(angle)));
  }
  std::vector<float> late_cos(96), late_sin(96);
  rope_angles(rope, std::vector<int32_t>{0, 1, 400000}, 600000, late_cos.data(), late_sin.data());
  for (size_t i = 64; i < 96; ++i) {
    EXPECT_EQ(late_cos[i], cos[i]);
    EXPECT_EQ(late_sin[i], sin[i]);
  }
}

TEST(Rope, TurnsNeighbouringPairsAndLeavesTheRest) {
  float row[] = {1, 0, 0, 2, 5, 1, 0, 0, 2, 5};
  const float cos[] = {0, 0.6f};
  const float sin[] = {1, 0.8f};
  rotate_heads(row, 2, 5, RopePairs::neighbours, cos, sin, 2);
  const float expected[] = {0, 1, -1.6f, 1.2f, 5};
  for (int i = 0; i < 10; ++i) EXPECT_FLOAT_EQ(row[i], expected[i % 5]) << i;
}

TEST(Rope, TurnsHalvesAndLeavesTheRest) {
  float row[] = {1, 0, 0, 2, 5, 1, 0, 0, 2, 5};
  const float cos[] = {0, 0.6f};
  const float sin[] = {1, 0.8f};
  rotate_heads(row, 2, 5, RopePairs::halves, cos, sin, 2);
  const float expected[] = {0, -1.6f, 1, 1.2f, 5};
  for (int i = 0; i < 10; ++i) EXPECT_FLOAT_EQ(row[i], expected[i % 5]) << i;
}

}  // namespace
}  // namespace kvik::internal
