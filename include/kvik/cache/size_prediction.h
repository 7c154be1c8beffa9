// What a cache will take of memory, computed without making it.
#pragma once

#include <cstdint>
#include <span>

#include "kvik/cache/paged_cache.h"
#include "kvik/core/export.h"
#include "kvik/core/status.h"

namespace kvik {

// num_steps steps of num_tokens tokens each, as one sequence grows.
struct AppendRun {
  int num_steps = 0;
  int num_tokens = 0;
};

struct CacheSize {
  int64_t num_tokens = 0;
  int64_t used_blocks = 0;
  int64_t committed_blocks = 0;
  int64_t nbytes = 0;
  int64_t committed_bytes = 0;
  int64_t exact_bytes = 0;  // of committed_bytes: exact rows beside packed ones
};

// The sizes that CacheSet::stats() reports once a cache made with these options has taken one
// sequence through the runs, in order, from empty; PagedCache::stats() where there are no exact
// rows. Bytes count exact rows, blocks do not. Memory is committed in steps that depend on the
// way, so the same tokens in other steps may commit a little more or less. With num_sequences, as
// many sequences go that way, one after the other, and all stay: num_tokens is their sum.
// Takes O(steps * layers) time and no memory to speak of. Errors: invalid_argument as
// PagedCache::create and for a negative count; out_of_pages when the tokens exceed max_blocks.
KVIK_API Result<CacheSize> predict_cache_size(const PagedCacheOptions& options,
                                              std::span<const AppendRun> runs,
                                              int num_sequences = 1);

}  // namespace kvik
