// Which caches keep exact rows beside a cache of a set, made from its options alone.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "kvik/cache/paged_cache.h"
#include "kvik/core/checked_math.h"

namespace kvik::internal {

struct ExactRowOptions {
  // Which layer of those caches is beside each layer of the cache: packed ones have one.
  std::vector<std::optional<int>> layers;
  std::optional<PagedCacheOptions> first, recent;
};

// Requires: exact_first and exact_recent not negative.
inline ExactRowOptions exact_row_options(const PagedCacheOptions& options) {
  ExactRowOptions exact;
  PagedCacheOptions rows;
  rows.spec = options.spec;
  rows.spec.key_calibration = nullptr;
  rows.spec.layers.clear();
  for (const KvFormat& format : options.spec.layers) {
    const bool is_beside = is_packed(format.k) || is_packed(format.v);
    exact.layers.push_back(is_beside ? std::optional(rows.spec.num_layers()) : std::nullopt);
    if (is_beside) rows.spec.layers.push_back({KvCode::f16, KvCode::f16});
  }
  if (rows.spec.layers.empty()) return exact;
  rows.block_size = options.block_size;
  rows.rollback_slack = options.rollback_slack;
  if (options.exact_first > 0) {
    exact.first = rows;
    // A sequence that holds its own block here holds at least one of its own there.
    const int64_t blocks = ceil_div(options.exact_first, options.block_size);
    exact.first->max_blocks =
        static_cast<int>(std::min<int64_t>(INT32_MAX, blocks * options.max_blocks));
    exact.first->first_tokens = options.exact_first;
  }
  if (options.exact_recent > 0) {
    exact.recent = rows;
    exact.recent->max_blocks = options.max_blocks;
    exact.recent->window = std::min(options.exact_recent, options.window.value_or(INT32_MAX));
  }
  return exact;
}

}  // namespace kvik::internal
