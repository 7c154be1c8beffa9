#include "kvik/cache/contiguous_cache.h"

#include <string>

#include "kvik/core/checked_math.h"

namespace kvik {

Result<ContiguousCache> ContiguousCache::create(const ContiguousCacheOptions& options,
                                                std::shared_ptr<Backend> backend) {
  if (options.max_tokens < 1) {
    return invalid_argument("max_tokens is " + std::to_string(options.max_tokens) +
                            "; it must be at least 1");
  }
  PagedCacheOptions paged;
  paged.spec = options.spec;
  paged.max_blocks = static_cast<int>(ceil_div(options.max_tokens, paged.block_size));
  Result<PagedCache> pages = PagedCache::create(paged, std::move(backend));
  if (!pages.ok()) return pages.status();
  return ContiguousCache(std::move(pages).value(), options.max_tokens);
}

Result<AppendPlan> ContiguousCache::reserve(int num_tokens) {
  if (int64_t{sequence_.num_cached()} + num_tokens > max_tokens_) {
    return Status(StatusCode::out_of_pages,
                  "the step needs room for " +
                      std::to_string(int64_t{sequence_.num_cached()} + num_tokens) +
                      " tokens; the cache was made for " + std::to_string(max_tokens_));
  }
  // A lone sequence never shares a page, and the pool hands out the lowest free page: block i is
  // page i.
  const AppendRequest request{&sequence_, num_tokens};
  return pages_.reserve({&request, 1});
}

}  // namespace kvik
