// The caches of one model, stepped together: the only door that an engine uses.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kvik/attention/attention.h"
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

// The segments that serve one layer: exact first rows, the layer's own rows, exact recent rows.
class LayerSegments {
 public:
  void add(const Segment& segment) { segments_[static_cast<size_t>(count_++)] = segment; }
  std::span<const Segment> span() const { return {segments_.data(), static_cast<size_t>(count_)}; }

 private:
  std::array<Segment, 3> segments_;
  int count_ = 0;
};

// A model with layers of different shapes or windows (Gemma: local and global) owns one PagedCache
// per kind; a plain model is a set of one. Each call below succeeds in all caches or changes
// nothing in any. Threads: one at a time.
class KVIK_API CacheSet {
 public:
  // Errors: as PagedCache::create; invalid_argument for an empty list or a negative exact_first or
  // exact_recent.
  static Result<CacheSet> create(std::span<const PagedCacheOptions> options,
                                 const std::shared_ptr<Backend>& backend);

  int num_caches() const { return static_cast<int>(exact_.size()); }
  // Requires, here and below: the indices in range.
  PagedCache& cache(int cache_idx) { return caches_[static_cast<size_t>(cache_idx)]; }

  // Statistics of a cache with the exact rows beside it: bytes, encoded and copied rows summed.
  CacheStats stats(int cache_idx) const;

  // The calls of PagedCache, over the set. new_sequence() is empty when a cache is contiguous and
  // has its sequence.
  Sequence new_sequence();
  Result<SetPlan> reserve(std::span<const AppendRequest> requests);
  // Stores a layer of one cache, exact rows beside it included; as PagedCache::write.
  void write(SetPlan& plan, int cache_idx, int layer, const ConstTensorView& k,
             const ConstTensorView& v);
  // What an attention call over a layer of one cache reads. Valid while the plan lives.
  LayerSegments segments(const SetPlan& plan, int cache_idx, int layer) const;
  Status commit(SetPlan plan);
  Status truncate(Sequence& sequence, int num_tokens);
  Result<Sequence> fork(const Sequence& sequence);

  // Takes the tokens [begin, begin + count) out of the sequence; later ones move down by `count`
  // positions. No row is read, written or copied: keys in frames (key_frame.h) are stored relative
  // to their frame, so the rows that moved are those of the same keys, before RoPE, at their new
  // positions. Pages that other sequences hold stay theirs. Nothing comes back into a window: where
  // a layer's window has passed position 0, its rows before `begin` are given back. Exact first
  // rows stay. O(blocks). Errors, nothing changed: as drop_unit(); invalid_argument for a foreign
  // sequence, an open plan, and unless begin and count are multiples of drop_unit(), begin at least
  // exact_first and begin + count at most num_cached.
  Status drop_tokens(Sequence& sequence, int begin, int count);
  // Least common multiple of the frames and block sizes of the set: what drop_tokens counts in.
  // Errors: unsupported, naming the layer and what would work, unless all keys lie in frames (a
  // rotated format and KvSpec::key_calibration); for exact_recent rows and contiguous caches.
  Result<int> drop_unit() const;

 private:
  CacheSet() = default;
  // The caches that keep exact rows beside one of the set: indices of caches_.
  struct ExactRows {
    std::optional<size_t> first, recent;
    std::vector<std::optional<int>> layers;  // which of their layers is beside each of the cache's
    int num_first = 0;
    int num_recent = 0;
  };
  Status add_exact_rows(const PagedCacheOptions& options, const std::shared_ptr<Backend>& backend,
                        ExactRows& exact);

  std::vector<PagedCache> caches_;  // those of the options, then those of exact rows
  std::vector<ExactRows> exact_;    // one per cache of the options
  std::shared_ptr<internal::SetCore> core_;
};

}  // namespace kvik
