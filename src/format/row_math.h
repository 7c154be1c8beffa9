// Arithmetic that the packed formats share, in the order that makes their bits the same everywhere.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>

#include "kvik/core/dtype.h"

namespace kvik::internal {

// A row whose largest magnitude or sum of squares lies below counts as zero, so that hardware that
// flushes denormals stores the same codes.
inline constexpr float kTiny = 0x1p-100f;
inline constexpr float kMaxF16 = 65504.0f;

// Sum of element(0..count-1): lane l (0..15) adds elements l, l + 16, l + 32, ... in order; then
// the lanes are folded, l and l + 8, l + 4, l + 2, l + 1. Requires: count a positive multiple
// of 16.
template <class Element>
float sum16(int count, const Element& element) noexcept {
  float lane[16];
  for (int l = 0; l < 16; ++l) lane[l] = element(l);
  for (int i = 16; i < count; i += 16) {
    for (int l = 0; l < 16; ++l) lane[l] += element(i + l);
  }
  for (int half = 8; half > 0; half /= 2) {
    for (int l = 0; l < half; ++l) lane[l] += lane[l + half];
  }
  return lane[0];
}

// Nearest half, ties to even, beyond the range the largest finite one. Requires: x is not NaN.
inline f16_bits saturated_f16(float x) noexcept {
  return f32_to_f16(std::clamp(x, -kMaxF16, kMaxF16));
}

// The smallest half not below x, at most the largest finite one. Requires: x >= 0.
inline f16_bits f16_not_below(float x) noexcept {
  const f16_bits half = saturated_f16(x);
  const bool below = f16_to_f32(half) < x && half < 0x7bff;
  return static_cast<f16_bits>(half + (below ? 1 : 0));
}

inline bool all_finite(const float* x, int count) noexcept {
  return std::all_of(x, x + count, [](float e) { return std::isfinite(e); });
}

template <class T>
void store_as(std::byte* to, T value) noexcept {
  std::memcpy(to, &value, sizeof value);
}
template <class T>
T load_as(const std::byte* from) noexcept {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

}  // namespace kvik::internal
