// Private parts of a paged one-layer cache.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "kvik/layer_cache/paged_kv_cache.h"
#include "layer_cache/page_rows.h"
#include "layer_cache/pending_halves.h"

namespace kvik::internal {

struct PagedState {
  PagedKVCacheOptions options;
  std::shared_ptr<Backend> backend;
  int64_t num_blocks = 0;
  int64_t planned_offset = 0;      // of a meta state whose rows are still to come
  std::unique_ptr<PageRows> rows;  // null before the first write
  PendingHalves halves;
  std::optional<PagedRoute> route;  // latched by a request's first attention call
  int64_t route_offset = 0;
  std::optional<PagedBailout> bailout;
  bool fallback_told = false;
  int64_t copies = 0;
  PagedStats counters;  // of what is counted; sizes are filled in on demand

  int64_t offset() const { return rows ? rows->num_rows() : planned_offset; }
  bool has_rows() const { return rows && rows->num_rows() > 0; }

  // Tokens that a page holds: the smallest multiple of the block size that tiles divide.
  int64_t page_tokens() const;
  // Tokens of a batch row for which address space is reserved.
  int64_t limit_tokens() const;
  // Blocks that a batch row of num_tokens tokens needs, after growth if that is allowed. Errors:
  // out_of_pages.
  Result<int64_t> blocks_for(int64_t num_tokens) const;
  // Puts all rows into a pool of their own with room for `limit` tokens.
  Status move_to_own_pool(int64_t limit);
  Status append(const ConstTensorView& keys, const ConstTensorView& values);
  Status load(const ConstTensorView& keys, const ConstTensorView& values, int64_t num_rows);
  void clear();
  Result<KvArrays> gather();
  void tell(const std::string& what);
};

}  // namespace kvik::internal
