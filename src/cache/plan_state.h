// Private parts of a cache and of an open step.
#pragma once

#include <memory>
#include <vector>

#include "format/framed_keys.h"
#include "kvik/cache/paged_cache.h"
#include "kvik/page/page_pool.h"

namespace kvik::internal {

// One request of a plan.
struct PlanItem {
  std::shared_ptr<SequenceState> sequence;
  int num_tokens = 0;
  int begin = 0, end = 0;    // positions of the rows that the cache stores
  bool copies_last = false;  // its first page replaces the last block
  int num_pages = 0;         // taken from PlanState::pages, in order
};

struct PlanState {
  std::vector<PlanItem> items;
  std::vector<PageRef> pages;  // of all items, not yet in any table
  std::vector<int32_t> query_indptr, positions, seq_lens;
  std::vector<int64_t> slots;
  // The tables with the new pages in them.
  std::vector<int32_t> page_indptr, page_ids, first_pos, kv_len;
  Status error;  // the first that write() met
  // What the step's views may read; shared with them, so that a view kept too long finds it
  // changed.
  std::shared_ptr<StepRows> rows = std::make_shared<StepRows>();

  // To be called once the tables are laid out; ends with clear().
  void open(int num_layers);
  // Ready for another step, memory kept.
  void clear();
};

// Shared by a PagedCache and its open plans, so that either may go first.
struct CacheCore {
  PagedCacheOptions options;
  std::shared_ptr<Backend> backend;
  std::shared_ptr<PagePool> pool;  // runs 2 * layer (K) and 2 * layer + 1 (V)
  std::vector<std::unique_ptr<const FramedKeys>> framed_keys;  // per layer; null: no frames
  int table_idx = 0;
  const void* owner = nullptr;
  uint64_t next_id = 1;
  std::weak_ptr<SequenceState> only;  // the sequence of a contiguous cache
  std::unique_ptr<PlanState> spare;   // a finished step's memory, for the next one
  int64_t encoded_rows = 0;
  int64_t copied_rows = 0;
  int64_t copy_on_write_copies = 0;

  MutableKvView layer_view(int layer) const;
};

// For tests: all pages of a layer, whoever holds them. Page p of head h lies as KvView says.
struct CacheAccess {
  static MutableKvView raw_view(PagedCache& cache, int layer) {
    return cache.core_->layer_view(layer);
  }
};

}  // namespace kvik::internal
