// RoPE of one row in double, for what turns keys and queries between frames.
#pragma once

#include <cstddef>

#include "kvik/format/key_frame.h"

namespace kvik::internal {

// Turns the pairs of `row` by angles given as cos and sin: forth (direction +1) or back (-1).
inline void turn_pairs(KeyPairs pairs, const double* cos, const double* sin, size_t num_pairs,
                       double direction, double* row) noexcept {
  if (pairs == KeyPairs::halves) {
    double* const second = row + num_pairs;
    for (size_t p = 0; p < num_pairs; ++p) {
      const double x = row[p];
      const double y = second[p];
      row[p] = x * cos[p] - y * (direction * sin[p]);
      second[p] = x * (direction * sin[p]) + y * cos[p];
    }
    return;
  }
  for (size_t p = 0; p < num_pairs; ++p) {
    const double x = row[2 * p];
    const double y = row[2 * p + 1];
    row[2 * p] = x * cos[p] - y * (direction * sin[p]);
    row[2 * p + 1] = x * (direction * sin[p]) + y * cos[p];
  }
}

}  // namespace kvik::internal
