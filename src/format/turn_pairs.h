// RoPE of one row, for what turns keys and queries between frames.
#pragma once

#include <cstddef>

#include "kvik/format/key_frame.h"

namespace kvik::internal {

// Turns the pairs of `row` by angles given as cos and sin: forth (direction +1) or back (-1). All
// arithmetic is in Float.
template <class Float>
inline void turn_pairs(KeyPairs pairs, const double* cos, const double* sin, size_t num_pairs,
                       Float direction, Float* __restrict row) noexcept {
  if (pairs == KeyPairs::halves) {
    Float* __restrict const second = row + num_pairs;
    for (size_t p = 0; p < num_pairs; ++p) {
      const Float x = row[p];
      const Float y = second[p];
      const Float c = static_cast<Float>(cos[p]);
      const Float s = direction * static_cast<Float>(sin[p]);
      row[p] = x * c - y * s;
      second[p] = x * s + y * c;
    }
    return;
  }
  for (size_t p = 0; p < num_pairs; ++p) {
    const Float x = row[2 * p];
    const Float y = row[2 * p + 1];
    const Float c = static_cast<Float>(cos[p]);
    const Float s = direction * static_cast<Float>(sin[p]);
    row[2 * p] = x * c - y * s;
    row[2 * p + 1] = x * s + y * c;
  }
}

}  // namespace kvik::internal
