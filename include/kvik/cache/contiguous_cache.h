// A cache of one sequence whose blocks lie one after the other.
#pragma once

#include "kvik/cache/paged_cache.h"
#include "kvik/core/export.h"
#include "kvik/core/status.h"

namespace kvik {

struct ContiguousCacheOptions {
  KvSpec spec;
  int max_tokens = 16384;  // the limit; address space for it is reserved at once
};

// The same tiles, kernels and steps as PagedCache, with the identity as block table: block i is
// page i. Threads: one at a time.
class KVIK_API ContiguousCache {
 public:
  // Errors: as PagedCache::create.
  static Result<ContiguousCache> create(const ContiguousCacheOptions& options,
                                        std::shared_ptr<Backend> backend);

  int num_cached() const { return sequence_.num_cached(); }

  // As the calls of PagedCache, for the one sequence.
  Result<AppendPlan> reserve(int num_tokens);
  void write(AppendPlan& plan, int layer, const ConstTensorView& k, const ConstTensorView& v) {
    pages_.write(plan, layer, k, v);
  }
  KvView view(const AppendPlan& plan, int layer) const { return pages_.view(plan, layer); }
  Status commit(AppendPlan plan) { return pages_.commit(std::move(plan)); }
  Status truncate(int num_tokens) { return pages_.truncate(sequence_, num_tokens); }
  CacheStats stats() const { return pages_.stats(); }
  const KvSpec& spec() const { return pages_.spec(); }

 private:
  ContiguousCache(PagedCache pages, int max_tokens)
      : pages_(std::move(pages)), sequence_(pages_.new_sequence()), max_tokens_(max_tokens) {}

  PagedCache pages_;
  Sequence sequence_;
  int max_tokens_;
};

}  // namespace kvik
