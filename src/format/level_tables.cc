#include "format/level_tables.h"

#include <array>
#include <cstddef>

#include "kvik/core/check.h"

namespace kvik::internal {
namespace {

template <size_t kHalf>
constexpr std::array<int8_t, 2 * kHalf> complemented(const std::array<int8_t, kHalf>& positive) {
  std::array<int8_t, 2 * kHalf> levels{};
  for (size_t i = 0; i < kHalf; ++i) {
    levels[kHalf + i] = positive[i];
    levels[kHalf - 1 - i] = static_cast<int8_t>(~positive[i]);
  }
  return levels;
}

constexpr auto kScalar4 = complemented<8>({5, 18, 30, 43, 58, 75, 96, 127});
constexpr auto kScalar3 = complemented<4>({14, 44, 79, 127});
constexpr auto kScalar2 = complemented<2>({38, 127});

constexpr auto kTrellis4 =
    complemented<16>({2, 7, 11, 16, 20, 26, 31, 37, 42, 49, 55, 64, 73, 86, 102, 127});
constexpr auto kTrellis3 = complemented<8>({4, 16, 27, 40, 53, 69, 91, 127});
constexpr auto kTrellis2 = complemented<4>({11, 43, 72, 127});

}  // namespace

// A gain is 127.5 / 32 divided by the unrounded top level.
LevelTable scalar_levels(int bits) noexcept {
  switch (bits) {
    case 4:
      return {kScalar4, 0x1.7545b6p+0f};
    case 3:
      return {kScalar3, 0x1.d9fd5cp+0f};
    case 2:
      return {kScalar2, 0x1.51a7acp+1f};
    default:
      break;
  }
  KVIK_CHECK(false, "scalar levels exist for 4, 3 and 2 bits");
}

LevelTable trellis_levels(int bits) noexcept {
  switch (bits) {
    case 4:
      return {kTrellis4, 0x1.4f847ap+0f};
    case 3:
      return {kTrellis3, 0x1.9d7e98p+0f};
    case 2:
      return {kTrellis2, 0x1.1168fap+1f};
    default:
      break;
  }
  KVIK_CHECK(false, "trellis levels exist for 4, 3 and 2 bits");
}

}  // namespace kvik::internal
