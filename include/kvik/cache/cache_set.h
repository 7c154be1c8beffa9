// The caches of one model, stepped together: the only door that an engine uses.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "kvik/cache/paged_cache.h"
#include "kvik/core/export.h"
#include "kvik/core/status.h"

namespace kvik {

namespace internal {
struct SetCore;
}

// The plans of one step, one per cache of the set, all over the same tokens. Move-only.
class KVIK_API SetPlan {
 public:
  SetPlan() = default;
  SetPlan(SetPlan&& other) noexcept;
  SetPlan& operator=(SetPlan&& other) noexcept;
  ~SetPlan();

  AppendPlan& plan(int cache_idx) { return plans_[static_cast<size_t>(cache_idx)]; }
  const AppendPlan& plan(int cache_idx) const { return plans_[static_cast<size_t>(cache_idx)]; }

 private:
  friend class CacheSet;
  std::shared_ptr<internal::SetCore> core_;
  std::vector<AppendPlan> plans_;
};

// A model with layers of different shapes or windows (Gemma: local and global) owns one PagedCache
// per kind; a plain model is a set of one. Each call below succeeds in all caches or changes
// nothing in any. Threads: one at a time.
class KVIK_API CacheSet {
 public:
  // Errors: as PagedCache::create; invalid_argument for an empty list.
  static Result<CacheSet> create(std::span<const PagedCacheOptions> options,
                                 const std::shared_ptr<Backend>& backend);

  int num_caches() const { return static_cast<int>(caches_.size()); }
  // For write(), view() and stats() of one cache. Requires: the index in range.
  PagedCache& cache(int cache_idx) { return caches_[static_cast<size_t>(cache_idx)]; }

  // The calls of PagedCache, over the set. new_sequence() is empty when a cache is contiguous and
  // has its sequence.
  Sequence new_sequence();
  Result<SetPlan> reserve(std::span<const AppendRequest> requests);
  Status commit(SetPlan plan);
  Status truncate(Sequence& sequence, int num_tokens);
  Result<Sequence> fork(const Sequence& sequence);

 private:
  CacheSet() = default;
  std::vector<PagedCache> caches_;
  std::shared_ptr<internal::SetCore> core_;
};

}  // namespace kvik
