#include <algorithm>

#include "kvik/core/checked_math.h"
#include "kvik/model/model.h"

namespace kvik {

// cache_bytes grows with the blocks of max_tokens, so the place where it passes `bytes` is found by
// halving.
Result<int> Model::largest_context(const ModelCacheOptions& options, int64_t bytes) const {
  ModelCacheOptions tried = options;
  const auto fits = [&](int64_t num_tokens) -> Result<bool> {
    tried.max_tokens = static_cast<int>(num_tokens);
    if (options.window) tried.window = std::min(*options.window, tried.max_tokens);
    Result<int64_t> taken = cache_bytes(tried);
    if (!taken.ok()) return taken.status();
    return *taken <= bytes;
  };
  Result<bool> all = fits(options.max_tokens);
  if (!all.ok()) return all.status();
  if (*all) return options.max_tokens;
  int64_t fitting = 0;  // blocks
  int64_t too_many = ceil_div(options.max_tokens, options.block_size);
  while (too_many - fitting > 1) {
    const int64_t middle = fitting + (too_many - fitting) / 2;
    const Result<bool> half = fits(middle * options.block_size);
    if (!half.ok()) return half.status();
    (*half ? fitting : too_many) = middle;
  }
  return static_cast<int>(fitting * options.block_size);
}

}  // namespace kvik
