// Arithmetic that the packed formats share, in the order that makes their bits the same everywhere.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
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

// The largest magnitude as bits of a float; with a NaN or an infinity, at least infinity's. No
// early end, and integers, so that compilers use vectors.
inline int32_t peak_bits(const float* x, int count) noexcept {
  int32_t peak = 0;
  for (int i = 0; i < count; ++i) peak = std::max(peak, std::bit_cast<int32_t>(x[i]) & 0x7fffffff);
  return peak;
}
// Requires: finite numbers.
inline float peak_of(const float* x, int count) noexcept {
  return std::bit_cast<float>(peak_bits(x, count));
}
inline bool all_finite(const float* x, int count) noexcept {
  return peak_bits(x, count) < 0x7f800000;
}

// To the nearest integer, ties to even, never -0, without a call into the C library. Beyond 2^22
// only about the same number. Requires: the default rounding mode.
inline float round_even(float x) noexcept {
  constexpr float kShift = 0x1.8p23f;
  return x + kShift - kShift;
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
