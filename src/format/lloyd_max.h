// Lloyd-Max quantisers of a unit normal: every centroid is the mean of its cell, every boundary the
// midpoint of its neighbours (Max 1960, Lloyd 1982). Solved by Newton's method in double to 1e-12.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

namespace kvik::internal {

struct Codebook {
  std::span<const float> centroids;   // 2^bits, ascending, symmetric
  std::span<const float> boundaries;  // 2^bits - 1
};

// Requires: bits is 2, 3, 4, 5 or 8.
Codebook lloyd_max(int bits) noexcept;

// Number of boundaries strictly below u: a tie goes down, 0 to the upper negative cell. NaN gives
// 0.
inline uint8_t cell_of(float u, std::span<const float> boundaries) noexcept {
  return static_cast<uint8_t>(std::lower_bound(boundaries.begin(), boundaries.end(), u) -
                              boundaries.begin());
}

}  // namespace kvik::internal
