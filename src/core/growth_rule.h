// How a buffer grows: the one rule that the buffer, the page pool and the size prediction share.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kvik/core/checked_math.h"

namespace kvik::internal {

inline constexpr int64_t kHugePageBytes = int64_t{2} << 20;
inline constexpr int64_t kMinStepBytes = int64_t{64} << 10;
inline constexpr int64_t kGrowthDivisor = 32;

// The step that a commit takes by itself: min(2 MiB, 1/32 of what is committed), whole multiples of
// 64 KiB, at least one.
constexpr int64_t growth_step(int64_t committed) {
  const int64_t share = std::min(kHugePageBytes, committed / kGrowthDivisor);
  return std::max(kMinStepBytes, share / kMinStepBytes * kMinStepBytes);
}

// What is committed after asking for `wanted` bytes. Requires: wanted <= reserved.
constexpr int64_t committed_after(int64_t committed, int64_t wanted, int64_t reserved) {
  if (wanted <= committed) return committed;
  const int64_t target = std::max(wanted, committed + growth_step(committed));
  return std::min(reserved, round_up(target, kMinStepBytes));
}

// What a run that never asks for more than `limit` bytes has committed at most, whatever its steps.
constexpr int64_t most_committed(int64_t limit) {
  if (limit <= kMinStepBytes) return limit == 0 ? 0 : kMinStepBytes;
  const int64_t reserved = round_up(limit, kHugePageBytes);
  return std::min(reserved, round_up(limit + growth_step(limit), kMinStepBytes));
}

// Whether a run that uses `used` of its committed bytes, and may come to `limit`, should take its
// next step before it is needed.
constexpr bool wants_step_ahead(int64_t committed, int64_t used, int64_t limit) {
  return committed < limit && committed - used < growth_step(committed) / 2;
}

}  // namespace kvik::internal
