// One sequence as its owner holds it: how many tokens are cached, and in which pages.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kvik/core/export.h"
#include "kvik/page/block_table.h"

namespace kvik {

namespace internal {
// What a Sequence and the open plan of its current step share.
struct SequenceState {
  uint64_t id = 0;
  int num_cached = 0;
  std::vector<BlockTable> tables;  // one per cache of the set that made it
  bool has_open_plan = false;
  const void* owner = nullptr;  // the cache or set that made it; others refuse it
};
}  // namespace internal

// A handle; move-only (PagedCache::fork and CacheSet::fork make another with the same tokens). An
// empty handle (default-made or moved from) is refused by every cache.
class KVIK_API Sequence {
 public:
  Sequence() = default;
  Sequence(Sequence&&) = default;
  Sequence& operator=(Sequence&&) = default;

  // Distinct among the sequences of one cache or set; 0 for an empty handle.
  uint64_t id() const { return state_ ? state_->id : 0; }
  // Tokens whose rows are committed in every layer.
  int num_cached() const { return state_ ? state_->num_cached : 0; }
  // Block table in cache `cache_idx` of the set. Requires: not empty, the index in range.
  const BlockTable& table(int cache_idx = 0) const {
    return state_->tables[static_cast<size_t>(cache_idx)];
  }

 private:
  friend class PagedCache;
  friend class CacheSet;
  std::shared_ptr<internal::SequenceState> state_;
};

// num_tokens more tokens for one sequence.
struct AppendRequest {
  Sequence* sequence = nullptr;
  int num_tokens = 0;
};

}  // namespace kvik
