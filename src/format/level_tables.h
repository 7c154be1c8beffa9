// Level tables of tq4, tq3, tq2 and tcq4, tcq3, tcq2: int8 half-integers, so that integer dots and
// float kernels decode the same values.
#pragma once

#include <cstdint>
#include <span>

namespace kvik::internal {

// Entry v stands for (v + 1/2) / 32. The top entry is 127 (3.984375), and the table is its own
// complement: levels[n] = ~levels[size - 1 - n].
struct LevelTable {
  std::span<const int8_t> levels;  // ascending
  float gain;                      // from a unit-variance element to level units
};

// Lloyd-Max levels of a unit normal scaled to the top entry and rounded: 2^bits entries.
// Requires: bits is 4, 3 or 2.
LevelTable scalar_levels(int bits) noexcept;

// Levels of the trellis: 2^(bits + 1) entries, entry 4 * up + subset. Trained: each level is the
// mean of the samples that a four-state search sends to it. Requires: bits is 4, 3 or 2.
LevelTable trellis_levels(int bits) noexcept;

// Exact.
constexpr float level_value(int8_t level) {
  return (static_cast<float>(level) + 0.5f) * (1.0f / 32.0f);
}

}  // namespace kvik::internal
